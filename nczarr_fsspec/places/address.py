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
from nczarr_fsspec.places.url import CONTROL, MODES, is_url, parse_url, redact, split_chain

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
_FILE_PATH = re.compile(r"(?i)file:(?://(?:localhost)?(?=/)|(?!//))(/.*)")
_SCHEME = re.compile(r"(?i)([a-z][a-z0-9+.\-]+)://([^/?#]*)")
_PLAIN = re.compile(
    r"(?i)[a-z][a-z0-9+.\-]+://(?:(?:\[[0-9a-f:.]+\]|[\w.\-]+)(?::[0-9]+)?)?"
    r"(?:[/?](?:(?!::)[^#\\])*)?(?:#.*)?"
)
_PORT = re.compile(r":\d*\Z")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where something is, as an address in a dataset or a user says; nothing is opened.

    Attributes
    ----------
    root : tuple of str
        What one server or bucket has in common. The protocol, after the links of a chain; the
        server, ``host:port`` (of S3 its endpoint, ``""`` if it is not named); of S3 the bucket.
        Of a chain whose links have paths of their own, all of it.
    path : tuple of str
        Segments of the path or key without ``.`` and ``..``, percent-decoded.
    text : str
        What is opened: a URL, or an absolute local path.
    host : str
        Of the server, without port; ``""`` if it is not named.
    raw : tuple of str
        The segments as they are in `text`.
    stem, fragment : str
        What all URLs of this root have before the path, and at the end.
    """

    root: tuple[str, ...]
    path: tuple[str, ...] = ()
    text: str = field(default="", repr=False)
    host: str = ""
    raw: tuple[str, ...] = field(default=(), repr=False)
    stem: str = field(default="", repr=False)
    fragment: str = field(default="", repr=False)

    @property
    def chain(self) -> str:
        """Links of fsspec before the last one."""
        before, links, _ = self.root[0].rpartition("::")
        return before + links

    @property
    def scheme(self) -> str:
        """Of the last link; ``""`` if those before it have paths of their own."""
        return self.root[0].rpartition("::")[2]

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return self.scheme == "file"

    @property
    def bucket(self) -> str:
        """Of S3; else ``""``."""
        return self.root[2] if len(self.root) > 2 else ""

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Root and path; of an object of S3 also as what is below the URL of its service."""
        own = *self.root, *self.path
        if not self.bucket or self.chain:
            return (own,)
        return own, (*self.root[1].split("://"), *own[2:])

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
            return _local(_existing(os.path.dirname(self.text), relative))
        if "\\" in relative:
            raise URLError(shown, "has a backslash, which no URL has")
        relative, modes = split_modes(relative)
        query = ""
        if self.scheme in _DEFAULT_PORTS:
            relative, mark, query = relative.partition("?")
            relative = _STRAY_PERCENT.sub("%25", relative).replace("#", "%23")
            query = (mark + query).replace("#", "%23")
        else:
            try:
                relative = unquote(relative, errors="strict")
            except UnicodeDecodeError:
                raise URLError(shown, "is percent-encoded, but not as UTF-8") from None
            if CONTROL.search(relative):
                raise URLError(shown, "has control characters")
        return self.at([*self.raw[:-1], *relative.split("/")], shown, query, modes)

    def at(self, raw: Iterable[str], shown: str, query: str = "", modes: str = "") -> Address:
        """Return what is at another path of this server or bucket; errors as `beside`."""
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
        return replace(self, text=text, raw=raw, path=segments)

    def after(self, chain: str, text: str) -> Address:
        """Return the same place behind links of a chain."""
        return replace(self, root=(f"{chain}{self.root[0]}", *self.root[1:]), text=text)


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
        return Address((f"{text}::",), text=text)
    if _FILE.match(link):
        place = _local(_existing("", parse_url(link).path))
        return place.after(chain, place.text)
    return _served(link, redact(text), aliases).after(chain, text)


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
        path = _FILE_PATH.fullmatch(address)
        if path is None:
            raise URLError(shown, "names a host or no absolute path; write file:///absolute/path")
        return _local(_existing("", re.sub(r"\A/(?=[A-Za-z]:)", "", path[1])))
    if address.startswith("//") and master is not None and master.scheme in _DEFAULT_PORTS:
        address = f"{master.scheme}:{address}"
    if not is_url(address):
        return _local(address)
    if split_chain(address)[0]:
        return Address((f"{address}::",), text=address)
    words = split_modes(address)[0] == address and "#" in address
    if words or _PLAIN.fullmatch(address) is None:  # the rest may be there only to deceive
        reason = "is not scheme://host[:port]/path, with modes at most behind '#'"
        advice = "give a user or a password with allow={prefix: storage_options}"
        raise URLError(shown, f"{reason}; {advice}")
    place = _served(address, shown, aliases)
    if master is None:
        return place
    # an S3 URL need not say which service has the bucket; the master does
    own = master.root[0].removeprefix(master.chain), *master.root[1:]
    if place.bucket and place.root in (own, (own[0], "", *own[2:])):
        return master.at(place.raw, shown, modes=split_modes(address)[1])
    return place.after(master.chain, master.chain + address) if place.root == own else place


