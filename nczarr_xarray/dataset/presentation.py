"""What names and attributes of the model are to users, and to programs that read JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from nczarr_xarray.model import Attribute, Group, Variable, bytes_of, nearness, readable

#: Attributes that decoding needs as netCDF has them.
_DECODING = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "dtype"}
    | {"coordinates", "_Unsigned", "_Encoding", "least_significant_digit"}
)


def shown_name(name: str) -> str:
    """Return a name, or a path, for users: bytes that are not UTF-8 are escaped."""
    return readable(name, "backslashreplace")


def dimension_names(group: str, variables: Iterable[Variable]) -> dict[str, str]:
    """Return what a dataset of the group at `group` calls each dimension, by path.

    The short name goes to the nearest dimension that has it; another one of the
    same name, farther up or in another branch, goes by its full path.
    """
    used = {d.path: d for variable in variables for d in variable.dimensions}
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path, dimension in sorted(used.items(), key=lambda u: (*nearness(u[1].group, group), u[0])):
        names[path] = shown_name(path if dimension.name in taken else dimension.name)
        taken.add(dimension.name)
    return names


def attribute_value(attribute: Attribute) -> Any:
    """Return what netCDF4-python returns: str, list of str, a numpy scalar, or a 1-D array."""
    value = attribute.value
    if isinstance(value, str):
        return readable(value).replace("\0", "")
    if isinstance(value, tuple):
        texts = list(map(readable, value))
        return texts[0] if len(texts) == 1 else texts
    if isinstance(value, np.ndarray):
        if value.size == 1 and value.dtype.names is None:
            return value[0]
        value = value.copy()  # what users change is theirs; the model may be remembered
        return value[0] if value.size == 1 else value
    return value


def shown_attributes(owner: Group | Variable, *, as_json: bool = False) -> dict[str, Any]:
    """Return attributes as netCDF4-python returns them, by name.

    Parameters
    ----------
    as_json
        Whether what netCDF lacks is shown as JSON has it, as with xarray's engine "zarr".
    """
    shown = {
        shown_name(a.name): json.loads(a.json)
        if as_json and a.json is not None and a.name not in _DECODING
        else attribute_value(a)
        for a in owner.attributes.values()
    }
    fill = owner.attributes.get("_FillValue")
    if fill is not None and isinstance(fill.value, str):  # of which NULs and all bytes count
        shown["_FillValue"] = bytes_of(fill.value)
    return shown
