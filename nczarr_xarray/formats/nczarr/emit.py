"""The model as the JSON documents of NCZarr or pure Zarr 2.

Nothing is checked here: call `limits.problems` first, which lists what cannot be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_xarray.formats.nczarr import values
from nczarr_xarray.formats.nczarr.dtypes import as_flags
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, loads
from nczarr_xarray.formats.nczarr.limits import consistently_named
from nczarr_xarray.formats.nczarr.profiles import Profile
from nczarr_xarray.model import Attribute, Dimension, Group, Variable

#: Type code of NCZarr's own keys in the map of attribute types, from 4.9.3 on.
_INTERNAL = "|J0"


def documents(root: Group, profile: Profile, writer: str) -> dict[str, bytes]:
    """Return every metadata document of a hierarchy, in the order in which to write them.

    Parameters
    ----------
    root
        The root group.
    writer
        Text of ``_NCProperties``. netCDF-C 4.9.0, 4.9.1 and 4.10.1 take any.

    Returns
    -------
    dict
        Bytes by key: arrays, then groups from the leaves up. The last object is
        the one by which readers recognise a dataset.
    """
    found: dict[str, bytes] = {}
    plain = replace(profile, array_dimensions=False)
    groups = list(root.walk())
    for group in groups:
        named = consistently_named(group)
        for name, variable in group.variables.items():
            found |= array_documents(variable, profile if name in named else plain)
    for group in reversed(groups):
        found |= group_documents(group, profile, writer if group is root else None)
    return found


def array_documents(variable: Variable, profile: Profile) -> dict[str, bytes]:
    """Return ``.zattrs`` and ``.zarray`` of a variable, by key.

    Parameters
    ----------
    variable
        Its `array` is a `ChunkedArray` of the variable's shape; a scalar has
        none, and NCZarr stores it with one element along no dimension.
    """
    array: Any = variable.array
    spelling = profile.spelling
    scalar = not variable.dimensions
    lengths = (1,) if scalar and spelling is not None else None
    filters, compressor = values.codecs(array, profile)
    zarray: dict[str, JSON] = {
        "zarr_format": values.integer(2),
        "shape": [values.integer(n) for n in lengths or array.shape],
        "dtype": values.dtype_code(array, variable.nc_type, profile),
        "chunks": [values.integer(n) for n in lengths or array.chunk_shape],
        "fill_value": values.fill_value(array, profile),
        "order": array.order,
        "compressor": compressor,
        "filters": filters,
    }
    if array.separator != ".":
        zarray["dimension_separator"] = array.separator
    files: dict[str, dict[str, JSON]] = {".zattrs": {}, ".zarray": zarray}
    attributes = _attributes(variable)
    _put_attributes(files[".zattrs"], attributes, profile)
    if profile.array_dimensions:
        names: list[JSON] = [dim.name for dim in variable.dimensions]
        files[".zattrs"]["_ARRAY_DIMENSIONS"] = names or (["_scalar_"] if spelling else [])
    if spelling is not None:
        files[spelling.array_file][spelling.array] = _array_structure(variable, profile)
    _put_types(files[".zattrs"], attributes, profile)
    return _encoded(variable.path, files)


def group_documents(group: Group, profile: Profile, writer: str | None) -> dict[str, bytes]:
    """Return ``.zattrs`` and ``.zgroup`` of a group by key; the one with the structure is last.

    Parameters
    ----------
    writer
        Text of ``_NCProperties`` for the root of NCZarr, None for other groups.
        Pure Zarr gets none: it would mean that netCDF-C wrote the dataset, which
        stores text in pure Zarr in its own way.
    """
    spelling = profile.spelling
    last = ".zgroup" if spelling is None else spelling.group_file
    files: dict[str, dict[str, JSON]] = {
        ".zgroup": {"zarr_format": values.integer(2)},
        ".zattrs": {},
    }
    attributes = dict(group.attributes)
    if writer is not None and spelling is not None:
        attributes["_NCProperties"] = Attribute("_NCProperties", "char", writer)
    _put_attributes(files[".zattrs"], attributes, profile)
    if spelling is not None:
        files[last][spelling.group] = {
            spelling.dimensions: {d.name: dimension_value(d) for d in group.dimensions.values()},
            spelling.arrays: list(group.variables),
            "groups": list(group.groups),
        }
        if writer is not None:
            files[last][spelling.superblock] = {"version": "2.0.0"}
    _put_types(files[".zattrs"], attributes, profile)
    return _encoded(group.path, {file: files[file] for file in sorted(files, key=last.__eq__)})


def consolidate(documents: Mapping[str, bytes]) -> bytes:
    """Return the ``.zmetadata`` of these documents.

    Raises
    ------
    FormatError
        If one of them is not JSON.
    """
    metadata = {key: loads(data, key) for key, data in documents.items()}
    return dumps({"metadata": metadata, "zarr_consolidated_format": values.integer(1)}).encode()


def dimension_value(dimension: Dimension) -> JSON:
    """Return the entry of a dimension in NCZarr's list."""
    size = values.integer(dimension.size)
    return {"size": size, "unlimited": values.integer(1)} if dimension.unlimited else size


def _attributes(variable: Variable) -> Mapping[str, Attribute]:
    """Return the attributes of a variable as they are stored.

    ``_nczarr_maxstrlen`` must agree with the dtype, because netCDF-C cuts text by it. Enums become
    flags, because NCZarr has none.
    """
    if variable.enum is not None:
        return as_flags(variable)
    attributes, array = dict(variable.attributes), variable.array
    if variable.nc_type != "string" or array is None or array.dtype.kind != "S":
        return attributes
    name = "_nczarr_maxstrlen"
    if name in attributes:
        length = np.array([array.dtype.itemsize], np.int32)
        attributes[name] = Attribute(name, "int", length)
    return attributes


def _array_structure(variable: Variable, profile: Profile) -> JSON:
    assert profile.spelling is not None
    scalar = not variable.dimensions
    references: list[JSON] = [dim.path for dim in variable.dimensions]
    structure: dict[str, JSON] = {profile.spelling.references: references}
    if profile.generation == "G2A":
        mark: dict[str, JSON] = {"scalar": values.integer(1)} if scalar else {}
        return structure | mark | {"storage": "chunked"}
    return structure | {"storage": "scalar" if scalar else "chunked"}


def _put_attributes(
    zattrs: dict[str, JSON], attributes: Mapping[str, Attribute], profile: Profile
) -> None:
    for name, attribute in attributes.items():
        zattrs[name] = values.attribute_value(attribute, profile)


def _put_types(
    zattrs: dict[str, JSON], attributes: Mapping[str, Attribute], profile: Profile
) -> None:
    """Complete a ``.zattrs`` of NCZarr with the types of `attributes` and of NCZarr's own keys."""
    spelling = profile.spelling
    if spelling is None:
        return
    types = {name: values.attribute_code(a.type, spelling.char) for name, a in attributes.items()}
    if profile.generation == "G2A":
        own = {spelling.group, spelling.array, spelling.superblock} & zattrs.keys()
        types |= dict.fromkeys((*sorted(own), spelling.attributes), _INTERNAL)
    zattrs[spelling.attributes] = {"types": types}


def _encoded(path: str, files: Mapping[str, JSON]) -> dict[str, bytes]:
    prefix = f"{path.strip('/')}/".lstrip("/")
    return {f"{prefix}{file}": dumps(document).encode() for file, document in files.items()}
