"""Units of time in all calendars, with cftime as the judge: the same numbers are the same dates."""

from __future__ import annotations

from typing import Any

import cftime
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nczarr_xarray.dataset.units import TimeConversion, conversion, same_time_units, time_conversion

CALENDARS = [
    "standard",
    "gregorian",
    "proleptic_gregorian",
    "julian",
    "noleap",
    "365_day",
    "all_leap",
    "366_day",
    "360_day",
]
WORDS = ["days", "hours", "minutes", "seconds", "d", "h", "milliseconds", "Day", "hr", "s"]
# around the reform of 1582, around the year 0, and what models have
years = st.one_of(st.integers(1581, 1583), st.integers(-2, 3), st.integers(1200, 3000))
moments = st.tuples(
    years, st.integers(1, 12), st.integers(1, 31), st.integers(0, 23), st.integers(0, 59)
)
zones = st.sampled_from(["", "Z", " UTC", " +02:00", "-0530"])
numbers = st.lists(st.integers(-400_000, 400_000), min_size=1, max_size=5)


def units(calendar: str, word: str, moment: tuple[int, ...], zone: str) -> str:
    """Return units of a calendar; those that cftime does not know are no examples."""
    year, month, day, hour, minute = moment
    text = f"{word} since {year:04}-{month}-{day:02} {hour:02}:{minute:02}{zone}"
    try:
        dates_of(np.zeros(1), text, calendar)
    except ValueError:
        with pytest.raises(ValueError, match="has no"):
            time_conversion(text, calendar, "days since 1999-09-09", calendar)
        assume(False)
    return text


def dates_of(values: np.ndarray, text: str, calendar: str) -> list[Any]:
    return list(cftime.num2date(values, text, calendar))


def fields(date: Any) -> tuple[int, ...]:
    return date.year, date.month, date.day, date.hour, date.minute, date.second


@pytest.mark.filterwarnings("ignore:this date/calendar/year zero:cftime.CFWarning")
@given(
    calendar=st.sampled_from(CALENDARS),
    words=st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)),
    since=st.tuples(moments, moments),
    zone=st.tuples(zones, zones),
    values=numbers.map(np.array),
)
def test_times_stay_the_same_dates(
    calendar: str,
    words: tuple[str, str],
    since: tuple[tuple[int, ...], tuple[int, ...]],
    zone: tuple[str, str],
    values: np.ndarray,
) -> None:
    own, wanted = (units(calendar, *said) for said in zip(words, since, zone, strict=True))
    convert = time_conversion(own, calendar, wanted, calendar)
    found = values if convert is None else convert(values)
    expected = dates_of(values, own, calendar)
    # cftime rounds to microseconds, of which there are more in these years than floats tell apart
    for date, other in zip(dates_of(found, wanted, calendar), expected, strict=True):
        assert abs((date - other).total_seconds()) < 1e-3
    same = dates_of(values, wanted, calendar) == expected
    assert same_time_units(own, calendar, wanted, calendar) == same or not values.any()


@given(
    words=st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)),
    since=st.tuples(moments, moments),
    turned=st.booleans(),
    values=st.lists(st.integers(-900_000, 400_000), min_size=1, max_size=5).map(np.array),
)
@pytest.mark.filterwarnings("ignore:this date/calendar/year zero:cftime.CFWarning")
def test_two_calendars_agree_since_the_reform_and_not_before(
    words: tuple[str, str],
    since: tuple[tuple[int, ...], tuple[int, ...]],
    turned: bool,
    values: np.ndarray,
) -> None:
    calendars = ("standard", "proleptic_gregorian")[:: -1 if turned else 1]
    own, wanted = (units(*said, "") for said in zip(calendars, words, since, strict=True))
    convert = time_conversion(own, calendars[0], wanted, calendars[1])
    assert convert is not None
    dates = dates_of(values, own, calendars[0])
    if any(fields(date)[:3] < (1582, 10, 15) for date in dates):
        with pytest.raises(ValueError, match="before 1582-10-15"):
            convert(values)
    else:
        for date, other in zip(dates_of(convert(values), wanted, calendars[1]), dates, strict=True):
            other = cftime.datetime(*fields(other), other.microsecond, calendar=calendars[1])
            assert abs((date - other).total_seconds()) < 1e-3


