"""Rounding of values before they are encoded: what is asked for, and what stored values had."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

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
    import xarray as xr


def asked_rounding(
    source: xr.Variable,
    encoding: Mapping[str, Any],
    attributes: dict[str, Any],
    fill: Any,
) -> Rounding | None:
    """Return the quantization that the encoding asks for, and note it in `attributes`."""
    decimals = encoding.get("least_significant_digit")
    digits = encoding.get("significant_digits")
    if decimals is not None:
        attributes.setdefault("least_significant_digit", int(decimals))
        if source.dtype.kind != "f":
            return None
        return partial(round_decimals, least_significant_digit=int(decimals), fill=fill)
    if digits is None:
        return None
    mode = encoding.get("quantize_mode") or "BitGroom"
    check_quantization(source.dtype, mode, int(digits))
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
