"""A binary file object over a byte source, for libraries that want one (h5py, scipy)."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.transport.request import Extent

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: what is fetched and kept at a time, in bytes: a source's head is the first block
BLOCK = 1 << 16
#: blocks that a file keeps, those used last: 32 MiB
BLOCKS = 512
#: a read of this size or more, in bytes, goes past the blocks, in pieces of at most `PIECE`
DIRECT = 1 << 20
PIECE = 1 << 22


class ByteRangeFile(io.BufferedIOBase):
    """A file of a byte source, read-only and seekable. Its reads may come from any thread.

    Small reads are answered from blocks, and reads that follow each other fetch more and more
    ahead, up to 4 MiB. Large ones go out as several requests at a time. Bytes of two versions
    of the file are never mixed: if it changes, reading it raises.

    Parameters
    ----------
    source
        Closed with the file.
    path
        The file's name in its filesystem.

    Attributes
    ----------
    size : int
        Of the file, in bytes.
    """

    mode = "rb"

    def __init__(self, source: LocalBytes | RemoteBytes, path: str = "") -> None:
        self._source = source
        self._reader = RangeReader(source) if isinstance(source, RemoteBytes) else None
        self.path = self.name = path or source.url
        self.size = source.size
        self._at = 0
        self._lock = ProcessLock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._expected = 0  # where a read in sequence would go on
        self._ahead = 0  # bytes to fetch beyond it

    def read_at(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``, or those up to the end; the position stays.

        Raises
        ------
        StoreError
            If they cannot be read, or the file has changed since it was opened.
        """
        self._check_open()
        start, stop = index(start), min(index(stop), self.size)
        if start >= stop:
            return b""
        if isinstance(self._source, LocalBytes):
            return bytes(self._source.read(start, stop))
        if stop - start >= DIRECT:
            return b"".join(self._fetch(_pieces(start, stop)))
        return self._read_blocks(start, stop)

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        size = self.size if size is None or size < 0 else index(size)
        with self._lock:  # of several threads, each gets bytes of its own
            start = self._at
            stop = self._at = max(start, min(start + size, self.size))
        try:
            return self.read_at(start, stop)
        except BaseException:
            with self._lock:
                self._at = start if self._at == stop else self._at
            raise

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer).cast("B") as target:
            data = self.read(len(target))
            target[: len(data)] = data
            return len(data)

    readinto1 = readinto

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        with self._lock:
            position = index(offset) + (0, self._at, self.size)[whence]
            if position < 0:
                raise ValueError(f"cannot seek before the file: {position}")
            self._at = position
        return position

    def tell(self) -> int:
        self._check_open()
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, buffer: Buffer, /) -> int:
        raise io.UnsupportedOperation("the file is read-only")

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._blocks.clear()
            self._source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._source, self.path, self._at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source.url}>"

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _read_blocks(self, start: int, stop: int) -> bytes:
        first, last = start // BLOCK, (stop - 1) // BLOCK
        with self._lock:
            in_sequence = start == self._expected
            self._ahead = min(max(2 * self._ahead, BLOCK), PIECE) if in_sequence else 0
            self._expected = stop
            held = {number: self._blocks.get(number) for number in range(first, last + 1)}
            for number in held.keys() & self._blocks.keys():
                self._blocks.move_to_end(number)
            missing = [number for number, block in held.items() if block is None]
            if missing and self._ahead:
                end = min(stop + self._ahead, self.size - 1) // BLOCK
                ahead = range(last + 1, end + 1)
                missing += [number for number in ahead if number not in self._blocks]
        if missing:
            spans = [Extent(n * BLOCK, min((n + 1) * BLOCK, self.size)) for n in missing]
            fetched = dict(zip(missing, self._fetch(spans), strict=True))
            held |= fetched
            with self._lock:
                self._blocks |= fetched
                while len(self._blocks) > BLOCKS:
                    self._blocks.popitem(last=False)
        data = b"".join(held[number] or b"" for number in range(first, last + 1))
        return data[start - first * BLOCK : stop - first * BLOCK]

    def _fetch(self, extents: Sequence[Extent]) -> list[bytes]:
        assert self._reader is not None
        starts, stops = np.array(extents, dtype=np.int64).T
        return self._reader.read_all(starts, stops)


def _pieces(start: int, stop: int) -> list[Extent]:
    return [Extent(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)]


def _restore(source: LocalBytes | RemoteBytes, path: str, position: int) -> ByteRangeFile:
    file = ByteRangeFile(source, path)
    file.seek(position)
    return file
