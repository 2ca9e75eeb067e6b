"""``to_nczarr``, ``to_netcdf`` with our engine, and ``recover``."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xarray as xr

from nczarr_fsspec.changes.create import NewObjects
from nczarr_fsspec.changes.edit import OVER
from nczarr_fsspec.changes.leftovers import remove_leftovers
from nczarr_fsspec.changes.recovery import recover as recover_store
from nczarr_fsspec.errors import ExportError, StoreError, URLError
from nczarr_fsspec.places.names import says_file
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.dataset.open import find_destination
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.cfa.task import clear_claim
from nczarr_xarray.export.chunk_writer import ArrayWriter
from nczarr_xarray.export.dataset import Exportable, asked_groups
from nczarr_xarray.export.form.encode import Options, without_extension_types
from nczarr_xarray.export.new import holds_group, plan_new
from nczarr_xarray.export.new_values import plan_append, plan_values
from nczarr_xarray.export.options import (
    Labels,
    Mode,
    RegionLike,
    WriteOptions,
    WriteRequest,
    mode_of,
)
from nczarr_xarray.export.parallel import refuse_other_chunks
from nczarr_xarray.export.progress import Progress, check_callback
from nczarr_xarray.export.write_target import decide
from nczarr_xarray.export.write_task import WriteTask, need_dask

if TYPE_CHECKING:
    from fsspec.callbacks import Callback


def to_nczarr(
    obj: Exportable,
    target: Any,
    mode: Mode | None = None,
    group: str | None = None,
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | Mapping[str, Iterable[Hashable]] | None = None,
    compute: bool = True,
    *,
    append_dim: Hashable | None = None,
    labels: Labels = "any",
    create: bool = False,
    region: RegionLike | None = None,
    consolidated: bool = False,
    safe_chunks: bool = True,
    align_chunks: bool = False,
    write_empty_chunks: bool | None = None,
    compat: str = "4.9.3",
    portable: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    write_inherited_coords: bool = False,
    progress: bool | None = None,
    callback: Callback | None = None,
) -> Any:
    """Write a dataset, an array or a tree as NCZarr, or as pure Zarr 2.

    The target changes in one step, when everything has been written, or
    not at all. Everything that cannot be stored is an error before that.

    Parameters
    ----------
    obj
        The data. A DataArray is written as xarray's `to_netcdf` writes it.
    target
        A path, a netCDF URL, any fsspec URL that can be written, a mapper or
        mapping, or a zarr-python Store. ``.zip`` or ``#mode=zip`` makes an
        archive, ``#mode=zarr`` pure Zarr; ``noxarray`` and ``consolidated`` as
        in netCDF-C.
    mode
        ``"w-"`` (default): the target must be empty. ``"w"``: replace the dataset,
        or with `group` that group; files that are not the dataset's stay.
        ``"a"``: add groups and variables, replace variables. ``"r+"``: new
        values for variables that exist.
    group
        Path of the group to write.
    encoding
        By variable (for a tree: by group, then by variable), with the names of
        netCDF4 (``zlib``, ``complevel``, ``chunksizes``, ...) or of Zarr
        (``compressor``, ``filters``, ``chunks``).
    unlimited_dims
        Names of unlimited dimensions (for a tree also by group).
    compute
        False: return a ``dask.delayed`` that writes dask's arrays. A new dataset
        exists at once, without those arrays; other processes may write regions
        of it, and it can be read when all chunks are there. An existing dataset
        changes when the delayed object is computed; until then other writers
        are kept out.
    append_dim
        Append along this dimension.
    labels
        What becomes of labels of `append_dim` that are there already: ``"any"`` (default): they are
        not looked at, and appended again; ``"error"``: they are refused; ``"new"``: they are left
        out, and what is there stays.
    create
        With `append_dim`: write a new dataset, or group, where there is none. What `encoding` and
        `unlimited_dims` say is for that.
    region
        The part that `obj` replaces: slices by dimension, ``"auto"`` to find it
        by the labels of one dimension or of all.
    consolidated
        Write ``.zmetadata`` as well. An existing one is kept up to date anyway.
    safe_chunks
        Refuse dask blocks that share a chunk, which cannot be written in parallel.
    align_chunks
        Move the borders of such blocks instead.
    write_empty_chunks
        Whether chunks that hold only the fill value are stored. None (default):
        not in new datasets; in an existing dataset all chunks are stored.
    compat
        The netCDF-C release that must be able to read it: ``"4.9.3"``,
        ``"4.9.2"`` or ``"4.8.1"``. An existing dataset keeps its form.
    portable
        Write pure Zarr, and only what every reader of Zarr 2 has: no filters
        (shuffling is one), and of compressors zlib and blosc.
    storage_options
        Options of the target's filesystem (fsspec).
    write_inherited_coords
        For a tree: write inherited coordinates in every group.
    progress
        Show a progress bar.
    callback
        A callback of fsspec that gets the progress (`fsspec.callbacks`).

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    TypeError
        If `obj` is neither a Dataset nor a DataArray nor a DataTree.
    URLError
        If `target` cannot be understood, or is nothing that can be written.
    ImportError
        If a package is missing: one for the protocol of `target`, or dask for ``compute=False``.
    ExportError
        If something cannot be stored; it lists everything that was found.
    FormatError
        If a value that dask has computed cannot be stored in its type.
    DatasetExistsError
        If something exists that must not be replaced.
    DatasetNotFoundError
        If no dataset exists to append to or to update.
    ConflictError
        If another writer is at work on the same chunks.
    StoreError
        If the store fails; the old state can still be read.

    Warns
    -----
    NCZarrWarning
        If something is written in another form, such as an enum as integers with flags.
    """
    check_callback(callback)
    if not compute:
        need_dask()
    options = WriteOptions(
        mode=mode,
        compute=compute,
        append_dim=append_dim,
        labels=labels,
        create=create,
        region=region,
        consolidated=consolidated,
        safe_chunks=safe_chunks,
        align_chunks=align_chunks,
        write_empty_chunks=write_empty_chunks,
        compat=compat,
        portable=portable,
        storage_options=storage_options,
    )
    task = plan(
        obj,
        target,
        options,
        group,
        encoding,
        unlimited_dims,
        write_inherited_coords=write_inherited_coords,
    )
    with Progress("export", shown=bool(progress), callback=callback) as shown:
        return task.run(shown) if compute else task.start(shown)


def plan(
    obj: Exportable,
    target: Any,
    options: WriteOptions,
    group: str | None = None,
    encoding: Mapping[Any, Any] | None = None,
    unlimited_dims: Any = None,
    *,
    write_inherited_coords: bool = False,
) -> WriteTask:
    """Check a call of `to_nczarr` and plan its writing (the parameters are documented there)."""
    asked, path = asked_groups(
        obj, target, group, encoding, unlimited_dims, write_inherited_coords=write_inherited_coords
    )
    return plan_groups(asked, target, options, path)


def plan_groups(
    groups: Mapping[str, tuple[xr.Dataset, Options]],
    target: Any,
    options: WriteOptions,
    path: str,
) -> WriteTask:
    """Plan the writing of several datasets, given by the absolute path of their group; see `plan`.

    Parameters
    ----------
    path
        The group that all of them are in.
    """
    write_target, profile, options = decide(target, options)
    if options.create and options.append_dim is None:
        reason = "create=True goes with append_dim: give it, or leave create out"
        raise ExportError(write_target.url, reason)
    new: tuple[Mode, ...] = ("w-", "w", "a", "r+")
    which = options.append_dim, options.region, options.labels
    how = mode_of(write_target.url, options.mode, new, *which)
    plain = {}
    for name, (dataset, asked) in groups.items():
        plain[name] = without_extension_types(write_target.url, dataset), asked
        refuse_other_chunks(write_target.url, plain[name][0])
    request = WriteRequest(write_target, profile, plain, path, options)
    if options.append_dim is not None:
        if options.create and not holds_group(request):
            _, dataset, _ = request.one_group()  # to more than one, nothing could be appended
            if options.append_dim not in dataset.dims:
                reason = f"append_dim is {options.append_dim!r}: there is no such dimension"
                raise ExportError(request.url, reason)
            return plan_new(request, "w-")
        return plan_append(request, options.append_dim)
    if options.region is not None or how == "r+":
        return plan_values(request, {} if options.region is None else options.region)
    return plan_new(request, how)


class NetCDFTarget:
    """Takes what `to_netcdf` passes, in its order: `store`, its own writer, `close`.

    Parameters
    ----------
    target
        See `nczarr_xarray.to_nczarr`.
    mode
        ``"w"`` replaces the dataset, ``"a"`` and ``"r+"`` add to it.
    format
        None or ``"NETCDF4"``; there is no other.
    autoclose
        Whether dask writes in other processes; `close` then comes before that,
        so that everything is written by `store`.
    """

    _task: WriteTask | None = None

    def __init__(
        self,
        target: Any,
        mode: str = "w",
        format: str | None = None,  # noqa: A002 - xarray calls it so
        autoclose: bool = False,
    ) -> None:
        if format not in (None, "NETCDF4"):
            reason = f"format is {format!r}, and engine='nczarr' has NETCDF4 only: leave it out"
            raise ExportError(str(target), reason)
        if not isinstance(target, (str, os.PathLike)):
            reason = "to_netcdf needs a path or URL here; to_nczarr takes mappings and stores, too"
            raise ExportError(type(target).__name__, reason)
        self._target = target
        self._mode = {"r+": "a"}.get(mode, mode)
        self._autoclose = autoclose
        self._group: str | None = None
        self._home = os.getpid()
        self._delayed = False
        # the caller may be handling one, which is no error of this export; the number of an
        # exception that is being handled belongs to no other, and can be pickled
        self._handled = id(sys.exc_info()[1])
        self._chunk_writers: list[ArrayWriter] = []

    def get_child_store(self, group: str) -> NetCDFTarget:
        """Return a target of the same kind for a group."""
        self._group = group
        return self

    def store(
        self,
        variables: Mapping[Hashable, xr.Variable],
        attributes: Mapping[str, Any],
        check_encoding_set: Iterable[Hashable] = frozenset(),
        writer: Any = None,
        unlimited_dims: Iterable[Hashable] | None = None,
    ) -> None:
        """Write what is in memory; leave dask's arrays to `writer`."""
        dataset = xr.Dataset(dict(variables), attrs=dict(attributes))
        explicit = {name: variables[name].encoding for name in check_encoding_set}
        task = plan(
            dataset,
            self._target,
            WriteOptions(mode=self._mode),
            self._group,
            explicit,
            # xarray has warned already of names that the dataset does not have
            set(unlimited_dims or ()) & set(dataset.dims),
        )
        with Progress("export", shown=False) as progress:
            if self._autoclose:
                task.run(progress)
                return
            with task.or_nothing():
                task.write_eager(progress)
        for item, chunk_writer in task.flows:
            data = item.lazy_data
            if data is not None:
                writer.add(data, chunk_writer)
                self._chunk_writers.append(chunk_writer)
        self._task = task.without_data()

    def sync(self) -> None:
        """Note that `close` follows when dask's arrays have been computed, unless this failed."""
        self._delayed = not self._failing()

    def close(self) -> None:
        """Make the dataset valid, or remove it if `to_netcdf` is ending with an error."""
        task, self._task = self._task, None
        if task is None:
            return
        if not self._delayed and self._failing():
            self._give_up(task)
            return
        with task.or_nothing():
            change = task.change
            if self._delayed and isinstance(change, NewObjects) and not change.is_there():
                # a pickled copy of this has ended the export
                raise StoreError(change.staged.url, OVER)
            task.finish()
        if self._delayed:  # who computes it once more must not write into what is there since
            self._shut()

    def _shut(self) -> None:
        for chunk_writer in self._chunk_writers:
            chunk_writer.shut()

    def _failing(self) -> bool:
        return id(sys.exc_info()[1]) != self._handled

    def __del__(self) -> None:
        """Remove what is not complete if xarray does not `close` it, as another target failed."""
        task, self._task = self._task, None
        if task is not None and not self._delayed and os.getpid() == self._home:
            self._give_up(task)

    def _give_up(self, task: WriteTask) -> None:
        self._shut()
        task.change.abort()


