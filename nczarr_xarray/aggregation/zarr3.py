"""Documents of Zarr 2, as those of Zarr 3 that describe the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.formats.zarr3.emit import encoded_fill

#: Attributes of Zarr 2 that Zarr 3 has a place for, or that xarray spells in another way there.
_SPELLED = frozenset({"_ARRAY_DIMENSIONS", "_FillValue"})
_TEXT = "vlen-utf8"


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def array_document(
    path: str, array: Mapping[str, Any], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document of an array.

    Parameters
    ----------
    path
        Of the array, for messages.
    array, attributes
        Its ``.zarray`` and its ``.zattrs``.

    Raises
    ------
    ExportError
        If Zarr 3 has no such array.
    """
    text = array["dtype"] == "|O"
    dtype = np.dtype(array["dtype"])
    if array["order"] != "C" or (not text and dtype.kind not in "biufS"):
        raise ExportError(path, f"holds {array['dtype']} in order {array['order']}: not in Zarr 3")
    fill = array["fill_value"]
    kept = {name: value for name, value in attributes.items() if name not in _SPELLED}
    # in Zarr 2 the fill value says what is masked, or else the attribute; in Zarr 3 the attribute
    # does, but not of text: xarray opens nothing then
    mask = attributes.get("_FillValue") if fill is None else fill
    if dtype.kind in "biuf" and _holds(dtype, mask):
        kept["_FillValue"] = _encoded(mask, dtype)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array["shape"],
        "data_type": "string" if text else _type_name(dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array["chunks"]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _zero(dtype) if fill is None else fill,
        "codecs": _codecs(array, dtype),
        "attributes": kept,
        "dimension_names": attributes.get("_ARRAY_DIMENSIONS"),
        "storage_transformers": [],
    }


def chunk_key(path: str, position: tuple[int, ...]) -> str:
    """Return the key of a chunk."""
    return "/".join([path, "c", *map(str, position)])


def _codecs(array: Mapping[str, Any], dtype: np.dtype) -> list[dict[str, Any]]:
    """Return the codecs: from elements to bytes, and then as numcodecs has them."""
    filters = [*(array["filters"] or ()), *filter(None, [array["compressor"]])]
    found: list[dict[str, Any]] = []
    for config in filters:
        options = {name: value for name, value in config.items() if name != "id"}
        if config["id"] == _TEXT:
            found.append({"name": _TEXT})
        else:
            found.append({"name": f"numcodecs.{config['id']}", "configuration": options})
    if dtype.kind != "O":
        order = {"<": "little", ">": "big"}.get(dtype.str[0])
        first = {"configuration": {"endian": order}} if order else {}
        found.insert(0, {"name": "bytes", **first})
    return found


def _type_name(dtype: np.dtype) -> str | dict[str, Any]:
    if dtype.kind == "S":
        return {
            "name": "null_terminated_bytes",
            "configuration": {"length_bytes": dtype.itemsize},
        }
    return dtype.newbyteorder("=").name


def _zero(dtype: np.dtype) -> Any:
    return "" if dtype.kind in "OS" else np.zeros((), dtype)[()].item()


def _holds(dtype: np.dtype, value: Any) -> bool:
    """Tell whether a number in JSON, in which some floats are words, is one of a type."""
    if value is None or isinstance(value, list):
        return False
    try:
        number = dtype.type(value)
    except (OverflowError, TypeError, ValueError):
        return False
    return dtype.kind == "f" or bool(number == value)


def _encoded(fill: Any, dtype: np.dtype) -> Any:
    value = dtype.type(fill).item()
    return encoded_fill(value) if isinstance(value, float) else value
