"""Integers whose sign ``_Unsigned`` changes, of variables without a ``_FillValue``.

xarray reads them with the other sign, but writes ``_Unsigned`` together with a fill value only:
without it, 254 would be -2 in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from xarray import Variable


class OtherSign(NamedTuple):
    """How integers are stored that are read with the other sign."""

    dtype: np.dtype
    unsigned: str


def read_dtype(encoding: Mapping[str, Any]) -> np.dtype:
    """Return the dtype as which packed numbers are read, which ``_Unsigned`` says."""
    dtype = np.dtype(encoding.get("dtype"))  # (of None it is float64)
    read = {"true": "u", "false": "i"}.get(str(encoding.get("_Unsigned")))
    return np.dtype(f"{read}{dtype.itemsize}") if read and dtype.kind in "iu" else dtype


def as_read(variables: Mapping[Any, Variable]) -> tuple[dict[Any, Variable], dict[Any, OtherSign]]:
    """Return those variables, to be encoded as they are read, and how they are stored."""
    changed, stored = {}, {}
    for name, variable in variables.items():
        encoding = variable.encoding
        fills = encoding.get("_FillValue"), encoding.get("missing_value")
        if encoding.get("dtype") is None or fills != (None, None):
            continue
        dtype, read = np.dtype(encoding["dtype"]), read_dtype(encoding)
        if read.kind != dtype.kind:
            changed[name] = variable.copy(deep=False)
            changed[name].encoding = {**encoding, "dtype": read}
            stored[name] = OtherSign(dtype, changed[name].encoding.pop("_Unsigned"))
    return changed, stored


def with_other_sign(encoded: Variable, stored: OtherSign) -> Variable:
    """Return encoded values as they are stored, with the attribute."""
    found = encoded.astype(stored.dtype)
    found.attrs["_Unsigned"] = stored.unsigned
    found.encoding = {**encoded.encoding, "dtype": stored.dtype}
    return found
