"""Variables in the types of classic netCDF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, ChunkedArray, Variable

#: Types that classic netCDF lacks, and those that values become.
_TYPES = {"ubyte": "short", "ushort": "int", "uint": "int", "int64": "int", "uint64": "int"}


def classic_variable(variable: Variable) -> Variable:
    """Return a variable of a type that classic netCDF has, without chunks and compression.

    Raises
    ------
    ValueError
        If an attribute has no such form.
    """
    array = variable.array
    assert isinstance(array, ChunkedArray)
    nc_type = _TYPES.get(str(variable.nc_type), str(variable.nc_type))
    dtype = NC_DTYPES[nc_type]
    attributes = {name: classic_attribute(a) for name, a in variable.attributes.items()}
    if "_FillValue" in variable.attributes and nc_type != variable.nc_type:
        fill = np.array([_fill(variable, nc_type)], dtype)
        attributes["_FillValue"] = Attribute("_FillValue", nc_type, fill)
    array = replace(array, dtype=dtype, codecs=(), fill=None)
    return replace(variable, nc_type=nc_type, dtype=dtype, attributes=attributes, array=array)


def _fill(variable: Variable, nc_type: str) -> Any:
    """Return the fill value as the classic type has it; another one, if it cannot."""
    fill: Any = variable.attributes["_FillValue"].value
    limits = np.iinfo(NC_DTYPES[nc_type])
    inside = limits.min <= int(fill[0]) <= limits.max
    return fill[0] if inside else NC_DEFAULT_FILL[nc_type]


def classic_values(values: np.ndarray, before: Variable, after: Variable) -> np.ndarray:
    """Return values as a variable of `classic_variable` holds them.

    Raises
    ------
    FormatError
        If its type cannot hold one of them.
    """
    if values.dtype.kind not in "iu" or before.nc_type == after.nc_type:
        return values
    limits = np.iinfo(after.dtype)
    fill = before.attributes.get("_FillValue")
    missing = np.zeros(values.shape, bool) if fill is None else values == fill.value[0]
    bad = ((values < limits.min) | (values > limits.max)) & ~missing
    if bad.any():
        raise FormatError(
            before.path,
            f"holds the value {values[bad].ravel()[0]}, which no integer of classic netCDF can "
            "hold: write format='CFA4', or give it another dtype",
        )
    found = np.where(missing, 0, values).astype(after.dtype)
    if fill is not None:
        new: Any = after.attributes["_FillValue"].value
        found[missing] = new[0]
    return found


def classic_attribute(attribute: Attribute) -> Attribute:
    """Return an attribute in a type that classic netCDF has (`ValueError` if there is none)."""
    name, value = attribute.name, attribute.value
    if isinstance(value, tuple):
        if len(value) != 1:
            raise ValueError(f"attribute {name!r} is a list of texts, which classic netCDF lacks")
        return Attribute(name, "char", value[0])
    nc_type = _TYPES.get(attribute.type)
    if nc_type is None or isinstance(value, str):
        return attribute
    limits = np.iinfo(NC_DTYPES[nc_type])
    if name == "_FillValue":  # see `classic_variable`
        return attribute
    if value.size and not (limits.min <= int(value.min()) and int(value.max()) <= limits.max):
        raise ValueError(f"attribute {name!r} has numbers that classic netCDF cannot hold")
    return Attribute(name, nc_type, value.astype(NC_DTYPES[nc_type]))


def dimension_problems(variables: list[Variable]) -> Iterator[str]:
    """Say which dimensions classic netCDF cannot hold: of no length, it has one, the first."""
    growing = {d for v in variables for d in v.dimensions if d.unlimited or not d.size}
    if len(growing) > 1:
        names = ", ".join(sorted(d.name for d in growing))
        yield f"{names}: classic netCDF has only one dimension that is unlimited or empty"
    for variable in variables:
        for dimension in variable.dimensions[1:]:
            if dimension in growing:
                yield (
                    f"{variable.path}: {dimension.name} is unlimited or empty, which in classic "
                    "netCDF only a first dimension can be"
                )
