"""netCDF's run-time configuration files: ``.ncrc``, ``.daprc`` and ``.dodsrc``.

A line is ``key=value`` for every URL or ``[url]key=value`` for the URLs below that one; ``#``
starts a comment line. Only a few keys count in the working directory (`HARMLESS`), all of which
netCDF-C trusts. Otherwise files and lookup follow ``drc.c`` of netCDF-C 4.9-4.10, with these
differences: blanks inside a line are kept, a path in ``[url]`` covers everything below it (the
declaration in ``ncrc.h`` says so; the code wants it equal), and ``[url]`` may spell an S3 place in
any way (netCDF-C compares a rewritten URL with one that is not).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from nczarr_fsspec.errors import NCZarrWarning, caller_level
from nczarr_fsspec.places.url import NetCDFURL

_log = logging.getLogger(__name__)

#: ``host[:port]`` and a path
HostPath: TypeAlias = tuple[str, str]

#: how keys begin that say who the user is
_SECRETS = ("HTTP.CREDENTIALS.", "HTTP.SSL.CERTIFICATE", "HTTP.SSL.KEY")
_NAMES = (".ncrc", ".daprc", ".dodsrc")
#: keys that count in the working directory, too: by no others can a folder that was downloaded
#: send requests elsewhere, have secrets sent, or say who is trusted
HARMLESS = frozenset({"AWS.REGION", "HTTP.CONNECTTIMEOUT", "HTTP.TIMEOUT", "HTTP.USERAGENT"})
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
    directory, of which only `HARMLESS` keys count.
    """
    own, here = _files(os.environ if env is None else env)
    if left_out := _keys(here) - HARMLESS:
        warnings.warn(
            f"{', '.join(sorted(left_out))} in {', '.join(here)} of the working directory are left "
            "out, as that may be a folder of somebody else: put these lines into ~/.ncrc, or name "
            "the file by NCRCENV_RC",
            NCZarrWarning,
            stacklevel=caller_level(),
        )
    entries = [entry for found in own.values() for entry in found]
    return entries + [one for found in here.values() for one in found if one.key in HARMLESS]


def left_out_here() -> frozenset[str]:
    """Return the keys of the working directory that do not count, but which netCDF-C follows."""
    return _keys(_files(os.environ)[1]) - HARMLESS


def _keys(files: Mapping[str, Sequence[Entry]]) -> frozenset[str]:
    return frozenset(entry.key for entries in files.values() for entry in entries)


def _files(env: Mapping[str, str]) -> tuple[dict[str, list[Entry]], dict[str, list[Entry]]]:
    """Return the entries of each file: of those of the user, and of the working directory."""
    if "NCRCENV_IGNORE" in env:
        return {}, {}
    if named := env.get("NCRCENV_RC"):
        found = _entries(Path(named))
        if found is None:
            _log.warning("%s, named by NCRCENV_RC, does not exist", named)
        return {named: found or []}, {}
    home = Path(env.get("NCRCENV_HOME") or env.get("HOME") or Path.home())
    own = {str(home / name): _entries(home / name) or [] for name in _NAMES}
    if os.path.realpath(home) == os.path.realpath("."):
        return own, {}
    return own, {name: found for name in _NAMES if (found := _entries(Path(name)))}


def _entries(path: Path) -> list[Entry] | None:
    """Return those of one file; None if there is none."""
    try:
        status = path.stat()
        return _parsed(str(path), status.st_mtime_ns, status.st_size, status.st_ino)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s cannot be read: %s", path, error.strerror)
        return []


@lru_cache(maxsize=16)
def _parsed(path: str, *_: int) -> list[Entry]:
    """Read a file again only if it is another one: every opening asks for all of them."""
    return parse_rc(Path(path).read_text("utf-8", errors="replace"), path)


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
        below = (
            f"{path}/".startswith(f"{entry.path}/") and entry.host == host.lower()
            for host, path in places
        )
        if any(below) if entry.host else everywhere:
            rank = (bool(entry.host), len(entry.path))
            if best is None or rank >= best[0]:
                best = rank, entry.value
    return best[1] if best else None


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
