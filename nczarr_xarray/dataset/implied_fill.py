"""The fill value of pure Zarr 2, which stands for ``_FillValue`` as xarray has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_xarray.model import NC_DEFAULT_FILL, NC_DTYPES, Attribute, Group, Hierarchy, Variable


def implied_fill(variable: Variable, hierarchy: Hierarchy, *, asked: bool | None = None) -> Any:
    """Return the Zarr fill value that is what netCDF would call ``_FillValue``; None if none is.

    Parameters
    ----------
    asked
        What the caller says of the fill values of pure Zarr 2; None if that is left to us.
    """
    array = variable.array
    if hierarchy.generation != "v2" or array is None or array.fill is None:
        return None  # NCZarr and Zarr 3 say it in the attribute
    if asked is not None:
        return array.fill if asked else None
    if hierarchy.writer is not None or not array.fill:
        return None
    if variable.dtype.kind in "mM" and np.isnat(array.fill):
        return None  # it is missing without an attribute, which no writer could store
    if variable.dtype.kind in "iu" and not {"scale_factor", "add_offset"} & set(
        variable.attributes
    ):
        # it would make floats of integers that may not have been meant to be missing
        default = NC_DEFAULT_FILL.get(variable.nc_type or "")
        return None if array.fill == default else array.fill
    return array.fill


def with_fill(variable: Variable, hierarchy: Hierarchy) -> Variable:
    """Return a variable that says its fill value in the attribute."""
    if "_FillValue" in variable.attributes or variable.dtype.kind not in "iuf":
        return variable
    fill = implied_fill(variable, hierarchy)
    if fill is None or variable.nc_type is None:
        return variable
    value = np.array([fill], NC_DTYPES[variable.nc_type])
    attribute = Attribute("_FillValue", variable.nc_type, value)
    return replace(variable, attributes={**variable.attributes, "_FillValue": attribute})


def with_fills(hierarchy: Hierarchy) -> Hierarchy:
    """Return a dataset whose variables say their fill values in the attribute."""
    if hierarchy.generation != "v2":
        return hierarchy

    def changed(group: Group) -> Group:
        groups = {name: changed(child) for name, child in group.groups.items()}
        variables = {name: with_fill(v, hierarchy) for name, v in group.variables.items()}
        return replace(group, groups=groups, variables=variables)

    return replace(hierarchy, root=changed(hierarchy.root))
