"""Several files as one dataset, by the interface of netCDF4-python."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest

import nczarr_xarray.netcdf4 as ours
from tests.support.oracles.netcdf4_python import difference


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.nc" for number in range(4)]
    for number, path in enumerate(paths):
        with netCDF4.Dataset(path, "w", format="NETCDF4_CLASSIC") as nc:
            nc.createDimension("time", None)
            nc.createDimension("x", 2)
            time = nc.createVariable("time", "i4", ("time",))
            time.setncatts(
                {"units": f"days since 2000-01-{1 + 3 * number:02}", "calendar": "noleap"}
            )
            time[:] = np.arange(3)
            v = nc.createVariable("v", "f4", ("time", "x"), fill_value=-9.0)
            v[:] = np.ma.masked_less(np.arange(6).reshape(3, 2) + 6 * number, 2)
            nc.createVariable("fixed", "i2", ("x",))[:] = [1, 2]
            nc.title = f"file {number}"
    return paths


KEYS = (
    (...,),
    (5,),
    (slice(2, 9), 1),
    (slice(1, None, 4),),
    (-1, slice(None)),
)


@pytest.mark.parametrize("key", KEYS)
def test_values_are_those_of_netcdf4_python(paths: list[Path], key: tuple[object, ...]) -> None:
    with netCDF4.MFDataset(paths) as theirs, ours.MFDataset(paths) as mine:
        for name in ("time", "v") if len(key) == 1 and key != (...,) else ("v",):
            there, here = np.ma.asarray(theirs[name][key]), np.ma.asarray(mine[name][key])
            np.testing.assert_array_equal(np.ma.getmaskarray(there), np.ma.getmaskarray(here))
            np.testing.assert_array_equal(there.filled(0), here.filled(0))


def test_attributes_and_lengths_are_those_of_the_first(paths: list[Path]) -> None:
    with ours.MFDataset([*map(str, paths)]) as nc:
        assert nc.title == "file 0"
        assert nc.dimensions["time"].size == 12
        assert nc["v"].shape == (12, 2)
        assert not difference(nc["fixed"][:], ours.Dataset(paths[0])["fixed"][:])
        assert nc.isopen()


def test_lists_reach_over_files(paths: list[Path]) -> None:
    with ours.MFDataset(paths) as nc:
        positions = [1, 4, 5, 11]
        np.testing.assert_array_equal(nc["v"][positions, 0], nc["v"][:][positions, 0])


def test_a_pattern_of_netcdf_4_files(tmp_path: Path, paths: list[Path]) -> None:
    for path in paths:
        with netCDF4.Dataset(path.with_suffix(".nc4"), "w") as nc:
            nc.createDimension("t", 2)
            nc.createVariable("v", "i4", ("t",))[:] = [1, 2]
    with ours.MFDataset(str(tmp_path / "*.nc4"), aggdim="t") as nc:
        assert nc["v"][:].tolist() == [1, 2] * 4


def test_switches_reach_all_files(paths: list[Path]) -> None:
    with ours.MFDataset(paths) as nc:
        nc.set_auto_mask(False)
        assert nc["v"][0].tolist() == [-9, -9]


def test_times_in_one_unit(paths: list[Path]) -> None:
    with netCDF4.MFDataset(paths) as theirs, ours.MFDataset(paths) as mine:
        expected = netCDF4.MFTime(theirs["time"])
        times = ours.MFTime(mine["time"])
        assert times.units == expected.units
        np.testing.assert_array_equal(times[:], expected[:])


def test_files_that_disagree_are_named(tmp_path: Path, paths: list[Path]) -> None:
    with netCDF4.Dataset(paths[2], "a") as nc:
        nc.renameVariable("v", "w")
    with pytest.raises(OSError, match=r"v not defined in .*2\.nc"):
        ours.MFDataset(paths, check=True)
    with pytest.raises(OSError, match="does not have a aggregation dimension"):
        ours.MFDataset(paths, aggdim="nothing")
    with pytest.raises(OSError, match="no files"):
        ours.MFDataset(str(tmp_path / "*.nothing"))


def test_a_list_is_joined(paths: list[Path]) -> None:
    with ours.Dataset(paths, "r") as nc:
        assert nc["v"].shape == (12, 2)


def test_three_hundred_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:03}.nc" for number in range(300)]
    for number, path in enumerate(paths):
        with netCDF4.Dataset(path, "w") as nc:  # of NETCDF4, which theirs refuses
            nc.createDimension("time", None)
            nc.createVariable("v", "i4", ("time",))[:] = [2 * number, 2 * number + 1]
    with ours.MFDataset(str(tmp_path / "*.nc")) as nc:
        assert nc["v"][:].tolist() == [*range(600)]
        assert nc["v"][599:2:-7].tolist() == [*range(599, 2, -7)]
