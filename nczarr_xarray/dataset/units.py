"""Conversion of units, by UDUNITS-2."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from nczarr_fsspec.errors import UnsupportedError

Convert = Callable[[np.ndarray], np.ndarray]

#: Other names of calendars.
_CALENDARS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
#: What comes before the date in units that are times since a date.
_SINCE = re.compile(r"^.*?\ssince\s+", re.IGNORECASE | re.DOTALL)
#: A date since which the calendars "standard" and "proleptic_gregorian" are the same.
_MODERN = re.compile(r"\ssince\s+(?:1[6-9]|[2-9]\d)\d\d\b", re.IGNORECASE)


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
        If cf-units is not installed.
    """
    kinds = calendar_of(own, own_calendar), calendar_of(wanted, calendar)
    if kinds[0] != kinds[1]:
        said = [
            text if kind is None else f"{text}, calendar {kind!r}"
            for text, kind in zip((own, wanted), kinds, strict=True)
        ]
        raise ValueError(f"has the units {said[0]!r}, which cannot be converted to {said[1]!r}")
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
    one, other = Unit(own, calendar=kinds[0]), Unit(wanted, calendar=kinds[1])
    if one == other:
        return None
    if not one.is_convertible(other):
        raise ValueError(f"has the units {one!r}, which cannot be converted to {other!r}")
    if kinds[0] not in (None, "standard"):
        return _in_calendar(one, other)

    def convert(values: np.ndarray) -> np.ndarray:
        converted: np.ndarray = one.convert(values.astype(np.float64), other)
        return converted

    return convert


def _in_calendar(one: Any, other: Any) -> Convert:
    """Return what converts times of one calendar, which UDUNITS does not know.

    cf-units makes a date of each time (cftime): that is slow, masks NaN, and fails for fill values,
    which are in no year. But in one calendar, two such units differ by a factor and an offset.
    """
    try:
        (offset,) = one.convert(np.zeros(1), other)
        factor = _microseconds(one) / _microseconds(other)
    except (OverflowError, TypeError, ValueError) as error:
        reason = f"has the units {one!r}, which cannot be converted to {other!r}: {error}"
        raise ValueError(reason) from None
    return lambda values: values.astype(np.float64) * factor + offset


def _microseconds(unit: Any) -> float:
    """Return how long one of a unit of time is; a month has 30 days in the calendar 360_day."""
    smallest = _SINCE.sub("microseconds since ", str(unit), count=1)
    (length,) = unit.convert(np.ones(1), type(unit)(smallest, calendar=unit.calendar))
    return float(length)


def calendar_called(calendar: str | None) -> str:
    """Return the usual one of the names of a calendar; the standard one if there is none."""
    own = (calendar or "standard").strip().lower()
    return _CALENDARS.get(own, own)


def calendar_of(units: str, calendar: str | None) -> str | None:
    """Return the calendar of units that are times since a date; None for others."""
    if " since " not in units.lower():
        return None
    own = calendar_called(calendar)
    is_modern = own == "proleptic_gregorian" and _MODERN.search(units)
    return "standard" if is_modern else own
