"""Byte sources that answer at once: files on this machine, binary file objects, memory."""

from __future__ import annotations

import io
import os
import stat
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from nczarr_fsspec.errors import ChangedError, DatasetNotFoundError, StoreError
from nczarr_fsspec.forks import FORKED, ProcessLock, may_share_position
from nczarr_fsspec.local_files import OPEN_FLAGS, FileRange, part_of_files, read_at, read_into
from nczarr_fsspec.places.url import is_url, redact
from nczarr_fsspec.ranges.source import HEAD_BYTES, LocalBytes, beyond
from nczarr_fsspec.transport.request import Stamp

CHANGED = "the file has changed since it was opened; open it again"
#: Bytes between two ranges that take no longer to read than one more call.
_GAP = 1 << 12
#: Bytes that one call reads at most for several ranges.
_TOGETHER = 1 << 20
#: Files that sources keep open, at most; xarray has as many.
MOST_OPEN = 128
#: file objects whose bytes are those of what is below them
_BUFFERED = (io.BufferedReader, io.BufferedRandom)


class RegularFileBytes(LocalBytes):
    """A regular file of this machine, read at positions of its own through a descriptor.

    Reads need neither a lock nor the file's position, so threads do not wait for each other, and
    what a fork shares does not matter. Of many sources, those that opened their files last keep
    them open (`MOST_OPEN`). One that is used again after that, or after `close`, insists on the
    same size, time and inode.
    """

    head = b""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: Descriptor | None = None
        opened = self._open()
        self.size, self.validator = opened.size, opened.validator
        self._modified = opened.modified
        self._keep(opened)
        self.head = self.read(0, min(HEAD_BYTES, self.size))

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.size, self._modified)

    @abstractmethod
    def _open(self) -> Descriptor:
        """Open the file.

        Raises
        ------
        StoreError
            If that cannot be done.
        """

    def read(self, start: int, stop: int) -> bytes:
        opened = self._ready()
        try:
            data = read_at(opened.number, start, stop)
        except OSError as error:
            raise self._failure(error) from error
        self._check(opened)
        if len(data) != stop - start:
            raise beyond(self, start, stop)
        return data

    def read_into(self, start: int, buffer: memoryview) -> None:
        opened = self._ready()
        try:
            count = read_into(opened.number, start, buffer)
        except OSError as error:
            raise self._failure(error) from error
        self._check(opened)
        if count < len(buffer):
            raise beyond(self, start, start + len(buffer))

    def read_many(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Sequence[bytes | memoryview]:
        opened = self._ready()
        number = opened.number
        data: list[bytes | memoryview] = []
        try:
            for first, last in _neighbours(starts, stops):
                start, stop = starts[first], stops[last - 1]
                read = read_at(number, start, stop)
                if len(read) != stop - start:
                    self._check(opened)
                    raise beyond(self, start, stop)
                if last - first == 1:
                    data.append(read)
                    continue
                view, places = memoryview(read), range(first, last)
                data += [view[starts[at] - start : stops[at] - start] for at in places]
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise self._failure(error) from error
        self._check(opened)
        return data

    def ranges(self, starts: Sequence[int], stops: Sequence[int]) -> Iterator[FileRange]:
        opened = self._ready()
        for start, stop in zip(starts, stops, strict=True):
            yield FileRange(opened.number, start, stop - start, self.url)
        self._check(opened)

    def verify(self) -> bool:
        self._check(self._ready())
        return True

    def _ready(self) -> Descriptor:
        """Return the descriptor of the version that was opened; of another one, an error."""
        opened = self._opened
        if opened is None:
            opened = self._open()
            if opened.validator != self.validator:
                raise ChangedError(self.url, CHANGED)
            self._keep(opened)
        return opened

    def _keep(self, opened: Descriptor) -> None:
        """Keep a descriptor for later reads; if there are many, others let go of the oldest."""
        self._opened = opened
        _holders[opened.number] = weakref.ref(self)
        # (each step is one of the interpreter: a lock might be held when the process is forked)
        for number in list(_holders)[: -part_of_files(MOST_OPEN)]:
            holder = _holders.pop(number, None)
            other = None if holder is None else holder()
            if other is not None:
                other.close()

    def _check(self, opened: Descriptor) -> None:
        """Raise `StoreError` if what was read may be of another version than that opened."""
        try:
            now = _validator(os.fstat(opened.number))
        except OSError as error:
            raise self._failure(error) from error
        if now != opened.validator:
            raise ChangedError(self.url, CHANGED)

    def _failure(self, error: OSError) -> StoreError:
        return StoreError(self.url, f"cannot be read: {error.strerror or error}")

    def close(self) -> None:
        self._opened = None  # the descriptor closes with the last read that is under way

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "head"}
        return {**own, "_opened": None}