def split_modes(text: str) -> tuple[str, str]:
    """Cut off a fragment that consists of modes, and return these (``"zarr,file"``).

    Those of S3 are left out: what a place is, is said by its URL.
    """
    location, _, fragment = text.partition("#")
    words = re.split(r"[,&]", fragment.lower().replace("mode=", ""))
    if not fragment or not set(words) <= MODES | _DAP_MODES:
        return text, ""
    return location, ",".join(word for word in words if word not in _S3)


def _local(path: str) -> Address:
    path = os.path.abspath(path)
    if os.name != "nt":  # where two slashes mean nothing
        path = f"/{path.lstrip('/')}"
    normal = os.path.normcase(path).replace(os.sep, "/")
    server = normal.split("/")[2] if normal.startswith("//") else ""
    segments = tuple(filter(None, normal.split("/")))
    return Address(("file", server), segments, path, server)


def _existing(folder: str, address: str) -> str:
    """Return a path as it stands, or without modes and percent-decoded if it is not there."""
    first = os.path.join(folder, address)
    if ("%" not in address and "#" not in address) or os.path.lexists(first):
        return first
    plain = unquote(split_modes(address)[0], errors="surrogateescape")
    return first if "\0" in plain else os.path.join(folder, plain)


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
        place, path = Address((scheme, netloc), host=host, stem=match[0]), location[match.end() :]
        if scheme in HOSTLESS:
            place, path = Address((scheme, ""), stem=f"{match[1]}:/"), location[match.start(2) :]
        return replace(place.at(_split(path), shown), text=text)
    if spoken != scheme or not _DAP_MODES.isdisjoint(split_modes(text)[1].split(",")):
        fragment = ""  # which is not for `parse_url`
    named = parse_url(f"{spoken}{location[len(scheme) :]}" + (f"#{fragment}" if fragment else ""))
    if named.bucket is None:
        netloc = netloc.rpartition("@")[2]
        server = netloc.lower().removesuffix(_DEFAULT_PORTS[spoken])
        host, stem = _PORT.sub("", server), f"{match[1]}://{netloc}"
        place = Address((spoken, server), host=host, stem=stem)
        return replace(place.at(_split(named.path), shown), text=text)
    url, _ = located(named, aliases)
    scheme, bucket = url.target_protocol, url.bucket or ""
    words = [f"mode={scheme}"] if named.endpoint else []
    options = (name for name in ("aws.profile", "aws.region") if url.options.get(name))
    words += [f"{name}={quote(url.options[name])}" for name in options]
    alias = f"{named.bucket}/" if url is not named else ""
    place = Address(
        (scheme, url.endpoint or "", bucket),
        host=_PORT.sub("", (named.endpoint or "").partition("://")[2]),
        stem=f"{named.endpoint or f'{scheme}:/'}/{alias}{bucket}",
        fragment="&".join(words),
    )
    return place.at(_split(url.key), shown)


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
