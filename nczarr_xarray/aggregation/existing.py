"""An aggregation that is there already, in the terms of `combine`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.addresses import AddressPolicy
from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_xarray.aggregation.combine import Aggregated, Packing
from nczarr_xarray.aggregation.from_references import aggregated_references, references_of
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.cfa.existing_master import check_whole
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
        If there is no aggregation variable, or one cannot be read; if something would be lost.
    NCZarrError
        If the dataset cannot be read.
    """
    with open_with(target, OpenOptions(storage_options=storage_options)) as opened:
        check_whole(target, opened.hierarchy)
        return _aggregation(opened, target)


def read_master(target: str, options: OpenOptions, policy: AddressPolicy) -> Aggregated:
    """Read an aggregation, or references as one of variables of files.

    Parameters
    ----------
    options
        How to open it.
    policy
        What the addresses in it mean.

    Raises
    ------
    NCZarrError
        As `read_aggregation`, and as `aggregated_references`.
    """
    with open_with(target, options) as opened:
        keys = references_of(opened)
        if keys is None:
            return _aggregation(opened, target)[0]
        return aggregated_references(opened, keys, policy)


def _aggregation(opened: Opened, target: str) -> tuple[Aggregated, str]:
    """Do as `read_aggregation`, with an open dataset."""
    tables: dict[str, Fragments] = {}
    held: list[Variable] = []
    dialects = set()
    packing: Packing = "after"
    for variable in (v for g in opened.hierarchy.root.walk() for v in g.variables.values()):
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
