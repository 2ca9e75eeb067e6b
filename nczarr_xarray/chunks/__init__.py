"""The chunk engine: locate, fetch, decode and scatter, for every format."""

from __future__ import annotations

from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import Index, Plan, plan_outer, plan_points

__all__ = ["ChunkReader", "Index", "Plan", "plan_outer", "plan_points"]
