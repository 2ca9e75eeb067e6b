"""A dataset in a directory tree of the local machine; links that lead out of it are refused."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import gt
from typing import Any, NamedTuple, TypeVar

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.keystore import ALL, LocalStore, check_key
from nczarr_fsspec.local_files import OPEN_FLAGS, FileRange, pread, read_at, read_into
from nczarr_fsspec.stores.ownership import machine

#: the storage option that follows all links
FOLLOW_OPTION = "follow_symlinks"
#: makes opening a symbolic link an error, which costs nothing; not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: what opening a link is answered with then: by Linux and macOS, by FreeBSD
_IS_LINK = frozenset({errno.ELOOP, errno.EMLINK})
#: folders that are remembered at most
_MOST_FOLDERS = 1 << 16


class Inside:
    """Opens files of one tree, and none that a symbolic link has put somewhere else.

    The root itself may be a link. Links that stay inside the tree are followed. Each folder is
    looked at once, when it is first used; a file is looked at whenever it is opened.

    Parameters
    ----------
    root
        Absolute path of the directory.
    follow
        Whether all links are followed.
    """

    __slots__ = ("_folders", "follow", "prefix", "root")

    def __init__(self, root: str, *, follow: bool) -> None:
        self.root = root
        self.prefix = root.rstrip("/") + "/"
        self.follow = follow
        self._folders: set[str] = {""}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Inside, self.root, follow=self.follow), ()

    def path(self, key: str) -> str:
        """Return the path of the file of `key`, whose folder is looked at.

        Raises
        ------
        StoreError
            If the folder is not inside.
        """
        if not self.follow:
            folder = key[: max(0, key.rfind("/"))]
            if folder not in self._folders:
                self.check(folder)
        return self.prefix + key

    def check(self, folder: str) -> None:
        """Raise `StoreError` if the folder at a key, or one above it, is not inside."""
        if self.follow:
            return
        end = -1
        while end < len(folder):
            end = folder.find("/", end + 1)
            end = len(folder) if end < 0 else end
            above = folder[:end]
            if above in self._folders:
                continue
            path = self.prefix + above
            try:
                kind = os.lstat(path).st_mode
            except (OSError, ValueError):
                return  # there is none, or its use will say what is wrong with it
            if stat.S_ISLNK(kind):
                self._resolve(path)
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders = {""}
            self._folders.add(above)

    def open(self, path: str, flags: int) -> int:
        """Open the file at a `path` of this tree.

        Raises
        ------
        StoreError
            If it is a link that leads out.
        OSError, ValueError
            If it cannot be opened.
        """
        if self.follow:
            return os.open(path, flags)
        if not _NO_LINK and os.path.islink(path):
            path = self._resolve(path)
        try:
            return os.open(path, flags | _NO_LINK)
        except OSError as error:
            if error.errno not in _IS_LINK:
                raise
        return os.open(self._resolve(path), flags | _NO_LINK)

    def holds(self, path: str) -> bool:
        """Tell whether what a link at `path` leads to is inside."""
        return self.follow or self._within(os.path.realpath(path))

    def _resolve(self, path: str) -> str:
        """Return where the link at `path` leads to."""
        real = os.path.realpath(path)
        if not self._within(real):
            raise StoreError(
                path,
                "is a symbolic link that leads out of the dataset; if whoever made it is to be "
                f"trusted, open the dataset with storage_options={{{FOLLOW_OPTION!r}: True}}",
            )
        return real

    def _within(self, real: str) -> bool:
        root = os.path.realpath(self.root)
        return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


T = TypeVar("T")

#: An object of fewer bytes is read without asking for its size.
SMALL = 1 << 16

#: So many of many keys are looked at before their folder is listed.
_LOOKED_AT = 16
#: Names of a folder that are read at most for each key that is looked for.
_NAMES = 4

#: Documents at the root of a tree.
_DOCUMENTS = (".zgroup", ".zattrs", "zarr.json")
#: No key of a dataset can be where these are answered.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ})


class DirectoryStore(LocalStore):
    """A store of the files below one directory; their paths are the keys.

    Parameters
    ----------
    path
        The root directory.
    follow_symlinks
        Whether symbolic links may lead out of it: a tree may be spread over
        several disks. Keys themselves can never lead out.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.url = self.path
        self._inside = Inside(self.path, follow=follow_symlinks)
        self._place: _Place | None
        self.note_place()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_machine": machine()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        there = state.pop("_machine")
        self.__dict__.update(state)
        if there != machine():  # which numbers its files in another way, or has copies
            self.note_place()

    def note_place(self) -> None:
        self._place = None
        with suppress(OSError, ValueError):
            self._place = _Place.of(self.path)

    def check_place(self) -> None:
        if self._place is None:
            return
        try:
            found = _Place.of(self.path)
        except OSError as error:
            reason = f"cannot be found any more: {error.strerror or error}"
            raise StoreError(self.path, reason) from error
        if not found.is_same(self._place):
            raise StoreError(self.path, "another dataset is in its place now")

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        if part != ALL:
            return self.get_parts(key, [part])[0]

        def read(descriptor: int, path: str) -> bytes | None:
            if small := _small(descriptor, most):
                return small
            size = _size(descriptor, path)
            if size is not None and most is not None and size > most:
                raise too_large(path, most)
            return None if size is None else read_at(descriptor, 0, size)

        return self._read(key, read)

    def get_parts(
        self, key: str, parts: Sequence[slice], most: int | None = None
    ) -> Sequence[bytes | None]:
        def read(descriptor: int, path: str) -> list[bytes] | None:
            size = _size(descriptor, path)
            if size is None:
                return None
            return [read_at(descriptor, *part.indices(size)[:2]) for part in parts]

        return self._read(key, read) or [None] * len(parts)

    def ranges(self, keys: Iterable[tuple[str, slice]], most: int) -> Iterator[FileRange | None]:
        for key, part in keys:
            path = self._inside.path(check_key(key))
            descriptor = self._open(path)
            if descriptor is None:
                yield None
                continue
            try:
                size = _size(descriptor, path)
                if size is not None and part == ALL and size > most:
                    raise too_large(path, most)
                start, stop, _ = part.indices(size or 0)
                found = FileRange(descriptor, start, max(0, stop - start), path)
                yield None if size is None else found
            finally:
                os.close(descriptor)

    def get_into(self, key: str, buffer: memoryview) -> int | None:
        def read(descriptor: int, path: str) -> int | None:
            count = read_into(descriptor, 0, buffer)
            if os.lseek(descriptor, 0, os.SEEK_END) == count:
                return count  # (a device has no size)
            size = _size(descriptor, path)
            if size is None or count < len(buffer):
                return None if size is None else count
            return max(size, count)

        return self._read(key, read)

    def _read(self, key: str, read: Callable[[int, str], T | None]) -> T | None:
        """Return what `read` makes of the open file of `key`, and its path; None if there is none.

        Raises
        ------
        StoreError
            If the file cannot be read.
        """
        path = self._inside.path(check_key(key))
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            return read(descriptor, path)
        except StoreError:
            raise
        except OSError as error:
            if error.errno == errno.EISDIR:
                return None
            raise _failure(path, error) from error
        finally:
            os.close(descriptor)

    def present(self, keys: Sequence[str]) -> Sequence[bool] | None:
        """Tell by the names in their folders, where most of some keys are missing.

        A file that is missing costs an open that fails, of 10 µs, and of a folder behind a network
        an answer; a name costs less than 1 µs.
        """
        some = slice(None, None, max(1, len(keys) // _LOOKED_AT))
        looked_at = [self.stamp(key) is not None for key in keys[some]]
        if 2 * sum(looked_at) > len(looked_at):
            return None
        names: dict[str, frozenset[str] | None] = {}
        found = []
        for key in keys:
            folder, _, name = key.rpartition("/")
            if folder not in names:
                if len(names) * _LOOKED_AT > len(keys):  # a few of each folder
                    return None
                names[folder] = self._few_names(folder, _NAMES * len(keys))
            there = names[folder]
            if there is None:
                return None
            found.append(name in there)
        # a filesystem that does not list all that can be opened is not believed
        unlisted = map(gt, looked_at, found[some])
        return None if any(unlisted) else found

    def _few_names(self, folder: str, most: int) -> frozenset[str] | None:
        """Return the names in a folder; None if it cannot be listed, or has more than `most`."""
        try:
            with os.scandir(self._folder(folder)) as entries:
                names = frozenset(entry.name for entry in itertools.islice(entries, most + 1))
        except UnicodeEncodeError:
            return frozenset()
        except OSError as error:  # what else is wrong with it, reading a file of it says
            return frozenset() if error.errno in _MISSING else None
        return names if len(names) <= most else None

    def stamp(self, key: str) -> tuple[int, ...] | None:
        try:
            status = os.stat(self._inside.path(check_key(key)))
        except (OSError, ValueError):  # StoreError is an OSError
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def contents(self) -> str:
        """Return a digest of names, times and sizes of all files."""
        digest = hashlib.sha256()
        seen = set()  # links may lead into what they are in
        for folder, folders, names in os.walk(self.path, followlinks=self._inside.follow):
            place = os.path.realpath(folder)
            if place in seen:
                folders.clear()
                continue
            seen.add(place)
            folders.sort()
            start = os.path.relpath(folder, self.path)
            for name in sorted(names):
                key = os.path.normpath(os.path.join(start, name))
                digest.update(repr((key, self.stamp(key))).encode())
        return digest.hexdigest()

    def list(self, prefix: str) -> frozenset[str]:
        path = self._folder(prefix)
        try:
            return frozenset(os.listdir(path))
        except UnicodeEncodeError:
            return frozenset()
        except OSError as error:
            if error.errno in _MISSING:
                return frozenset()
            raise _failure(path, error) from error

    def _folder(self, prefix: str) -> str:
        """Return the path of the folder at a prefix, which is inside."""
        if not prefix:
            return self.path
        self._inside.check(check_key(prefix))
        return self._inside.prefix + prefix

    def _open(self, path: str) -> int | None:
        """Return a descriptor; None where no object of a dataset can be."""
        try:
            return self._inside.open(path, OPEN_FLAGS)
        except UnicodeEncodeError:
            return None
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise _failure(path, error) from error


class _Place(NamedTuple):
    """What identifies a directory, so that one that was put in its place is noticed.

    Attributes
    ----------
    number
        Of its inode, which a filesystem may give again to a directory that is made later. What is
        in that is another root, or other metadata of arrays.
    device
        Of its filesystem: another one where it is mounted again, as automounters do.
    birth
        When it was made; None where `os.stat` does not tell, as on Linux.
    documents
        Times and sizes of documents, if there is no birth: some filesystems of programs number
        their files anew, and these have not changed then.
    """

    number: int
    device: int
    birth: float | None
    documents: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, path: str) -> _Place:
        """Look at a directory."""
        status = os.stat(path)
        birth = getattr(status, "st_birthtime", None)
        documents = []
        for name in _DOCUMENTS if birth is None else ():
            with suppress(OSError):
                found = os.stat(os.path.join(path, name))
                documents.append((found.st_mtime_ns, found.st_size))
        return cls(status.st_ino, status.st_dev, birth, tuple(documents))

    def is_same(self, other: _Place) -> bool:
        """Tell whether `other` was noted of the same directory."""
        if self.birth is not None:
            return (self.number, self.birth) == (other.number, other.birth)
        same = (self.number, self.device) == (other.number, other.device)
        return same or (self.documents != () and self.documents == other.documents)


def _small(descriptor: int, most: int | None) -> bytes:
    """Return all of a small file; nothing of what is large, empty, or no file."""
    room = SMALL if most is None or most >= SMALL else most + 1
    try:
        data = pread(descriptor, room, 0)
        # some file systems in user space return less than there is, and devices have no size
        ends = len(data) < room and os.lseek(descriptor, 0, os.SEEK_END) == len(data)
    except OSError:  # a directory, say
        return b""
    return data if ends else b""


def _size(descriptor: int, path: str) -> int | None:
    """Return the bytes of a regular file; None for a directory."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if stat.S_ISDIR(status.st_mode):
        return None
    raise StoreError(path, "is not a regular file")


def _failure(path: str, error: OSError) -> StoreError:
    if error.errno == errno.ESPIPE:
        return StoreError(path, "is not a regular file")
    return StoreError(path, f"cannot be read: {error.strerror or error}")
