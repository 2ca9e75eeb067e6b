"""Pure Zarr 2 as a kind of target."""

from __future__ import annotations

from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.kinds.trees import copy_tree


def copy(request: CopyRequest) -> None:
    """Copy to Zarr 2 without NCZarr's metadata."""
    copy_tree(request, pure=True)
