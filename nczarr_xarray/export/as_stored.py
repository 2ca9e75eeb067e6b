"""New values in the form of those that are stored: characters, rounding, units of time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nczarr_xarray.codecs.quantize import quantize, round_decimals
from nczarr_xarray.dataset.shown import attribute_value
from nczarr_xarray.export.contents import Rounding
from nczarr_xarray.export.storage import QUANTIZE_ATTRIBUTES
from nczarr_xarray.model import Variable


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
