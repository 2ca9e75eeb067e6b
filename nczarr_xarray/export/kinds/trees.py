"""Copies to trees of Zarr 2: NCZarr, and pure Zarr."""

from __future__ import annotations

import os

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_xarray.dataset.destinations import find_destination
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.copy import plan_copy
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.write_options import AS_IT_IS, WriteOptions


def copy(request: CopyRequest) -> None:
    """Copy to NCZarr, or to pure Zarr."""
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
    with request.open() as source, request.cluster():
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
