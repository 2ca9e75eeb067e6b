"""Names of keys, for stores that know all their keys beforehand."""

from __future__ import annotations

from collections.abc import Iterable


def child_names(keys: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the names directly below every prefix that `keys` imply; ``""`` is the root.

    Parameters
    ----------
    keys
        Paths without a leading slash; a directory may be among them.
    """
    children: dict[str, set[str]] = {"": set()}
    for key in keys:
        while key:
            parent, _, name = key.rpartition("/")
            siblings = children.setdefault(parent, set())
            if name in siblings:
                break  # so its ancestors are known as well
            siblings.add(name)
            key = parent
    return {prefix: frozenset(names) for prefix, names in children.items()}
