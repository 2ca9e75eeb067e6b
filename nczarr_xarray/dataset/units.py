"""Conversion of units, by UDUNITS-2."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from nczarr_fsspec.errors import UnsupportedError

Convert = Callable[[np.ndarray], np.ndarray]

#: Other names of calendars.
_CALENDARS = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
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
    kinds = _calendar(own, own_calendar), _calendar(wanted, calendar)
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

    def convert(values: np.ndarray) -> np.ndarray:
        converted: np.ndarray = one.convert(values.astype(np.float64), other)
        return converted

    return convert


def _calendar(units: str, calendar: str | None) -> str | None:
    """Return the calendar of units that are times since a date; None for others."""
    if " since " not in units.lower():
        return None
    own = (calendar or "standard").strip().lower()
    own = _CALENDARS.get(own, own)
    is_modern = own == "proleptic_gregorian" and _MODERN.search(units)
    return "standard" if is_modern else own
