"""The arrays that reads fill."""

from __future__ import annotations

from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import Array


def fill_element(array: Array) -> Any:
    """Return what elements that are not stored read as."""
    if array.fill is not None:
        return array.fill
    return "" if array.dtype.kind == "O" else np.zeros((), dtype=array.dtype)[()]


def same_fill(one: Array, other: Array) -> bool:
    """Tell whether elements that are not stored read as the same bits, in arrays of one dtype."""
    first, second = (np.array([fill_element(array)], one.dtype) for array in (one, other))
    return first.tobytes() == second.tobytes()


def allocate(array: Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return room for elements of an array.

    Raises
    ------
    FormatError
        If there is none.
    """
    try:
        # scattering chunks swaps bytes on the way: the result is always native
        return np.empty(shape, dtype=array.dtype.newbyteorder("="))
    except (MemoryError, ValueError) as error:
        raise FormatError(
            array.path, f"a selection of shape {shape} does not fit ({error})"
        ) from None
