"""What netCDF's run-time configuration says of hosts: credentials and certificates.

They are looked up where requests are sent: so they are in no pickle, and a host to which a
redirect leads has its own.

Keys that are for no host are for all that the caller names, but not for those to which a
redirect leads or that a dataset names; netCDF-C sends them there, too. Which authorities are
trusted (``HTTP.SSL.CAINFO`` and ``CAPATH``) is no secret, and holds for all.

Source: ``ncauth`` and ``auth.md`` of netCDF-C 4.9.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from yarl import URL

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.places.rc import Entry, find

_OFF = frozenset({"0", "false", "no", "off"})


def password(entries: Sequence[Entry], target: URL, *, everywhere: bool) -> tuple[str, str] | None:
    """Return user and password for `target`, if there are some.

    Those of an https URL do not go without TLS.

    Parameters
    ----------
    everywhere
        Whether those that are for no host are for it.
    """
    if target.scheme != "https":
        entries = [entry for entry in entries if entry.scheme != "https"]

    def value(key: str) -> str | None:
        return _value(entries, f"HTTP.CREDENTIALS.{key}", target, everywhere=everywhere)

    user, secret = value("USERNAME") or value("USER"), value("PASSWORD")
    if user and secret is not None:
        return user, secret
    both = value("USERPASSWORD")
    if not both or ":" not in both:
        return None
    user, _, secret = both.partition(":")
    return unquote(user), unquote(secret)


def _value(entries: Sequence[Entry], key: str, target: URL, *, everywhere: bool) -> str | None:
    host = target.host_subcomponent or ""
    places = [(f"{host}:{target.port}", target.path)]
    if target.is_default_port():
        places.append((host, target.path))
    return find(entries, key, places, everywhere=everywhere)


class _Settings(NamedTuple):
    """What makes a TLS context."""

    cafile: str | None
    capath: str | None
    certificate: str | None
    key: str | None
    secret: str | None
    validates: bool


class Certificates:
    """TLS of hosts as rc files have it: whom to trust, and which certificate to show."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = [entry for entry in entries if entry.key.startswith("HTTP.SSL.")]
        self._made: dict[_Settings, ssl.SSLContext] = {}

    def context(self, target: URL, *, everywhere: bool) -> ssl.SSLContext | None:
        """Return the TLS context for `target`; None for the usual one. Parameters as `password`.

        Raises
        ------
        StoreError
            If a file cannot be read.
        """
        if not self._entries or target.scheme != "https":
            return None

        def value(key: str, *, everywhere: bool = everywhere) -> str | None:
            return _value(self._entries, f"HTTP.SSL.{key}", target, everywhere=everywhere) or None

        certificate, key = value("CERTIFICATE"), value("KEY")
        settings = _Settings(
            value("CAINFO", everywhere=True),
            value("CAPATH", everywhere=True),
            certificate or key,
            key,
            value("KEYPASSWORD"),
            not any((value(key) or "").lower() in _OFF for key in ("VALIDATE", "VERIFYPEER")),
        )
        if settings == _Settings(None, None, None, None, None, True):
            return None
        if settings not in self._made:
            self._made[settings] = _context(settings)
        return self._made[settings]


def _context(settings: _Settings) -> ssl.SSLContext:
    cafile, capath, certificate, key = (name and os.path.expanduser(name) for name in settings[:4])
    try:
        made = ssl.create_default_context(cafile=cafile, capath=capath)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise StoreError(
            cafile or capath or "", f"is no file of certificates (HTTP.SSL.CAINFO): {_why(error)}"
        ) from None
    if not settings.validates:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate:
        secret = settings.secret or ""  # or it would be asked for at the terminal
        try:
            made.load_cert_chain(certificate, key, secret)
        except (OSError, ValueError) as error:
            reason = f"is no certificate with its key (HTTP.SSL.CERTIFICATE): {_why(error)}"
            raise StoreError(certificate, reason) from None
    return made


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
