"""From what a user names to the store that reads it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, StoreError, URLError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.directory import OPEN_FLAGS, DirectoryStore
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore
from nczarr_fsspec.url import NetCDFURL, is_url, parse_url, redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_HDF5 = b"\x89HDF\r\n\x1a\n"


def open_keystore(target: object, storage_options: Mapping[str, Any] | None = None) -> KeyStore:
    """Open the store at `target`; what is there is found from its content.

    Parameters
    ----------
    target
        - a local path (``str`` or ``os.PathLike``); one that exists is taken as
          it is, also if it looks like a URL or contains ``#``;
        - a netCDF URL, an fsspec URL, a chain of them;
        - an fsspec mapper, or anything else with a filesystem ``fs`` and a path;
        - a mapping from keys to bytes;
        - a binary file with a zip archive in it;
        - a `KeyStore`, which is returned.
    storage_options
        Options of the fsspec filesystem that a URL names.

    Raises
    ------
    DatasetNotFoundError
        If there is nothing. (A remote tree is not asked until it is read.)
    URLError
        If `target` or its fragment cannot be understood, if `storage_options`
        are given where no filesystem takes them, or if it is one classic or
        HDF5 file.
    FormatError
        If it is a file of some other kind.
    StoreError
        If it cannot be read.
    ImportError
        If the package that reads this protocol is not installed.
    """
    text = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None
    if text is not None and is_url(text) and not exists(text):
        return _open_url(parse_url(text), storage_options)
    if storage_options:
        raise URLError(
            text or f"{type(target).__name__} object",
            "storage_options apply to URLs only; leave them out",
        )
    if text is not None:
        return _open_path(text, text, frozenset())
    if isinstance(target, KeyStore):
        return target
    if hasattr(target, "fs") and hasattr(target.fs, "cat_file"):
        path = target.root if hasattr(target, "root") else getattr(target, "path", "")
        return _open_in_filesystem(target.fs, path, frozenset(), None)
    if isinstance(target, Mapping):
        return MappingStore(target)
    if hasattr(target, "read") and hasattr(target, "seek"):
        return _open_file(target)
    raise URLError(
        f"{type(target).__name__} object",
        "is not a path, URL, mapper, mapping or binary file that a dataset can be opened from",
    )


def _open_url(url: NetCDFURL, options: Mapping[str, Any] | None) -> KeyStore:
    shown = url.text.partition("#")[0]
    if "bytes" in url.mode:
        raise _single_file(shown, "mode=bytes names one classic or HDF5 file")
    if url.protocol == "file":
        if options:
            raise URLError(shown, "storage_options do not apply to local files; leave them out")
        return _open_path(url.path, shown, url.mode)
    fs, path = open_filesystem(url, options)
    return _open_in_filesystem(fs, path, url.mode, shown)


def open_filesystem(
    url: NetCDFURL, options: Mapping[str, Any] | None
) -> tuple[AbstractFileSystem, str]:
    """The fsspec filesystem that a URL names, and the path in it; errors as `open_keystore`."""
    from fsspec.core import url_to_fs

    from nczarr_fsspec.aws import storage_options

    shown = url.text.partition("#")[0]
    arguments = storage_options(url, options)
    try:
        fs, path = url_to_fs(url.base, **arguments)
    except ImportError as error:
        raise ImportError(
            f"{shown}: {error} (for HTTP: pip install 'nczarr-xarray[remote]')"
        ) from None
    except (ValueError, TypeError) as error:
        raise URLError(shown, f"fsspec cannot open it: {redact(str(error))}") from None
    except Exception as error:  # noqa: BLE001 - some filesystems connect when they are made
        reason = f"{type(error).__name__}: {redact(str(error))}"
        raise StoreError(shown, f"cannot be opened: {reason}") from None
    return fs, path


def innermost(fs: AbstractFileSystem, path: str) -> tuple[AbstractFileSystem, str]:
    """The filesystem below those that only shift the root, and the path in it."""
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(fs, DirFileSystem):  # its asynchronous half needs an asynchronous target
        fs, path = fs.fs, fs._join(path)  # noqa: SLF001
    return fs, path


def _open_in_filesystem(
    fs: AbstractFileSystem, path: str, mode: frozenset[str], shown: str | None
) -> KeyStore:
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from nczarr_fsspec.stores.fsspec import FsspecStore, SyncFsspecStore, remote_files

    fs, path = innermost(fs, path)
    if isinstance(fs, LocalFileSystem):
        return _open_path(path, shown or path, mode)
    is_zip = says_zip(urlsplit(path).path if "://" in path else path, mode)
    if isinstance(fs, MemoryFileSystem):
        shown = shown or redact(fs.unstrip_protocol(path))
        if not fs.exists(path):
            raise DatasetNotFoundError(shown, "there is no such file or directory")
        if not fs.isfile(path):
            return SyncFsspecStore(fs, path, shown)
        _check_is_zip(shown, fs.cat_file(path, 0, 8), is_zip)
        is_zip = True
    if is_zip:
        return _checked(RemoteZipStore(remote_files(fs), path, shown))
    return FsspecStore(fs, path, shown)


def _open_path(path: str, shown: str, mode: frozenset[str]) -> KeyStore:
    try:
        if path.startswith("~") and not exists(path):
            path = os.path.expanduser(path)  # noqa: PTH111 - leaves an unknown ~user alone
        descriptor = os.open(path, OPEN_FLAGS)
        try:
            kind = os.fstat(descriptor).st_mode
            start = os.read(descriptor, 8) if stat.S_ISREG(kind) else b""
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        hint = "; a path with a fragment is written file:///path#mode=..." if "#" in path else ""
        raise DatasetNotFoundError(shown, f"there is no such file or directory{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(shown, f"cannot be opened: {reason}") from error
    if stat.S_ISDIR(kind):
        return DirectoryStore(path)
    _check_is_zip(shown, start, says_zip(path, mode))
    return _checked(ZipStore(path))


def _open_file(file: Any) -> KeyStore:
    shown = str(getattr(file, "name", None) or f"{type(file).__name__} object")
    try:
        file.seek(0)
        start = file.read(8)
    except (OSError, ValueError) as error:
        raise StoreError(shown, f"cannot be read: {error}") from error
    if not isinstance(start, bytes):
        raise URLError(shown, "is a text file; open it in binary mode")
    _check_is_zip(shown, start, is_zip=False)
    return _checked(ZipStore(file, shown))


def says_zip(path: str, mode: frozenset[str]) -> bool:
    """Whether a target is named as a zip archive."""
    return "zip" in mode or (path.lower().endswith(".zip") and "file" not in mode)


def _check_is_zip(shown: str, start: bytes, is_zip: bool) -> None:
    """Raise what a file is if it is not a zip; one that is said to be a zip may start otherwise."""
    if start.startswith(_ZIP):
        return
    if start.startswith((*_CLASSIC, _HDF5)):
        raise _single_file(shown, f"is one {'HDF5' if start == _HDF5 else 'classic'} file")
    if not is_zip:
        raise FormatError(
            shown, f"is neither a directory nor a zip archive; its first bytes are {start!r}"
        )


def _single_file(shown: str, what: str) -> URLError:
    return URLError(
        shown,
        f"{what}; classic and HDF5 files are not read by this version: "
        "use engine='h5netcdf' (HDF5) or engine='scipy' (classic)",
    )


def _checked(store: KeyStore) -> KeyStore:
    """Return the archive `store` if its directory can be read."""
    (found,) = store.list_many([""])
    if isinstance(found, StoreError):
        store.close()
        raise found
    return store


def exists(path: str) -> bool:
    """Whether a local path exists; False if it cannot be a path."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a URL is too long
