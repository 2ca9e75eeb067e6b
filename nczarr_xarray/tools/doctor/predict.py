"""Predict what reads of a variable cost, as it is and with other chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.model import Array
from nczarr_xarray.tools.doctor.aggregations import Aggregation
from nczarr_xarray.tools.doctor.contents import AggregationContent, FileContent, TreeContent
from nczarr_xarray.tools.doctor.decoding import decoding_seconds, touched
from nczarr_xarray.tools.doctor.network import Network
from nczarr_xarray.tools.doctor.patterns import Key, selections
from nczarr_xarray.tools.doctor.propose import proposals
from nczarr_xarray.tools.doctor.proposed import in_file, in_tree, proposed_nbytes
from nczarr_xarray.tools.doctor.references import ReferencesContent
from nczarr_xarray.tools.doctor.rehearsal import Cost, Rehearsal
from nczarr_xarray.tools.doctor.simulated import Content
from nczarr_xarray.tools.survey import Survey, VariableStorage

#: Reads of more chunks than this, or of more rows of plain elements, are not rehearsed: that would
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
    with _rehearsal(opened, _content(opened, survey), network) as rehearsal:
        return rehearsal.opening, bool(rehearsal.opened.hierarchy.consolidated)


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
    """Rehearse one selection of a newly opened dataset; None if that cannot be."""
    if _is_too_much(facts, key, chunks):
        return None
    array, content = _layout(opened, survey, facts, chunks)
    sample = facts.sample if isinstance(facts, Aggregation) else None
    if sample is not None:
        array, content = facts.array, AggregationContent(content, sample.content())
    try:
        with _rehearsal(opened, content, network) as rehearsal:
            variable = rehearsal.variable(facts.path)
            variable.array = array or variable.array
            cost = rehearsal.selection(variable, key, sample)
    except NCZarrError:  # which reading the variable would raise, too
        return None
    begun = cost.rounds * network.latency
    inside = facts.inside if isinstance(facts, Aggregation) else facts
    return cost.decoded(decoding_seconds(inside, key, chunks), begun)


def _is_too_much(facts: VariableStorage, key: Key, chunks: tuple[int, ...] | None) -> bool:
    """Tell whether a read has too many pieces to be rehearsed."""
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


def _layout(
    opened: Opened, survey: Survey, facts: VariableStorage, chunks: tuple[int, ...] | None
) -> tuple[Array | None, Content]:
    """Return an array with other chunks, and what a server of it has; None for those it has."""
    if chunks is None:
        return None, _content(opened, survey)
    if isinstance(opened.store, DataFile):
        assert survey.size is not None
        array, end = in_file(facts, chunks, survey.size)
        return array, FileContent(opened.store, end - survey.size)
    array = in_tree(facts, chunks)
    nbytes = {array.path: proposed_nbytes(facts, chunks)}
    return array, TreeContent(opened.store, survey.facts, nbytes)


def _content(opened: Opened, survey: Survey) -> Content:
    if isinstance(opened.store, DataFile):
        return FileContent(opened.store)
    if isinstance(opened.store, (LocalReferences, RemoteReferences)):
        return ReferencesContent(opened.store)
    return TreeContent(opened.store, survey.facts, {})


def _rehearsal(opened: Opened, content: Content, network: Network) -> Rehearsal:
    store = opened.store
    return Rehearsal(content, network, store.url, file=isinstance(store, DataFile))
