"""NCZarr of every generation, and pure Zarr v2: keys and bytes to the data model.

No I/O happens here. `walk` asks for objects and receives their bytes; `build`
makes the model from what the walk found.
"""

from __future__ import annotations

from nczarr_xarray.formats.nczarr.build import Naming, build
from nczarr_xarray.formats.nczarr.nodes import Answer, Nodes, ReadRound, WalkOptions
from nczarr_xarray.formats.nczarr.walk import Walking, single_array, walk, walked

__all__ = [
    "Answer",
    "Naming",
    "Nodes",
    "ReadRound",
    "WalkOptions",
    "Walking",
    "build",
    "single_array",
    "walk",
    "walked",
]
