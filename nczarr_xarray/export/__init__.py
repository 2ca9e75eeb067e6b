"""Export: xarray's datasets, and anything in our data model, as NCZarr or pure Zarr 2."""

from __future__ import annotations

from nczarr_xarray.export.api import to_nczarr
from nczarr_xarray.export.recovery import recover

__all__ = ["recover", "to_nczarr"]
