"""``ds.nczarr.to_nczarr(...)``, and on request ``ds.to_netcdf(..., engine="nczarr")``."""

from __future__ import annotations

from typing import Any

import xarray as xr


class NCZarrAccessor:
    """The accessor ``.nczarr`` of a Dataset, a DataArray or a DataTree."""

    def __init__(self, obj: xr.Dataset | xr.DataArray | xr.DataTree) -> None:
        self._obj = obj

    def to_nczarr(self, target: Any, *args: Any, **options: Any) -> Any:
        """Write the object as NCZarr; the parameters are those of `nczarr_xarray.to_nczarr`."""
        from nczarr_xarray.export.api import to_nczarr

        return to_nczarr(self._obj, target, *args, **options)

    def to_cfa(self, target: Any, *args: Any, **options: Any) -> None:
        """Write an aggregation; the parameters are those of `nczarr_xarray.to_cfa`."""
        from nczarr_xarray.export.cfa.to_cfa import to_cfa

        to_cfa(self._obj, target, *args, **options)


def register_accessors() -> None:
    """Give xarray's objects their ``.nczarr``."""
    for kind, give in (
        (xr.Dataset, xr.register_dataset_accessor),
        (xr.DataArray, xr.register_dataarray_accessor),
        (xr.DataTree, xr.register_datatree_accessor),
    ):
        if not hasattr(kind, "nczarr"):
            give("nczarr")(NCZarrAccessor)  # type: ignore[no-untyped-call]


def register() -> None:
    """Let ``Dataset.to_netcdf(target, engine="nczarr")`` write NCZarr.

    xarray has no public way for this; the only module that does it is
    `nczarr_xarray.backend._compat`. What only `to_nczarr` has (appends, regions, trees)
    stays there.
    """
    from nczarr_xarray.backend._compat import WRITEABLE_STORES
    from nczarr_xarray.export.to_netcdf import NetCDFTarget

    WRITEABLE_STORES["nczarr"] = NetCDFTarget  # type: ignore[index]  # a literal of its own names
