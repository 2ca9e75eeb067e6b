"""Codecs of numcodecs that do not compress, kept to the sizes they must have.

A filter turns so many bytes into so many others. That follows from its
parameters and is checked before it runs, for it may be told to make very long
elements of short ones, or as many objects as it likes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import UNKNOWN, Buffer, Size, Step, packed
from nczarr_xarray.codecs.libhdf5 import SZIP, filter_decoder, filter_encoder
from nczarr_xarray.model import Array, ChunkedArray, CodecConfig

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


# -- szip ----------------------------------------------------------------------------------------
# szip, in HDF5 and in NCZarr: a 4-byte size, then an extended-Rice stream.
#
# HDF5 itself decodes and encodes it, so the sample layout, the padding of scanlines
# and the option bits are those of the library that netCDF-C uses. It needs four
# parameters: option bits, pixels of a block, bits of a pixel, pixels of a scanline.
# HDF5 files record all of them, NCZarr the first two. netCDF-C (4.10.1, observed)
# takes the length of a scanline from the last dimension of the *variable*, where
# HDF5 takes the chunk's.


#: Option bits; HDF5 sets the last two always.
ENTROPY, _LITTLE, _BIG, NEAREST, _ALLOW_K13, _RAW = 4, 8, 16, 32, 1, 128
_BLOCKS_PER_SCANLINE = 128
_PIXELS_PER_SCANLINE = 4096
_PIXELS_PER_BLOCK = range(2, 33, 2)
#: Bytes of a pixel of up to so many bits.
_WIDTHS = {8: 1, 16: 2, 32: 4, 64: 8}


def decode(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Undo the szip of NCZarr; as `szip_step`."""
    return szip_step(szip_parameters(config, array), size)


def szip_step(values: Sequence[int], size: Size) -> tuple[Step, Size]:
    """Return how to undo szip that has to return `size`, and the size it takes.

    Parameters
    ----------
    values
        The four parameters.

    Raises
    ------
    FormatError
        If h5py is not installed or has no szip, or the parameters are wrong.
    """
    width = _width(values)
    known = filter_decoder(SZIP, values, size.most) if size.exact else None

    def undo(data: Buffer) -> Buffer:
        stated = int.from_bytes(bytes(data[:4]), "little")  # libhdf5 believes it
        if size.exact and stated != size.most:
            raise FormatError("", f"the szip size is not {size.most}, but {stated}")
        size.check(stated)
        _check_whole(stated, width)
        return (known or filter_decoder(SZIP, values, stated))(data) if stated else b""

    return undo, packed(size)


def szip_encoder(config: CodecConfig, array: ChunkedArray) -> Callable[[Any], Any]:
    """Return a function that encodes the bytes of chunks of `array`, as `szip_step` undoes it.

    netCDF-C 4.10.1 gives the same bytes (observed). It fails where szip makes a
    chunk no smaller, and so does the function, with a ValueError.

    Parameters
    ----------
    config
        ``{"id": "szip", "mask": option bits, "pixels-per-block": n}``.

    Raises
    ------
    FormatError
        If h5py is not installed or has no szip, or the parameters are wrong.
    """
    values = szip_parameters(config, array)
    width = _width(values)
    filter_encoder(SZIP, values, array.dtype.itemsize)  # which fails now, if it does

    def encode(data: Any) -> Any:
        size = memoryview(data).nbytes
        _check_whole(size, width)
        stored = filter_encoder(SZIP, values, size)(data)
        if stored is None:
            raise ValueError("szip makes it no smaller; choose zlib or zstd for such data")
        return stored

    return encode


def szip_parameters(config: CodecConfig, array: Array) -> tuple[int, int, int, int]:
    """Return HDF5's parameters of the szip of an NCZarr array.

    Raises
    ------
    FormatError
        If the metadata lack one that they have to give.
    """
    mask, pixels = config.get("mask"), config.get("pixels-per-block")
    if not (isinstance(mask, int) and isinstance(pixels, int)):
        raise FormatError(array.described, "codec 'szip' lacks 'mask' or 'pixels-per-block'")
    order = _LITTLE if array.dtype.newbyteorder("<") == array.dtype else _BIG
    options = (NEAREST if mask & NEAREST else ENTROPY) | _RAW | _ALLOW_K13 | order
    return options, pixels, 8 * array.dtype.itemsize, _scanline(array, pixels)


def _scanline(array: Array, pixels: int) -> int:
    """Return elements of one scanline: HDF5's rule, applied to the variable's last dimension."""
    most = _BLOCKS_PER_SCANLINE * pixels
    last = array.shape[-1] if array.shape else 1
    if last < pixels:
        return min(most, math.prod(array.chunk_shape))
    return min(most, last) if last <= _PIXELS_PER_SCANLINE else most


def _width(values: Sequence[int]) -> int:
    """Return bytes of a pixel.

    Raises
    ------
    FormatError
        If the parameters are none of szip's, which libhdf5 would not notice.
    """
    if len(values) != 4:
        raise FormatError("", f"codec 'szip' cannot be used with {len(values)} parameters")
    _, pixels, bits, scanline = values
    width = next((_WIDTHS[most] for most in _WIDTHS if 0 < bits <= most), None)
    blocks = -(-scanline // pixels) if pixels else 0
    if width is None or pixels not in _PIXELS_PER_BLOCK or not 0 < blocks <= _BLOCKS_PER_SCANLINE:
        reason = f"{pixels} pixels a block and {scanline} a scanline, of {bits} bits each"
        raise FormatError("", f"codec 'szip' cannot be used with {reason}")
    return width


def _check_whole(size: int, width: int) -> None:
    """Refuse a part of a pixel: szip takes whole ones only, and libhdf5 would lose the rest."""
    if size % width:
        raise FormatError("", f"{size} bytes for szip, which are no multiple of {width}")
