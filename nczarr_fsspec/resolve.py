"""From what a user names to the store that reads it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
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
from nczarr_fsspec.ranges.local import MemoryBytes, name_of, unreadable
from nczarr_fsspec.ranges.open import open_file_object, open_local, split_options
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.target_names import (
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
from nczarr_fsspec.transport.policy import MAX_METADATA_OPTION
from nczarr_fsspec.url import NetCDFURL, is_url, parse_url, redact

if TYPE_CHECKING:
    from nczarr_fsspec.filesystem_place import FilesystemPlace

#: Follows the error for a list, or a pattern that names no file.
_SEVERAL = "; xr.open_mfdataset opens several files, 'nczarr aggregate' joins them"


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
        - the content of one, as ``bytes``, ``bytearray`` or ``memoryview``;
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
    if MAX_METADATA_OPTION not in options:
        return _resolve(target, options, index_cache)
    limits = {MAX_METADATA_OPTION: options.pop(MAX_METADATA_OPTION)}
    own, _ = split_options(limits, MAX_METADATA_OPTION)
    found = _resolve(target, options, index_cache)
    if isinstance(found.data, KeyStore):
        found.data.max_metadata = own.max_metadata
    return found


def _resolve(
    target: object, storage_options: Mapping[str, Any], index_cache: Path | None
) -> Resolved:
    text = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None
    if text is not None and names_url(text):
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
        return _open_fsspec(target, index_cache)
    if isinstance(target, Mapping) and not hasattr(target, "data_vars"):  # which xarray's have
        from nczarr_fsspec.stores.mapping import MappingStore

        return Resolved(MappingStore(target))
    if hasattr(target, "read") and hasattr(target, "seek"):
        return Resolved(_open_file(target))
    if isinstance(target, (bytes, bytearray, memoryview)):
        return Resolved(_open_content(bytes(target), name_of(target)))
    several = isinstance(target, (list, tuple))
    raise URLError(
        f"{type(target).__name__} object",
        "is not a path, URL, mapper, mapping, store, binary file or content of one that a dataset "
        f"can be opened from{_SEVERAL if several else about_icechunk(target)}",
    )


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
        As `resolve`.
    FormatError
        If the target is another file.
    """
    opened = resolve(target, storage_options).data
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
    from nczarr_fsspec.filesystem_place import place_of_url

    found = _open_in_filesystem(place_of_url(url, options), url.mode, shown, index_cache)
    return found if not url.mode & TREES else replace(found, as_file=None)


def _open_fsspec(target: Any, index_cache: Path | None) -> Resolved:
    """Open what has a filesystem ``fs`` and a path in it.

    That is a mapper, a file, one that is to be opened, or a path of universal_pathlib.
    """
    from fsspec.core import OpenFile

    from nczarr_fsspec.filesystem_place import FilesystemPlace
    from nczarr_fsspec.transport.filesystems import is_s3

    if isinstance(target, OpenFile) and target.compression is not None:
        return Resolved(_open_file(target.open()))
    is_file = isinstance(target, OpenFile) or hasattr(target, "read")
    path = path_below(target)
    version = getattr(target, "version_id", None) or getattr(target, "generation", None)
    if version and str(version) not in path:  # s3fs, adlfs and gcsfs keep it beside the path
        if not is_s3(target.fs):
            return Resolved(_open_file(target))
        path = f"{path}?versionId={version}"
    mode = frozenset({"bytes"} if is_file else ())
    found = _open_in_filesystem(FilesystemPlace(target.fs, path), mode, None, index_cache)
    as_file = None if isinstance(target, Mapping) else found.as_file
    return Resolved(found.data, as_file=as_file)


