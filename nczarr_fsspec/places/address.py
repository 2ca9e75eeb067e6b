"""Addresses taken apart: where something is, and what is beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

from nczarr_fsspec.errors import AccessDeniedError, URLError
from nczarr_fsspec.places.s3netcdf4 import Configuration, located
from nczarr_fsspec.places.url import (
    CONTROL,
    MODES,
    NetCDFURL,
    is_url,
    parse_url,
    redact,
    split_chain,
)

#: schemes of the URLs of servers
SERVERS = frozenset({"http", "https", "s3", "gs3", "gs", "gcs", "az", "abfs"})

#: those whose URLs name a path and no host: the server is one of the options
HOSTLESS = frozenset({"webdav", "dav", "memory"})

#: how often a segment is decoded at most to see what it is
_MOST_ENCODED = 6
_AMBIGUOUS = "has '..' where servers may read it differently"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
#: DAP is spoken over HTTP; netCDF-C has these names for it
_DAP = {"dods": "http", "dap4": "https"}
_DAP_MODES = frozenset({"dap2", "dap4"})
_S3 = frozenset({"s3", "s3a", "gs3"})

_FILE = re.compile(r"(?i)file:")
_SCHEME = re.compile(r"(?i)([a-z][a-z0-9+.\-]+)://([^/?#]*)")
_HOST = re.compile(r"(?i)(?:\[[0-9a-f:.]+\]|[\w.\-]+)(?::[0-9]+)?")
_PORT = re.compile(r":\d*\Z")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True)
class Address:
    """Where something is, as an address in a dataset or a user says; nothing is opened.

    Attributes
    ----------
    scheme : str
        ``"file"``, ``"https"``, ``"s3"``, ...; ``""`` inside of a chain.
    text : str
        What is opened: a URL, or an absolute local path.
    service : str
        Of HTTP, ``host:port``; of S3 the endpoint, ``""`` if it is not named.
    host : str
        Of the service, without port; ``""`` if it is not named.
    bucket : str
        Of S3; else ``""``.
    raw, segments : tuple of str
        The path or key without ``.`` and ``..``: as in `text`, and percent-decoded.
    chain : str
        Links of fsspec before the last one; all of `text` if these have paths of their own.
    stem, fragment : str
        What all URLs of this service or bucket have before the path, and at the end.
    """

    scheme: str
    text: str = field(default="", repr=False)
    service: str = field(default="", repr=False)
    host: str = ""
    bucket: str = ""
    raw: tuple[str, ...] = field(default=(), repr=False)
    segments: tuple[str, ...] = ()
    chain: str = field(default="", repr=False)
    stem: str = field(default="", repr=False)
    fragment: str = field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return self.scheme == "file"

    @property
    def names_service(self) -> bool:
        """Whether it is in S3 at an endpoint that it names itself, not by an alias or Amazon's."""
        return bool(self.bucket and self.host) and not self.host.endswith(_AMAZON)

    @property
    def spellings(self) -> tuple[str, ...]:
        """How a caller may name it."""
        return (self.text, f"file://{self.text}") if self.is_local else (self.text,)

    @property
    def suggestion(self) -> str:
        """The prefix by which a caller may allow it."""
        return (
            f"{_folder(self.text).rstrip(os.sep)}{os.sep}"
            if self.is_local
            else redact(f"{self.stem}/")
        )

    def same_service(self, other: Address) -> bool:
        """Tell whether both are of one service, and of one bucket if there are buckets."""
        here = self.scheme, self.service, self.bucket
        return here == (other.scheme, other.service, other.bucket)

    def holds(self, other: Address) -> bool:
        """Tell whether `other` is this place or below it."""
        path = other.segments
        if other.bucket and not self.bucket and other.service == f"{self.scheme}://{self.service}":
            path = other.bucket, *path
        elif not self.same_service(other):
            return False
        return not other.chain and path[: len(self.segments)] == self.segments

    def is_beside(self, file: Address) -> bool:
        """Tell whether a local path is in the folder of `file`, symbolic links followed."""
        folder = os.path.realpath(_folder(file.text)).rstrip(os.sep)
        return os.path.realpath(self.text).startswith(f"{folder}{os.sep}")

    def beside(self, relative: str, shown: str) -> Address:
        """Return what a relative address names beside the file or tree that is here.

        Raises
        ------
        URLError
            If it cannot be understood.
        AccessDeniedError
            If it leads out of the bucket or the server.
        """
        if not self.scheme:
            raise URLError(shown, "is relative, and the dataset is inside of a chain of URLs")
        if self.is_local:
            return _local(_existing(_folder(self.text), relative))
        if "\\" in relative:
            raise URLError(shown, "has a backslash, which no URL has")
        relative, modes = split_modes(relative)
        query = ""
        if self.scheme in _DEFAULT_PORTS:
            relative, mark, query = relative.partition("?")
            relative = _STRAY_PERCENT.sub("%25", relative).replace("#", "%23")
            query = (mark + query).replace("#", "%23")
        else:
            relative = _decoded(relative, shown)
        return self.at([*self.raw[:-1], *relative.split("/")], shown, query, modes)

    def at(self, raw: Iterable[str], shown: str, query: str = "", modes: str = "") -> Address:
        """Return what is at another path of this service or bucket; errors as `beside`."""
        raw = _normal(raw, shown)
        path = "/".join(raw)
        if "::" in path or "::" in query:
            raise URLError(shown, "has '::', which fsspec takes for a chain of URLs")
        segments = raw
        if self.scheme in _DEFAULT_PORTS:
            segments = tuple(map(unquote, raw))
        elif self.stem.startswith("http"):
            path = quote(path, errors="surrogatepass")
        elif "#" in path or (self.bucket and "?" in path):
            raise URLError(shown, "has '#' or '?' in a key, and a URL without a server has neither")
        words = [*filter(None, (self.fragment, modes and f"mode={modes}"))]
        text = f"{self.chain}{self.stem}/{path}{query}{'#' if words else ''}{'&'.join(words)}"
        return replace(self, text=text, raw=raw, segments=segments)


