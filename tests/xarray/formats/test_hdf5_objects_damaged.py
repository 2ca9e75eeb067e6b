"""The raw metadata of damaged HDF5 files: an error that says what is wrong, within bounds."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.formats.hdf5 import btrees, header, heaps, messages
from tests.support.builders.h5objects import Equal, everything, made, read
from tests.support.examples import examples


@pytest.mark.parametrize("data", [b"", b"x", b"\x89HDF\r\n\x1a\n", b"CDF\1" + bytes(5000)])
def test_no_hdf5(data: bytes) -> None:
    with pytest.raises(FormatError):
        read(data)


def dense(h5: h5py.File) -> None:
    for i in range(40):
        h5.create_group(f"g{i}").attrs["x"] = i
    for i in range(20):
        h5.attrs[f"a{i}"] = "x" * (i * 37)
    h5.attrs["huge"] = np.arange(3000.0)


DENSE = made(dense, libver="v108", track_order=True)


def harmless(data: bytes) -> None:
    """Reading gives a tree or an error, within bounds."""
    try:
        found = read(data)
    except NCZarrError as error:
        assert str(error)
        return
    assert found.rounds < 60
    assert sum(length for _, length in found.flat) < 4_000_000


SAMPLES = {
    libver: made(everything, libver=libver, track_order=order)
    for libver, order in (("earliest", False), ("v108", True), ("latest", False))
}


@pytest.mark.parametrize("libver", SAMPLES)
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_damage(libver: str, data: st.DataObject) -> None:
    sample = bytearray(SAMPLES[libver])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sample) - 9))
        kind = data.draw(st.sampled_from(["bit", "byte", "ones", "copy"]))
        if kind == "bit":
            sample[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "byte":
            sample[at] = data.draw(st.integers(0, 255))
        elif kind == "ones":
            sample[at : at + 8] = b"\xff" * 8
        else:
            source = data.draw(st.integers(0, len(sample) - 9))
            sample[at : at + 8] = sample[source : source + 8]
    harmless(bytes(sample))


@pytest.mark.parametrize("libver", SAMPLES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_cut_off(libver: str, data: st.DataObject) -> None:
    sample = SAMPLES[libver]
    harmless(sample[: data.draw(st.integers(0, len(sample)))])


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_malice(data: st.DataObject) -> None:
    """Checksums do not help against those who compute them: here nobody looks at them."""
    sample = bytearray(DENSE)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(sample) - 9))
        value = data.draw(st.one_of(st.integers(0, len(sample)), st.integers(0, 2**64 - 1)))
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        sample[at : at + width] = (value % 256**width).to_bytes(width, "little")
    with pytest.MonkeyPatch.context() as patch:
        for module in (btrees, header, heaps, messages):
            patch.setattr(module, "verify", lambda *_: None)
        patch.setattr(heaps, "lookup3", lambda _: Equal())
        harmless(bytes(sample))


def test_checksums() -> None:
    """In the newest format a damaged byte of the metadata is noticed, wherever it is."""

    def fill(h5: h5py.File) -> None:
        for i in range(30):
            h5[f"d{i}"] = 1.0
            h5["d0"].attrs[f"a{i}"] = i

    data = made(fill, libver="latest")
    read_there = [extent for extent in read(data).flat if extent[1] not in (2048, 4096, 256)]
    assert read_there
    good = repr(read(data).result)
    for start, length in read_there:
        damaged = bytearray(data)
        damaged[start + length // 2] ^= 0x10
        try:
            assert repr(read(bytes(damaged)).result) != good
        except FormatError as error:
            assert "checksum" in str(error)
