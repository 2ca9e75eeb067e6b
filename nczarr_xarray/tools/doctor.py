"""Examine a dataset: what of its layout makes reads slow, and what reads cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from dataclasses import replace as change
from typing import Any

import xarray as xr

from nczarr_fsspec.address_policy import Allow
from nczarr_fsspec.keystore import LocalStore
from nczarr_fsspec.text import aligned, counted, format_size
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.formats.cf import text_in
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.tools.checks import Finding, Findings
from nczarr_xarray.tools.checks.commands import MASK, copies
from nczarr_xarray.tools.checks.subject import Subject
from nczarr_xarray.tools.checks.table import Reads, findings
from nczarr_xarray.tools.html import paragraphs, report, table
from nczarr_xarray.tools.predict import Prediction, predict
from nczarr_xarray.tools.predict.network import Cost, Network, measure_network
from nczarr_xarray.tools.storage_table import Storage
from nczarr_xarray.tools.survey import VariableStorage

_HEAD = ("layout", "chunks", "read", "rounds", "requests", "MB", "seconds")
_TOO_MUCH = "?: not predicted, for it has too many pieces, or ones too large or of unknown length"


@dataclass(frozen=True, slots=True)
class Report:
    """What `doctor` has found out about a dataset.

    Attributes
    ----------
    url : str
        The dataset; free of secrets.
    format : str
        As `nczarr_xarray.model.Hierarchy.generation`.
    size : int or None
        Bytes of a file.
    variables : int
        How many there are.
    network : Network
        What is predicted for.
    opening : Cost
        What opening the dataset with xarray takes.
    findings : tuple of Finding
        The severe ones first.
    variable : str
        The path of the one that reads are predicted of; ``""`` if there is none.
    predictions : tuple of Prediction
        Of its layout as it is, and of others.
    cmip7 : tuple of Finding or None
        What CMIP7's rules for the layout of files object to; None if it is no netCDF-4 file that
        says by ``mip_era`` or ``project_id`` that it is of CMIP.
    commands : dict of str to str
        What copies the dataset, by the layouts of the copies; the first mends what was found.
    remark : str
        Why there are none.
    """

    url: str
    format: str
    size: int | None
    variables: int
    network: Network
    opening: Cost
    findings: tuple[Finding, ...]
    variable: str
    predictions: tuple[Prediction, ...]
    cmip7: tuple[Finding, ...] | None
    commands: dict[str, str]
    remark: str

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        parts = [paragraphs(self._about()), Findings(self._found).as_html()]
        if rows:
            parts += [paragraphs([self._network()]), table(head, rows, numbers=4)]
        parts += [paragraphs([self._copies()]), table((), self.commands.items())]
        return report(self.url, *parts)

    @property
    def _found(self) -> tuple[Finding, ...]:
        return (*self.findings, *(self.cmip7 or ()))

    def _about(self) -> Iterator[str]:
        """Yield what is said of the dataset as a whole."""
        size = "" if self.size is None else f", {format_size(self.size)}"
        yield f"format {self.format}{size}, {counted(self.variables, 'variable')}"
        cost = self.opening
        asked = f"{counted(cost.rounds, 'round')}, {counted(cost.requests, 'request')}"
        yield f"opening takes {asked}, {format_size(cost.nbytes)}, {cost.seconds:.2f} s"
        if self.cmip7 is not None:
            yield f"CMIP7 packing: {'FAIL' if self.cmip7 else 'PASS'}"

    def _network(self) -> str:
        rate = format_size(round(self.network.bandwidth))
        return f"{self.variable}, over {self.network.latency * 1e3:g} ms and {rate}/s"

    def _copies(self) -> str:
        return self.remark or "copies, by their chunks" + (
            f"; write your own secrets for {MASK}" if MASK in str(self.commands) else ""
        )

    def lines(self) -> Iterator[str]:
        """Yield the report line by line."""
        yield self.url
        yield from (f"  {line}" for line in self._about())
        if self._found:
            yield ""
        for finding in self._found:
            yield from finding.lines()
        if self.predictions:
            yield ""
            yield self._network()
            yield from aligned([*self._rows()], numbers=4)
            if any(None in one.costs.values() for one in self.predictions):
                yield f"  {_TOO_MUCH}"
        yield ""
        yield self._copies()
        yield from aligned([*self.commands.items()]) if self.commands else ()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the table of predictions, its head first."""
        yield _HEAD
        for prediction in self.predictions:
            chunks = "in one piece"
            if prediction.chunks is not None:
                chunks = " × ".join(f"{length:,}" for length in prediction.chunks)
            for read, cost in prediction.costs.items():
                yield (prediction.layout, chunks, read, *_cells(cost))


def _cells(cost: Cost | None) -> tuple[str, ...]:
    if cost is None:
        return ("?",) * 4
    return (
        f"{cost.rounds}",
        f"{cost.requests:,}",
        f"{cost.nbytes / 1e6:.2f}",
        f"{cost.seconds:.2f}",
    )


_ORDER = ("error", "warning", "note")


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
    with closing(
        Subject.open(target, storage_options, consolidated=None, replace=replace, allow=allow)
    ) as subject:
        if subject.opened is None:
            assert subject.failure is not None
            raise subject.failure
        network = measure_network(subject.opened, subject.survey) if measure else Network()
        given = {"latency": latency, "bandwidth": bandwidth}
        subject.network = change(network, **{k: v for k, v in given.items() if v is not None})
        subject.variable = variable
        return _examine(subject, subject.opened)


def _examine(subject: Subject, opened: Opened) -> Report:
    """Do what `doctor` does, of an open dataset."""
    hierarchy, found = opened.hierarchy, subject.survey
    facts = subject.predicted if isinstance(subject.predicted, VariableStorage) else None
    # listing a tree takes long if it is not at hand
    most = Reads.LISTING if isinstance(opened.store, LocalStore) else Reads.METADATA
    seen = sorted(findings(subject, "doctor", most), key=lambda one: _ORDER.index(one.severity))
    cmip7 = tuple(findings(subject, "check", most)) if _is_cmip(hierarchy) else None
    predictions = () if facts is None else predict(opened, found, facts, subject.network)
    layouts = {one.layout: one.chunks for one in predictions[1:]}
    commands, remark = copies(subject, (*seen, *(cmip7 or ())), layouts)
    return Report(
        url=opened.store.url,
        format=hierarchy.generation,
        size=found.size,
        variables=len(found.facts) + len(found.others),
        network=subject.network,
        opening=subject.opening,
        findings=tuple(seen),
        variable="" if facts is None else facts.path,
        predictions=tuple(predictions),
        cmip7=cmip7,
        commands=commands,
        remark=remark,
    )


def _is_cmip(hierarchy: Hierarchy) -> bool:
    """Tell whether a dataset is a netCDF-4 file that says that it is of CMIP."""
    said = (text_in(hierarchy.root.attributes, name) for name in ("mip_era", "project_id"))
    return hierarchy.generation == "hdf5" and any((one or "").startswith("CMIP") for one in said)
