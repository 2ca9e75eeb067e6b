"""What is asked of a file behind a network, and what comes back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from nczarr_fsspec.transport.route import Route
    from nczarr_fsspec.transport.version import FileVersion

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
    route
        What is known of the way to this file, and is to be learned.
    """

    path: str
    shown: str
    extents: Sequence[Extent] | None = None
    tail: int = 0
    version: FileVersion | None = None
    unless: FileVersion | None = None
    most: int | None = None
    route: Route | None = None

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
