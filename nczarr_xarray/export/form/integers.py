"""Numbers that become integers, or floats, exactly: what cannot is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nczarr_fsspec.errors import FormatError

#: What xarray makes of a missing time among integers.
_NO_TIME = np.iinfo(np.int64).min


def inexact(values: np.ndarray, dtype: np.dtype) -> str | None:
    """Say which of some integers a type of floats cannot hold; None if it holds all."""
    most = 2 ** (np.finfo(dtype).nmant + 1)  # up to here, it holds all integers
    large = values[(values > most) | (values < -most)]
    with np.errstate(invalid="ignore", over="ignore"):
        held = large.astype(dtype)
        # the largest integer of a type is odd, and so becomes one that the type does not have
        other = (held >= dtype.type(np.iinfo(values.dtype).max)) | (
            held.astype(values.dtype) != large
        )
    return f"holds the value {large[other][0]}, which {dtype} cannot hold" if other.any() else None


def refuse_values(
    path: str, check: Callable[[np.ndarray], str | None], block: np.ndarray, advice: str = ""
) -> np.ndarray:
    """Return the values of a block, if they pass a check (`FormatError` if not)."""
    problem = check(block)
    if problem is not None:
        raise FormatError(path, problem + advice)
    return block


def as_integers(values: np.ndarray, dtype: np.dtype, path: str, exact: bool) -> np.ndarray:
    """Return encoded values as integers (`FormatError` for a value that `dtype` cannot hold).

    xarray casts without a check: a number that is too large for the type becomes another
    number, and a missing value becomes one where there is no ``_FillValue``.
    """
    whole = np.around(values) if values.dtype.kind == "f" else values
    limits = np.iinfo(dtype)
    inside = (whole >= limits.min) & (whole < limits.max + 1)  # no float is the largest int64
    if exact:  # a fraction of a day is lost if days are stored
        inside &= whole == values
    if not np.all(inside):
        worst = values[~inside].reshape(-1)[0]
        reason = (
            "holds missing values, and has no _FillValue to store for them"
            if worst != worst or worst == _NO_TIME  # noqa: PLR0124 - NaN
            else f"holds a value that would be stored as {worst:.10g}, which {dtype} cannot hold"
        )
        raise FormatError(path, reason)
    return whole.astype(dtype)
