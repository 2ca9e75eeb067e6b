"""Read what is needed of files, and join those that fit together; say why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nczarr_fsspec.errors import DatasetNotFoundError, ExportError, NCZarrError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.checks import differences, packed_otherwise, promoted, unrounded
from nczarr_xarray.aggregation.combine import Combiner
from nczarr_xarray.aggregation.files import Wanted, read_variable
from nczarr_xarray.aggregation.grid import Arranger, check_places
from nczarr_xarray.aggregation.reading import Summaries, read_files
from nczarr_xarray.aggregation.report import Report
from nczarr_xarray.aggregation.request import Request
from nczarr_xarray.aggregation.summary import Layout, Summary, describe, matched
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.cfa.dialect import column
from nczarr_xarray.model import Variable

#: Differences of one file that are named.
_SHOWN = 5


def joined(
    files: Sequence[str],
    addresses: Sequence[str],
    request: Request,
    wanted: Wanted,
    progress: Progress,
    before: Aggregated | None,
    url: str,
    lacking: Lacking,
    report: Report | None = None,
) -> Aggregated:
    """Read files and make one aggregation of them.

    Parameters
    ----------
    addresses
        How the master names the files.
    wanted
        What `request` wants of each.
    before
        The aggregation that they are added to, if so.
    url
        Of what is written.
    lacking
        Collects what a master cannot hold.
    report
        Gets the reasons why files do not fit, which are left out then; None to raise the first.

    Raises
    ------
    NCZarrError
        As `aggregate`.
    """

    def refuse(target: str, error: NCZarrError) -> None:
        if report is None:
            raise error
        report.refuse(target, error)

    progress.expect(len(files))
    summaries = Summaries()
    expected: Layout | None = None
    if before is not None:
        summaries.begin(before.hierarchy)
        expected = describe(url, before.hierarchy, wanted.names, ()).layout
        _check_kept(url, before, expected)
        texts = {path: expected.combined(path, own) for path, own in before.values.items()}
        before = replace(before, values=texts)
    added = read_files(files, wanted, progress.advance, summaries, refuse)
    if not added:
        raise DatasetNotFoundError(files[0], "is no dataset, as are all other files")
    kept: Sequence[Summary] = summaries.files
    layouts = [*{id(file.layout): file.layout for file in kept}.values()]
    if request.tolerance is not None:
        kept = matched(kept, request.tolerance)
    if expected is None:
        expected = kept[0].layout.with_others(layouts) if wanted.fills else kept[0].layout
    promotes = request.types == "promote"
    expected = promoted(expected, layouts, promotes=promotes)
    kept, held = unrounded(kept, {} if before is None else before.values, expected)
    if before is not None:
        before = replace(before, values=held)
    blocks = {} if before is None else before.before()
    there = {path: known for path, known in blocks.items() if path in expected.dimensions}
    own = {path for layout in layouts for path in layout.dimensions}
    new = [path for path in there if path not in own]

    def first(path: str) -> str:
        return next((f.target for f in kept if f.layout.form(path) is not None), kept[0].target)

    def holder(path: str) -> str:
        return first(path) if before is None else url

    wrong: dict[int, str] = {}
    for layout in layouts:
        options = {"fills": wanted.fills, "promotes": promotes}
        reasons = [*differences(holder, expected, layout, new, **options)]
        if before is not None and before.packing == "equal":
            reasons += packed_otherwise(url, expected, layout)
        more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
        wrong[id(layout)] = "; ".join(reasons[:_SHOWN] + more)
    pairs = []
    for number, file in zip(added, kept, strict=True):
        if reason := wrong[id(file.layout)]:
            refuse(file.target, ExportError(file.target, reason))
        else:
            pairs.append((file, addresses[number]))
    hierarchy = summaries.whole() if wanted.fills else summaries.hierarchy
    assert hierarchy is not None
    hierarchy = lacking.bools(hierarchy, {form.path for form in expected.forms})

    def read_first(variable: Variable) -> np.ndarray:
        return read_variable(first(variable.path), wanted, variable)

    while pairs:
        files_left, asked = [file for file, _ in pairs], request.asked
        if report is not None and report.refused and len(pairs) == 1:
            own_layout = files_left[0].layout
            asked = tuple(path for path in own_layout.dimensions if own_layout.form(path))[:1]
        try:
            grid = Arranger(
                files_left,
                expected,
                asked,
                request.gaps == "allow",
                there,
                url,
                request.overlap,
                [f"/{label.name}" for label in wanted.labels],
            ).grid()
            check_places(grid, files_left, gaps=request.gaps == "allow", partly=before is not None)
            found = Combiner(
                hierarchy,
                expected,
                files_left,
                column([address for _, address in pairs]),
                grid,
                frozenset(summaries.differing),
                read_first,
                before,
                lacking,
                blocks,
            ).aggregated()
        except ExportError as error:
            left = [(file, address) for file, address in pairs if file.target != error.object]
            if report is None or report.is_full or not left or len(left) == len(pairs):
                raise
            refuse(error.object, error)
            pairs = left
        else:
            if report is not None:
                report.joined(files_left, expected, found)
            return found
    raise ExportError(url, "has no file that fits")


def _check_kept(url: str, before: Aggregated, layout: Layout) -> None:
    """Raise if an aggregation has variables that are not wanted of the files that are added."""
    lost = [v.path.strip("/") for v in before.variables() if layout.form(v.path) is None]
    if lost:
        raise ExportError(
            url,
            f"has {', '.join(lost)}, too, which would be lost: leave variables out, and the files "
            "are added with all that it has",
        )
