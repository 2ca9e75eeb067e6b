"""New variables: what ``createVariable`` asks for, and the model of what was created."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.export.form.rounding import asked_rounding
from nczarr_xarray.export.form.storage import StorageRequest, note_text, storage
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.nczarr.values import fill_attribute
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_DTYPES,
    NC_TYPES,
    Attribute,
    Group,
    bytes_of,
    join,
    text_of,
)
from nczarr_xarray.model import Dimension as StoredDimension
from nczarr_xarray.model import Variable as StoredVariable
from nczarr_xarray.netcdf4.attributes import made_of
from nczarr_xarray.netcdf4.growing import TEXT_BYTES, GrowingElements
from nczarr_xarray.netcdf4.types import EnumType, UserType, VLType
from nczarr_xarray.netcdf4.variable import Dimension, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nczarr_xarray.netcdf4.dataset import Dataset

#: The one-letter codes of old programs, as far as numpy has other ones.
_LETTERS = {"c": "S1", "B": "i1", "s": "i2", "l": "i4"}


def value_dtype(datatype: Any) -> np.dtype:
    """Return the dtype of a new variable; objects for text.

    Raises
    ------
    NotImplementedError
        For user-defined types, which Zarr 2 has not.
    TypeError
        If netCDF has no such type.
    """
    if isinstance(datatype, EnumType):
        datatype = datatype.dtype
    if isinstance(datatype, UserType):
        raise NotImplementedError(
            f"{datatype!r}: NCZarr has no user-defined types; format='NETCDF4' has"
        )
    if datatype is str:
        return np.dtype(object)
    named = isinstance(datatype, str)
    dtype: np.dtype = np.dtype(_LETTERS.get(datatype, datatype) if named else datatype)
    if dtype.kind == "U" or (dtype.kind == "S" and dtype.itemsize > 1):
        return np.dtype(object)
    if dtype == np.dtype("S1") or dtype.str[1:] in NC_TYPES:
        return dtype
    supported = [*(one.str[1:] for one in NC_DTYPES.values() if one.kind != "O")]
    raise TypeError(f"Illegal primitive data type, must be one of {supported}, got {dtype}")


def new_variable(
    group: Any,
    name: str,
    datatype: Any,
    dimensions: tuple[Dimension, ...],
    fill_value: Any,
    encoding: Mapping[str, Any],
    fragments: Mapping[str, Any],
) -> Variable:
    """Return a new variable of a group that is being written.

    Parameters
    ----------
    fill_value, datatype
        As of `Dataset.createVariable`.
    encoding
        What is asked for of storage and of rounding, as `encoding` of xarray has it.
    fragments
        What is asked for of the fragments of an aggregation.

    Raises
    ------
    ValueError
        If something that is asked for is impossible.
    """
    writer = group._file.writer  # noqa: SLF001 - a variable is a part of its group
    dtype = value_dtype(datatype)
    nc_type = type_name(dtype)
    stated = _stated_fill(nc_type, dtype, fill_value)
    fill: Any = None
    mark: Any = None
    attributes, told = dict[str, Any](), dict[str, Any]()
    if stated is not None:  # of characters, NULs count
        fill = mark = bytes_of(str(stated.value)) if nc_type == "char" else attribute_value(stated)
        if stated.value != "\0":  # with which netCDF fills characters anyway
            attributes["_FillValue"] = stated
    elif fill_value is not False:  # what was not written is missing, in pure Zarr, too
        fill = NC_DEFAULT_FILL[nc_type]
    rounding = asked_rounding(dtype, encoding, told, mark)
    attributes |= {key: made_of(key, value) for key, value in told.items()}
    request = StorageRequest(
        path=join(group.path, name).strip("/"),
        dims=tuple(dimension.name for dimension in dimensions),
        shape=tuple(dimension.size for dimension in dimensions),
        unlimited=tuple(dimension.isunlimited() for dimension in dimensions),
        dtype=dtype,
        encoding=encoding if dimensions else {},
        explicit=True,
        blocks=None,
        fill=fill,
        text_length=TEXT_BYTES,
        align=False,
    )
    array = storage(request, writer.target.profile)
    if fill is None:
        array = replace(array, fill=None)
    elements = writer.add(array, dimensions, rounding=rounding, **fragments)
    is_enum = isinstance(datatype, EnumType)
    kind = VLType(str) if elements.is_text else datatype if is_enum else array.dtype
    enum = datatype.stored() if is_enum else None
    made = Variable(group, name, kind, dimensions, attributes, elements, enum)
    made.set_ncstring_attrs(group._ncstring_attrs)  # noqa: SLF001
    return made


def type_name(dtype: np.dtype) -> str:
    """Return netCDF's name of the type of values."""
    if dtype.kind == "O":
        return "string"
    return "char" if dtype.kind == "S" else NC_TYPES[dtype.str[1:]]


def _stated_fill(nc_type: str, dtype: np.dtype, fill: Any) -> Attribute | None:
    """Return the ``_FillValue`` that is asked for; None if none is."""
    if fill is None or fill is False:
        return None
    if nc_type == "string":
        return fill_attribute(nc_type, fill)
    if isinstance(fill, str) and fill == "default":
        fill = NC_DEFAULT_FILL[nc_type]
    if nc_type == "char":
        return Attribute("_FillValue", "char", text_of(np.array(fill, "S1").item() or b"\0"))
    return fill_attribute(nc_type, np.array(fill).astype(dtype))


def model_of(dataset: Dataset, profile: Profile) -> Group:
    """Return a dataset that is being written as the model, each array with its present shape."""
    root = Group()
    _fill(root, dataset, profile)
    return root


def _fill(group: Group, dataset: Dataset, profile: Profile) -> None:
    group.attributes.update(dataset._attributes)  # noqa: SLF001 - the model is what it holds
    for dimension in dataset.dimensions.values():
        group.dimensions[dimension.name] = _stored(dimension)
    for name, variable in dataset.variables.items():
        made = group.variables[name] = _variable(variable, group.path, profile)
        if made.enum is not None and made.enum.group == group.path:
            group.types[made.enum.name] = made.enum
    for name, child in dataset.groups.items():
        group.groups[name] = below = Group(join(group.path, name))
        _fill(below, child, profile)


def _stored(dimension: Dimension) -> StoredDimension:
    return StoredDimension(
        dimension.name, dimension.size, dimension.isunlimited(), dimension.group().path
    )


def _variable(variable: Variable, group: str, profile: Profile) -> StoredVariable:
    elements = variable._elements  # noqa: SLF001
    assert isinstance(elements, GrowingElements)
    array = replace(elements.array, shape=variable.shape)
    dtype = np.dtype(object) if elements.is_text else array.dtype
    dimensions = tuple(map(_stored, variable.get_dims()))
    nc_type = "string" if elements.is_text else type_name(dtype)
    attributes = dict(variable._attributes)  # noqa: SLF001
    enum = variable._enum  # noqa: SLF001
    made = StoredVariable(
        variable.name, group, dimensions, nc_type, dtype, attributes, array, enum=enum
    )
    note_text(made, profile)
    return made
