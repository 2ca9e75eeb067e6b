"""``nczarr dump``: a dataset as CDL, the text that ``ncdump`` prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from nczarr_fsspec.errors import NCZarrError, UsageError
from nczarr_fsspec.places.url import is_url
from nczarr_fsspec.text import did_you_mean, printable
from nczarr_xarray.cli.arguments import add_arguments, open_named
from nczarr_xarray.cli.cdl import (
    Line,
    ReadBlock,
    attribute_value,
    cdl_type,
    columns,
    name,
    owner,
    write_data,
    zarr_type,
)
from nczarr_xarray.cli.main import NewParser, report
from nczarr_xarray.model import Attribute, Dimension, EnumType, Group, Variable


def add_dump(new: NewParser) -> None:
    """Make the parser of ``nczarr dump``."""
    parser = new(
        examples=[
            "nczarr dump -h run.nczarr",
            "nczarr dump -v tas,/g1/pr run.nc",
        ],
        add_help=False,  # -h is the header, as in ncdump
        description="Print a dataset as CDL, the text that ncdump prints of a netCDF-4 file.",
    )
    parser.add_argument("--help", action="help", help="show this help and exit")
    parser.add_argument("-h", dest="header", action="store_true", help="the header, no data")
    parser.add_argument(
        "-v",
        dest="variables",
        metavar="NAME,...",
        help="data of these variables only: a name in any group, or with the end of a path "
        "(g1/v) or a whole one (/g1/v) in front",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the dataset; return 1 if something of it could not be read."""
    # as ncdump, which takes no fill value of pure Zarr for an attribute
    how = {"use_zarr_fill_value_as_mask": False}
    with open_named(args, args.target, args.options, **how) as opened:
        root = opened.hierarchy.root
        selected = None if args.variables is None else select(root, args.variables.split(","))
        read = None if args.header else replace(opened, exact=True).read
        for problem in opened.hierarchy.problems:
            report(problem)
        errors = write_cdl(dataset_name(args.target), root, sys.stdout.write, read, selected)
        sys.stdout.flush()
    for error in errors:
        report(error)
    return 1 if errors else 0


def select(root: Group, names: Sequence[str]) -> frozenset[str]:
    """Return the paths of the variables that `names` mean.

    A name that starts with ``/`` is one path; any other matches the end of
    every path.

    Raises
    ------
    UsageError
        If a name means no variable.
    """
    paths = [variable.path for variable in root.all_variables()]
    selected: set[str] = set()
    for wanted in names:
        if wanted.startswith("/"):
            found = {wanted} & set(paths)
        else:
            found = {path for path in paths if path.endswith(f"/{wanted}")}
        if not found:
            hint = did_you_mean(wanted, (path.lstrip("/") for path in paths))
            raise UsageError(wanted or "-v", f"No such variable{hint}")
        selected |= found
    return frozenset(selected)


@dataclass(frozen=True, slots=True)
class Scope:
    """A group, with the dimensions and types that are visible by name: its own and those above."""

    group: Group
    visible: Mapping[str, Dimension]
    types: Mapping[str, EnumType]


def write_cdl(
    title: str,
    root: Group,
    write: Callable[[str], object],
    read: ReadBlock | None = None,
    selected: Collection[str] | None = None,
) -> list[NCZarrError]:
    """Write a dataset as CDL, as ncdump does.

    Comments hold what CDL cannot express: the dtype of a variable whose type
    only Zarr has, and why something cannot be read.

    Parameters
    ----------
    title
        The name of the dataset (see `dataset_name`).
    write
        Writes a piece of text.
    read
        Reads a block of a variable; None to write the header only.
    selected
        Paths of the variables whose data to write; None for all.

    Returns
    -------
    list of NCZarrError
        The errors of what could not be written.
    """
    errors = [
        variable.error
        for variable in root.all_variables()
        if variable.error is not None and (selected is None or variable.path in selected)
    ]
    write(f"netcdf {name(title)} {{\n")
    scopes: list[Scope] = []
    for group in root.walk():
        depth = 0 if group is root else group.path.count("/")
        margin = "  " * depth
        _close(scopes, depth, write)
        if depth:
            write(f"\n{margin[2:]}group: {name(group.name)} {{\n")
        outer = scopes[-1] if scopes else Scope(group, {}, {})
        visible = {**outer.visible, **group.dimensions}
        scopes.append(Scope(group, visible, {**outer.types, **group.types}))
        for line in _types(group, len(margin)):
            write(f"{margin}{line}\n")
        for line in _header(group, scopes):
            write(f"{margin}{line}\n" if line else "\n")
        if read is None or not group.variables:
            continue
        write(f"{margin}data:\n")
        for variable in group.variables.values():
            if variable.error is None and (selected is None or variable.path in selected):
                if _enum(variable.enum, scopes) is None:
                    variable = replace(variable, enum=None)
                try:
                    write_data(variable, read, write, len(margin))
                except NCZarrError as error:
                    errors.append(error)
                    write(f"\n  // {printable(str(error))}\n")
    _close(scopes, 1, write)
    write("}\n")
    return errors


