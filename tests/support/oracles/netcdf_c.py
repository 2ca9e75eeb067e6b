"""What netCDF-C itself reads from a dataset, as our model, through its C interface."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any

import netCDF4
import numpy as np

from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    ChunkedArray,
    Dimension,
    Group,
    Variable,
    join,
)

#: The library inside of the netCDF4 package: its Python side does not tell char from string.
LIBRARY = ctypes.CDLL(netCDF4._netCDF4.__file__)
C_TYPES: dict[int, tuple[str, Any]] = {
    1: ("byte", ctypes.c_int8),
    2: ("char", ctypes.c_char),
    3: ("short", ctypes.c_int16),
    4: ("int", ctypes.c_int32),
    5: ("float", ctypes.c_float),
    6: ("double", ctypes.c_double),
    7: ("ubyte", ctypes.c_uint8),
    8: ("ushort", ctypes.c_uint16),
    9: ("uint", ctypes.c_uint32),
    10: ("int64", ctypes.c_int64),
    11: ("uint64", ctypes.c_uint64),
    12: ("string", ctypes.c_char_p),
}


def call(function: str, *arguments: Any) -> None:
    status = getattr(LIBRARY, function)(*arguments)
    assert status == 0, f"{function}: {status}"


def integer(function: str, *arguments: Any, kind: Any = ctypes.c_int) -> int:
    out = kind()
    call(function, *arguments, ctypes.byref(out))
    return int(out.value)


def identifiers(function: str, group: int, *rest: int) -> list[int]:
    ids = (ctypes.c_int * 1000)()
    return list(ids[: _counted(function, group, ids, *rest)])


def _counted(function: str, group: int, ids: Any, *rest: int) -> int:
    count = ctypes.c_int()
    call(function, group, ctypes.byref(count), ids, *rest)
    return count.value


def named(function: str, *arguments: int) -> str:
    name = ctypes.create_string_buffer(1000)
    call(function, *arguments, name)
    return name.value.decode()


def netcdf_model(url: str) -> Group:
    """What netCDF-C reads, as our model; codecs and separators are not told."""
    root = integer("nc_open", url.encode(), 0)
    try:
        return _group(root, "/", {})
    finally:
        call("nc_close", root)


def _group(group: int, path: str, above: dict[int, Dimension]) -> Group:
    found = Group(path, attributes=_attributes(group, -1))
    unlimited = identifiers("nc_inq_unlimdims", group)
    known = dict(above)
    for i in identifiers("nc_inq_dimids", group, 0):
        name = named("nc_inq_dimname", group, i)
        size = integer("nc_inq_dimlen", group, i, kind=ctypes.c_size_t)
        known[i] = found.dimensions[name] = Dimension(name, size, i in unlimited, path)
    for i in identifiers("nc_inq_varids", group):
        variable = _variable(group, i, path, known)
        found.variables[variable.name] = variable
    for i in identifiers("nc_inq_grps", group):
        name = named("nc_inq_grpname", i)
        found.groups[name] = _group(i, join(path, name), known)
    return found


def _variable(group: int, i: int, path: str, known: dict[int, Dimension]) -> Variable:
    name = named("nc_inq_varname", group, i)
    nc_type, c_type = C_TYPES[integer("nc_inq_vartype", group, i)]
    ids = (ctypes.c_int * 1000)()
    call("nc_inq_vardimid", group, i, ids)
    dims = tuple(known[d] for d in ids[: integer("nc_inq_varndims", group, i)])
    dtype = np.dtype("S9") if nc_type == "string" else NC_DTYPES[nc_type]
    order: Any = "=<>"[integer("nc_inq_var_endian", group, i)]
    dtype = dtype.newbyteorder(order)
    no_fill, fill, storage = ctypes.c_int(), c_type(), ctypes.c_int()
    chunks = (ctypes.c_size_t * 1000)()
    call("nc_inq_var_fill", group, i, ctypes.byref(no_fill), ctypes.byref(fill))
    call("nc_inq_var_chunking", group, i, ctypes.byref(storage), chunks)
    array = ChunkedArray(
        path=join(path, name).lstrip("/"),
        shape=tuple(dim.size for dim in dims),
        chunk_shape=tuple(chunks[: len(dims)]),
        dtype=dtype,
        fill=None if no_fill.value else np.array([fill.value], dtype)[0],
    )
    if dtype.kind == "S" and array.fill is not None:
        array = replace(array, fill=bytes(array.fill))
    value_dtype = np.dtype(object) if nc_type == "string" else dtype
    return Variable(name, path, dims, nc_type, value_dtype, _attributes(group, i), array)


def _attributes(group: int, variable: int) -> dict[str, Attribute]:
    found = {}
    for i in range(integer("nc_inq_varnatts", group, variable)):
        name = named("nc_inq_attname", group, variable, i)
        at = (group, variable, name.encode())
        nc_type, c_type = C_TYPES[integer("nc_inq_atttype", *at)]
        length = integer("nc_inq_attlen", *at, kind=ctypes.c_size_t)
        values = (c_type * max(length, 1))()
        call("nc_get_att", *at, values)
        value: Any
        if nc_type == "char":
            value = bytes(values)[:length].decode()
        elif nc_type == "string":
            value = tuple((v or b"").decode() for v in values[:length])
        else:
            value = np.array(values[:length], NC_DTYPES[nc_type])
        found[name] = Attribute(name, nc_type, value)
    return found


def netcdf_values(url: str) -> dict[str, np.ndarray[Any, Any]]:
    """The values that netCDF-C reads, by the path of the variable.

    netCDF4's Python side takes dimensions of groups for others of the same name.
    """
    root = integer("nc_open", url.encode(), 0)
    try:
        return _values(root, "/")
    finally:
        call("nc_close", root)


def _values(group: int, path: str) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for i in identifiers("nc_inq_varids", group):
        nc_type, c_type = C_TYPES[integer("nc_inq_vartype", group, i)]
        ids = (ctypes.c_int * 1000)()
        call("nc_inq_vardimid", group, i, ids)
        shape = tuple(
            integer("nc_inq_dimlen", group, d, kind=ctypes.c_size_t)
            for d in ids[: integer("nc_inq_varndims", group, i)]
        )
        room = (c_type * max(1, math.prod(shape)))()
        if 0 not in shape:
            call("nc_get_var", group, i, room)
        count = math.prod(shape)
        if nc_type == "string":
            array = np.array([(v or b"").decode() for v in room[:count]], object)
        else:
            array = np.frombuffer(room, NC_DTYPES[nc_type], count)
        found[join(path, named("nc_inq_varname", group, i))] = array.reshape(shape)
    for i in identifiers("nc_inq_grps", group):
        found |= _values(i, join(path, named("nc_inq_grpname", i)))
    return found