class LocalFileBytes(RegularFileBytes):
    """A file of this machine by its path, which an unpickled source opens again.

    Parameters
    ----------
    path
        Of the file; made absolute.
    url
        How messages name it; by default the path.

    Raises
    ------
    DatasetNotFoundError
        If there is no such file, or it is a directory.
    StoreError
        If it is not a regular file, or cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], url: str | None = None) -> None:
        self.path = os.path.abspath(os.fspath(path))
        super().__init__(url or self.path)

    def _open(self) -> Descriptor:
        try:
            kind = os.stat(self.path).st_mode
            if stat.S_ISREG(kind):  # to open a device may do something
                opened = Descriptor(os.open(self.path, OPEN_FLAGS))
                kind = opened.kind
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(self.url, "there is no such file") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(self.url, f"cannot be opened: {reason}") from error
        if stat.S_ISDIR(kind):
            raise DatasetNotFoundError(self.url, "is a directory, not a file")
        if not stat.S_ISREG(kind):
            raise StoreError(self.url, "is not a regular file")
        return opened


class OpenFileBytes(RegularFileBytes):
    """A file of this machine that the caller has opened, and that stays open.

    Its position is neither used nor changed.

    Parameters
    ----------
    file
        See `is_regular`.
    url
        How messages name it; by default by its ``name``.

    Raises
    ------
    StoreError
        If it cannot be read.
    """

    def __init__(self, file: BinaryIO, url: str | None = None) -> None:
        self._file = file
        self.url = url or name_of(file)
        try:
            file.flush()
        except (OSError, ValueError) as error:
            raise StoreError(self.url, f"cannot be read: {error}") from error
        super().__init__(self.url)

    @staticmethod
    def is_regular(file: object) -> bool:
        """Tell whether what a file object reads are the bytes of a regular file, as they are there.

        Any class may have a ``fileno``: gzip's, for example, is that of what it decompresses.
        """
        file = getattr(file, "raw", file) if type(file) in _BUFFERED else file
        if type(file) is not io.FileIO or file.closed or not file.readable():
            return False
        return hasattr(os, "pread") and stat.S_ISREG(os.fstat(file.fileno()).st_mode)

    def _open(self) -> Descriptor:
        try:
            return Descriptor(os.dup(self._file.fileno()))
        except (OSError, ValueError) as error:
            raise StoreError(self.url, f"cannot be read: {error}") from error

    def _ready(self) -> Descriptor:
        if self._file.closed:
            raise StoreError(self.url, "cannot be read: it is a closed file")
        return super()._ready()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._file, self.url)


class FileObjectBytes(LocalBytes):
    """Any other open binary file; it stays open when the source is closed, for it is the caller's.

    The child of a fork may share its position with its parent, and both would read wrong bytes:
    there it is refused, unless its content is in memory.

    Parameters
    ----------
    file
        Seekable and opened in binary mode. Its position is ours from now on.
    url
        How messages name it; by default by its ``name`` or its type.

    Raises
    ------
    StoreError
        If it cannot be read, or is a text file.
    """

    validator = ""

    def __init__(self, file: BinaryIO, url: str | None = None) -> None:
        self._file = file
        self._lock = ProcessLock()
        self._home = os.getpid() if may_share_position(file) else None
        self.url = url or name_of(file)
        try:
            # some files (zip members, say) return nothing from seek
            file.seek(0, os.SEEK_END)
            self.size = file.tell()
        except Exception as error:  # a file object is foreign code
            raise unreadable(self.url, error) from error
        self.head = self.read(0, min(HEAD_BYTES, self.size))

    def read(self, start: int, stop: int) -> bytes:
        if self._home not in (None, os.getpid()):
            raise StoreError(self.url, FORKED)
        parts = []
        at = start
        try:
            with self._lock:
                self._file.seek(start)
                while at < stop and (part := self._file.read(stop - at)):
                    parts.append(part)
                    at += len(part)
        except Exception as error:  # a file object is foreign code
            raise unreadable(self.url, error) from error
        if parts and isinstance(parts[0], str):
            raise StoreError(self.url, "is a text file; open it in binary mode")
        if at != stop:
            raise beyond(self, start, stop)
        return parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._file, self.url)


class MemoryBytes(LocalBytes):
    """Bytes in memory; what is read is a view of them.

    Parameters
    ----------
    data
        The whole file.
    url
        How messages name it.
    validator
        See `ByteSource`.
    """

    def __init__(self, data: bytes, url: str, validator: str = "") -> None:
        self._data = data
        self.url = url
        self.size = len(data)
        self.validator = validator
        self.head = data[:HEAD_BYTES]

    def read(self, start: int, stop: int) -> memoryview:
        if stop > self.size:
            raise beyond(self, start, stop)
        return memoryview(self._data)[start:stop]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._data, self.url, self.validator)


def open_local(path: str | os.PathLike[str]) -> LocalBytes:
    """Open a file of this machine by its path; errors as of `LocalFileBytes`."""
    return LocalFileBytes(path)


def open_file_object(file: BinaryIO, shown: str | None = None) -> LocalBytes:
    """Return the source of a binary file that the caller has opened, and closes.

    Parameters
    ----------
    file
        Seekable.
    shown
        How messages name it; by default by its ``name``.

    Raises
    ------
    StoreError
        If it cannot be read, or is a text file.
    """
    if OpenFileBytes.is_regular(file):
        return OpenFileBytes(file, shown)
    return FileObjectBytes(file, shown)


class Descriptor:
    """An open file that closes when the last reference to it goes, not under a reader."""

    def __init__(self, number: int) -> None:
        self.number = number
        status = os.fstat(number)
        self.kind = status.st_mode
        self.size = status.st_size
        self.modified = status.st_mtime_ns
        self.validator = _validator(status)

    def __del__(self) -> None:
        _holders.pop(self.number, None)
        os.close(self.number)


#: By number: which source keeps a descriptor, the oldest first.
_holders: dict[int, weakref.ref[RegularFileBytes]] = {}


def _neighbours(starts: Sequence[int], stops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield slices of ranges that one call reads, as they follow each other in the file.

    A call takes about 2 us, and lets go of the interpreter's lock, for which others wait.
    """
    first = 0
    for at in range(1, len(starts)):
        between = starts[at] - stops[at - 1]
        if not 0 <= between <= _GAP or stops[at] - starts[first] > _TOGETHER:
            yield first, at
            first = at
    if len(starts):
        yield first, len(starts)


def name_of(file: object) -> str:
    """Return how messages name a file object."""
    name = str(getattr(file, "name", None) or f"{type(file).__name__} object")
    return redact(name) if is_url(name) else name


def unreadable(url: str, error: Exception) -> StoreError:
    """Return the error for a file object that fails, as one does whose compressed file is cut."""
    return StoreError(url, f"cannot be read: {redact(str(error) or repr(error))}")


def _validator(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
