"""``.zarray`` to a `ChunkedArray`, and its dtype to a netCDF type (Zarr v2 specification)."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.nczarr.attributes import DTYPE, as_float, as_integer
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, dumps
from nczarr_xarray.model import NC_TYPES, ChunkedArray, CodecConfig, bytes_of, netcdf_size

#: Lengths beyond this cannot be indexed by numpy.
MAX_SIZE = 2**63 - 1
#: Bytes of chunks by default in netCDF-C (4.9.0 to 4.10.1), and of its single unlimited dimension.
_CHUNK_BYTES, _RECORDS_BYTES = 1 << 24, 4096
#: Bytes of an element, at most: one hostile element could fill the memory.
MAX_ITEM = 1 << 24


def parse_array(
    metadata: JSON, path: str, *, netcdf: bool, unswapped: bool
) -> tuple[str | None, ChunkedArray]:
    """Parse one ``.zarray``.

    Parameters
    ----------
    metadata
        The parsed document.
    path
        Key of the array, without ``/.zarray``.
    netcdf
        Whether netCDF-C wrote the array (see `variable_type`).
    unswapped
        Whether the writer recorded a byte order and then wrote in the host's,
        as netCDF-C did before 4.9.3 (observed). The host is assumed to be
        little-endian: the format does not record it, and all common hosts are.

    Returns
    -------
    nc_type, array
        The netCDF type name, or None for a type netCDF does not have.

    Raises
    ------
    FormatError
        If the document is malformed; names the ``.zarray`` and the member.
    """
    key = f"{path}/.zarray"
    if not isinstance(metadata, dict):
        raise FormatError(key, "is not a JSON object")
    if metadata.get("zarr_format") != "2":
        raise FormatError(key, f"zarr_format is {dumps(metadata.get('zarr_format')):.80}, not 2")
    nc_type, dtype = variable_type(_member(metadata, "dtype", key), key, netcdf=netcdf)
    if unswapped:
        dtype = dtype.newbyteorder("<")
    shape = _lengths(metadata, "shape", key)
    chunks = _lengths(metadata, "chunks", key)
    if len(chunks) != len(shape):
        raise FormatError(key, f"chunks {list(chunks)} and shape {list(shape)} differ in rank")
    # some writers give chunk length 0 to a dimension of length 0
    chunks = tuple(c or 1 if n == 0 else c for c, n in zip(chunks, shape, strict=True))
    if 0 in chunks:
        raise FormatError(key, "a chunk length is 0")
    codecs = _codecs(metadata, key, dtype, text=nc_type == "string")
    if any(config["id"] == "vlen-bytes" for config in codecs):
        nc_type = None  # objects that are not text: netCDF has no such type
    array = ChunkedArray(
        path=path,
        shape=shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=_fill(metadata.get("fill_value"), nc_type, dtype, key, netcdf=netcdf),
        codecs=codecs,
        order=_order(metadata, key),
        separator=_separator(metadata, key),
    )
    return nc_type, array


def default_chunk_nbytes(array: ChunkedArray, unlimited: Sequence[bool]) -> int:
    """Return the bytes of the chunks that netCDF-C chooses for a variable by itself.

    netCDF-C (4.9.0 to 4.10.1) stores chunks of so many bytes also if others were asked for with
    ``nc_def_var_chunking_ints``, which netCDF-Fortran calls: what was asked for is their beginning.
    """
    itemsize, rank = array.dtype.itemsize, len(array.shape)
    fixed = [n for n, grows in zip(array.shape, unlimited, strict=True) if not grows]
    if array.dtype.kind not in "iufS" or not itemsize or array.order != "C":
        return 0
    if not fixed:
        side = int((_CHUNK_BYTES / itemsize) ** (1 / rank)) if rank > 1 else 0
        return (side**rank or (_RECORDS_BYTES // itemsize)) * itemsize
    total = math.prod(fixed)
    if total * itemsize <= _CHUNK_BYTES:
        return total * itemsize
    # (as netCDF-C reckons, in single precision)
    wanted = float(np.prod(fixed, dtype=np.float32) * np.float32(itemsize))
    share = (_CHUNK_BYTES / wanted) ** (1 / len(fixed))
    count = 1
    for size in fixed:
        length = max(1, int(share * size - 0.5))
        number = -(-size // length)
        count *= length - (number * length - size) // number
    return count * itemsize


def _member(metadata: Mapping[str, JSON], name: str, key: str) -> JSON:
    if name not in metadata:
        raise FormatError(key, f"{name!r} is missing")
    return metadata[name]


def _lengths(metadata: Mapping[str, JSON], name: str, key: str) -> tuple[int, ...]:
    values = _member(metadata, name, key)
    if not isinstance(values, list):
        raise FormatError(key, f"{name!r} is not an array")
    return tuple(length(value, key, name) for value in values)


def length(value: JSON, key: str, name: str) -> int:
    """Return a non-negative integer that numpy can index (`FormatError` otherwise)."""
    if not (isinstance(value, Number) and value.isdecimal() and value.isascii()):
        raise FormatError(key, f"{name!r} holds {dumps(value):.80}, not a length")
    if len(value) > 19 or int(value) > MAX_SIZE:
        raise FormatError(key, f"{name!r} holds {value:.80}, more than can be indexed")
    return int(value)


def _order(metadata: Mapping[str, JSON], key: str) -> Literal["C", "F"]:
    order = metadata.get("order", "C")
    if order == "C":
        return "C"
    if order == "F":
        return "F"
    raise FormatError(key, f"order is {dumps(order):.80}, neither C nor F")


def _separator(metadata: Mapping[str, JSON], key: str) -> str:
    separator = metadata.get("dimension_separator") or "."
    if separator not in (".", "/"):
        raise FormatError(key, f"dimension_separator is {dumps(separator):.80}, neither . nor /")
    return str(separator)


def _codecs(
    metadata: Mapping[str, JSON], key: str, dtype: np.dtype, *, text: bool
) -> tuple[CodecConfig, ...]:
    """Return the filters, then the compressor: the order of encoding."""
    filters = metadata.get("filters") or []
    if not isinstance(filters, list):
        raise FormatError(key, "'filters' is not an array")
    compressor = metadata.get("compressor")
    configs = [*filters, *([] if compressor is None else [compressor])]
    for config in configs:
        if not isinstance(config, dict) or not isinstance(config.get("id"), str):
            raise FormatError(key, f"codec {dumps(config):.80} has no 'id'")
    found = [{name: _plain(value) for name, value in config.items()} for config in configs]
    for config in found:
        if config["id"] == "shuffle" and not config.get("elementsize"):  # as netCDF-C writes it
            config["elementsize"] = netcdf_size(dtype, text=text)
    return tuple(found)


def _plain(value: JSON, *, inside: bool = False) -> Any:
    """Return codec parameters as numcodecs wants them: 4.9.0-4.9.3 write numbers as strings.

    Strings `inside` lists are strings, such as the labels of ``categorize``.
    """
    if isinstance(value, list):
        return [_plain(v, inside=True) for v in value]
    if isinstance(value, dict):
        return {name: _plain(v, inside=True) for name, v in value.items()}
    if isinstance(value, Number) or (isinstance(value, str) and not inside):
        for number in (int, float) if isinstance(value, Number) else (int,):
            try:
                return number(value)
            except ValueError:
                continue
        return str(value)
    return value


def _fill(value: JSON, nc_type: str | None, dtype: np.dtype, key: str, *, netcdf: bool) -> Any:
    """Return the fill element; None means zero bytes. Times that nothing states are missing."""
    if isinstance(value, list) and dtype.kind not in "cV":
        if len(value) != 1:
            raise FormatError(key, f"fill_value {dumps(value):.80} is not one value")
        value = value[0]  # netCDF-C 4.8.0 writes a list
    if value is None:
        return np.array("NaT", dtype)[()] if dtype.kind in "mM" else None
    try:
        with np.errstate(over="ignore"):  # 1e308 is the infinity of a float
            return _fill_element(value, nc_type, dtype, netcdf)
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        reason = f"fill_value {dumps(value):.80} is not of dtype {dtype.str} ({error})"
        raise FormatError(key, reason) from None


def _fill_element(value: JSON, nc_type: str | None, dtype: np.dtype, netcdf: bool) -> Any:
    if dtype.kind in "iu":
        integer = as_integer(value)
        limits = np.iinfo(dtype)
        if not limits.min <= integer <= limits.max:
            raise ValueError("out of range")
        return dtype.type(integer)
    if dtype.kind == "f":
        return dtype.type(as_float(value))
    if dtype.kind == "b":
        return np.bool_(as_integer(value) != 0)
    if dtype.kind == "c":
        real, imaginary = value if isinstance(value, list) else (value, Number(0))
        return dtype.type(complex(as_float(real), as_float(imaginary)))
    if dtype.kind in "mM":
        return np.array("NaT" if value == "NaT" else as_integer(value)).astype(dtype)[()]
    if isinstance(value, Number) and value == "0":
        return None  # zarr-python's "no value" for text and raw bytes
    if not isinstance(value, str) or isinstance(value, Number):
        raise TypeError("text was expected")
    if dtype.kind == "O" and nc_type is None:
        return base64.b64decode(value, validate=True)
    if dtype.kind in "UO":
        return value
    if dtype.kind == "S":
        return _bytes_fill(value, nc_type, dtype, netcdf)
    return np.frombuffer(base64.standard_b64decode(value), dtype=dtype, count=1)[0]


def _bytes_fill(value: str, nc_type: str | None, dtype: np.dtype, netcdf: bool) -> bytes:
    """Return a fill value of bytes: netCDF-C writes the text itself, zarr-python base64."""
    if not netcdf and nc_type == "string":
        try:
            decoded = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        if 0 < len(decoded) <= dtype.itemsize:
            return decoded.rstrip(b"\0")
    return bytes_of(value)[: dtype.itemsize]


# -- dtype ---------------------------------------------------------------------------------------


def variable_type(code: JSON, key: str, *, netcdf: bool) -> tuple[str | None, np.dtype]:
    """Return the netCDF type name (or None) and the stored numpy dtype of a ``dtype``.

    Parameters
    ----------
    code
        The JSON value: a string, or a list for structured types.
    key
        Names the ``.zarray`` in errors.
    netcdf
        Whether netCDF-C wrote the array. Then ``<U1`` is one byte per element
        (4.8.x, 4.9.0) and means char. ``>S1`` means char wherever it appears:
        only netCDF-C writes that spelling.

    Raises
    ------
    FormatError
        If numpy has no such type.
    """
    if isinstance(code, list):
        return None, _numpy_dtype(_fields(code, key), key)
    if not isinstance(code, str) or isinstance(code, Number):
        raise FormatError(key, f"dtype {code!r:.80} is not text")
    match = DTYPE.fullmatch(code)
    if match is None:
        raise FormatError(key, f"dtype {code!r:.80} is not a Zarr data type")
    prefix, kind, size, unit = match.groups()
    if kind == "S" and (prefix, size) == (">", "1"):
        return "char", np.dtype("S1")
    if kind == "U" and size == "1" and netcdf:
        return "char", np.dtype("S1")
    # "|i4" and "i4" name no byte order: take the common one (4.9.3+ swap the bytes)
    order = "<" if prefix in ("", "|", "=") else prefix
    if not size and kind != "O":
        raise FormatError(key, f"dtype {code!r} has no size")
    if kind == "M" and unit is None:  # numpy has such types, but cannot print them
        raise FormatError(key, f"dtype {code!r} has no unit of time")
    dtype = _numpy_dtype(f"{order}{kind}{size}{unit or ''}", key)
    if kind in "SUO":
        return "string", dtype
    return NC_TYPES.get(kind + size), dtype


def _numpy_dtype(spec: Any, key: str) -> np.dtype:
    try:
        dtype: np.dtype = np.dtype(spec)
    except (TypeError, ValueError) as error:
        raise FormatError(key, f"dtype {spec!r:.80} is not known ({error})") from None
    if dtype.hasobject and dtype.kind != "O":
        raise FormatError(key, f"dtype {spec!r:.80} has Python objects inside")
    if not 0 < dtype.itemsize <= MAX_ITEM:
        raise FormatError(key, f"dtype {spec!r:.80} has elements of {dtype.itemsize} bytes")
    return dtype


def _fields(code: list[JSON], key: str) -> list[tuple[Any, ...]]:
    """Return a structured dtype: ``[["a", "<i4"], ["b", "<f8", [2]]]`` as numpy wants it."""
    fields: list[tuple[Any, ...]] = []
    for entry in code:
        try:
            name, kind, *shapes = entry
            simple = None if isinstance(kind, list) else DTYPE.fullmatch(kind)
            sizes = [tuple(int(n) for n in shape) for shape in shapes]
        except (TypeError, ValueError):
            raise FormatError(key, f"structured dtype {code!r:.80} is malformed") from None
        if simple is None and not isinstance(kind, list):
            raise FormatError(key, f"dtype {kind!r:.80} is not a Zarr data type")
        fields.append((name, kind if simple else _fields(kind, key), *sizes))
    return fields


def packed(dtype: np.dtype) -> np.dtype:
    """Return a dtype without padding between its fields, which Zarr would take for fields."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((packed(base), shape))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, packed(dtype[name])) for name in dtype.names])
