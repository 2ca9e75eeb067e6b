"""``bytes::URL``: any filesystem of fsspec with verified, cached and retried reads.

``fsspec.open("bytes::https://host/x.nc")`` gives a file for random access; options of the
filesystem below go under its protocol, ``https={"headers": {...}}``.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.utils import stringify_path

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetNotFoundError
from nczarr_fsspec.ranges.file_object import ByteRangeFile
from nczarr_fsspec.ranges.open import open_source
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import LocalBytes, RemoteBytes
from nczarr_fsspec.transport.filesystems import missing_package
from nczarr_fsspec.transport.open import open_transport
from nczarr_fsspec.transport.policy import MAX_WHOLE

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