# -- what dead writers have left -------------------------------------------------------------------


def recover(target: Any, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Finish or remove what dead writers of a dataset have left behind.

    A change that had become valid is carried out; all other staged objects are
    removed. The next writer does the same if it can find out that the other one is
    dead. Call this function if that writer ran on another machine, or before a
    restart of this one. No process may write to the dataset meanwhile.

    Parameters
    ----------
    target, storage_options
        As for `to_nczarr` or `to_cfa`.

    Returns
    -------
    bool
        Whether anything had been left behind.

    Raises
    ------
    URLError
        If `target` cannot be understood, or is nothing that can be written.
    ImportError
        If the package for the protocol of `target` is not installed.
    StoreError
        If the store cannot be changed.
    """
    place = None
    with suppress(URLError):  # else it is nothing that can have fragments beside it
        place = MasterPlace.find(target, storage_options)
    left = []
    if place is not None:
        try:
            left.append(clear_claim(place))
        except StoreError as error:  # of a key that is our own business
            raise type(error)(place.url, error.reason) from error
        left.append(place.remove_abandoned())
        is_folder = os.path.isdir(place.folder + place.name)  # a tree may have any name
        names_a_file = says_file(place.name, place.mode) and not is_folder
        if not place.is_tree and (left[0] or names_a_file):
            if isinstance(place.store, DirectoryWriter):
                path = os.path.realpath(os.path.join(place.store.path, place.name))
                left.append(remove_leftovers(path, alive=True))
            return any(left)
    destination = find_destination(target, storage_options)
    store = destination.store
    if destination.path is not None:
        left.append(remove_leftovers(os.path.realpath(destination.path), alive=True))
    if store is not None:
        left.append(recover_store(store))
    if isinstance(store, DirectoryWriter):
        temporaries = [key for key, _ in store.temporaries()]
        store.delete(temporaries)
        left.append(bool(temporaries))
    return any(left)
