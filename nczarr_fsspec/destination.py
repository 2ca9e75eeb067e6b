"""Destinations: from what a user names to the place where a dataset is written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    StoreError,
    TooLargeError,
    URLError,
)
from nczarr_fsspec.keystore import KeyStore, WritableStore
from nczarr_fsspec.place import Place, innermost
from nczarr_fsspec.places.address import HOSTLESS
from nczarr_fsspec.places.names import (
    ZIP,
    about_icechunk,
    file_kind,
    from_home,
    look,
    meant_url,
    names_url,
    path_below,
    says_file,
    says_zip,
)
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.zip import RemoteZipStore, ZipStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: What functions are told to replace what is there.
OVERWRITE = "overwrite=True replaces it"
_IN_FRONT = "a cache, or an archive in a chain, cannot be written; name the place itself"
_PLAIN_HTTP = (
    "plain HTTP is for reading; if this is an S3 service add #mode=s3, or write to a local path "
    "and upload that"
)
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
    place : Place
        Where; of a directory or an archive of this machine with an absolute path.
    store : WritableStore or None
        The store to write to; of an archive None.
    """

    kind: Literal["directory", "zip", "objects"]
    url: str
    place: Place = Place()  # noqa: RUF009 - it cannot be changed
    store: WritableStore | None = None

    @property
    def path(self) -> str | None:
        """Absolute local path of the directory or archive; None if it is elsewhere."""
        return self.place.path if self.place.fs is None and self.kind != "objects" else None

    def reader(self) -> KeyStore | None:
        """Return a store that reads what is there now; None if there is no archive."""
        return self.open_archive() if self.store is None else self.store.reader()

    def keys(self, below: str = "") -> list[str]:
        """Return all keys that exist."""
        if self.store is not None:
            return self.store.keys_below(below)
        archive = self.open_archive()
        if archive is None:
            return []
        found, pending = [], [below]
        with closing(archive):
            while pending:
                above = pending.pop()
                (names,) = archive.list_many([above])
                if isinstance(names, StoreError):
                    raise names
                pending += [f"{above}/{name}" if above else name for name in names or ()]
                if not names and above != below:  # what has nothing below it is a key itself
                    found.append(above)
        return found

    def open_archive(self) -> ZipStore | RemoteZipStore | None:
        """Return the archive that is there now; None if there is none.

        Raises
        ------
        StoreError
            If what is there cannot be read or is not an archive with a dataset.
        """
        assert self.kind == "zip"
        if self.path is not None and not os.path.exists(self.path):
            return None
        try:
            return self.place.open_archive()
        except DatasetNotFoundError as error:
            if not error.reason.startswith("there is no such bucket"):
                return None
            raise

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
        from nczarr_fsspec.stores.write_fsspec import open_writer

        fs = self.place.fs
        assert fs is not None
        folder, name = _divided(self.place.path)
        with closing(open_writer(fs, folder, None, self.place.limits)) as store:
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
    storage_options
        Options of the filesystem (fsspec).
    advice
        What errors say of replacing what is there, in the words of the function that was called.
    """

    store: WritableStore
    name: str
    url: str
    target: str
    folder: str
    mode: frozenset[str]
    storage_options: Mapping[str, Any] | None = None
    advice: str = OVERWRITE

    @classmethod
    def find(
        cls,
        target: object,
        storage_options: Mapping[str, Any] | None = None,
        advice: str = OVERWRITE,
    ) -> Self:
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
        place = _named_place(text, storage_options, as_tree=False)
        if place.fs is None:
            found = _beside_path(place, text)
        else:
            found = _beside_object(place, place.fs, text)
        return cls(*found, place.mode, storage_options, advice)

    @property
    def already_there(self) -> DatasetExistsError:
        """The error where something must not be replaced."""
        return DatasetExistsError(self.url, f"is there already; {self.advice}")

    def must_be_new(self) -> None:
        """Raise `DatasetExistsError` if there is anything."""
        if self.exists():
            raise self.already_there

    def write(self, fill: Callable[[str], None], *, overwrite: bool) -> None:
        """Write the object as one file; an old one stays until the new one is complete.

        On this machine, it is made beside its place, and renamed. A remote one is made in the
        folder for temporary files, and uploaded: there must be room for all of it.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.
        overwrite
            Whether what is there, or has come there meanwhile, is replaced.

        Raises
        ------
        DatasetExistsError
            If something is there now that must not be replaced.
        StoreError
            If it cannot be written.
        """

        def fill_and_check(path: str) -> None:
            fill(path)
            if not overwrite:
                self.must_be_new()

        store = self.store
        try:
            if not isinstance(store, DirectoryWriter):
                store.put_file(self.name, fill_and_check)
                return
            path = os.path.realpath(os.path.join(store.path, self.name))
            remove_leftovers(path)
            with replacing(path) as new:
                fill_and_check(new)
        except OSError as error:  # of the temporary file, too: a disk is full, a folder is missing
            if isinstance(error, StoreError):
                raise
            local = isinstance(store, DirectoryWriter)
            what = f"put into place: {error.strerror or error}" if local else f"made: {error}"
            raise StoreError(self.url, f"cannot be {what}") from error

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


def _beside_path(place: Place, target: str) -> tuple[WritableStore, str, str, str, str]:
    """Return the folder of a local path, and the name, url, target and folder of a `FilePlace`."""
    path = os.path.abspath(from_home(place.path))
    if os.path.islink(path) and not os.path.isdir(path):
        path = os.path.realpath(path)  # what it leads to is replaced, with what is beside that
        fragment = target.partition("#")[2] if place.mode else ""
        target = f"file://{quote(path)}#{fragment}" if fragment else path
    above, name = os.path.split(path)
    if not name:
        raise URLError(target, "names no file")
    store = DirectoryWriter(above, follow_symlinks=place.follow_symlinks)
    return store, name, path, target, f"{above.rstrip('/')}/"


def _beside_object(
    place: Place, fs: AbstractFileSystem, target: str
) -> tuple[WritableStore, str, str, str, str]:
    """Return as `_beside_path` does for an object of a filesystem."""
    shown = place.shown
    above, name = _divided(place.path.rstrip("/"))
    if not name or not (above or parse_url(target).target_protocol in HOSTLESS):
        raise URLError(shown, "names no object")
    from nczarr_fsspec.stores.write_fsspec import open_writer

    folder = shown.rstrip("/").rpartition("/")[0]
    written = target.partition("#")[0].rstrip("/").rpartition("/")[0]
    if folder != written or folder.startswith("http"):
        folder = fs.unstrip_protocol(above)
    store = open_writer(fs, above, folder, place.limits)
    return store, name, shown, target, f"{folder}/"


def _named_place(text: str, storage_options: Mapping[str, Any] | None, *, as_tree: bool) -> Place:
    """Parse a path or a URL in which something is to be written; `URLError` if nothing can be."""
    if not names_url(text):
        place = Place.of(text, storage_options)
        # a path that is meant to be a URL would be made on this machine
        hint = "" if os.path.exists(text) else meant_url(text, "#mode=")
        if hint:
            raise URLError(text, hint)
        return place
    url = parse_url(text)
    if as_tree and "bytes" in url.mode:
        reason = "mode=bytes names one classic or HDF5 file"
        raise _single_file(url.text.partition("#")[0], reason)
    if url.protocol != "file" and url.target_protocol in ("http", "https"):
        raise URLError(url.text.partition("#")[0], _PLAIN_HTTP)
    place = Place.of(text, storage_options)
    if "bytes" in (link.partition("://")[0] for link in url.base.split("::")[:-1]):
        raise URLError(place.shown, _IN_FRONT)  # which `Place` looks through
    if place.fs is not None:
        _refuse_readonly(place.fs, place.shown)
    return place


def _divided(path: str) -> tuple[str, str]:
    """Return the folder of a remote path, which may be the root, and the name in it."""
    above, slash, name = path.rpartition("/")
    return above or slash, name


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
        as for `nczarr_fsspec.place.Place.of`.

    Raises
    ------
    URLError
        If nothing can be written there: plain HTTP, file objects, classic and HDF5 files,
        caches and archives in a chain; or if `target` cannot be understood, or does not say
        whether it is one file or a tree.
    DatasetExistsError
        If a directory is to be written where a file is.
    StoreError
        If a local path cannot be looked at.
    ImportError
        If the package for this protocol is not installed.
    """
    if isinstance(target, (str, os.PathLike)):
        return _at(_named_place(os.fsdecode(target), storage_options, as_tree=True))
    shown = f"{type(target).__name__} object"
    if storage_options:
        raise URLError(shown, "storage_options apply to URLs and paths only; leave them out")
    if isinstance(target, WritableStore):
        return Destination("objects", target.url, store=target)
    if hasattr(target, "read") and hasattr(target, "seek"):
        raise URLError(shown, "a file object cannot hold a dataset; name a path or a URL")
    if hasattr(target, "fs") and hasattr(target.fs, "cat_file"):
        from nczarr_fsspec.transport.filesystems import describe

        fs, path = innermost(target.fs, path_below(target))
        # a mapper has keys, so this is a tree, whatever its name
        mode = _TREE if isinstance(target, Mapping) else _NO_MODE
        _refuse_readonly(fs, describe(fs, path))
        return _at(Place.in_filesystem(fs, path, mode))
    if isinstance(target, MutableMapping):
        return Destination("objects", "mapping", store=MappingWriter(target))
    raise URLError(
        shown,
        "is not a path, URL, mapper or mutable mapping that a dataset can be written to"
        + about_icechunk(target),
    )


