"""Conversion of units in aggregations."""

from __future__ import annotations

from pathlib import Path

import cftime
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import aggregate


def test_missing_times_of_fragments_stay_missing(tmp_path: Path) -> None:
    fill = 9.969209968386869e36
    for number, units in enumerate(("days since 2000-01-01", "hours since 2000-01-01")):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("t", 2)
            for name in ("t", "v", "w"):
                variable = file.createVariable(name, "f8", ("t",), fill_value=fill)
                variable.setncatts({"units": units, "calendar": "noleap"})
                variable.set_auto_mask(False)
            first = [0.0, 1.0] if number == 0 else [48.0, 72.0]
            file["t"][:], file["v"][:], file["w"][:] = first, [np.nan, 48.0], [fill, 48.0]
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as found:
        np.testing.assert_array_equal(found["t"], [0, 1, 2, 3])
        np.testing.assert_array_equal(found["v"], [np.nan, 48, np.nan, 2])
        np.testing.assert_array_equal(found["w"], [np.nan, 48, np.nan, 2])


@pytest.mark.parametrize(
    ("calendar", "since"),
    [
        ("noleap", (0, 1)),
        ("noleap", (1, 0)),
        ("360_day", (0, 1)),
        ("proleptic_gregorian", (2000, 1)),
        ("standard", (1500, 1600)),
    ],
)
def test_files_count_since_other_years(
    tmp_path: Path, calendar: str, since: tuple[int, int]
) -> None:
    """As CESM does: the dates are those that the files have."""
    months = [cftime.datetime(2001, month, 1, calendar=calendar) for month in (1, 2, 3, 4)]
    for number, year in enumerate(since):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            for name, length in (("time", None), ("nv", 2)):
                file.createDimension(name, length)
            units = {"units": f"days since {year:04}-01-01", "calendar": calendar}
            time = file.createVariable("time", "f8", ("time",))
            time.setncatts({**units, "bounds": "time_bnds"})
            file.createVariable("time_bnds", "f8", ("time", "nv"))
            file.createVariable("when", "f8", ("time",)).setncatts(units)
            numbers = cftime.date2num(months[2 * number :][:2], **units)
            time[:] = file["when"][:] = numbers
            file["time_bnds"][:] = np.stack([numbers, numbers + 28], axis=1)
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "m.nca")
    coder = xr.coders.CFDatetimeCoder(use_cftime=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=coder) as found:
        for values in (found["time"], found["when"], found["time_bnds"][:, 0]):
            assert values.values.tolist() == months
