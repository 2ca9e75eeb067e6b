from __future__ import annotations

import pytest

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5 import messages
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datatypes import decode_datatype
from nczarr_xarray.formats.hdf5.messages import Decoded, decode_dataspace

#: An integer of 4 bytes, little-endian and signed, of version 1.
INT = bytes([0x10, 0x08, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0])


def test_equal_messages_of_all_files_are_one_object() -> None:
    one, other = Decoded(Frame("a.nc")), Decoded(Frame("b.nc"))
    assert one.of(decode_datatype, INT, "v") is other.of(decode_datatype, INT, "w")
    found = one.of(decode_datatype, INT, "v")
    assert (found.kind, found.size) == ("integer", 4)


def test_sizes_of_lengths_keep_messages_apart() -> None:
    body = bytes([2, 1, 0, 1, *(5).to_bytes(8, "little")])
    assert Decoded(Frame("a.nc")).of(decode_dataspace, body, "v").shape == (5,)
    body = body[:-4]
    assert Decoded(Frame("b.nc", length_size=4)).of(decode_dataspace, body, "v").shape == (5,)
    with pytest.raises(FormatError, match=r"c\.nc"):
        Decoded(Frame("c.nc")).of(decode_dataspace, body, "v")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_MOST", 3)
    monkeypatch.setattr(messages, "_known", {})
    known = messages._known
    for size in range(1, 10):
        body = bytes([0x13, 0, 0, 0, *size.to_bytes(4, "little")])
        assert Decoded(Frame("a.nc")).of(decode_datatype, body, "v").size == size
        assert all(len(messages) <= 4096 for messages in known.values())
    frame = Frame("a.nc")
    assert len(known[decode_datatype, frame.offset_size, frame.length_size]) <= 3