def _open_in_filesystem(
    place: FilesystemPlace, mode: frozenset[str], shown: str | None, index_cache: Path | None
) -> Resolved:
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    place = place.below()
    fs, path = place.fs, place.path
    if isinstance(fs, LocalFileSystem):
        follow = split_local_options(fs.storage_options, shown or path, others=True)
        return Resolved(_open_path(path, shown or path, mode, follow=follow), mode)
    name = urlsplit(path).path if "://" in path else path
    own = place.own

    def tree(as_file: Callable[[], ByteSource]) -> Resolved:
        from nczarr_fsspec.stores.fsspec import FsspecStore

        return Resolved(FsspecStore(fs, path, shown, own.timeout), mode, as_file)

    if says_zip(name, mode):
        return Resolved(place.open_archive(shown), mode)
    if isinstance(fs, MemoryFileSystem):
        shown = shown or redact(fs.unstrip_protocol(path))
        if not fs.exists(path):
            raise DatasetNotFoundError(shown, "there is no such file or directory")
        if not fs.isfile(path):
            from nczarr_fsspec.stores.fsspec import SyncFsspecStore

            _refuse_file_modes(shown, mode)
            return Resolved(SyncFsspecStore(fs, path, shown), mode)
    elif not says_file(name, mode):
        return tree(partial(place.open, shown, index_cache))
    try:
        source = place.open(shown, index_cache)
    except (DatasetNotFoundError, AccessDeniedError) as error:
        if "bytes" in mode or isinstance(error, RedirectError):
            raise
        return tree(partial(_raise, error))
    if bytes(source.head[:4]) in ZIP:
        from nczarr_fsspec.stores.zip import open_archive

        return Resolved(open_archive(source), mode)
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
    if not options:
        return False
    from nczarr_fsspec.ranges.kept import KEEPING_OPTIONS
    from nczarr_fsspec.ranges.open import MAX_WHOLE_OPTION
    from nczarr_fsspec.s3nc import CONFIG_OPTION
    from nczarr_fsspec.stores.inside import FOLLOW_OPTION
    from nczarr_fsspec.transport.policy import TIMEOUT_OPTION

    rest = dict(options)
    follow = rest.pop(FOLLOW_OPTION, False)
    for option in (MAX_WHOLE_OPTION, TIMEOUT_OPTION, CONFIG_OPTION, *KEEPING_OPTIONS):
        rest.pop(option, None)  # which are for remote fragments
    if rest and not others:
        meant = "" if is_url(shown) else meant_url(shown)
        raise URLError(
            shown,
            meant
            or f"of storage_options, only {FOLLOW_OPTION} and {MAX_METADATA_OPTION} apply to local "
            f"files; leave out {', '.join(map(str, rest))}",
        )
    if not isinstance(follow, bool):
        raise URLError(shown, f"{FOLLOW_OPTION} is True or False, not {follow!r}")
    return follow


def _open_path(
    path: str, shown: str, mode: frozenset[str], *, follow: bool
) -> KeyStore | ByteSource:
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
        return DirectoryStore(path, follow_symlinks=follow)
    misnamed = "zip" not in mode and file_kind(start)
    if start.startswith(ZIP) or (says_zip(path, mode) and not misnamed):
        from nczarr_fsspec.stores.zip import open_archive

        return open_archive(path)
    return open_local(path)


def _refuse_file_modes(shown: str, mode: frozenset[str]) -> None:
    """Raise `URLError` for a directory at a URL whose mode says that there is one file."""
    for word in ("bytes", "zip"):
        if word in mode:
            reason = f"is a directory, and mode={word} is about one file; write #mode=nczarr,file"
            raise URLError(shown, reason)


def _open_content(data: bytes, shown: str) -> KeyStore | ByteSource:
    if data.startswith(ZIP):
        from nczarr_fsspec.stores.zip import open_archive

        return open_archive(data, shown)
    return MemoryBytes(data, shown)


def _open_file(file: Any) -> KeyStore | ByteSource:
    shown = name_of(file)
    try:
        file.seek(0)
        start = file.read(8)
    except UnicodeDecodeError:
        start = ""  # what a text file would return
    except Exception as error:
        raise unreadable(shown, error) from error
    if not isinstance(start, bytes):
        raise URLError(shown, "is a text file; open it in binary mode")
    if start.startswith(ZIP):
        from nczarr_fsspec.stores.zip import open_archive

        return open_archive(file, shown)
    return open_file_object(file)
