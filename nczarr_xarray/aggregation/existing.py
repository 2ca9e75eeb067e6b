"""An aggregation that is there already, in the terms of `combine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_xarray.aggregation.combine import Aggregated, Packing
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import FragmentArray, Fragments, Variable


def read_aggregation(
    target: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[Aggregated, str]:
    """Read a master: its tables, and all else that it holds.

    Returns
    -------
    The aggregation, and the version of the convention that it follows.

    Raises
    ------
    ExportError
        If there is no aggregation variable, or one cannot be read.
    NCZarrError
        If the dataset cannot be read.
    """
    with open_with(target, OpenOptions(storage_options=storage_options)) as opened:
        variables = [v for g in opened.hierarchy.root.walk() for v in g.variables.values()]
        tables: dict[str, Fragments] = {}
        held: list[Variable] = []
        dialects = set()
        packing: Packing = "after"
        for variable in variables:
            if variable.error is not None:
                raise ExportError(target, f"has a variable that cannot be read: {variable.error}")
            if isinstance(variable.array, FragmentArray):
                tables[variable.path] = variable.array.fragments
                dialects.add(variable.array.dialect)
                if variable.array.packing:
                    packing = "equal"
            else:
                held.append(variable)
        if not tables:
            raise ExportError(target, "has no aggregation variable; it is no aggregation")
        values: dict[str, np.ndarray] = {}
        found = opened.read_many([(variable, None) for variable in held])
        for variable, value in zip(held, found, strict=True):
            if isinstance(value, NCZarrError):
                raise value
            values[variable.path] = value
        hierarchy = replace(opened.hierarchy, problems=())
        return Aggregated(hierarchy, values, tables, packing), max(dialects)
