"""Copies to trees of Zarr 2: NCZarr, and pure Zarr."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

from nczarr_fsspec.errors import FormatError, UsageError
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_xarray.dataset.destinations import find_destination
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.copy import plan_copy
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.write_options import AS_IT_IS, WriteOptions


def copy(request: CopyRequest) -> None:
    """Copy to NCZarr, or to pure Zarr.

    A file that only another of xarray's engines reads is copied, too, as that reads it.
    """
    layout, given = request.layout, request.options
    if given.portable and any(c["id"] not in ("shuffle", "zlib") for c in layout.codecs or ()):
        reason = "not every reader of Zarr 2 has it (--portable): use zlib"
        raise UsageError("--compress", reason)
    options = WriteOptions(
        mode=request.mode,
        portable=given.portable,
        pure=given.portable or request.format == "Zarr2",
        consolidated=given.consolidated,
        storage_options=request.target_options,
        compat=given.compat or AS_IT_IS.compat,
    )
    try:
        source = request.open()
    except FormatError as error:
        if not os.path.isfile(request.source):
            raise
        if request.only_ours:
            reason = "is not read by this package, as --verify and --digests need"
            raise UsageError(request.source, reason) from None
        for option in ("memory", "workers", "scheduler", "resume", "hard_links"):
            if option in given.given:
                reason = "needs a source that this package reads itself"
                raise UsageError(f"--{option.replace('_', '-')}", reason) from None
        _import(request, options, error.reason)
        return
    with source, request.cluster():
        if given.hard_links:
            _refuse_no_links(source, request)
        resumption = request.resumption(source)
        task = plan_copy(source, request.target, options, layout, resumption, request.memory)
        request.run(task)


def _refuse_no_links(source: Opened, request: CopyRequest) -> None:
    """Raise `UsageError` if no file of the copy can be a hard link to one of the source."""
    store, target = source.store, find_destination(request.target, request.target_options)
    no_tree = "is no tree of files on this machine"
    if not isinstance(store, DirectoryStore):
        raise UsageError("--hard-links", f"{request.source} {no_tree}")
    if target.kind != "directory" or target.path is None:
        raise UsageError("--hard-links", f"{request.target} {no_tree}")
    if _file_system(store.path) != _file_system(target.path):
        reason = f"{request.source} and {request.target} are not on one file system"
        raise UsageError("--hard-links", reason)


def _file_system(path: str) -> int:
    """Return the number of the file system that a path is on, or would be."""
    path = os.path.realpath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev


def _import(request: CopyRequest, options: WriteOptions, refused: str) -> None:
    """Copy a file that another of xarray's engines reads, as this package has refused it."""
    from nczarr_xarray.export.copy_other import open_other, plan_import

    # libraries of other engines were seen to crash with several threads
    with open_other(request.source, refused) as found, _one_thread():
        groups = request.selection.of_groups(found)
        request.check_names({str(d) for one in groups.values() for d in one.dims})
        fixed = request.selection.fixed
        task = plan_import(
            request.source, groups, request.target, options, request.layout, fixed=fixed
        )
        with request.progress() as progress:
            task.run(progress)


def _one_thread() -> AbstractContextManager[Any]:
    """Let dask, if it is installed, compute in this thread."""
    if find_spec("dask") is None:
        return nullcontext()
    import dask.config

    one: AbstractContextManager[Any] = dask.config.set(scheduler="synchronous")
    return one
