"""Rounding away digits that mean nothing, so that data compress better.

netCDF does this to values on their way into a variable; it is no codec, and
nothing undoes it. The functions here give the very bits that netCDF-C 4.10.1
stores for ``nc_def_var_quantize``, and netCDF4-python for ``least_significant_digit``
(observed, `tests/xarray/codecs/test_quantize.py`), except for what rounding may not do: infinities
stay, what is missing stays missing, and no number becomes infinite or missing. netCDF makes zeros
or NaN of infinities, infinities of the largest numbers, and the fill value of numbers next to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import NC_DEFAULT_FILL

#: A function that rounds the values of a block before they are encoded.
Rounding: TypeAlias = Callable[[np.ndarray], np.ndarray]
#: The attributes by which netCDF tells of each mode.
QUANTIZE_ATTRIBUTES = {
    "BitGroom": "_QuantizeBitGroomNumberOfSignificantDigits",
    "GranularBitRound": "_QuantizeGranularBitRoundNumberOfSignificantDigits",
    "BitRound": "_QuantizeBitRoundNumberOfSignificantBits",
}

_BITS_PER_DIGIT = math.log(10) / math.log(2)
_DIGITS_PER_BIT = math.log(2) / math.log(10)
#: By itemsize: netCDF type, explicit bits of the significand, most decimal digits (4.10.1 refuses
#: the seventh of a float, although its documentation allows it).
_FLOATS = {4: ("float", 23, 6), 8: ("double", 52, 15)}
#: Digits before and behind the decimal point, of which float64 has the scale.
_MOST_DECIMALS = 300


def check_quantization(dtype: np.dtype, mode: str, digits: int) -> None:
    """Raise `FormatError` if values of `dtype` cannot be rounded so (see `quantize`)."""
    if dtype.kind != "f" or dtype.itemsize not in _FLOATS:
        raise FormatError("quantize_mode", f"needs float32 or float64, not {dtype.name}")
    _, explicit, most = _FLOATS[dtype.itemsize]
    if mode not in ("BitGroom", "GranularBitRound", "BitRound"):
        reason = f"is {mode!r}, not BitGroom, GranularBitRound or BitRound"
        raise FormatError("quantize_mode", reason)
    most = explicit if mode == "BitRound" else most
    if not 1 <= digits <= most:
        reason = f"is {digits}; {mode} of {dtype.name} takes 1 to {most}"
        raise FormatError("significant_digits", reason)


def quantize(
    values: np.ndarray, mode: str, digits: int, fill: Any, odd: np.ndarray | None = None
) -> np.ndarray:
    """Round floating-point values as ``nc_def_var_quantize`` does.

    Zeros, NaN, infinities and the fill value stay as they are, and so do numbers of which rounding
    would make infinities or the fill value.

    Parameters
    ----------
    values
        float32 or float64, any shape.
    mode
        ``"BitGroom"``, ``"GranularBitRound"`` or ``"BitRound"``.
    digits
        Significant decimal digits to keep (float32: 1 to 6, float64: 1 to 15);
        for BitRound significant bits (1 to 23, 1 to 52).
    fill
        The variable's fill value, or several; None stands for netCDF's default.
    odd
        Which elements have an odd position, where BitGroom rounds away from zero; at the others
        it rounds towards zero. By default `values` are taken to be what one call of
        ``nc_put_vara`` gets, and positions count from their first element, in C order.

    Returns
    -------
    ndarray
        A new array of the same shape and dtype.

    Raises
    ------
    FormatError
        If `check_quantization` does.
    """
    check_quantization(values.dtype, mode, digits)
    dtype = values.dtype.newbyteorder("=")
    explicit = _FLOATS[dtype.itemsize][1]
    flat = values.astype(dtype).reshape(-1)
    bits = flat.view(f"u{dtype.itemsize}")
    if mode == "BitGroom":
        tail = _tail(bits.dtype, explicit - math.ceil(digits * _BITS_PER_DIGIT) - 1)
        away = np.arange(bits.size) % 2 == 1 if odd is None else odd.reshape(-1)
        rounded = np.where(away, bits | tail, bits & ~tail)
    else:
        dropped = explicit - (digits if mode == "BitRound" else _granular_bits(flat, digits))
        tail = _tail(bits.dtype, dropped)
        rounded = (bits + (tail & ~(tail >> 1))) & ~tail  # a carry may reach the exponent
    rounded = np.where(flat == 0, bits, rounded).view(dtype)
    return _but_not_lost(flat, rounded, fill).reshape(values.shape).astype(values.dtype, copy=False)


def round_decimals(
    values: np.ndarray, least_significant_digit: int, fill: Any = None
) -> np.ndarray:
    """Round to the power of two next below ``10**-least_significant_digit``.

    What `quantize` leaves as it is stays here, too.

    Parameters
    ----------
    values
        Numbers of any shape; floating-point ones are rounded in float64.
    least_significant_digit
        Power of ten of the smallest decimal place that is reliable, negated: 1 means
        tenths, -2 hundreds.
    fill
        As for `quantize`.

    Returns
    -------
    ndarray
        A new array of the same shape and dtype.

    Raises
    ------
    FormatError
        If no number has such a digit.
    """
    if abs(least_significant_digit) > _MOST_DECIMALS:
        reason = f"is {least_significant_digit}, not -{_MOST_DECIMALS} to {_MOST_DECIMALS}"
        raise FormatError("least_significant_digit", reason)
    scale = np.float64(2.0 ** math.ceil(math.log2(10.0**least_significant_digit)))
    with np.errstate(over="ignore"):  # numbers that are too large to have decimals
        rounded = np.asarray(np.around(scale * values) / scale).astype(values.dtype)
    return rounded if values.dtype.kind != "f" else _but_not_lost(values, rounded, fill)


def _but_not_lost(values: np.ndarray, rounded: np.ndarray, fill: Any) -> np.ndarray:
    """Return rounded values, and as they were those that stood or would stand for no number."""
    nc_type = _FLOATS[values.dtype.itemsize][0]
    marks = np.asarray(NC_DEFAULT_FILL[nc_type] if fill is None else fill).astype(values.dtype)
    kept = ~np.isfinite(values) | ~np.isfinite(rounded)
    kept |= np.isin(values, marks) | np.isin(rounded, marks)
    found: np.ndarray = np.where(kept, values, rounded)
    return found.astype(values.dtype, copy=False)


def _tail(dtype: np.dtype, count: Any) -> Any:
    """Return numbers whose lowest `count` bits are set."""
    one = dtype.type(1)
    return (one << np.asarray(count).astype(dtype)) - one


def _granular_bits(flat: np.ndarray, digits: int) -> np.ndarray:
    """Return the bits of the significand that hold so many decimal digits, value by value.

    The formulas are those of Delaunay, Couturier and Gailly, "Evaluation of lossless and lossy
    algorithms for the compression of scientific datasets in netCDF-4 or HDF5 files" (Geosci. Model
    Dev. 12, 2019, section 2), less one bit, as netCDF-C has them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # zero, NaN and infinity
        significand, exponent = np.frexp(flat.astype(np.float64))
        decimals = np.log10(np.abs(significand))
        magnitude = np.floor(exponent * _DIGITS_PER_BIT + decimals) + 1
        lowest = np.floor(_BITS_PER_DIGIT * (magnitude - digits))
        needed = np.abs(np.floor(exponent - _BITS_PER_DIGIT * decimals) - lowest)
    # C makes integers of infinities: the two differ by nothing
    return np.where(np.isfinite(needed), needed, 0).astype(np.int64) - 1
