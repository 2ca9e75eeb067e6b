"""Checks of CMIP7's rules for the layout of netCDF-4 files.

They are those of ``check_cmip7_packing``: the index of all chunks lies before the data; time and
its bounds are one chunk; the data variable is one chunk or has chunks of 4 MiB, or would have with
one step more.
"""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_xarray.export.form import cmip7
from nczarr_xarray.model import Group
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.commands import command
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.survey import VariableStorage

#: The code of what repacking puts right.
PACKING = "cmip7"


def _root(subject: Subject) -> Group:
    return Group() if subject.opened is None else subject.opened.hierarchy.root


def _repack(subject: Subject) -> str:
    return f"repack it: {command(subject, 'check', '--cmip7', '--fix', option='-s')}"


def _is_one(facts: VariableStorage) -> bool:
    count = facts.count if facts.stored is None else facts.stored.count
    return not facts.array.is_chunked or (count or 0) <= 1


def is_netcdf4(subject: Subject) -> Iterator[Finding]:
    """Find a dataset that is no netCDF-4 file."""
    if subject.opened is not None and subject.generation != "hdf5":
        text = f"is {subject.generation}, and CMIP7 wants netCDF-4"
        yield Finding("error", "format", "/", text, "nczarr copy it to a .nc, with --cmip7")


def index_first(subject: Subject) -> Iterator[Finding]:
    """Find an index of chunks that lies among the data, or behind them."""
    if subject.opened is None or subject.generation != "hdf5":
        return
    survey = subject.survey
    chunked = [f.stored.low for f in survey.facts if f.array.is_chunked and f.stored is not None]
    begin = min((low for low in chunked if low is not None), default=None)
    if begin is not None and any(extent.start > begin for extent in survey.index):
        text = "a part of the index of the chunks lies after the first chunk"
        yield Finding("warning", PACKING, "/", text, _repack(subject))


def one_chunk_of_time(subject: Subject) -> Iterator[Finding]:
    """Find time, or its bounds, in several chunks."""
    for path in cmip7.times(_root(subject)):
        facts = subject.survey.of(path)
        if facts is not None and not _is_one(facts):
            text = f"has {facts.count:,} chunks; CMIP7 needs one"
            yield Finding("warning", PACKING, path, text, _repack(subject))


def large_chunks(subject: Subject) -> Iterator[Finding]:
    """Find data in several chunks that are too small."""
    path = cmip7.data(_root(subject))
    facts = None if path == "/" else subject.survey.of(path)
    if facts is None or _is_one(facts):
        return
    if short := cmip7.lacking(facts.shape, facts.array.chunk_shape, facts.itemsize):
        text = f"has chunks of {facts.chunk_nbytes:,} bytes; CMIP7 needs "
        text += f"{facts.chunk_nbytes + short:,} at least"
        yield Finding("warning", PACKING, path, text, _repack(subject))
