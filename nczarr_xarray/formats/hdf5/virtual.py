"""The description of a virtual dataset (specification, layout message of class 3).

libhdf5 reads virtual datasets, and it may loop for ever over a damaged heap:
what it will walk is looked at before.
"""

from __future__ import annotations

import math

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.checksum import verify
from nczarr_xarray.formats.hdf5.heaps import read_global_heap
from nczarr_xarray.formats.hdf5.objects import H5Dataset, OtherLayout

_LONGEST = (1 << 63) - 1

#: Of HDF5 1.10, and of 2.0, in which names that were before may be left out.
_VERSIONS = (0, 1)
_SHARED_FILE, _SHARED_DATASET = 4, 8  # flags of version 1
#: Bytes of a mapping at least: two selections.
_SHORTEST = 2 * 16
_NONE, _POINTS, _HYPERSLAB, _ALL = range(4)
_MOST_DIMENSIONS = 32
#: The file of a source that is in the same file.
_HERE = b"."


async def check_mappings(frame: Frame, dataset: H5Dataset, path: str) -> None:
    """See whether the mappings of a virtual dataset, if it is one, are fit for libhdf5.

    Parameters
    ----------
    path
        Of the dataset.

    Raises
    ------
    FormatError
        If they are not.
    """
    layout = dataset.layout
    if not isinstance(layout, OtherLayout) or layout.mappings is None:
        return
    address, index = layout.mappings
    if address is None:
        return
    # it may have been made shorter
    longest = tuple(_LONGEST if limit is None else limit for limit in dataset.space.maxshape)
    what = f"{path}, mappings in the global heap at {address}"
    heap = (await read_global_heap(frame, [address]))[address]
    if not heap.whole:
        raise frame.error(what, "its objects are not all of it")
    size = int(heap.sizes[index]) if index < len(heap.sizes) else -1
    if size < 0:
        raise frame.error(what, f"no object {index}")
    start = int(heap.starts[index])
    block = memoryview(heap.data)[start : start + size]
    verify(block, frame, what)
    _check_block(Cursor(block[:-4], frame, what), longest, path)


def _check_block(cursor: Cursor, shape: tuple[int, ...], path: str) -> None:
    version, count = cursor.uint(1), cursor.length()
    if version not in _VERSIONS:
        raise cursor.error(f"has version {version}, known are 0 and 1")
    if count > cursor.remaining // _SHORTEST:
        raise cursor.error(f"{count} mappings in {cursor.remaining} bytes")
    for number in range(count):
        flags = cursor.uint(1) if version else 0
        file = _name(cursor, number if flags & _SHARED_FILE else None)
        name = _name(cursor, number if flags & _SHARED_DATASET else None)
        own = path.strip("/").encode("utf-8", "surrogateescape")
        if file == _HERE and name is not None and name.strip(b"/") == own:
            raise cursor.error(f"mapping {number} is of the dataset to itself")
        source, target = _selection(cursor), _selection(cursor, shape)
        if None not in (source, target) and source != target:
            raise cursor.error(f"mapping {number} is of {source} elements to {target}")
    if cursor.remaining:
        raise cursor.error(f"{cursor.remaining} bytes behind the last mapping")


def _name(cursor: Cursor, mapping: int | None) -> bytes | None:
    """A name; None if it is that of a `mapping` before."""
    if mapping is not None:
        if cursor.length() >= mapping:
            raise cursor.error(f"mapping {mapping} has the name of a later one")
        return None
    rest = bytes(cursor.data[cursor.position :])
    end = rest.find(b"\0")
    if end < 1:
        raise cursor.error("a name is missing")
    return bytes(cursor.take(end + 1))[:-1]


def _selection(cursor: Cursor, shape: tuple[int, ...] | None = None) -> int | None:
    """Elements of a selection; None if they are not told by it, or without limit.

    Parameters
    ----------
    shape
        Largest of what it is a selection of, if that is known.
    """
    kind, version = cursor.uint(4), cursor.uint(4)
    if kind in (_NONE, _ALL) and version == 1:
        if cursor.uint(4) or cursor.uint(4):
            raise cursor.error("a selection of all or nothing with bounds")
        return 0 if kind == _NONE else None
    if kind != _HYPERSLAB or version not in (1, 2, 3):
        raise cursor.error(f"a selection of type {kind} and version {version}")
    # at the time of version 1 all hyperslabs were lists of blocks
    regular = version > 1 and bool(cursor.uint(1) & 1)
    width = {1: 4, 2: 8}.get(version) or cursor.uint(1)
    if version < 3:
        cursor.take(8 if version == 1 else 4)  # reserved, length
    rank = cursor.uint(4)
    if width not in (2, 4, 8) or not 0 < rank <= _MOST_DIMENSIONS:
        raise cursor.error(f"a selection in {rank} dimensions, of numbers of {width} bytes")
    if shape is not None and rank != len(shape):
        raise cursor.error(f"a selection in {rank} dimensions of a dataset of shape {shape}")
    if regular:
        return _regular(cursor, rank, width, shape)
    blocks = cursor.uint(width)
    if not 0 < blocks <= cursor.remaining // (2 * rank * width):
        raise cursor.error(f"a selection of {blocks} blocks")
    total = 0
    for _ in range(blocks):
        starts, ends = ([cursor.uint(width) for _ in range(rank)] for _ in range(2))
        _check_bounds(cursor, starts, [end + 1 for end in ends], shape)
        total += math.prod(end + 1 - start for start, end in zip(starts, ends, strict=True))
    return total


def _regular(cursor: Cursor, rank: int, width: int, shape: tuple[int, ...] | None) -> int | None:
    total, unlimited = 1, False
    endless = (1 << 8 * width) - 1
    starts, stops = [], []
    for _ in range(rank):
        start, stride, count, block = (cursor.uint(width) for _ in range(4))
        if not (stride and count and block) or (count > 1 and stride < block):
            raise cursor.error(f"a selection of {count} blocks of {block} every {stride}")
        starts.append(start)
        endless_here = endless in (count, block)
        unlimited = unlimited or endless_here
        stops.append(start if endless_here else start + (count - 1) * stride + block)
        total *= count * block
    _check_bounds(cursor, starts, stops, shape)
    return None if unlimited else total


def _check_bounds(
    cursor: Cursor, starts: list[int], stops: list[int], shape: tuple[int, ...] | None
) -> None:
    lengths = shape or (_LONGEST,) * len(starts)
    for start, stop, length in zip(starts, stops, lengths, strict=True):
        if not start <= stop <= length:
            raise cursor.error(f"a selection from {start} to {stop} of {length}")
