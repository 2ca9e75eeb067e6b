"""Zarr 3's blosc as zarr-python decodes it, but for chunks that were cut off.

numcodecs reads behind the end of such a chunk, and takes what is in memory there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zarr.codecs import BloscCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import UNKNOWN, Size, packed
from nczarr_xarray.codecs.decompress import blosc_container

_NAME = "nczarr_xarray.blosc"


def with_whole_blosc(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array whose codecs, in shards too, check what blosc is given."""
    codecs = metadata.get("codecs")
    return {**metadata, "codecs": [_checking(codec) for codec in codecs or ()]}


def _checking(codec: Any) -> Any:
    name = codec.get("name") if isinstance(codec, dict) else codec
    if name in ("blosc", "numcodecs.blosc"):
        return {"name": _NAME}  # which needs no settings to decode
    if name == "sharding_indexed":
        return {**codec, "configuration": with_whole_blosc(codec["configuration"])}
    return codec


class WholeBlosc(BloscCodec):
    """Decodes chunks of blosc that are there to their end."""

    @classmethod
    def from_dict(cls, _: Any) -> WholeBlosc:
        """Return the codec, which has no settings."""
        return cls()

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        _check(chunk_bytes, chunk_spec)
        return super()._decode_sync(chunk_bytes, chunk_spec)

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        _check(chunk_bytes, chunk_spec)
        return await super()._decode_single(chunk_bytes, chunk_spec)


def _check(chunk: Buffer, spec: ArraySpec) -> None:
    dtype = spec.dtype.to_native_dtype()
    size = UNKNOWN
    if dtype.kind not in "OT":
        size = packed(Size(math.prod(spec.shape) * dtype.itemsize))
    try:
        blosc_container(chunk.as_numpy_array(), size)
    except FormatError as error:
        raise ValueError(error.reason) from None


register_codec(_NAME, WholeBlosc)
