"""What typical reads of a variable cost over a network, as it is stored and with other chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.stores.mapping import MappingStore
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.form.chunk_shapes import (
    DEFAULT_BYTES,
    balanced_chunk_shape,
    equal_lengths,
    plane_of,
)
from nczarr_xarray.model import ChunkedArray, grid_of
from nczarr_xarray.tools.predict.aggregations import Aggregation
from nczarr_xarray.tools.predict.counting import (
    Counted,
    CountedFile,
    CountedReferences,
    CountedTree,
    Key,
)
from nczarr_xarray.tools.predict.network import Cost, Network, Request
from nczarr_xarray.tools.survey import Survey, VariableStorage, codec_name

#: Reads of more chunks than this, or of more rows of plain elements, are not counted: that would
#: take longer than is of use.
MOST_CHUNKS, MOST_ROWS, MOST_FRAGMENTS = 50_000, 1 << 22, 4096
#: Bytes of a chunk that is, for it takes as much memory.
MOST_BYTES = 1 << 28
#: Bytes of a chunk before codecs above which it is not proposed: a map may be larger.
_MOST_PROPOSED = 1 << 26


@dataclass(frozen=True, slots=True)
class Prediction:
    """What reads of one variable cost with one layout.

    Parameters
    ----------
    layout
        What it is called.
    chunks
        Lengths per dimension; None for data in one piece.
    costs
        By the name of what is read; None where that cannot be told.
    """

    layout: str
    chunks: tuple[int, ...] | None
    costs: Mapping[str, Cost | None]


def predict_opening(opened: Opened, survey: Survey, network: Network) -> tuple[Cost, bool]:
    """Return what opening the dataset costs, and whether consolidated metadata are used for it.

    Raises
    ------
    NCZarrError
        If its metadata cannot be read.
    """
    counted = _counted(opened, survey, network)
    counted.fetch_coordinates()
    return Cost.of(counted.rounds, network), bool(counted.opened.hierarchy.consolidated)


def predict(
    opened: Opened, survey: Survey, facts: VariableStorage, network: Network
) -> list[Prediction]:
    """Return what reads of one variable cost, as it is first, and then with proposed chunks."""
    array = facts.array
    fragmented = isinstance(facts, Aggregation)
    now = array.chunk_shape if array.is_chunked or fragmented else None
    layouts = {"fragments" if fragmented else "as it is": now}
    others = {} if fragmented else proposals(array.shape, facts.itemsize)
    for name, chunks in others.items():
        if chunks not in layouts.values():
            layouts[name] = chunks
    return [
        Prediction(
            name,
            chunks,
            {
                pattern: cost_of(opened, survey, facts, network, key, None if i == 0 else chunks)
                for pattern, key in selections(facts.variable.shape).items()
            },
        )
        for i, (name, chunks) in enumerate(layouts.items())
    ]


def cost_of(
    opened: Opened,
    survey: Survey,
    facts: VariableStorage,
    network: Network,
    key: Key,
    chunks: tuple[int, ...] | None,
) -> Cost | None:
    """Return what one selection of a newly opened dataset costs; None if that cannot be told.

    Parameters
    ----------
    chunks
        Of the layout; None for the one that it has.
    """
    if _is_too_much(facts, key, chunks):
        return None
    if chunks is not None:  # each is an object, as is each document, which was read before
        documents = [Request(0)] * (3 + 2 * len((*survey.facts, *survey.others)))
        cost = Cost.of([_of_copy(facts, key, chunks)], network, [documents])
        return cost.decoded(decoding_seconds(facts, key, chunks), network.latency)
    try:
        counted = _counted(opened, survey, network)
        counted.fetch_coordinates()
        before = counted.rounds.copy()
        if isinstance(facts, Aggregation) and facts.sample is not None:
            rounds = facts.rounds(key, network)
        else:
            rounds = counted.rounds_of(facts.path, key)
    except NCZarrError:  # which reading the variable would raise, too
        return None
    cost = Cost.of(rounds, network, before)
    inside = facts.inside if isinstance(facts, Aggregation) else facts
    return cost.decoded(decoding_seconds(inside, key, None), cost.rounds * network.latency)


def _counted(opened: Opened, survey: Survey, network: Network) -> Counted:
    """Open a dataset anew and count what that takes."""
    store = opened.store
    if isinstance(store, (LocalReferences, RemoteReferences)):
        return CountedReferences(store, network)
    if isinstance(store, DataFile):
        return CountedFile(store, network)
    return CountedTree(store, survey.facts)


def _is_too_much(facts: VariableStorage, key: Key, chunks: tuple[int, ...] | None) -> bool:
    """Tell whether a read has too many pieces to be counted."""
    if isinstance(facts, Aggregation):
        counts = map(len, touched(key, facts.shape, facts.array.chunk_shape))
        if math.prod(counts) > MOST_FRAGMENTS:
            return True
        facts = facts.inside
    shape, most = facts.shape, MOST_CHUNKS
    pieces = chunks or facts.array.chunk_shape
    if chunks is None and facts.array.strides is not None:
        pieces, most = (*(1 for _ in shape[1:]), *shape[-1:]), MOST_ROWS
    elif math.prod(pieces) * facts.itemsize > MOST_BYTES:
        return True
    return math.prod(len(part) for part in touched(key, shape, pieces)) > most


# -- what users read -----------------------------------------------------------------------------

_ALL = slice(None)


def selections(shape: Sequence[int]) -> dict[str, Key]:
    """Return what is predicted for a shape, by name.

    A map is one step of all leading dimensions, and all of the last two; a box is a quarter of each
    dimension, in the middle.
    """
    everything: Key = (_ALL,) * len(shape)
    if not all(shape):
        return {}
    if len(shape) < 2:
        return {"everything": everything}
    plane, middle = plane_of(len(shape)), [length // 2 for length in shape]
    return {
        "map": (*middle[:plane], *everything[plane:]),
        "series": (_ALL, *middle[1:]),
        "box": tuple(slice(length * 3 // 8, -(-length * 5 // 8)) for length in shape),
        "everything": everything,
    }


# -- decoding ------------------------------------------------------------------------------------

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


# -- other layouts -------------------------------------------------------------------------------


def steps(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return chunks of whole maps: so many steps of the first dimension as fit, one at least.

    Parameters are those of `balanced_chunk_shape`.
    """
    plane = plane_of(len(shape))
    each = math.prod(shape[plane:]) * itemsize
    along = max(1, min(shape[0], DEFAULT_BYTES // max(1, each)))
    return equal_lengths(shape, [along, *(1 for _ in shape[1:plane]), *shape[plane:]])


#: The layouts that are compared with the one that there is, by name.
PROPOSALS: dict[str, Callable[[Sequence[int], int], tuple[int, ...]]] = {
    "balanced": balanced_chunk_shape,
    "whole maps": steps,
}


def proposals(shape: Sequence[int], itemsize: int) -> dict[str, tuple[int, ...]]:
    """Return chunk shapes for an array, by the name of what they are good for."""
    if len(shape) < 2 or not all(shape):
        return {}
    found = {name: propose(shape, itemsize) for name, propose in PROPOSALS.items()}
    return {
        name: chunks
        for name, chunks in found.items()
        if math.prod(chunks) * itemsize <= _MOST_PROPOSED
    }


def _of_copy(facts: VariableStorage, key: Key, chunks: tuple[int, ...]) -> list[Request]:
    """Return what a selection of a copy with other chunks asks for."""
    if not facts.codecs:  # parts of chunks may do
        array = ChunkedArray(facts.path, facts.shape, chunks, facts.array.dtype)
        reader = VariableReader(MappingStore({}), replace(facts.variable, array=array))
        whole = math.prod(chunks) * facts.itemsize
        tables = at_once(reader.located(key))
        sizes = [size for table in tables for size in table.size.tolist()]
        return [Request(whole if size < 0 else size) for size in sizes]
    count = math.prod(grid_of(facts.shape, chunks))
    nbytes = max(1, round(facts.ratio * facts.nbytes / count))
    return [Request(nbytes)] * math.prod(map(len, touched(key, facts.shape, chunks)))
