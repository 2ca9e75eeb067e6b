"""Checks across the files of a dataset: what has to agree, and whether they follow each other."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.aggregation.summary import describe
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.form import cmip7
from nczarr_xarray.formats.cf import text_in
from nczarr_xarray.model import Variable
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.compare.report import Difference
from nczarr_xarray.tools.compare.structure import Outline, differences

#: Attributes of which each file has its own.
_OWN = frozenset({"tracking_id", "creation_date", "history"})
#: The range of time at the end of a name of CMIP: ``_185001-201412``.
_RANGE = re.compile(r"(?P<dataset>.+)_\d{4,14}-\d{4,14}(-clim)?")
#: A step that is so many times a usual one is a gap; one of less than half of it an overlap.
_GAP = 1.5
_NOISE = 1e-6


class Span(NamedTuple):
    """What a file has of time.

    Attributes
    ----------
    file
        Its name.
    first, last
        Times.
    steps
        The shortest, a usual and the longest one; None if there is one time.
    bounds
        Where it begins and ends by the bounds of time; None without such.
    """

    file: str
    first: float
    last: float
    steps: tuple[float, float, float] | None
    bounds: tuple[float, float] | None


class Member(NamedTuple):
    """What is compared of a file.

    Attributes
    ----------
    file, dataset
        Its name, and that of its dataset.
    outline
        Its structure.
    coordinates
        Digests of the values of coordinates, apart from those along time.
    span
        None without times that rise.
    """

    file: str
    dataset: str
    outline: Outline
    coordinates: dict[str, bytes]
    span: Span | None


def member_of(file: str, opened: Opened, found: list[Finding]) -> Member | None:
    """Read what is compared of a file; None if it can be part of no dataset.

    Parameters
    ----------
    found
        Gets what is wrong with the file itself.
    """
    root = opened.hierarchy.root
    try:
        forms = describe(file, opened.hierarchy).layout.forms
    except NCZarrError as error:
        found.append(Finding("error", "unreadable", "/", error.reason))
        return None
    times = cmip7.times(root)
    variables = {v.path: v for v in root.all_variables()}
    wanted = [
        v
        for form in forms
        for v in (variables[form.path],)
        if form.path in times or (form.is_coordinate and not _along_time(v))
    ]
    values: dict[str, np.ndarray] = {}
    for variable, read in zip(wanted, opened.read_many([(v, None) for v in wanted]), strict=True):
        if isinstance(read, NCZarrError):
            found.append(Finding("error", "unreadable", variable.path, read.reason))
        else:
            values[variable.path] = np.asarray(read)
    time, bounds = (values.pop(path, None) for path in (*times, "", "")[:2])
    span = None if time is None else _span(file, time, bounds, found)
    name = os.path.splitext(os.path.basename(file))[0]
    match = _RANGE.fullmatch(name)
    dataset = match["dataset"] if match else text_in(root.attributes, "variable_id") or ""
    digests = {path: _digest(one) for path, one in values.items()}
    return Member(file, dataset, Outline.of(opened), digests, span)


def _along_time(variable: Variable) -> bool:
    return any(dimension.path == "/time" for dimension in variable.dimensions)


def _digest(values: np.ndarray) -> bytes:
    data = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
    return hashlib.sha256(data).digest()


def _span(
    file: str, time: np.ndarray, bounds: np.ndarray | None, found: list[Finding]
) -> Span | None:
    times = np.atleast_1d(time)
    if times.dtype.kind not in "iuf" or not times.size or not np.isfinite(times).all():
        found.append(Finding("error", "time-order", "/time", "has no times, or some are missing"))
        return None
    steps = np.diff(times.astype(np.float64))
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        text = f"does not rise: after {times[at]} comes {times[at + 1]}"
        found.append(Finding("error", "time-order", "/time", text))
        return None
    ends = None
    if bounds is not None and bounds.shape == (*time.shape, 2) and bounds.dtype.kind in "iuf":
        low, high = np.atleast_2d(bounds.astype(np.float64)).T
        outside = ~((low <= times) & (times <= high))
        if outside.any():
            at = int(np.argmax(outside))
            text = f"{times[at]} lies outside of its bounds, {low[at]} to {high[at]}"
            found.append(Finding("error", "time-bounds", "/time", text))
        apart = np.abs(high[:-1] - low[1:]) > _NOISE * np.maximum(steps, 1)
        if apart.any():
            at = int(np.argmax(apart))
            text = f"bounds end at {high[at]}, and the next begin at {low[at + 1]}"
            found.append(Finding("error", "time-bounds", "/time", text))
        ends = float(low[0]), float(high[-1])
    three = None
    if steps.size:
        three = float(steps.min()), float(np.median(steps)), float(steps.max())
    return Span(file, float(times[0]), float(times[-1]), three, ends)


@dataclass(slots=True)
class Dataset:
    """The files of one dataset; others are compared with the first.

    Parameters
    ----------
    first
        The first file.
    """

    first: Member
    _spans: list[Span] = field(default_factory=list)
    _is_whole: bool = True

    def add(self, member: Member) -> Iterator[Finding]:
        """Add a file, also the first; yield what of it is not as in the first."""
        first, units = self.first, False
        for one in differences(first.outline, member.outline):
            if not _is_own(one):
                units |= one.object in ("attribute /time:units", "attribute /time:calendar")
                yield self._unlike(one, _beside(member.file, first.file))
        for path, digest in member.coordinates.items():
            if first.coordinates.get(path, digest) != digest:
                text = f"has other values than in {_beside(member.file, first.file)}"
                yield Finding("error", "unlike-coordinate", path, text)
        self._is_whole &= member.span is not None and not units
        if member.span is not None and not units:
            self._spans.append(member.span)
        elif member.file != first.file and "variable /time" not in member.outline.facts:
            text = "has no time, and is of the same dataset as "
            text += _beside(member.file, first.file)
            yield Finding("error", "time-overlap", "/", text)

    def _unlike(self, one: Difference, first: str) -> Finding:
        kind, _, path = one.object.partition(" ")
        owner = path.partition(":")[0] if kind == "attribute" else path
        is_global = kind == "attribute" and f"variable {owner}" not in self.first.outline.facts
        if one.a is None:
            text = f"has the {one.object}, which is not in {first}"
        elif one.b is None:
            text = f"lacks the {one.object}, which is in {first}"
        else:
            text = f"is not as in {first} (left): {one}"
        return Finding("warning" if is_global else "error", f"unlike-{kind}", owner, text)

    def order(self) -> Iterator[tuple[str, Finding]]:
        """Yield how files do not follow each other in time, by their names."""
        spans = sorted(self._spans, key=lambda span: span.first)
        usual = [span.steps[1] for span in spans if span.steps is not None]
        usual = usual or [b.first - a.first for a, b in pairwise(spans)]
        step = median(usual) if usual else 0.0
        for span in spans:
            shortest, _, longest = span.steps or (step, step, step)
            if longest > _GAP * step or shortest < step / 2:
                code = "time-gap" if longest > _GAP * step else "time-overlap"
                text = f"has steps from {shortest:g} to {longest:g}, and usual ones are {step:g}"
                yield span.file, Finding("error", code, "/time", text)
        for one, other in pairwise(spans):
            for file, finding in _between(one, other, step):
                if self._is_whole or finding.code != "time-gap":  # or a file may be in between
                    yield file, finding


def _between(one: Span, other: Span, usual: float) -> Iterator[tuple[str, Finding]]:
    """Yield how a file does not follow another one."""
    step, apart = other.first - one.last, 0.0
    if one.bounds is not None and other.bounds is not None:
        apart = other.bounds[0] - one.bounds[1]
    noise = _NOISE * max(usual, 1)
    if step < usual / 2 or step <= 0 or apart < -noise:
        code, said = "time-overlap", "overlaps with"
    elif step > _GAP * usual or apart > noise:
        code, said = "time-gap", "does not follow"
    else:
        return
    near = _beside(other.file, one.file)
    text = f"{said} {near}: that ends at {one.last}, and this begins at {other.first}"
    if apart:
        text += f", {apart:g} apart by their bounds"
    yield other.file, Finding("error", code, "/time", text)


def _beside(file: str, other: str) -> str:
    """Return how a finding about a file names another one: by its path if it lies elsewhere."""
    here, name = os.path.split(other)
    return name if here == os.path.dirname(file) else other


def _is_own(one: Difference) -> bool:
    """Tell whether files of a dataset may differ so."""
    kind, _, path = one.object.partition(" ")
    if kind == "attribute":
        return path.rpartition(":")[2] in _OWN
    return one.property == "shape" or (one.object, one.property) == ("dimension /time", "length")
