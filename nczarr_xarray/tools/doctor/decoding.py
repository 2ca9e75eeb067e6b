"""How long a machine takes to decode chunks, by what was measured of each codec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.tools.doctor.patterns import Key
from nczarr_xarray.tools.survey import VariableStorage, codec_name

#: Bytes per second of copying elements into the result.
_COPY = 4e9
#: Seconds of a codec for each chunk, however small it is.
_EACH = 8e-6


def decoding_seconds(facts: VariableStorage, key: Key, chunks: tuple[int, ...] | None) -> float:
    """Return about how long all processors of this machine decode the chunks of a selection.

    Parameters
    ----------
    chunks
        Their shape; None for the one that they have.
    """
    array = facts.array
    if chunks is None and not array.is_chunked:
        counts = [len(part) for part in touched(key, facts.shape, (1,) * len(facts.shape))]
        return math.prod(counts) * facts.itemsize / _COPY / processors()
    shape = chunks or array.chunk_shape
    count = math.prod(len(part) for part in touched(key, facts.shape, shape))
    rates = [codec(codec_name(one)).rate for one in facts.codecs]
    nbytes = math.prod(shape) * facts.itemsize
    each = _EACH * (len(rates) + 1) + sum(nbytes / rate for rate in (*rates, _COPY))
    # a chunk is decoded by one processor
    return each * max(1.0, count / processors()) if count else 0.0


def touched(key: Key, shape: Sequence[int], pieces: Sequence[int]) -> Iterator[range]:
    """Yield per dimension which pieces of some lengths a selection touches."""
    for index, length, piece in zip(key, shape, pieces, strict=True):
        begin, stop = (index, index + 1) if isinstance(index, int) else index.indices(length)[:2]
        many = max(1, piece)
        yield range(begin // many, (stop - 1) // many + 1) if stop > begin else range(0)
