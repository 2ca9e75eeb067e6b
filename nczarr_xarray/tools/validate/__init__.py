"""Is a dataset sound? Findings about its metadata, its objects and its data."""

from __future__ import annotations

from nczarr_xarray.tools.validate.checks import validate
from nczarr_xarray.tools.validate.repair import fixable, repair

__all__ = ["fixable", "repair", "validate"]
