"""What a reader gets of stored elements by CF's rules: which are missing, and the numbers.

This is no part of reading and writing, so that what these do wrong is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nczarr_xarray.model import Variable, bytes_of
from nczarr_xarray.tools.compare.values import EXACT, Tolerance


def is_decoded(variable: Variable) -> bool:
    """Tell whether elements are numbers or text that stand for others, or for missing ones."""
    return variable.enum is None and variable.dtype.kind in "iufSUO"


def decoded(variable: Variable, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what stored elements of a variable stand for, and which of them are missing."""
    signed = _text(variable, "_Unsigned")
    other = {"itrue": "u", "ufalse": "i"}.get(f"{values.dtype.kind}{signed}")
    stored = values
    if other is not None:
        values = values.astype(f"{other}{values.dtype.itemsize}")
    missing = np.zeros(values.shape, bool)
    for mark in _marks(variable, stored.dtype.kind):
        missing |= stored == mark
    if values.dtype.kind not in "iuf":
        return values, missing
    for name, unpack in (("scale_factor", np.multiply), ("add_offset", np.add)):
        factor = variable.attributes.get(name)
        if factor is not None and isinstance(factor.value, np.ndarray) and factor.value.size == 1:
            with np.errstate(all="ignore"):
                values = unpack(values.astype(np.float64), np.float64(factor.value[0]))
    if values.dtype.kind == "f":
        missing |= np.isnan(values)
    return values, missing


def differing_decoded(
    variables: tuple[Variable, Variable],
    stored: tuple[np.ndarray, np.ndarray],
    tolerance: Tolerance = EXACT,
) -> np.ndarray:
    """Tell, for each element, whether readers get different numbers of it, or one gets none."""
    (a, a_missing), (b, b_missing) = map(decoded, variables, stored)
    if tolerance != EXACT and a.dtype.kind in "iuf" and b.dtype.kind in "iuf":
        other = tolerance.exceeded(a.astype(np.float64), b.astype(np.float64))
    else:
        other = a != b
    found: np.ndarray = (a_missing != b_missing) | (other & ~a_missing & ~b_missing)
    return found


def decoded_text(variable: Variable, value: np.ndarray) -> str:
    """Return what one stored element stands for, as text."""
    number, missing = decoded(variable, value)
    return "missing" if missing.all() else str(number.ravel()[0])


def _marks(variable: Variable, kind: str) -> Iterator[Any]:
    """Yield the stored elements, of a kind of numpy, that stand for missing ones."""
    number = kind in "iuf"
    for name in ("_FillValue", "missing_value"):
        attribute = variable.attributes.get(name)
        if attribute is None:
            continue
        value = attribute.value
        if number and isinstance(value, np.ndarray):
            yield from value
        elif not number and isinstance(value, str):
            yield bytes_of(value) if kind == "S" else value
        elif not number and isinstance(value, tuple):
            yield from value


def _text(variable: Variable, name: str) -> str | None:
    attribute = variable.attributes.get(name)
    if attribute is None:
        return None
    value = attribute.value
    return (value if isinstance(value, str) else str(value[0]) if len(value) else "").lower()
