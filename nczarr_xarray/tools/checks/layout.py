"""Checks of the layout: what of it makes reads slow."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_fsspec.text import format_size
from nczarr_xarray.export.form.chunk_shapes import balanced_chunk_shape
from nczarr_xarray.formats.nczarr.jsontext import loads
from nczarr_xarray.formats.zarr3.array import FILE, ZarrArray
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.checks import Finding, Severity
from nczarr_xarray.tools.checks.commands import command
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.predict.aggregations import Aggregation
from nczarr_xarray.tools.survey import SAMPLE, VariableStorage, codec_name, keys_of

#: Chunks of fewer bytes before codecs cost more to ask for than to bring, ...
SMALL = 1 << 18
#: and of more than this a reader of little gets much. Both as they are before codecs.
LARGE = 1 << 26
#: What is in so few chunks can be read at once, whatever their size.
_FEW = 64
#: Rounds of opening from which on users notice.
_ROUNDS = 3
#: Shares from which on something is worth a finding.
_PADDED, _LOST, _USELESS = 0.2, 0.1, 0.95
#: Bytes of a variable, or of a hole in a file, that matter.
_MATTERS = 1 << 20
#: Documents of metadata from which on one for all pays.
_DOCUMENTS = 8
#: Bytes that the index of a shard has for each chunk.
_ENTRY = 16

_RECHUNK = "copy it with other chunks (the commands are below)"


def _chunked(subject: Subject) -> Iterator[VariableStorage]:
    """Yield variables of several chunks."""
    for facts in subject.survey.facts:
        if facts.array.is_chunked and facts.count > 1:
            yield facts


def unreadable(subject: Subject) -> Iterator[Finding]:
    """Find variables that cannot be read."""
    for path, error in subject.survey.errors.items():
        text = f"cannot be read: {error.reason}"
        yield Finding("error", "unreadable", path, text, command(subject, "info"))


def not_examined(subject: Subject) -> Iterator[Finding]:
    """Say which variables other libraries read."""
    for variable in subject.survey.others:
        if variable.error is None and not isinstance(variable.array, FragmentArray):
            text = "is not looked at: another library reads it, whose requests are its own"
            yield Finding("note", "not-examined", variable.path, text)


def problems(subject: Subject) -> Iterator[Finding]:
    """Find what was repaired, or left out, to read the dataset."""
    for problem in subject.opened.hierarchy.problems if subject.opened is not None else ():
        yield Finding("warning", "problem", problem.object, problem.reason)


def slow_opening(subject: Subject) -> Iterator[Finding]:
    """Find metadata that take many rounds of requests."""
    cost = subject.opening
    if cost.rounds <= _ROUNDS:
        return
    text = f"opening takes {cost.rounds} rounds of requests, {cost.requests} in all: the "
    if _has_unused(subject):
        text += "consolidated metadata are used only where that is asked for"
        yield Finding("note", "consolidated-unused", "/", text, "open it with consolidated=True")
        return
    if subject.is_consolidated:
        text += "metadata are consolidated, and yet more is to be asked for"
        yield Finding("note", "slow-opening", "/", text)
        return
    advice = "copy it, with the metadata in one place"
    if subject.survey.size is not None:
        advice += "; or open it with index_cache=FOLDER, which keeps them for the next time"
    yield Finding("warning", "slow-opening", "/", f"{text}metadata are not together", advice)


def _has_unused(subject: Subject) -> bool:
    """Tell whether there are consolidated metadata of Zarr 3 that opening does not use."""
    if subject.opened is None or subject.generation != "v3" or subject.is_consolidated:
        return False
    (root,) = subject.opened.keys.get_many([FILE])
    document = loads(root, FILE) if isinstance(root, bytes) else None
    return isinstance(document, dict) and isinstance(document.get("consolidated_metadata"), dict)


def index(subject: Subject) -> Iterator[Finding]:
    """Find indexes of chunks that lie among the data or behind them."""
    survey, begin = subject.survey, subject.survey.data_begin
    if begin is None or not survey.index:
        return
    # what is near the beginning comes with opening
    behind = [extent for extent in survey.index if extent.start > max(begin, HEAD_BYTES)]
    last = max(f.stored.high or 0 for f in survey.facts if f.stored is not None)
    if not behind:
        return
    if survey.index[0].start >= last:
        where, code = "lies behind the data", "index-at-end"
    else:
        where, code = f"is scattered among the data, in {len(behind):,} pieces", "index-scattered"
    text = f"the index of the chunks {where}; all of it is needed to read everything, or a series"
    advice = "copy it, with the index in front"
    yield Finding("warning" if len(behind) > _FEW else "note", code, "/", text, advice)


def small_chunks(subject: Subject) -> Iterator[Finding]:
    """Find chunks that cost more to ask for than to bring."""
    for facts in _chunked(subject):
        if facts.chunk_nbytes < SMALL and facts.count > _FEW:
            text = (
                f"has {facts.count:,} chunks of {format_size(facts.chunk_nbytes)} before codecs; "
            )
            text += "each costs a part of a request, and an entry of the index"
            yield Finding("warning", "small-chunks", facts.path, text, _RECHUNK)


def large_chunks(subject: Subject) -> Iterator[Finding]:
    """Find chunks that bring much to readers of little."""
    for facts in subject.survey.facts:
        if facts.array.is_chunked and facts.chunk_nbytes > LARGE:
            text = f"has chunks of {format_size(facts.chunk_nbytes)} before codecs, all of which "
            text += "must be fetched and decoded for a single value"
            yield Finding("warning", "large-chunks", facts.path, text, _RECHUNK)


def shards(subject: Subject) -> Iterator[Finding]:
    """Say what shards cost that are read in part."""
    for facts in subject.survey.facts:
        array = facts.array
        if not isinstance(array, ZarrArray) or array.object_shape == array.chunk_shape:
            continue
        whole = math.prod(array.object_shape) // math.prod(array.chunk_shape)
        index = _ENTRY * whole
        text = f"has {facts.objects:,} shards of {whole:,} chunks, "
        text += f"{format_size(whole * facts.chunk_nbytes)} before codecs; a read of a part of one "
        text += f"fetches its index first, {format_size(index)}, and then its chunks"
        advice = "larger chunks in them take fewer requests" if whole > _FEW else ""
        yield Finding("warning" if index > SMALL else "note", "shards", facts.path, text, advice)


def single_steps(subject: Subject) -> Iterator[Finding]:
    """Find chunks of one step each."""
    for facts in _chunked(subject):
        dims = facts.variable.dimensions
        balanced = balanced_chunk_shape(facts.shape, facts.itemsize)
        for dim, length, better in zip(dims, facts.array.chunk_shape, balanced, strict=True):
            if length == 1 and dim.unlimited and better > 1 and facts.chunk_nbytes < 4 * _MATTERS:
                severity: Severity = "note" if facts.chunk_nbytes > SMALL else "warning"
                text = f"has one step of the unlimited dimension {dim.name} in each chunk, so a "
                text += f"series reads {dim.size:,} of them"
                advice = "copy it with several steps in a chunk"
                yield Finding(severity, "single-steps", facts.path, text, advice)


def coordinates(subject: Subject) -> Iterator[Finding]:
    """Find coordinates in several chunks."""
    for facts in _chunked(subject):
        variable = facts.variable
        if [dim.name for dim in variable.dimensions] == [variable.name]:
            text = f"is a coordinate in {facts.count:,} chunks, all of which are read to open the "
            advice = "copy it, with the coordinate in one chunk"
            yield Finding("warning", "divided-coordinate", facts.path, f"{text}dataset", advice)


def padding(subject: Subject) -> Iterator[Finding]:
    """Find chunks much of which lies beyond the shape."""
    for facts in subject.survey.facts:
        lost = round(facts.padding * facts.count * facts.chunk_nbytes)
        if facts.array.is_chunked and facts.padding > _PADDED and lost > _MATTERS:
            severity: Severity = "warning" if not facts.codecs else "note"
            text = f"has {facts.padding:.0%} of its chunks' elements beyond its shape, "
            text += f"{format_size(lost)} before codecs"
            advice = "copy it with lengths that nearly divide those of the dimensions"
            yield Finding(severity, "padding", facts.path, text, advice)


def lost_space(subject: Subject) -> Iterator[Finding]:
    """Find a file of which much is neither data nor metadata."""
    survey = subject.survey
    if survey.size is None or any(f.stored is None for f in survey.facts) or survey.others:
        return
    known = sum(f.stored.nbytes for f in survey.facts if f.stored) + subject.opening.nbytes
    # of the index, what is near the beginning comes with opening
    known += sum(stop - max(start, HEAD_BYTES) for start, stop in survey.index if stop > HEAD_BYTES)
    lost = survey.size - known
    if lost > max(_MATTERS, _LOST * survey.size):
        text = f"{format_size(lost)} of the file, {lost / survey.size:.0%}, are neither data nor "
        text += "metadata: free space, or what was overwritten"
        yield Finding("note", "lost-space", "/", text, "a copy leaves it out")


def codecs(subject: Subject) -> Iterator[Finding]:
    """Find data without codecs, or with codecs that do not suit them."""
    for facts in subject.survey.facts:
        if facts.nbytes < _MATTERS or facts.array.dtype.kind not in "iuf":
            continue
        names = set(map(codec_name, facts.codecs))
        is_shuffled = "shuffle" in names or facts.array.codec_words == "zarr3"
        if not names:
            text = f"has {format_size(facts.nbytes)} that are not compressed"
            advice = "compress it if it is read over a network"
            yield Finding("note", "uncompressed", facts.path, text, advice)
        elif names & {"zlib", "zstd"} and facts.itemsize > 1 and not is_shuffled:
            text = "is compressed without shuffling its bytes, which most numbers gain by"
            advice = "copy it with shuffling"
            yield Finding("note", "no-shuffle", facts.path, text, advice)
        elif facts.stored is not None and facts.stored.nbytes > _USELESS * facts.nbytes:
            text = f"takes {facts.stored.nbytes / facts.nbytes:.0%} of its size with codecs: they "
            text += "cost time and save nothing"
            advice = ""
            if facts.array.dtype.kind == "f":
                advice = "rounding it saves space, if you may: add --quantize "
                advice += f"{facts.path[1:]}=DIGITS to the copy"
            yield Finding("note", "useless-codecs", facts.path, text, advice)


def not_consolidated(subject: Subject) -> Iterator[Finding]:
    """Find a tree of many documents that are not consolidated."""
    count = len(subject.survey.facts) + len(subject.survey.others)
    is_tree = subject.survey.size is None and not subject.is_consolidated
    if is_tree and count >= _DOCUMENTS and not _has_unused(subject):
        text = f"the metadata of {count} variables are objects of their own"
        advice = "copy it, with all metadata in one object as well"
        yield Finding("note", "not-consolidated", "/", text, advice)


# -- references ------------------------------------------------------------------------------------

#: Chunks that are looked at, of one variable.
_MOST = 1 << 14


def references(subject: Subject) -> Iterator[Finding]:
    """Say in how many files the chunks of a variable are, if references name them."""
    facts, store = subject.chosen, subject.opened and subject.opened.store
    if facts is None or not isinstance(store, (LocalReferences, RemoteReferences)):
        return
    # each file of a folder behind a network is a request
    few = isinstance(store, RemoteReferences) and isinstance(store.origin, KeyStore)
    keys = keys_of(facts, SAMPLE if few else _MOST)
    found = [part for part in store.find_many(keys) if isinstance(part, Part)]
    files = len({part.address for part in found})
    some = "" if len(keys) == facts.count else f", of {len(keys):,} that were looked at"
    text = f"has {len(found):,} chunks in {files:,} files{some}; each file needs its own requests"
    yield Finding("note", "references", facts.path, text)


# -- aggregations ----------------------------------------------------------------------------------

#: Fragments of fewer bytes before codecs take longer to open than to read, where they are many.
_SMALL_FRAGMENT = 1 << 20


def fragments(subject: Subject) -> Iterator[Finding]:
    """Say what the tables of aggregations tell, and, if there is one, a sample."""
    for aggregation in subject.aggregations:
        yield from of_fragments(aggregation)


def of_fragments(aggregation: Aggregation) -> Iterator[Finding]:
    """Yield what the table of fragments tells, and, if there is one, the sample."""
    array, path = aggregation.array, aggregation.path
    assert isinstance(array, FragmentArray)
    fragments, names = array.fragments, [dim.name for dim in aggregation.variable.dimensions]
    count = sum(address is not None for address in fragments.addresses)
    bounds = zip(fragments.starts, fragments.stops, strict=True)
    lengths = [sorted(set((stops - starts).tolist())) for starts, stops in bounds]
    each = math.prod(array.chunk_shape) * aggregation.itemsize
    shapes = " × ".join(f"{n[0]:,}" if n[1:] == [] else f"{n[0]:,} to {n[-1]:,}" for n in lengths)
    text = f"is made of {count:,} fragments of {shapes}, at most {format_size(each)} before codecs"
    yield Finding("note", "fragments", path, f"{text}; each that a read touches is opened")
    if missing := fragments.count - count:
        text = f"has no data in {missing:,} of {fragments.count:,} places for fragments"
        yield Finding("note", "fragments-missing", path, text)
    if count > _FEW and each < _SMALL_FRAGMENT:
        parts = zip(names, lengths, fragments.grid, strict=True)
        single = [name for name, found, count in parts if found == [1] and count > _FEW]
        steps = f": one for each step of {single[0]}" if single else ""
        text = f"has {count:,} fragments of {format_size(each)} before codecs{steps}; to open each "
        text += "takes as many requests as to read it, or more"
        advice = "copy it into one dataset"
        yield Finding("warning", "small-fragments", path, text, advice)
    sample = aggregation.sample
    if sample is not None and not sample.alike and count > 1:
        text = "has fragments whose metadata differ, or lie far from the beginning of their files: "
        text += "those of each are read and parsed"
        yield Finding("note", "fragments-unlike", path, text)


def not_predicted(subject: Subject) -> Iterator[Finding]:
    """Say why reads of an aggregation are not predicted."""
    error, chosen = subject.predicted, subject.chosen
    if isinstance(error, NCZarrError) and chosen is not None:
        reason = error.reason if error.object == chosen.path else str(error)
        text = f"reads of it are not predicted: {reason}"
        yield Finding("note", "not-predicted", chosen.path, text)
