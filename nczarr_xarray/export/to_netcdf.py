"""``Dataset.to_netcdf(target, engine="nczarr")``: a target with the methods that xarray calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import xarray as xr

from nczarr_fsspec.changes.create import NewObjects
from nczarr_fsspec.changes.edit import OVER
from nczarr_fsspec.errors import ExportError, StoreError
from nczarr_xarray.export.api import plan
from nczarr_xarray.export.gate import ArrayWriter
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.write_options import WriteOptions
from nczarr_xarray.export.write_task import WriteTask, lazy_data


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
            data = lazy_data(item)
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
            self._check_lasts(task)
            task.complete()
        if self._delayed:  # who computes it once more must not write into what is there since
            self._shut()

    def _check_lasts(self, task: WriteTask) -> None:
        """Raise `StoreError` if a pickled copy of this has ended the export."""
        change = task.change
        if self._delayed and isinstance(change, NewObjects) and not change.is_there():
            raise StoreError(change.staged.url, OVER)

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
