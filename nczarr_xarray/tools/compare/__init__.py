"""Do two datasets hold the same? Comparison of structure and values."""

from __future__ import annotations

from nczarr_xarray.tools.compare.api import compare
from nczarr_xarray.tools.compare.report import Comparison, Difference

__all__ = ["Comparison", "Difference", "compare"]