def _close(scopes: list[Scope], depth: int, write: Callable[[str], object]) -> None:
    """Close all groups at `depth` and below."""
    while len(scopes) > depth:
        group = scopes.pop().group
        write(f"{'  ' * len(scopes)}}} // group {name(group.name)}\n")


def dataset_name(target: str) -> str:
    """Return ncdump's name for a dataset: the last part of its path, without extension.

    >>> dataset_name("file:///data/run.1.file#mode=nczarr,file")
    'run.1'
    """
    if not is_url(target):
        path = os.path.abspath(target)  # of ".", too
    else:
        url = urlsplit(target.rpartition("::")[2])
        # a URL may have a bucket and no path; user and password are not shown
        path = url.path.strip("/") or url.netloc.rpartition("@")[2]
    last = path.replace(os.sep, "/").rstrip("/").rpartition("/")[2]
    return last.rpartition(".")[0] if "." in last else last


def _types(group: Group, indent: int) -> Iterator[str]:
    """Yield the lines that declare the types of a group, not indented."""
    if group.types:
        yield "types:"
    for enum in group.types.values():
        lines: list[str] = []
        line = Line(lines.append, indent + 2)
        head = f"  {enum.nc_type} enum {name(enum.name)} {{"
        line.column = indent + columns(head)
        members = [f"{name(member)} = {value}" for member, value in enum.members.items()]
        line.put([*members[:-1], f"{members[-1]}}} ;"] if members else ["} ;"], ends=True)
        yield head + "".join(lines)


def _enum(enum: EnumType | None, scopes: Sequence[Scope]) -> str | None:
    """Return the reference to an enum in the last of `scopes`; None if none of them declares it."""
    if enum is None or all(scope.group.types.get(enum.name) != enum for scope in scopes):
        return None
    if scopes[-1].types[enum.name] == enum:
        return name(enum.name)
    return f"{name(enum.group).rstrip('/')}/{name(enum.name)}"  # ncdump does not distinguish them


def _header(group: Group, scopes: Sequence[Scope]) -> Iterator[str]:
    """Yield the lines that declare the dimensions and variables of a group, not indented."""
    if group.dimensions:
        yield "dimensions:"
    for dim in group.dimensions.values():
        size = f"UNLIMITED ; // ({dim.size} currently)" if dim.unlimited else f"{dim.size} ;"
        yield f"\t{name(dim.name)} = {size}"
    if group.variables:
        yield "variables:"
    for variable in group.variables.values():
        comment = "" if variable.error is None else "// "
        yield f"\t{comment}{_declaration(variable, scopes)}"
        for attribute in variable.attributes.values():
            yield f"\t\t{comment}{_attribute(attribute, scopes, owner(variable.name))}"
    if group.attributes:
        yield ""
        yield f"// {'global' if group.path == '/' else 'group'} attributes:"
    for attribute in group.attributes.values():
        yield f"\t\t{_attribute(attribute, scopes)}"


def _declaration(variable: Variable, scopes: Sequence[Scope]) -> str:
    dims = [_reference(dim, scopes) for dim in variable.dimensions]
    shape = f"({', '.join(dims)})" if dims else ""
    if variable.error is not None:
        return f"{name(variable.name)}{shape}: {printable(str(variable.error))}"
    kind = _enum(variable.enum, scopes) or cdl_type(variable)
    declared = f"{kind} {name(variable.name)}{shape} ;"
    if variable.nc_type is None:
        declared += f" // Zarr type: {printable(zarr_type(variable.dtype))}"
    return declared


def _reference(dim: Dimension, scopes: Sequence[Scope]) -> str:
    """Return the reference to `dim` in the last group of `scopes`.

    By name if nothing hides it. Else ncdump takes the path of the nearest group
    that does see it, which need not be the group that declares it.
    """
    found = (scope.group for scope in reversed(scopes) if scope.visible.get(dim.name) == dim)
    group = next(found, None)
    if group is scopes[-1].group:
        return name(dim.name)
    path = dim.group if group is None else group.path
    return f"{name(path).rstrip('/')}/{name(dim.name)}"


def _attribute(attribute: Attribute, scopes: Sequence[Scope], owner: str = "") -> str:
    """Spell one attribute; its type is named if it is an enum, or strings and not empty."""
    prefix = "string " if attribute.type == "string" and len(attribute.value) else ""
    enum = _enum(attribute.enum, scopes)
    if enum is not None:
        prefix = f"{enum} "
    else:
        attribute = replace(attribute, enum=None)
    return f"{prefix}{owner}:{name(attribute.name)} = {attribute_value(attribute)} ;"
