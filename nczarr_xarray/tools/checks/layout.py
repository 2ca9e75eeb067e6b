"""Checks of the layout: what of it makes reads slow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_fsspec.text import format_size
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.predict.aggregations import Aggregation, FileSample
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

_RECHUNK = "copy it with other chunks: nczarr copy --optimize, or --chunks (see the table of reads)"


def _chunked(subject: Subject) -> Iterator[VariableStorage]:
    """Yield variables of several chunks."""
    for facts in subject.survey.facts:
        if facts.array.is_chunked and facts.count > 1:
            yield facts


def unreadable(subject: Subject) -> Iterator[Finding]:
    """Find variables that cannot be read."""
    for path, error in subject.survey.errors.items():
        text = f"cannot be read: {error.reason}"
        yield Finding("error", "unreadable", path, text, "see `nczarr info`")


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
    if cost.rounds > _ROUNDS:
        yield Finding(
            "warning",
            "slow-opening",
            "/",
            f"opening takes {cost.rounds} rounds of requests, {cost.requests} in all: the metadata "
            "are not together",
            "write the metadata in one place: nczarr copy --consolidated"
            if subject.survey.size is None
            else "write the metadata in one place: by `h5repack -S PAGE` or cmip7repack; or open "
            "the file with index_cache=FOLDER, which keeps them for the next time",
        )


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
    yield Finding(
        "warning" if len(behind) > _FEW else "note",
        code,
        "/",
        f"the index of the chunks {where}; all of it is needed to read everything, or a series",
        "use larger chunks, or collect the index at the beginning with cmip7repack",
    )


def small_chunks(subject: Subject) -> Iterator[Finding]:
    """Find chunks that cost more to ask for than to bring."""
    for facts in _chunked(subject):
        if facts.chunk_nbytes < SMALL and facts.count > _FEW:
            yield Finding(
                "warning",
                "small-chunks",
                facts.path,
                f"has {facts.count:,} chunks of {format_size(facts.chunk_nbytes)} before codecs; "
                "each costs a part of a request, and an entry of the index",
                _RECHUNK,
            )


def large_chunks(subject: Subject) -> Iterator[Finding]:
    """Find chunks that bring much to readers of little."""
    for facts in subject.survey.facts:
        if facts.array.is_chunked and facts.chunk_nbytes > LARGE:
            yield Finding(
                "warning",
                "large-chunks",
                facts.path,
                f"has chunks of {format_size(facts.chunk_nbytes)} before codecs, all of which must "
                "be fetched and decoded for a single value",
                _RECHUNK,
            )


def shards(subject: Subject) -> Iterator[Finding]:
    """Say what shards cost that are read in part."""
    for facts in subject.survey.facts:
        if (
            not isinstance(facts.array, ZarrArray)
            or facts.array.object_shape == facts.array.chunk_shape
        ):
            continue
        whole = math.prod(facts.array.object_shape) // math.prod(facts.array.chunk_shape)
        index = _ENTRY * whole
        yield Finding(
            "warning" if index > SMALL else "note",
            "shards",
            facts.path,
            f"has {facts.objects:,} shards of {whole:,} chunks, "
            f"{format_size(whole * facts.chunk_nbytes)} before codecs; a read of a part of one "
            f"fetches its index first, {format_size(index)}, and then its chunks",
            "larger chunks in them take fewer requests" if whole > _FEW else "",
        )


def single_steps(subject: Subject) -> Iterator[Finding]:
    """Find chunks of one step each."""
    for facts in _chunked(subject):
        dims = facts.variable.dimensions
        for dim, length in zip(dims, facts.array.chunk_shape, strict=True):
            if dim.unlimited and length == 1 < dim.size and facts.chunk_nbytes < 4 * _MATTERS:
                yield Finding(
                    "note" if facts.chunk_nbytes > SMALL else "warning",
                    "single-steps",
                    facts.path,
                    f"has one step of the unlimited dimension {dim.name} in each chunk, so a "
                    f"series reads {dim.size:,} of them",
                    f"write several steps into a chunk: nczarr copy --chunks {dim.name}=...",
                )


def coordinates(subject: Subject) -> Iterator[Finding]:
    """Find coordinates in several chunks."""
    for facts in _chunked(subject):
        variable = facts.variable
        if [dim.name for dim in variable.dimensions] == [variable.name]:
            yield Finding(
                "warning",
                "divided-coordinate",
                facts.path,
                f"is a coordinate in {facts.count:,} chunks, all of which are read to open the "
                "dataset",
                "make it one chunk: nczarr copy --optimize",
            )


def padding(subject: Subject) -> Iterator[Finding]:
    """Find chunks much of which lies beyond the shape."""
    for facts in subject.survey.facts:
        lost = round(facts.padding * facts.count * facts.chunk_nbytes)
        if facts.array.is_chunked and facts.padding > _PADDED and lost > _MATTERS:
            yield Finding(
                "warning" if not facts.codecs else "note",
                "padding",
                facts.path,
                f"has {facts.padding:.0%} of its chunks' elements beyond its shape, "
                f"{format_size(lost)} before codecs",
                "choose lengths that divide those of the dimensions",
            )


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
        yield Finding(
            "note",
            "lost-space",
            "/",
            f"{format_size(lost)} of the file, {lost / survey.size:.0%}, are neither data nor "
            "metadata: free space, or what was overwritten",
            "h5repack, or nczarr copy, leave it out",
        )


def codecs(subject: Subject) -> Iterator[Finding]:
    """Find data without codecs, or with codecs that do not suit them."""
    for facts in subject.survey.facts:
        if facts.nbytes < _MATTERS or facts.array.dtype.kind not in "iuf":
            continue
        names = set(map(codec_name, facts.codecs))
        if not names:
            yield Finding(
                "note",
                "uncompressed",
                facts.path,
                f"has {format_size(facts.nbytes)} that are not compressed",
                "compress it if it is read over a network: nczarr copy --compress zstd",
            )
        elif (
            facts.array.codec_words != "zarr3"
            and facts.itemsize > 1
            and names & {"zlib", "zstd"}
            and not names & {"shuffle"}
        ):
            yield Finding(
                "note",
                "no-shuffle",
                facts.path,
                "is compressed without shuffling its bytes, which most numbers gain by",
                "nczarr copy --compress zlib shuffles",
            )
        elif facts.stored is not None and facts.stored.nbytes > _USELESS * facts.nbytes:
            yield Finding(
                "note",
                "useless-codecs",
                facts.path,
                f"takes {facts.stored.nbytes / facts.nbytes:.0%} of its size with codecs: they "
                "cost time and save nothing",
                "leave them out, or quantize",
            )


def not_consolidated(subject: Subject) -> Iterator[Finding]:
    """Find a tree of many documents that are not consolidated."""
    if subject.survey.size is None and not subject.is_consolidated:
        count = len(subject.survey.facts) + len(subject.survey.others)
        if count >= _DOCUMENTS:
            yield Finding(
                "note",
                "not-consolidated",
                "/",
                f"the metadata of {count} variables are objects of their own",
                "nczarr copy --consolidated writes them into one as well",
            )


def fragments(subject: Subject) -> Iterator[Finding]:
    """Say what the tables of aggregations tell, and, if there is one, a sample."""
    for aggregation in subject.aggregations:
        yield from of_fragments(aggregation)


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


def of_fragments(aggregation: Aggregation) -> Iterator[Finding]:
    """Yield what the table of fragments tells, and, if there is one, the sample."""
    array, path = aggregation.array, aggregation.path
    assert isinstance(array, FragmentArray)
    fragments, names = array.fragments, [dim.name for dim in aggregation.variable.dimensions]
    count = sum(address is not None for address in fragments.addresses)
    bounds = zip(fragments.starts, fragments.stops, strict=True)
    lengths = [sorted(set((stops - starts).tolist())) for starts, stops in bounds]
    each = math.prod(array.chunk_shape) * aggregation.itemsize
    shapes = " × ".join(_range(found) for found in lengths)
    yield Finding(
        "note",
        "fragments",
        path,
        f"is made of {count:,} fragments of {shapes}, at most {format_size(each)} before codecs; "
        "each that a read touches is opened",
    )
    if missing := fragments.count - count:
        yield Finding(
            "note",
            "fragments-missing",
            path,
            f"has no data in {missing:,} of {fragments.count:,} places for fragments",
        )
    if count > _FEW and each < _SMALL_FRAGMENT:
        single = [
            name
            for name, found, parts in zip(names, lengths, fragments.grid, strict=True)
            if found == [1] and parts > _FEW
        ]
        steps = f": one for each step of {single[0]}" if single else ""
        yield Finding(
            "warning",
            "small-fragments",
            path,
            f"has {count:,} fragments of {format_size(each)} before codecs{steps}; to open each "
            "takes as many requests as to read it, or more",
            "copy it into one dataset: nczarr copy",
        )
    sample = aggregation.sample
    if isinstance(sample, FileSample) and not sample.alike and count > 1:
        yield Finding(
            "note",
            "fragments-unlike",
            path,
            "has fragments whose metadata differ, or lie far from the beginning of their files: "
            "those of each are read and parsed",
        )


def _range(lengths: Sequence[int]) -> str:
    first, last = lengths[0], lengths[-1]
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def not_predicted(subject: Subject) -> Iterator[Finding]:
    """Say why reads of an aggregation are not predicted."""
    error, chosen = subject.predicted, subject.chosen
    if isinstance(error, NCZarrError) and chosen is not None:
        reason = error.reason if error.object == chosen.path else str(error)
        text = f"reads of it are not predicted: {reason}"
        yield Finding("note", "not-predicted", chosen.path, text)
