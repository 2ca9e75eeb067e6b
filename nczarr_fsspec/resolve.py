"""From what a user names to the store that reads it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

from nczarr_fsspec.descriptors import OPEN_FLAGS
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    StoreError,
    URLError,
)
from nczarr_fsspec.extras import missing_package
from nczarr_fsspec.keystore import MAX_METADATA, KeyStore
from nczarr_fsspec.ranges.kept import KEEPING_OPTIONS
from nczarr_fsspec.ranges.local import name_of
from nczarr_fsspec.ranges.open import (
    MAX_WHOLE,
    OwnOptions,
    open_file_object,
    open_local,
    open_source,
    split_options,
)
from nczarr_fsspec.ranges.source import ByteSource, Known, LocalBytes, RemoteBytes
from nczarr_fsspec.s3nc import CONFIG_OPTION, located
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.inside import FOLLOW_OPTION
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_fsspec.stores.zip import ZipStore, open_archive
from nczarr_fsspec.stores.zipformat import TAIL_BYTES
from nczarr_fsspec.transport.policy import MAX_METADATA_OPTION
from nczarr_fsspec.url import NetCDFURL, is_url, parse_url, redact

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes

#: modes of what is not one classic or HDF5 file
_TREES = frozenset({"nczarr", "zarr", "zip"})
#: how archives begin
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
#: a URL that ends so names one file; others are asked for a tree first
_FILE_NAME = re.compile(r"\.(nc[34]?|nc4c|cdf|netcdf|h5|hdf5?|he5|json)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What is at a target.

    Attributes
    ----------
    data
        A `KeyStore` of a tree or an archive, the `ByteSource` of any other file.
    mode
        The mode words of a URL's fragment.
    as_file
        Opens what was taken for a tree as one file; None if it cannot be one. A file that was
        opened already is not opened again, and why one cannot be opened is found out once.
    """

    data: KeyStore | ByteSource
    mode: frozenset[str] = frozenset()
    as_file: Callable[[], ByteSource] | None = None


def open_data(
    target: object,
    storage_options: Mapping[str, Any] | None = None,
    index_cache: Path | None = None,
) -> KeyStore | ByteSource:
    """Open what the name of a target and its first bytes tell, as `resolve` does."""
    return resolve(target, storage_options, index_cache).data


def resolve(
    target: object,
    storage_options: Mapping[str, Any] | None = None,
    index_cache: Path | None = None,
) -> Resolved:
    """Open what is at `target`; what is there is found from its content.

    Parameters
    ----------
    target
        - a local path (``str`` or ``os.PathLike``); one that exists is taken as
          it is, also if it looks like a URL or contains ``#``;
        - a netCDF URL, an fsspec URL, a chain of them;
        - an fsspec mapper, an `fsspec.open` file, open or not, or anything else with a
          filesystem ``fs`` and a path;
        - a mapping from keys to bytes;
        - a binary file: a zip archive, a classic or an HDF5 file;
        - a `KeyStore` or a `ByteSource`, which is returned.
    storage_options
        Options of the fsspec filesystem that a URL names. Three are ours: ``max_whole`` (bytes
        of a file that may be kept in memory if its server does not serve ranges), ``timeout``
        (see `nczarr_fsspec.transport.policy.Timeout`) and, for all targets with keys,
        ``max_metadata`` (bytes of one object of metadata). Of local paths there is
        ``follow_symlinks``: whether symbolic links may lead out of a directory tree.
    index_cache
        Folder in which the metadata of remote files are remembered, besides the
        memory of this process.

    Raises
    ------
    DatasetNotFoundError
        If there is nothing. (A remote tree is not asked until it is read.)
    URLError
        If `target` or its fragment cannot be understood, or if `storage_options`
        are given where no filesystem takes them.
    StoreError
        If it cannot be read.
    ImportError
        If the package that reads this protocol is not installed.
    """
    options = dict(storage_options or {})
    limits = {MAX_METADATA_OPTION: options.pop(MAX_METADATA_OPTION, MAX_METADATA)}
    own, _ = split_options(limits, MAX_METADATA_OPTION)
    found = _resolve(target, options, index_cache)
    if isinstance(found.data, KeyStore) and own.max_metadata != MAX_METADATA:
        found.data.max_metadata = own.max_metadata
    return found


