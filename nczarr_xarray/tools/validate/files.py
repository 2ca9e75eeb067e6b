"""Checks of single files: data that lie beyond the end of a file that was cut off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.model import FileChunks, FileStrides, Variable, grid_of
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.validate.subject import MOST_CHUNKS, Extents, Subject

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
