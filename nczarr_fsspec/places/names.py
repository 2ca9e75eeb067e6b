"""What a target is by its name, and what is at a local path."""

from __future__ import annotations

import os
import re
import stat
from typing import Any, NamedTuple
from urllib.parse import unquote

from nczarr_fsspec.local_files import OPEN_FLAGS
from nczarr_fsspec.places.url import (
    NetCDFURL,
    is_url,
    parse_url,
    redact,
    split_chain,
    without_brackets,
)

#: modes of what is not one classic or HDF5 file
TREES = frozenset({"nczarr", "zarr", "zip"})
#: ends of the names of what holds places in other files: references of kerchunk and Icechunk
_REFERENCES = (".json", ".parq", ".parquet", ".icechunk")
#: how archives begin
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_HDF5 = b"\x89HDF\r\n\x1a\n"
#: a URL that ends so names one file; others are asked for a tree first
_FILE_NAME = re.compile(r"\.(nc[34]?|nc4c|cdf|netcdf|h5|hdf5?|he5|json|nca)\Z", re.IGNORECASE)

#: how a URL begins of which pathlib made a path; one letter is a drive of Windows
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


def says_zip(path: str, mode: frozenset[str]) -> bool:
    """Tell whether a target is named as a zip archive."""
    return "zip" in mode or (path.lower().endswith(".zip") and "file" not in mode)


def says_file(path: str, mode: frozenset[str]) -> bool:
    """Tell whether a target is named as one classic or HDF5 file."""
    return not mode & TREES and ("bytes" in mode or _FILE_NAME.search(path) is not None)


def says_references(path: str) -> bool:
    """Tell whether a path is named as references to parts of other files."""
    return path.lower().rstrip("/").endswith(_REFERENCES)


def file_kind(start: bytes) -> str:
    """Return what a file is by its first bytes: ``classic``, ``HDF5``, or nothing of these."""
    return "classic" if start.startswith(_CLASSIC) else "HDF5" if start.startswith(_HDF5) else ""


def names_url(target: str) -> bool:
    """Tell whether a target is a URL. A path that exists is taken as it is, whatever it is like."""
    return is_url(without_brackets(target)) and not os.path.exists(target)


def meant_url(path: str, mark: str = "#") -> str:
    """Return what to do about a path that names nothing and is like a URL; "" for any other.

    Parameters
    ----------
    mark
        How a fragment begins.
    """
    start = _ONE_SLASH.match(path)
    if start and not os.path.exists(start[0]):
        return "a URL has two slashes, and pathlib.Path takes one away: give the URL as text"
    if mark in path:
        return f"only a URL has a fragment: write file://{os.path.abspath(from_home(path))}"
    return ""


def about_icechunk(target: object) -> str:
    """Return what to do with an object of Icechunk that is no store; "" for any other."""
    if type(target).__module__.partition(".")[0] != "icechunk":
        return ""
    return (
        ": to read, give the store of a session (session.store); Icechunk holds Zarr 3 only, so "
        "write with to_icechunk of icechunk.xarray, or to_zarr(session.store)"
    )


def from_home(path: str) -> str:
    """Return a local path with its ``~`` expanded, unless something is there by that name."""
    known = not path.startswith("~") or os.path.exists(path)
    return path if known else os.path.expanduser(path)


def path_below(target: Any) -> str:
    """Return the path that an object names in its filesystem ``fs``.

    A mapper has it as its ``root``. That of a path, as universal_pathlib has them, is none of it.
    """
    return str(getattr(target, "path", None) or getattr(target, "root", ""))


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


def local_path(url: NetCDFURL) -> str:
    """Return the path of a ``file`` URL: as it stands, or percent-decoded if only that exists."""
    decoded = unquote(url.path)
    return url.path if os.path.exists(url.path) or not os.path.exists(decoded) else decoded


def is_within(inner: str, outer: str) -> bool:
    """Tell whether a path or URL names something in what another one names, and not that itself."""
    return _place(inner).startswith(f"{_place(outer)}/")


def _place(target: str) -> str:
    local = LocalFile.of(target)
    if local is not None:
        return local.path.rstrip(os.sep).replace(os.sep, "/")
    url = parse_url(target)
    return f"{url.target_protocol}:{url.endpoint or ''}/{url.path.strip('/')}"


class LocalFile(NamedTuple):
    """A file or directory of this machine, which links and URLs give several names.

    Attributes
    ----------
    identity
        What tells it from all others; None if nothing is there (yet).
    path
        Where it is, symbolic links followed.
    """

    identity: tuple[int, int] | None
    path: str

    @classmethod
    def of(cls, target: str) -> LocalFile | None:
        """Look at a path or a URL; None if it is remote."""
        target = without_brackets(target)
        if is_url(target):
            if not target.startswith("file:"):
                return None
            target = local_path(parse_url(target))
        try:
            status = os.stat(target)
        except OSError:
            return cls(None, os.path.realpath(target))
        return cls((status.st_dev, status.st_ino), os.path.realpath(target))

    def is_same(self, other: LocalFile) -> bool:
        """Tell whether both are one, which need not be there."""
        same = self.identity is not None and self.identity == other.identity
        return same or self.path == other.path

    def holds(self, other: LocalFile | None) -> bool:
        """Tell whether another one is there, and is this or in it: a group of a tree."""
        if other is None or other.identity is None:
            return False
        return self.is_same(other) or other.path.startswith(f"{self.path}{os.sep}")


_DODS = re.compile(r"(?P<root>https?://[^?#]*?)/(?:dodsC|dap4)/(?P<path>[^?#]+)", re.IGNORECASE)
_CATALOG = re.compile(r"https?://[^?#]*/catalog(?:\.html|\.xml|/)", re.IGNORECASE)
_OPENDAP = re.compile(r"https?://[^?#]*(?:opendap|/dap/|/hyrax/)", re.IGNORECASE)
#: what a request by OPeNDAP ends in, behind the name of the file
_ANSWERS = re.compile(
    r"\.(?:dods|dds|das|ascii|asc|html|info|ver|dmr|dap)(?:\.xml)?$", re.IGNORECASE
)


def hint(target: object) -> str:
    """Return what to open in place of `target`, which could not be; empty if that is not known."""
    if not isinstance(target, str) or not is_url(target):
        return ""
    place, _, fragment = target.partition("#")
    chain, link = split_chain(place)
    if (dods := _DODS.match(link)) is not None:
        path = _ANSWERS.sub("", dods["path"])
        mode = f"#{fragment}" if fragment else ""
        there = redact(f"{chain}{dods['root']}/fileServer/{path}{mode}")
        return (
            "this is how a THREDDS server names it for OPeNDAP; the file itself, if there is one, "
            f"is read from {there}, and OPeNDAP by engine='netcdf4'"
        )
    if _CATALOG.match(link) is not None:
        return (
            "this may be a catalogue of a THREDDS server: open one of its datasets, by the URL "
            "that its page has for HTTPServer (…/fileServer/…)"
        )
    if _OPENDAP.match(link) is not None:
        return "this may be a server of OPeNDAP, which engine='netcdf4' reads"
    return ""
