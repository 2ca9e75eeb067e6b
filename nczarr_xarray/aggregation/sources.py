"""The datasets that sources name: files, folders, patterns, lists and catalogues."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import dirname
from posixpath import join as join_path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree as ET

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    URLError,
)
from nczarr_fsspec.place import Place
from nczarr_fsspec.places.names import from_home, names_url
from nczarr_fsspec.places.url import redact
from nczarr_xarray.formats.nczarr.documents import ICECHUNK
from nczarr_xarray.formats.nczarr.spellings import ROOT_FILES

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Source: TypeAlias = "str | os.PathLike[str]"

#: Names of objects, one of which is in each folder that is a dataset.
_ROOTS = frozenset({*ROOT_FILES, ".zmetadata"})
_OPEN_STORE = (
    "open a store, such as session.store, by xr.open_dataset(store, engine='nczarr'), and join it "
    "with others by xr.concat; or copy it by .nczarr.to_nczarr, and name the copy"
)
#: What makes a name a pattern. In a URL of HTTP, "?" begins a query.
_WILD, _WILD_IN_WEB = re.compile(r"[*?\[]"), re.compile(r"[*\[]")
#: Suffix of a text that lists sources, and of a catalogue of a THREDDS server.
_LIST, _CATALOGUE = ".txt", "/catalog.xml"
#: Catalogues that are followed below each other.
_DEEPEST = 8
#: Types of services of THREDDS whose URLs are those of files.
_SERVICES = ("HTTPServer", "HTTP")
_THREDDS = "{http://www.unidata.ucar.edu/namespaces/thredds/InvCatalog/v1.0}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def datasets_of(
    sources: Iterable[Source] | Source, storage_options: Mapping[str, Any] | None
) -> list[str]:
    """Find the datasets that sources name.

    Parameters
    ----------
    sources
        Each is

        - a path or URL of a dataset of any format, which is taken as it is;
        - a pattern: ``"s3://bucket/p/**/*.nc"``;
        - a folder, whose files are taken, and the trees in it, but nothing that is hidden: a local
          one, or a URL that ends with a slash;
        - a text that lists sources, one in each line, relative to itself: ``"files.txt"``;
        - a catalogue of a THREDDS server: ``"https://host/thredds/catalog/p/catalog.xml"``.

        A list or a catalogue that is remote names what is on its own host, or in its own bucket.
    storage_options
        Options of their filesystem (fsspec).

    Returns
    -------
    list of str
        Absolute paths and URLs.

    Raises
    ------
    URLError
        If there are none, or one has secrets in it, or no name.
    DatasetNotFoundError
        If nothing is where a source is.
    StoreError
        If a folder cannot be listed, or a list not read.
    AccessDeniedError
        If a remote list names something elsewhere.
    FormatError
        If a list names itself, or a catalogue is none.
    """
    return [one for _, found in found_in(sources, storage_options) for one in found]


def found_in(
    sources: Iterable[Source] | Source, storage_options: Mapping[str, Any] | None
) -> list[tuple[str, list[str]]]:
    """Find the datasets that each source names, as `datasets_of`; return them with its address."""
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]  # a text would be taken for one source a letter
    places = map(_absolute, sources)
    found = [(source, [*_datasets(source, storage_options)]) for source in places]
    if not any(files for _, files in found):
        raise URLError("sources", "there is no file to aggregate")
    return found


def _absolute(source: Source) -> str:
    """Return the absolute path of a source, or its URL."""
    if not isinstance(source, (str, os.PathLike)):
        reason = f"has no address; name paths and URLs, or {_OPEN_STORE}"
        raise URLError(f"{type(source).__name__} object", reason)
    text = os.fsdecode(source)
    if not names_url(text):
        return os.path.abspath(from_home(text))
    if redact(text) != text:
        reason = "holds secrets, which would be in the master; pass them as storage_options"
        raise URLError(redact(text), reason)
    return text


def _datasets(
    source: str, storage_options: Mapping[str, Any] | None, lists: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield the datasets that one source names, which is in some `lists`, each in the next one."""
    is_url = names_url(source)
    url, mark, fragment = source.partition("#") if is_url else (source, "", "")
    path = urlsplit(url).path if is_url else url
    begin = _begin_of_pattern(url, is_url=is_url)
    if begin is not None:
        folder = _Listed.of(url[:begin], storage_options)
        for name in folder.matching(url[begin:]):
            yield join_path(folder.url, name) + mark + fragment
    elif url.endswith("/") if is_url else os.path.isdir(url):
        folder = _Listed.of(url, storage_options)
        for name in folder.datasets():
            yield join_path(folder.url, name) + mark + fragment if name else source
    elif path.endswith(_LIST):
        listed = _Listed.of(url, storage_options)
        if url in lists:
            raise FormatError(listed.shown, "is a list that names itself")
        lines = listed.read().decode("utf-8", "surrogateescape").splitlines()
        for line in filter(None, map(str.strip, lines)):
            if not line.startswith("#"):
                yield from _datasets(_absolute(listed.link(line)), storage_options, (*lists, url))
    elif path.endswith(_CATALOGUE):
        catalogue = _Listed.of(url, storage_options)
        yield from (one + mark + fragment for one in _of_catalogue(catalogue, _DEEPEST))
    else:
        yield source


