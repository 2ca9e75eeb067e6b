"""``bytes::URL``: any filesystem of fsspec with verified, cached and retried reads.

``fsspec.open("bytes::https://host/x.nc")`` gives a file for random access; options of the
filesystem below go under its protocol, ``https={"headers": {...}}``.
"""

from __future__ import annotations

import errno
import io
import os
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetNotFoundError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import open_source
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.transport import open_transport
from nczarr_fsspec.transport.filesystems import missing_package
from nczarr_fsspec.transport.policy import MAX_WHOLE
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
            pieces = [Extent(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE)]
            return b"".join(self._fetch(pieces))
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


def _restore(source: LocalBytes | RemoteBytes, path: str, position: int) -> ByteRangeFile:
    file = ByteRangeFile(source, path)
    file.seek(position)
    return file


#: files that `cat_ranges` opens at the same time
_AT_A_TIME = 16


class ByteRangeFileSystem(ChainedFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of another filesystem, read-only; all bytes of an open file are of one version.

    Paths are those of the filesystem below. An open file is a `ByteRangeFile`, which has its
    own cache, so ``block_size``, ``cache_type`` and the like are ignored.

    Parameters
    ----------
    target_protocol, target_options
        Name and options of the filesystem below.
    fo
        Not used; fsspec gives the path of a chained URL here.
    fs
        The filesystem below itself, instead of its name and options.
    max_whole
        Bytes of a file that may be kept in memory if its server does not serve ranges.
    """

    protocol: ClassVar[str] = "bytes"
    _strip_tokenize_options = ("fo",)
    #: what a download (`get`) holds in memory, in bytes
    blocksize = 1 << 26

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fo: str | None = None,
        fs: AbstractFileSystem | None = None,
        max_whole: int = MAX_WHOLE,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (fs is None) == (target_protocol is None):
            raise ValueError("bytes:: takes either the filesystem below or its protocol")
        if fs is None:
            try:
                fs = fsspec.filesystem(target_protocol, **(target_options or {}))
            except ImportError as error:
                raise missing_package(target_protocol, error) from None
        self.fs = fs
        self.max_whole = max_whole
        # each instance has a target of its own
        own, below = type(self)._strip_protocol, fs._strip_protocol
        self._strip_protocol = lambda path: below(own(path))  # type: ignore[method-assign]
        self._connections = open_transport(fs)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text: str = stringify_path(path)
        return text.removeprefix("bytes::").removeprefix("bytes://")

    def unstrip_protocol(self, name: str) -> str:
        return f"bytes::{self.fs.unstrip_protocol(self._strip_protocol(name))}"

    # ---- reading

    def _open(self, path: str, mode: str = "rb", **options: Any) -> ByteRangeFile:
        if mode != "rb":
            _refuse(path)
        path = self._strip_protocol(path)
        return ByteRangeFile(self._source(path), path)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        (found,) = self.cat_ranges([path], start, end, on_error="raise")
        assert isinstance(found, bytes)
        return found

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Iterable[int | None] | int | None,
        ends: Iterable[int | None] | int | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[bytes | Exception]:
        """Return the bytes of many ranges, slices as Python's; those of one file are read together.

        Parameters
        ----------
        paths
            One for each range.
        starts, ends
            One for each range, or one for all.
        max_gap
            Ignored: how near ranges are read by one request follows from the connection.
        on_error
            ``"raise"``; or ``"return"`` the error in the place of the bytes.
        """
        count = len(paths)
        begins = list(starts) if isinstance(starts, Iterable) else [starts] * count
        stops = list(ends) if isinstance(ends, Iterable) else [ends] * count
        if not len(begins) == len(stops) == count:
            raise ValueError("there must be as many starts and ends as paths")
        files = defaultdict(list)
        for number, path in enumerate(paths):
            files[self._strip_protocol(path)].append(number)
        results: list[bytes | Exception] = [b""] * count

        def read(path: str) -> None:
            numbers = files[path]
            try:
                found: Sequence[bytes | Exception] = self._read(
                    path, [slice(begins[number], stops[number]) for number in numbers]
                )
            except Exception as error:
                if on_error == "raise":
                    raise
                found = [error] * len(numbers)
            for number, data in zip(numbers, found, strict=True):
                results[number] = data

        with WaitingThreads(max(1, min(_AT_A_TIME, len(files)))) as threads:
            list(threads.map(read, files))
        return results

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            source = self._source(path)
        except DatasetNotFoundError:
            info: dict[str, Any] = self.fs.info(path, **options)  # it may be a directory
            return info
        with_it = {"ETag": source.validator} if source.validator else {}
        source.close()
        return {"name": path, "size": source.size, "type": "file", **with_it}

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path, **options)
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return self.fs.ls(self._strip_protocol(path), detail=detail, **options)

    def find(self, path: str, *args: Any, **options: Any) -> Any:
        return self.fs.find(self._strip_protocol(path), *args, **options)

    def glob(self, path: str, *args: Any, **options: Any) -> Any:
        return self.fs.glob(self._strip_protocol(path), *args, **options)

    def created(self, path: str) -> Any:
        return self.fs.created(self._strip_protocol(path))

    def modified(self, path: str) -> Any:
        return self.fs.modified(self._strip_protocol(path))

    def _source(self, path: str) -> LocalBytes | RemoteBytes:
        # used as long as this filesystem is there, or each file would open new connections
        self._connections.shared.users.add(self._connections)
        return open_source(self.fs, path, max_whole=self.max_whole)

    def _read(self, path: str, slices: Sequence[slice]) -> list[bytes]:
        source = self._source(path)
        try:
            spans = [span.indices(source.size)[:2] for span in slices]
            pairs = [(low, max(low, high)) for low, high in spans]
            if isinstance(source, LocalBytes):
                return [bytes(source.read(low, high)) for low, high in pairs]
            starts, stops = np.array(pairs).T
            return RangeReader(source).read_all(starts, stops)
        finally:
            source.close()

    # ---- writing

    def _read_only(self, path: Any = "", *args: Any, **options: Any) -> NoReturn:
        _refuse(str(path))

    mkdir = makedirs = rmdir = touch = _read_only
    pipe = pipe_file = put = put_file = _read_only
    cp_file = copy = mv = move = rm = rm_file = _rm = _read_only


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "bytes:: only reads", path)


class ObspecFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of a store that has obspec's ``HeadAsync`` and ``GetRangeAsync``, to be read.

    The store sends its requests itself, with its own credentials, and tries again by itself.

    Parameters
    ----------
    store
        The store.
    base
        The URL of its root, for messages.
    identity
        What tells this store from others; its text need not.
    """

    protocol = "obspec"
    cachable = False

    def __init__(self, store: Any, base: str, identity: int, **options: Any) -> None:
        super().__init__(**options)
        self.store = store
        self.base = base

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.base.rstrip('/')}/{name.lstrip('/')}"

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        found = await self.store.head_async(path)
        return {"type": "file", **found}

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        start = start or 0
        if end is None or start < 0 or end < 0:  # which count from the end
            size = (await self.store.head_async(path))["size"]
            start, end, _step = slice(start, end).indices(size)
        if start >= end:  # which stores refuse
            return b""
        return bytes(await self.store.get_range_async(path, start=start, end=end))
