"""``aggregate``: from files to a master that says which of them has what."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from nczarr_fsspec.address_policy import AddressPolicy, Allow
from nczarr_fsspec.destination import OVERWRITE
from nczarr_fsspec.errors import ExportError, NCZarrError, NCZarrWarning, URLError, caller_level
from nczarr_fsspec.places.address import is_absolute
from nczarr_fsspec.places.names import says_references
from nczarr_fsspec.places.url import is_url
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.axes import Overlap
from nczarr_xarray.aggregation.icechunk import is_icechunk, write_icechunk
from nczarr_xarray.aggregation.joining import joined
from nczarr_xarray.aggregation.kerchunk import write_references
from nczarr_xarray.aggregation.masters import Replaced, content, read_aggregation, read_master
from nczarr_xarray.aggregation.refresh import refreshed, sources_of
from nczarr_xarray.aggregation.report import Report
from nczarr_xarray.aggregation.request import Dim, Gaps, Missing, Request, Types
from nczarr_xarray.aggregation.sources import found_in
from nczarr_xarray.export.cfa.existing_master import ExistingMaster
from nczarr_xarray.export.cfa.master import MasterPlace, address_of, dialect_called, escaped
from nczarr_xarray.export.cfa.task import CfaTask, Draft, swap
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.options import MASTER_FORMATS, FileKind, check_classic
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.formats.cf import packing_of
from nczarr_xarray.formats.cfa.dialect import NEWEST, WritableDialect
from nczarr_xarray.formats.registry import OpenOptions

if TYPE_CHECKING:
    from fsspec.callbacks import Callback
    from icechunk import IcechunkStore


def aggregate(
    targets: Iterable[str | os.PathLike[str]] | str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
    dim: Dim = None,
    append: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    cfa_version: str | None = None,
    *,
    format: Literal["CFA3", "CFA4"] | None = None,  # noqa: A002 - as `to_cfa` calls it
    variables: Sequence[str] | None = None,
    gaps: Gaps = "allow",
    overlap: Overlap = "error",
    tolerance: float | None = None,
    missing: Missing = "error",
    types: Types = "error",
    rename: Mapping[str, str] | None = None,
    skip_unreadable: bool = False,
    refresh: bool = False,
    overwrite: bool = False,
    relative: bool | None = None,
    output_options: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    dry_run: bool = False,
) -> Report | None:
    r"""Write an aggregation of files: a master with their coordinates and the places of their data.

    Only metadata and coordinates of the files are read. Their order follows from the
    coordinates of the dimensions along which they differ.

    Parameters
    ----------
    targets
        Paths or URLs of datasets of any format, or a single one; folders, patterns and lists: see
        `nczarr_xarray.aggregation.sources.datasets_of`. With `refresh`, None for those that the
        aggregation has, and what is new in the folders, patterns and lists that it was made of.
    output
        Path or URL of the master. ``.nczarr``, ``.zarr`` or a fragment ``#mode=nczarr`` makes it
        a tree. ``.json``, ``.parq`` and ``.parquet`` are kerchunk references instead: for
        these, all files must have equal codecs, and for Parquet one regular chunk grid. Any other
        name is a netCDF file.
    dim
        The dimension, or several, along which the files follow each other; by default those
        whose coordinates differ. Needed where there is no coordinate: then the files follow each
        other as they are given. It may be in no file: then each file becomes one step of it.

        A mapping says where files are along dimensions of which they have no coordinate, besides
        those of which they have one. It has for each dimension

        - a pattern, as of `re`, whose last match in the path or URL of a file, or the first group
          of this, is its coordinate: ``{"member": r"_(r\d+i1p1f1)_"}``. A group of ``\d`` only,
          as in ``r"r(\d+)i1"``, is a number;
        - such a pattern with parts of a date (``%Y %m %d %j %H %M %S``):
          ``{"time": r"tas_%Y%m%d"}``;
        - an attribute of the dataset: ``{"model": "@source_id"}``, or what of it a pattern
          matches: ``{"time": "@started:%Y-%m-%dT%H"}``.
    append
        Add the files to the aggregation at `output`, whose present files are not read. Those
        of the files that it names already are left out; without others, nothing is written.
    storage_options
        Options of the filesystem of the files (fsspec).
    progress
        Show a progress bar.
    callback
        A callback of fsspec that gets the progress (`fsspec.callbacks`).
    cfa_version
        ``"1.13"`` (default): the aggregation variables of CF-1.13. ``"0.6.2"``: CFA-0.6.2.
        ``"0.4"``: CFA-0.4. With `append`, what is there stays.
    format
        ``"CFA4"`` (default): netCDF-4. ``"CFA3"``: classic netCDF, as CFA-0.4 only.
    variables
        Names of the variables that are wanted, or a single one; their coordinates come with them.
        With `append` they are those that are there, and need not be named.
    gaps
        ``"raise"``: refuse steps from one file to the next that are longer than usual, and parts
        without a file. ``"allow"`` (default): take them, and warn of parts without a file.
    overlap
        What counts where files have the same coordinates: ``"error"`` (default): nothing;
        ``"first"``, ``"last"``: the file that begins first, or last; of files that have all
        coordinates in common the one that is named first, or last. Of the versions of the
        convention, only ``"0.4"`` can say that a part of a file counts.
    tolerance
        By how much coordinates may differ that are to be the same, in their units. Those of the
        first file count.
    missing
        ``"fill"``: a file may lack variables that others have; there they are missing data.
        Files of the same coordinates may have different variables, and a file may lack the
        dimension along which others follow each other.
    types
        ``"promote"``: types of data may differ; they become one that holds all, as numpy has it.
    rename
        How variables and dimensions are to be called, by their names in files, in any group:
        ``{"lat": "latitude"}``. Files that have none of these names are taken as they are.
    skip_unreadable
        Leave out files that are no datasets, with a warning that names each.
    refresh
        Write the aggregation at `output` anew, as it would be made of the files now, but read only
        those that are new or have changed: the others are of the size, and have the tag or time,
        that it notes of each. Other options have to be as they were. All files are read if only
        their order says where they belong, or if a part of one counts.
    overwrite
        Replace what is at `output`; not with `append` or `refresh`.
    relative
        Whether the master states addresses of files below its folder relative to itself, so that
        all can be moved together. By default it does, but not in CFA-0.4: S3netCDF4 looks for
        relative ones in the working directory. What is appended is addressed as what is there.
    output_options
        Options of the filesystem of `output`; by default `storage_options` if it is a URL.
    dry_run
        Write nothing, and return what of the files agrees and what not. Files that do not fit are
        no error then.

    Returns
    -------
    Report
        With `dry_run`; else None.

    Raises
    ------
    ExportError
        If the files do not fit together: the error names the files and the difference
        (variables, types, units, calendars, dimensions, coordinates, overlaps).
    DatasetExistsError
        If something is at `output` that must not be replaced.
    NCZarrError
        If a file cannot be read, or the master cannot be written; the old one stays.

    Warns
    -----
    NCZarrWarning
        If a part of the grid has no file; or if a master that is not local names local files,
        which its readers have to allow.
    LossWarning
        If a master cannot hold an attribute as it is: JSON that netCDF lacks, a ``_FillValue`` that
        no element can have.
    """
    request = Request.of(locals())
    check_callback(callback)
    if append + refresh + overwrite > 1:
        reason = "replaces the master, append adds to it, refresh reads what changed: give one"
        raise URLError("overwrite", reason)
    named = [] if refresh and targets is None else found_in(targets or (), storage_options)
    files = [file for _, found in named for file in found]
    sources = [source for source, found in named if found != [source]]
    refs = says_references(os.fsdecode(output))
    advice = OVERWRITE if refs else f"{OVERWRITE}, append=True adds to it"
    if output_options is None and is_url(os.fsdecode(output)):
        output_options = storage_options
    place, kind = _place(output, output_options, format, advice)
    _check_files(files, place)
    if refs and (append or refresh):
        reason = "is to be references, which are made anew: leave out append and refresh"
        raise ExportError(place.url, reason)
    _check_version(place, refs, cfa_version, format)
    check_classic(place.url, format, cfa_version if append else cfa_version or NEWEST)

    lacking, report = Lacking(netcdf4=True), Report(len(files)) if dry_run else None

    def read(
        files: Sequence[str],
        addresses: Sequence[str],
        before: Aggregated | None = None,
        old: Aggregated | None = None,
    ) -> Aggregated:
        wanted = request.wanted(Replaced(place).refuse_below, before or old)
        with Progress("aggregate", shown=bool(progress), unit=" files", callback=callback) as shown:
            return joined(
                files, addresses, request, wanted, shown, before, place.url, lacking, report
            )

    def draft() -> Draft:
        dialect = dialect_called(cfa_version or NEWEST, place.url)
        addresses = [address_of(place, file, dialect, relative=relative) for file in files]
        made = content(read(files, addresses), dialect, place, sources)
        return Draft(kind, lambda: made)

    def draft_of_more() -> Draft:
        before, existing, version = _before(place, cfa_version, format)
        dialect, there = dialect_called(version, place.url), before.addresses()
        alike = _are_relative(there, place) if relative is None else relative
        left: Aggregated | None = before
        if refresh:
            targets, left = refreshed(files, before, place.policy, storage_options)
        else:
            targets = [
                f for f in files if address_of(place, f, dialect, relative=alike) not in there
            ]
        if not targets and left is before:
            raise _NothingNewError
        addresses = [address_of(place, file, dialect, relative=alike) for file in targets]
        made = left if left and not targets else read(targets, addresses, left, before)
        kept = () if refresh and files else sources_of(before.tables.values())
        found = content(made, dialect, place, [*dict.fromkeys([*kept, *sources])])
        return Draft(existing.kind, lambda: found, version=existing.version)

    planned = draft_of_more if append or refresh else draft
    with suppress(_NothingNewError):
        if report is not None:
            try:
                read(files, files) if refs else planned()
            except NCZarrError as error:
                report.refuse(error.object, error)
        elif refs:
            write_references(
                lambda: read(files, files),
                place,
                str,
                lambda _: storage_options,
                replaces=overwrite,
            )
        elif (append or refresh) and place.swaps:
            swap(place, planned)
            lacking.tell(place.url)
        else:
            _write(place, planned, replaces=append or refresh or overwrite)
            lacking.tell(place.url)
    return report


class _NothingNewError(Exception):
    """All files are in the aggregation already."""


def convert_references(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str] | IcechunkStore,
    storage_options: Mapping[str, Any] | None = None,
    cfa_version: str | None = None,
    *,
    format: Literal["CFA3", "CFA4"] | None = None,  # noqa: A002 - as `to_cfa` calls it
    overwrite: bool = False,
    relative: bool | None = None,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
    output_options: Mapping[str, Any] | None = None,
) -> None:
    """Write an aggregation in another version of the convention, or as references.

    The files are opened only if references are read or written, to find their chunks, and if a
    packed variable changes between CFA-0.4 and other versions, to find out how they are packed.

    Parameters
    ----------
    source
        Path or URL of a master, or of kerchunk references whose arrays are variables of files.
    storage_options
        Options of the filesystem of `source` (fsspec).
    output, cfa_version, format, overwrite, relative, output_options
        As of `aggregate`. An `output` that is the store of a session of Icechunk must have no data,
        and gets virtual references, which the caller commits; the others have no meaning then.
    replace, allow
        As of `xarray.open_dataset` with ``engine="nczarr"``.

    Raises
    ------
    ExportError
        If `source` is no aggregation of files, or has something that `output` cannot express. If
        an array of references is not made of whole variables, the error names a reference.
    DatasetExistsError
        If something is at `output` that must not be replaced.
    NCZarrError
        If something cannot be read or written.
    """
    options = OpenOptions(storage_options=storage_options, replace=replace, allow=allow)
    policy = options.policy(source)

    def read(place: MasterPlace | None, dialect: WritableDialect | None) -> Aggregated:
        replaced = None if place is None else Replaced(place)
        return read_master(os.fsdecode(source), options, policy, replaced, dialect)

    if is_icechunk(output):
        write_icechunk(read(None, None), output, policy.resolve, policy.options)
        return
    if output_options is None and is_url(os.fsdecode(output)):
        output_options = storage_options
    write_again(
        read,
        policy,
        output,
        cfa_version,
        format=format,
        overwrite=overwrite,
        relative=relative,
        output_options=output_options,
    )


def write_again(
    read: Callable[[MasterPlace, WritableDialect | None], Aggregated],
    policy: AddressPolicy,
    output: str | os.PathLike[str],
    cfa_version: str | None = None,
    *,
    format: Literal["CFA3", "CFA4"] | None = None,  # noqa: A002 - as `to_cfa` calls it
    overwrite: bool = False,
    relative: bool | None = None,
    output_options: Mapping[str, Any] | None = None,
) -> None:
    """Write an aggregation that there is already.

    Parameters
    ----------
    read
        Reads it, to be written in a dialect, or as references (None).
    policy
        What its addresses mean.
    output, cfa_version, format, overwrite, relative, output_options
        As of `aggregate`.

    Raises
    ------
    NCZarrError
        As `convert_references`.
    """
    place, kind = _place(output, output_options, format)
    refs = says_references(os.fsdecode(output))
    _check_version(place, refs, cfa_version, format)
    check_classic(place.url, format, cfa_version or NEWEST)
    if refs:
        write_references(
            lambda: read(place, None), place, policy.resolve, policy.options, replaces=overwrite
        )
        return
    dialect = dialect_called(cfa_version or NEWEST, place.url)

    def renamed(address: str) -> str:
        where = policy.resolve(address) if address else address
        if where:
            Replaced(place).refuse([where])
        return where and address_of(place, where, dialect, relative=relative)

    def draft() -> Draft:
        found = read(place, dialect).readdressed(renamed)
        made = content(found, dialect, place)
        return Draft(kind, lambda: made)

    _write(place, draft, replaces=overwrite)


def _check_version(place: MasterPlace, refs: bool, version: str | None, kind: str | None) -> None:
    """Raise `ExportError` if references are to be of a version of CFA."""
    if refs and (version or kind):
        reason = "is to be references, which have no version of CFA: leave out cfa_version, format"
        raise ExportError(place.url, reason)


def _write(place: MasterPlace, draft: Callable[[], Draft], *, replaces: bool) -> None:
    """Write a master in one step; parameters and errors as of `CfaTask.plan`."""
    task = CfaTask.plan(place, draft, replaces=replaces)
    with Progress("aggregate", shown=False) as progress:
        task.run(progress)


def _check_files(files: Sequence[str], place: MasterPlace) -> None:
    """Raise if the master is among its files; warn of files that its readers will not open."""
    Replaced(place).refuse(files)
    here = next((file for file in files if not is_url(file)), None)
    if here is not None and is_url(place.folder):
        warnings.warn(
            f"{place.url} is to name {here}, a local file: what is opened from afar may name local "
            "files only if its reader says allow=[folder]",
            NCZarrWarning,
            stacklevel=caller_level(),
        )


def _place(
    output: str | os.PathLike[str],
    output_options: Mapping[str, Any] | None,
    format: str | None,  # noqa: A002 - as `to_cfa` calls it
    advice: str = OVERWRITE,
) -> tuple[MasterPlace, FileKind]:
    """Find out where to write, and what if it is a file."""
    place = MasterPlace.find(output, output_options, advice)
    if format not in MASTER_FORMATS:
        raise ExportError(place.url, f"format is {format!r}; it is 'CFA3' or 'CFA4'")
    return place, MASTER_FORMATS[format]


def _before(
    place: MasterPlace,
    version: str | None,
    format: str | None,  # noqa: A002 - as `to_cfa` calls it
) -> tuple[Aggregated, ExistingMaster, str]:
    """Return the aggregation that files are added to, its master, and its version, which stays."""
    existing = ExistingMaster.open(place)
    with existing.opened as opened:
        kept = existing.kept_version(version, format)
        before = read_aggregation(place.url, opened)
    assert kept is not None  # or there were no aggregation variable
    for variable in before.variables():
        if before.packing == "after" and variable.path in before.tables and packing_of(variable):
            raise ExportError(
                place.url,
                f"packs the values of {variable.path} itself; files cannot be added to that",
            )
    return before, existing, kept


def _are_relative(addresses: set[str], place: MasterPlace) -> bool | None:
    """Tell whether an aggregation has relative addresses; None if it could not have any."""
    if not all(map(is_absolute, addresses)):
        return True
    folder = place.folder
    begins = (folder, f"file://{escaped(folder)}")
    return False if any(one.startswith(begins) for one in addresses) else None
