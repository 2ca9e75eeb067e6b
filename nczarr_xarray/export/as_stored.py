"""New values in the form of those that are stored: characters, rounding, units of time."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from nczarr_xarray.codecs.quantize import quantize, round_decimals
from nczarr_xarray.dataset.shown import attribute_value
from nczarr_xarray.export.contents import Rounding
from nczarr_xarray.export.storage import QUANTIZE_ATTRIBUTES
from nczarr_xarray.model import Dimension, Variable


def as_stored(
    source: xr.Variable, names: tuple[Hashable, ...], hidden: Dimension | None
) -> xr.Variable:
    """Return characters with the dimensions that are stored.

    Parameters
    ----------
    source
        The characters into which xarray has split texts.
    names
        Names of the stored dimensions.
    hidden
        The last stored dimension, if the dataset shows texts.
    """
    *others, last = source.dims
    if hidden is None:
        single = source.dims != names and source.shape[-1] == 1
        return source.isel({last: 0}) if single else source
    if others != [*names[:-1]]:
        return source
    data = source.data
    if source.chunks is not None:  # dask pads nothing but numbers
        data = source.chunk({last: -1}).data
        chunks = (*data.chunks[:-1], (max(hidden.size, *data.chunks[-1]),))
        data = data.map_blocks(_lengthened, hidden.size, dtype=data.dtype, chunks=chunks)
    else:
        data = _lengthened(data, hidden.size)
    return xr.Variable(names, data, source.attrs)


def _lengthened(characters: np.ndarray, length: int) -> np.ndarray:
    """Return characters with NULs behind them, if these are fewer than `length` for each text."""
    missing = length - characters.shape[-1]
    if missing <= 0:
        return characters
    behind = np.zeros((*characters.shape[:-1], missing), characters.dtype)
    return np.concatenate((characters, behind), axis=-1)


def rounding_of(variable: Variable) -> Rounding | None:
    """Return the rounding that was applied to the stored values."""
    for mode, name in QUANTIZE_ATTRIBUTES.items():
        if name in variable.attributes:
            digits: Any = attribute_value(variable.attributes[name])
            fill = variable.attributes.get("_FillValue")
            value = None if fill is None else attribute_value(fill)
            return partial(quantize, mode=mode, digits=int(digits), fill=value)
    told = variable.attributes.get("least_significant_digit")
    decimals = None if told is None else attribute_value(told)
    if variable.dtype.kind != "f" or not isinstance(decimals, np.integer):
        return None  # integers are packed; text is no number of digits
    return partial(round_decimals, least_significant_digit=int(decimals))