def is_absolute(text: str) -> bool:
    """Tell whether an address stands for itself: a URL, or a path from the root."""
    url = text.startswith(("/", "\\\\")) or is_url(text) or _FILE.match(text) is not None
    return url or Path(text).is_absolute()


def parse_address(text: str, aliases: Configuration = None) -> Address:
    """Take apart what the caller names: a URL with all that it may say, or an absolute path.

    Parameters
    ----------
    aliases
        See `nczarr_fsspec.places.s3netcdf4.configuration`.

    Raises
    ------
    URLError
        If it cannot be understood.
    """
    if not is_url(text):
        return _local(text)
    chain, link = split_chain(text)
    if chain and ("/" in chain or not is_url(link)):
        return Address("", text, chain=text)
    if _FILE.match(link):
        return replace(_local(_existing("", parse_url(link).path)), chain=chain)
    return replace(_served(link, redact(text), aliases), chain=chain, text=text)


def locate(
    address: str, master: Address | None, shown: str, aliases: Configuration = None
) -> Address:
    """Find out what an address in a master names; looks for local files, and for aliases.

    Parameters
    ----------
    shown
        How messages name the address.
    aliases
        See `nczarr_fsspec.places.s3netcdf4.configuration`.

    Raises
    ------
    URLError
        If it cannot be understood.
    AccessDeniedError
        If it leads out of the bucket or the server.
    """
    if not address.strip() or CONTROL.search(address):
        raise URLError(shown, "is empty or has control characters")
    if not is_absolute(address):
        if master is None:
            raise URLError(shown, "is relative, and the dataset has no name that it is relative to")
        return master.beside(address, shown)
    if _FILE.match(address):
        return _local(_file_path(address, shown))
    if address.startswith("//") and master is not None and master.scheme in _DEFAULT_PORTS:
        address = f"{master.scheme}:{address}"
    if not is_url(address):
        return _local(address)
    if split_chain(address)[0]:
        return Address("", address, chain=address)
    _check(address, shown)
    place = _served(address, shown, aliases)
    if master is not None and (master.scheme, master.bucket) == (place.scheme, place.bucket):
        # an S3 URL need not say which service has the bucket; the master does
        if place.bucket and place.service in ("", master.service):
            return master.at(place.raw, shown, modes=split_modes(address)[1])
        if place.service == master.service and master.chain:
            return replace(place, chain=master.chain, text=f"{master.chain}{address}")
    return place


def split_modes(text: str) -> tuple[str, str]:
    """Cut off a fragment that consists of modes, and return these (``"zarr,file"``).

    Those of S3 are left out: what a place is, is said by its URL.
    """
    location, _, fragment = text.partition("#")
    words = re.split(r"[,&]", fragment.lower().replace("mode=", ""))
    if not fragment or not set(words) <= MODES | _DAP_MODES:
        return text, ""
    return location, ",".join(word for word in words if word not in _S3)


def _folder(path: str) -> str:
    return path.rpartition(os.sep)[0] or os.sep


def _local(path: str) -> Address:
    path = os.path.abspath(path)
    if os.name != "nt":  # where two slashes mean nothing
        path = f"/{path.lstrip('/')}"
    normal = os.path.normcase(path).replace(os.sep, "/")
    server = normal.split("/")[2] if normal.startswith("//") else ""
    segments = tuple(filter(None, normal.split("/")))
    return Address("file", path, service=server, host=server, raw=segments, segments=segments)


def _file_path(text: str, shown: str) -> str:
    """Return the path of a ``file:`` URL in a dataset."""
    path = _FILE.sub("", text, count=1)
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise URLError(shown, "names a host in a file URL; write file:///absolute/path")
        path = f"/{path}"
    if not path.startswith("/"):
        raise URLError(shown, "is no absolute path; write file:///absolute/path")
    return _existing("", path[1:] if re.match(r"/[A-Za-z]:", path) else path)


