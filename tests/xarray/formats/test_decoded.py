from __future__ import annotations

from typing import Any

import pytest

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.hdf5 import binary
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datatypes import decode_datatype
from nczarr_xarray.formats.hdf5.messages import decode_dataspace

#: An integer of 4 bytes, little-endian and signed, of version 1.
INT = bytes([0x10, 0x08, 0, 0, 4, 0, 0, 0, 0, 0, 32, 0])


def test_equal_messages_of_all_files_are_one_object() -> None:
    one, other = Frame("a.nc"), Frame("b.nc")
    found = one.decoded(decode_datatype, INT, "v")
    assert found is other.decoded(decode_datatype, INT, "w")
    assert (found.kind, found.size) == ("integer", 4)


def test_sizes_of_lengths_keep_messages_apart() -> None:
    body = bytes([2, 1, 0, 1, *(5).to_bytes(8, "little")])
    assert Frame("a.nc").decoded(decode_dataspace, body, "v").shape == (5,)
    body = body[:-4]
    assert Frame("b.nc", length_size=4).decoded(decode_dataspace, body, "v").shape == (5,)
    with pytest.raises(FormatError, match=r"c\.nc"):
        Frame("c.nc").decoded(decode_dataspace, body, "v")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "MOST_STRUCTURES", 3)
    known: dict[Any, Any] = {}
    monkeypatch.setattr(binary, "known_structures", known)
    frame = Frame("a.nc")
    for size in range(1, 10):
        body = bytes([0x13, 0, 0, 0, *size.to_bytes(4, "little")])
        assert frame.decoded(decode_datatype, body, "v").size == size
        assert len(frame.kept(decode_datatype)) <= 3
    large = bytes([0x13, 0, 0, 0, 9, 0, 0, 0]) + bytes(4096)
    assert frame.decoded(decode_datatype, large, "v").size == 9
    assert large not in frame.kept(decode_datatype)
