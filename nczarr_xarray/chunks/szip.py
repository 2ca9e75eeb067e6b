"""szip as HDF5 and netCDF-C store it: a 4-byte size, then an extended-Rice stream.

HDF5 itself decodes it: a file in memory gets the stored chunk as it is and
gives the elements back, so the sample layout, the padding of scanlines and the
option bits are exactly those of the library that wrote them.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import ChunkedArray, CodecConfig


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
    coding = "nn" if mask & 32 else "ec"
    size = math.prod(shape) * array.dtype.itemsize

    def decode(data: Any) -> Any:
        if len(data) < 4 or int.from_bytes(bytes(data[:4]), "little") != size:
            raise FormatError("", f"the szip size is not {size}")
        with h5py.File(uuid.uuid4().hex, "w", driver="core", backing_store=False) as file:
            dataset = file.create_dataset(
                "chunk",
                shape=shape,
                chunks=shape,
                dtype=array.dtype,
                compression="szip",
                compression_opts=(coding, pixels),
            )
            dataset.id.write_direct_chunk((0,) * len(shape), bytes(data))
            return np.ascontiguousarray(dataset[...]).view(np.uint8).reshape(-1)

    return decode
