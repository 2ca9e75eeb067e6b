"""``open_many``: many files as one dataset, by an aggregation that is in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nczarr_fsspec.address_policy import AddressPolicy, Allow
from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.stores.mapping import MappingStore, MappingWriter
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.api import write_again
from nczarr_xarray.aggregation.axes import Overlap
from nczarr_xarray.aggregation.icechunk import is_icechunk, write_icechunk
from nczarr_xarray.aggregation.joining import joined
from nczarr_xarray.aggregation.masters import unmarked
from nczarr_xarray.aggregation.request import Dim, Gaps, Missing, Request, Types
from nczarr_xarray.aggregation.sources import Source, datasets_of
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.fragment_datasets import Opening
from nczarr_xarray.dataset.fragments import AggregationReaders
from nczarr_xarray.dataset.open import open_keys, open_with
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk, whole, write_tree
from nczarr_xarray.export.cfa.master import unpacked, without_enum
from nczarr_xarray.export.cfa.parts import PROFILE
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.cf import Scoped, packing_of
from nczarr_xarray.formats.cfa.dialect import array_of
from nczarr_xarray.model import Variable

if TYPE_CHECKING:
    import xarray as xr
    from icechunk import IcechunkStore

#: How messages name the aggregation.
_SHOWN = "aggregation in memory"


def open_many(
    sources: Iterable[Source] | Source,
    *,
    dim: Dim = None,
    storage_options: Mapping[str, Any] | None = None,
    variables: Sequence[str] | None = None,
    gaps: Gaps = "allow",
    overlap: Overlap = "error",
    tolerance: float | None = None,
    missing: Missing = "error",
    types: Types = "error",
    rename: Mapping[str, str] | None = None,
    skip_unreadable: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> xr.Dataset:
    """Open many files as one dataset, without a master on disk.

    Only metadata and coordinates of the files are read, many files at a time. Their order follows
    from their coordinates. ``open_many(...).nczarr.save(master)`` writes what was opened.

    Parameters
    ----------
    sources
        See `nczarr_xarray.aggregation.sources.datasets_of`.
    dim, storage_options, variables, gaps, overlap, tolerance, missing, types, rename
        As of `nczarr_xarray.aggregate`.
    skip_unreadable, progress
        As of `nczarr_xarray.aggregate`.
    **options
        Further arguments of `xarray.open_dataset`: ``chunks``, ``group``, those that say how values
        are decoded.

    Returns
    -------
    xarray.Dataset
        Lazy, picklable, as ``xr.open_dataset(master, engine="nczarr")`` returns it; a single
        source is opened as it is.

    Raises
    ------
    ExportError
        If the files do not fit together: the error names the files and the difference.
    NCZarrError
        If a source cannot be listed, or a file cannot be read.
    """
    request = Request.of(locals())
    import xarray as xr

    files = datasets_of(sources, storage_options)
    if len(files) == 1 and dim is None and rename is None:
        options |= {"storage_options": storage_options}
        one = xr.open_dataset(files[0], engine="nczarr", **options)
        wanted_names = [variables] if isinstance(variables, str) else variables
        return one if wanted_names is None else one[[*wanted_names]]
    wanted, lacking = request.wanted(lambda *_: None), Lacking(netcdf4=True)
    with Progress("open_many", shown=bool(progress), unit=" files") as shown:
        found = joined(files, files, request, wanted, shown, None, _SHOWN, lacking)
    lacking.tell(_SHOWN)
    policy = AddressPolicy.of({}, allow=_allowed(files, storage_options))
    opened = in_memory(found, policy)
    dataset = xr.open_dataset(opened, engine="nczarr", **options)  # type: ignore[arg-type]
    dataset.nczarr.aggregation = found, policy
    return dataset


def save(
    dataset: xr.Dataset,
    output: str | os.PathLike[str] | IcechunkStore,
    *,
    overwrite: bool = False,
    relative: bool | None = None,
    cfa_version: str | None = None,
    output_options: Mapping[str, Any] | None = None,
) -> None:
    """Write the master of a dataset that `open_many` has returned, as it was opened.

    Or its references, if `output` is named so; or virtual references of Icechunk.

    Parameters
    ----------
    dataset
        What `open_many` has returned. What was computed from it is written by ``to_cfa``.
    output, overwrite, relative, cfa_version, output_options
        As of `nczarr_xarray.aggregate`. An `output` that is the store of a session of Icechunk
        must have no data; it is left to the caller to commit, and the others have no meaning.

    Raises
    ------
    ExportError
        If it is another dataset, or if the master cannot hold what it is to hold.
    """
    kept = dataset.nczarr.aggregation
    if kept is None:
        reason = "is no aggregation that open_many has opened: to_cfa, to_nczarr write any dataset"
        raise ExportError("dataset", reason)
    found, policy = kept
    if is_icechunk(output):
        write_icechunk(found, output, policy.resolve, policy.options)
        return
    write_again(
        lambda *_: found,
        policy,
        output,
        cfa_version,
        overwrite=overwrite,
        relative=relative,
        output_options=output_options,
    )


def in_memory(found: Aggregated, policy: AddressPolicy) -> Opened:
    """Return an aggregation as an open dataset.

    Parameters
    ----------
    policy
        What the addresses of its fragments mean, and which may be opened.
    """
    members = [_member(found, variable) for variable in found.variables()]
    root = found.hierarchy.root
    dimensions = [d for group in root.walk() for d in group.dimensions.values()]
    objects: dict[str, bytes] = {}
    content = Content(root.attributes, members, dimensions, found.group_attributes())
    write_tree(content, MappingWriter(objects), PROFILE)
    opened = open_keys(MappingStore(objects, _SHOWN))
    datasets = AggregationReaders(_has_no_data, open_with, policy, 0)
    for group in opened.hierarchy.root.walk():
        for variable in group.variables.values():
            table = found.tables.get(variable.path)
            if table is not None:
                scoped = Scoped(variable, group, opened.hierarchy.root)
                packing = packing_of(variable) if found.packing != "own" else None
                array = array_of(scoped, variable.dimensions, table, packing)
                variable.array = replace(array, opener=datasets)
    return opened


def _member(found: Aggregated, variable: Variable) -> Member:
    """Return a variable as the aggregation has it, with the values that are in memory."""
    variable = without_enum(unmarked(variable))
    values = found.values.get(variable.path)
    if values is not None:
        return in_one_chunk(variable, values)
    variable = variable if found.packing != "own" else unpacked(variable)
    array = whole(variable, variable.shape)
    return Member(replace(variable, dtype=array.dtype, array=array))


def _has_no_data(name: str) -> Opening:
    raise FormatError(_SHOWN, f"has no data of {name!r} itself")


def _allowed(files: Iterable[str], storage_options: Mapping[str, Any] | None) -> Allow:
    """Return what the addresses of files begin with, with the options for each."""
    if not storage_options:
        return True
    urls = (urlsplit(file) for file in files if names_url(file))
    here = {} if all(map(names_url, files)) else {"file": None}
    return {f"{url.scheme}://{url.netloc}": storage_options for url in urls} | here
