"""``ds.nczarr``, and on request ``ds.to_netcdf(..., engine="nczarr")``."""

from __future__ import annotations

from importlib import import_module
from types import MethodType
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy
    from nczarr_xarray.aggregation.aggregated import Aggregated
    from nczarr_xarray.tools.storage_table import Storage


class _Method:
    """A method that is a function of this package, imported when it is first looked at.

    So ``help`` and completion show the parameters of the function itself.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, accessor: NCZarrAccessor | None, _: type) -> Any:
        function = getattr(import_module(self._module), self._name)
        return function if accessor is None else MethodType(function, accessor.obj)


class NCZarrAccessor:
    """The accessor ``.nczarr`` of a Dataset, a DataArray or a DataTree.

    Printed, it says how the variables were stored where they were read, and which are not so now.
    """

    def __init__(self, obj: xr.Dataset | xr.DataArray | xr.DataTree) -> None:
        self.obj = obj
        #: what `nczarr_xarray.open_many` has opened as this object
        self.aggregation: tuple[Aggregated, AddressPolicy] | None = None

    to_nczarr = _Method("nczarr_xarray.export.api")
    to_cfa = _Method("nczarr_xarray.export.cfa.to_cfa")
    save = _Method("nczarr_xarray.aggregation.many")
    doctor = _Method("nczarr_xarray.tools.doctor")

    def __repr__(self) -> str:
        return self._storage().as_text()

    def _repr_html_(self) -> str:
        return self._storage().as_html()

    def _storage(self) -> Storage:
        from nczarr_xarray.tools.storage_table import Storage

        return Storage.of(self.obj, self.aggregation and self.aggregation[0].tables)


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
    `nczarr_xarray.backend.compat`. What only `to_nczarr` has (appends, regions, trees)
    stays there.
    """
    from nczarr_xarray.backend.compat import WRITEABLE_STORES
    from nczarr_xarray.export.api import NetCDFTarget

    WRITEABLE_STORES["nczarr"] = NetCDFTarget  # type: ignore[index]  # a literal of its own names
