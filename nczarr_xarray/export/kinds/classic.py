"""Classic netCDF files, CDF-1, CDF-2 and CDF-5, as a kind of target."""

from __future__ import annotations

from nczarr_xarray.export.classic import as_classic
from nczarr_xarray.export.file_target import FileTarget
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.lacking import Lacking
from nczarr_xarray.export.netcdf_file import write_netcdf


def copy(request: CopyRequest) -> None:
    """Copy to a classic file of the format that was asked for."""
    target = FileTarget.find(request.target, request.target_options, overwrite=request.overwrite)
    lacking = Lacking(netcdf4=True)
    with request.open() as source, request.progress() as progress:
        held = as_classic(source, target.url, lacking, request.format)
        write_netcdf(held, target, progress, model=request.format, lacking=lacking)
