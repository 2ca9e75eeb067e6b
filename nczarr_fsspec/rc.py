"""netCDF's run-time configuration files: ``.ncrc``, ``.daprc`` and ``.dodsrc``.

A line is ``key=value`` for every URL or ``[url]key=value`` for the URLs below that one; ``#``
starts a comment line. Files and lookup follow ``drc.c`` of netCDF-C 4.9-4.10, with these
differences: blanks inside a line are kept, a path in ``[url]`` covers everything below it (the
declaration in ``ncrc.h`` says so; the code wants it equal), and ``[url]`` may spell an S3 place in
any way (netCDF-C compares a rewritten URL with one that is not).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from nczarr_fsspec.url import NetCDFURL

_log = logging.getLogger(__name__)

#: ``host[:port]`` and a path
HostPath: TypeAlias = tuple[str, str]

#: how keys begin that say who the user is
_SECRETS = ("HTTP.CREDENTIALS.", "HTTP.SSL.CERTIFICATE", "HTTP.SSL.KEY")
_NAMES = (".ncrc", ".daprc", ".dodsrc")
_LINE = re.compile(r"(?:\[(?P<url>[^\]]*)\])?\s*(?P<key>[^=\[\s][^=]*)=(?P<value>.*)")
_PLACE = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.\-]*)://(?:[^/@]*@)?(?P<host>[^/?#]+)(?P<path>[^?#]*)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting. The value may be a password: it is kept out of the ``repr``.

    Attributes
    ----------
    key, value : str
        As written, without outer blanks; keys are case-sensitive.
    host : str
        ``host[:port]`` the entry is for, in lower case; empty for all.
    path : str
        Path below that host, without a trailing slash.
    scheme : str
        Of the URL with the host, in lower case; it counts for secrets only.
    """

    key: str
    value: str = field(repr=False)
    host: str = ""
    path: str = ""
    scheme: str = ""


def parse_rc(text: str, name: str = "rc file") -> list[Entry]:
    """Parse the text of one file; a malformed line is logged by number and skipped."""
    entries = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        place = _PLACE.fullmatch(match["url"].strip()) if match and match["url"] else None
        if match is None or (match["url"] and place is None):
            _log.warning("%s, line %d: is not key=value or [url]key=value", name, number)
            continue
        host = place["host"].lower() if place else ""
        path = place["path"].rstrip("/") if place else ""
        scheme = place["scheme"].lower() if place else ""
        entries.append(Entry(match["key"].strip(), match["value"].strip(), host, path, scheme))
    return entries


def load_rc(env: Mapping[str, str] | None = None) -> list[Entry]:
    """Read the files that apply, the weakest entry first.

    None if ``NCRCENV_IGNORE`` is set; the one that ``NCRCENV_RC`` names; else ``.ncrc``,
    ``.daprc`` and ``.dodsrc`` of ``NCRCENV_HOME`` (or the home directory), then of the working
    directory.
    """
    env = os.environ if env is None else env
    if "NCRCENV_IGNORE" in env:
        return []
    if named := env.get("NCRCENV_RC"):
        paths = [Path(named)]
    else:
        home = env.get("NCRCENV_HOME") or env.get("HOME") or Path.home()
        paths = [Path(folder, name) for folder in (home, ".") for name in _NAMES]
    entries = []
    for path in paths:
        try:
            entries += parse_rc(path.read_text("utf-8", errors="replace"), str(path))
        except FileNotFoundError:
            if named:
                _log.warning("%s, named by NCRCENV_RC, does not exist", path)
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error.strerror)
    return entries


def has_secret_for_all(entries: Sequence[Entry]) -> bool:
    """Tell whether there are credentials, or a certificate to show, that are for no host."""
    return any(not entry.host and entry.key.startswith(_SECRETS) for entry in entries)


def lookup(entries: Sequence[Entry], key: str, url: NetCDFURL) -> str | None:
    """Return the value of `key` for `url`: the last entry of the longest ``[url]`` that matches."""
    return find(entries, key, list(_places(url)))


def find(
    entries: Sequence[Entry], key: str, places: Sequence[HostPath], *, everywhere: bool = True
) -> str | None:
    """Return the value of `key` as `lookup` does, by the spellings of a place.

    Parameters
    ----------
    everywhere
        Whether entries without ``[url]`` count.
    """
    best: tuple[tuple[bool, int], str] | None = None
    for entry in entries:
        if entry.key != key:
            continue
        if any(_covers(entry, place) for place in places) if entry.host else everywhere:
            rank = (bool(entry.host), len(entry.path))
            if best is None or rank >= best[0]:
                best = rank, entry.value
    return best[1] if best else None


def _covers(entry: Entry, place: HostPath) -> bool:
    host, path = place
    return entry.host == host.lower() and f"{path}/".startswith(f"{entry.path}/")


def _places(url: NetCDFURL) -> Iterator[HostPath]:
    """Yield ``(host[:port], path)`` of `url`; for S3, in all its spellings."""
    if url.bucket is None:
        if url.target_protocol in ("http", "https"):
            link = url.base[url.base.rindex(f"{url.target_protocol}://") :]
            for host in _spellings(url.target_protocol, urlsplit(link).netloc):
                yield host, url.path
        return
    yield url.bucket, f"/{url.key}"
    if url.endpoint:
        hosts = set(_spellings(*url.endpoint.split("://")))
    elif url.target_protocol == "gs3":
        hosts = {"storage.googleapis.com"}
    else:
        hosts = {"s3.amazonaws.com", f"s3.{url.region or 'us-east-1'}.amazonaws.com"}
    for host in hosts:
        yield host, f"/{url.bucket}/{url.key}"
        yield f"{url.bucket}.{host}", f"/{url.key}"


def _spellings(scheme: str, host: str) -> tuple[str, str]:
    """Return a host as it stands, and with or without the port that needs not be said."""
    port = {"http": ":80", "https": ":443"}[scheme]
    return host, host.removesuffix(port) if host.endswith(port) else f"{host}{port}"