def _resolve(
    target: object, storage_options: Mapping[str, Any], index_cache: Path | None
) -> Resolved:
    text = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None
    if text is not None and is_url(text) and not exists(text):
        return _open_url(parse_url(text), storage_options, index_cache)
    if text is not None:
        follow = split_local_options(storage_options, text)
        return Resolved(_open_path(text, text, frozenset(), follow=follow))
    if storage_options:
        raise URLError(
            f"{type(target).__name__} object",
            "storage_options apply to URLs and paths only; leave them out",
        )
    if isinstance(target, (KeyStore, ByteSource)):
        return Resolved(target)
    if hasattr(target, "fs") and hasattr(target.fs, "cat_file"):
        return Resolved(_open_fsspec(target, index_cache))
    if isinstance(target, Mapping):
        return Resolved(MappingStore(target))
    if hasattr(target, "read") and hasattr(target, "seek"):
        return Resolved(_open_file(target))
    raise URLError(
        f"{type(target).__name__} object",
        "is not a path, URL, mapper, mapping or binary file that a dataset can be opened from",
    )


def find_remote_file(
    target: str, storage_options: Mapping[str, Any] | None
) -> tuple[RemoteFileBytes, Known | None] | None:
    """Find the remote file that a URL names as a file, and what version of it is known.

    No request is sent: `RemoteFileBytes.begin` opens the file, with others at a time. What it
    finds may be an archive, or the page that a server makes of a directory.

    Parameters
    ----------
    target, storage_options
        As of `resolve`.

    Returns
    -------
    None if the target is local, a tree or an archive by its name, or says nothing of it.

    Raises
    ------
    URLError
        If `target` cannot be understood.
    """
    from nczarr_fsspec.ranges.memory import memory
    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.transport.filesystems import is_http, is_s3
    from nczarr_fsspec.transport.open import open_transport

    if not is_url(target) or exists(target):
        return None
    url = parse_url(target)
    if not says_file(url.path, url.mode) or url.protocol != url.target_protocol:
        return None
    place = _place(url, storage_options)
    if not (is_http(place.fs) or is_s3(place.fs)) or place.own.keeping is not None:
        return None
    own, shown = place.own, target.partition("#")[0]
    transport = open_transport(place.fs, own.timeout)
    source = RemoteFileBytes(transport, place.path, redact(shown), own.max_whole)
    source.identity = place.identity
    return source, memory.known(source.identity) if source.identity else None


def open_keystore(target: object, storage_options: Mapping[str, Any] | None = None) -> KeyStore:
    """Open what must be a tree or a zip archive.

    Raises
    ------
    URLError, StoreError, ImportError
        As `open_data`.
    FormatError
        If it is any other file.
    """
    opened = open_data(target, storage_options)
    if isinstance(opened, ByteSource):
        opened.close()
        raise FormatError(
            opened.url,
            "is neither a directory nor a zip archive; "
            f"its first bytes are {bytes(opened.head[:8])!r}",
        )
    return opened


def _open_url(
    url: NetCDFURL, options: Mapping[str, Any] | None, index_cache: Path | None
) -> Resolved:
    shown = url.text.partition("#")[0]
    if url.protocol == "file":
        follow = split_local_options(options, shown)
        return Resolved(_open_path(local_path(url), shown, url.mode, follow=follow), url.mode)
    found = _open_in_filesystem(_place(url, options), url.mode, shown, index_cache)
    return found if not url.mode & _TREES else replace(found, as_file=None)


@dataclass(frozen=True, slots=True)
class _Place:
    """A path in a filesystem, and this package's options for reading there."""

    fs: AbstractFileSystem
    path: str
    own: OwnOptions = field(default_factory=OwnOptions)

    @property
    def identity(self) -> str:
        """Tells what is here from all else; free of secrets, the same in other processes.

        ``""`` where only an object of this process tells it (an open file, a function).
        """
        from nczarr_fsspec.transport.filesystems import arguments, is_plain

        args, options = arguments(self.fs)
        if not is_plain((args, options)):
            return ""
        text = repr((type(self.fs).__name__, args, sorted(options.items()), self.path))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def open_archive(self, shown: str | None) -> KeyStore:
        """Open the archive here; errors as `nczarr_fsspec.ranges.open.open_source`."""
        own = self.own
        source = open_source(
            self.fs,
            self.path,
            shown,
            max_whole=own.max_whole,
            timeout=own.timeout,
            tail=TAIL_BYTES,
        )
        return _checked(open_archive(source))

    def open(self, shown: str | None, index_cache: Path | None) -> RemoteBytes | LocalBytes:
        """Return the file here; errors as `nczarr_fsspec.ranges.open.open_source`."""
        from nczarr_fsspec.ranges.memory import memory

        identity = self.identity
        known = memory.known(identity, index_cache) if identity else None
        own = self.own
        source = open_source(
            self.fs, self.path, shown, known=known, max_whole=own.max_whole, timeout=own.timeout
        )
        if not isinstance(source, RemoteBytes):
            return source
        source.identity = identity
        if own.keeping is None:
            return source
        memory.of(source)  # so that it is asked for the next time whether it is another version
        return own.keeping.keep(source)


