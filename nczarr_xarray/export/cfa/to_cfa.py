"""``to_cfa``, and copies to aggregations."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from nczarr_fsspec.errors import DatasetExistsError, ExportError, NCZarrError
from nczarr_fsspec.places.names import says_references
from nczarr_xarray.backend.data_store import open_group
from nczarr_xarray.export.cfa.content import Content, Member
from nczarr_xarray.export.cfa.existing_master import ExistingMaster, keys_in, removable_keys
from nczarr_xarray.export.cfa.fragment_writer import flow_of
from nczarr_xarray.export.cfa.master import MasterPlace, conventions, dialect_called, whole_master
from nczarr_xarray.export.cfa.parts import Divider
from nczarr_xarray.export.cfa.task import CfaTask, Draft
from nczarr_xarray.export.cfa.update import plan_update
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.dataset import Exportable, asked_groups
from nczarr_xarray.export.form.encode import Options, without_extension_types
from nczarr_xarray.export.form.lacking import Lacking, rebuilt
from nczarr_xarray.export.form.storage import netcdf_text
from nczarr_xarray.export.options import (
    CfaOptions,
    FileKind,
    FragmentFormat,
    Labels,
    Mode,
    RegionLike,
    SubarrayShape,
    largest_fragment,
)
from nczarr_xarray.export.parallel import distributed_client, refuse_other_chunks
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.export.write_task import need_dask
from nczarr_xarray.formats.cfa.dialect import NEWEST, OLDEST
from nczarr_xarray.model import Fragments, Group, Variable, is_below

if TYPE_CHECKING:
    from fsspec.callbacks import Callback


def to_cfa(
    obj: Exportable,
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
    group: str | None = None,
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | Mapping[str, Iterable[Hashable]] | None = None,
    compute: bool = True,
    subarray_path: str | os.PathLike[str] | None = None,
    relative: bool | None = None,
    create: bool = False,
    labels: Labels = "any",
    callback: Callback | None = None,
) -> Any:
    """Write a dataset, an array or a tree as an aggregation: a master, and fragments beside it.

    Data variables that are larger than `max_object_size` are divided into fragments, each a
    dataset of its own; the master holds everything else. Fragments are written first, the master
    last: readers see the old aggregation, the new one or none. Fragments of nothing but missing
    data are written once for each shape.

    Parameters
    ----------
    obj
        A DataArray is written as xarray's `to_netcdf` writes it, a DataTree with all its groups.
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
        ``"w-"`` (default): there must be nothing. ``"w"``: replace an aggregation, or with `group`
        that group; its fragments are removed afterwards. ``"a"`` and ``"r+"`` go with `append_dim`
        and `region`.
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
    group
        Path of the group to write, or to change; what else is there stays.
    encoding
        By variable (for a tree: by group, then by variable), with the names of netCDF4 or of Zarr.
    unlimited_dims
        Names of unlimited dimensions of the master (for a tree also by group).
    compute
        False: write a template, a new aggregation in which dask's arrays are missing data, and
        return a ``dask.delayed`` that writes them. Whoever has parts of them may write these as
        regions before, one at a time.
    subarray_path
        The folder of the fragments, below that of the master, in place of ``data``.
    relative
        Whether the master states addresses relative to itself, so that both can be moved
        together. By default it does, except in CFA-0.4, whose readers need absolute ones.
    create
        With `append_dim`: write a new aggregation where there is none. What `encoding` and
        `unlimited_dims` say is for that.
    labels
        As of `nczarr_xarray.to_nczarr`.

    Returns
    -------
    None or dask.delayed.Delayed

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
    if not compute:
        need_dask()
    advice = "mode='w' replaces it, append_dim adds to it"
    place = MasterPlace.find(target, storage_options, advice).with_fragments(subarray_path)
    groups, path = asked_groups(obj, place.url, group, encoding, unlimited_dims)
    for where, (dataset, how) in groups.items():
        groups[where] = without_extension_types(place.url, dataset), how
        refuse_other_chunks(place.url, groups[where][0])
    changes = append_dim is not None or region is not None
    if changes and len(groups) > 1:
        raise ExportError(place.url, "a DataTree is changed group by group (group=...)")
    if changes and not compute:
        reason = "compute=False makes a template of a new aggregation: leave it out"
        raise ExportError(place.url, reason)
    if create and append_dim not in groups[path][0].dims:
        reason = f"create=True goes with append_dim, a dimension of the dataset, not {append_dim!r}"
        raise ExportError(place.url, reason)
    more_along = append_dim
    if create and place.exists():
        groups = {path: (groups[path][0], Options({}))}
    elif create:
        append_dim, labels, changes = None, "any", False
        mode = None if mode == "a" else mode
    request = CfaOptions(
        format=format,
        version=cfa_version,
        most=largest_fragment(max_object_size, storage_options),
        subarray_shape=subarray_shape,
        fragment_format=fragment_format,
        mode=mode or None,
        append_dim=append_dim,
        labels=labels,
        region=region,
        relative=relative,
    )
    request.check(place.url)
    if not (changes or place.is_tree) and says_references(place.name):
        reason = "is the name of references; a master is called *.nca, and aggregate() writes them"
        raise ExportError(place.url, reason)
    if changes:
        task = plan_update(place, path, *groups[path], request)
    else:
        asked = {w: (one, how._replace(append_dim=more_along)) for w, (one, how) in groups.items()}
        task = plan_new(place, asked, request, path, template=not compute)
    with Progress("export", shown=bool(progress), callback=callback) as shown:
        task.run(shown)
    return None if compute else _rest(target, groups, storage_options)


