"""``nczarr copy`` to netCDF-4 with a layout: rounded, rechunked, on S3, all metadata in front."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest

import nczarr_xarray
from nczarr_xarray.cli.demo import DATASET
from tests.support.builders.cmip import drafts
from tests.support.builders.copying import copy
from tests.support.oracles.nc_adapter import find_ncdump, ncdump
from tests.support.servers.s3server import S3Server
from tests.xarray.tools.test_check import oracle

MODES = {"BitGroom": 3, "GranularBitRound": 3, "BitRound": 9}
LAYOUT = ("--optimize", "--cmip7", "--compress", "zlib:5", "--memory", "1GB")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of CMIP with small chunks, and its indexes among them."""
    (file,) = drafts(1, cells=160)
    random = np.random.default_rng(0).normal(280, 10, (6, 160, 160)).astype("f4")
    random[2, 3] = 1e20  # missing
    file.replace("tas", lambda _: random)
    file.variables["tas"][3]["chunks"] = (1, 16, 160)
    file.variables["time"][3]["chunks"] = (1,)
    file.block = 2048
    return file.write(tmp_path)


def structure(path: Path) -> dict[str, Any]:
    """All that HDF5 says of a file without its data."""
    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        found[name] = sorted(node.attrs)
        if isinstance(node, h5py.Dataset):
            offsets = [node.id.get_offset()]
            if node.chunks is not None:
                infos = [node.id.get_chunk_info(n) for n in range(node.id.get_num_chunks())]
                offsets = [info.byte_offset for info in infos]
            found[name] = node.dtype, node.shape, node.chunks, found[name], offsets

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def check_metadata_in_front(path: Path) -> None:
    """All of it is read as before from a file without anything from the first chunk on."""
    before = structure(path)
    begin = min(one for *_, chunks, _, offsets in _datasets(before) for one in offsets if chunks)
    data = path.read_bytes()
    cut = path.with_suffix(".cut")
    cut.write_bytes(data[:begin] + bytes(len(data) - begin))
    assert structure(cut) == before


def _datasets(found: dict[str, Any]) -> list[Any]:
    return [one for one in found.values() if isinstance(one, tuple)]


def rounded(path: Path, mode: str) -> np.ndarray:
    """What netCDF4 makes of the same values; its file is beside."""
    with netCDF4.Dataset(path) as file, netCDF4.Dataset(path.with_name("theirs"), "w") as theirs:
        values = file["tas"]
        for name, length in zip(values.dimensions, values.shape, strict=True):
            theirs.createDimension(name, length)
        how: Any = {"significant_digits": MODES[mode], "quantize_mode": mode}
        made = theirs.createVariable(
            "tas", "f4", values.dimensions, fill_value=np.float32(1e20), zlib=True, **how
        )
        made[:] = values[:]
    with netCDF4.Dataset(path.with_name("theirs")) as theirs:
        theirs.set_auto_mask(False)
        return np.asarray(theirs["tas"][:])


def check_rounded(source: Path, target: Path, mode: str) -> None:
    """netCDF4, h5netcdf and ncdump read what netCDF4 itself would have written."""
    wanted = rounded(source, mode)
    name = f"_Quantize{mode}NumberOfSignificant{'Bits' if mode == 'BitRound' else 'Digits'}"
    with netCDF4.Dataset(target) as file:
        file.set_auto_mask(False)
        np.testing.assert_array_equal(file["tas"][:], wanted)
        assert file["tas"].getncattr(name) == MODES[mode]
        assert file["tas"].quantization() == (MODES[mode], mode)
        assert file["tas"].filters()["complevel"] == 5
        assert file["tas"].filters()["shuffle"]
        assert file["tas"].chunking() == [6, 160, 160]
    with h5netcdf.File(target) as other:
        np.testing.assert_array_equal(other["tas"][...], wanted)
    program, _ = find_ncdump()
    if program is not None:
        assert f"tas:{name} = {MODES[mode]}" in ncdump("-h", str(target))
    check_metadata_in_front(target)
    oracle(str(target))


@pytest.mark.parametrize("mode", MODES)
def test_rounded(tmp_path: Path, source: Path, mode: str) -> None:
    target = tmp_path / "y.nc"
    copy(source, target, *LAYOUT, "--quantize", f"tas={mode}:{MODES[mode]}")
    check_rounded(source, target, mode)


def test_to_s3(tmp_path: Path, source: Path, s3_server: S3Server) -> None:
    signed = s3_server.signed()
    url = f"s3://{s3_server.private}/layout-{os.getpid()}.nc"
    options = [f"-O{name}={value}" for name, value in signed.items()]
    copy(source, url, *LAYOUT, "--quantize", "tas=3", *options)
    target = tmp_path / "y.nc"
    fsspec.filesystem("s3", **signed).get_file(url, str(target))
    check_rounded(source, target, "BitGroom")


def test_coordinates_stay_whole(tmp_path: Path, source: Path) -> None:
    """Opening a dataset reads all of them."""
    for target in ("y.nc", "y.nczarr"):
        copy(source, tmp_path / target, "--chunks", "time=2,lat=80", "--verify")
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        assert file["tas"].chunking() == [2, 80, 160]
        assert file["time_bnds"].chunking() == [2, 2]
        assert file["time"].chunking() == [6]
    for options in ((), ("--chunks", "time=2"), ("--optimize",)):
        copy(source, tmp_path / "z.nc", *options, "--overwrite")
        check_metadata_in_front(tmp_path / "z.nc")


@pytest.mark.parametrize("options", [(), ("--optimize",)])
def test_texts_have_no_index_behind_the_data(tmp_path: Path, options: tuple[str, ...]) -> None:
    """netCDF4 writes them last; where the source has one chunk, they are in one piece."""
    for number, source in enumerate((DATASET, str(tmp_path / "0.nc"))):
        target = tmp_path / f"{number}.nc"
        copy(source, target, *options, "--verify")
        check_metadata_in_front(target)
        assert "index-scattered" not in {one.code for one in nczarr_xarray.doctor(target).findings}
        with netCDF4.Dataset(target) as file:
            assert file["month_name"][0] == "January"
