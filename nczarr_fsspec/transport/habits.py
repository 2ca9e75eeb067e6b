"""What all requests of an HTTP filesystem have in common, and what each host on their way gets."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from fsspec import AbstractFileSystem
from multidict import CIMultiDict
from yarl import URL

from nczarr_fsspec.rc import load_rc
from nczarr_fsspec.transport.cookies import COOKIES_OPTION, Cookies
from nczarr_fsspec.transport.hostrc import Certificates
from nczarr_fsspec.transport.logins import LOGINS_OPTION, NETRC_OPTION, Logins
from nczarr_fsspec.transport.policy import (
    ADDRESSED_OPTION,
    REDIRECTS_OPTION,
    TIMEOUT_OPTION,
    Timeout,
)
from nczarr_fsspec.transport.sessions import connecting, connections, stranger
from nczarr_fsspec.transport.shared import SharedFilesystem

#: options of a request that are meant for the host that the user named; ``ssl`` may hold a
#: client's certificate, or turn verification off. Proxies are the way to all hosts.
_PRIVATE = ("auth", "cookies", "server_hostname", "ssl")
#: those of each filesystem; sessions may be those of several
_known: weakref.WeakKeyDictionary[SharedFilesystem, Habits] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Habits:
    """What the options of a filesystem say of its requests.

    Attributes
    ----------
    session : ClientSession
        The connections, and what the user gave to all of them.
    given : dict
        Headers of the user, who may change them.
    options, public : dict
        Further arguments of a request to the origin that the user named, and to others.
    params : dict
        Added to the query.
    hops : int
        How many redirects are followed.
    origins : tuple of str or None
        Where to; see `nczarr_fsspec.transport.redirects`.
    logins : Logins
        Who the user is to each host.
    cookies : Cookies
        What hosts gave.
    certificates : Certificates
        TLS, host by host.
    everywhere : bool
        Whether what rc files say for no host is for the host that was named.
    """

    session: Any
    given: Mapping[str, str]
    options: dict[str, Any]
    public: dict[str, Any]
    params: Any
    hops: int
    origins: tuple[str, ...] | None
    logins: Logins
    cookies: Cookies
    certificates: Certificates
    everywhere: bool

    @classmethod
    async def of(cls, shared: SharedFilesystem) -> Habits:
        """Return those of an HTTP filesystem, made anew for every session."""
        session = await shared.fs.set_session()
        found = _known.get(shared)
        if found is None or found.session is not session:
            found = _known[shared] = cls._read(session, shared.fs, shared.timeout)
            shared.cap(connections(session))
        return found

    @classmethod
    def _read(cls, session: Any, fs: AbstractFileSystem, timeout: Timeout) -> Habits:
        options: dict[str, Any] = dict(fs.kwargs)
        given = options.pop("headers", None) or {}
        params = options.pop("params", None)
        follow = options.pop("allow_redirects", True)
        hops = int(options.pop("max_redirects", 10)) if follow else 0
        options.pop(TIMEOUT_OPTION, None)
        origins = options.pop(REDIRECTS_OPTION, None)
        entries = load_rc()
        everywhere = not options.pop(ADDRESSED_OPTION, False)
        logins = Logins(
            options.pop(LOGINS_OPTION, None),
            options.pop(NETRC_OPTION, None),
            entries,
            everywhere=everywhere,
        )
        cookies = Cookies(logins.cookies, options.pop(COOKIES_OPTION, None))
        options["timeout"] = connecting(timeout)
        options["allow_redirects"] = options["auto_decompress"] = False
        public = {name: value for name, value in options.items() if name not in _PRIVATE}
        return cls(
            *(session, given, options, public, params, hops, origins, logins, cookies),
            Certificates(entries),
            everywhere,
        )

    async def ask(
        self, headers: Mapping[str, str], first: URL, target: URL
    ) -> tuple[Any, str | None]:
        """Return a request for `target`, to which that for `first` led, and whom it says it is.

        Parameters
        ----------
        headers
            Of this request; none of them secret.
        """
        own = target is first or target.origin() == first.origin()
        if own and first.raw_user is not None and target.raw_user is None:
            target = target.with_user(first.user).with_password(first.password)
        session = self.session if own else stranger(self.session, self.given)
        options = self.options if own else self.public
        if "ssl" not in options:
            tls = self.certificates.context(target, everywhere=own and self.everywhere)
            options = options if tls is None else {**options, "ssl": tls}
        sent: Mapping[str, str] = {**headers, **self.given} if own else headers
        if not (self.logins or self.cookies):
            return session.get(target, headers=sent, **options), None
        sent = CIMultiDict(sent)
        also: Mapping[str, str] = getattr(session, "headers", {})
        said = None
        if not (own and self._says_who(target, sent, also)):
            downgraded = first.scheme == "https" != target.scheme
            said = await self.logins.header(target, own=own, downgraded=downgraded)
            if said is not None:
                sent["Authorization"] = said
        cookie = self.cookies.header(target)
        if cookie is not None:
            users = sent.get("Cookie") or also.get("Cookie")
            sent["Cookie"] = f"{users}; {cookie}" if users else cookie
        return session.get(target, headers=sent, **options), said

    def _says_who(self, target: URL, sent: Mapping[str, str], also: Mapping[str, str]) -> bool:
        """Tell whether the user has given something else for the host of the URL."""
        named = "Authorization" in sent or "Authorization" in also
        given = self.options.get("auth") or getattr(self.session, "auth", None)
        return bool(named or given or target.raw_user is not None)

    async def renewed(self, response: aiohttp.ClientResponse, said: str | None) -> bool:
        """Tell whether a host that refuses what it was told can be told something else."""
        if said is None or response.status not in (401, 403):
            return False
        return await self.logins.renewed(response.url, said)
