"""Examine a dataset: open it, look at its layout, predict reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace as change
from typing import Any

import xarray as xr

from nczarr_fsspec.address_policy import Allow
from nczarr_fsspec.errors import NCZarrError, UsageError
from nczarr_fsspec.keystore import LocalStore
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.formats.nczarr.documents import KEY
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.doctor.aggregations import Aggregation, sample_of
from nczarr_xarray.tools.doctor.cmip7 import cmip7_failures
from nczarr_xarray.tools.doctor.diagnosis import Case, diagnose, untold
from nczarr_xarray.tools.doctor.network import Network, measure_network
from nczarr_xarray.tools.doctor.predict import predict, predict_opening
from nczarr_xarray.tools.doctor.references import of_references
from nczarr_xarray.tools.doctor.report import Report
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.storage import Storage
from nczarr_xarray.tools.survey import Survey, VariableStorage, survey
from nczarr_xarray.tools.validate.consolidated import consolidated
from nczarr_xarray.tools.validate.subject import Subject

_DEFAULT = Network()


def doctor(
    target: Any,
    *,
    variable: str | None = None,
    latency: float | None = None,
    bandwidth: float | None = None,
    measure: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
) -> Report:
    """Examine the layout of a dataset, and predict how long reads take over a network.

    Only metadata are read, the index of all chunks among them; of a remote tree also the lengths
    of some chunks.

    Parameters
    ----------
    target
        Whatever `nczarr_xarray.open_hierarchy` opens; or what xarray opened from it.
    variable
        The path of the variable whose reads are predicted; by default the largest.
    latency
        Of the network, in seconds from a request to the first byte of its answer.
    bandwidth
        Bytes per second of all connections together.
    measure
        Whether latency and bandwidth that are not given are measured, by some requests for
        bytes of the dataset; otherwise they are 50 ms and 125 MB/s.
    storage_options, replace, allow
        As of `nczarr_xarray.open_hierarchy`.

    Returns
    -------
    Report
        The findings, and the predicted requests, bytes and seconds of each read.

    Raises
    ------
    NCZarrError
        If the dataset cannot be opened, has no such variable, or its network cannot be measured.
    """
    if isinstance(target, (xr.Dataset, xr.DataArray, xr.DataTree)):
        target = Storage.of(target).source
    with open_hierarchy(
        target, storage_options=storage_options, replace=replace, allow=allow
    ) as opened:
        found = survey(opened)
        network = measure_network(opened, found) if measure else _DEFAULT
        given = {"latency": latency, "bandwidth": bandwidth}
        network = change(network, **{k: v for k, v in given.items() if v is not None})
        stale = tuple(_stale(opened, target, storage_options))
        return _examine(opened, found, network, variable, stale)


def _examine(
    opened: Opened,
    found: Survey,
    network: Network,
    variable: str | None,
    stale: tuple[Finding, ...],
) -> Report:
    """Do what `doctor` does, of an open dataset."""
    hierarchy = opened.hierarchy
    opening, is_consolidated = predict_opening(opened, found, network)
    aggregations = [
        Aggregation(one, one.array) for one in found.others if isinstance(one.array, FragmentArray)
    ]
    chosen = _chosen(opened, [*found.facts, *aggregations], variable)
    facts, noted = chosen, (*stale, *of_references(opened.store, chosen))
    if isinstance(chosen, Aggregation):
        try:
            facts = change(chosen, sample=sample_of(chosen))
        except NCZarrError as error:
            facts, noted = None, (*noted, untold(chosen.path, error))
        aggregations = [facts if facts and one is chosen else one for one in aggregations]
    case = Case(
        hierarchy,
        found,
        opening,
        consolidated=is_consolidated,
        noted=noted,
        aggregations=tuple(aggregations),
    )
    is_netcdf4 = hierarchy.generation == "hdf5"
    return Report(
        url=opened.store.url,
        format=hierarchy.generation,
        size=found.size,
        variables=len(found.facts) + len(found.others),
        network=network,
        opening=opening,
        findings=diagnose(case),
        variable="" if facts is None else facts.path,
        predictions=() if facts is None else tuple(predict(opened, found, facts, network)),
        cmip7=cmip7_failures(found, hierarchy.root) if is_netcdf4 else None,
    )


def _stale(
    opened: Opened, target: Any, storage_options: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Find out whether consolidated metadata are stale, where all documents are at hand."""
    store = opened.store
    if isinstance(store, LocalStore) and store.get(KEY) is not None:
        with closing(Subject.open(target, storage_options)) as subject:
            yield from consolidated(subject)


def _chosen(
    opened: Opened, known: Sequence[VariableStorage], variable: str | None
) -> VariableStorage | None:
    """Return the facts of the variable that reads are predicted of; None if there is none."""
    if variable is None:
        return max(known, key=lambda facts: facts.nbytes, default=None)
    path = f"/{variable.strip('/')}"
    facts = next((facts for facts in known if facts.path == path), None)
    if facts is None:
        there = ", ".join(one.path for one in known) or "none"
        reason = f"has no variable {variable!r} whose reads can be predicted; there are: {there}"
        hint = did_you_mean(path, [one.path for one in known])
        raise UsageError(opened.store.url, reason + hint)
    return facts
