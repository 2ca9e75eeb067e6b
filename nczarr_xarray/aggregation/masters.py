"""Masters in the terms of `combine`: those that are there, and what one to be written holds."""

from __future__ import annotations

from dataclasses import replace

from nczarr_fsspec.addresses import AddressPolicy
from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.from_references import aggregated_references, references_of
from nczarr_xarray.aggregation.replaced import Replaced
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.cfa.content import Content, Member, in_one_chunk
from nczarr_xarray.export.cfa.existing_master import held_values
from nczarr_xarray.export.cfa.master import (
    aggregation,
    conventions,
    held_dimensions,
    unpacked,
    without_enum,
)
from nczarr_xarray.formats.cfa.dialect import WritableDialect
from nczarr_xarray.formats.cfa.variables import aggregated
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import Variable


def read_aggregation(url: str, opened: Opened) -> Aggregated:
    """Read a master that is open: its tables, and all else that it holds.

    Raises
    ------
    ExportError
        If there is no aggregation variable, or one that cannot be read.
    NCZarrError
        If values cannot be read.
    """
    values = {variable.path: found for variable, found in held_values(url, opened)}
    arrays = {variable.path: array for variable, array in aggregated(opened.hierarchy)}
    if not arrays:
        raise ExportError(url, "has no aggregation variable; it is no aggregation")
    return Aggregated(
        replace(opened.hierarchy, problems=()),
        values,
        {path: array.fragments for path, array in arrays.items()},
        "equal" if any(array.packing for array in arrays.values()) else "after",
    )


def read_master(
    target: str, options: OpenOptions, policy: AddressPolicy, replaced: Replaced
) -> Aggregated:
    """Read an aggregation, or references as one of variables of files.

    Parameters
    ----------
    options
        How to open it.
    policy
        What the addresses in it mean.
    replaced
        What it may not name.

    Raises
    ------
    NCZarrError
        As `read_aggregation`, and as `aggregated_references`.
    """
    with open_with(target, options) as opened:
        replaced.refuse_below(target, opened, options)
        keys = references_of(opened)
        if keys is None:
            return read_aggregation(target, opened)
        return aggregated_references(opened, keys, policy)


def content(found: Aggregated, dialect: WritableDialect) -> Content:
    """Return what a master holds of an aggregation.

    Raises
    ------
    ExportError
        If the dialect cannot say what there is.
    """
    found.check_dimensions(v for v in found.variables() if v.path in found.tables)
    root = found.hierarchy.root
    data = [v for v in found.variables() if v.path in found.values]
    dimensions = held_dimensions((d for g in root.walk() for d in g.dimensions.values()), data)
    members: list[Member] = []
    keeps = found.packing == "after" or (found.packing == "equal" and dialect.keeps_packing)
    for variable in found.variables():
        own = tuple(dimensions[d.path] for d in variable.dimensions)
        variable = replace(without_enum(_unmarked(variable)), dimensions=own)
        table = found.tables.get(variable.path)
        if table is None:
            members.append(in_one_chunk(variable, found.values[variable.path]))
        else:
            members += aggregation(variable if keeps else unpacked(variable), table, dialect)
    attributes = conventions(root.attributes, dialect)
    return Content(attributes, members, list(dimensions.values()), found.group_attributes())


def _unmarked(variable: Variable) -> Variable:
    """Return a variable whose strings are not marked as text, as bytes of pure Zarr are."""
    if variable.nc_type != "string":
        return variable
    attributes = {k: own for k, own in variable.attributes.items() if k != "_Encoding"}
    return replace(variable, attributes=attributes)
