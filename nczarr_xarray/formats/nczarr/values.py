"""Values of the model as JSON that netCDF-C, zarr-python and this package read back exactly.

Text is always a JSON string. netCDF-C itself stores text that looks like JSON
without quotes, and cannot read all of it back. It reads the quoted form
correctly (observed with 4.9.0, 4.9.1 and 4.10.1).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.codecs.shuffle import netcdf_size
from nczarr_xarray.formats.nczarr.attributes import is_list_of_one
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, is_standard, loads
from nczarr_xarray.formats.nczarr.profiles import Profile
from nczarr_xarray.model import NC_TYPES, Attribute, ChunkedArray, CodecConfig

#: ``nanf`` and ``inff`` are netCDF-C's as well.
_LITERAL = re.compile(r"(?i)(nan|inf|infinity)f$")
#: Type codes of attributes; that of char depends on the generation.
_CODES: dict[str, str] = {
    **{name: f"<{code}" for code, name in NC_TYPES.items()},
    "string": "|S128",  # netCDF-C's default length, whatever the text has
}


def integer(value: int) -> Number:
    """Return an exact integer."""
    return Number(int(value))


def number(value: Any, *, bare: bool = False, typed: bool = True) -> JSON:
    """Return a numpy integer, or a float by the shortest text that reads back with the same bits.

    Parameters
    ----------
    bare
        Write NaN and infinities without quotes.
    typed
        Whether readers know the type. If not, they take a float for a double: 0.1 is another one.
    """
    if isinstance(value, np.integer):
        return integer(int(value))
    if not np.isfinite(value):
        name = "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return Number(name) if bare else name
    text = str(value if typed else float(value))
    # readers parse a double first, and for some floats the shortest text is then rounded wrong
    return Number(text if type(value)(float(text)) == value else repr(float(value)))


def attribute_value(attribute: Attribute, profile: Profile) -> JSON:
    """Return the JSON value of an attribute: length one is bare, others are arrays.

    In pure Zarr no type says that ``"NaN"`` is a number: there, the value is an array, ``["NaN"]``.
    (A ``_FillValue`` has the type of its variable.)
    """
    if attribute.json is not None and profile.keeps_json:
        value = loads(attribute.json.encode("utf-8", "surrogateescape"), attribute.name)
        # of integers beyond uint64, netCDF-C makes 2^64, and of a list as char its text
        shown_as_text = attribute.type == "char" and is_list_of_one(attribute.json)
        if profile.spelling is None or not (shown_as_text or isinstance(value, Number)):
            return value
    if isinstance(attribute.value, str):
        return attribute.value
    elements: list[JSON]
    if isinstance(attribute.value, tuple):
        elements = list(attribute.value)
    else:
        typed = profile.spelling is not None
        elements = [number(e, bare=profile.bare_nan, typed=typed) for e in attribute.value]
        quoted = [e for e in elements if not isinstance(e, Number)]
        if quoted and profile.spelling is None and attribute.name != "_FillValue":
            return elements
    return elements[0] if len(elements) == 1 else elements


def standard(value: JSON) -> JSON:
    """Return a JSON value in standard JSON: NaN and infinities are quoted."""
    if isinstance(value, Number):
        if is_standard(value):
            return value
        return number(np.float64(_LITERAL.sub(r"\1", value)))
    if isinstance(value, list):
        return [standard(member) for member in value]
    if isinstance(value, dict):
        return {name: standard(member) for name, member in value.items()}
    return value


def standard_attribute(name: str, value: JSON) -> JSON:
    """Return the standard value of a member of ``.zattrs``, where a number stays one."""
    found = standard(value)
    if isinstance(value, Number) and not isinstance(found, Number) and name != "_FillValue":
        return [found]
    return found


def attribute_code(nc_type: str, char: str) -> str:
    """Return the entry of an attribute in the map of types; `char` is the generation's word."""
    return char if nc_type == "char" else _CODES[nc_type]


def dtype_code(array: ChunkedArray, nc_type: str | None, profile: Profile) -> JSON:
    """Return the ``dtype`` of ``.zarray``; single bytes have ``|``, which zarr-python needs.

    Not so with szip, which zarr-python lacks: netCDF-C 4.10.1 asks for an order there
    ("bad datatype endianness order") and writes ``<u1`` itself.
    """
    if nc_type == "char" and profile.spelling is not None:
        return profile.spelling.char
    szip = any(config["id"] == "szip" for config in array.codecs)
    if profile.spelling is not None and szip and array.dtype.itemsize == 1:
        return f"<{array.dtype.str[1:]}"
    return array.dtype.str if array.dtype.fields is None else _fields(array.dtype.descr)


def _fields(descr: list[Any]) -> JSON:
    def code(kind: Any) -> JSON:
        return _fields(kind) if isinstance(kind, list) else kind

    return [
        [name, code(kind), *([integer(n) for n in shape] for shape in shapes)]
        for name, kind, *shapes in descr
    ]


def fill_value(array: ChunkedArray, profile: Profile) -> JSON:
    """Return the ``fill_value`` of ``.zarray``.

    Raises
    ------
    ValueError, TypeError, OverflowError
        If the fill is not of the array's dtype, or cannot be written in this profile.
    """
    fill, dtype = array.fill, array.dtype
    if fill is None:
        return None
    if dtype.kind == "S":
        return _bytes_fill(bytes(fill).rstrip(b"\0"), dtype.itemsize, profile)
    if dtype.kind == "O":
        return fill if isinstance(fill, str) else base64.b64encode(fill).decode("ascii")
    element = np.array([fill], dtype)[0]
    if dtype.kind in "iuf":
        return number(element, bare=profile.bare_nan and profile.spelling is not None)
    if dtype.kind == "b":
        return bool(element)
    if dtype.kind == "c":
        return [number(element.real), number(element.imag)]
    if dtype.kind in "mM":
        return integer(int(element.astype("i8")))
    if dtype.kind == "U":
        return str(element)
    return base64.b64encode(element.tobytes()).decode("ascii")


def _bytes_fill(fill: bytes, size: int, profile: Profile) -> str:
    """Return a fill value of bytes: netCDF-C reads the text itself, zarr-python base64."""
    if len(fill) > size:
        raise ValueError(f"is longer than {size} bytes")
    if profile.spelling is None:
        return base64.b64encode(fill).decode("ascii")
    return fill.decode("ascii" if size == 1 else "utf-8")


def codecs(array: ChunkedArray, profile: Profile) -> tuple[JSON, JSON]:
    """Return ``filters`` and ``compressor``; no filters are null, because ``[]`` crashes netCDF-C.

    In NCZarr the last codec is the compressor, of whatever kind. In pure Zarr a codec
    that is no compressor is a filter.
    """
    configs: list[JSON] = [_codec(config, array) for config in array.codecs]
    compressor = None
    if configs and (profile.spelling is not None or codec(array.codecs[-1]["id"]).compressor):
        compressor = configs.pop()
    return configs or None, compressor


def _codec(config: CodecConfig, array: ChunkedArray) -> dict[str, JSON]:
    settings = {name: _setting(value) for name, value in config.items()}
    if config["id"] == "shuffle" and not config.get("elementsize"):
        settings["elementsize"] = integer(netcdf_size(array.dtype))
    return settings


def _setting(value: Any) -> JSON:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return integer(int(value))
    if isinstance(value, (float, np.floating)):
        return number(np.float64(value))
    if isinstance(value, Mapping):
        return {str(name): _setting(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_setting(member) for member in value]
    return value
