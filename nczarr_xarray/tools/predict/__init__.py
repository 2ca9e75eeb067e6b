"""What typical reads of a variable cost over a network, as it is stored and with other chunks."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.export.form.chunk_shapes import (
    DEFAULT_BYTES,
    balanced_chunk_shape,
    equal_lengths,
    plane_of,
)
from nczarr_xarray.formats.rounds import all_of, read
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import Array, ChunkedArray, ChunkTable, FileChunks, grid_of
from nczarr_xarray.tools.predict.aggregations import Aggregation
from nczarr_xarray.tools.predict.counting import (
    Counted,
    CountedFile,
    CountedReferences,
    CountedTree,
    Key,
)
from nczarr_xarray.tools.predict.network import Cost, Network
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


#: Entries of a node of HDF5's first kind of index, at most and as netCDF-C fills them.
_MOST, _FILLED = 64, 46


def proposed_nbytes(facts: VariableStorage, chunk_shape: tuple[int, ...]) -> int:
    """Return about how long a stored chunk of another shape would be."""
    count = math.prod(grid_of(facts.shape, chunk_shape))
    whole = math.prod(chunk_shape) * facts.itemsize
    # without codecs what lies beyond the shape takes as much as anything else
    return max(1, round(facts.ratio * facts.nbytes / count)) if facts.codecs else whole


def in_tree(facts: VariableStorage, chunk_shape: tuple[int, ...]) -> Array:
    """Return the array with other chunks, each an object."""
    array = facts.array
    if isinstance(array, ZarrArray):
        metadata = json.loads(array.metadata)
        for codec in metadata["codecs"]:
            if codec["name"] == "sharding_indexed":
                metadata["codecs"] = codec["configuration"]["codecs"]
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = list(chunk_shape)
        text = json.dumps(metadata)
        return dataclasses.replace(array, chunk_shape=chunk_shape, metadata=text)
    assert isinstance(array, ChunkedArray)
    return dataclasses.replace(array, chunk_shape=chunk_shape)


def in_file(facts: VariableStorage, chunk_shape: tuple[int, ...], begin: int) -> tuple[Array, int]:
    """Return the array with other chunks, as netCDF-C would write them, and where they end.

    Parameters
    ----------
    begin
        Where they begin in the file.
    """
    array = facts.array
    index = _Index(
        begin,
        math.prod(grid_of(array.shape, chunk_shape)),
        proposed_nbytes(facts, chunk_shape),
        _node_nbytes(len(array.shape)),
    )
    codecs = array.codecs if isinstance(array, FileChunks) else ()
    chunks = FileChunks(array.path, array.shape, chunk_shape, array.dtype, index, codecs=codecs)
    return chunks, index.end


def _node_nbytes(rank: int) -> int:
    """Return the bytes of a node: a header, and keys around addresses of eight bytes."""
    key = 8 + 8 * (rank + 1)
    return 24 + (_MOST + 1) * key + _MOST * 8


@dataclass(frozen=True, slots=True)
class _Index:
    """A tree of nodes that lie before the first of their chunks; its root is with the header.

    Parameters
    ----------
    begin
        Where chunks and nodes begin.
    count, nbytes
        Of the chunks, and of each.
    node
        Bytes of a node.
    """

    begin: int
    count: int
    nbytes: int
    node: int

    @property
    def levels(self) -> int:
        """Levels below the root."""
        levels, spanned = 0, _MOST
        while spanned < self.count:
            levels, spanned = levels + 1, spanned * _FILLED
        return levels

    @property
    def end(self) -> int:
        """Where the last chunk ends."""
        return int(self._starts(np.array([self.count - 1]))[0]) + self.nbytes

    def _starts(self, ids: np.ndarray) -> np.ndarray:
        nodes = (ids // _FILLED + 1) * self.levels * self.node
        starts: np.ndarray = self.begin + ids * self.nbytes + nodes
        return starts

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks, level by level: see `Array.locate`."""
        for level in range(self.levels, 0, -1):
            firsts = np.unique(ids // _FILLED**level) * _FILLED**level
            places = (self._starts(firsts) - level * self.node).tolist()
            await all_of(read(place, self.node) for place in places)
        size = np.full(len(ids), self.nbytes)
        return ChunkTable(self._starts(ids), size, np.zeros(len(ids), np.uint32))
