"""What the formats and generations of datasets are called."""

from __future__ import annotations

import json

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import Hierarchy

#: The words for each `nczarr_xarray.model.Hierarchy.generation`, with the releases of netCDF-C
#: that write it.
GENERATIONS = {
    "G1": "NCZarr, generation G1 (netCDF-C 4.8.0)",
    "G2U": "NCZarr, generation G2U (netCDF-C 4.8.1 and 4.9.0)",
    "G2L": "NCZarr, generation G2L (netCDF-C 4.9.1 and 4.9.2)",
    "G2A": "NCZarr, generation G2A (netCDF-C 4.9.3 and later)",
    "v2": "Zarr, version 2 (no NCZarr metadata)",
    "v3": "Zarr, version 3",
    "hdf5": "HDF5, as netCDF-4",
    "CDF-1": "netCDF classic (CDF-1)",
    "CDF-2": "netCDF 64-bit offset (CDF-2)",
    "CDF-5": "netCDF 64-bit data (CDF-5)",
}
#: The generations of NCZarr; all of Zarr 2; all of Zarr.
NCZARR = ("G1", "G2U", "G2L", "G2A")
ZARR2 = (*NCZARR, "v2")
ZARR = (*ZARR2, "v3")


def check_is_zarr(hierarchy: Hierarchy, url: str) -> None:
    """Raise `FormatError` if a tree is of another package's format, and its objects not Zarr's."""
    if hierarchy.generation not in ZARR:
        reason = f"is of the format {hierarchy.generation!r}, not of Zarr: write elsewhere, or use "
        raise FormatError(url, f"{reason}a copy made by nczarr copy")


def describes_array(key: str, document: bytes) -> bool:
    """Tell whether an object is the metadata of an array; of Zarr 3, a damaged one is not."""
    name = key.rpartition("/")[2]
    if name != "zarr.json":
        return name == ".zarray"
    try:
        return bool(json.loads(document)["node_type"] == "array")
    except (ValueError, LookupError, TypeError):
        return False
