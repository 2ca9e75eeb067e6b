"""Conversion of units, by UDUNITS-2; those of times by their calendars."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from nczarr_fsspec.errors import UnsupportedError

# -- time units ----------------------------------------------------------------------------------
# CF's units of time: whether those of two calendars and dates are equal, and how they convert.
#
# UDUNITS knows one calendar, in which the year 0 is the year 1, and months of one length. The dates
# here are those that cftime, and so xarray, makes of the same numbers.


#: Other names of calendars.
_CALENDARS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
#: Nanoseconds of units, all of whose names may end with "s".
_LENGTHS = {
    names: length
    for spellings, length in (
        ("nanosecond", 1),
        ("microsecond microsec", 10**3),
        ("millisecond millisec msec ms", 10**6),
        ("second sec s", 10**9),
        ("minute min", 60 * 10**9),
        ("hour hr h", 3600 * 10**9),
    )
    for names in spellings.split()
}
_DAY = 86400 * 10**9
_LENGTHS |= {"day": _DAY, "d": _DAY}
#: Units that have a length in one calendar only.
_OF_CALENDAR = {("month", "360_day"): 30 * _DAY, ("common_year", "noleap"): 365 * _DAY}
_TIMES = re.compile(
    r"\s*(?P<unit>[a-z_]+)"
    r"(?P<date>\s+since\s+(?P<year>[+-]?\d{1,9})-(?P<month>\d\d?)-(?P<day>\d\d?)"
    r"(?:(?:\s+|T)(?P<hour>\d\d?)(?::(?P<minute>\d\d?)(?::(?P<second>\d\d?(?:\.\d{0,18})?))?"
    r"(?:\s*(?P<sign>[+-])(?P<hours>\d\d?)(?::?(?P<minutes>\d\d))?)?)?)?"
    r"\s*(?:Z|UTC|GMT)?)?\s*",
    re.IGNORECASE | re.ASCII,
)
#: The first day of the Gregorian calendar, since which "standard" and "proleptic_gregorian" agree.
_REFORM = 1582, 10, 15


@dataclass(frozen=True, slots=True)
class TimeConversion:
    """Makes numbers in other units of numbers: (number * `factor` + `offset`) / `divisor`.

    Attributes
    ----------
    first
        The number of 1582-10-15, before which the dates of the two calendars are not the same;
        None if they are of one calendar.
    """

    factor: int
    offset: int
    divisor: int
    first: float | None = None

    @property
    def changes(self) -> bool:
        """Whether numbers become others."""
        return (self.factor, self.offset) != (self.divisor, 0)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Convert numbers: rounded once to double precision, or exact integers.

        Raises
        ------
        ValueError
            If there are dates that the other calendar does not have.
        """
        if self.first is not None and (numbers < self.first).any():
            raise ValueError(
                "has times before 1582-10-15, which are other dates in the calendars "
                "'standard' and 'proleptic_gregorian'"
            )
        if numbers.dtype.kind in "iu" and self.divisor == 1 and numbers.size:
            ends = [int(numbers.min()), int(numbers.max())]
            ends += [end * self.factor + self.offset for end in ends] + [self.factor, self.offset]
            if max(map(abs, ends)) < 2**62:
                return numbers.astype(np.int64) * self.factor + self.offset
        with np.errstate(over="ignore"):
            converted: np.ndarray = numbers.astype(np.float64) * self.factor + self.offset
        return converted / self.divisor


def time_conversion(
    own: str, own_calendar: str | None, wanted: str, calendar: str | None
) -> TimeConversion | None:
    """Return what converts times in the units `own` to those in `wanted`; None if these are equal.

    Units without a date are those of durations.

    Parameters
    ----------
    own_calendar, calendar
        None is the standard calendar.

    Raises
    ------
    ValueError
        If units are none of times, or cannot be converted; the message says why.
    """
    calendars = calendar_called(own_calendar), calendar_called(calendar)
    differ = calendars[0] != calendars[1]
    if not differ and own.split() == wanted.split():
        return None
    if differ and {*calendars} != {"standard", "proleptic_gregorian"}:
        raise ValueError(f"the calendars {calendars[0]!r} and {calendars[1]!r} have other dates")
    (length, since), (wanted_length, wanted_since) = (
        _read(units, name) for units, name in zip((own, wanted), calendars, strict=True)
    )
    if since is None or wanted_since is None:
        if since is not wanted_since:
            raise ValueError("durations are no times")
        since = wanted_since = Fraction(0)
    factor, offset = Fraction(length, wanted_length), (since - wanted_since) / wanted_length
    divisor = math.lcm(factor.denominator, offset.denominator)
    reform = Fraction(_day("proleptic_gregorian", *_REFORM) * _DAY)
    first = float((reform - since) / length) if differ else None
    converter = TimeConversion(int(factor * divisor), int(offset * divisor), divisor, first)
    return converter if converter.changes or differ else None


