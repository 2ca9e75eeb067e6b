"""Make an aggregation of files: read what is needed of them, check it, and combine it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.checks import check_layouts, check_packing, promoted
from nczarr_xarray.aggregation.combine import Combiner
from nczarr_xarray.aggregation.grid import Arranger, check_places
from nczarr_xarray.aggregation.held_values import unrounded
from nczarr_xarray.aggregation.reading import Summaries, Wanted, read_files, read_variable
from nczarr_xarray.aggregation.summary import Layout, Summary, describe
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.cfa.table import column


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: dimensions, what of each file, whether there may be gaps."""

    asked: tuple[str, ...]
    wanted: Wanted
    gaps: bool


def combined(
    files: Sequence[str],
    addresses: Sequence[str],
    request: Request,
    progress: Progress,
    before: Aggregated | None,
    url: str,
    lacking: Lacking,
) -> Aggregated:
    """Read files and make one aggregation of them.

    Parameters
    ----------
    addresses
        How the master names the files.
    before
        The aggregation that they are added to, if so.
    url
        Of what is written.
    lacking
        Collects what a master cannot hold.

    Raises
    ------
    NCZarrError
        As `aggregate`.
    """
    progress.expect(len(files))
    summaries = Summaries()
    expected: Layout | None = None
    if before is not None:
        summaries.begin(before.hierarchy)
        expected = describe(url, before.hierarchy, request.wanted.names, ()).layout
        _check_kept(url, before, expected)
        texts = {path: expected.combined(path, own) for path, own in before.values.items()}
        before = replace(before, values=texts)
    read_files(files, request.wanted, progress.advance, summaries)
    files_read: Sequence[Summary] = summaries.files
    layouts = [*{id(file.layout): file.layout for file in files_read}.values()]
    own = files_read[0].layout.dimensions
    first = files[0] if before is None else url
    expected = promoted(files_read[0].layout if expected is None else expected, layouts)
    files_read, held = unrounded(files_read, {} if before is None else before.values, expected)
    if before is not None:
        before = replace(before, values=held)
    blocks = {} if before is None else before.before()
    there = {path: known for path, known in blocks.items() if path in expected.dimensions}
    new = frozenset(path for path in there if path not in own)
    checked = set()
    for file in files_read:
        if id(file.layout) not in checked:
            check_layouts(first, expected, file.target, file.layout, new)
            if before is not None and before.packing == "equal":
                check_packing(first, expected, file.target, file.layout)
            checked.add(id(file.layout))
    grid = Arranger(files_read, expected, request.asked, request.gaps, there, url).grid()
    check_places(grid, files_read, gaps=request.gaps, partly=before is not None)
    hierarchy = summaries.hierarchy
    assert hierarchy is not None
    return Combiner(
        lacking.bools(hierarchy, {form.path for form in expected.forms}),
        expected,
        files_read,
        column([*addresses]),
        grid,
        frozenset(summaries.differing),
        partial(read_variable, files[0], request.wanted),
        before,
        lacking,
    ).aggregated()


def _check_kept(url: str, before: Aggregated, layout: Layout) -> None:
    """Raise if an aggregation has variables that are not wanted of the files that are added."""
    lost = [v.path.strip("/") for v in before.variables() if layout.form(v.path) is None]
    if lost:
        raise ExportError(
            url,
            f"has {', '.join(lost)}, too, which would be lost: leave variables out, and the files "
            "are added with all that it has",
        )