def _rest(
    target: Any,
    groups: Mapping[str, tuple[xr.Dataset, Options]],
    storage_options: Mapping[str, Any] | None,
) -> Any:
    """Return the writing of dask's arrays into a template as one ``dask.delayed``."""
    from dask.delayed import delayed

    def write() -> None:
        for path, (dataset, _) in groups.items():
            names = [name for name, one in dataset.data_vars.items() if one.chunks is not None]
            lazy = dataset[names].drop_vars(dataset.coords, errors="ignore")
            if names:
                region = {name: slice(0, size) for name, size in lazy.sizes.items()}
                to_cfa(lazy, target, group=path, region=region, storage_options=storage_options)

    return delayed(write, pure=False)()


def plan_new(
    place: MasterPlace,
    groups: Mapping[str, tuple[xr.Dataset, Options]],
    request: CfaOptions,
    path: str = "/",
    before: Callable[[], None] | None = None,
    *,
    declared: Group | None = None,
    template: bool = False,
) -> CfaTask:
    """Plan the writing of an aggregation, or of a group of one, in the place of what is there.

    Parameters
    ----------
    groups, declared
        As of `Divider.parts`.
    path
        The group that all of them are in.
    before, template
        As of `CfaTask`.

    Raises
    ------
    NCZarrError
        If something cannot be written, or must not be replaced.
    """
    dialect_called(request.version or OLDEST, place.url)
    replaces = request.mode == "w"
    adds = path != "/" and place.exists()

    def draft() -> Draft:
        others = _others(place, path, request) if adds else _Others(place, declared)
        if not adds:
            others.old += removable_keys(place) if replaces else []
        dialect = dialect_called(others.version or request.version or OLDEST, place.url)
        kind = others.kind or request.master_kind
        if kind == "netCDF3" and place.is_tree:
            reason = "is named like a tree, and a CFA3 master is one file: name it .nca"
            raise ExportError(place.url, reason)
        fragments = request.fragment_format or kind
        divider = Divider(
            classic="netCDF3" in (kind, fragments),
            are_files=(not place.is_tree, fragments != "NCZarr"),
            most=request.most,
            shape=request.subarray_shape,
            template=template,
        )
        parts = divider.parts(place.url, groups, others.root)
        members = [*others.members, *parts.members()]
        names = others.place.names(fragments, replaces=bool(others.old))
        root = parts.root
        flows = [
            flow_of(others.place, one, names, root.attributes, members, dialect)
            for one in parts.divided
        ]
        if flows or others.tables:
            root = replace(root, attributes=conventions(root.attributes, dialect))

        def master() -> Content:
            tables = [
                (flow.divided.item.variable, flow.table(place, dialect, relative=request.relative))
                for flow in flows
            ]
            return whole_master(root, members, [*others.tables, *tables], dialect)

        return Draft(kind, master, flows, others.old, version=others.state)

    return CfaTask.plan(place, draft, replaces=replaces or adds, before=before, template=template)