def _place(url: NetCDFURL, options: Mapping[str, Any] | None) -> _Place:
    from nczarr_fsspec.ranges.filesystem import ByteRangeFileSystem

    own, options = split_options(options, url.text.partition("#")[0])
    fs, path = innermost(*open_filesystem(url, options))
    if isinstance(fs, ByteRangeFileSystem):  # what it does for others is done here anyway
        if own.max_whole == MAX_WHOLE:
            own = replace(own, max_whole=fs.max_whole)
        fs, path = innermost(fs.fs, fs._strip_protocol(path))
    return _Place(fs, path, own)


def open_unasked(
    target: str, storage_options: Mapping[str, Any] | None = None
) -> LocalBytes | RemoteFileBytes:
    """Open the file at a URL as one; of one behind a network, nothing is asked yet.

    Raises
    ------
    URLError
        If the URL or the options cannot be understood.
    DatasetNotFoundError, StoreError
        If there is no such file on this machine, or it cannot be read.
    """
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.transport.filesystems import describe
    from nczarr_fsspec.transport.open import open_transport

    place = _place(parse_url(target), storage_options)
    fs, path, own = place.fs, place.path, place.own
    if isinstance(fs, (LocalFileSystem, MemoryFileSystem)):
        source = open_source(fs, path)
        assert isinstance(source, LocalBytes)
        return source
    transport = open_transport(fs, own.timeout)
    return RemoteFileBytes.unasked(transport, path, describe(fs, path), own.max_whole)


def open_filesystem(
    url: NetCDFURL, options: Mapping[str, Any] | None
) -> tuple[AbstractFileSystem, str]:
    """Find the filesystem that a URL names, and the path in it; errors as `open_keystore`."""
    from fsspec.core import url_to_fs

    from nczarr_fsspec.aws import storage_options

    shown = url.text.partition("#")[0]
    options = dict(options or {})
    url, keys = located(url, options.pop(CONFIG_OPTION, None))
    arguments = storage_options(url, options, keys)
    try:
        fs, path = url_to_fs(url.base, **arguments)
    except ImportError as error:
        raise missing_package(url.target_protocol, error, shown) from None
    except (ValueError, TypeError) as error:
        raise URLError(shown, f"fsspec cannot open it: {redact(str(error))}") from None
    except Exception as error:  # noqa: BLE001 - some filesystems connect when they are made
        reason = f"{type(error).__name__}: {redact(str(error))}"
        raise StoreError(shown, f"cannot be opened: {reason}") from None
    return fs, path


