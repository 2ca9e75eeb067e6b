"""Rounding of values before they are stored, and numbers that must not be rounded.

A variable is rounded as is asked for, or as its stored values were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.quantize import (
    QUANTIZE_ATTRIBUTES,
    Rounding,
    check_quantization,
    quantize,
    round_decimals,
)
from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.model import Variable

if TYPE_CHECKING:
    pass


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


def asked_rounding(
    dtype: np.dtype,
    encoding: Mapping[str, Any],
    attributes: dict[str, Any],
    fill: Any,
) -> Rounding | None:
    """Return the quantization that the encoding asks for, and note it in `attributes`."""
    decimals = encoding.get("least_significant_digit")
    digits = encoding.get("significant_digits")
    if decimals is not None:
        attributes.setdefault("least_significant_digit", int(decimals))
        if dtype.kind != "f":
            return None
        return partial(round_decimals, least_significant_digit=int(decimals), fill=fill)
    if digits is None:
        return None
    mode = encoding.get("quantize_mode") or "BitGroom"
    check_quantization(dtype, mode, int(digits))
    attributes[QUANTIZE_ATTRIBUTES[mode]] = np.int32(digits)
    return partial(quantize, mode=mode, digits=int(digits), fill=fill)


def rounding_of(variable: Variable) -> Rounding | None:
    """Return the rounding that was applied to the stored values."""
    fill = variable.attributes.get("_FillValue")
    value = None if fill is None else attribute_value(fill)
    for mode, name in QUANTIZE_ATTRIBUTES.items():
        if name in variable.attributes:
            digits: Any = attribute_value(variable.attributes[name])
            return partial(quantize, mode=mode, digits=int(digits), fill=value)
    told = variable.attributes.get("least_significant_digit")
    decimals = None if told is None else attribute_value(told)
    if variable.dtype.kind != "f" or not isinstance(decimals, np.integer):
        return None  # integers are packed; text is no number of digits
    return partial(round_decimals, least_significant_digit=int(decimals), fill=value)
