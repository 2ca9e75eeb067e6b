"""Decoded chunks that are likely to be wanted again: a loop over steps meets each chunk many times.

`engine="netcdf4"` has the chunk cache of netCDF-C, and programs rely on it: where a chunk holds ten
steps, reading step after step would decode each chunk ten times. What is remembered is bounded
(`MOST_BYTES` in a process), and only reads of the main thread remember or look: the threads of dask
read blocks, of which each is wanted once. Uncompressed chunks on this machine are not remembered,
for they are in memory anyway.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from nczarr_fsspec.ranges.source import LocalBytes

#: Bytes of decoded chunks that a process remembers; netCDF-C has as much for each variable.
MOST_BYTES = 1 << 26
#: Bytes that a chunk takes beside its own.
OVERHEAD = 400
#: A read that wants this share of its chunks at once, or more, is not expected to come back.
SHARE = 0.5


class ChunkCache:
    """The chunks used last, up to so many bytes. Safe in threads.

    Parameters
    ----------
    most
        Bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[int, Hashable], tuple[Any, int]] = OrderedDict()
        self._owners = itertools.count()
        #: whose chunks are still to be forgotten
        self._gone: deque[int] = deque()
        #: those that have chunks here
        self._present: set[int] = set()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def number_of(self, owner: object) -> int:
        """Return by which number the chunks of one array are known, forgotten with `owner`."""
        number = next(self._owners)
        weakref.finalize(owner, self.leave, number).atexit = False
        return number

    def clear(self) -> None:
        """Forget everything: stored chunks may have changed."""
        with self._lock:
            self._forget()
            self._chunks.clear()
            self._present.clear()
            self.nbytes = 0

    def get(self, owner: int, keys: Sequence[Hashable]) -> list[Any]:
        """Return decoded chunks, None for those that are not known."""
        found = []
        with self._lock:
            self._forget()
            for key in keys:
                chunk, _ = self._chunks.get((owner, key), (None, 0))
                if chunk is not None:
                    self._chunks.move_to_end((owner, key))
                found.append(chunk)
        return found

    def put(self, owner: int, keys: Sequence[Hashable], chunks: Sequence[Any], size: int) -> None:
        """Remember chunks of `size` bytes each, and forget those unused for longest."""
        size += OVERHEAD
        with self._lock:
            self._forget()
            self._present.add(owner)
            for key, chunk in zip(keys, chunks, strict=True):
                if (owner, key) not in self._chunks:
                    self.nbytes += size
                self._chunks[owner, key] = chunk, size
            while self.nbytes > self.most:
                _, (_, old) = self._chunks.popitem(last=False)
                self.nbytes -= old

    def leave(self, owner: int) -> None:
        """Take note that `owner` is gone; its chunks go now if that can be."""
        self._gone.append(owner)
        # the collector may call this anywhere, also where this very thread has the lock
        if self._lock.acquire(blocking=False):
            try:
                self._forget()
            finally:
                self._lock.release()

    def _forget(self) -> None:
        """Drop the chunks of owners that are gone; needs the lock."""
        gone = set()
        while self._gone:
            gone.add(self._gone.popleft())
        gone &= self._present
        self._present -= gone
        for key in [key for key in self._chunks if key[0] in gone] if gone else ():
            self.nbytes -= self._chunks.pop(key)[1]

    def _after_fork(self) -> None:
        # the lock may have been held by a thread that is not there
        self._lock = threading.Lock()
        self._chunks = OrderedDict()
        self.nbytes = 0


#: Of this process.
CACHE = ChunkCache(MOST_BYTES)


# -- records -------------------------------------------------------------------------------------
# The records of a classic file that were read last, which its variables take turns in.
#
# Each record has a few bytes of every variable. A program that loads one variable after the
# other would read all records for each of them. Only the main thread remembers: threads of dask
# take turns among files.


#: Longest stretch of a file that is read, and remembered, at once.
LONGEST = 1 << 22


class _Stretch(NamedTuple):
    source: weakref.ref[LocalBytes]
    start: int
    data: bytes | memoryview


last_stretch: _Stretch | None = None


def _forget(source: weakref.ref[LocalBytes]) -> None:
    global last_stretch  # noqa: PLW0603 - one of a process
    if last_stretch is not None and last_stretch.source is source:
        last_stretch = None


def read_records(
    source: LocalBytes, start: int, stop: int, record: int
) -> tuple[bytes | memoryview, int]:
    """Read the records that hold the bytes ``[start, stop)`` of one variable.

    Parameters
    ----------
    record
        Bytes of a record.

    Returns
    -------
    The bytes of a stretch of the file, and where in it `start` is.

    Raises
    ------
    StoreError
        If they cannot be read, or the file is another version than the one that was opened.
    """
    global last_stretch  # noqa: PLW0603 - one of a process
    if threading.current_thread() is not threading.main_thread() or not source.verify():
        return source.read(start, stop), 0
    last = last_stretch
    if last is not None and last.source() is source and last.start <= start:
        offset = start - last.start
        if offset + stop - start <= len(last.data):
            return last.data, offset
    # other variables begin in the same record, and end in the one after the last
    data = source.read(start, min(stop + record, source.size))
    last_stretch = _Stretch(weakref.ref(source, _forget), start, data)
    return data, 0