@dataclass(slots=True)
class _Others:
    """What of an aggregation stays when a group of it is written; of a new one nothing."""

    place: MasterPlace
    root: Group | None = None
    version: str | None = None
    kind: FileKind | None = None
    members: Sequence[Member] = ()
    tables: Sequence[tuple[Variable, Fragments]] = ()
    #: keys of fragments that are not needed then
    old: list[str] = field(default_factory=list)
    #: as of `Draft.version`
    state: str = ""


def _others(place: MasterPlace, path: str, request: CfaOptions) -> _Others:
    """Return what stays of the present master when the group at `path` is written."""
    existing = ExistingMaster.open(place)

    def kept(group: Group) -> Group | None:
        if is_below(group.path, path):
            return None
        own = dict(group.dimensions), dict(group.attributes)
        return Group(group.path, dimensions=own[0], attributes=own[1])

    with existing.opened:
        version = existing.kept_version(request.version, request.format)
        if request.mode != "w" and existing.group(path) is not None:
            reason = f"holds a group {path!r} already; mode='w' replaces it, append_dim adds to it"
            raise DatasetExistsError(place.url, reason)
        tables = [
            (variable, array.fragments)
            for variable, array in existing.aggregations().values()
            if not is_below(variable.group, path)
        ]
        return _Others(
            existing.writable,
            rebuilt(existing.opened.hierarchy.root, kept),
            version,
            existing.kind,
            [one for one in existing.members() if not is_below(one.variable.group, path)],
            tables,
            existing.removable(keys_in(place, (fragments for _, fragments in tables))),
            existing.version,
        )


# -- copies ----------------------------------------------------------------------------------------


#: Options of xarray to decode nothing.
AS_STORED: Mapping[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"),
    False,
)


def copy(request: CopyRequest) -> None:
    """Copy to an aggregation."""
    with request.open() as source, request.cluster():
        lacking = Lacking(netcdf4=True)
        lacking.note_hidden(source.hierarchy)
        lacking.note_unused_enums(source.hierarchy)

        def held(group: Group) -> Group:
            variables = {name: lacking.variable(one) for name, one in group.variables.items()}
            return replace(group, variables=variables)

        root = rebuilt(source.hierarchy.root, held)
        lacking.tell(request.target)
        groups = {}
        for group in root.walk():
            try:
                opened = open_group(source, group, **AS_STORED)
            except NCZarrError:
                raise
            except ValueError as error:  # a dimension and a scalar of one name, for example
                reason = f"cannot become an aggregation, because xarray refuses it: {error}"
                raise ExportError(request.source, reason) from error
            dataset = _with_texts(_undecoded(opened), group)
            if distributed_client() is not None:
                dataset = _by_chunks(dataset)
            groups[group.path] = dataset, Options({}, encoded=True)
        options = request.options
        place = MasterPlace.find(request.target, request.target_options)
        asked = CfaOptions(
            largest_fragment(options.max_object_size, request.target_options),
            version=options.cfa_version or NEWEST,
            mode=request.mode,
            subarray_shape=options.subarray_shape,
        )
        task = plan_new(
            place.with_fragments(options.subarray_path),
            groups,
            asked,
            before=source.refuse_changed,
            declared=rebuilt(root, lambda one: Group(one.path, dimensions=dict(one.dimensions))),
        )
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
