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

import hashlib
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
from nczarr_fsspec.transport.policy import ADDRESSED_OPTION, REDIRECTS_OPTION

_Prefix: TypeAlias = "str | os.PathLike[str]"
#: Prefixes; with storage options for what is below each; or whether everything is allowed.
Allow: TypeAlias = (
    "bool | _Prefix | Iterable[_Prefix] | Mapping[str, Mapping[str, Any] | None] | None"
)

_SCHEME_ONLY = re.compile(r"(?i)([a-z][a-z0-9+.\-]+)(?::/*)")
_ALIAS_ONLY = re.compile(r"s3://([^/]+)/?")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_ALL_FILES = ("file", "")


@dataclass(frozen=True, slots=True)
class _Allowed:
    """A prefix of what may be opened.

    Attributes
    ----------
    prefix
        Of root and path of an `Address`; a protocol alone for its public hosts.
    options
        For what is below, if there are some.
    private
        Whether a protocol alone is also for hosts of local networks.
    """

    prefix: tuple[str, ...]
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    private: bool = False

    def covers(self, place: Address) -> bool:
        if len(self.prefix) > 1:
            return any(name[: len(self.prefix)] == self.prefix for name in place.names)
        refused = is_metadata_service if self.private else is_private
        return self.prefix == place.root[:1] and not (place.host and refused(place.host))


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
        trusting = place is not None and place.is_local and allow is None
        if not isinstance(replace or {}, Mapping):
            raise URLError("replace", f"{replace!r} is not a mapping, {{old: new}}")
        moved = {os.fsdecode(old): os.fsdecode(new) for old, new in (replace or {}).items()}
        if "" in moved:
            raise URLError("replace", "an empty prefix is that of everything; name a folder")
        allowed = _allowed(allow, moved.values(), aliases)
        if trusting:
            servers = (_Allowed((scheme,), private=True) for scheme in sorted(SERVERS))
            allowed = (*(allowed or ()), _Allowed(_ALL_FILES), *servers)
        if text is not None and place is not None and place.stem.startswith("http"):
            from nczarr_fsspec.transport.options import storage_options as with_userinfo

            options = options if place.bucket else with_userinfo(parse_url(text), options)
        shown = f"{type(master).__name__} object" if text is None else text
        return cls(
            redact(shown.partition("#")[0]) if is_url(shown) else shown,
            place,
            tuple(sorted(moved.items(), key=lambda pair: -len(pair[0]))),
            allowed,
            options,
            aliases,
            trusting,
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
        if moved is None:
            for spelling in (place.text, f"file://{place.text}")[: 1 + place.is_local]:
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
    def place(self) -> str:
        """What tells the folder of the master from others, without naming it; "" if it has none."""
        if self._master is None or not self._master.text:
            return ""
        folder = os.path.dirname(self._master.text.partition("#")[0].rstrip("/"))
        folder = os.path.realpath(folder) if self._master.is_local else redact(folder)
        return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]

    @property
    def moves(self) -> bool:
        """Whether something is to be where the master does not say."""
        return bool(self._replace)

    @property
    def allows_local(self) -> bool:
        """Whether an address may name any file of this machine, and names it as it stands."""
        files = self._allowed is None or any(one.prefix == _ALL_FILES for one in self._allowed)
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
        length = min(map(len, place.names))
        return not place.chain and all(len(one.prefix) < length for one in self._allowed or ())

    def options(self, target: str) -> dict[str, Any]:
        """Return the storage options with which to open what `resolve` has returned.

        They say, too, where its server may redirect to: its own host, and what is allowed.
        """
        place = parse_address(target, self._aliases)
        options, named = self._given(place)
        chain, link = split_chain(target) if place.chain else ("", target)
        end = parse_address(link, self._aliases) if chain else place
        # the end of a chain is read by this package, or by fsspec, whose HTTP has other options
        below = chain.removesuffix("::").rpartition("::")[2].partition("://")[0]
        if below not in ("", "bytes") and not end.bucket:
            return options
        kept = self._kept_from(end, named=named)
        if chain and kept:  # what is for the end of a chain stands below its protocol
            kept = {end.scheme: {**(options.get(end.scheme) or {}), **kept}}
        return {**options, **kept}

    def _given(self, place: Address) -> tuple[dict[str, Any], bool]:
        """Return the options for a place, and whether the caller has named it."""
        covering = [a for a in self._allowed or () if a.options is not None and a.covers(place)]
        if covering:
            best = max(covering, key=lambda one: len(one.prefix))
            options = dict(best.options or {})
            # keys of S3 that are given for all services sign requests, and are sent to none
            return options, len(best.prefix) > 1 or bool(place.bucket and options)
        own, is_own = self._options, self._is_own(place)
        if place.is_local:
            follow = is_own and own.get(FOLLOW_OPTION)
            return {FOLLOW_OPTION: follow} if follow else {}, False
        return {name: own[name] for name in own if is_own or name in REMOTE_OPTIONS}, is_own

    def _kept_from(self, place: Address, *, named: bool) -> dict[str, Any]:
        """Return the options that keep secrets from a place, if it is at a server."""
        if place.scheme not in ("http", "https"):
            # a service of S3 that an address names, and neither an alias nor Amazon
            elsewhere = place.bucket and place.host and not place.host.endswith(_AMAZON)
            return {"anon": True} if elsewhere and not named else {}
        # what the address names, and not the caller, gets nothing that is for all hosts
        options: dict[str, Any] = {} if named else {ADDRESSED_OPTION: True}
        if self._allowed is not None and not self._trusting:
            prefixes = [one.prefix for one in self._allowed]
            if place.scheme == "http" and ":" not in place.root[1]:
                prefixes.append(("https", place.root[1]))
            if self._led and self._is_own(place):
                prefixes.append(urlsplit(self._led)[:2])
            web = (prefix for prefix in prefixes if prefix[0] in ("http", "https"))
            origins = {f"{prefix[0]}://{''.join(prefix[1:2])}" for prefix in web}
            options[REDIRECTS_OPTION] = tuple(sorted(origins))
        return options

    def _is_own(self, place: Address) -> bool:
        return self._master is not None and place.root == self._master.root

    def _refusal(self, place: Address) -> str | None:
        """Return why a place may not be opened; None if it may."""
        own, allowed = self._master, self._allowed
        if allowed is None or any(one.covers(place) for one in allowed):
            return None
        where = "nothing"
        if own is not None and own.is_local:
            where = "files in its own folder"
            folder = os.path.realpath(os.path.dirname(own.text)).rstrip(os.sep) + os.sep
            beside = place.is_local and os.path.realpath(place.text).startswith(folder)
            if beside and place.chain in ("", own.chain):  # symbolic links followed
                return None
        elif own is not None:
            where = "what is in its own bucket" if own.bucket else "what is on its own host"
            led = parse_address(self._led) if self._led else own
            # that its server leads there is no reason to trust hosts of a local network
            there = led is not own and (led.host == own.host or not is_private(led.host))
            above = led.path[:-1]
            there = there and place.root == led.root and place.path[: len(above)] == above
            if there or self._is_own(place):
                return None
        if place.chain and (own is None or place.chain != own.chain):
            return "is a chain of URLs; if it is to be opened, open the dataset with allow=True"
        kind = "a local file" if place.is_local else f"on {place.host or place.scheme}"
        folder = os.path.dirname(place.text).rstrip(os.sep) + os.sep
        prefix = folder if place.is_local else redact(f"{place.stem}/")
        return (
            f"is {kind}, and the dataset may name {where}; if this is to be read, open the "
            f"dataset with allow=[{prefix!r}]"
        )


