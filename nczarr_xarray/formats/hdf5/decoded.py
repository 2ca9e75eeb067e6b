"""Messages that many objects have in common, decoded once.

Thousands of attributes and datasets have the same few datatypes, dataspaces
and filter pipelines, byte for byte; so have thousands of files of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.datatypes import decode_datatype
from nczarr_xarray.formats.hdf5.messages import decode_dataspace, decode_filters
from nczarr_xarray.formats.hdf5.objects import Dataspace, Datatype, Filter

T = TypeVar("T")

#: Messages of all files up to so many bytes are kept, and so many of each kind at most.
_SHORT = 512
_MOST = 4096
#: They, by what decodes them and by the sizes of addresses and lengths.
_known: dict[tuple[Callable[[Cursor], Any], int, int], dict[bytes, Any]] = {}


class Decoded:
    """Decodes messages of one file that depend on nothing but their bytes.

    Each method takes the bytes of a message and the name of what it belongs
    to, and raises `FormatError` with that name if the message is damaged.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._types: dict[bytes, Datatype] = {}
        self._spaces: dict[bytes, Dataspace] = {}
        self._filters: dict[bytes, tuple[Filter, ...]] = {}

    def datatype(self, body: bytes, what: str) -> Datatype:
        """Return the datatype of a message."""
        found = self._types.get(body)
        return found or self._decode(self._types, decode_datatype, body, what)

    def dataspace(self, body: bytes, what: str) -> Dataspace:
        """Return the dataspace of a message."""
        found = self._spaces.get(body)
        return found or self._decode(self._spaces, decode_dataspace, body, what)

    def filters(self, body: bytes, what: str) -> tuple[Filter, ...]:
        """Return the filter pipeline of a message."""
        found = self._filters.get(body)
        return found or self._decode(self._filters, decode_filters, body, what)

    def _decode(
        self, known: dict[bytes, T], decode: Callable[[Cursor], T], body: bytes, what: str
    ) -> T:
        frame = self.frame
        everywhere = _known.setdefault((decode, frame.offset_size, frame.length_size), {})
        found: T | None = everywhere.get(body)
        if found is None:
            found = decode(Cursor(body, frame, what))
            if len(body) <= _SHORT:
                if len(everywhere) >= _MOST:
                    everywhere.clear()
                everywhere[body] = found
        known[body] = found
        return found