def same_time_units(own: str, own_calendar: str | None, wanted: str, calendar: str | None) -> bool:
    """Tell whether numbers are the same dates in either units, those since 1582 at least."""
    try:
        converter = time_conversion(own, own_calendar, wanted, calendar)
    except ValueError:
        return False
    return converter is None or not converter.changes


def are_times(units: str) -> bool:
    """Tell units that are times since a date."""
    return " since " in units.lower()


def calendar_called(calendar: str | None) -> str:
    """Return the usual one of the names of a calendar; the standard one if there is none."""
    name = (calendar or "standard").strip().lower()
    return _CALENDARS.get(name, name)


def _read(units: str, calendar: str) -> tuple[int, Fraction | None]:
    """Return the length of a unit, and the moment since which it counts, in nanoseconds."""
    match = _TIMES.fullmatch(units)
    if match is None:
        raise ValueError(f"{units!r} is none of the units of time that CF has")
    word = match["unit"].lower()
    names = word, word.removesuffix("s")
    lengths = [_LENGTHS.get(name) or _OF_CALENDAR.get((name, calendar)) for name in names]
    length = lengths[0] or lengths[1]
    if length is None:
        raise ValueError(f"{word!r} is no unit of a known length in the calendar {calendar!r}")
    if match["date"] is None:
        return length, None
    hour, minute, second = (Fraction(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour >= 24 or minute >= 60 or second >= 60:
        raise ValueError(f"{units!r} has a time that no day has")
    ahead = 60 * int(match["hours"] or 0) + int(match["minutes"] or 0)
    minute += 60 * hour + (ahead if match["sign"] == "-" else -ahead)
    day = _day(calendar, *(int(match[name]) for name in ("year", "month", "day")))
    return length, day * _DAY + (60 * minute + second) * 10**9


def _day(calendar: str, year: int, month: int, day: int) -> int:
    """Return the number of a day; `ValueError` if the calendar has no such day."""
    date = year, month, day
    counted = calendar
    exists = 1 <= month <= 12
    if calendar in ("standard", "julian"):
        exists = exists and year != 0
        year += year < 0  # the year before the year 1 is -1
    if calendar == "standard":
        counted = "julian" if date < _REFORM else "proleptic_gregorian"
        exists = exists and not (1582, 10, 5) <= date < _REFORM
    if exists:
        first = _days_before(counted, year, month)
        exists = 1 <= day <= _days_before(counted, year + month // 12, month % 12 + 1) - first
    if not exists:
        raise ValueError("the calendar {!r} has no {:04}-{:02}-{:02}".format(calendar, *date))
    return first + day - 1


def _days_before(calendar: str, year: int, month: int) -> int:
    """Return how many days there are before a month; years begin in March, before leap days."""
    if calendar == "360_day":
        return 360 * year + 30 * month
    year -= month < 3
    leap_days = {
        "noleap": 0,
        "all_leap": year,
        "julian": year // 4 - 2,  # on 1582-10-05, 1582-10-15 of the other one
        "proleptic_gregorian": year // 4 - year // 100 + year // 400,
    }.get(calendar)
    if leap_days is None:
        raise ValueError(f"the calendar {calendar!r} is not known")
    return 365 * year + leap_days + (153 * ((month + 9) % 12) + 2) // 5


# -- units ---------------------------------------------------------------------------------------


Convert = Callable[[np.ndarray], np.ndarray]


@lru_cache(maxsize=256)
def conversion(
    own: str, own_calendar: str | None, wanted: str, calendar: str | None
) -> Convert | None:
    """Return what converts values of the units `own` to those of `wanted`; None if they are equal.

    Parameters
    ----------
    own_calendar, calendar
        Of units that are times since a date; None is the standard calendar.

    Raises
    ------
    ValueError
        If they are no units, or cannot be converted.
    UnsupportedError
        If cf-units is not installed, and they are no times.
    """
    refusal = f"has the units {own!r}, which cannot be converted to {wanted!r}"
    if are_times(own) and are_times(wanted):
        try:
            return time_conversion(own, own_calendar, wanted, calendar)
        except ValueError as error:
            raise ValueError(f"{refusal}: {error}") from None
    if own.strip() == wanted.strip():
        return None
    try:
        from cf_units import Unit
    except ImportError:
        raise UnsupportedError(
            f"units {own!r}",
            f"are to be converted to {wanted!r}, which needs cf-units: "
            "pip install 'nczarr-xarray[cfa]'",
        ) from None
    one, other = Unit(own), Unit(wanted)
    if one == other:
        return None
    if not one.is_convertible(other):
        raise ValueError(refusal)

    def convert(values: np.ndarray) -> np.ndarray:
        converted: np.ndarray = one.convert(values.astype(np.float64), other)
        return converted

    return convert
