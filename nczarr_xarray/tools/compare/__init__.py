"""Do two datasets hold the same? Comparison of structure and values, and digests of these."""

from __future__ import annotations

from nczarr_xarray.tools.compare.api import compare
from nczarr_xarray.tools.compare.digests import check_digests, write_digests
from nczarr_xarray.tools.compare.report import Comparison, Difference

__all__ = ["Comparison", "Difference", "check_digests", "compare", "write_digests"]
