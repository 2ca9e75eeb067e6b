"""What the processes of tests have imported before they are forked.

To import it took each of them one to three seconds; an export takes 0.05.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import xarray as xr

# what xarray, its engines and modules of tests import
for name in ("dask.array", "distributed", "netCDF4", "pint", "pytest", "s3fs", "zarr"):
    with suppress(ImportError):
        import_module(name)
with suppress(ImportError):  # without dask
    xr.Dataset({"a": ("x", [1])}).chunk(x=1)
# The packages of all engines. cfapyx starts the thread of fsspec, which resets it in forks.
xr.backends.list_engines()
