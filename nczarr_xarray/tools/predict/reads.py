"""Predict what typical reads of a variable cost, as it is and with other chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.export.form.chunk_shapes import plane_of
from nczarr_xarray.tools.predict.aggregations import Aggregation
from nczarr_xarray.tools.predict.counting import (
    Counted,
    CountedFile,
    CountedReferences,
    CountedTree,
    Key,
)
from nczarr_xarray.tools.predict.layouts import in_file, in_tree, proposals, proposed_nbytes
from nczarr_xarray.tools.predict.network import Cost, Network
from nczarr_xarray.tools.survey import Survey, VariableStorage, codec_name

#: Reads of more chunks than this, or of more rows of plain elements, are not counted: that would
#: take longer than is of use.
MOST_CHUNKS, MOST_ROWS, MOST_FRAGMENTS = 50_000, 1 << 22, 4096
#: Bytes of a chunk that is, for it takes as much memory.
MOST_BYTES = 1 << 28


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
    try:
        counted = _counted(opened, survey, network, None if chunks is None else (facts, chunks))
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
    return cost.decoded(decoding_seconds(inside, key, chunks), cost.rounds * network.latency)


def _counted(
    opened: Opened,
    survey: Survey,
    network: Network,
    proposed: tuple[VariableStorage, tuple[int, ...]] | None = None,
) -> Counted:
    """Open a dataset anew and count what that takes.

    Parameters
    ----------
    proposed
        A variable, and the shape of its chunks in a layout that there is not.
    """
    store = opened.store
    counted: Counted
    if isinstance(store, (LocalReferences, RemoteReferences)) and proposed is None:
        return CountedReferences(store, network)
    if isinstance(store, DataFile):
        if proposed is None:
            return CountedFile(store, network)
        assert survey.size is not None
        array, end = in_file(*proposed, survey.size)
        counted = CountedFile(store, network, more=end - survey.size)
    elif proposed is None:
        return CountedTree(store, survey.facts)
    else:
        array = in_tree(*proposed)
        nbytes = {array.path: proposed_nbytes(*proposed)}
        counted = CountedTree(store, survey.facts, chunk_nbytes=nbytes)
    counted.variable(proposed[0].path).array = array
    return counted


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


def _map(shape: Sequence[int]) -> Key:
    """Select one step of all leading dimensions, and all of the last two."""
    plane = plane_of(len(shape))
    return (*(length // 2 for length in shape[:plane]), *(_ALL for _ in shape[plane:]))


def _series(shape: Sequence[int]) -> Key:
    """Select all of the first dimension, and one place."""
    return (_ALL, *(length // 2 for length in shape[1:]))


def _box(shape: Sequence[int]) -> Key:
    """Select a quarter of each dimension, in the middle."""
    return tuple(slice(length * 3 // 8, -(-length * 5 // 8)) for length in shape)


def _everything(shape: Sequence[int]) -> Key:
    return (_ALL,) * len(shape)


#: What is predicted, by name: from a shape to a selection.
PATTERNS: dict[str, Callable[[Sequence[int]], Key]] = {
    "map": _map,
    "series": _series,
    "box": _box,
    "everything": _everything,
}


def selections(shape: Sequence[int]) -> dict[str, Key]:
    """Return the patterns that make sense for a shape, by name."""
    if not all(shape):
        return {}
    if len(shape) < 2:
        return {"everything": _everything(shape)}
    return {name: pattern(shape) for name, pattern in PATTERNS.items()}


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