def _at(place: Place) -> Destination:
    """Return a destination at a place."""
    fs, path, mode, shown = place.fs, place.path, place.mode, place.shown
    if fs is None:
        return _at_path(place)
    if says_file(path, mode):
        raise _ambiguous(shown, f"{shown}#mode=nczarr")
    if says_zip(path, mode):
        return Destination("zip", shown, place)
    from nczarr_fsspec.stores.write_fsspec import open_writer

    return Destination("objects", shown, place, open_writer(fs, path, shown, place.limits))


def _refuse_readonly(fs: AbstractFileSystem, shown: str) -> None:
    """Raise `URLError` for a filesystem in which nothing can be written."""
    from nczarr_fsspec.transport.filesystems import is_in_front, protocols

    if is_in_front(fs):
        raise URLError(shown, _IN_FRONT)
    if "https" in protocols(fs):
        raise URLError(shown, _PLAIN_HTTP)


def _at_path(place: Place) -> Destination:
    path, mode, shown = place.path, place.mode, place.shown
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
    place = replace(place, path=path)
    if is_zip:
        return Destination("zip", shown, place)
    if kind and not stat.S_ISDIR(kind):
        reason = "is a file, which a directory does not replace: choose another name, or one that"
        raise DatasetExistsError(shown, f"{reason} ends in .zip")
    store = DirectoryWriter(path, follow_symlinks=place.follow_symlinks)
    return Destination("directory", shown, place, store)


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
