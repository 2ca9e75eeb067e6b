"""The description of a virtual dataset (specification, layout message of class 3).

libhdf5 reads virtual datasets. But it may loop for ever over a damaged heap, and
crashes if virtual datasets form a circle. So their descriptions are checked
before.
"""

from __future__ import annotations

import math

from nczarr_fsspec.errors import NCZarrError, UnsupportedError
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, verify
from nczarr_xarray.formats.hdf5.heaps import read_global_heap
from nczarr_xarray.formats.hdf5.objects import MOST_DIMENSIONS, H5Dataset, H5Group, OtherLayout

_LONGEST = (1 << 63) - 1

#: Version 0 is of HDF5 1.10. Version 1, of 2.0, may leave out a name that is repeated, and the name
#: of the same file (libhdf5 2.0, observed).
_VERSIONS = (0, 1)
_SHARED_FILE, _SHARED_DATASET, _SAME_FILE = 1, 2, 4  # flags of version 1
#: Bytes of a mapping at least: two selections.
_SHORTEST = 2 * 16
_NONE, _POINTS, _HYPERSLAB, _ALL = range(4)
#: The file of a source that is in the same file.
_HERE = b"."


async def check_mappings(frame: Frame, root: H5Group, dataset: H5Dataset, path: str) -> bool:
    """Check that libhdf5 can follow the mappings of a dataset, if it is a virtual one.

    Parameters
    ----------
    root
        The tree of the file, read completely: sources in the same file
        are to be in it, with data of their own.
    path
        Path of the dataset.

    Returns
    -------
    Whether its extent follows from its sources, whatever its dataspace says: a mapping has no
    limit, and reaches as far as a source that grows, or as there are files of a pattern.

    Raises
    ------
    FormatError
        If they are not.
    UnsupportedError
        If a source in the same file is virtual, too, has its data in external
        files, or is named by a pattern.
    """
    layout = dataset.layout
    if not isinstance(layout, OtherLayout) or layout.mappings is None:
        return False
    address, index = layout.mappings
    if address is None:
        return False
    # the dataset may have been shortened
    longest = tuple(_LONGEST if limit is None else limit for limit in dataset.space.maxshape)
    what = f"{path}, mappings in the global heap at {address}"
    heap = (await read_global_heap(frame, [address]))[address]
    if not heap.whole:
        raise frame.error(what, "its objects and free space do not cover it")
    size = int(heap.sizes[index]) if index < len(heap.sizes) else -1
    if size < 0:
        raise frame.error(what, f"no object {index}")
    start = int(heap.starts[index])
    block = memoryview(heap.data)[start : start + size]
    verify(block, frame, what)
    names, unlimited = read_mappings(Cursor(block[:-4], frame, what), longest)
    for name in names:
        _check_source(frame, root, name, path)
    return unlimited


def read_mappings(cursor: Cursor, shape: tuple[int, ...]) -> tuple[list[bytes], bool]:
    """Check the mappings; return the source paths in this file, and whether one has no limit."""
    version, count = cursor.uint(1), cursor.length()
    if version not in _VERSIONS:
        raise cursor.error(f"has version {version}, known are 0 and 1")
    if count > cursor.remaining // _SHORTEST:
        raise cursor.error(f"{count} mappings in {cursor.remaining} bytes")
    files: list[bytes] = []
    names: list[bytes] = []
    unlimited = False
    for number in range(count):
        flags = cursor.uint(1) if version else 0
        if flags not in (0, 1, 2, 3, 4, 6):
            raise cursor.error(f"mapping {number} has the flags {flags}")
        files.append(_HERE if flags & _SAME_FILE else _name(cursor, files, flags & _SHARED_FILE))
        names.append(_name(cursor, names, flags & _SHARED_DATASET))
        source, target = _selection(cursor), _selection(cursor, shape)
        unlimited = unlimited or target == math.inf
        if not {None, math.inf} & {source, target} and source != target:
            raise cursor.error(f"mapping {number} is of {source} elements to {target}")
    if cursor.remaining:
        raise cursor.error(f"{cursor.remaining} bytes behind the last mapping")
    here = (n for f, n in zip(files, names, strict=True) if f == _HERE)
    return list(dict.fromkeys(here)), unlimited


def _check_source(frame: Frame, root: H5Group, name: bytes, path: str) -> None:
    """Check that a source in the same file has data of its own there."""
    source = f"its source {name.decode('utf-8', 'backslashreplace')!r}"
    if b"%" in name:
        raise UnsupportedError(path, f"{source} is named by a pattern")
    member: object = root
    for part in name.split(b"/"):
        if part not in (b"", b"."):
            members = member.members if isinstance(member, H5Group) else {}
            member = members.get(part.decode("utf-8", "surrogateescape"))
    if isinstance(member, NCZarrError):
        raise frame.error(path, f"{source}: {member.reason}")
    if not isinstance(member, H5Dataset):
        raise frame.error(path, f"{source} is not a dataset of this file")
    if isinstance(member.layout, OtherLayout):
        raise UnsupportedError(path, f"{source} has no data either: {member.layout.reason}")


def _name(cursor: Cursor, before: list[bytes], shared: int) -> bytes:
    """Return a name, or one of the names `before` if it is `shared`."""
    if shared:
        number = cursor.length()
        if number >= len(before):
            raise cursor.error(f"mapping {len(before)} has the name of a later one")
        return before[number]
    rest = bytes(cursor.data[cursor.position :])
    end = rest.find(b"\0")
    if end < 1:
        raise cursor.error("a name is missing")
    return bytes(cursor.take(end + 1))[:-1]


def _selection(cursor: Cursor, shape: tuple[int, ...] | None = None) -> float | None:
    """Return the number of elements of a selection.

    It is infinite without a limit, and None if the selection does not tell.

    Parameters
    ----------
    shape
        The largest shape of the source, if that is known.
    """
    kind, version = cursor.uint(4), cursor.uint(4)
    if kind in (_NONE, _ALL) and version == 1:
        if cursor.uint(4) or cursor.uint(4):
            raise cursor.error("a selection of all or nothing with bounds")
        return 0 if kind == _NONE else None
    if kind != _HYPERSLAB or version not in (1, 2, 3):
        raise cursor.error(f"a selection of type {kind} and version {version}")
    # in version 1 every hyperslab is a list of blocks
    regular = version > 1 and bool(cursor.uint(1) & 1)
    width = {1: 4, 2: 8}.get(version) or cursor.uint(1)
    if version < 3:
        cursor.take(8 if version == 1 else 4)  # reserved, length
    rank = cursor.uint(4)
    if width not in (2, 4, 8) or not 0 < rank <= MOST_DIMENSIONS:
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


def _regular(cursor: Cursor, rank: int, width: int, shape: tuple[int, ...] | None) -> float:
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
    return math.inf if unlimited else total


def _check_bounds(
    cursor: Cursor, starts: list[int], stops: list[int], shape: tuple[int, ...] | None
) -> None:
    lengths = shape or (_LONGEST,) * len(starts)
    for start, stop, length in zip(starts, stops, lengths, strict=True):
        if not start <= stop <= length:
            raise cursor.error(f"a selection from {start} to {stop} of {length}")
