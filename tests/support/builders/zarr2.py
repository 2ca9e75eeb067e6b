"""Documents of Zarr 2 that tests begin with."""

from __future__ import annotations

from typing import Any

GROUP: dict[str, Any] = {"zarr_format": 2}
#: An array of three numbers, in one chunk as they are.
ARRAY: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [3],
    "chunks": [3],
    "dtype": "<i4",
    "compressor": None,
    "filters": None,
    "order": "C",
    "fill_value": 0,
}
