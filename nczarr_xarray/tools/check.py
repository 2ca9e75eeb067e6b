"""``check``: do files keep CMIP7's rules, each by itself and together? And repacking those."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import ExportError, LossWarning
from nczarr_xarray.aggregation.sources import Source, datasets_of
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.across import Dataset, Member, member_of
from nczarr_xarray.tools.checks.cmip7 import PACKING
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.checks.table import Reads, findings
from nczarr_xarray.tools.copy import copy

#: Files that are looked at together: requests for remote ones wait at the same time.
_TOGETHER = 16


class _Looked(NamedTuple):
    """What was found of one file, and what is compared with others; None if it cannot be."""

    findings: list[Finding]
    member: Member | None


def check_cmip7(
    sources: Iterable[Source] | Source,
    storage_options: Mapping[str, Any] | None = None,
    *,
    progress: bool = False,
) -> dict[str, tuple[Finding, ...]]:
    """Find out whether files keep CMIP7's rules, each by itself and together.

    Of each file, metadata and coordinates are read. Files are of one dataset whose names differ
    only in the range of time at their end, ``_185001-201412``; of others, those of one
    ``variable_id``.

    Parameters
    ----------
    sources, storage_options
        As of `nczarr_xarray.aggregate`: files, folders, patterns, lists.
    progress
        Show a progress bar.

    Returns
    -------
    dict
        The findings of each file, by its name; no file is left out. Codes: ``cmip7`` for what
        `nczarr_xarray.copy` with ``cmip7=True`` puts right; ``unlike-…`` for what is not as in the
        first file of the dataset; ``time-gap``, ``time-overlap``, ``time-order``, ``time-bounds``.

    Raises
    ------
    NCZarrError
        If nothing is where a source is, or a file is out of reach.
    """
    files = datasets_of(sources, storage_options)
    found: dict[str, list[Finding]] = {}
    datasets: dict[str, Dataset] = {}
    with Progress("check", shown=progress, unit=" files") as shown:
        shown.expect(len(files))
        for file, (own, member) in zip(files, _looked_at(files, storage_options), strict=True):
            found[file] = own
            if member is not None:
                dataset = datasets.setdefault(member.dataset, Dataset(member))
                own += dataset.add(member)
            shown.advance()
    for dataset in datasets.values():
        for file, finding in dataset.order():
            found[file].append(finding)
    return {file: tuple(own) for file, own in found.items()}


def _looked_at(
    files: Sequence[str], storage_options: Mapping[str, Any] | None
) -> Iterator[_Looked]:
    look = partial(_look, storage_options=storage_options)
    with WaitingThreads(_TOGETHER, thread_name_prefix="nczarr-check") as pool:
        for at in range(0, len(files), _TOGETHER):
            yield from pool.map(look, files[at : at + _TOGETHER])


def _look(file: str, storage_options: Mapping[str, Any] | None) -> _Looked:
    with closing(Subject.open(file, storage_options, consolidated=None)) as subject:
        found = list(findings(subject, "check", Reads.METADATA))
        if subject.opened is None:
            return _Looked(found, None)
        return _Looked(found, member_of(file, subject.opened, found))


def repack(file: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Write a file anew as CMIP7 wants it; the old one stays until the new one is verified.

    Raises
    ------
    ExportError
        If something would be lost, or the new file is not equal to the old one.
    NCZarrError
        If the file cannot be read, or written.
    """

    def fill(path: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LossWarning)
            try:
                compared = copy(
                    file,
                    path,
                    format="NETCDF4",
                    cmip7=True,
                    verify=True,
                    storage_options=storage_options,
                )
            except LossWarning as lost:
                raise ExportError(file, f"stays as it is, or it would lose: {lost}") from lost
        assert compared is not None
        left = [str(one) for one in compared.differences]
        left += [one.text for one in _look(path, None).findings if one.code == PACKING]
        if left or not compared.equal:
            raise ExportError(file, "stays as it is, for what was made of it is not right", left)

    FilePlace.find(file, storage_options).write(fill, overwrite=True)
