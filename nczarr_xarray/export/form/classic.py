"""What classic netCDF can hold: types, attributes, dimensions and sizes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError, LossWarning, caller_level
from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, Dimension, Variable

#: Types that CDF-1 and CDF-2 lack, and those that values become. CDF-5 has them all.
TYPES: Mapping[str, str] = {
    "ubyte": "short",
    "ushort": "int",
    "uint": "int",
    "int64": "int",
    "uint64": "int",
}


#: Types of the same bits with a sign.
_SIGNED: Mapping[str, str] = {"ubyte": "byte", "ushort": "short", "uint": "int"}

#: Bytes of a variable (of one record of it), at most, if it is not the last one: CDF-1, CDF-2.
MOST_BYTES: Mapping[str, int] = {
    "NETCDF3_CLASSIC": (1 << 31) - 4,
    "NETCDF3_64BIT_OFFSET": (1 << 32) - 4,
}
#: Room for the header of a CDF-1 file, in which all variables begin before 2^31.
_HEADER_BYTES = 1 << 24


def classic_variable(variable: Variable, types: Mapping[str, str] = TYPES) -> Variable:
    """Return a variable of a type that classic netCDF has, with its array as it was.

    Parameters
    ----------
    types
        Types that the format lacks, and those that values become.

    Raises
    ------
    ValueError
        If an attribute has no such form.
    """
    attributes = {name: classic_attribute(a, types) for name, a in variable.attributes.items()}
    signed = _SIGNED.get(str(variable.nc_type)) if types and _are_signed(variable) else None
    if signed is not None:  # the same bits, which need no mark
        del attributes["_Unsigned"]
        if "_FillValue" in attributes:
            bits = np.asarray(attributes["_FillValue"].value).view(NC_DTYPES[signed])
            attributes["_FillValue"] = Attribute("_FillValue", signed, bits)
        return replace(variable, nc_type=signed, dtype=NC_DTYPES[signed], attributes=attributes)
    nc_type = types.get(str(variable.nc_type), str(variable.nc_type))
    if "_FillValue" in variable.attributes and nc_type != variable.nc_type:
        fill = np.array([_fill(variable, nc_type)], NC_DTYPES[nc_type])
        attributes["_FillValue"] = Attribute("_FillValue", nc_type, fill)
    return replace(variable, nc_type=nc_type, dtype=NC_DTYPES[nc_type], attributes=attributes)


def _are_signed(variable: Variable) -> bool:
    """Tell whether unsigned integers stand for signed ones."""
    mark = variable.attributes.get("_Unsigned")
    return mark is not None and str(mark.value).lower() == "false"


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
    if after.dtype.itemsize == values.dtype.itemsize and _are_signed(before):
        return values.astype(values.dtype.newbyteorder("=")).view(after.dtype)
    limits = np.iinfo(after.dtype)
    outside = (values < limits.min) | (values > limits.max)
    fill = before.attributes.get("_FillValue")
    if fill is not None:
        new: Any = after.attributes["_FillValue"].value[0]
        missing = values == fill.value[0]
    else:  # elements that were never written
        new = NC_DEFAULT_FILL[str(after.nc_type)]
        missing = outside & (values == NC_DEFAULT_FILL[str(before.nc_type)])
        if missing.any():
            told = f"{values[missing][0]}, netCDF's default fill value, becomes {new}"
            warning = LossWarning(f"{before.path}: {told}", [before.path])
            warnings.warn(warning, stacklevel=caller_level())
    bad = outside & ~missing
    reason = "which no integer type of CDF-1 and CDF-2 can hold"
    if fill is not None and not bad.any():
        bad = (values == new) & ~missing
        reason = f"which stands for missing data in CDF-1 and CDF-2, that have no {fill.value[0]}"
    if bad.any():
        advice = "write CDF-5 or netCDF-4, or give it another dtype"
        raise FormatError(
            before.path, f"holds the value {values[bad].ravel()[0]}, {reason}: {advice}"
        )
    found = np.where(missing, 0, values).astype(after.dtype)
    found[missing] = new
    return found


def classic_attribute(attribute: Attribute, types: Mapping[str, str]) -> Attribute:
    """Return an attribute in a type that classic netCDF has (`ValueError` if there is none)."""
    name, value = attribute.name, attribute.value
    if isinstance(value, tuple):
        if len(value) != 1:
            raise ValueError(f"attribute {name!r} is a list of texts, which classic netCDF lacks")
        return Attribute(name, "char", value[0])
    nc_type = types.get(attribute.type)
    if nc_type is None or isinstance(value, str):
        return attribute
    limits = np.iinfo(NC_DTYPES[nc_type])
    if name == "_FillValue":  # see `classic_variable`
        return attribute
    if value.size and not (limits.min <= int(value.min()) and int(value.max()) <= limits.max):
        raise ValueError(f"attribute {name!r} has numbers that classic netCDF cannot hold")
    return Attribute(name, nc_type, value.astype(NC_DTYPES[nc_type]))


def classic_attributes(
    path: str,
    attributes: Mapping[str, Attribute],
    problems: list[str],
    types: Mapping[str, str] = TYPES,
) -> dict[str, Attribute]:
    """Return the attributes of what is at `path`; those without a classic form are problems."""
    found = {}
    for name, attribute in attributes.items():
        try:
            found[name] = classic_attribute(attribute, types)
        except ValueError as error:
            problems.append(f"{path}: {error}")
    return found


def dimension_problems(
    variables: Iterable[Variable], declared: Collection[Dimension] = ()
) -> Iterator[str]:
    """Yield what is wrong with dimensions: only one, the first, may be unlimited or empty."""
    variables = list(variables)
    used = [d for v in variables for d in v.dimensions]
    growing = {d for d in (*used, *declared) if d.unlimited or not d.size}
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


def size_problems(variables: Iterable[Variable], model: str) -> Iterator[str]:
    """Say which variables are too large for a classic format, by its word in netCDF4.

    NetCDF-C 4.10.1 finds out, too, but damages the memory of the process then.
    """
    most = MOST_BYTES.get(model)
    if most is None:
        return
    fixed: list[tuple[Variable, int]] = []
    records: list[tuple[Variable, int]] = []
    for variable in variables:
        grows = any(d.unlimited for d in variable.dimensions)
        sizes = [d.size for d in variable.dimensions if not d.unlimited]
        nbytes = -(-math.prod(sizes) * variable.dtype.itemsize // 4) * 4
        (records if grows else fixed).append((variable, nbytes))
    last = (records or fixed)[-1:]
    begin = 0
    for variable, nbytes in (*fixed, *records):
        if model == "NETCDF3_CLASSIC" and begin > most - _HEADER_BYTES:
            yield f"{variable.path}: would begin after the first 2 GiB of the file"
        elif nbytes > most and (variable, nbytes) not in last:
            yield f"{variable.path}: has {nbytes} bytes, and only the last variable may be so large"
        begin += nbytes
