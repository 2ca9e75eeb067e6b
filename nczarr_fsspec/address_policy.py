"""Which places the addresses in a dataset may name, if it consists of others.

Such a dataset, the *master*, is an aggregation or a set of references. Its addresses were written
by someone else. What they may name depends on where the master is:

- a remote master names its own host (same scheme, host and port), or its own bucket of its own
  service. If its server has redirected to another place, it also names what is in the folder there,
  unless that is on a host of a local network, to which the caller has not gone himself;
- a local master names files of this machine, and servers of HTTP, S3 and the like. It may not name
  the metadata services of clouds, which hand out credentials. If the caller gives ``allow=``, it
  names only files in its own folder.

``allow=`` adds places, each with everything below it. So does ``replace=``, with its new places.
The storage options of the master, credentials included, are used for its own place only. Other
places have the options that ``allow=`` gives them.

Names of hosts are not looked up: a name in the public internet may lead to a private address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from nczarr_fsspec.errors import AccessDeniedError, URLError
from nczarr_fsspec.place import innermost
from nczarr_fsspec.places.address import SERVERS, Address, is_absolute, locate, parse_address
from nczarr_fsspec.places.hosts import is_metadata_service, is_private
from nczarr_fsspec.places.names import from_home, names_url, path_below
from nczarr_fsspec.places.rc import load_rc
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, Configuration, configuration
from nczarr_fsspec.places.url import is_url, parse_url, redact, split_chain
from nczarr_fsspec.ranges.whole_files import REMOTE_OPTIONS
from nczarr_fsspec.stores.directory import FOLLOW_OPTION
from nczarr_fsspec.transport.policy import (
    ADDRESSED_OPTION,
    REDIRECTS_OPTION,
)

_Prefix: TypeAlias = "str | os.PathLike[str]"
#: Prefixes; with storage options for what is below each; or whether everything is allowed.
Allow: TypeAlias = (
    "bool | _Prefix | Iterable[_Prefix] | Mapping[str, Mapping[str, Any] | None] | None"
)

_SCHEME_ONLY = re.compile(r"(?i)([a-z][a-z0-9+.\-]+)(?::/*)")
_ALIAS_ONLY = re.compile(r"s3://([^/]+)/?")


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A prefix of what may be opened: a place, or all hosts of a scheme."""

    scheme: str
    place: Address | None = None
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    private: bool = False

    @classmethod
    def parse(
        cls,
        prefix: object,
        aliases: Configuration,
        options: Mapping[str, Any] | None = None,
    ) -> _Allowed:
        if not isinstance(prefix, (str, os.PathLike)) or not os.fsdecode(prefix).strip():
            raise URLError(
                "allow", f"{prefix!r} is not a prefix; give a list of URLs and paths, or True"
            )
        text = os.fsdecode(prefix)
        match = _SCHEME_ONLY.fullmatch(text)
        if match:
            scheme = match[1].lower()
            return cls(scheme, Address("file") if scheme == "file" else None, options)
        if alias := _ALIAS_ONLY.fullmatch(text):
            host = configuration(aliases).hosts.get(alias[1])
            text = text if host is None else host.endpoint
        place = parse_address(text if is_absolute(text) else os.path.abspath(text), aliases)
        if place.chain:
            raise URLError(
                "allow", f"{redact(text)!r} is a chain of URLs; only allow=True allows these"
            )
        return cls(place.scheme, place, options)

    def covers(self, place: Address) -> bool:
        if self.place is not None:
            return self.place.holds(place)
        if place.scheme != self.scheme or place.chain:
            return False
        if not place.host:
            return True
        return not (is_metadata_service if self.private else is_private)(place.host)

    @property
    def origin(self) -> str:
        """What HTTP may redirect to; ``""`` if it is about something else."""
        if self.scheme not in ("http", "https"):
            return ""
        return f"{self.scheme}://{self.place.service if self.place else ''}"

    @property
    def length(self) -> int:
        return 0 if self.place is None else 1 + len(self.place.segments)


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which places the addresses in a master name, and which of them may be opened.

    Picklable; made by `of`.

    Attributes
    ----------
    shown : str
        The master, for messages.
    """

    shown: str
    _master: Address | None = field(repr=False)
    _replace: tuple[tuple[str, str], ...]
    _allowed: tuple[_Allowed, ...] | None
    _options: Mapping[str, Any] = field(repr=False)
    _aliases: Configuration = field(repr=False)
    _trusting: bool = False
    _led: str = ""

    @classmethod
    def of(
        cls,
        master: object,
        *,
        replace: Mapping[str, str] | None = None,
        allow: Allow = None,
        storage_options: Mapping[str, Any] | None = None,
        led: str = "",
    ) -> AddressPolicy:
        """Make the policy for one master.

        Parameters
        ----------
        master
            What the caller opens (`nczarr_fsspec.place.Place.of`), with the fragment and the
            secrets of a URL. In one without a name, such as a mapping, no address may be
            relative, and none is allowed but by `allow`.
        replace
            What moved, by where it was: prefixes of whole segments, of addresses as they are
            stated or as they are resolved. The longest counts.
        allow
            Prefixes of what may be named besides what the module says: ``"https://host/folder/"``,
            ``"s3://bucket"``, ``"/folder"``; ``"https://"`` for all hosts that are not private.
            True for everything. As a mapping, with the storage options for each.
        storage_options
            Of the master.
        led
            The URL to which the server of the master has redirected, as it may for what is beside
            it.

        Raises
        ------
        URLError
            If one of these cannot be understood.
        """
        text, given = _named(master)
        options = {**given, **(storage_options or {})}
        aliases = options.get(CONFIG_OPTION)
        place = None if text is None else parse_address(text, aliases)
        local = place is not None and place.is_local
        moved: dict[str, str] = {}
        if not isinstance(replace or {}, Mapping):
            raise URLError("replace", f"{replace!r} is not a mapping, {{old: new}}")
        for old, new in (replace or {}).items():
            if not old:
                raise URLError("replace", "an empty prefix is that of everything; name a folder")
            moved[os.fsdecode(old)] = os.fsdecode(new)
        return cls(
            f"{type(master).__name__} object" if text is None else _shown(text),
            place,
            tuple(sorted(moved.items(), key=lambda pair: -len(pair[0]))),
            _allowed(allow, moved.values(), aliases, local=local),
            _own_options(text, place, options),
            aliases,
            local and allow is None,
            led,
        )

    def resolve(self, address: str) -> str:
        """Return what to open for an address: a URL without secrets, or an absolute local path.

        Raises
        ------
        URLError
            If the address cannot be understood.
        AccessDeniedError
            If the master may not name it; says how to allow it.
        """
        shown = f"{self.shown}: address {redact(address)!r}"
        moved = _moved(address, self._replace)
        place = locate(address if moved is None else moved, self._master, shown, self._aliases)
        for spelling in place.spellings if self._replace and moved is None else ():
            if (moved := _moved(spelling, self._replace)) is not None:
                place = locate(moved, self._master, shown, self._aliases)
                break
        # what is looked at is the text that will be opened, whatever was thought of its parts
        plain = place.is_local and not is_url(place.text)
        opened = place if plain else parse_address(place.text, self._aliases)
        if (refused := self._refusal(opened)) is not None:
            raise AccessDeniedError(shown, refused)
        return place.text

    @property
    def allows_local(self) -> bool:
        """Whether an address may name any file of this machine, and names it as it stands."""
        everywhere = Address("file")
        files = self._allowed is None or any(e.place == everywhere for e in self._allowed)
        return files and not self._replace

    def is_even_below(self, folder: str) -> bool:
        """Tell whether what holds for one file of a folder holds for each of its files.

        Parameters
        ----------
        folder
            The URL of a file in it, as `resolve` has returned it.
        """
        if self._replace or any(entry.path for entry in load_rc()):
            return False
        place = parse_address(folder, self._aliases)
        named = [entry.place for entry in self._allowed or () if entry.place is not None]
        return not place.chain and all(len(n.segments) < len(place.segments) for n in named)

    def options(self, target: str) -> dict[str, Any]:
        """Return the storage options with which to open what `resolve` has returned.

        They say, too, where its server may redirect to: its own host, and what is allowed.
        """
        place = parse_address(target, self._aliases)
        options, named = self._given(place)
        chain, link = split_chain(target) if place.chain else ("", target)
        end = parse_address(link, self._aliases) if chain else place
        said = self._said(end, named=named) if _is_read_here(chain) or end.bucket else {}
        if chain and said:  # what is for the end of a chain stands below its protocol
            return {**options, end.scheme: {**(options.get(end.scheme) or {}), **said}}
        return {**options, **said}

    def _given(self, place: Address) -> tuple[dict[str, Any], bool]:
        """Return the options for a place, and whether the caller has named it."""
        covering = [a for a in self._allowed or () if a.options is not None and a.covers(place)]
        if covering:
            best = max(covering, key=lambda a: a.length)
            options = dict(best.options or {})
            # keys of S3 that are given for all services sign requests, and are sent to none
            return options, best.place is not None or bool(place.bucket and options)
        own: Mapping[str, Any] = self._options
        if place.is_local:
            follow = self._is_own(place) and own.get(FOLLOW_OPTION)
            return {FOLLOW_OPTION: follow} if follow else {}, False
        if self._is_own(place):
            return dict(own), True
        return {name: own[name] for name in REMOTE_OPTIONS if name in own}, False

    def _said(self, place: Address, *, named: bool) -> dict[str, Any]:
        """Return the options that keep secrets from a place, if it is at a server."""
        if not _is_web(place):
            return {"anon": True} if place.names_service and not named else {}
        # what the address names, and not the caller, gets nothing that is for all hosts
        said: dict[str, Any] = {} if named else {ADDRESSED_OPTION: True}
        if self._allowed is not None and not self._trusting:
            origins = {entry.origin for entry in self._allowed} - {""}
            if place.scheme == "http" and ":" not in place.service:
                origins.add(f"https://{place.service}")
            if self._led and self._is_own(place):
                origins.add("{0.scheme}://{0.netloc}".format(urlsplit(self._led)))
            said[REDIRECTS_OPTION] = tuple(sorted(origins))
        return said

    def _is_own(self, place: Address) -> bool:
        own = self._master
        return own is not None and own.same_service(place) and own.chain == place.chain

    def _is_where_led(self, place: Address) -> bool:
        """Tell whether a place is in the folder to which the server of the master redirects.

        That it does so is no reason to trust hosts of a local network, but the master's own.
        """
        own = self._master
        if own is None or not self._led:
            return False
        led = parse_address(self._led)
        if led.host != own.host and is_private(led.host):
            return False
        folder = led.segments[:-1]
        return (
            led.same_service(place) and not place.chain and place.segments[: len(folder)] == folder
        )

    def _refusal(self, place: Address) -> str | None:
        """Return why a place may not be opened; None if it may."""
        own, allowed = self._master, self._allowed
        if allowed is None or any(entry.covers(place) for entry in allowed):
            return None
        if place.chain and (own is None or place.chain != own.chain):
            return "is a chain of URLs; if it is to be opened, open the dataset with allow=True"
        if own is not None and own.is_local:
            if place.is_local and place.is_beside(own):
                return None
            where = "files in its own folder"
        elif own is not None:
            if self._is_own(place) or self._is_where_led(place):
                return None
            where = "what is in its own bucket" if own.bucket else "what is on its own host"
        else:
            where = "nothing"
        kind = "a local file" if place.is_local else f"on {place.host or place.scheme}"
        return (
            f"is {kind}, and the dataset may name {where}; if this is to be read, open the "
            f"dataset with allow=[{place.suggestion!r}]"
        )


def _is_web(place: Address) -> bool:
    """Tell whether a place is at a server of plain HTTP, or of OPeNDAP."""
    return place.scheme in ("http", "https")


def _is_read_here(chain: str) -> bool:
    """Tell whether the end of a chain is read by this package; fsspec's HTTP has other options."""
    return chain.removesuffix("::").rpartition("::")[2].partition("://")[0] in ("", "bytes")


