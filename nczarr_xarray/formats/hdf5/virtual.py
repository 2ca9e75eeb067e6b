"""The description of a virtual dataset (specification, layout message of class 3).

libhdf5 reads virtual datasets, and it may loop for ever over a damaged heap:
what it will walk is looked at before.
"""

from __future__ import annotations

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.checksum import verify
from nczarr_xarray.formats.hdf5.heaps import read_global_heap

#: Of HDF5 1.10, and of 2.0, which states a name once that many mappings have.
_VERSIONS = (0, 1)
#: Bytes of a mapping at least: two names and two selections.
_SHORTEST = 2 + 2 * 8


async def check_mappings(frame: Frame, address: int | None, index: int, path: str) -> None:
    """See whether the mappings of a virtual dataset are as they were written.

    Parameters
    ----------
    address, index
        The object of the global heap that holds them; None if there are none.
    path
        Of the dataset, for messages.

    Raises
    ------
    FormatError
        If they are not.
    """
    if address is None:
        return
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
    cursor = Cursor(block[:-4], frame, what)
    version, count = cursor.uint(1), cursor.length()
    if version not in _VERSIONS:
        raise cursor.error(f"has version {version}, known are 0 and 1")
    if count > cursor.remaining // _SHORTEST:
        raise cursor.error(f"{count} mappings in {cursor.remaining} bytes")
