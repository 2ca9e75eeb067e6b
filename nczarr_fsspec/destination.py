"""Destinations: from what a user names to the place where a dataset is written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError, TooLargeError, URLError
from nczarr_fsspec.filesystem_place import innermost, open_filesystem
from nczarr_fsspec.places import HOSTLESS
from nczarr_fsspec.ranges.open import open_source, split_options
from nczarr_fsspec.resolve import split_local_options
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_mapping import MappingWriter
from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore, open_archive
from nczarr_fsspec.stores.zipformat import TAIL_BYTES
from nczarr_fsspec.target_names import (
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
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.url import parse_url, redact
from nczarr_fsspec.writable import WritableStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_NO_MODE: frozenset[str] = frozenset()
_TREE = frozenset({"nczarr"})


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a dataset is to be written.

    Attributes
    ----------
    kind
        A directory of this machine, one zip archive, or objects with keys.
    url : str
        How messages name it; free of secrets.
    mode : frozenset of str
        Mode words of the URL's fragment.
    path : str or None
        Absolute local path of the directory or archive; None if it is elsewhere.
    follow_symlinks : bool
        Whether symbolic links may lead out of that directory.
    store : WritableStore or None
        The store to write to, if `kind` is ``"objects"``.
    fs, remote_path : AbstractFileSystem and str, or None
        Where an archive is that has no `path`.
    timeout : Timeout or None
        Of requests to `fs`, if not what that says.
    """

    kind: Literal["directory", "zip", "objects"]
    url: str
    mode: frozenset[str] = _NO_MODE
    path: str | None = None
    follow_symlinks: bool = False
    store: WritableStore | None = None
    fs: AbstractFileSystem | None = None
    remote_path: str | None = None
    timeout: Timeout | None = None

    def open_archive(self) -> ZipStore | RemoteZipStore | None:
        """Return the archive that is there now; None if there is none.

        Raises
        ------
        StoreError
            If what is there cannot be read or is not an archive with a dataset.
        """
        assert self.kind == "zip"
        if self.path is not None:
            return open_archive(self.path) if os.path.exists(self.path) else None
        assert self.fs is not None
        assert self.remote_path is not None
        try:
            source = open_source(
                self.fs, self.remote_path, self.url, timeout=self.timeout, tail=TAIL_BYTES
            )
        except DatasetNotFoundError as error:
            if not error.reason.startswith("there is no such bucket"):
                return None
            raise
        return open_archive(source)

    def put_archive(self, fill: Callable[[str], None]) -> None:
        """Write an archive that has no `path`, or replace it in one step.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.

        Raises
        ------
        StoreError
            If it cannot be written; the old archive stays.
        """
        from nczarr_fsspec.stores.write_fsspec import FsspecWriter

        assert self.fs is not None
        assert self.remote_path is not None
        folder, name = _divided(self.remote_path)
        with closing(FsspecWriter(self.fs, folder, timeout=self.timeout)) as store:
            store.put_file(name, fill)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A name in a folder, where one object is to be written and others beside it.

    Attributes
    ----------
    store : WritableStore
        The folder.
    name : str
        The key of the object.
    url : str
        How messages name the object; free of secrets.
    target : str
        What opens the object.
    folder : str
        The address of the folder, as others can open it; it ends with ``/``.
    mode : frozenset of str
        Mode words of the URL's fragment.
    """

    store: WritableStore
    name: str
    url: str
    target: str
    folder: str
    mode: frozenset[str]

    def exists(self) -> bool:
        """Tell whether there is an object, or, on this machine, a directory with files.

        Raises
        ------
        StoreError
            If that cannot be found out.
        """
        (found,) = self.store.reader().get_many([self.name], 1)
        if isinstance(found, StoreError) and not isinstance(found, TooLargeError):
            if not self.store.keys_below(self.name):
                raise found
            return True  # a directory can be an error
        # or be none of a store's objects
        here = isinstance(self.store, DirectoryWriter)
        return found is not None or (here and bool(self.store.keys_below(self.name)))


def open_file_place(target: object, storage_options: Mapping[str, Any] | None = None) -> FilePlace:
    """Find out where to write one object and others beside it; no request is sent.

    Parameters
    ----------
    target
        A local path (``str`` or ``os.PathLike``), a netCDF URL or any URL of fsspec.
    storage_options
        As for `open_destination`.

    Raises
    ------
    URLError
        If nothing can be written there: plain HTTP, a mapping, caches and archives in a chain.
    ImportError
        If the package for this protocol is not installed.
    """
    if not isinstance(target, (str, os.PathLike)):
        shown = f"{type(target).__name__} object"
        raise URLError(shown, "has no place beside it for fragments; name a path or a URL")
    text = os.fsdecode(target)
    if not names_url(text):
        _refuse_meant_url(text)
        follow = split_local_options(storage_options, text)
        return _beside_path(text, text, _NO_MODE, follow=follow)
    url = parse_url(text)
    shown = url.text.partition("#")[0]
    if url.protocol == "file":
        follow = split_local_options(storage_options, shown)
        return _beside_path(local_path(url), text, url.mode, follow=follow)
    if url.target_protocol in ("http", "https"):
        raise _plain_http(shown)
    ours, options = split_options(storage_options, shown)
    fs, path = innermost(*open_filesystem(url, options))
    _refuse_readonly(fs, shown)
    above, name = _divided(path.rstrip("/"))
    if not name or not (above or url.target_protocol in HOSTLESS):
        raise URLError(shown, "names no object")
    from nczarr_fsspec.stores.write_fsspec import FsspecWriter

    folder = shown.rstrip("/").rpartition("/")[0]
    written = text.partition("#")[0].rstrip("/").rpartition("/")[0]
    if folder != written or folder.startswith("http"):
        folder = fs.unstrip_protocol(above)
    store = FsspecWriter(fs, above, folder, ours.timeout)
    return FilePlace(store, name, shown, text, f"{folder}/", url.mode)


def _divided(path: str) -> tuple[str, str]:
    """Return the folder of a remote path, which may be the root, and the name in it."""
    above, slash, name = path.rpartition("/")
    return above or slash, name


def _beside_path(path: str, target: str, mode: frozenset[str], *, follow: bool) -> FilePlace:
    path = os.path.abspath(from_home(path))
    if os.path.islink(path) and not os.path.isdir(path):
        path = os.path.realpath(path)  # what it leads to is replaced, with what is beside that
        fragment = target.partition("#")[2] if mode else ""
        target = f"file://{quote(path)}#{fragment}" if fragment else path
    above, name = os.path.split(path)
    if not name:
        raise URLError(target, "names no file")
    store = DirectoryWriter(above, follow_symlinks=follow)
    return FilePlace(store, name, path, target, f"{above.rstrip('/')}/", mode)


def open_destination(
    target: object, storage_options: Mapping[str, Any] | None = None
) -> Destination:
    """Find out where to write; nothing is created, and no request is sent.

    Parameters
    ----------
    target
        - a local path (``str`` or ``os.PathLike``), a netCDF URL or any URL of fsspec;
          one that ends in ``.zip`` or has mode ``zip`` is an archive, one that ends like a
          netCDF or HDF5 file needs a mode that says what is meant, unless it is there;
        - an fsspec mapper, or anything else with a filesystem ``fs`` and a path;
        - a mapping from keys to bytes that can be changed;
        - a `WritableStore`.
    storage_options
        Options of the fsspec filesystem that a URL names; ``follow_symlinks`` of local paths
        as for `nczarr_fsspec.resolve.resolve`.

    Raises
    ------
    URLError
        If nothing can be written there: plain HTTP, file objects, classic and HDF5 files,
        caches and archives in a chain; or if `target` cannot be understood, or does not say
        whether it is one file or a tree.
    StoreError
        If a local path cannot be looked at.
    ImportError
        If the package for this protocol is not installed.
    """
    text = os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None
    if text is not None and names_url(text):
        return _in_url(text, storage_options)
    shown = text if text is not None else f"{type(target).__name__} object"
    if text is not None:
        follow = split_local_options(storage_options, shown)
        _refuse_meant_url(text)
        return _at_path(text, text, _NO_MODE, follow=follow)
    if storage_options:
        raise URLError(shown, "storage_options apply to URLs and paths only; leave them out")
    if isinstance(target, WritableStore):
        return Destination("objects", target.url, store=target)
    if hasattr(target, "read") and hasattr(target, "seek"):
        raise URLError(shown, "a file object cannot hold a dataset; name a path or a URL")
    if hasattr(target, "fs") and hasattr(target.fs, "cat_file"):
        # a mapper has keys, so this is a tree, whatever its name
        mode = _TREE if isinstance(target, Mapping) else _NO_MODE
        return _in_filesystem(target.fs, path_below(target), mode, None)
    if isinstance(target, MutableMapping):
        return Destination("objects", "mapping", store=MappingWriter(target))
    raise URLError(
        shown,
        "is not a path, URL, mapper or mutable mapping that a dataset can be written to"
        + about_icechunk(target),
    )


def _refuse_meant_url(path: str) -> None:
    """Raise `URLError` for a path that is meant to be a URL: it would be made on this machine."""
    hint = "" if os.path.exists(path) else meant_url(path, "#mode=")
    if hint:
        raise URLError(path, hint)


def _in_url(text: str, options: Mapping[str, Any] | None) -> Destination:
    url = parse_url(text)
    shown = url.text.partition("#")[0]
    if "bytes" in url.mode:
        raise _single_file(shown, "mode=bytes names one classic or HDF5 file")
    if url.protocol == "file":
        follow = split_local_options(options, shown)
        return _at_path(local_path(url), shown, url.mode, follow=follow)
    if url.target_protocol in ("http", "https"):
        raise _plain_http(shown)
    ours, options = split_options(options, shown)
    fs, path = open_filesystem(url, options)
    return _in_filesystem(fs, path, url.mode, shown, ours.timeout)


def _in_filesystem(
    fs: AbstractFileSystem,
    path: str,
    mode: frozenset[str],
    shown: str | None,
    timeout: Timeout | None = None,
) -> Destination:
    from fsspec.implementations.local import LocalFileSystem

    from nczarr_fsspec.stores.write_fsspec import FsspecWriter

    fs, path = innermost(fs, path)
    if isinstance(fs, LocalFileSystem):
        follow = split_local_options(fs.storage_options, shown or path, others=True)
        return _at_path(path, shown or path, mode, follow=follow)
    shown = shown or redact(fs.unstrip_protocol(path))
    _refuse_readonly(fs, shown)
    if says_file(path, mode):
        raise _ambiguous(shown, f"{shown}#mode=nczarr")
    if says_zip(path, mode):
        return Destination("zip", shown, mode, fs=fs, remote_path=path, timeout=timeout)
    return Destination("objects", shown, mode, store=FsspecWriter(fs, path, shown, timeout))


def _refuse_readonly(fs: AbstractFileSystem, shown: str) -> None:
    """Raise `URLError` for a filesystem in which nothing can be written."""
    from nczarr_fsspec.transport.filesystems import is_in_front, protocols

    if is_in_front(fs):
        raise URLError(
            shown, "a cache, or an archive in a chain, cannot be written; name the place itself"
        )
    if "https" in protocols(fs):
        raise _plain_http(shown)


def _at_path(path: str, shown: str, mode: frozenset[str], *, follow: bool) -> Destination:
    if not path:
        raise URLError("''", "is not a path")
    path = os.path.abspath(from_home(path))
    try:
        kind, start = look(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(shown, f"cannot be looked at: {reason}") from error
    single = file_kind(start)
    if single:
        raise _single_file(shown, f"is one {single} file")
    is_zip = says_zip(path, mode)
    if stat.S_ISDIR(kind):
        if "zip" in mode:
            raise URLError(shown, "is a directory; leave mode zip out, or name another path")
        is_zip = False
    elif start.startswith(ZIP):
        is_zip = True
    elif not kind and says_file(path, mode):
        raise _ambiguous(shown, f"file://{path}#mode=nczarr,file")
    kind_of_place: Literal["directory", "zip"] = "zip" if is_zip else "directory"
    return Destination(kind_of_place, shown, mode, path, follow)


def _plain_http(shown: str) -> URLError:
    return URLError(
        shown,
        "plain HTTP is for reading; if this is an S3 service add #mode=s3, or write to a local "
        "path and upload that",
    )


def _ambiguous(shown: str, tree: str) -> URLError:
    return URLError(
        shown,
        "is named like one file, but what is written here is a tree of objects: choose a name "
        f"that ends in .nczarr or .zip, or write {tree!r} if the tree is to have this name; "
        "for one netCDF file use to_netcdf() with engine='netcdf4', or 'nczarr copy' with --format "
        "NETCDF4 or a name that ends in .nc; for an aggregation (.nca) use to_cfa()",
    )


def _single_file(shown: str, what: str) -> URLError:
    return URLError(
        shown,
        f"{what}, not NCZarr, which is a tree of objects or an archive of them: give another path; "
        "'nczarr copy' makes NCZarr of such a file, to_netcdf() with engine='netcdf4' writes one",
    )