def _begin_of_pattern(url: str, *, is_url: bool) -> int | None:
    """Return where the first segment begins that is a pattern; None if there is none."""
    if not is_url and os.path.lexists(url):
        return None
    is_web = is_url and url.partition(":")[0] in ("http", "https")
    match = (_WILD_IN_WEB if is_web else _WILD).search(url)
    return None if match is None else url.rindex("/", 0, match.start()) + 1


@dataclass(frozen=True, slots=True)
class _Listed:
    """A folder, or a file that lists others.

    Parameters
    ----------
    url
        Its URL, or its path on this machine.
    fs, path
        Where that is.
    shown
        How messages name it.
    """

    url: str
    fs: AbstractFileSystem
    path: str
    shown: str

    @classmethod
    def of(cls, url: str, storage_options: Mapping[str, Any] | None) -> _Listed:
        """Find a folder, or a file; no request is sent."""
        place = Place.of(url, storage_options if names_url(url) else None)
        if place.fs is not None:
            place.fs.invalidate_cache()  # of listings, which would hide what is new
            return cls(url, place.fs, place.path, place.shown)
        from fsspec.implementations.local import LocalFileSystem

        return cls(url, LocalFileSystem(), place.path, place.shown)

    def matching(self, pattern: str) -> list[str]:
        """Return the names, relative to the folder, that a pattern matches."""
        path = f"{self.path.rstrip('/')}/{pattern}"
        found = self._names(self._asked(self.fs.glob, path))
        if "/." not in f"/{pattern}":
            found = [name for name in found if "/." not in f"/{name}"]
        if not found:
            raise DatasetNotFoundError(join_path(self.shown, pattern), "matches nothing")
        return found

    def datasets(self) -> list[str]:
        """Return the names of files and trees below the folder; "" if it is a tree itself."""
        found: list[str] = []
        walk = self.fs.walk(self.path.rstrip("/"))
        while (step := self._asked(next, walk, None)) is not None:
            path, folders, files = step
            if {*folders} >= ICECHUNK:
                reason = (
                    f"is a repository of Icechunk, whose sessions have no address; {_OPEN_STORE}"
                )
                raise FormatError(path, reason)
            if _ROOTS.intersection(files):
                found.append(path)
                folders.clear()  # what is in a tree is no dataset of its own
                continue
            for name in [name for name in folders if name.startswith(".")]:
                del folders[name]
            found += [f"{path}/{name}" for name in files if not name.startswith(".")]
        if not found:
            raise DatasetNotFoundError(self.shown, "is a folder without a dataset")
        return self._names(found)

    def read(self) -> bytes:
        """Return the content of the file."""
        data: bytes = self._asked(self.fs.cat_file, self.path)
        return data

    def link(self, where: str) -> str:
        """Return the path or URL of what the file names.

        If it is remote, that is on its own host, or in its own bucket: nobody chose others.
        """
        if not names_url(self.url):
            return where if names_url(where) else join_path(dirname(self.url), where)
        is_web = urlsplit(self.url).scheme in ("http", "https")
        if is_web or names_url(where):
            url = urljoin(self.url, where)
        else:  # of these, Python joins no URLs
            url = join_path(dirname(self.url), where.lstrip("/"))
        if urlsplit(url)[:2] != urlsplit(self.url)[:2]:
            reason = f"names {redact(url)}, which is elsewhere: name that as a source of its own"
            raise AccessDeniedError(self.shown, reason)
        return url

    def _names(self, paths: Iterable[str]) -> list[str]:
        top = self.path.rstrip("/")
        return sorted(path.removeprefix(top).strip("/") for path in paths)

    def _asked(self, ask: Callable[..., Any], *args: Any) -> Any:
        """Return what a function of the filesystem returns; its errors become ours."""
        from nczarr_fsspec.transport.filesystems import fail

        try:
            return ask(*args)
        except NCZarrError:
            raise
        except Exception as error:  # noqa: BLE001 - filesystems are foreign code
            fail(self.fs, self.path, error)


def _of_catalogue(catalogue: _Listed, deepest: int) -> Iterator[str]:
    """Yield the URLs of the files in a catalogue, and in those that it refers to."""
    try:
        root = ET.fromstring(catalogue.read())  # noqa: S314 - expat 2.4 bounds what entities make
    except ET.ParseError as error:
        raise FormatError(catalogue.shown, f"is no catalogue of THREDDS: {error}") from error
    services = root.iter(f"{_THREDDS}service")
    bases = [s.get("base", "") for s in services if s.get("serviceType") in _SERVICES]
    for dataset in root.iter(f"{_THREDDS}dataset"):
        path = dataset.get("urlPath")
        if path and bases:
            yield catalogue.link(bases[0] + path)
    for reference in root.iter(f"{_THREDDS}catalogRef"):
        if deepest and (where := reference.get(_LINK)):
            url = catalogue.link(where)
            yield from _of_catalogue(_Listed(url, catalogue.fs, url, redact(url)), deepest - 1)