def _allowed(
    allow: Allow, moved: Iterable[str], aliases: Configuration
) -> tuple[_Allowed, ...] | None:
    """Return what may be opened besides the master's own place; None if everything may."""
    if allow is True:
        return None
    if allow is None or allow is False:
        allow = ()
    elif isinstance(allow, (str, os.PathLike)):
        allow = (allow,)
    elif not isinstance(allow, Iterable):
        raise URLError("allow", f"{allow!r} is not a list of prefixes; give one, or True")
    pairs = list(allow.items() if isinstance(allow, Mapping) else ((one, None) for one in allow))
    if any(prefix == "*" for prefix, _ in pairs):
        return None
    new = (text for text in moved if is_absolute(text) and not split_chain(text)[0])
    own = tuple(_Allowed(_prefix(text, aliases)) for text in new)
    return own + tuple(_Allowed(_prefix(text, aliases), given) for text, given in pairs)


def _prefix(given: object, aliases: Configuration) -> tuple[str, ...]:
    """Parse a prefix that the caller allows."""
    if not isinstance(given, (str, os.PathLike)) or not os.fsdecode(given).strip():
        reason = f"{given!r} is not a prefix; give a list of URLs and paths, or True"
        raise URLError("allow", reason)
    text = os.fsdecode(given)
    if match := _SCHEME_ONLY.fullmatch(text):
        scheme = match[1].lower()
        return _ALL_FILES if scheme == "file" else (scheme,)
    if alias := _ALIAS_ONLY.fullmatch(text):
        host = configuration(aliases).hosts.get(alias[1])
        text = text if host is None else host.endpoint
    place = parse_address(text if is_absolute(text) else os.path.abspath(text), aliases)
    if place.chain:
        reason = f"{redact(text)!r} is a chain of URLs; only allow=True allows these"
        raise URLError("allow", reason)
    return *place.root, *place.path


def _named(master: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return what `parse_address` takes for a master, None if it has no name; and options."""
    if hasattr(master, "fs") and hasattr(master.fs, "unstrip_protocol"):
        fs, path = innermost(master.fs, path_below(master))
        return fs.unstrip_protocol(path), fs.storage_options
    if isinstance(getattr(master, "root", None), Path):  # zarr-python's LocalStore
        master = master.root
    if hasattr(master, "read") and isinstance(getattr(master, "name", None), str):
        try:  # a member of an archive is called anything
            truly = os.path.samestat(os.fstat(master.fileno()), os.stat(master.name))
        except (AttributeError, OSError, ValueError):  # no descriptor, or no such file
            truly = False
        master = master.name if truly else None
    if not isinstance(master, (str, os.PathLike)):
        return None, {}
    text = os.fsdecode(master)
    return text if names_url(text) else os.path.abspath(from_home(text)), {}


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
