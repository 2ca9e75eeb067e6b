"""Datasets as CDL, the text of ncdump."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import replace

from nczarr_xarray.dataset.dataset import Opened


def cdl(opened: Opened, path: str, *, coordinates: bool, data: bool) -> str:
    """Return an open dataset as CDL.

    Parameters
    ----------
    path
        Its path or URL.
    coordinates, data
        Whether there are the values of coordinates, or of all variables.
    """
    own = opened.hierarchy.generation == "hdf5" or opened.hierarchy.generation.startswith("CDF-")
    if own and os.path.isfile(path) and shutil.which("ncdump"):
        with suppress(ImportError, OSError):
            import netCDF4

            with netCDF4.Dataset(path) as other:
                return str(other.tocdl(coordinates, data))
    from nczarr_xarray.cli.dump import dataset_name, write_cdl

    root = opened.hierarchy.root
    lines: list[str] = []
    read = replace(opened, exact=True).read if coordinates or data else None
    selected = None
    if coordinates and not data:
        variables = root.all_variables()
        selected = frozenset(v.path for v in variables if v.name in {d.name for d in v.dimensions})
    for error in write_cdl(dataset_name(path), root, lines.append, read, selected):
        raise error
    return "".join(lines)