@pytest.mark.parametrize(
    ("one", "other", "calendar", "same"),
    [
        ("days since 0000-01-01", "days since 0001-01-01", "noleap", False),
        ("days since 0000-01-01", "days since 0001-01-01", "360_day", False),
        ("days since 1582-10-04", "days since 1582-10-15", "standard", False),
        ("days since 2000-01-01", "days since 2000-1-1 00:00:0.0", "noleap", True),
        ("days since 2000-01-01", "day since 2000-01-01T00:00Z", None, True),
        ("seconds since 1992-10-8 15:15:42.5 -6:00", "s since 1992-10-8 21:15:42.5", None, True),
        ("months since 2000-01-01", "months  since 2000-01-01 ", "noleap", True),  # to each other
        ("months since 2000-01-01", "months since 2000-01-01 00:00", "noleap", False),
        ("weeks since 0-0-0", "weeks since 0-0-0", "none", True),
        ("days", "day", None, True),
        ("days", "hours", None, False),
        ("days", "days since 2000-01-01", None, False),
        ("nanoseconds since 1970-01-01", "nanosecond since 1970-1-1", None, True),
    ],
)
def test_units_that_are_spelt_differently(
    one: str, other: str, calendar: str | None, same: bool
) -> None:
    assert same_time_units(one, calendar, other, calendar) is same
    assert same_time_units(other, calendar, one, calendar) is same


def test_calendars_of_other_names_and_of_other_dates() -> None:
    days = "days since 2000-01-01"
    assert time_conversion(days, "noleap", days, "365_day") is None
    assert time_conversion(days, None, days, "gregorian") is None
    with pytest.raises(ValueError, match="'julian' and 'standard' have other dates"):
        time_conversion(days, "julian", days, "standard")
    assert not same_time_units(days, "noleap", days, "360_day")


@pytest.mark.parametrize(
    ("own", "calendar", "length"),
    [("months", "360_day", 30 * 24), ("common_years", "365_day", 365 * 24), ("hours", "julian", 1)],
)
def test_lengths_are_those_of_the_calendar(own: str, calendar: str, length: int) -> None:
    convert = time_conversion(f"{own} since 0001-01-01", calendar, "d since 0001-01-01", calendar)
    assert convert is not None
    assert convert(np.array([0, 1, 7])).tolist() == [0, length / 24, 7 * length / 24]


@pytest.mark.parametrize(
    ("own", "calendar"),
    [
        ("months since 2000-01-01", "noleap"),
        ("months since 2000-01-01", "standard"),
        ("common_years since 2000-01-01", "360_day"),
        ("years since 2000-01-01", None),
        ("days since 2000-02-30", "noleap"),
        ("days since 1582-10-10", "gregorian"),
        ("days since 0000-01-01", "standard"),
        ("days since 2000-01-01 24:00", "standard"),
        ("days since 20\0>-01-01", "noleap"),
        ("days since then", None),
        ("days since 2000-01-01", "lunar"),
    ],
)
def test_dates_that_there_are_not(own: str, calendar: str | None) -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        conversion(own, calendar, "hours since 1999-01-01", calendar)


def test_what_is_no_time_stays_as_it_is() -> None:
    """Missing values are converted before they are recognized; in no calendar they are a date."""
    convert = conversion("days since 2000-01-01", "noleap", "hours since 1999-1-1 6:00", "365_day")
    assert convert is not None
    found = convert(np.array([1, np.nan, np.inf, -np.inf, 9.969209968386869e36]))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [8778, np.nan, np.inf, -np.inf, 24 * 9.969209968386869e36])


def test_integers_stay_exact_where_their_type_holds_them() -> None:
    own = "nanoseconds since 1970-01-01"
    convert = time_conversion(own, None, "nanoseconds since 1970-01-02", "proleptic_gregorian")
    assert isinstance(convert, TimeConversion)
    found = convert(np.array([1_700_000_000_123_456_789]))
    assert found.dtype == "i8"
    assert found.tolist() == [1_700_000_000_123_456_789 - 86400 * 10**9]
    assert convert(np.array([2**63 - 1])).dtype == "f8"
    assert convert(np.empty(0, "i8")).shape == (0,)
