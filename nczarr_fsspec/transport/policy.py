"""What a request may cost: how long it may take, how often it is tried, how much it may bring.

One policy for HTTP, S3 and every other filesystem. `Throttle` (`nczarr_fsspec.transport.throttle`)
tries again by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Self

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.local_files import part_of_files
from nczarr_fsspec.transport.recording import SEEN
from nczarr_fsspec.transport.request import TransientError

#: what `most_connections` is where files are plenty
MOST_CONNECTIONS = 192
#: tries of one request at most, and the first of the doubling waits between them, in seconds
ATTEMPTS = 6
FIRST_WAIT = 0.25
#: a server that wants a longer wait than this, in seconds, is believed and not asked again
LONGEST_WAIT = 60.0
#: a try that took too long counts as so many: there are two of these, not six
TOO_LONG = ATTEMPTS // 2
#: seconds for which a body may come more slowly than `Timeout.rate`
WINDOW = 30.0

#: storage options that are ours
TIMEOUT_OPTION = "timeout"
#: the storage option that names the origins, ``https://host:port``, that redirects may lead to
#: besides that of the URL itself; ``https://`` is those of all hosts that are not private
REDIRECTS_OPTION = "redirects"
#: the storage option that says that a dataset has named the URL, and not the caller
ADDRESSED_OPTION = "addressed"
#: the storage options for credentials by host, for a netrc file, and for a file of cookies
LOGINS_OPTION = "logins"
NETRC_OPTION = "netrc"
COOKIES_OPTION = "cookie_jar"
#: all of HTTP that are ours; others are arguments of aiohttp's requests
HTTP_OPTIONS = (
    *(TIMEOUT_OPTION, REDIRECTS_OPTION, ADDRESSED_OPTION),
    *(LOGINS_OPTION, NETRC_OPTION, COOKIES_OPTION),
)
#: the storage option that has a function which returns keys for S3
CREDENTIALS_OPTION = "credentials"
#: bytes of a file that is kept in memory at most because its server does not serve ranges
MAX_WHOLE = 256 << 20


def most_connections() -> int:
    """Return how many requests one host gets at a time, each on a connection of its own.

    Measured with 2,500 objects of 9 KB over 20, 50 and 100 ms: without TLS, more pay up to 256;
    with it a connection costs a millisecond of CPU time, and beyond 192 nothing is gained. Besides,
    they may only be a small part of the files that the process may open (on macOS, 256).
    """
    return part_of_files(MOST_CONNECTIONS)


@dataclass(frozen=True, slots=True)
class Timeout:
    """For how long a request may take; the storage option ``timeout``.

    Parameters
    ----------
    connect
        Seconds to connect.
    first_byte
        Seconds to the beginning of the answer, besides those of `connect`.
    rate
        Bytes per second of a body, on average over `WINDOW` seconds, at least. With 0 only
        silence is too slow.
    whole
        Seconds for one request in all, waits and further tries included, as long as the server
        does not answer other requests meanwhile.
    """

    connect: float = 30.0
    first_byte: float = 60.0
    rate: float = 100.0
    whole: float = 1800.0

    @classmethod
    def parse(cls, value: Any, shown: str) -> Timeout:
        """Parse the storage option: seconds for the whole request, or numbers by name.

        Parameters
        ----------
        value
            A number, a mapping, or a ``ClientTimeout`` of aiohttp. None stands for no limit.
        shown
            What messages call the target.

        Raises
        ------
        URLError
            If it is none of them.
        """
        if isinstance(value, Timeout):
            return value
        if hasattr(value, "sock_read"):
            connect = value.sock_connect or value.connect
            limits = {"connect": connect, "first_byte": value.sock_read, "whole": value.total}
            value = {name: limit for name, limit in limits.items() if limit}
        elif not isinstance(value, Mapping):
            value = {"whole": value}
        names = [field.name for field in fields(cls)]
        if unknown := [str(name) for name in value if name not in names]:
            reason = f"{TIMEOUT_OPTION} has no {', '.join(unknown)}; it has {', '.join(names)}"
            raise URLError(shown, reason)
        given = {}
        for name, number in value.items():
            none = 0.0 if name == "rate" else math.inf
            given[name] = none if number is None else number
            right = isinstance(given[name], (int, float)) and not isinstance(number, bool)
            if not right or not (given[name] > 0 or given[name] == none):
                what = "a rate in bytes per second" if name == "rate" else "a number of seconds"
                raise URLError(shown, f"{TIMEOUT_OPTION} {name} is {what}, not {number!r}")
        return cls(**given)

    @property
    def text(self) -> str:
        """How messages name the limits in force."""
        limits = [f"{name} {limit:g}" for name, limit in asdict(self).items()]
        return f"storage option {TIMEOUT_OPTION}: {', '.join(limits)}"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What bounds requests and what they bring: each field is a storage option of that name.

    Parameters
    ----------
    timeout
        For how long a request may take; None for what the filesystem says.
    max_requests
        How many one host gets at a time, if that is to be fewer than `most_connections`.
    max_whole
        Bytes of a file that may be kept in memory if its server does not serve ranges.
    max_metadata
        Bytes that one object of metadata may have; None for what its store says.
    """

    timeout: Timeout | None = None
    max_requests: int | None = None
    max_whole: int = MAX_WHOLE
    max_metadata: int | None = None

    @classmethod
    def take(cls, options: dict[str, Any], shown: str) -> Self:
        """Make it of storage options, which are taken out.

        Raises
        ------
        URLError
            If they make no sense.
        """
        given = {name: options.pop(name) for name in LIMIT_OPTIONS if name in options}
        for name, value in given.items():
            if name == TIMEOUT_OPTION:
                given[name] = None if value is None else Timeout.parse(value, shown)
                continue
            least, unit = (1, "requests") if name == "max_requests" else (0, "bytes")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise URLError(shown, f"{name} is a number of {unit}, not {value!r}")
        return cls(**given)


