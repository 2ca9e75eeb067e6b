"""Attributes of xarray as typed netCDF attributes, by the rules of netCDF4-python."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_xarray.formats.nczarr.attributes import infer
from nczarr_xarray.formats.nczarr.jsontext import loads
from nczarr_xarray.model import NC_TYPES, Attribute


def encode_attribute(name: str, value: Any, *, strings: bool = True) -> Attribute:
    """Give an attribute its netCDF type.

    ASCII text is char, other text and several texts are string, numbers keep
    their dtype; Python's ``int`` is int64 and ``float`` is double (observed in
    netCDF4-python 1.7.5).

    Parameters
    ----------
    value
        Text, bytes, a number, or a flat sequence or array of these; or what else JSON has, which
        becomes text or numbers, and keeps its form for Zarr.
    strings
        Whether the format has the type string. If not, text is char.

    Raises
    ------
    ValueError
        If neither netCDF nor JSON has an attribute of this kind.
    """
    if _is_json(value):
        return _json_attribute(name, value)
    if isinstance(value, bytes):
        return Attribute(name, "char", _decoded(value))
    if isinstance(value, str):
        kind = "char" if value.isascii() or not strings else "string"
        return Attribute(name, kind, str(value) if kind == "char" else (str(value),))
    array = _array(value)
    listed = isinstance(value, (list, tuple)) and len(value) == 1
    if listed and isinstance(value[0], (str, int, float)):  # Zarr tells it from its member
        return replace(encode_attribute(name, value[0], strings=strings), json=_text(value))
    if array.size == 0 and not (array.dtype.kind in "iuf" and isinstance(value, np.ndarray)):
        # an empty list has no type; netCDF4-python makes it double, but netCDF-C does not open
        # pure Zarr that has an array without elements among its attributes
        return Attribute(name, "char", "")
    if array.dtype.kind in "SU":
        texts = tuple(_decoded(v) if isinstance(v, bytes) else str(v) for v in array.tolist())
        if len(texts) == 1:
            return encode_attribute(name, texts[0], strings=strings)
        if not strings:
            raise ValueError("is a list of texts, which needs the type string")
        return Attribute(name, "string", texts)
    return Attribute(name, _numeric(array), array.astype(array.dtype.newbyteorder("=")))


def _is_json(value: Any) -> bool:
    """Tell whether a value is one that JSON has, and netCDF lacks."""
    if isinstance(value, (list, tuple)):
        mixed = len({isinstance(one, (str, bytes)) for one in value}) > 1
        return mixed or any(isinstance(one, (list, tuple)) or _is_json(one) for one in value)
    large = isinstance(value, int) and not -(2**63) <= value < 2**64
    return value is None or large or isinstance(value, (bool, np.bool_, dict))


def _json_attribute(name: str, value: Any) -> Attribute:
    text = _text(value)
    return replace(infer(name, loads(text.encode(), name), netcdf=False), json=text)


def _text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"is {value!r:.60}, which neither netCDF nor JSON has ({error})") from None


def _plain(value: Any) -> Any:
    """Return numpy's values as Python's, for JSON."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _array(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is no flat list of one kind ({error})") from None
    texts = isinstance(value, (list, tuple)) and array.dtype.kind in "SU"
    if texts and not all(isinstance(v, (str, bytes)) for v in value):
        raise ValueError(f"is {value!r:.60}; a list is of text or of numbers, not of both")
    if array.ndim > 1:
        raise ValueError(f"has {array.ndim} dimensions; attributes are flat lists")
    array = array.reshape(-1)
    if array.dtype.kind == "O":
        if array.size and all(isinstance(v, (str, bytes)) for v in array.tolist()):
            return np.array([_decoded(v) if isinstance(v, bytes) else v for v in array.tolist()])
        raise ValueError(f"is {value!r:.60}; netCDF has numbers, text and flat lists of them")
    return array


def _numeric(array: np.ndarray) -> str:
    try:
        return NC_TYPES[array.dtype.str[1:]]
    except KeyError:
        kind = "bool" if array.dtype.kind == "b" else str(array.dtype)
        hint = "; write it as an integer" if kind == "bool" else ""
        raise ValueError(f"is of type {kind}, which netCDF does not have{hint}") from None


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"holds bytes that are not UTF-8: {value!r:.60}") from None


def same_value(one: Any, other: Any) -> bool:
    """Tell whether two values of attributes are the same; NaN is what NaN is."""
    a, b = np.atleast_1d(np.asarray(one)), np.atleast_1d(np.asarray(other))
    if a.dtype.kind != b.dtype.kind and {a.dtype.kind, b.dtype.kind} & set("SUO"):
        return False  # numpy would compare text to each number
    return bool(a.shape == b.shape and np.all((a == b) | ((a != a) & (b != b))))  # noqa: PLR0124
