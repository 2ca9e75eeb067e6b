"""What is asked of a file behind a network, and what comes back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nczarr_fsspec.errors import StoreError

if TYPE_CHECKING:
    from nczarr_fsspec.transport.server_state import ServerState


#: seconds after which no other version of a file can have the same time
SETTLED = 60


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


def changed(shown: str, how: str) -> StoreError:
    """Return the error for a file of which there is another version now."""
    return StoreError(shown, f"the file has changed while it was read ({how}); open it again")


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
