"""szip, in HDF5 and in NCZarr: a 4-byte size, then an extended-Rice stream.

HDF5 itself decodes and encodes it, so the sample layout, the padding of scanlines
and the option bits are those of the library that netCDF-C uses. It needs four
parameters: option bits, pixels of a block, bits of a pixel, pixels of a scanline.
HDF5 files record all of them, NCZarr the first two. netCDF-C (4.10.1, observed)
takes the length of a scanline from the last dimension of the *variable*, where
HDF5 takes the chunk's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import Buffer, Size, Step, packed
from nczarr_xarray.codecs.libhdf5 import SZIP, filter_decoder, filter_encoder
from nczarr_xarray.model import Array, ChunkedArray, CodecConfig

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
