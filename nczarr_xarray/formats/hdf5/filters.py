"""Filter pipelines of HDF5 (specification IV.A.2.l) as codecs of `nczarr_xarray.chunks`.

Each filter becomes one codec, so that bit i of a chunk's filter mask belongs to codec i.
"""

from __future__ import annotations

import math

import numpy as np

from nczarr_xarray.codecs.libhdf5 import lacks
from nczarr_xarray.codecs.registry import codec_of_filter
from nczarr_xarray.formats.hdf5.objects import Filter
from nczarr_xarray.model import CodecConfig

#: Names of registered filters that are no codecs here, for messages: the file may have none.
_NAMES = {
    305: "LZO",
    32008: "bitshuffle",
    32013: "ZFP",
    32017: "SZ",
    32018: "FCIDECOMP",
    32019: "JPEG",
    32024: "SZ3",
    32026: "Blosc2",
    32028: "FLAC/SPERR",
}


def codecs_of(
    filters: tuple[Filter, ...], dtype: np.dtype, chunk_shape: tuple[int, ...]
) -> tuple[CodecConfig, ...]:
    """Return the codecs of a pipeline, one for each filter.

    A filter that cannot be undone becomes a codec that raises an error for chunks to which it was
    applied: ``hdf5-wrong`` for impossible parameters, ``hdf5-missing`` for a filter that no
    installed package has.

    Parameters
    ----------
    filters
        In the order of encoding.
    dtype, chunk_shape
        Dtype and shape of the chunks before the first filter.
    """
    nbytes = math.prod(chunk_shape) * dtype.itemsize
    return tuple(_codec(one, nbytes) for one in filters)


def missing(codecs: tuple[CodecConfig, ...]) -> list[str]:
    """Say why chunks may be unreadable: what is not installed, one sentence for each filter."""
    return [config["reason"] for config in codecs if config["id"] == "hdf5-missing"]


def _codec(one: Filter, nbytes: int) -> CodecConfig:
    known = codec_of_filter(one.id)
    if known is not None and known.hdf5 is not None and known.hdf5.decodes:
        try:
            return {"id": known.id, **known.hdf5.settings(one.values)}
        except (IndexError, ValueError):
            reason = f"cannot have the parameters {one.values!r:.80}"
            return _refused("hdf5-wrong", one, reason)
    if not 0 < nbytes < 1 << 32:
        return _refused("hdf5-wrong", one, f"cannot be undone in chunks of {nbytes} bytes")
    if reason := lacks(one.id):
        return _refused("hdf5-missing", one, reason)
    return {"id": "hdf5", "filter": one.id, "values": list(one.values)}


def _refused(id_: str, one: Filter, reason: str) -> CodecConfig:
    return {"id": id_, "filter": one.id, "reason": f"its filter {name_of(one)} {reason}"}


def name_of(one: Filter) -> str:
    """Return number and name of a filter for messages: ``"32026 (Blosc2)"``."""
    known = codec_of_filter(one.id)
    name = one.name or (known.id.removeprefix("hdf5-") if known else _NAMES.get(one.id, ""))
    return f"{one.id} ({name:.60})" if name else str(one.id)
