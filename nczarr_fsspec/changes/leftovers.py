"""Replacements that writers make beside a dataset or a file: their names, and those left over.

The name of a replacement tells which process made it, so that it can be removed when that process
has ended.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nczarr_fsspec.local_files import whole_file
from nczarr_fsspec.stores.ownership import AT_WORK, Owner

#: Bytes of the name of a dataset that its replacements keep: their names may have 255.
_NAME_BYTES = 80
_PARTIAL = re.compile(r"(?P<identity>.*)-(?P<unique>[0-9a-f]{8})\.partial", re.DOTALL)


def partial_path(path: str) -> str:
    """Return a name beside `path` for its replacement; the name tells which process made it."""
    partial = f"{_start(path)}{Owner.here().identity}-{uuid.uuid4().hex[:8]}.partial"
    AT_WORK.add(partial)
    return os.path.join(os.path.dirname(path), partial)


def _start(path: str) -> str:
    """Return how the names of all replacements of `path` begin, and of nothing else.

    A long name has to be cut, and another name may begin with this one.
    """
    name = os.path.basename(path)
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    while len(os.fsencode(name)) > _NAME_BYTES:
        name = name[:-1]
    return f".{name}.{digest}."


def leftovers(path: str) -> list[tuple[str, Owner]]:
    """Return what writers of `path` have left beside it: pairs of path and owner."""
    parent, start = os.path.dirname(path), _start(path)
    found = []
    with suppress(OSError):
        for other in os.listdir(parent):
            match = _PARTIAL.fullmatch(other[len(start) :]) if other.startswith(start) else None
            owner = None if match is None else Owner.of_identity(match["identity"])
            if owner is not None:
                found.append((os.path.join(parent, other), owner))
    return found


def remove_leftovers(path: str, *, alive: bool = False) -> bool:
    """Remove what dead writers of `path` left beside it; tell whether there was anything.

    Parameters
    ----------
    alive
        Whether to remove what any writer left.
    """
    found = [
        partial
        for partial, owner in leftovers(path)
        if alive or owner.has_left(os.path.basename(partial))
    ]
    for partial in found:
        remove_partial(partial)
    return bool(found)


def remove_partial(partial: str) -> None:
    """Remove what is at a `partial_path`, and its entry in `AT_WORK`."""
    AT_WORK.discard(os.path.basename(partial))
    if os.path.isdir(partial):
        shutil.rmtree(partial, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(partial)


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield the path of a new file beside `path`, which then takes its place (`whole_file`)."""
    new = partial_path(path)
    try:
        with whole_file(path, new):
            yield new
    finally:
        AT_WORK.discard(os.path.basename(new))
