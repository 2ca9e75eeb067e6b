"""The requests of a trace, sent again to another place."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.place import Place
from nczarr_fsspec.transport.base import Transport
from nczarr_fsspec.transport.open import open_transport
from nczarr_fsspec.transport.recording import Record, caused_by
from nczarr_fsspec.transport.request import END, Extent, Request
from nczarr_xarray.tools.trace.names import names


def replay(
    records: Sequence[Record], url: str, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Send recorded reads to `url`, each when those are answered that were when it was asked.

    So they go out in the same order and as many at a time, and the pauses of the program in
    between are left out. What fails, fails.

    Parameters
    ----------
    url
        The place of what the records have in common: of the file, or of the tree.
    storage_options
        Options of the target's filesystem (fsspec).

    Raises
    ------
    URLError, StoreError
        If `url` cannot be understood, or its filesystem not be opened.
    """
    records = [record for record in records if record.kind in ("get", "list")]
    place = Place.of(url, storage_options)
    assert place.fs is not None
    transport = open_transport(place.fs, place.own.timeout)
    root = place.path
    paths = [transport.join(root, name) if name else root for name in names(records)]
    sending = send(transport, records, paths)
    future = asyncio.run_coroutine_threadsafe(sending, transport.loop)
    try:
        future.result()
    finally:
        future.cancel()  # if this thread was interrupted
        transport.close()


async def send(transport: Transport, records: Sequence[Record], paths: Sequence[str]) -> None:
    """Send records to the files at `paths` as `replay` does, on the loop of `transport`."""
    order = sorted(range(len(records)), key=lambda i: records[i].end)
    ends = [records[i].end for i in order]
    place_of = {i: place for place, i in enumerate(order)}
    answered = [False] * len(order)
    # passed[n]: the first n of `order` are answered
    passed = [asyncio.Event() for _ in range(len(order) + 1)]
    passed[0].set()
    front = 0

    async def one(i: int) -> None:
        nonlocal front
        await passed[bisect_right(ends, records[i].asked)].wait()
        await _again(transport, records[i], paths[i])
        answered[place_of[i]] = True
        while front < len(order) and answered[front]:
            front += 1
            passed[front].set()

    asked = sorted(range(len(records)), key=lambda i: records[i].asked)
    await gather_or_cancel(*map(one, asked))


async def _again(transport: Transport, record: Record, path: str) -> None:
    """Send one request, as it was."""
    with caused_by(record.cause), suppress(NCZarrError):  # which is recorded
        if record.kind == "list":
            await transport.list(path)
        else:
            await transport.fetch(_request(transport, record, path))


def _request(transport: Transport, record: Record, path: str) -> Request:
    extents = None
    if record.extents is not None:
        extents = [Extent(start, END if stop is None else stop) for start, stop in record.extents]
    return Request(path, transport.describe(path), extents, record.tail)
