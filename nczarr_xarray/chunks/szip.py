"""szip as netCDF-C stores it: a 4-byte size, then an extended-Rice stream.

HDF5 itself decodes and encodes it: a chunk of a file in memory is written in
one form and read in the other, so the sample layout, the padding of scanlines
and the option bits are those of the library that netCDF-C uses. One thing
differs from HDF5: the length of a scanline comes from the last dimension of the
*variable*, where HDF5 takes the chunk's (netCDF-C 4.10.1, observed; the metadata
do not record it). So the parameter is set in the bytes of an HDF5 file that is
made once an array.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.chunks.libhdf5 import only_user, opened
from nczarr_xarray.model import ChunkedArray, CodecConfig

_BLOCKS_PER_SCANLINE = 128
_PIXELS_PER_SCANLINE = 4096


def szip_decoder(config: CodecConfig, array: ChunkedArray) -> Callable[[Any], Any]:
    """A function that decodes szip chunks of `array`.

    Parameters
    ----------
    config
        ``{"id": "szip", "mask": option bits, "pixels-per-block": n}``.

    Raises
    ------
    FormatError
        If h5py is not installed, was built without szip, or the parameters are wrong.
    """
    with only_user():
        image, corner = _chunk_file(config, array)
    size = math.prod(array.chunk_shape) * array.dtype.itemsize

    def decode(data: Any) -> Any:
        if len(data) < 4 or int.from_bytes(bytes(data[:4]), "little") != size:
            raise FormatError("", f"the szip size is not {size}")
        with opened(image) as file:
            dataset = file["chunk"]
            dataset.id.write_direct_chunk(corner, bytes(data))
            return np.ascontiguousarray(dataset[...]).view(np.uint8).reshape(-1)

    return decode


def szip_encoder(config: CodecConfig, array: ChunkedArray) -> Callable[[Any], Any]:
    """A function that encodes the bytes of chunks of `array`, as `szip_decoder` undoes it.

    netCDF-C 4.10.1 gives the same bytes (observed). It fails where szip makes a
    chunk no smaller, and so does the function, with a ValueError.

    Parameters
    ----------
    config
        ``{"id": "szip", "mask": option bits, "pixels-per-block": n}``.

    Raises
    ------
    FormatError
        If h5py is not installed, was built without szip, or the parameters are wrong.
    """
    with only_user():
        image, corner = _chunk_file(config, array)
    shape = array.chunk_shape or (1,)

    def encode(data: Any) -> Any:
        with opened(image) as file:
            dataset = file["chunk"]
            dataset[...] = np.frombuffer(data, array.dtype).reshape(shape)
            file.flush()
            skipped, stored = dataset.id.read_direct_chunk(corner)
        if skipped:
            raise ValueError("szip makes it no smaller; choose zlib or zstd for such data")
        return stored

    return encode


def _chunk_file(config: CodecConfig, array: ChunkedArray) -> tuple[bytes, tuple[int, ...]]:
    """The bytes of an HDF5 file that holds one empty chunk of `array`, and the chunk's corner."""
    where = f"{array.path}/.zarray"
    try:
        import h5py
    except ImportError:
        raise FormatError(where, "codec 'szip' needs h5py: pip install h5py") from None
    if not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        raise FormatError(where, "codec 'szip': this h5py was built without szip")
    mask, pixels = config.get("mask"), config.get("pixels-per-block")
    if not (isinstance(mask, int) and isinstance(pixels, int)):
        raise FormatError(where, "codec 'szip' lacks 'mask' or 'pixels-per-block'")
    shape = array.chunk_shape or (1,)
    # 4: entropy coding, 32: nearest neighbour; HDF5 sets all other bits by itself
    image = _empty_file(shape, array.dtype, ("nn" if mask & 32 else "ec", pixels))
    return _with_scanline(image, _scanline(array, pixels)), (0,) * len(shape)


def _empty_file(shape: tuple[int, ...], dtype: np.dtype[Any], options: tuple[str, int]) -> bytes:
    """The bytes of an HDF5 file with one empty szip dataset of one chunk."""
    import h5py

    # the earliest version of the file format has no checksums over what is changed below
    with h5py.File(
        uuid.uuid4().hex, "w", driver="core", backing_store=False, libver="earliest"
    ) as file:
        file.create_dataset(
            "chunk", shape, dtype, chunks=shape, compression="szip", compression_opts=options
        )
        file.flush()
        image: bytes = file.id.get_file_image()
        return image


def _with_scanline(image: bytes, scanline: int) -> bytes:
    """The file with another length of scanline among the parameters of its filter."""
    import h5py

    with h5py.File(h5py.h5f.open_file_image(image)) as file:
        parameters = file["chunk"].id.get_create_plist().get_filter(0)[2]
    old = struct.pack(f"<{len(parameters)}I", *parameters)
    new = struct.pack(f"<{len(parameters)}I", *parameters[:-1], scanline)
    if image.count(old) != 1:
        raise FormatError("", "codec 'szip' does not work with this version of h5py")
    return image.replace(old, new)


def _scanline(array: ChunkedArray, pixels: int) -> int:
    """Elements of one scanline: HDF5's rule, applied to the variable's last dimension."""
    most = _BLOCKS_PER_SCANLINE * pixels
    last = array.shape[-1] if array.shape else 1
    if last < pixels:
        return min(most, math.prod(array.chunk_shape))
    return min(most, last) if last <= _PIXELS_PER_SCANLINE else most
