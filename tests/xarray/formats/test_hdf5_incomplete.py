"""HDF5 files that are not all there: truncated, of several files, metadata in an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, UnsupportedError
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.hdf5.binary import lookup3

LIBVERS = ["earliest", "latest"]
DATA = np.arange(2000.0)


def write(path: Path, libver: str, **options: Any) -> None:
    with h5py.File(path, "w", libver=libver, **options) as file:
        file["first"] = np.arange(3)
        file["v"] = DATA


@pytest.mark.parametrize("block", [0, 512])
@pytest.mark.parametrize("libver", LIBVERS)
def test_a_truncated_file_is_called_so(tmp_path: Path, libver: str, block: int) -> None:
    path = tmp_path / "v.h5"
    write(path, libver, userblock_size=block)
    whole = path.read_bytes()
    with open_hierarchy(path) as opened:
        assert not opened.hierarchy.problems
    path.write_bytes(whole[:-1000])
    with pytest.warns(NCZarrWarning) as caught:
        dataset = xr.open_dataset(path, engine="nczarr")
    assert f"{path}: is truncated: 1000 bytes are missing" in str(caught[0].message)
    with dataset:
        assert dataset["first"].values.tolist() == [0, 1, 2]
        with pytest.raises(FormatError, match=r"/v: .*truncated"):
            dataset["v"].load()


@pytest.mark.parametrize("libver", LIBVERS)
def test_wherever_a_file_is_cut(libver: str) -> None:
    with h5py.File("memory", "w", driver="core", backing_store=False, libver=libver) as file:
        for name in "abc":
            file.create_dataset(f"g/{name}", data=np.arange(9), chunks=(3,), compression="gzip")
        file.flush()
        whole = bytes(file.id.get_file_image())
    for size in range(100, len(whole), 61):
        try:
            with open_hierarchy(MemoryBytes(whole[:size], "memory")) as opened:
                problems = list(map(str, opened.hierarchy.problems))
        except NCZarrError as error:
            problems = [str(error)]
        assert any("truncated" in problem for problem in problems), (size, problems)


def test_a_user_block_that_was_put_before(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    write(path, "earliest")
    path.write_bytes(bytes(512) + path.read_bytes())
    with open_hierarchy(path) as opened:
        assert not opened.hierarchy.problems
        assert opened.read(opened.hierarchy.root.variables["v"]).tolist() == DATA.tolist()


@pytest.mark.parametrize("libver", LIBVERS)
def test_pieces_of_a_family(tmp_path: Path, libver: str) -> None:
    write(tmp_path / "f%d.h5", libver, driver="family", memb_size=4096)
    match = r"f0\.h5: .*family driver, and \d+ bytes are in others: join"
    with pytest.raises(UnsupportedError, match=match):
        xr.open_dataset(tmp_path / "f0.h5", engine="nczarr")
    pieces = sorted(tmp_path.iterdir())
    assert len(pieces) == 5
    whole = tmp_path / "whole.h5"
    whole.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    with xr.open_dataset(whole, engine="nczarr") as dataset:
        np.testing.assert_array_equal(dataset["v"], DATA)


@pytest.mark.parametrize("libver", LIBVERS)
def test_a_family_of_one(tmp_path: Path, libver: str) -> None:
    write(tmp_path / "f%d.h5", libver, driver="family", memb_size=1 << 20)
    with xr.open_dataset(tmp_path / "f0.h5", engine="nczarr") as dataset:
        np.testing.assert_array_equal(dataset["v"], DATA)


@pytest.mark.parametrize("libver", LIBVERS)
def test_split_files(tmp_path: Path, libver: str) -> None:
    write(tmp_path / "v", libver, driver="split")
    with pytest.raises(UnsupportedError, match=r"v-m\.h5: is of HDF5's multi .*driver='split'"):
        xr.open_dataset(tmp_path / "v-m.h5", engine="nczarr")


def changed(path: Path, old: bytes, new: bytes) -> bytes:
    """A file whose superblock extension is another, with a checksum that fits."""
    data = bytearray(path.read_bytes())
    start = data.index(b"OHDR")
    end = data.index(b"OHDR", start + 4)
    at = data.index(old, start, end)
    data[at : at + len(new)] = new
    data[end - 4 : end] = lookup3(bytes(data[start : end - 4])).to_bytes(4, "little")
    return bytes(data)


def test_other_drivers(tmp_path: Path) -> None:
    write(tmp_path / "f%d.h5", "latest", driver="family", memb_size=4096)
    data = changed(tmp_path / "f0.h5", b"NCSAfami", b"Subfilin")
    with pytest.raises(UnsupportedError, match=r"driver 'Subfilin', and \d+ bytes .*h5fuse"):
        open_hierarchy(MemoryBytes(data, "memory"))


def test_an_image_of_the_metadata_cache(tmp_path: Path) -> None:
    write(tmp_path / "f%d.h5", "latest", driver="family", memb_size=1 << 20)
    # message 0x14, driver information, becomes 0x18
    data = changed(tmp_path / "f0.h5", b"\x14\x13\x00", b"\x18\x13\x00")
    with pytest.raises(UnsupportedError, match=r"image of the metadata cache.*h5repack"):
        open_hierarchy(MemoryBytes(data, "memory"))
