"""NetCDF-4 files as a kind of target."""

from __future__ import annotations

from nczarr_xarray.export.file_target import FileTarget
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.netcdf_file import write_netcdf


def copy(request: CopyRequest) -> None:
    """Copy to a netCDF-4 file."""
    target = FileTarget.find(request.target, request.target_options, overwrite=request.overwrite)
    with request.open() as source, request.progress() as progress:
        write_netcdf(source, target, progress)
