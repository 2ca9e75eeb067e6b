"""What there is to say of a dataset's layout: one function for each kind of finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_fsspec.text import format_size
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import FragmentArray, Hierarchy
from nczarr_xarray.tools.doctor.aggregations import Aggregation, of_fragments
from nczarr_xarray.tools.doctor.network import Cost
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.survey import Survey, VariableStorage, codec_name

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


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of a dataset.

    Parameters
    ----------
    hierarchy
        Its metadata.
    survey
        How its variables are stored.
    opening
        What it takes to open it.
    consolidated
        Whether consolidated metadata are used for that over a network.
    noted
        What was found elsewhere.
    aggregations
        The variables that are made of fragments.
    """

    hierarchy: Hierarchy
    survey: Survey
    opening: Cost
    consolidated: bool
    noted: tuple[Finding, ...] = ()
    aggregations: tuple[Aggregation, ...] = ()


def _chunked(case: Case) -> Iterator[VariableStorage]:
    """Yield variables of several chunks."""
    for facts in case.survey.facts:
        if facts.array.is_chunked and facts.count > 1:
            yield facts


def _unreadable(case: Case) -> Iterator[Finding]:
    for path, error in case.survey.errors.items():
        text = f"cannot be read: {error.reason}"
        yield Finding("error", "unreadable", path, text, "see `nczarr info`")


def _others(case: Case) -> Iterator[Finding]:
    for variable in case.survey.others:
        if variable.error is None and not isinstance(variable.array, FragmentArray):
            text = "is not looked at: another library reads it, whose requests are its own"
            yield Finding("note", "not-examined", variable.path, text)


def _problems(case: Case) -> Iterator[Finding]:
    for problem in case.hierarchy.problems:
        yield Finding("warning", "problem", problem.object, problem.reason)


def _slow_opening(case: Case) -> Iterator[Finding]:
    cost = case.opening
    if cost.rounds > _ROUNDS:
        yield Finding(
            "warning",
            "slow-opening",
            "/",
            f"opening takes {cost.rounds} rounds of requests, {cost.requests} in all: the metadata "
            "are not together",
            "write the metadata in one place: nczarr copy --consolidated"
            if case.survey.size is None
            else "write the metadata in one place: by `h5repack -S PAGE` or cmip7repack; or open "
            "the file with index_cache=FOLDER, which keeps them for the next time",
        )


def _index(case: Case) -> Iterator[Finding]:
    survey, begin = case.survey, case.survey.data_begin
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


def _small_chunks(case: Case) -> Iterator[Finding]:
    for facts in _chunked(case):
        if facts.chunk_nbytes < SMALL and facts.count > _FEW:
            yield Finding(
                "warning",
                "small-chunks",
                facts.path,
                f"has {facts.count:,} chunks of {format_size(facts.chunk_nbytes)} before codecs; "
                "each costs a part of a request, and an entry of the index",
                _RECHUNK,
            )


def _large_chunks(case: Case) -> Iterator[Finding]:
    for facts in case.survey.facts:
        if facts.array.is_chunked and facts.chunk_nbytes > LARGE:
            yield Finding(
                "warning",
                "large-chunks",
                facts.path,
                f"has chunks of {format_size(facts.chunk_nbytes)} before codecs, all of which must "
                "be fetched and decoded for a single value",
                _RECHUNK,
            )


def _shards(case: Case) -> Iterator[Finding]:
    for facts in case.survey.facts:
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


def _single_steps(case: Case) -> Iterator[Finding]:
    for facts in _chunked(case):
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


def _coordinates(case: Case) -> Iterator[Finding]:
    for facts in _chunked(case):
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


def _padding(case: Case) -> Iterator[Finding]:
    for facts in case.survey.facts:
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


def _lost_space(case: Case) -> Iterator[Finding]:
    survey = case.survey
    if survey.size is None or any(f.stored is None for f in survey.facts) or survey.others:
        return
    known = sum(f.stored.nbytes for f in survey.facts if f.stored) + case.opening.nbytes
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


def _codecs(case: Case) -> Iterator[Finding]:
    for facts in case.survey.facts:
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


def _consolidated(case: Case) -> Iterator[Finding]:
    if case.survey.size is None and not case.consolidated:
        count = len(case.survey.facts) + len(case.survey.others)
        if count >= _DOCUMENTS:
            yield Finding(
                "note",
                "not-consolidated",
                "/",
                f"the metadata of {count} variables are objects of their own",
                "nczarr copy --consolidated writes them into one as well",
            )


def _fragments(case: Case) -> Iterator[Finding]:
    for aggregation in case.aggregations:
        yield from of_fragments(aggregation)


def untold(path: str, error: NCZarrError) -> Finding:
    """Say why reads of a variable are not predicted."""
    reason = error.reason if error.object == path else str(error)
    return Finding("note", "not-predicted", path, f"reads of it are not predicted: {reason}")


#: All of them: a function for each kind, or for kinds that exclude each other.
CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _unreadable,
    _others,
    _problems,
    _slow_opening,
    _index,
    _small_chunks,
    _large_chunks,
    _shards,
    _single_steps,
    _coordinates,
    _padding,
    _lost_space,
    _codecs,
    _consolidated,
    _fragments,
)

_ORDER = ("error", "warning", "note")


def diagnose(case: Case) -> tuple[Finding, ...]:
    """Return all findings, the severe ones first."""
    found = [finding for check in CHECKS for finding in check(case)]
    return tuple(sorted([*found, *case.noted], key=lambda finding: _ORDER.index(finding.severity)))
