"""Writing a dataset into a directory tree of this machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import WritableStore, check_key
from nczarr_fsspec.local_files import FileRange, rename_to_new, whole_file
from nczarr_fsspec.stores.directory import DirectoryStore, Inside
from nczarr_fsspec.stores.ownership import Owner, temporary_name, writer_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_MODE = 0o666  # less the umask
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)

#: No key can be where these are answered.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
#: What a file system without hard links answers (FAT, some network shares).
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK})
#: A directory is made so often: another process may remove it while it is still empty.
_ATTEMPTS = 100
#: One thread of a process makes or removes directories at a time: two could undo each other's.
_folders = ProcessLock()


class DirectoryWriter(WritableStore):
    """Keys are the paths of files below one directory, which is made when it is needed.

    `create` is atomic among all processes that share the file system (a hard
    link; where there are none, a rename to a new name, or else ``O_EXCL``).

    Parameters
    ----------
    path
        The root directory.
    atomic
        Whether `put` goes through a temporary file and a rename. Without, a
        reader may see a part of a file: for trees that are not read yet.
    follow_symlinks
        Whether symbolic links may lead out of the directory.
    """

    parallel = 1
    stamps = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        atomic: bool = True,
        follow_symlinks: bool = False,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.url = self.path
        self._inside = Inside(self.path, follow=follow_symlinks)
        self.atomic = atomic

    def reader(self) -> DirectoryStore:
        return DirectoryStore(self.path, follow_symlinks=self._inside.follow)

    def put(self, key: str, data: Buffer) -> None:
        self._write(key, partial(self._put, partial(_write_all, data)))

    def put_range(self, key: str, part: FileRange) -> None:
        self._write(key, partial(self._put, part.append_to))

    def _put(self, write: Callable[[int], None], path: str) -> None:
        if not self.atomic:
            _replace(path, write)
            return
        with whole_file(path, _beside(path)) as new:
            _fill(new, write)

    def put_file(self, key: str, fill: Callable[[str], None]) -> None:
        self._write(key, partial(_put_file, fill))

    def create(self, key: str, data: Buffer) -> bool:
        return self._write(key, partial(_create, data))

    def _write(self, key: str, write: Callable[[str], T]) -> T:
        """Call a function that writes the file of a key; what fails is a `StoreError`.

        Folders that were made for the file are removed then.
        """
        path = self._inside.path(check_key(key))
        try:
            return write(path)
        except StoreError:  # of what is copied
            raise
        except (OSError, UnicodeEncodeError) as error:
            self._prune([os.path.dirname(path)])
            raise _failure(path, "written", error) from error

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._inside.path(check_key(key))
            folders.add(os.path.dirname(path))
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in _MISSING and not os.path.isdir(path):
                    raise _failure(path, "deleted", error) from error
            except UnicodeEncodeError:
                pass
        self._prune(folders)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        folders = set()
        for source, target in pairs:
            old, new = (self._inside.path(check_key(key)) for key in (source, target))
            folders.add(os.path.dirname(old))
            try:
                _rename(old, new)
                _remove_link(old, new)
            except (OSError, UnicodeEncodeError) as error:
                raise _failure(old, f"moved to {new}", error) from error
        self._prune(folders)

    def keys_below(self, prefix: str) -> list[str]:
        return sorted(name for name in self._files(prefix) if writer_of(name) is None)

    def temporaries(self, below: str = "", *, deep: bool = True) -> Iterator[tuple[str, Owner]]:
        """Yield the names of files that are not complete, each with the process that writes it.

        Parameters
        ----------
        below
            Prefix of the names.
        deep
            Whether to look into folders that are there.
        """
        for name in sorted(self._files(below, deep=deep)):
            owner = writer_of(name)
            if owner is not None:
                yield name, owner

    def _files(self, prefix: str, *, deep: bool = True) -> Iterator[str]:
        linked: set[str] = set()  # a link may lead into what it is in
        todo = [f"{check_key(prefix)}/" if prefix else ""]
        self._inside.check(prefix)
        while todo:
            above = todo.pop()
            path = self._inside.prefix + above
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        # a link that leads out is an object, which can be removed
                        outside = entry.is_symlink() and not self._inside.holds(entry.path)
                        if outside or not _is_folder(entry):
                            yield above + entry.name
                            continue
                        if not deep:
                            continue
                        if entry.is_symlink():
                            real = os.path.realpath(entry.path)
                            if real in linked:
                                continue
                            linked.add(real)
                        todo.append(f"{above}{entry.name}/")
            except (OSError, UnicodeEncodeError) as error:
                if isinstance(error, OSError) and error.errno not in _MISSING:
                    raise _failure(path, "listed", error) from error

    def child(self, prefix: str) -> DirectoryWriter:
        # what is put aside is not read yet, and a writer that dies leaves no temporary files
        self._inside.check(check_key(prefix))
        path, follow = self._inside.prefix + prefix, self._inside.follow
        return DirectoryWriter(path, atomic=False, follow_symlinks=follow)

    def _prune(self, folders: Iterable[str]) -> None:
        """Remove those of `folders` that are empty, and what becomes empty above them."""
        for folder in folders:
            with suppress(OSError), _folders:
                while len(folder) > len(self.path):
                    with suppress(FileNotFoundError):  # one above it may be there, and empty
                        os.rmdir(folder)
                    folder = os.path.dirname(folder)


def _beside(path: str) -> str:
    """Return the path of a file that is not complete, in the folder of another."""
    return f"{os.path.dirname(path)}/{temporary_name()}"


@contextmanager
def _held_folder(path: str) -> Iterator[None]:
    """Make the folder of a file, and keep others from removing it while it has no file yet."""
    holder = _beside(path)
    os.close(_open_new(holder))
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(holder)


def _put_file(fill: Callable[[str], None], path: str) -> None:
    with _held_folder(path), whole_file(path, _beside(path)) as new:
        fill(new)


def _create(data: Buffer, path: str) -> bool:
    """Write a file unless there is one; tell whether it was written."""
    if os.path.lexists(path):
        return False
    temporary, write = _beside(path), partial(_write_all, data)
    try:
        _fill(temporary, write)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return _is_link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not rename_to_new(temporary, path):
                _fill(path, write)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    except FileExistsError:
        return False
    return True


def _write_all(data: Buffer, descriptor: int) -> None:
    view = memoryview(data)
    if view.nbytes:
        view = view.cast("B")
        while view:  # one call takes at most 2 GiB
            view = view[os.write(descriptor, view) :]


def _replace(path: str, write: Callable[[int], None]) -> None:
    """Have a function write a file anew, whatever was there: nothing is written into a link."""
    for _ in range(_ATTEMPTS):
        try:
            return _fill(path, write)
        except FileExistsError:
            with suppress(FileNotFoundError):
                os.unlink(path)
    return _fill(path, write)


def _fill(path: str, write: Callable[[int], None]) -> None:
    """Have a function write a new file, given its descriptor, or leave none."""
    descriptor = _open_new(path)
    try:
        try:
            write(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def _open_new(path: str) -> int:
    return _in_folder(path, lambda: os.open(path, _NEW, _MODE))


def _in_folder(path: str, make: Callable[[], T]) -> T:
    """Make a file, and its folder if there is none."""
    try:
        return make()
    except FileNotFoundError:
        pass
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError), _folders:
            _make_folder(path)
            return make()
    return make()


def _rename(old: str, new: str) -> None:
    with suppress(FileNotFoundError):
        return os.replace(old, new)
    for _ in range(_ATTEMPTS):
        if not os.path.lexists(old):
            break
        with suppress(FileNotFoundError), _folders:
            _make_folder(new)
            return os.replace(old, new)
    if os.path.lexists(old) or not os.path.lexists(new):
        os.replace(old, new)
    return None


def _remove_link(old: str, new: str) -> None:
    """Remove what was renamed, if it is still there: a link is, if `new` was one to its file."""
    if not os.path.lexists(old):
        return
    if not os.path.samefile(os.path.dirname(old), os.path.dirname(new)):  # or they may be one path
        with suppress(FileNotFoundError):
            os.unlink(old)


def _is_link(one: str, other: str) -> bool:
    """Tell whether a link was made though the answer was that there is something.

    A server of NFS may have made it, and be asked again as its answer was lost: see link(2).
    """
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False


def _make_folder(path: str) -> None:
    with suppress(FileNotFoundError, FileExistsError):  # gone again; or a file, as open will say
        os.makedirs(os.path.dirname(path), exist_ok=True)


def _failure(path: str, what: str, error: OSError | UnicodeEncodeError) -> StoreError:
    cause = getattr(error, "strerror", None) or error
    return StoreError(path, f"cannot be {what}: {cause}")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False  # links that lead to each other are objects, which can be removed
