"""The interface of netCDF4-python over everything that is opened and written here.

``import nczarr_xarray.netcdf4 as netCDF4`` is what changes in a script.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nczarr_xarray.netcdf4.dataset import Dataset, Group
from nczarr_xarray.netcdf4.multifile import MFDataset, MFTime
from nczarr_xarray.netcdf4.text import chartostring, stringtoarr, stringtochar
from nczarr_xarray.netcdf4.types import (
    CompoundType,
    EnumType,
    VLType,
    default_fillvals,
    is_native_big,
    is_native_little,
)
from nczarr_xarray.netcdf4.variable import Dimension, Variable, get_chunk_cache, set_chunk_cache

#: The version of netCDF4-python whose interface this is.
__version__ = "1.7.2"

#: What is cftime's.
_OF_CFTIME = frozenset({"date2index", "date2num", "num2date"})
#: What netCDF4-python tells or sets of netCDF-C.
_OF_NETCDF4 = frozenset(
    {"getlibversion", "get_alignment", "rc_get", "rc_set", "set_alignment", "CompressionLevel"}
    | {"QuantizeMode", "NetCDF4MissingFeatureException", "__hdf5libversion__"}
    | {"__netcdf4libversion__"}
)

for _class in (
    *(Dataset, Group, Variable, Dimension, MFDataset, MFTime),
    *(CompoundType, EnumType, VLType),
):
    _class.__module__ = __name__  # as they are printed

if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _OF_CFTIME:
            return getattr(import_module("cftime"), name)
        if name in _OF_NETCDF4 or name.startswith("__has_"):
            try:
                return getattr(import_module("netCDF4"), name)
            except ImportError:
                if name.startswith("__has_"):
                    return False
                raise NotImplementedError(
                    f"{name} is about netCDF-C, by which netCDF4-python writes files: pip install "
                    "netCDF4"
                ) from None
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CompoundType", "Dataset", "Dimension", "EnumType", "Group", "MFDataset", "MFTime", "VLType",
    "Variable", "chartostring", "date2index", "date2num", "default_fillvals", "get_chunk_cache",
    "is_native_big", "is_native_little", "num2date", "set_chunk_cache", "stringtoarr",
    "stringtochar",
]  # fmt: skip
