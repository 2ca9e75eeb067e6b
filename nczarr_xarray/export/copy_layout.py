"""How the storage of a copy differs from that of its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from nczarr_xarray.codecs.shuffle import netcdf_size
from nczarr_xarray.export.form.chunk_shapes import balanced_chunk_shape, cut_to
from nczarr_xarray.model import CodecConfig


@dataclass(frozen=True, slots=True)
class CopyLayout:
    """The storage of a copy's variables; None keeps that of the source.

    Parameters
    ----------
    chunks
        Chunk lengths by name of a dimension.
    codecs
        In the order of encoding; ``elementsize`` of shuffle is filled in.
    balanced
        Whether all variables get the chunks of `balanced_chunk_shape`, instead of `chunks`.
    """

    chunks: Mapping[str, int] | None = None
    codecs: tuple[CodecConfig, ...] | None = None
    balanced: bool = False

    def chunk_shape(
        self, names: Iterable[str], shape: tuple[int, ...], itemsize: int
    ) -> tuple[int, ...] | None:
        """Return the chunk lengths of a variable; None for those of the source."""
        if self.balanced:
            return balanced_chunk_shape(shape, itemsize)
        if self.chunks is None:
            return None
        sizes = zip(names, shape, strict=True)  # a dimension without a length is taken whole
        return cut_to(shape, (self.chunks.get(name, max(1, size)) for name, size in sizes))


#: The storage of the source.
AS_IN_SOURCE = CopyLayout()


def codecs_for(codecs: tuple[CodecConfig, ...], dtype: np.dtype) -> tuple[CodecConfig, ...]:
    """Return codecs that were asked for, with the size of the elements of a dtype."""
    size = netcdf_size(dtype)
    return tuple(
        {**config, "elementsize": size} if config["id"] == "shuffle" else config
        for config in codecs
    )
