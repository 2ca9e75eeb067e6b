"""Our data model as a netCDF-4 file, through the library that netCDF4-python brings."""

from __future__ import annotations

# paths are text, as everywhere
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.changes.create import partial_path, remove_leftovers, remove_partial
from nczarr_fsspec.errors import DatasetExistsError, FormatError, StoreError
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.lacking import Lacking
from nczarr_xarray.export.netcdf_variables import (
    create_variable,
    group_at,
    texts_as_stored,
    write_attributes,
)
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.stored import netcdf_text, stored_as
from nczarr_xarray.export.stored_source import StoredSource
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    Group,
    Variable,
    described,
    readable,
)


def write_netcdf(opened: Opened, path: str, progress: Progress, *, overwrite: bool = False) -> None:
    """Copy an open dataset to a netCDF-4 file; an old file stays until the new one is complete.

    Raises
    ------
    ImportError
        If netCDF4 is not installed.
    DatasetExistsError
        If there is something and it must not be overwritten.
    FormatError
        If a variable cannot be read, or netCDF has no such type.
    StoreError
        If the file cannot be written.
    """
    try:
        import netCDF4
    except ImportError:
        raise ImportError(f"{path}: a netCDF file needs netCDF4: pip install netCDF4") from None
    if os.path.exists(path) and not overwrite:
        raise DatasetExistsError(path, "is there already; --overwrite replaces it")
    variables = [v for g in opened.hierarchy.root.walk() for v in g.variables.values()]
    for variable in variables:
        check(variable)
    for group in opened.hierarchy.root.walk():
        check_names(group)
    opened = replace(opened, exact=True)
    lacking = Lacking(netcdf4=True)
    lacking.note_hidden(opened.hierarchy)
    held = {
        group.path: Held(
            lacking.attributes(group.path, group.attributes),
            [lacking.variable(netcdf_text(variable)) for variable in group.variables.values()],
        )
        for group in opened.hierarchy.root.walk()
    }
    lacking.tell(path)
    progress.expect(len(variables))
    place = os.path.realpath(path)
    remove_leftovers(place)
    new = partial_path(place)
    try:
        with netCDF4.Dataset(new, "x", format="NETCDF4") as file:
            for group in opened.hierarchy.root.walk():
                _write_group(file, opened, group, held[group.path], progress)
        os.replace(new, path)
    except (OSError, RuntimeError) as error:  # netCDF4 raises both kinds
        if isinstance(error, StoreError):
            raise
        raise StoreError(path, f"cannot be written: {error}") from error
    finally:
        remove_partial(new)


def check(variable: Variable) -> None:
    """Raise if a variable cannot be read, or has no form here."""
    if variable.error is not None:
        raise variable.error
    if variable.nc_type is None:
        reason = f"holds {described(variable.dtype)}, which are not copied to netCDF"
        raise FormatError(variable.path, f"{reason} (nccopy copies such netCDF-4 files)")


def check_names(group: Group) -> None:
    """Raise if something in a group has a name that netCDF does not take."""
    owners: list[Group | Variable] = [group, *group.variables.values()]
    names = [*group.groups, *group.variables, *group.dimensions, *group.types]
    for name in (*names, *(name for owner in owners for name in owner.attributes)):
        if readable(name) != name:
            reason = "is not UTF-8, as names must be in netCDF: give it another name first"
            raise FormatError(group.path, f"the name {name!r} {reason}")


class Held(NamedTuple):
    """The part of a group that a netCDF-4 file can hold."""

    attributes: Mapping[str, Attribute]
    variables: list[Variable]


def _write_group(file: Any, opened: Opened, group: Group, held: Held, progress: Progress) -> None:
    target = group_at(file, group.path)
    for enum in group.types.values():
        target.createEnumType(NC_DTYPES[enum.nc_type], enum.name, dict(enum.members))
    for dimension in group.dimensions.values():
        target.createDimension(dimension.name, None if dimension.unlimited else dimension.size)
    write_attributes(target, held.attributes.values())
    for variable in held.variables:
        _write_variable(file, opened, variable)
        progress.advance()


def _write_variable(file: Any, opened: Opened, variable: Variable) -> None:
    stored = stored_as(opened, variable)
    made = create_variable(file, variable, stored)
    source = StoredSource(opened.reader(variable), variable, stored.chunk_shape)
    for part in source.slabs(stored.chunk_shape):
        if not math.prod(p.stop - p.start for p in part):
            continue
        values = source.read(part)
        if variable.nc_type == "string":
            values = texts_as_stored(values)
        if variable.enum is not None:
            # netCDF4 refuses values that are no members, as some fill values are; netCDF-C does not
            made.datatype.enum_dict |= {str(n): n for n in np.unique(values).tolist()}
        made[part or ...] = values if part else values[()]
