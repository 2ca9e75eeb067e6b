"""Where something is that is to be read or written, parsed once from what a user names."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    RedirectError,
    StoreError,
    URLError,
)
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.places.names import (
    TREES,
    ZIP,
    about_icechunk,
    file_kind,
    from_home,
    local_path,
    look,
    meant_url,
    names_url,
    path_below,
    says_file,
    says_zip,
)
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, located
from nczarr_fsspec.places.url import NetCDFURL, is_url, parse_url, redact
from nczarr_fsspec.ranges.local import (
    MemoryBytes,
    name_of,
    open_file_object,
    open_local,
    unreadable,
)
from nczarr_fsspec.ranges.source import ByteSource, Known, LocalBytes, RemoteBytes
from nczarr_fsspec.transport.policy import DEFAULT_LIMITS, MAX_WHOLE, RequestLimits

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from nczarr_fsspec.ranges.remote import RemoteFileBytes
    from nczarr_fsspec.ranges.whole_files import Keeping
    from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore

#: Follows the error for a list, or a pattern that names no file.
_SEVERAL = "; xr.open_mfdataset opens several files, 'nczarr aggregate' joins them"
_ABRIDGED = re.compile(r"(?i)(?<=://)\[([0-9a-f:.]*::[0-9a-f:.]*)\]")


class Contents(NamedTuple):
    """What is at a place.

    Attributes
    ----------
    data
        A `KeyStore` of a tree or an archive, the `ByteSource` of any other file.
    as_file
        Opens what was taken for a tree as one file; None if it cannot be one. A file that was
        opened already is not opened again, and why one cannot be opened is found out once.
    """

    data: KeyStore | ByteSource
    as_file: Callable[[], ByteSource] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is. Made by `of` or `in_filesystem`.

    Attributes
    ----------
    path : str
        Of this machine, or in `fs`.
    fs : AbstractFileSystem or None
        The filesystem, if it is not the one of this machine.
    mode : frozenset of str
        Mode words of a URL's fragment.
    named : str or None
        How messages name what is here, free of secrets; None if that follows from `path`.
    limits : RequestLimits
        Of requests to `fs`, and of what is read.
    keeping : Keeping or None
        How whole files of `fs` are kept, if they are.
    follow_symlinks : bool
        Whether symbolic links may lead out of a directory of this machine.
    is_tree : bool
        Whether what is here is not one file, whatever it turns out to be like.
    contents : KeyStore or ByteSource or None
        What is here, if an object was given that is or has it.
    """

    path: str = ""
    fs: AbstractFileSystem | None = None
    mode: frozenset[str] = frozenset()
    named: str | None = None
    limits: RequestLimits = DEFAULT_LIMITS
    keeping: Keeping | None = None
    follow_symlinks: bool = False
    is_tree: bool = False
    contents: KeyStore | ByteSource | None = None

    @classmethod
    def of(cls, target: object, storage_options: Mapping[str, Any] | None = None) -> Place:
        """Parse what a user names, or an address that may be opened; no request is sent.

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
            - the content of one, as ``bytes``, ``bytearray`` or ``memoryview``;
            - a `KeyStore` or a `ByteSource`.
        storage_options
            Options of the fsspec filesystem that a URL names. Some are ours: the fields of
            `nczarr_fsspec.transport.policy.RequestLimits`, of which ``max_metadata`` is for all
            targets with keys. Of local paths there is
            ``follow_symlinks``: whether symbolic links may lead out of a directory tree.

        Raises
        ------
        URLError
            If `target` or its fragment cannot be understood, or if `storage_options`
            are given where no filesystem takes them.
        StoreError
            If a file object cannot be read.
        ImportError
            If the package that reads this protocol is not installed.
        """
        options = dict(storage_options or {})
        text = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None
        if text is not None and names_url(text):
            url = parse_url(text)
            shown = url.text.partition("#")[0]
            if url.protocol == "file":
                return cls._local(local_path(url), shown, url.mode, options)
            limits, keeping = RequestLimits.take(options, shown), None
            if options:
                from nczarr_fsspec.ranges.whole_files import Keeping

                keeping = Keeping.take(options, shown)
            fs, path = open_filesystem(url, options)
            place = cls.in_filesystem(fs, path, url.mode, shown, limits)
            return replace(place, keeping=keeping, is_tree=bool(url.mode & TREES))
        if text is not None:
            return cls._local(text, text, frozenset(), options)
        limits = RequestLimits.take(options, f"{type(target).__name__} object")
        if limits != RequestLimits(max_metadata=limits.max_metadata) or options:
            raise URLError(
                f"{type(target).__name__} object",
                "storage_options apply to URLs and paths only; leave them out",
            )
        if hasattr(target, "fs") and hasattr(target.fs, "cat_file"):
            return replace(cls._of_object(target), limits=limits)
        return cls(limits=limits, contents=_contents_of(target))

    @classmethod
    def _local(cls, path: str, shown: str, mode: frozenset[str], options: dict[str, Any]) -> Place:
        """Return a path of this machine, with the options that are for that."""
        limits = RequestLimits.take(options, shown)
        follow = split_local_options(options, shown)
        return cls(path, None, mode, shown, limits, follow_symlinks=follow)

    @classmethod
    def _of_object(cls, target: Any) -> Place:
        """Return the place of what has a filesystem ``fs`` and a path in it.

        That is a mapper, a file, one that is to be opened, or a path of universal_pathlib.
        """
        from fsspec.core import OpenFile

        from nczarr_fsspec.transport.filesystems import kind_of

        if isinstance(target, OpenFile) and target.compression is not None:
            return cls(contents=_contents_of(target.open()))
        is_file = isinstance(target, OpenFile) or hasattr(target, "read")
        path = path_below(target)
        version = getattr(target, "version_id", None) or getattr(target, "generation", None)
        if version and str(version) not in path:  # s3fs, adlfs and gcsfs keep it beside the path
            if kind_of(target.fs) != "s3":
                return cls(contents=_contents_of(target))
            path = f"{path}?versionId={version}"
        mode = frozenset({"bytes"} if is_file else ())
        place = cls.in_filesystem(target.fs, path, mode)
        return replace(place, is_tree=isinstance(target, Mapping))

    @classmethod
    def in_filesystem(
        cls,
        fs: AbstractFileSystem,
        path: str,
        mode: frozenset[str] = frozenset(),
        named: str | None = None,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> Place:
        """Return the place of a path in a filesystem, below those that change nothing.

        They are those that only shift the root, and `ByteRangeFileSystem`: what it does for others
        is done here anyway.
        """
        from nczarr_fsspec.transport.filesystems import kind_of

        fs, path = innermost(fs, path)
        if "nczarr_fsspec.ranges.filesystem" in sys.modules:  # else there can be none of these
            from nczarr_fsspec.ranges.filesystem import ByteRangeFileSystem

            if isinstance(fs, ByteRangeFileSystem):
                if limits.max_whole == MAX_WHOLE:
                    limits = replace(limits, max_whole=fs.max_whole)
                fs, path = innermost(fs.fs, fs._strip_protocol(path))
        if kind_of(fs) == "local":
            named = named or path
            follow = split_local_options(fs.storage_options, named, others=True)
            return cls(path, None, mode, named, limits, follow_symlinks=follow)
        return cls(path, fs, mode, named, limits)

    @property
    def shown(self) -> str:
        """How messages name what is here, free of secrets."""
        if self.named is None and self.fs is not None:
            return redact(self.fs.unstrip_protocol(self.path))
        return self.named or self.path

    def open(self, index_cache: Path | None = None) -> Contents:
        """Open what is here; what that is, is found from its content.

        Parameters
        ----------
        index_cache
            Folder in which the metadata of remote files are remembered, besides the
            memory of this process.

        Raises
        ------
        DatasetNotFoundError
            If there is nothing. (A remote tree is not asked until it is read.)
        URLError
            If the mode words contradict what is here.
        StoreError
            If it cannot be read.
        """
        fs, path, mode = self.fs, self.path, self.mode
        if self.contents is not None:
            return self._bounded(self.contents)
        if fs is None:
            return self._bounded(self._open_local())
        from nczarr_fsspec.transport.filesystems import kind_of

        name = urlsplit(path).path if "://" in path else path
        if says_zip(name, mode):
            return self._bounded(self.open_archive())
        if kind_of(fs) == "memory":
            if not fs.exists(path):
                raise DatasetNotFoundError(self.shown, "there is no such file or directory")
            if not fs.isfile(path):
                from nczarr_fsspec.stores.mapping import MappingStore, MemoryFiles

                _refuse_file_modes(self.shown, mode)
                return self._bounded(MappingStore(MemoryFiles(fs, path), self.shown))
        elif not says_file(name, mode):
            return self._tree(partial(self.open_file, index_cache))
        try:
            source = self.open_file(index_cache)
        except (DatasetNotFoundError, AccessDeniedError) as error:
            if "bytes" in mode or isinstance(error, RedirectError):
                raise
            return self._tree(partial(_raise, error))
        if bytes(source.head[:4]) in ZIP:
            from nczarr_fsspec.stores.zip import open_archive

            return self._bounded(open_archive(source))
        if source.head.lstrip().startswith(b"<") and "bytes" not in mode:
            # a tree may be called like a file, and this be what its server makes of a directory
            source.close()
            return self._tree(lambda: source)
        return Contents(source)

    def open_file(self, index_cache: Path | None = None) -> RemoteBytes | LocalBytes:
        """Return the file in `fs`; errors as `nczarr_fsspec.ranges.remote.open_source`."""
        from nczarr_fsspec.ranges.index_memory import memory

        source = self.unopened()
        if isinstance(source, LocalBytes):
            return source
        source, known = _known(source, self, index_cache)
        source.run(source.begin(known))
        if self.keeping is None:
            return source
        memory.of(source)  # so that it is asked for the next time whether it is another version
        return self.keeping.keep(source)

    def open_archive(self) -> ZipStore | RemoteZipStore:
        """Open the archive here; errors as `nczarr_fsspec.ranges.remote.open_source`."""
        from nczarr_fsspec.stores.zip import open_archive
        from nczarr_fsspec.stores.zipformat import TAIL_BYTES

        if self.fs is None:
            return open_archive(self.path)
        source = self.unopened()
        if not isinstance(source, LocalBytes):
            source.run(source.begin(None, TAIL_BYTES))
        return open_archive(source)

    def open_unasked(self) -> LocalBytes | RemoteFileBytes:
        """Open the file in `fs`. A remote one is asked nothing: its first answer tells its size.

        Raises
        ------
        DatasetNotFoundError, StoreError
            If there is no such file on this machine, or it cannot be read.
        """
        source = open_local(self.path) if self.fs is None else self.unopened()
        return source if isinstance(source, LocalBytes) else source.unasked()

    @property
    def identity(self) -> str:
        """A text that identifies what is in `fs`: without secrets, the same in other processes.

        ``""`` if an object of this process is part of it, such as an open file or a function.
        """
        from nczarr_fsspec.transport.filesystems import arguments, is_plain

        assert self.fs is not None
        args, options = arguments(self.fs)
        if not is_plain((args, options)):
            return ""
        text = repr((type(self.fs).__name__, args, sorted(options.items()), self.path))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def unopened(self) -> LocalBytes | RemoteFileBytes:
        """Return the file in `fs`; a remote one is asked nothing yet."""
        from nczarr_fsspec.ranges.remote import source_at_once

        assert self.fs is not None
        return source_at_once(self.fs, self.path, self.named, self.limits)

    def _tree(self, as_file: Callable[[], ByteSource]) -> Contents:
        """Return the keys in `fs` of what seems to be a tree."""
        from nczarr_fsspec.stores.fsspec import FsspecStore

        assert self.fs is not None
        store = FsspecStore(self.fs, self.path, self.named, self.limits)
        return self._bounded(store, as_file)

    def _bounded(
        self, data: KeyStore | ByteSource, as_file: Callable[[], ByteSource] | None = None
    ) -> Contents:
        if isinstance(data, KeyStore) and self.limits.max_metadata is not None:
            data.max_metadata = self.limits.max_metadata
        return Contents(data, None if self.is_tree else as_file)

    def _open_local(self) -> KeyStore | ByteSource:
        path, shown, mode = self.path, self.shown, self.mode
        try:
            path = from_home(path)
            kind, start = look(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(shown, f"cannot be opened: {reason}") from error
        if not kind:
            meant = meant_url(path)
            hint = _SEVERAL if "*" in path else meant and f"; {meant}"
            reason = f"there is no such file or directory{hint}"
            raise DatasetNotFoundError(shown or repr(path), reason)
        if stat.S_ISDIR(kind):
            from nczarr_fsspec.stores.directory import DirectoryStore

            _refuse_file_modes(shown, mode)
            return DirectoryStore(path, follow_symlinks=self.follow_symlinks)
        misnamed = "zip" not in mode and file_kind(start)
        if start.startswith(ZIP) or (says_zip(path, mode) and not misnamed):
            return replace(self, path=path).open_archive()
        return open_local(path)


def find_remote_file(
    target: str, storage_options: Mapping[str, Any] | None
) -> tuple[RemoteFileBytes, Known | None] | None:
    """Find the remote file at a URL that names one, and what version of it is known.

    No request is sent: `RemoteFileBytes.begin` opens the file, with others at a time. What it
    finds may be an archive, or the page that a server makes of a directory.

    Parameters
    ----------
    target, storage_options
        As of `Place.of`.

    Returns
    -------
    None if this is local, a tree or an archive by its name, or says nothing of it.

    Raises
    ------
    URLError
        If `target` cannot be understood.
    """
    from nczarr_fsspec.transport.filesystems import kind_of

    if not names_url(target):
        return None
    url = parse_url(target)
    if not says_file(url.path, url.mode) or url.protocol != url.target_protocol:
        return None
    place = Place.of(target, storage_options)
    if place.fs is None or place.keeping is not None or kind_of(place.fs) not in ("http", "s3"):
        return None
    source = place.unopened()
    assert not isinstance(source, LocalBytes)
    return _known(source, place)


def find_beside(source: RemoteFileBytes, name: str) -> tuple[RemoteFileBytes, Known | None] | None:
    """Find another file in the folder of one that `find_remote_file` has found, with its options.

    Parameters
    ----------
    source
        Its URL ends with its name.
    name
        Of the other one; nothing in it is encoded in a URL.

    Returns
    -------
    None if it is not named as a file.
    """
    if not says_file(name, frozenset()):
        return None
    other = source.beside(name)
    return _known(other, Place(other.location[1], other.location[0]))


def _known(
    source: RemoteFileBytes, place: Place, index_cache: Path | None = None
) -> tuple[RemoteFileBytes, Known | None]:
    """Return a file at a place, and what version of it is known."""
    from nczarr_fsspec.ranges.index_memory import memory

    identity = source.identity = place.identity
    return source, memory.known(identity, index_cache) if identity else None


def open_keystore(target: object, storage_options: Mapping[str, Any] | None = None) -> KeyStore:
    """Open a tree or a zip archive.

    Parameters
    ----------
    target
        A local path, a netCDF URL, any URL of fsspec, an fsspec mapper, a mapping from keys to
        bytes, a binary file or the content of one, or a `KeyStore`, which is returned.
    storage_options
        Options of the fsspec filesystem that a URL names.

    Raises
    ------
    URLError, StoreError, ImportError
        As `Place.of` and `Place.open`.
    FormatError
        If the target is another file.
    """
    opened = Place.of(target, storage_options).open().data
    if isinstance(opened, ByteSource):
        opened.close()
        raise FormatError(
            opened.url,
            "is neither a directory nor a zip archive; "
            f"its first bytes are {bytes(opened.head[:8])!r}",
        )
    return opened


def open_filesystem(
    url: NetCDFURL, options: Mapping[str, Any] | None
) -> tuple[AbstractFileSystem, str]:
    """Find the filesystem that a URL names, and the path in it; errors as `open_keystore`."""
    from fsspec.core import url_to_fs

    from nczarr_fsspec.transport.filesystems import kind_of, missing_package
    from nczarr_fsspec.transport.options import storage_options

    shown = url.text.partition("#")[0]
    options = dict(options or {})
    aliases = options.pop(CONFIG_OPTION, None)
    url, keys = (url, None) if url.bucket is None else located(url, aliases)
    arguments = storage_options(url, options, keys)
    try:
        fs, path = url_to_fs(_ABRIDGED.sub(_unabridged, url.base), **arguments)
    except ImportError as error:
        raise missing_package(url.target_protocol, error, shown) from None
    except (ValueError, TypeError) as error:
        raise URLError(shown, f"fsspec cannot open it: {redact(str(error))}") from None
    except Exception as error:  # noqa: BLE001 - some filesystems connect when they are made
        kind = DatasetNotFoundError if isinstance(error, FileNotFoundError) else StoreError
        first, *_ = str(error).splitlines() or [""]  # pyarrow lists where it has looked for Java
        raise kind(shown, f"cannot be opened: {type(error).__name__}: {redact(first)}") from None
    if kind_of(fs) == "s3":
        from nczarr_fsspec.transport.s3client import check_options

        check_options(fs)
    return fs, path


def _unabridged(host: re.Match[str]) -> str:
    """Return an address of IPv6 without ``::``, which is a chain to fsspec."""
    try:
        groups = IPv6Address(host[1]).exploded.split(":")
    except ValueError:
        return host[0]
    return f"[{':'.join(f'{int(group, 16):x}' for group in groups)}]"


def innermost(fs: AbstractFileSystem, path: str) -> tuple[AbstractFileSystem, str]:
    """Return the filesystem below those that only shift the root, and the path in it."""
    from fsspec.implementations.dirfs import DirFileSystem

    while isinstance(fs, DirFileSystem):  # its asynchronous half needs an asynchronous target
        fs, path = fs.fs, fs._join(path)
    return fs, path


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
    if not options:
        return False
    from nczarr_fsspec.ranges.whole_files import REMOTE_OPTIONS
    from nczarr_fsspec.stores.directory import FOLLOW_OPTION

    rest = dict(options)
    follow = rest.pop(FOLLOW_OPTION, False)
    for option in REMOTE_OPTIONS:
        rest.pop(option, None)  # which are for remote fragments
    if rest and not others:
        meant = "" if is_url(shown) else meant_url(shown)
        raise URLError(
            shown,
            meant
            or f"of storage_options, only {FOLLOW_OPTION} and max_metadata apply to local "
            f"files; leave out {', '.join(map(str, rest))}",
        )
    if not isinstance(follow, bool):
        raise URLError(shown, f"{FOLLOW_OPTION} is True or False, not {follow!r}")
    return follow


def _raise(error: NCZarrError) -> NoReturn:
    raise error.with_traceback(None)


def _refuse_file_modes(shown: str, mode: frozenset[str]) -> None:
    """Raise `URLError` for a directory at a URL whose mode says that there is one file."""
    for word in ("bytes", "zip"):
        if word in mode:
            reason = f"is a directory, and mode={word} is about one file; write #mode=nczarr,file"
            raise URLError(shown, reason)


def _contents_of(target: Any) -> KeyStore | ByteSource:
    """Return what an object is, or has in it, that names no place."""
    if isinstance(target, (KeyStore, ByteSource)):
        return target
    if isinstance(target, Mapping) and not hasattr(target, "data_vars"):  # which xarray's have
        from nczarr_fsspec.stores.mapping import MappingStore

        return MappingStore(target)
    shown = name_of(target)
    if isinstance(target, (bytes, bytearray, memoryview)):
        target = bytes(target)
        start = target[:8]
    elif hasattr(target, "read") and hasattr(target, "seek"):
        try:
            target.seek(0)
            start = target.read(8)
        except UnicodeDecodeError:
            start = ""  # what a text file would return
        except Exception as error:
            raise unreadable(shown, error) from error
        if not isinstance(start, bytes):
            raise URLError(shown, "is a text file; open it in binary mode")
    else:
        several = isinstance(target, (list, tuple))
        raise URLError(
            f"{type(target).__name__} object",
            "is not a path, URL, mapper, mapping, store, binary file or content of one that a "
            f"dataset can be opened from{_SEVERAL if several else about_icechunk(target)}",
        )
    if start.startswith(ZIP):
        from nczarr_fsspec.stores.zip import open_archive

        return open_archive(target, shown)
    return MemoryBytes(target, shown) if isinstance(target, bytes) else open_file_object(target)
