"""Files that are alike: what is read without parsing is what parsing finds, or it is not read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_xarray.dataset.alike_files import AlikeFiles
from nczarr_xarray.dataset.fragment_opener import Opening
from nczarr_xarray.dataset.open import Fragments

DATA = np.arange(12, dtype="f4").reshape(3, 4)


def write(path: Path, offset: float = 0.0, **options: Any) -> Path:
    attributes = options.pop("attributes", {"units": "K"})
    name = options.pop("name", "tas")
    with netCDF4.Dataset(path, "w", format=options.pop("format", "NETCDF4")) as file:
        file.createDimension("time", 3)
        file.createDimension("x", 4)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(3) + offset
        group = file.createGroup("g") if options.pop("group", False) else file
        dtype = options.pop("dtype", "f4")
        tas = group.createVariable(name, dtype, ("time", "x"), fill_value=-9, **options)
        tas.setncatts(attributes)
        tas[:] = DATA + offset
    return path


def opened(path: Path, name: str = "tas") -> Opening:
    return Fragments().open(str(path), None, name, depth=1, entire=False)


def learned(path: Path, name: str = "tas") -> AlikeFiles:
    files = AlikeFiles()
    files.learn(name, opened(path, name))
    return files


def test_data_that_differ(tmp_path: Path) -> None:
    files = learned(write(tmp_path / "0.nc"))
    for offset in (0.0, 1.0, 1e6):
        path = write(tmp_path / "1.nc", offset)
        found = files.read(str(path), "tas")
        assert found is not None
        np.testing.assert_array_equal(found[1], DATA + np.float32(offset), strict=True)
        assert found[0].attributes.keys() == opened(path).variable.attributes.keys()


@pytest.mark.parametrize("options", [{"group": True}, {"dtype": "i2"}, {"dtype": "f8"}], ids=str)
def test_groups_and_types(tmp_path: Path, options: dict[str, Any]) -> None:
    name = "g/tas" if "group" in options else "tas"
    files = learned(write(tmp_path / "0.nc", **options), name)
    path = write(tmp_path / "1.nc", 5.0, **options)
    found = files.read(str(path), name)
    assert found is not None
    np.testing.assert_array_equal(found[1], opened(path, name).reader.read(), strict=True)


@pytest.mark.parametrize(
    "options",
    [
        {"attributes": {"units": "C"}},
        {"attributes": {"units": "K", "more": 1}},
        {"attributes": {}},
        {"dtype": "i4"},
        {"dtype": "i2"},
        {"name": "tos"},
        {"zlib": True},
        {"chunksizes": (3, 2)},
        {"format": "NETCDF3_CLASSIC"},
        {"group": True},
    ],
    ids=str,
)
def test_metadata_that_differ(tmp_path: Path, options: dict[str, Any]) -> None:
    files = learned(write(tmp_path / "0.nc"))
    path = str(write(tmp_path / "1.nc", **options))
    assert files.read(path, "tas") is None
    assert files.open(path, "tas") is None


def test_what_is_not_learned(tmp_path: Path) -> None:
    path = write(tmp_path / "0.nc", format="NETCDF3_CLASSIC")
    files = learned(path)
    assert files.pattern("tas") is None
    assert files.open(str(path), "tas") is None


@pytest.mark.parametrize(
    "options",
    [{}, {"zlib": True}, {"chunksizes": (2, 3), "zlib": True, "shuffle": True}, {"fletcher32": 1}],
    ids=str,
)
def test_files_are_opened(tmp_path: Path, options: dict[str, Any]) -> None:
    files = learned(write(tmp_path / "0.nc", **options))
    for offset in (0.0, 1.0, 1e6):
        path = write(tmp_path / "1.nc", offset, **options)
        found = files.open(str(path), "tas")
        assert found is not None
        assert found.alike
        again = pickle.loads(pickle.dumps(found.reader))
        for reader in (found.reader, again):
            np.testing.assert_array_equal(reader.read(), DATA + np.float32(offset), strict=True)
    other = write(tmp_path / "2.nc", attributes={"units": "C"}, **options)
    assert files.open(str(other), "tas") is None


def test_the_error_names_the_file(tmp_path: Path) -> None:
    files = learned(write(tmp_path / "0.nc", zlib=True))
    path = write(tmp_path / "1.nc", 7.0, zlib=True)
    with h5py.File(path) as file:
        at = file["tas"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at : at + 8] = b"x" * 8
    path.write_bytes(content)
    found = files.open(str(path), "tas")
    assert found is not None
    with pytest.raises(FormatError, match=r"/tas chunk \(0, 0\)"):
        found.reader.read()


def test_large_data_that_lie_far_back(tmp_path: Path) -> None:
    for number in range(2):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("x", 50_000)
            for name in ("first", "tas"):
                file.createVariable(name, "f4", ("x",))[:] = np.arange(50_000) + number
    found = learned(tmp_path / "0.nc").read(str(tmp_path / "1.nc"), "tas")
    assert found is not None
    np.testing.assert_array_equal(found[1], np.arange(50_000, dtype="f4") + 1)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    path = write(tmp_path / "0.nc")
    files, content = learned(path), path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short.nc").write_bytes(content[:-1])
    (tmp_path / "start.nc").write_bytes(content[:300])
    (tmp_path / "behind.nc").write_bytes(bytes(512) + content)
    for name in ("pipe", "short.nc", "start.nc", "behind.nc", "none.nc", ".", "\0"):
        assert files.read(f"{tmp_path}{os.sep}{name}", "tas") is None
        assert files.open(f"{tmp_path}{os.sep}{name}", "tas") is None
    assert files.read(str(path), "time") is None
    assert files.read(str(path), "tas") is not None


def test_few_patterns_are_learned(tmp_path: Path) -> None:
    files = AlikeFiles()
    for number in range(12):
        path = write(tmp_path / f"{number}.nc", attributes={"units": "K" * (number + 1)})
        files.learn("tas", opened(path))
    pattern = files.pattern("tas")
    assert pattern is not None
    assert pattern.variable.attributes["units"].value == "K" * 8


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(at=st.integers(0, 4095), value=st.integers(0, 255), packed=st.booleans())
def test_any_byte_that_counts(tmp_path: Path, at: int, value: int, packed: bool) -> None:
    """A file that differs in one byte is read as the parser reads it, or not."""
    path, other = tmp_path / f"{packed}.nc", tmp_path / "1.nc"
    if not path.exists():
        write(path, zlib=packed)
    files = learned(path)
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    other.write_bytes(content)
    found = files.open(str(other), "tas")
    if found is None:
        assert files.read(str(other), "tas") is None
        return
    if 28 <= at < 48:  # the end of the file and the checksum of the superblock
        return
    expected = opened(other)
    assert found.variable.attributes.keys() == expected.variable.attributes.keys()
    for name, attribute in expected.variable.attributes.items():
        assert repr(found.variable.attributes[name].value) == repr(attribute.value)
    outcome, wanted = (_outcome(one) for one in (found, expected))
    assert outcome == wanted
    whole = files.read(str(other), "tas")
    assert whole is None or whole[1].tolist() == wanted


def _outcome(found: Opening) -> Any:
    try:
        return found.reader.read().tolist()
    except NCZarrError as error:
        return str(error)


def test_files_of_h5py(tmp_path: Path) -> None:
    """Superblocks of version 0 are left to the parser, and those of version 3 are not."""
    for libver, known in (("earliest", False), ("latest", True)):
        for number in range(2):
            with h5py.File(tmp_path / f"{number}.h5", "w", libver=libver) as file:
                file["v"] = DATA + number
        found = learned(tmp_path / "0.h5", "v").read(str(tmp_path / "1.h5"), "v")
        assert (found is not None) == known
        if found is not None:
            np.testing.assert_array_equal(found[1], DATA + 1)
