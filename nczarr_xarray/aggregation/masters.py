"""Masters in the terms of `combine`: those that are there, and what one to be written holds."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.from_references import aggregated_references, references_of
from nczarr_xarray.aggregation.replaced import Replaced
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
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
from nczarr_xarray.formats.cfa.table import packing_of
from nczarr_xarray.formats.cfa.variables import aggregated
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import FragmentArray, Variable

#: Fragments that are asked at a time whether they are packed.
_THREADS = 32


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
    target: str,
    options: OpenOptions,
    policy: AddressPolicy,
    replaced: Replaced,
    dialect: WritableDialect | None,
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
    dialect
        As what it is written; None as references.

    Raises
    ------
    ExportError
        If values would become others, because the dialect unpacks fragments and its own does not,
        or the other way round.
    NCZarrError
        As `read_aggregation`, and as `aggregated_references`.
    """
    with open_with(target, options) as opened:
        replaced.refuse_below(target, opened, options)
        keys = references_of(opened)
        if keys is not None:
            return aggregated_references(opened, keys, policy)
        if dialect is not None:
            _check_packing(target, opened, dialect)
        return read_aggregation(target, opened)


def _check_packing(url: str, opened: Opened, dialect: WritableDialect) -> None:
    """Raise if packed values would become others; opens fragments only where there may be some."""
    for variable, array in aggregated(opened.hierarchy):
        unpacks = array.packing is None
        is_scaled = packing_of(variable).keys() - {"_Unsigned"}
        if unpacks != dialect.keeps_packing or not is_scaled or array.fragments.values is not None:
            continue
        addresses = array.fragments.addresses.tolist()
        numbers = [number for number, one in enumerate(addresses) if one is not None]
        with WaitingThreads(_THREADS, thread_name_prefix="nczarr-fragment") as pool:
            found = [*pool.map(partial(_packed, array), numbers)]
        if unpacks in found:
            position = array.fragments.position(numbers[found.index(unpacks)])
            raise ExportError(
                url,
                f"packs {variable.path}, and fragment {position} is {'' if unpacks else 'not '}"
                f"packed, which version {dialect.name!r} cannot say: write the data anew, as "
                "nczarr copy --format CFA does",
            )


def _packed(array: FragmentArray, number: int) -> bool:
    """Tell whether a fragment says how it is packed."""
    assert isinstance(array.opener, FragmentDatasets)
    *others, last = array.fragments.places(number)
    for place in others:
        with suppress(NCZarrError):
            return bool(packing_of(array.opener.open(place).variable))
    return bool(packing_of(array.opener.open(last).variable))


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
