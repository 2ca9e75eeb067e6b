"""Codecs of numcodecs that do not compress, kept to the sizes they must have.

A filter turns so many bytes into so many others. That follows from its
parameters and is checked before it runs, for it may be told to make very long
elements of short ones, or as many objects as it likes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import UNKNOWN, Buffer, Size, Step
from nczarr_xarray.model import Array, CodecConfig

#: Codecs that would run code found in the data.
UNSAFE = frozenset({"pickle"})
_CHECKSUMS = frozenset({"fletcher32", "crc32", "crc32c", "adler32", "jenkins_lookup3"})


def filter_step(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Return how to undo a filter that has to return `size`, and the size it takes.

    Raises
    ------
    ValueError, TypeError
        If numcodecs does not know it, or not with these parameters.
    """
    import numcodecs

    name = config["id"]
    if name in UNSAFE:
        raise ValueError("it could run code")
    try:
        codec = numcodecs.get_codec(dict(config))
    except ValueError:
        raise ValueError("no such codec is known to numcodecs") from None
    if name in _DECLARED:
        return _declared(codec.decode, _DECLARED[name], array), UNKNOWN
    encoded = _encoded_size(name, codec, array, size)
    return _sized(codec.decode, encoded), encoded


def fletcher32(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Return how to take off a checksum, once it is found to be right, and the size with it.

    HDF5 up to 1.6.2 swapped the bytes of each of its halves on little-endian machines. libhdf5
    takes both, so what it wrote then is read.
    """
    verify, encoded = filter_step(config, array, size)

    def step(data: Buffer) -> Buffer:
        try:
            return verify(data)
        except RuntimeError:  # a wrong checksum
            stored = bytearray(data)
            stored[-4:-2], stored[-2:] = stored[-3:-5:-1], stored[:-3:-1]
            with suppress(RuntimeError):
                return verify(stored)
            raise

    return step, encoded


def _encoded_size(name: str, codec: Any, array: Array, size: Size) -> Size:
    if name in _CHECKSUMS:
        return Size(size.most + 4, size.exact)
    if name == "bitround":
        return size
    if name == "packbits":
        return Size(-(-size.most // 8) + 1, size.exact)
    if name == "base64":
        return Size(-(-size.most // 3) * 4, size.exact)
    if name == "astype":
        decoded, encoded = codec.decode_dtype, codec.encode_dtype
    elif name in ("categorize", "delta", "fixedscaleoffset", "quantize"):
        decoded, encoded = codec.dtype, codec.astype
    else:
        return UNKNOWN
    for dtype in (decoded, encoded):
        if dtype.kind in "mM" and "[0" in dtype.str:  # numpy would divide by it: SIGFPE
            raise ValueError(f"its dtype {dtype.str!r} counts from zero")
    if decoded.hasobject:
        return Size(math.prod(array.chunk_shape) * encoded.itemsize)
    count, rest = divmod(size.most, decoded.itemsize)
    if rest and size.exact:
        raise ValueError(f"its elements of {decoded.itemsize} bytes do not make up a chunk")
    return Size(count * encoded.itemsize, size.exact)


def _sized(decode: Step, size: Size) -> Step:
    def step(data: Buffer) -> Buffer:
        size.check(data.nbytes if hasattr(data, "nbytes") else len(data))
        return decode(data)

    return step


def _declared(
    decode: Step, declaration: Callable[[bytes], tuple[str, list[int]]], array: Array
) -> Step:
    """Undo a codec that says in the chunk itself what array to make of it."""
    count = math.prod(array.chunk_shape)
    dtypes = ("|O", array.dtype.str)

    def step(data: Buffer) -> Buffer:
        dtype, shape = declaration(memoryview(data).cast("B").tobytes())
        if dtype not in dtypes or math.prod(shape) != count:
            raise FormatError("", f"holds {shape} elements of dtype {dtype!r:.80}, not {count}")
        return decode(data)

    return step


def _of_vlen(data: bytes) -> tuple[str, list[int]]:
    return "|O", [int.from_bytes(data[:4], "little")]


def _of_json(data: bytes) -> tuple[str, list[int]]:
    *_, dtype, shape = json.loads(data)
    return dtype, shape


def _of_msgpack(data: bytes) -> tuple[str, list[int]]:
    from numcodecs.msgpacks import msgpack

    *_, dtype, shape = msgpack.unpackb(data, raw=True, strict_map_key=False)
    return dtype.decode(), shape


_DECLARED: dict[str, Callable[[bytes], tuple[str, list[int]]]] = {
    "vlen-utf8": _of_vlen,
    "vlen-bytes": _of_vlen,
    "vlen-array": _of_vlen,
    "json2": _of_json,
    "msgpack2": _of_msgpack,
}
