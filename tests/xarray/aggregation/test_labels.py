"""Labels that are characters, of texts that may be longer in some files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray import aggregate

VERSIONS = ("0.4", "0.6.2", "1.13")


def write(
    path: Path,
    time: int,
    labels: Mapping[str, tuple[str | None, list[str]]],
    length: int = 2,
    length_name: str = "strlen",
    data: bool = False,
) -> str:
    """Write a file with two times, and labels by name: along a dimension, or of the file."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 2)
        file.createDimension(length_name, length)
        file.createVariable("time", "f8", ("time",))[:] = [time, time + 1]
        field = file.createVariable("v", "f8", ("time",))
        field[:] = [time, time + 1]
        field.coordinates = "" if data else " ".join(labels)
        for name, (dimension, texts) in labels.items():
            characters = netCDF4.stringtochar(np.array(texts, f"S{length}"))
            if dimension is None:
                file.createVariable(name, "S1", (length_name,))[:] = characters[0]
                continue
            if dimension not in file.dimensions:
                file.createDimension(dimension, len(texts))
            file.createVariable(name, "S1", (dimension, length_name))[:] = characters
            if dimension != "time":
                file.createVariable(f"of_{name}", "f8", (dimension,))
    return str(path)


def texts(master: Path, name: str) -> Any:
    """Return the labels of a master as netCDF-C reads them, where it is sure to hold them."""
    with netCDF4.Dataset(master) as file:
        found = netCDF4.chartostring(file[name][:], encoding="ascii").tolist()
    with xr.open_dataset(master, engine="nczarr") as seen:
        np.testing.assert_array_equal(seen[name].values.astype(str), found)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("lengths", [(2, 2, 2), (2, 3, 4), (4, 2, 3)])
def test_labels_of_files_follow_each_other(
    tmp_path: Path, version: str, lengths: tuple[int, int, int]
) -> None:
    files = [
        write(
            tmp_path / f"{n}.nc",
            2 * n,
            {
                "region": (None, ["eu"]),
                "day": ("time", [f"{2 * n}", "x" * lengths[n]]),
                "station": ("station", ["a", "b", "c"]),
            },
            lengths[n],
            f"string{lengths[n]}",  # as xarray calls it
        )
        for n in range(3)
    ]
    master = tmp_path / "m.nca"
    aggregate(files[:2], master, cfa_version=version)
    aggregate(files[2:], master, append=True)
    assert texts(master, "region") == "eu"
    assert texts(master, "station") == ["a", "b", "c"]
    expected = [one for n in range(3) for one in (f"{2 * n}", "x" * lengths[n])]
    assert texts(master, "day") == expected
    with xr.open_dataset(master, engine="nczarr") as found:
        assert found["v"].values.tolist() == [*range(6)]
        assert set(found["v"].coords) == {"time", "region", "day"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_scalar", [True, False])
def test_labels_name_the_members_of_a_dimension(
    tmp_path: Path, version: str, is_scalar: bool
) -> None:
    """One label of each file: of the file itself, or along a dimension of length 1."""
    files = [
        write(tmp_path / f"{n}.nc", 0, {"member": (None if is_scalar else "member", [name])}, 8)
        for n, name in enumerate(("r1i1p1f1", "r2", "r10"))
    ]
    master = tmp_path / "m.nca"
    aggregate(files[:2], master, dim="member", cfa_version=version)
    aggregate(files[2:], master, append=True)
    assert texts(master, "member") == ["r10", "r1i1p1f1", "r2"]
    with xr.open_dataset(master, engine="nczarr") as found:
        assert found["member"].dims == ("member",)
        assert found.sel(member=b"r2")["v" if is_scalar else "of_member"].ndim == int(is_scalar)


def test_labels_of_files_along_another_new_dimension(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.nc", 0, {"model": (None, [f"m{n}"])}) for n in range(3)]
    aggregate(files, tmp_path / "m.nca", dim="member")
    assert texts(tmp_path / "m.nca", "model") == ["m0", "m1", "m2"]
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["model"].dims == ("member",)


def test_the_same_label_twice(tmp_path: Path) -> None:
    labels = {"member": (None, ["r1"])}
    files = [write(tmp_path / f"{n}.nc", 0, labels, 2 + n, f"string{n}") for n in range(2)]
    with pytest.raises(ExportError, match="same coordinates"):
        aggregate(files, tmp_path / "m.nca", dim="member")
    other = write(tmp_path / "c.nc", 2, {"member": (None, ["r2"])})
    with pytest.raises(ExportError, match=r"c\.nc.* other values of the coordinate /member"):
        aggregate([files[0], other], tmp_path / "m.nca", dim="time")


def test_text_that_is_data_must_be_as_long_in_all_files(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{n}.nc", 2 * n, {"t": ("time", ["a", "b"])}, 2 + n, data=True)
        for n in range(2)
    ]
    with pytest.raises(ExportError, match=r"1\.nc.*length 3 along /strlen"):
        aggregate(files, tmp_path / "m.nca")
    files = [
        write(tmp_path / f"d{n}.nc", 2 * n, {"t": ("time", [f"{n}", "b"])}, data=True)
        for n in range(2)
    ]
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["t"].values.tolist() == [b"0", b"b", b"1", b"b"]


def test_a_length_that_data_have_as_well_does_not_grow(tmp_path: Path) -> None:
    files = []
    for n in range(2):
        path = tmp_path / f"{n}.nc"
        files.append(write(path, 2 * n, {"day": ("time", [f"{n}", "b"])}, 2 + n))
        with netCDF4.Dataset(path, "a") as file:
            file.createVariable("notes", "S1", ("time", "strlen"))
    with pytest.raises(ExportError, match="length"):
        aggregate(files, tmp_path / "m.nca")