#: where a user asks for no others
DEFAULT_LIMITS = RequestLimits()
#: the storage options that are limits
LIMIT_OPTIONS = tuple(field.name for field in fields(RequestLimits))


class Clock:
    """Ends a try that takes too long with `TransientError`; an asynchronous context manager.

    At first it waits for the beginning of the answer; then, from `body` on, for bytes.

    Parameters
    ----------
    left
        Seconds that the try may take in all.

    Attributes
    ----------
    mark : float
        When so many bytes of the body have come, `came` has to be called.
    seen : Seen or None
        What recorders get of the try; None without recorders.
    """

    __slots__ = ("_due", "_end", "_left", "_limits", "_loop", "_timer", "mark", "seen")

    def __init__(self, limits: Timeout, left: float = math.inf) -> None:
        self._limits = limits
        self._left = left
        self.mark = math.inf
        self.seen = SEEN.get()

    async def __aenter__(self) -> Self:
        import asyncio

        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._end = now + self._left
        self._due = now + self._limits.connect + self._limits.first_byte
        self._timer = asyncio.timeout_at(_or_none(min(self._due, self._end)))
        await self._timer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._late() from None

    def body(self, status: int) -> None:
        """Wait for the body: the answer has begun."""
        if self.seen is not None:
            self.seen.begins(status)
        self.came(0)

    def came(self, count: int) -> None:
        """Note that so many bytes have come, and demand more of them in time."""
        self.mark = count + max(1.0, self._limits.rate * WINDOW)
        self._due = self._loop.time() + WINDOW
        self._timer.reschedule(_or_none(min(self._due, self._end)))

    def rest(self) -> None:
        """Wait for another request, whose own clock runs."""
        self._due = math.inf
        self._timer.reschedule(_or_none(self._end))

    def _late(self) -> TransientError:
        text = self._limits.text
        if self._end <= self._due:
            return TransientError(f"the request took too long ({text})", cost=ATTEMPTS)
        if self.mark == math.inf:
            return TransientError(f"no answer came in time ({text})", cost=TOO_LONG)
        return TransientError(f"bytes came too slowly ({text})", cost=TOO_LONG)


def _or_none(when: float) -> float | None:
    return None if when == math.inf else when
