"""Conversion of units, by UDUNITS-2; those of times by their calendars."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from nczarr_fsspec.errors import UnsupportedError
from nczarr_xarray.dataset.time_units import are_times, time_conversion

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
