"""NCZarr as a kind of target."""

from __future__ import annotations

from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.kinds.trees import copy_tree


def copy(request: CopyRequest) -> None:
    """Copy to NCZarr; ``--portable`` has always meant pure Zarr, whatever the URL says."""
    copy_tree(request, pure=bool(request.option("portable")))
