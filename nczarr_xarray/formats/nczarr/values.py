"""Values of the model as JSON that netCDF-C, zarr-python and this package read back exactly.

Text is always a JSON string. netCDF-C itself stores text that looks like JSON
without quotes, and cannot read all of it back. It reads the quoted form
correctly (observed with 4.9.0, 4.9.1 and 4.10.1).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.formats.nczarr.attributes import is_list_of_one
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, is_standard, loads
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import (
    NC_DEFAULT_FILL,
    NC_DTYPES,
    NC_TYPES,
    Attribute,
    ChunkedArray,
    CodecConfig,
    Variable,
    bytes_of,
    netcdf_size,
    readable,
    text_of,
)

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
    settings: dict[str, JSON] = json.loads(
        json.dumps({**config}, default=_plain),
        parse_int=Number,
        parse_float=Number,
        parse_constant=str,
    )
    if config["id"] == "shuffle" and not config.get("elementsize"):
        settings["elementsize"] = integer(netcdf_size(array.dtype))
    return {**settings}


def _plain(setting: Any) -> Any:
    """Return a mapping, or a number of numpy, as Python's."""
    return {**setting} if isinstance(setting, Mapping) else setting.item()


# -- fill values -------------------------------------------------------------------------------


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


def stated_fill(variable: Variable) -> Any:
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
