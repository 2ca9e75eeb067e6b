"""Checks by the list of keys: what belongs to nothing, and which chunks are there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from nczarr_fsspec.changes.journal import dataset_keys
from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.format import ZARR
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.registry import formats
from nczarr_xarray.model import ChunkedArray, grid_of
from nczarr_xarray.tools.finding import Finding, some
from nczarr_xarray.tools.validate.subject import Subject

_DOCUMENTS = (".zarray", ".zgroup")


def listing(subject: Subject) -> Iterator[Finding]:
    """Say if the keys cannot be listed, so that less can be found out."""
    if not subject.is_tree or subject.keys is not None:
        return
    reason, advice = "cannot be listed here", "validate the dataset where it is stored"
    if subject.opened is not None and subject.generation not in ZARR:
        reason, advice = "are those of another package's format", "nothing: it is read by that"
    text = f"the objects {reason}: what is missing or foreign was not looked for"
    yield Finding("note", "not-listed", subject.url, text, advice)


def foreign(subject: Subject) -> Iterator[Finding]:
    """Find objects that belong to no dataset: of other programs, or chunks without an array."""
    keys = subject.keys or ()
    # documents may be in consolidated metadata only, or missing: their chunks are not foreign
    arrays = (f"{variable.path.strip('/')}/.zarray" for variable in subject.variables)
    marks = (mark for row in formats() for mark in row.marks)  # of formats of other packages, too
    others = sorted(set(keys).difference(dataset_keys([*keys, *arrays]), marks))
    folders: dict[str, list[str]] = defaultdict(list)
    for key in others:
        folders[key.rpartition("/")[0]].append(key)
    for folder, names in folders.items():
        text = f"{len(names)} objects belong to no dataset: {some(names)}"
        advice = "look at them; remove them if nothing needs them"
        yield Finding("warning", "foreign", folder or "/", text, advice)


def unlisted(subject: Subject) -> Iterator[Finding]:
    """Find groups and arrays that no group of NCZarr lists, which its readers do not see."""
    if not subject.is_nczarr:
        return
    known = {group.path.strip("/") for group in subject.groups}
    known |= {variable.path.strip("/") for variable in subject.variables}
    # an aggregation is shown without what its tables need
    known |= _listed(subject)
    for key in subject.keys or ():
        path, _, name = key.rpartition("/")
        above = path.rpartition("/")[0]
        if name in _DOCUMENTS and path and path not in known and above in known:
            kind = "array" if name == ".zarray" else "group"
            text = f"this {kind} is listed in no group: readers of NCZarr do not see it"
            yield Finding(
                "warning", "unlisted", path, text, "add its name to the list of its group"
            )


def _listed(subject: Subject) -> set[str]:
    """Return the paths that groups of NCZarr list, as far as their documents can be read."""
    found: set[str] = set()
    pending = [""]
    while pending:
        path = pending.pop()
        try:
            lists = spellings.group_lists(subject.node(path), path)
        except FormatError:
            continue  # opening fails at it, too
        if lists is None:
            continue
        start = f"{path}/" if path else ""
        groups = {f"{start}{name}" for name in lists.groups} - found
        found |= groups | {f"{start}{name}" for name in lists.arrays}
        pending += groups
    return found


def missing(subject: Subject) -> Iterator[Finding]:
    """Count chunks that are not stored, and read as fill values."""
    for array in _arrays(subject):
        count = math.prod(grid_of(array.shape, array.chunk_shape))
        stored = sum(position is not None for position in subject.positions(array))
        if stored < count:
            text = f"{count - stored:,} of {count:,} chunks are not stored: they read as fill value"
            yield Finding(
                "note", "chunk-missing", array.path, text, "nothing, if they were never written"
            )


def outside(subject: Subject) -> Iterator[Finding]:
    """Find objects that are named like chunks, but lie outside of the grid of their array."""
    for array in _arrays(subject):
        keys = subject.chunk_keys[array.path]
        found = [k for k, at in zip(keys, subject.positions(array), strict=True) if at is None]
        if found:
            text = f"{len(found)} chunks lie outside of the shape {list(array.shape)}, or have "
            text += f"keys of another form: {some(found)}"
            advice = "no reader sees them; remove them, or correct shape and dimension_separator"
            yield Finding("warning", "chunk-outside", array.path, text, advice)


def _arrays(subject: Subject) -> Iterator[ChunkedArray]:
    for variable in subject.variables if subject.keys is not None else ():
        if isinstance(variable.array, ChunkedArray) and variable.error is None:
            yield variable.array
