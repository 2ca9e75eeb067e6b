"""Names of keys, for stores that know what keys there may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def chunk_number(words: Sequence[str], grid: Sequence[int]) -> int | None:
    """Return the number of a chunk in its grid, by the `words` of its name; None for other names.

    The chunk of a scalar is called 0.
    """
    if not grid:
        return 0 if [*words] == ["0"] else None
    if len(words) != len(grid):
        return None
    number = 0
    for word, count in zip(words, grid, strict=True):
        if not (word.isascii() and word.isdigit() and len(word) <= 19):
            return None
        position = int(word)
        if position >= count or str(position) != word:
            return None
        number = number * count + position
    return number
