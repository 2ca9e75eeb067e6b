"""Files that references name, and the file of JSON that they are in."""

from __future__ import annotations

from typing import TypeAlias

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.ranges.batches import Batches
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes, beyond
from nczarr_fsspec.stores.referenceformat import MAX_JSON, Part
from nczarr_fsspec.transport.request import Extent

#: A file that references name, open.
File: TypeAlias = LocalBytes | RemoteFileBytes

#: JSON from a network comes in pieces of so many bytes.
PIECE = 1 << 23


def read_here(file: LocalBytes, found: Part, which: slice, most: int | None) -> bytes:
    """Return bytes of a part of a file on this machine."""
    start, stop = within(found, which, file)
    if most is not None and which == ALL and stop - start > most:
        raise too_large(file.url, most)
    return bytes(file.read(start, stop))


async def read_part(
    file: RemoteFileBytes, batches: Batches | None, found: Part, which: slice, most: int | None
) -> bytes:
    """Return bytes of a part of a file behind a network, together with others if there are any."""
    if found.stop is not None:
        start, stop = within(found, which, file)
    elif which.stop is not None:  # parts of large files come again and again
        start = which.start or 0
        stop = max(start, which.stop)
    else:
        data = await file.fetch_all(most if which == ALL else None)
        return bytes(data[which])
    if start == stop:
        return b""
    if batches is not None:
        return bytes(await batches.read(start, stop))
    (data,) = await file.fetch([Extent(start, stop)])
    return bytes(data)


def within(found: Part, which: slice, file: ByteSource) -> tuple[int, int]:
    """Return the extent of a file that a slice of a part of it is."""
    start, stop = found.start, file.size if found.stop is None else found.stop
    if stop > file.size:
        raise beyond(file, start, stop)
    begin, end, _ = which.indices(stop - start)
    return start + begin, start + max(begin, end)


async def read_json(origin: ByteSource) -> bytes | memoryview:
    """Return all of a file of JSON."""
    check_size(origin)
    if isinstance(origin, LocalBytes):
        return origin.read(0, origin.size)
    assert isinstance(origin, RemoteBytes)
    size, head = origin.size, origin.head[: origin.size]
    starts = range(len(head), size, PIECE)
    pieces = [Extent(start, min(start + PIECE, size)) for start in starts]
    found = await gather_or_cancel(*(origin.fetch([piece]) for piece in pieces))
    return b"".join((head, *(data for (data,) in found)))


def check_size(origin: ByteSource) -> None:
    """Raise `StoreError` if a file of JSON is larger than one of references may be."""
    if origin.size > MAX_JSON:
        raise StoreError(
            origin.url,
            f"has {origin.size} bytes, and references as JSON may have {MAX_JSON}; write so many "
            "of them as Parquet",
        )
