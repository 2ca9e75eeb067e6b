"""What is asked of a file behind a network, what comes back, and what that tells of its server."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nczarr_fsspec.concurrency import Once
from nczarr_fsspec.errors import ChangedError, StoreError

if TYPE_CHECKING:
    import asyncio  # which is imported where a loop runs anyway

    from nczarr_fsspec.transport.policy import Clock


#: seconds after which no other version of a file can have the same time
SETTLED = 60


class Stamp(NamedTuple):
    """What is kept of a file version where there are many, to tell it from later ones.

    Attributes
    ----------
    size : int
        Of the file; -1 if it is not known.
    number : int
        Of a local file the time of its last change in ns, of others a digest of their entity tag
        or time; 0 if there is none.
    """

    size: int = -1
    number: int = 0

    def check(self, now: Stamp, shown: str) -> None:
        """Raise `ChangedError` if a file is known to be another version now."""
        how = ""
        if self.size >= 0 and now.size not in (-1, self.size):
            how = f"it had {self.size} bytes and has {now.size}"
        elif self.number and now.number not in (0, self.number):
            how = "its tag or time of change is another one"
        if how:
            raise ChangedError(shown, f"has changed since the aggregation was made: {how}")


#: Of a file of which nothing is known.
UNKNOWN = Stamp()


class FileVersion(NamedTuple):
    """What answers about one file have said of its version.

    Attributes
    ----------
    etag, modified : str
        ``ETag`` and ``Last-Modified``; ``""`` while no answer had one.
    size : int
        Of the file; -1 while no answer stated it.
    date : str
        When the first answer was sent; ``""`` if the version is known to have been there long.
    """

    etag: str = ""
    modified: str = ""
    size: int = -1
    date: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str], size: int | None) -> FileVersion:
        """Return what one answer says.

        Parameters
        ----------
        headers
            Of the answer.
        size
            Of the file, where the answer states it.
        """
        etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        # S3's tags are digests of what an object holds
        digest = etag and "x-amz-request-id" in headers
        date = "" if digest else headers.get("Date") or "-"
        return cls(etag.strip(), modified.strip(), -1 if size is None else size, date)

    @classmethod
    def known(cls, size: int, validator: str) -> FileVersion:
        """Return the version that has this `validator`."""
        if _opaque(validator).startswith('"'):
            return cls(validator, "", size)
        return cls("", validator.rpartition(";")[0], size)

    @property
    def validator(self) -> str:
        """One text by which this version is remembered; ``""`` if it cannot be told from the next.

        Many servers make tags of the time in seconds and the size. So no tag but one of S3 counts
        before that is long past, and none of which the time is not known.
        """
        if self.date:
            sent, made = moment(self.date), moment(self.modified)
            if sent is None or made is None or (sent - made).total_seconds() < SETTLED:
                return ""
        return self.etag or (f"{self.modified};{self.size}" if self.modified else "")

    @property
    def stamp(self) -> Stamp:
        """What is kept of it for later; a tag or a time that is recent counts, too."""
        text = _opaque(self.etag) or self.modified
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return Stamp(self.size, int.from_bytes(digest, "big", signed=True) if text else 0)

    def agreeing(self, later: FileVersion, shown: str) -> FileVersion:
        """Add to this version what a later answer says of it.

        Answers must agree in the entity tag, else (if one of them has none) in
        ``Last-Modified``, and in the size of the file wherever it is stated. An answer with
        neither validator, though earlier ones had one, must state the size.

        Raises
        ------
        StoreError
            If the later answer is about another version.
        """
        if later.size >= 0 and self.size not in (-1, later.size):
            raise changed(shown, f"it had {self.size} bytes and has {later.size}")
        if later.etag and self.etag:
            if _opaque(later.etag) != _opaque(self.etag):
                raise changed(shown, f"its tag was {self.etag} and is {later.etag}")
        elif later.modified and self.modified:
            if later.modified != self.modified:
                raise changed(shown, f"it was of {self.modified} and is of {later.modified}")
        elif later.size < 0 and (self.etag or self.modified):
            raise StoreError(shown, "the server no longer says which version of the file it sends")
        etag, modified = self.etag or later.etag, self.modified or later.modified
        size = later.size if self.size < 0 else self.size
        return FileVersion(etag, modified, size, self.date)


def changed(shown: str, how: str) -> ChangedError:
    """Return the error for a file of which there is another version now."""
    return ChangedError(shown, f"the file has changed while it was read ({how}); open it again")


@lru_cache(maxsize=64)  # answers of one second state one date
def moment(header: str) -> datetime | None:
    """Return the time that a header states; None if it states none, or does not say of which zone.

    ``-0000`` is UTC, of a sender whose own zone is unknown.
    """
    from email.utils import parsedate_to_datetime  # which takes long

    try:
        found = parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return None
    if found.tzinfo is None and header.rstrip().endswith("-0000"):
        return found.replace(tzinfo=UTC)
    return found if found.tzinfo else None


def _opaque(etag: str) -> str:
    """Return an entity tag without its mark of weakness: proxies that compress add it."""
    return etag.removeprefix("W/")


Data: TypeAlias = bytes | memoryview

#: the stop of an extent that goes to the end of a file of unknown size
END = sys.maxsize


class Extent(NamedTuple):
    """Bytes ``[start, stop)`` of a file."""

    start: int
    stop: int


class Request(NamedTuple):
    """One question about one file.

    Parameters
    ----------
    path
        In the filesystem; for HTTP the URL with its secrets.
    shown
        How messages name the file.
    extents
        Which bytes, ascending and apart from each other; what is behind the end of the file does
        not come. None asks for all of the file, an empty sequence for its version only.
    tail
        How many bytes of its end, instead of `extents`.
    version
        The version that the answer must be of.
    unless
        The version of which nothing need be sent again.
    most
        Bytes that the file may have, if all of it is asked for, or what goes to its end.
    server
        What is known of the way to this file, and is to be learned.
    """

    path: str
    shown: str
    extents: Sequence[Extent] | None = None
    tail: int = 0
    version: FileVersion | None = None
    unless: FileVersion | None = None
    most: int | None = None
    server: ServerState | None = None

    @property
    def ranged(self) -> bool:
        """Whether parts of the file are asked for."""
        return bool(self.extents or self.tail)


class Answer(NamedTuple):
    """What came of a file.

    Attributes
    ----------
    parts
        The bytes of each extent, or of the tail, or of the whole; None in the place of those that
        the server cannot send in this way. Empty if nothing was to be sent.
    version
        What the answer says of the version of the file, its size included.
    sent
        When it was sent, by the clock of the server (``Date``); ``""`` if that is not known.
    """

    parts: Sequence[Data | None]
    version: FileVersion
    sent: str = ""


def range_text(request: Request) -> str:
    """Return the header ``Range``."""
    if request.tail:
        return f"bytes=-{request.tail}"
    spans = (
        f"{start}-" if stop >= END else f"{start}-{stop - 1}"
        for start, stop in request.extents or ()
    )
    return f"bytes={','.join(spans)}"


class TransientError(Exception):
    """Worth another try.

    Attributes
    ----------
    wait : float
        Seconds until then, at least.
    busy : bool
        Whether the server says that these are too many requests.
    cost : int
        How many of the `ATTEMPTS` it takes. The owner of many requests sets this to 0 if the
        server answered others meanwhile: it works, and this one comes to its turn.
    absent : bool
        Whether there is no such host, or it listens at no such port. That passes where a server
        has answered before, which is being restarted; else the address is wrong.
    """

    def __init__(
        self,
        reason: str,
        wait: float = 0.0,
        *,
        busy: bool = False,
        cost: int = 1,
        absent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.wait = wait
        self.busy = busy
        self.cost = cost
        self.absent = absent


# -- servers -----------------------------------------------------------------------------------
# How a server sends one file: from where, how fast, and whether in ranges.


#: bodies of this size and more, in bytes, tell the bandwidth
TELLING = 1 << 18
#: smaller ones do if they take longer than this, in seconds
_SLOW = 0.01
#: bytes per second; more is what a body had waiting when it was not read
FASTEST = 1e9
#: the least bandwidth that bodies which share the line tell, in bytes per second
_SHARED = 50e6


def tells_bandwidth(nbytes: int, seconds: float) -> bool:
    """Tell whether a body of so many bytes, which took so long, shows how fast bytes come."""
    return nbytes >= TELLING or (nbytes >= TELLING // 8 and seconds > _SLOW)


class ServerState:
    """What the requests for one file learn of its server, for those that follow.

    Parameters
    ----------
    ranges
        Extents that one request may name.
    max_whole
        Bytes of the file that may be kept in memory if its server does not serve ranges.

    Attributes
    ----------
    target : str or None
        Where a redirect led.
    latency : float or None
        Seconds from a request to the first byte of its answer, the least seen.
    bandwidth : float or None
        Bytes per second of one connection, the most seen.
    whole : bytes or None
        All of the file, once its server has sent that instead of a range.
    asking : Once
        Where the file is, or of which version: one request asks for all readers.
    """

    def __init__(self, ranges: int, max_whole: int) -> None:
        self.ranges = ranges
        self.max_whole = max_whole
        self.target: str | None = None
        self.latency: float | None = None
        self.bandwidth: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Start with what a pickle leaves behind."""
        self.whole: bytes | None = None
        self._keeping: asyncio.Future[bytes] | None = None
        self._bodies = 0  # that are being read
        self.asking: Once[Any] = Once()

    async def keep(
        self,
        download: Callable[[], Awaitable[bytes]],
        refuse: Callable[[], None],
        clock: Clock,
    ) -> bytes:
        """Return all of the file; of several downloads at a time only one is read."""
        if self.whole is not None:
            refuse()
            return self.whole
        import asyncio

        keeping = self._keeping
        # after a fork, the one under way belongs to a loop that does not run here
        if keeping is not None and keeping.get_loop() is asyncio.get_running_loop():
            refuse()
            clock.rest()
            return await asyncio.shield(keeping)
        keeping = self._keeping = asyncio.get_running_loop().create_future()
        try:
            whole = self.whole = await download()
        except BaseException as error:
            again = error if isinstance(error, StoreError) else TransientError(str(error))
            keeping.set_exception(again)
            keeping.exception()  # there may be nothing that waits for it
            raise
        else:
            keeping.set_result(whole)
            return whole
        finally:
            self._keeping = None

    async def timed(self, body: Awaitable[memoryview]) -> memoryview:
        """Await `body`, and learn the bandwidth, by the clock of the loop."""
        import asyncio

        clock = asyncio.get_running_loop().time
        began = clock()
        alone = not self._bodies
        self._bodies += 1
        try:
            data = await body
        finally:
            self._bodies -= 1
        took, count = clock() - began, len(data)
        if tells_bandwidth(count, took):
            speed = min(count / max(took, 1e-9), FASTEST)
            least = 0.0 if alone and not self._bodies else _SHARED
            self.bandwidth = max(self.bandwidth or least, speed)
        return data

    def arrived(self, target: str, asked: str, waited: float) -> None:
        """Note that an answer came from `target`, after so many seconds, when `asked` was asked."""
        if target == asked:
            self.latency = min(self.latency or waited, waited)
        else:  # it took another request to be told where to go
            self.target = target

    def leave(self, target: str) -> None:
        """Ask no longer where a redirect led."""
        if self.target == target:
            self.target = None

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("whole", "_keeping", "_bodies", "asking")
        return {name: value for name, value in self.__dict__.items() if name not in volatile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()
        self.__dict__.update(state)
