"""Which version of a file an HTTP server sends: entity tags, times and sizes.

Source: RFC 9110 sections 8.8 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.source import Known

_Headers = Mapping[str, str]

#: seconds after which a file has to be sent for its time to tell it from the next version
_SETTLED = 60


class Version:
    """What the answers about one file have said so far, and must go on to say.

    Answers must agree in the entity tag, else (if one of them has none) in ``Last-Modified``,
    and in the size of the file wherever it is stated. An answer with neither validator, though
    earlier ones had one, must state the size.

    Attributes
    ----------
    etag, modified : str
        ``ETag`` and ``Last-Modified``; ``""`` while no answer had one.
    size : int
        Of the file; -1 while no answer stated it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.etag = ""
        self.modified = ""
        self.size = -1
        self._settled = False

    @property
    def validator(self) -> str:
        """One text for all of it; ``""`` if there is neither a tag nor a time long past."""
        return self.etag or (f"{self.modified};{self.size}" if self._settled else "")

    def begin(self, headers: _Headers) -> None:
        """Forget everything but what this first answer says."""
        self.etag = headers.get("ETag", "").strip()
        self.modified = headers.get("Last-Modified", "").strip()
        self.size = -1
        self._settled = _is_settled(self.modified, headers.get("Date", ""))

    def resume(self, known: Known) -> None:
        """Go on with a version that another source has seen."""
        self.etag, self.modified = _split(known.validator)
        self._settled = bool(self.modified)
        self.size = known.size

    def check(self, headers: _Headers, size: int | None) -> None:
        """Raise `StoreError` if a later answer is about another version.

        Parameters
        ----------
        headers
            Of the answer.
        size
            Of the file, where the answer states it.
        """
        etag = headers.get("ETag", "").strip()
        modified = headers.get("Last-Modified", "").strip()
        if size is not None and self.size not in (-1, size):
            raise self.changed(f"it had {self.size} bytes and has {size}")
        if etag and self.etag:
            if _opaque(etag) != _opaque(self.etag):
                raise self.changed(f"its tag was {self.etag} and is {etag}")
        elif modified and self.modified:
            if modified != self.modified:
                raise self.changed(f"it was of {self.modified} and is of {modified}")
        elif size is None and (self.etag or self.modified):
            raise StoreError(
                self._url, "the server no longer says which version of the file it sends"
            )
        self.etag = self.etag or etag
        self.modified = self.modified or modified

    def changed(self, how: str) -> StoreError:
        """The error that says so."""
        return StoreError(
            self._url, f"the file has changed while it was read ({how}); open it again"
        )


def condition(known: Known | None) -> dict[str, str]:
    """Headers that ask for a file only if it is not the known version.

    There are none without an entity tag: asked by time, a server may also call a file the same
    that was replaced by an older one.
    """
    etag = _split(known.validator)[0] if known is not None else ""
    return {"If-None-Match": etag} if etag else {}


def _is_settled(modified: str, date: str) -> bool:
    """Whether a file was sent so long after `modified` that no other version has this time."""
    try:
        age = parsedate_to_datetime(date) - parsedate_to_datetime(modified)
    except (ValueError, TypeError):
        return False
    return age.total_seconds() >= _SETTLED


def _split(validator: str) -> tuple[str, str]:
    """Entity tag and time in a `Version.validator`."""
    if _opaque(validator).startswith('"'):
        return validator, ""
    return "", validator.rpartition(";")[0]


def _opaque(etag: str) -> str:
    """An entity tag without its mark of weakness: proxies that compress add it."""
    return etag.removeprefix("W/")
