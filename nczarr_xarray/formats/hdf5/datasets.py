"""Datasets and committed datatypes, from the messages of their object headers."""

from __future__ import annotations

from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.attributes import Attributes
from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.layouts import decode_layout
from nczarr_xarray.formats.hdf5.messages import decode_fill, decode_old_fill
from nczarr_xarray.formats.hdf5.objects import Datatype, H5Dataset, Layout, OtherLayout
from nczarr_xarray.formats.hdf5.shared_messages import Found, SharedMessages, whole

_OF_DATASETS = (
    oh.DATASPACE,
    oh.DATATYPE,
    oh.OLD_FILL,
    oh.FILL,
    oh.EXTERNAL,
    oh.LAYOUT,
    oh.FILTERS,
)


class Fields:
    """The messages of a dataset, with those that it shares with others.

    Parameters
    ----------
    header
        Header of the dataset.
    shared
        Finds the messages that are stored elsewhere.
    """

    def __init__(self, header: oh.Header, shared: SharedMessages) -> None:
        self.header = header
        self._shared = shared
        self._decoded = shared.decoded
        self._found: Found = {}

    async def read(self) -> None:
        """Read the messages that are stored elsewhere."""
        messages = self.header.messages
        self._found = await self._shared.find(m.body for m in messages if m.type in _OF_DATASETS)

    def body(self, type_: int) -> bytes | None:
        """Return the bytes of the first message of a type; None if there is none."""
        message = self.header.first(type_)
        return None if message is None else whole(message.body, self._found)

    def cursor(self, type_: int, name: str) -> Cursor | None:
        """Return a cursor over the first message of a type; None if there is none."""
        body = self.body(type_)
        return None if body is None else Cursor(body, self.header.frame, self._what(name))

    def _what(self, name: str) -> str:
        return f"{self.header.what}, {name}"

    def datatype(self) -> Datatype:
        """Return the datatype."""
        body = self.body(oh.DATATYPE)
        assert body is not None  # or it is neither a dataset nor a datatype; see `tree.py`
        return self._decoded.datatype(body, self._what("datatype"))

    def dataset(self, attributes: Attributes) -> H5Dataset:
        """Return the dataset; its name is added later.

        Raises
        ------
        FormatError
            If the header lacks what is needed to read the data.
        """
        type_ = self.datatype()
        body = self.body(oh.DATASPACE)
        # without one it is a committed datatype; see `tree.py`
        assert body is not None
        space = self._decoded.dataspace(body, self._what("dataspace"))
        layout: Layout
        if self.header.first(oh.EXTERNAL):
            layout = OtherLayout("its data are in external files")
        elif cursor := self.cursor(oh.LAYOUT, "layout"):
            layout = decode_layout(cursor, space, type_)
        else:
            raise self.header.frame.error(self.header.what, "it has no data layout")
        body = self.body(oh.FILTERS)
        filters = self._decoded.filters(body, self._what("filter pipeline")) if body else ()
        return H5Dataset(
            "",
            self.header.address,
            type_,
            space,
            layout,
            fill=self._fill(type_),
            filters=filters,
            attributes=attributes.found,
            problems=tuple(attributes.problems),
        )

    def _fill(self, type_: Datatype) -> bytes | None:
        if cursor := self.cursor(oh.FILL, "fill value"):
            fill = decode_fill(cursor)
        elif cursor := self.cursor(oh.OLD_FILL, "fill value"):
            fill = decode_old_fill(cursor)
        else:
            fill = None
        if fill is not None and len(fill) != type_.size:
            reason = f"a fill value of {len(fill)} bytes, elements of {type_.size}"
            raise self.header.frame.error(self.header.what, reason)
        return fill
