"""Checks of the data themselves: every chunk is fetched and decoded, some at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from nczarr_fsspec.errors import NCZarrError, StoreError, TooLargeError, UnsupportedError
from nczarr_xarray.chunks.decoder import LONGER
from nczarr_xarray.chunks.pieces import Index
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.contents import StoredSource
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import (
    ChunkedArray,
    FileChunks,
    FragmentArray,
    Variable,
    box_of,
    grid_of,
    position_of,
)
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.metadata import ELSEWHERE
from nczarr_xarray.tools.checks.subject import Subject

#: Bytes and chunks that are decoded together, at most (one chunk may have more bytes).
BATCH_BYTES = 1 << 26
_BATCH = 1 << 10

Box = tuple[slice, ...]


def undecodable(subject: Subject) -> Iterator[Finding]:
    """Find chunks that cannot be decoded."""
    batch: list[tuple[Variable, tuple[Index, ...] | None]] = []
    nbytes = 0
    for variable in subject.variables:
        if subject.error(variable) is not None or isinstance(variable.array, FragmentArray):
            continue
        yield from _longer(subject, variable)
        for box in _boxes(subject, variable):
            batch.append((variable, box))
            sizes = (part.stop - part.start for part in box)
            nbytes += math.prod(sizes) * max(1, variable.dtype.itemsize)
            if nbytes >= BATCH_BYTES or len(batch) >= _BATCH:
                yield from _faults(subject, batch)
                batch, nbytes = [], 0
    if batch:
        yield from _faults(subject, batch)


def _longer(subject: Subject, variable: Variable) -> Iterator[Finding]:
    """Find a variable whose chunks are longer than they should be."""
    assert subject.opened is not None
    array = variable.array
    if array is None or not array.longer:
        return
    with suppress(NCZarrError):  # another check has it
        if StoredChunks(subject.opened.reader(variable)).are_longer:
            text = f"chunks have {array.longer} bytes, of which the beginning is read: {LONGER}"
            advice = "copy the dataset with nczarr copy"
            yield Finding("warning", "chunk-longer", array.path, text, advice)


def _faults(
    subject: Subject, batch: list[tuple[Variable, tuple[Index, ...] | None]]
) -> Iterator[Finding]:
    assert subject.opened is not None
    for (variable, box), found in zip(batch, subject.opened.read_many(batch), strict=True):
        if not isinstance(found, NCZarrError):
            continue
        if not isinstance(variable.array, ZarrArray) or box is None:
            yield _fault(variable.path, found.object, found)
            continue
        objects: dict[tuple[str, str], list[tuple[int, ...]]] = {}
        errors: dict[tuple[str, str], NCZarrError] = {}
        for at, own in _broken(subject.opened.reader(variable), variable.array.chunk_shape, box):
            same = variable.array.chunk_name(at), own.reason
            objects.setdefault(same, []).append(at)
            errors[same] = own
        for same, chunks in objects.items():  # one finding, also if the index of a shard is damaged
            more = f" and {len(chunks) - 1} more" if chunks[1:] else ""
            yield _fault(f"{variable.path}, chunk {chunks[0]}{more}", same[0], errors[same])


def _broken(
    reader: VariableReader, chunk_shape: tuple[int, ...], box: tuple[Any, ...]
) -> Iterator[tuple[tuple[int, ...], NCZarrError]]:
    """Yield the chunks of a box that cannot be read: zarr-python does not name them."""
    try:
        reader.read(box)
    except NCZarrError as found:
        first = tuple(part.start // n for part, n in zip(box, chunk_shape, strict=True))
        stops = (-(-part.stop // n) for part, n in zip(box, chunk_shape, strict=True))
        counts = [stop - start for start, stop in zip(first, stops, strict=True)]
        if max(counts, default=1) == 1:
            yield first, found
            return
        axis = counts.index(max(counts))
        middle = (first[axis] + counts[axis] // 2) * chunk_shape[axis]
        for half in (slice(box[axis].start, middle), slice(middle, box[axis].stop)):
            yield from _broken(reader, chunk_shape, (*box[:axis], half, *box[axis + 1 :]))


def _fault(where: str, path: str, found: NCZarrError) -> Finding:
    text = f"{' '.join(found.reason.split())} (of {where})"
    if isinstance(found, UnsupportedError):  # no fault of the chunk, as far as is known here
        return Finding("warning", "unsupported", path, text, ELSEWHERE)
    if isinstance(found, TooLargeError):
        code, advice = "chunk-oversized", "it is not of this array: restore it"
    elif isinstance(found, StoreError):
        code, advice = "chunk-unreadable", "try again; if it stays, restore the chunk"
    else:
        code, advice = "chunk-undecodable", "restore the chunk from a copy, or write it again"
    return Finding("error", code, path, text, advice)


def _boxes(subject: Subject, variable: Variable) -> Iterator[Box]:
    """Yield the parts of a variable to be read by themselves: its stored chunks, else slabs."""
    array = variable.array
    assert array is not None
    if isinstance(array, ChunkedArray) and subject.keys is not None:
        for at in subject.positions(array):
            if at is not None:
                yield box_of(at, array.chunk_shape, array.shape)
    elif isinstance(array, FileChunks):
        grid = grid_of(array.shape, array.chunk_shape)
        with suppress(NCZarrError):  # `objects.ends` has it
            for ids, starts, _ in subject.extents(array):
                for number in ids[starts >= 0].tolist():
                    at = position_of(number, grid)
                    yield box_of(at, array.chunk_shape, array.shape)
    elif 0 not in variable.shape:
        assert subject.opened is not None
        chunk_shape = array.chunk_shape if array.is_chunked else (1,) * len(variable.shape)
        yield from StoredSource(subject.opened.reader(variable), variable).slabs(chunk_shape)
