"""Fill values: what elements can have of a ``_FillValue``, and what missing chunks read as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nczarr_xarray.formats.nczarr.profiles import Profile
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_DTYPES,
    Attribute,
    Variable,
    bytes_of,
    readable,
    text_of,
)


def marks_of(variable: Variable) -> Sequence[Any]:
    """Return the values of ``_FillValue`` that elements can have, in the type of the variable."""
    value, nc_type = variable.attributes["_FillValue"].value, variable.nc_type
    if nc_type in ("char", "string"):
        texts = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
        return [t for t in texts if nc_type == "string" or len(bytes_of(t).rstrip(b"\0")) <= 1]
    return number_marks(value, NC_DTYPES[str(nc_type)], "_Unsigned" in variable.attributes)


def number_marks(value: Any, dtype: np.dtype, with_sign: bool) -> list[np.generic]:
    """Return the numbers of ``_FillValue`` that elements can have, in the type of the elements.

    netCDF has one of them, in the type of the variable. HDF5 and JSON have any number, of any kind.
    The mark of floats that NCO packs as integers stays what it was: NaN, or 1e20. Cast to the type
    of the variable, it would be another number, which elements have.

    Parameters
    ----------
    with_sign
        Whether readers change the sign of integers (``_Unsigned``), and so that of their mark.
    """
    value = np.asarray(value).ravel()
    if value.dtype.kind not in "iuf":
        return []  # text
    # with the other sign, as readers of _Unsigned have it
    other = {"i": "u", "u": "i"}.get(dtype.kind) if with_sign else None
    found = []
    with np.errstate(invalid="ignore", over="ignore"):
        for mark in value:
            for kind in filter(None, (dtype.kind, other)):
                cast = mark.astype(f"{kind}{dtype.itemsize}")
                if cast == mark or (kind == "f" and np.isnan(mark)):
                    found.append(cast.view(dtype))
                    break
    return found


def fill_attribute(nc_type: str, fill: Any) -> Attribute:
    """Return the ``_FillValue`` of a variable of a netCDF type."""
    if nc_type in ("char", "string"):
        text = text_of(fill) if isinstance(fill, bytes) else str(fill)
        text = text.rstrip("\0")  # which NULs fill up
        return Attribute("_FillValue", nc_type, text if nc_type == "char" else (text,))
    return Attribute("_FillValue", nc_type, np.asarray(fill).reshape(1).astype(NC_DTYPES[nc_type]))


def fill_value(variable: Variable) -> Any:
    """Return ``_FillValue``; None if the variable has none, or has a text for what is no text."""
    attribute = variable.attributes.get("_FillValue")
    if attribute is None:
        return None
    if isinstance(attribute.value, str):
        return attribute.value if variable.dtype.kind in "SUO" else None
    return attribute.value[0] if len(attribute.value) else None


def shown_fill(variable: Variable, dtype: np.dtype) -> Any:
    """Return the fill value with which a variable is shown as elements of Zarr 2; None for none.

    xarray masks by it. So it is not anything but ``_FillValue``, if that is one value, and the
    elements can have it.
    """
    attribute = variable.attributes.get("_FillValue")
    if attribute is None:
        return None
    value = attribute.value
    if dtype.kind == "O":
        texts = (value,) if isinstance(value, str) else value
        return readable(texts[0]) if isinstance(texts, tuple) and len(texts) == 1 else None
    if dtype.kind == "S":
        data = bytes_of(value) if isinstance(value, str) else b""
        return data if 0 < len(data) <= dtype.itemsize else None
    if dtype.kind not in "iuf" or isinstance(value, str) or len(value) != 1:
        return None
    return next(iter(number_marks(value, dtype.newbyteorder("="), with_sign=False)), None)


def fill_element(nc_type: str | None, fill: Any, dtype: np.dtype, profile: Profile) -> Any:
    """Return the value that chunks read as which are not stored.

    Parameters
    ----------
    nc_type, dtype
        NetCDF type of the variable, and dtype of its stored elements.
    fill
        ``_FillValue`` or None.

    Raises
    ------
    ValueError
        If `fill` is a text that is too long.
    """
    if profile.generation == "v2" and nc_type == "string":
        return None  # xarray would compare it with texts, as bytes; the attribute masks them
    if fill is None:
        if profile.generation == "v2" or nc_type is None:
            return None  # Zarr's readers take a fill value for a mask
        fill = NC_DEFAULT_FILL[nc_type]
    if dtype.kind == "S":
        data = fill if isinstance(fill, bytes) else bytes_of(str(fill))
        if len(data) > dtype.itemsize:
            raise ValueError(f"_FillValue {fill!r} is longer than {dtype.itemsize} bytes")
        return data.rstrip(b"\0") if nc_type == "string" else data
    return np.asarray(fill).astype(dtype)[()]