def _allowed(
    allow: Allow, moved: Iterable[str], aliases: Configuration, *, local: bool
) -> tuple[_Allowed, ...] | None:
    """Return what may be opened besides the master's own place; None if everything may."""
    new = (text for text in moved if is_absolute(text) and not split_chain(text)[0])
    given = tuple(_Allowed.parse(text, aliases) for text in new)
    if allow is None and local:
        servers = (_Allowed(scheme, private=True) for scheme in sorted(SERVERS))
        return (*given, _Allowed("file", Address("file")), *servers)
    if allow is None or allow is False:
        return given
    if allow is True:
        return None
    if isinstance(allow, (str, os.PathLike)):
        allow = [allow]
    if not isinstance(allow, Iterable):
        raise URLError("allow", f"{allow!r} is not a list of prefixes; give one, or True")
    pairs = list(allow.items() if isinstance(allow, Mapping) else ((name, None) for name in allow))
    if any(prefix == "*" for prefix, _ in pairs):
        return None
    return (*given, *(_Allowed.parse(prefix, aliases, options) for prefix, options in pairs))


def _named(master: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return what `parse_address` takes for a master, None if it has no name; and options."""
    if hasattr(master, "fs") and hasattr(master.fs, "unstrip_protocol"):
        fs, path = innermost(master.fs, path_below(master))
        return fs.unstrip_protocol(path), fs.storage_options
    if isinstance(getattr(master, "root", None), Path):  # zarr-python's LocalStore
        master = master.root
    if hasattr(master, "read") and isinstance(getattr(master, "name", None), str):
        master = master.name if _is_named_truly(master) else None
    if not isinstance(master, (str, os.PathLike)):
        return None, {}
    text = os.fsdecode(master)
    return text if names_url(text) else os.path.abspath(from_home(text)), {}


def _shown(text: str) -> str:
    return redact(text.partition("#")[0]) if is_url(text) else text


def _is_named_truly(file: Any) -> bool:
    """Tell whether an open file is the one of its name; members of archives are called anything."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except (AttributeError, OSError, ValueError):  # no descriptor, or no such file
        return False


def _own_options(
    text: str | None, place: Address | None, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the storage options of the master, those in its URL among them."""
    if text is None or place is None or place.bucket or not place.stem.startswith("http"):
        return given
    from nczarr_fsspec.transport.options import storage_options

    return storage_options(parse_url(text), given)


def _moved(text: str, moves: Iterable[tuple[str, str]]) -> str | None:
    """Return `text` with the first of the prefixes replaced that it has; None if it has none."""
    for old, new in moves:
        prefix = f"{old.rstrip('/')}/"
        if text == old:
            return new
        if text.startswith(prefix):
            rest = text[len(prefix) :]
            return f"{new.rstrip('/')}/{rest}" if new else rest
    return None
