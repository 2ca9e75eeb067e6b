"""CDL, the text of ``ncdump``, of anything read into the netCDF-4 data model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.cli.cdl_data import Read, write_data
from nczarr_xarray.cli.cdl_text import name
from nczarr_xarray.cli.cdl_values import attribute_value, cdl_type, zarr_type
from nczarr_xarray.cli.text import printable
from nczarr_xarray.model import Attribute, Dimension, Group, Variable

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: path of each group from the root to the current one, and the dimensions it sees by name
Scopes: TypeAlias = list[tuple[str, Mapping[str, Dimension]]]


def write_cdl(
    title: str,
    root: Group,
    write: Callable[[str], object],
    read: Read | None = None,
    selected: Collection[str] | None = None,
) -> list[NCZarrError]:
    """Write a dataset as CDL, as ncdump does.

    What CDL cannot say stands in comments: the dtype of a variable whose type
    only Zarr has, and why something cannot be read.

    Parameters
    ----------
    title
        What to call the dataset (see `dataset_name`).
    write
        Takes pieces of text.
    read
        Reads a block of a variable; None to write the header only.
    selected
        Paths of the variables whose data to write; None for all.

    Returns
    -------
    list of NCZarrError
        Why something is missing that should have been written.
    """
    errors: list[NCZarrError] = []

    def write_group(group: Group, scopes: Scopes, indent: int) -> None:
        visible = {**(scopes[-1][1] if scopes else {}), **group.dimensions}
        scopes = [*scopes, (group.path, visible)]
        for line in _header(group, scopes):
            write(f"{' ' * indent}{line}\n" if line else "\n")
        if read is not None and group.variables:
            write(f"{' ' * indent}data:\n")
            for variable in group.variables.values():
                if selected is None or variable.path in selected:
                    write_variable(variable, read, indent)
        for child in group.groups.values():
            write(f"\n{' ' * indent}group: {name(child.name)} {{\n")
            write_group(child, scopes, indent + 2)
            write(f"{' ' * indent}  }} // group {name(child.name)}\n")

    def write_variable(variable: Variable, read: Read, indent: int) -> None:
        if variable.error is None:
            try:
                write_data(variable, read, write, indent)
            except NCZarrError as error:
                errors.append(error)
                write(f"\n  // {printable(str(error))}\n")

    errors += [
        variable.error
        for group in root.walk()
        for variable in group.variables.values()
        if variable.error is not None and (selected is None or variable.path in selected)
    ]
    write(f"netcdf {name(title)} {{\n")
    write_group(root, [], 0)
    write("}\n")
    return errors


def dataset_name(target: str) -> str:
    """The name ncdump gives a dataset: the last part of its path without the last extension.

    >>> dataset_name("file:///data/run.1.file#mode=nczarr,file")
    'run.1'
    """
    path = target
    if _URL.match(target):
        path = re.split("[?#]", target, maxsplit=1)[0].split("::")[-1].partition("://")[2]
    last = path.replace(os.sep, "/").rstrip("/").rsplit("/", 1)[-1]
    return last.rpartition(".")[0] if "." in last else last


def _header(group: Group, scopes: Scopes) -> Iterator[str]:
    """Lines of the declarations of a group, not indented."""
    if group.dimensions:
        yield "dimensions:"
    for dim in group.dimensions.values():
        size = f"UNLIMITED ; // ({dim.size} currently)" if dim.unlimited else f"{dim.size} ;"
        yield f"\t{name(dim.name)} = {size}"
    if group.variables:
        yield "variables:"
    for variable in group.variables.values():
        yield f"\t{_declaration(variable, scopes)}"
        for attribute in variable.attributes.values():
            yield f"\t\t{_attribute(attribute, name(variable.name))}"
    if group.attributes:
        yield ""
        yield f"// {'global' if group.path == '/' else 'group'} attributes:"
    for attribute in group.attributes.values():
        yield f"\t\t{_attribute(attribute)}"


def _declaration(variable: Variable, scopes: Scopes) -> str:
    dims = [_reference(dim, scopes) for dim in variable.dimensions]
    shape = f"({', '.join(dims)})" if dims else ""
    if variable.error is not None:
        return f"// {name(variable.name)}{shape} {printable(str(variable.error))}"
    declared = f"{cdl_type(variable)} {name(variable.name)}{shape} ;"
    if variable.nc_type is None:
        declared += f" // Zarr type: {zarr_type(variable.dtype)}"
    return declared


def _reference(dim: Dimension, scopes: Scopes) -> str:
    """How the last group of `scopes` refers to `dim`.

    By name if nothing hides it. Else ncdump takes the path of the nearest group
    that does see it, which need not be the group that declares it.
    """
    found = (path for path, visible in reversed(scopes) if visible.get(dim.name) == dim)
    path = next(found, dim.group)
    if path == scopes[-1][0]:
        return name(dim.name)
    return f"{name(path).rstrip('/')}/{name(dim.name)}"


def _attribute(attribute: Attribute, owner: str = "") -> str:
    """One attribute; only type string is spelt out, and not if there are no strings."""
    prefix = "string " if attribute.type == "string" and len(attribute.value) else ""
    return f"{prefix}{owner}:{name(attribute.name)} = {attribute_value(attribute)} ;"
