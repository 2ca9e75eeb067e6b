"""Checks of what is stored where: keys, extents of a file, and fragments of aggregations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from nczarr_fsspec.changes.journal import dataset_keys
from nczarr_fsspec.errors import (
    AccessDeniedError,
    ChangedError,
    FormatError,
    NCZarrError,
    StoreError,
)
from nczarr_xarray.aggregation.refresh import new_files
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.dataset.fragments import FragmentReader
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.registry import ZARR, formats
from nczarr_xarray.model import ChunkedArray, FileChunks, FileStrides, Hierarchy, Variable, grid_of
from nczarr_xarray.tools.checks import Finding, some
from nczarr_xarray.tools.checks.subject import MOST_CHUNKS, Extents, Subject

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


# -- files -----------------------------------------------------------------------------------------

_ADVICE = "the file was cut off: get it again"


def ends(subject: Subject) -> Iterator[Finding]:
    """Find variables of which data lie beyond the end of the file."""
    opened = subject.opened
    if opened is None or not isinstance(opened.store, DataFile):
        return
    size = opened.store.source.size
    for variable in subject.variables:
        if variable.error is not None:
            continue
        yield from _not_examined(variable)
        try:
            beyond, count = _beyond(subject, opened.store, variable, size)
        except NCZarrError as found:
            yield Finding(
                "error", "index", found.object, f"{found.reason} (of {variable.path})", _ADVICE
            )
            continue
        if beyond:
            text = f"{beyond:,} of {count:,} stored chunks end beyond the {size:,} bytes there are"
            yield Finding("error", "extent", variable.path, text, _ADVICE)


def _not_examined(variable: Variable) -> Iterator[Finding]:
    """Say how many chunks of a variable are too many to be looked at."""
    array = variable.array
    if isinstance(array, FileChunks):
        count = math.prod(grid_of(array.shape, array.chunk_shape))
        if count > MOST_CHUNKS:
            text = f"{count - MOST_CHUNKS:,} of {count:,} chunks were not looked at: they are many"
            yield Finding("note", "not-examined", variable.path, text)


def _beyond(subject: Subject, file: DataFile, variable: Variable, size: int) -> tuple[int, int]:
    """Count the chunks of a variable beyond the end of the file, and all that are stored."""
    array = variable.array
    beyond = count = 0
    found: Iterable[Extents] = ()
    if isinstance(array, FileStrides) and array.inline is None:
        first = np.zeros(1, np.int64)
        table = file.parse(array.locate(first))
        found = [Extents(first, table.start, table.size)]
    elif isinstance(array, FileChunks):
        found = subject.extents(array)
    for _, starts, sizes in found:
        stored = starts >= 0
        count += int(np.count_nonzero(stored))
        beyond += int(np.count_nonzero(stored & (starts + sizes > size)))
    return beyond, count


# -- fragments -------------------------------------------------------------------------------------


def fragments(subject: Subject) -> Iterator[Finding]:
    """Open all fragments of aggregations, and find those that are missing or do not fit."""
    if subject.opened is not None:
        yield from fragment_faults(subject.opened.hierarchy)
        yield from _new_fragments(subject, subject.opened.hierarchy)


def _new_fragments(subject: Subject, hierarchy: Hierarchy) -> Iterator[Finding]:
    """Find files in the sources of an aggregation that it lacks."""
    arrays = [array for _, array in aggregated(hierarchy)]
    opener = arrays[0].opener if arrays else None
    if not isinstance(opener, FragmentDatasets):
        return
    advice = "nczarr aggregate --refresh adds them"
    try:
        tables = (array.fragments for array in arrays)
        new = new_files(tables, opener.policy, subject.storage_options)
    except NCZarrError as error:
        yield Finding("note", "fragment-new", "/", f"cannot be looked for: {error}", advice)
        return
    if new:
        text = f"{len(new)} files are new where the others are: {some(new)}"
        yield Finding("note", "fragment-new", "/", text, advice)


def fragment_faults(hierarchy: Hierarchy) -> Iterator[Finding]:
    """Do as `fragments` does, of the metadata of an aggregation."""
    for variable, array in aggregated(hierarchy):
        reader = array.selections(None)
        assert isinstance(reader, FragmentReader)
        for number, fault in reader.faults():
            path = f"{variable.path} fragment {array.fragments.position(number)}"
            if isinstance(fault, AccessDeniedError):
                code, advice = "fragment-denied", "allow its address: --allow"
            elif isinstance(fault, ChangedError):
                code, advice = "fragment-changed", "read it again: nczarr aggregate --refresh"
            elif isinstance(fault, StoreError):
                code, advice = "fragment-missing", "restore it, or say where it is: --replace"
            else:
                code, advice = "fragment-misfit", "restore it, or make the aggregation anew"
            yield Finding("error", code, path, str(fault), advice)
