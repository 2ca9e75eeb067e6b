"""Conversion of units: times of calendars that UDUNITS does not know."""

from __future__ import annotations

from pathlib import Path

import cftime
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray import aggregate
from nczarr_xarray.dataset.units import conversion

pytest.importorskip("cf_units")

CALENDARS = ["noleap", "365_day", "360_day", "julian", "all_leap"]
WORDS = ["days", "hours", "minutes", "seconds", "d", "h"]
# 400,000 days before one of these is still a year of our time: cftime warns of years before 1
dates = st.tuples(
    st.integers(1200, 3000), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23)
)


@given(
    calendar=st.sampled_from(CALENDARS),
    words=st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)),
    since=st.tuples(dates, dates),
    numbers=st.lists(st.integers(-400_000, 400_000), min_size=1, max_size=5),
)
def test_times_stay_the_same_dates(
    calendar: str,
    words: tuple[str, str],
    since: tuple[tuple[int, ...], tuple[int, ...]],
    numbers: list[int],
) -> None:
    own, wanted = (
        f"{word} since {year:04}-{month}-{day} {hour}:00"
        for word, (year, month, day, hour) in zip(words, since, strict=True)
    )
    convert = conversion(own, calendar, wanted, calendar)
    values = np.array(numbers)
    found = values if convert is None else convert(values)
    # cftime rounds to microseconds, of which there are more in these years than floats tell apart
    expected = cftime.num2date(values, own, calendar)
    for date, other in zip(cftime.num2date(found, wanted, calendar), expected, strict=True):
        assert abs((date - other).total_seconds()) < 1e-3


def test_what_is_no_time_stays_as_it_is() -> None:
    """Missing values are converted before they are recognized; in no calendar they are a date."""
    convert = conversion("days since 2000-01-01", "noleap", "hours since 1999-1-1 6:00", "365_day")
    assert convert is not None
    found = convert(np.array([1, np.nan, np.inf, -np.inf, 9.969209968386869e36]))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [8778, np.nan, np.inf, -np.inf, 24 * 9.969209968386869e36])


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
    ("own", "calendar", "factor"),
    [("months", "360_day", 30), ("common_years", "noleap", 365), ("hours", "julian", 1 / 24)],
)
def test_lengths_are_those_of_the_calendar(own: str, calendar: str, factor: float) -> None:
    convert = conversion(f"{own} since 0001-01-01", calendar, "days since 0001-01-01", calendar)
    assert convert is not None
    assert convert(np.array([0, 1, 7])).tolist() == [0, factor, 7 * factor]


@pytest.mark.parametrize(
    ("own", "calendar"),
    [
        ("months since 2000-01-01", "noleap"),
        ("days since 2000-02-30", "noleap"),
        ("days since 20\0>-01-01", "noleap"),
    ],
)
def test_dates_that_there_are_not(own: str, calendar: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        conversion(own, calendar, "hours since 1999-01-01", calendar)