def _existing(folder: str, address: str) -> str:
    """Return a path as it stands, or without modes and percent-decoded if it is not there."""
    first = os.path.join(folder, address)
    if ("%" not in address and "#" not in address) or os.path.lexists(first):
        return first
    plain = unquote(split_modes(address)[0], errors="surrogateescape")
    other = os.path.join(folder, plain)
    return first if "\0" in other else other


def _served(text: str, shown: str, aliases: Configuration) -> Address:
    """Take apart a URL with a scheme that is not ``file``."""
    match = _SCHEME.match(text)
    if match is None:
        raise URLError(shown, "is not a URL (scheme://...)")
    scheme, netloc = match[1].lower(), match[2]
    location, _, fragment = text.partition("#")
    spoken = _DAP.get(scheme, scheme)
    if spoken not in _S3 and spoken not in _DEFAULT_PORTS:
        host = _PORT.sub("", netloc.rpartition("@")[2])
        place, path = Address(scheme, service=netloc, host=host, stem=match[0]), match.end()
        if scheme in HOSTLESS:
            place, path = Address(scheme, stem=f"{match[1]}:/"), match.start(2)
        return replace(place.at(_split(location[path:]), shown), text=text)
    if spoken != scheme or not _DAP_MODES.isdisjoint(split_modes(text)[1].split(",")):
        fragment = ""  # which is not for `parse_url`
    url = parse_url(f"{spoken}{location[len(scheme) :]}" + (f"#{fragment}" if fragment else ""))
    if url.bucket is not None:
        return _in_bucket(url, shown, aliases)
    netloc = netloc.rpartition("@")[2]
    service = netloc.lower().removesuffix(_DEFAULT_PORTS[spoken])
    place = Address(
        spoken, service=service, host=_PORT.sub("", service), stem=f"{match[1]}://{netloc}"
    )
    return replace(place.at(_split(url.path), shown), text=text)


def _in_bucket(named: NetCDFURL, shown: str, aliases: Configuration) -> Address:
    url, _ = located(named, aliases)
    scheme, bucket, service = url.target_protocol, url.bucket or "", url.endpoint or ""
    words = [f"mode={scheme}"] if named.endpoint else []
    options = (name for name in ("aws.profile", "aws.region") if url.options.get(name))
    words += [f"{name}={quote(url.options[name])}" for name in options]
    alias = f"{named.bucket}/" if url is not named else ""
    place = Address(
        scheme,
        service=service,
        host=_PORT.sub("", (named.endpoint or "").partition("://")[2]),
        bucket=bucket,
        stem=f"{named.endpoint or f'{scheme}:/'}/{alias}{bucket}",
        fragment="&".join(words),
    )
    return place.at(_split(url.key), shown)


def _check(address: str, shown: str) -> None:
    """Raise `URLError` for what a URL in a dataset may not say, or may say only to deceive."""
    match = _SCHEME.match(address)
    netloc = match[2] if match else ""
    if "@" in netloc:
        raise URLError(
            shown, "has a user or a password; give these with allow={prefix: storage_options}"
        )
    if "\\" in address or (netloc and not _HOST.fullmatch(netloc)):
        raise URLError(shown, "has no valid host[:port], or a backslash")
    if match and "::" in address[match.end() :]:
        raise URLError(shown, "has '::', which fsspec takes for a chain of URLs")
    if "#" in address and split_modes(address)[0] == address:
        raise URLError(shown, "says more in its fragment than modes (#mode=...)")


def _decoded(relative: str, shown: str) -> str:
    try:
        decoded = unquote(relative, errors="strict")
    except UnicodeDecodeError:
        raise URLError(shown, "is percent-encoded, but not as UTF-8") from None
    if CONTROL.search(decoded):
        raise URLError(shown, "has control characters")
    return decoded


def _split(path: str) -> list[str]:
    path = path.strip("/")
    return path.split("/") if path else []


def _normal(segments: Iterable[str], shown: str) -> tuple[str, ...]:
    """Resolve ``.`` and ``..``, however they are encoded."""
    found: list[str] = []
    for segment in segments:
        plain = segment
        for _ in range(_MOST_ENCODED):
            decoded = unquote(plain)
            if decoded == plain:
                break
            plain = decoded
        else:
            raise URLError(shown, f"is percent-encoded more than {_MOST_ENCODED - 1} times")
        if plain == ".":
            continue
        if plain == "..":
            if not found:
                raise AccessDeniedError(shown, "leads out of the bucket or the server")
            if not found.pop():  # many servers leave out empty segments first
                raise AccessDeniedError(shown, _AMBIGUOUS)
        elif ".." in (part.partition(";")[0] for part in re.split(r"[/\\]", plain)):
            raise AccessDeniedError(shown, _AMBIGUOUS)
        else:
            found.append(segment)
    return tuple(found)
