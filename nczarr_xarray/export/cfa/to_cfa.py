"""``to_cfa``, and copies to aggregations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from nczarr_fsspec.errors import ExportError, LossWarning, NCZarrError, caller_level
from nczarr_fsspec.places.names import says_references
from nczarr_xarray.backend.compat import dataarray_to_dataset
from nczarr_xarray.backend.data_store import open_group
from nczarr_xarray.export.cfa.content import Content
from nczarr_xarray.export.cfa.existing_master import removable_keys
from nczarr_xarray.export.cfa.fragment_writer import flow_of, table_of
from nczarr_xarray.export.cfa.master import MasterPlace, aggregation, conventions, dialect_called
from nczarr_xarray.export.cfa.parts import Divider
from nczarr_xarray.export.cfa.task import CfaTask, Draft
from nczarr_xarray.export.cfa.update import plan_update
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.form.encode import Options, without_extension_types
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.form.storage import netcdf_text
from nczarr_xarray.export.options import (
    CfaOptions,
    FragmentFormat,
    Mode,
    RegionLike,
    SubarrayShape,
    largest_fragment,
)
from nczarr_xarray.export.parallel import distributed_client, refuse_other_chunks
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.formats.cfa.dialect import NEWEST, OLDEST
from nczarr_xarray.model import Group

if TYPE_CHECKING:
    from fsspec.callbacks import Callback


def to_cfa(
    obj: xr.Dataset | xr.DataArray | xr.DataTree,
    target: Any,
    format: Literal["CFA3", "CFA4"] | None = None,  # noqa: A002 - as `to_netcdf` calls it
    cfa_version: Literal["0.4", "0.6.2", "1.13"] | None = None,
    max_object_size: int | str | None = None,
    subarray_shape: SubarrayShape | None = None,
    fragment_format: FragmentFormat | None = None,
    mode: Mode | None = None,
    append_dim: Hashable | None = None,
    region: RegionLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    *,
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | None = None,
    relative: bool | None = None,
    create: bool = False,
    callback: Callback | None = None,
) -> None:
    """Write a dataset or an array as an aggregation: a master, and fragments beside it.

    Data variables that are larger than `max_object_size` are divided into fragments, each a
    dataset of its own; the master holds everything else. Fragments are written first, the master
    last: readers see the old aggregation, the new one or none.

    Parameters
    ----------
    obj
        A DataArray is written as xarray's `to_netcdf` writes it.
    target
        A path or URL of the master, ``data.nca``. Fragments are put beside it, into a folder
        ``data``. ``.nczarr``, ``.zarr`` or a fragment ``#mode=nczarr`` makes the master a tree.
    format
        ``"CFA4"`` (default): netCDF-4. ``"CFA3"``: classic netCDF, as CFA-0.4 only.
    cfa_version
        ``"0.4"`` (default): CFA-0.4 as S3netCDF4 and cf-python 3.13 read it. ``"0.6.2"``:
        CFA-0.6.2. ``"1.13"``: the aggregation variables of CF-1.13.
    max_object_size
        Bytes of the largest fragment before compression, or text such as ``"50MB"``, which is
        the default unless S3netCDF4's configuration has another.
    subarray_shape
        Lengths of fragments, in place of `max_object_size`: a mapping by dimension, for variables
        that have one of these; or a tuple, for variables of as many dimensions.
    fragment_format
        ``"netCDF4"``, ``"netCDF3"`` or ``"NCZarr"``; by default what the master is.
    mode
        ``"w-"`` (default): there must be nothing. ``"w"``: replace an aggregation; its fragments
        are removed afterwards. ``"a"`` and ``"r+"`` go with `append_dim` and `region`.
    append_dim
        Append along this dimension: new fragments, and a new master.
    region
        The part that `obj` replaces: slices by dimension, ``"auto"`` to find it by the labels
        of one dimension or of all. Fragments of which it has a part are read and written anew.
    storage_options
        Options of the target's filesystem (fsspec).
    progress
        Show a progress bar.
    callback
        A callback of fsspec that gets the progress (`fsspec.callbacks`).
    encoding
        By variable, with the names of netCDF4 or of Zarr.
    unlimited_dims
        Names of unlimited dimensions of the master.
    relative
        Whether the master states addresses relative to itself, so that both can be moved
        together. By default it does, except in CFA-0.4, whose readers need absolute ones.
    create
        With `append_dim`: write a new aggregation where there is none. What `encoding` and
        `unlimited_dims` say is for that.

    Raises
    ------
    ExportError
        If something cannot be stored; it lists everything that was found.
    DatasetExistsError
        If something is there that must not be replaced.
    DatasetNotFoundError
        If there is nothing to append to or to update.
    ConflictError
        If another writer is at work.
    StoreError
        If the store fails; the old aggregation can still be read.
    """
    check_callback(callback)
    advice = "mode='w' replaces it, append_dim adds to it"
    place = MasterPlace.find(target, storage_options, advice)
    dataset = without_extension_types(place.url, _dataset(obj, place.url))
    refuse_other_chunks(place.url, dataset)
    if create and append_dim not in dataset.dims:
        reason = f"create=True goes with append_dim, a dimension of the dataset, not {append_dim!r}"
        raise ExportError(place.url, reason)
    more_along = append_dim
    if create and place.exists():
        encoding = unlimited_dims = None
    elif create:
        append_dim, mode = None, None if mode == "a" else mode
    request = CfaOptions(
        format=format,
        version=cfa_version,
        most=largest_fragment(max_object_size, storage_options),
        subarray_shape=subarray_shape,
        fragment_format=fragment_format,
        mode=mode or None,
        append_dim=append_dim,
        region=region,
        encoding=encoding,
        unlimited_dims=unlimited_dims,
        relative=relative,
        more_along=more_along,
    )
    request.check(place.url)
    changes = append_dim is not None or region is not None
    if not (changes or place.is_tree) and says_references(place.name):
        reason = "is the name of references; a master is called *.nca, and aggregate() writes them"
        raise ExportError(place.url, reason)
    plan = plan_update if changes else plan_new
    task = plan(place, dataset, request)
    with Progress("export", shown=bool(progress), callback=callback) as shown:
        task.run(shown)


def _dataset(obj: Any, url: str) -> xr.Dataset:
    if isinstance(obj, xr.DataArray):
        return dataarray_to_dataset(obj)
    if isinstance(obj, xr.DataTree):
        raise ExportError(
            url,
            "groups are not written as aggregations: write each group as one of its own "
            "(tree[path].to_dataset().nczarr.to_cfa(...))",
        )
    if not isinstance(obj, xr.Dataset):
        raise TypeError(f"{type(obj).__name__} is no Dataset or DataArray")
    return obj


def plan_new(
    place: MasterPlace,
    dataset: xr.Dataset,
    request: CfaOptions,
    before: Callable[[], None] | None = None,
) -> CfaTask:
    """Plan the writing of a new aggregation, in the place of what is there.

    Parameters
    ----------
    before
        As of `CfaTask`.

    Raises
    ------
    NCZarrError
        If something cannot be written, or must not be replaced.
    """
    dialect = dialect_called(request.version or OLDEST, place.url)
    kind = request.master_kind
    if kind == "netCDF3" and place.is_tree:
        raise ExportError(
            place.url, "is named like a tree, and a CFA3 master is one file: name it .nca"
        )
    fragments = request.fragment_format or kind
    classic = "netCDF3" in (kind, fragments)
    divider = Divider(
        classic=classic,
        are_files=(not place.is_tree, fragments != "NCZarr"),
        most=request.most,
        shape=request.subarray_shape,
    )
    asked = Options(
        request.encoding or {}, request.unlimited_dims, request.encoded, request.more_along
    )
    parts = divider.parts(place.url, dataset, asked)
    replaces = request.mode == "w"

    def draft() -> Draft:
        members = parts.members()
        old = removable_keys(place) if replaces else []
        names = place.names(fragments, replaces=bool(old))
        flows = [flow_of(place, one, names, parts, members, dialect) for one in parts.divided]
        tables = []
        for flow in flows:
            own = table_of(place, flow, dialect, relative=request.relative)
            tables.append(aggregation(flow.divided.item.variable, own, dialect))
        attributes = conventions(parts.attributes, dialect) if flows else parts.attributes
        everything = [*members, *(member for one in tables for member in one)]
        master = Content(attributes, everything, parts.dimensions)
        return Draft(kind, master, flows, old)

    return CfaTask.plan(place, draft, replaces=replaces, before=before)


# -- copies ----------------------------------------------------------------------------------------


#: Options of xarray to decode nothing.
AS_STORED: Mapping[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"),
    False,
)


def copy(request: CopyRequest) -> None:
    """Copy to an aggregation; groups are left out, with a warning."""
    with request.open() as source, request.cluster():
        root, *groups = source.hierarchy.root.walk()
        if groups:
            names = [group.path for group in groups]
            reason = f"an aggregation has no groups: {', '.join(names)} are left out"
            warning = LossWarning(f"{request.target}: {reason}", names)
            warnings.warn(warning, stacklevel=caller_level())
        lacking = Lacking(netcdf4=True)
        lacking.note_hidden(source.hierarchy)
        lacking.note_unused_enums(source.hierarchy)
        used = {dim for variable in root.variables.values() for dim in variable.dimensions}
        for dim in root.dimensions.values():
            if dim not in used:
                lacking.note("dimensions that no variable uses are left out", dim.path)
        held = {name: lacking.variable(variable) for name, variable in root.variables.items()}
        root = replace(root, variables=held)
        lacking.tell(request.target)
        try:
            opened = open_group(source, root, **AS_STORED)
        except NCZarrError:
            raise
        except ValueError as error:  # a dimension and a scalar of one name, for example
            reason = f"cannot become an aggregation, because xarray refuses it: {error}"
            raise ExportError(request.source, reason) from error
        dataset = _with_texts(_undecoded(opened), root)
        if distributed_client() is not None:
            dataset = _by_chunks(dataset)
        place = MasterPlace.find(request.target, request.target_options)
        asked = CfaOptions(
            largest_fragment(request.options.max_object_size, request.target_options),
            version=request.options.cfa_version or NEWEST,
            mode=request.mode,
            encoded=True,
        )
        task = plan_new(place, dataset, asked, before=source.refuse_changed)
        with request.progress() as progress:
            task.run(progress)


def _undecoded(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset that was opened `AS_STORED` with what decoding removed."""
    dataset = dataset.copy()
    for name, variable in dataset.variables.items():
        encoding = variable.encoding
        if variable.dtype.kind == "b":  # xarray decodes these whatever its options are
            stored = variable.astype("i1")
            stored.attrs["dtype"] = "bool"
            stored.encoding = encoding
            dataset[name] = stored
        elif getattr(encoding.get("dtype"), "byteorder", "=") == ">":
            encoding["endian"] = "big"
    return dataset


def _with_texts(dataset: xr.Dataset, stored: Group) -> xr.Dataset:
    """Return a dataset with texts of pure Zarr, which are stored as bytes, as texts."""
    names = [
        name
        for name in dataset.variables
        if (variable := stored.variables[str(name)]).dtype.kind == "S"
        and netcdf_text(variable).nc_type == "string"
    ]
    for name in names:
        dataset[name].attrs.setdefault("_Encoding", "utf-8")
    texts = xr.decode_cf(dataset[names], **{**AS_STORED, "concat_characters": True})
    return dataset.assign({name: texts[name] for name in names})


def _by_chunks(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset with arrays of dask, whose blocks the workers of a cluster read."""
    chunked = {}
    for name, variable in dataset.variables.items():
        preferred = variable.encoding.get("preferred_chunks") or {}
        if variable.ndim:  # by blocks, where several chunks are read together
            chunked[name] = variable.chunk(
                {d: preferred.get(d, n) for d, n in variable.sizes.items()}
            )
    return dataset.assign({name: chunked[name] for name in dataset.data_vars if name in chunked})