def innermost(fs: AbstractFileSystem, path: str) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem below those that only shift the root, and the path in it."""
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(fs, DirFileSystem):  # its asynchronous half needs an asynchronous target
        fs, path = fs.fs, fs._join(path)
    return fs, path


def _open_fsspec(target: Any, index_cache: Path | None) -> KeyStore | ByteSource:
    """Open what has a filesystem ``fs`` and a path: a mapper, a file, one that is to be opened."""
    from fsspec.core import OpenFile

    if isinstance(target, OpenFile) and target.compression is not None:
        return _open_file(target.open())
    is_file = isinstance(target, OpenFile) or hasattr(target, "read")
    path = target.root if hasattr(target, "root") else getattr(target, "path", "")
    mode = frozenset({"bytes"} if is_file else ())
    return _open_in_filesystem(_Place(target.fs, path), mode, None, index_cache).data


def _open_in_filesystem(
    place: _Place, mode: frozenset[str], shown: str | None, index_cache: Path | None
) -> Resolved:
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from nczarr_fsspec.stores.fsspec import FsspecStore, SyncFsspecStore

    fs, path = innermost(place.fs, place.path)
    place = replace(place, fs=fs, path=path)
    if isinstance(fs, LocalFileSystem):
        follow = split_local_options(fs.storage_options, shown or path, others=True)
        return Resolved(_open_path(path, shown or path, mode, follow=follow), mode)
    name = urlsplit(path).path if "://" in path else path
    own = place.own

    def tree(as_file: Callable[[], ByteSource]) -> Resolved:
        return Resolved(FsspecStore(fs, path, shown, own.timeout), mode, as_file)

    if says_zip(name, mode):
        return Resolved(place.open_archive(shown), mode)
    if isinstance(fs, MemoryFileSystem):
        shown = shown or redact(fs.unstrip_protocol(path))
        if not fs.exists(path):
            raise DatasetNotFoundError(shown, "there is no such file or directory")
        if not fs.isfile(path):
            _refuse_file_modes(shown, mode)
            return Resolved(SyncFsspecStore(fs, path, shown), mode)
    elif not says_file(name, mode):
        return tree(partial(place.open, shown, index_cache))
    try:
        source = place.open(shown, index_cache)
    except (DatasetNotFoundError, AccessDeniedError) as error:
        if "bytes" in mode:
            raise
        return tree(partial(_raise, error))
    if bytes(source.head[:4]) in ZIP:
        return Resolved(_checked(open_archive(source)), mode)
    if source.head.lstrip().startswith(b"<") and "bytes" not in mode:
        # a tree may be called like a file, and this be what its server makes of a directory
        source.close()
        return tree(lambda: source)
    return Resolved(source, mode)


def _raise(error: NCZarrError) -> NoReturn:
    raise error.with_traceback(None)


def split_local_options(
    options: Mapping[str, Any] | None, shown: str, *, others: bool = False
) -> bool:
    """Tell whether storage options of a local path say that symbolic links may lead out of a tree.

    Parameters
    ----------
    others
        Whether there may be other options, which are for other software.

    Raises
    ------
    URLError
        If there are others, or it is neither True nor False.
    """
    rest = dict(options or {})
    follow = rest.pop(FOLLOW_OPTION, False)
    for option in (CONFIG_OPTION, *KEEPING_OPTIONS):  # which are for remote fragments
        rest.pop(option, None)
    if rest and not others:
        raise URLError(
            shown,
            f"of storage_options, only {FOLLOW_OPTION} applies to local files; leave out "
            f"{', '.join(map(str, rest))}",
        )
    if not isinstance(follow, bool):
        raise URLError(shown, f"{FOLLOW_OPTION} is True or False, not {follow!r}")
    return follow


def _open_path(
    path: str, shown: str, mode: frozenset[str], *, follow: bool = False
) -> KeyStore | ByteSource:
    try:
        if path.startswith("~") and not exists(path):
            path = os.path.expanduser(path)
        kind, start = look(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(shown, f"cannot be opened: {reason}") from error
    if not kind:
        hint = "; a path with a fragment is written file:///path#mode=..." if "#" in path else ""
        raise DatasetNotFoundError(shown, f"there is no such file or directory{hint}")
    if stat.S_ISDIR(kind):
        _refuse_file_modes(shown, mode)
        return DirectoryStore(path, follow_symlinks=follow)
    if start.startswith(ZIP) or says_zip(path, mode):
        return _checked(ZipStore(path))
    return open_local(path)


def _refuse_file_modes(shown: str, mode: frozenset[str]) -> None:
    """Raise `URLError` for a directory at a URL whose mode says that there is one file."""
    for word in ("bytes", "zip"):
        if word in mode:
            reason = f"is a directory, and mode={word} is about one file; write #mode=nczarr,file"
            raise URLError(shown, reason)


def _open_file(file: Any) -> KeyStore | ByteSource:
    shown = name_of(file)
    try:
        file.seek(0)
        start = file.read(8)
    except (OSError, ValueError) as error:
        raise StoreError(shown, f"cannot be read: {error}") from error
    if not isinstance(start, bytes):
        raise URLError(shown, "is a text file; open it in binary mode")
    if start.startswith(ZIP):
        return _checked(ZipStore(file, shown))
    return open_file_object(file)


def look(path: str) -> tuple[int, bytes]:
    """Return the mode of what is at a local path (0 for nothing), and the first bytes of a file.

    What is neither a file nor a directory is not opened: opening a device may do something.

    Raises
    ------
    OSError, ValueError
        If it cannot be looked at, or `path` cannot be a path.
    """
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind):
            return kind, b""
        descriptor = os.open(path, OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return 0, b""
    try:
        kind = os.fstat(descriptor).st_mode
        return kind, os.read(descriptor, 8) if stat.S_ISREG(kind) else b""
    finally:
        os.close(descriptor)


def says_zip(path: str, mode: frozenset[str]) -> bool:
    """Tell whether a target is named as a zip archive."""
    return "zip" in mode or (path.lower().endswith(".zip") and "file" not in mode)


def says_file(path: str, mode: frozenset[str]) -> bool:
    """Tell whether a target is named as one classic or HDF5 file."""
    return not mode & _TREES and ("bytes" in mode or _FILE_NAME.search(path) is not None)


def _checked(store: KeyStore) -> KeyStore:
    """Return the archive `store` if its directory can be read."""
    (found,) = store.list_many([""])
    if isinstance(found, StoreError):
        store.close()
        raise found
    return store


def local_path(url: NetCDFURL) -> str:
    """Return the path of a ``file`` URL: as it stands, or percent-decoded if only that exists."""
    decoded = unquote(url.path)
    return url.path if exists(url.path) or not exists(decoded) else decoded


def exists(path: str) -> bool:
    """Tell whether a local path exists; False if it cannot be a path."""
    return os.path.exists(path)
