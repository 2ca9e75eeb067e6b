"""NetCDF files as kinds of target: netCDF-4, and classic ones (CDF-1, CDF-2 and CDF-5)."""

from __future__ import annotations

from nczarr_xarray.export.classic import as_classic
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.netcdf_file import FileTarget, write_netcdf


def copy(request: CopyRequest) -> None:
    """Copy to a file of the format that was asked for."""
    target = FileTarget.find(request.target, request.target_options, overwrite=request.overwrite)
    lacking, model = Lacking(netcdf4=True), request.format
    with request.open() as source, request.progress() as progress:
        if model != "NETCDF4":
            source = as_classic(source, target.url, lacking, model)
        write_netcdf(
            source,
            target,
            progress,
            model=model,
            lacking=lacking,
            memory=request.memory,
            tell=request.tell,
        )
