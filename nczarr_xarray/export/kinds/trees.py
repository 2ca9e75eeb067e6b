"""Copies to trees of Zarr 2: NCZarr, and pure Zarr."""

from __future__ import annotations

from nczarr_fsspec.errors import UsageError
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
        resumption = request.resumption(source)
        task = plan_copy(source, request.target, options, layout, resumption, request.memory)
        request.run(task)
