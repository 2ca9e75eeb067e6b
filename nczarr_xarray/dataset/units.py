"""Conversion of units, by UDUNITS-2."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from nczarr_fsspec.errors import UnsupportedError

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
        If cf-units is not installed.
    """
    try:
        from cf_units import Unit
    except ImportError:
        raise UnsupportedError(
            f"units {own!r}",
            f"are to be converted to {wanted!r}, which needs cf-units: "
            "pip install 'nczarr-xarray[cfa]'",
        ) from None
    one, other = (
        Unit(text, calendar=(kind or "standard") if " since " in text else None)
        for text, kind in ((own, own_calendar), (wanted, calendar))
    )
    if one == other:
        return None
    if not one.is_convertible(other) or one.calendar != other.calendar:
        raise ValueError(f"has the units {one!r}, which cannot be converted to {other!r}")

    def convert(values: np.ndarray) -> np.ndarray:
        converted: np.ndarray = one.convert(values.astype(np.float64), other)
        return converted

    return convert
