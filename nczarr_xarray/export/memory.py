"""How much of a limited memory a part of a copy may take: arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nczarr_fsspec.errors import ExportError, UsageError
from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.ranges.reader import HELD_BYTES
from nczarr_fsspec.text import format_size
from nczarr_xarray.chunks.sources import LEAST_IN_FLIGHT
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.contents import StoredSource, chunk_lengths
from nczarr_xarray.export.derived import stored_array
from nczarr_xarray.export.form.chunk_shapes import cut_to
from nczarr_xarray.formats.zarr3.array import Zarr3Array
from nczarr_xarray.model import FragmentArray, grid_of

#: Bytes that the program takes without data: Python with its packages, metadata, caches.
PROGRAM_BYTES = 256_000_000
#: Copies of a chunk that a processor has while it decodes or encodes it.
COPIES = 3
#: What zarr-python may have of a chunk at a time: as it is stored, while it is decoded, as its
#: shard has it, and in the selection.
_COPIES_OF_ZARR = 4
#: How many times the bytes of a fragment it takes to read it: see `FragmentReader.cost`.
_COPIES_OF_FRAGMENT = 3


def share(memory: int, workers: int) -> int:
    """Return what each worker may take of the memory of all, and of the process that has them.

    Raises
    ------
    UsageError
        If not even the programs fit.
    """
    each = (memory - PROGRAM_BYTES) // workers
    if each <= PROGRAM_BYTES:
        least = format_size((1 + workers) * PROGRAM_BYTES)
        reason = f"{1 + workers} processes take {least} without any data: fewer --workers take less"
        raise UsageError("--memory", reason)
    return each


def room_to_move(source: StoredSource, chunk_shape: Sequence[int], memory: int) -> int:
    """Return the bytes of chunks that may be on their way; any may have to be coded.

    Raises
    ------
    ExportError
        If the memory does not suffice for one chunk.
    """
    copies = max(1, COPIES)
    chunk = max(_chunk_bytes(source, chunk_shape))
    _check(source, chunk_shape, memory, PROGRAM_BYTES + copies * chunk)
    return (memory - PROGRAM_BYTES) // copies


def room(
    source: StoredSource,
    chunk_shape: Sequence[int],
    memory: int,
    writer: ChunkWriter | None = None,
) -> int:
    """Return the bytes of a part, which is read or written while its chunks are coded.

    Where chunks on their way from or to a remote store would take too much, this limits how many
    there are at a time. It does the same for fragments, and for what zarr-python reads.

    Parameters
    ----------
    chunk_shape
        Of the copy.
    memory
        Bytes that the process may take.
    writer
        If chunks of the copy are sent while others are coded, what sends them.

    Raises
    ------
    ExportError
        If the memory does not suffice for one chunk.
    """
    old, new = _chunk_bytes(source, chunk_shape)
    free = memory - PROGRAM_BYTES
    coded = processors() * COPIES * (old + new)
    if writer is not None and not writer.at_once:
        writer.in_flight = min(writer.in_flight, max(2 * new, free // (2 * max(1, COPIES))))
        coded = COPIES * (processors() * old + writer.in_flight)
    coded += _coming(source, old, free)
    least = PROGRAM_BYTES + coded + 2 * max(_part_bytes(source), new)
    _check(source, chunk_shape, memory, least)
    return (free - coded) // 2


def _coming(source: StoredSource, chunk: int, free: int) -> int:
    """Limit what may be on its way from a source at a time; return its bytes."""
    store, array = source.reader.store, stored_array(source.reader.array)
    if isinstance(array, FragmentArray):
        most = max(1, free // 4)
        if array.opener is not None:
            own = array.opener.under_way
            most = array.opener.under_way = most if own is None else min(own, most)
        return max(_COPIES_OF_FRAGMENT * chunk, most)
    if isinstance(array, Zarr3Array):
        derived = array is not source.reader.array
        # of what is derived, a box of as many positions as a chunk has may touch more chunks
        each = max(1, _COPIES_OF_ZARR * chunk * (2**source.ndim if derived else 1))
        count = max(1, free // 4 // each)
        shard = 1 if derived else math.prod(grid_of(array.object_shape, array.chunk_shape))
        # the index of a shard is read again for each read of its chunks
        many = count >= shard > 1
        source.together = (array.object_shape, count // shard) if many else (source.grid, count)
        return each * count
    if isinstance(store, RemoteStore):
        store.in_flight_bytes = max(1, min(store.in_flight_bytes, free // 4))
        return max(LEAST_IN_FLIGHT * chunk, store.in_flight_bytes)
    if loop_of(store) is None:
        return 0
    whole = math.prod(grid_of(source.shape, source.grid)) * chunk
    return HELD_BYTES if source.reader.dtype.hasobject else min(HELD_BYTES, max(chunk, whole))


def _chunk_bytes(source: StoredSource, chunk_shape: Sequence[int]) -> tuple[int, int]:
    """Return the bytes of a chunk, and of one of the copy."""
    array = stored_array(source.reader.array)
    if isinstance(array, FragmentArray):  # not those that are well read together
        lengths = array.chunk_shape
    else:
        lengths = chunk_lengths(array, source.ndim)
    shape = source.shape if array is None else array.shape
    old, new = (
        math.prod(map(min, chunk, (max(1, n) for n in whole))) * source.itemsize
        for chunk, whole in ((lengths, shape), (chunk_shape, source.shape))
    )
    return old, new


def _part_bytes(source: StoredSource) -> int:
    """Return the bytes of the smallest part that is read."""
    return math.prod(cut_to(source.shape, source.grid)) * source.itemsize


def _check(source: StoredSource, chunk_shape: Sequence[int], memory: int, least: int) -> None:
    """Raise `ExportError` if there is too little memory for a variable."""
    old, new = _chunk_bytes(source, chunk_shape)
    if memory < least:
        aggregated = isinstance(stored_array(source.reader.array), FragmentArray)
        kind = "fragments" if aggregated else "chunks"
        reason = (
            f"cannot be copied with {format_size(memory)} of memory for a process: its {kind} of "
            f"{format_size(old)}, and chunks of {format_size(new)} in the copy, take "
            f"{format_size(least)}, with {format_size(PROGRAM_BYTES)} for the program itself"
        )
        raise ExportError(source.reader.path, reason)
