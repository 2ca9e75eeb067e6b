"""``nczarr compare``: what differs between two datasets; and ``copy --verify``, which does so."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import LossWarning, NCZarrError
from nczarr_fsspec.text import printable
from nczarr_xarray.cli.arguments import add_addresses, add_option, open_named
from nczarr_xarray.cli.dump import select
from nczarr_xarray.cli.main import NewParser, report

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.export.copy.selection import Selection
    from nczarr_xarray.tools.compare import Comparison


def add_compare(new: NewParser) -> None:
    """Make the parser of ``nczarr compare``."""
    parser = new(
        examples=[
            "nczarr compare run.nc s3://bucket/run.nczarr --var tas --sample 20",
        ],
        description="Compare structure, attributes with their types, and values to the last bit. "
        "Formats, chunks, codecs, byte order and the order of variables are no differences. The "
        "exit status is 0 if the datasets are equal, 1 if they differ, 2 if that is not known.",
    )
    parser.add_argument("a", metavar="A", help="a path or URL")
    parser.add_argument("b", metavar="B", help="a path or URL")
    parser.repeated("--var", "NAME", "compare this variable of A, and its attributes, only")
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="compare N blocks of each variable, always the same ones, instead of all",
    )
    parser.add_argument(
        "--tolerance",
        default="0",
        metavar="T",
        help="how much numbers may differ: 0.01, or 1%% of their magnitude (default: not at all)",
    )
    parser.flag("--encoding", "compare chunks, codecs and byte order as well")
    parser.flag("--json", "print the report as JSON")
    add_addresses(parser)
    add_option(parser, "-o", "options_a", "storage option of A")
    add_option(parser, "-O", "options_b", "storage option of B")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; return 0 if all is equal, 1 if not, 2 if that could not be found out."""
    try:
        comparison = _compared(args)
    except (NCZarrError, ImportError) as error:
        report(error, debug=args.debug)
        return 2
    show(comparison, as_json=args.json)
    return comparison.status


def show(comparison: Comparison, *, as_json: bool = False) -> None:
    """Print a report."""
    if as_json:
        print(json.dumps(comparison.as_json(), indent=1))
    else:
        for line in comparison.lines():
            print(printable(line))


def _compared(args: argparse.Namespace) -> Comparison:
    from nczarr_xarray.tools.compare import compare

    with open_named(args, args.a, args.options_a) as a:
        chosen: dict[str, Any] = {"sample": args.sample}
        if args.var is not None:
            chosen["variables"] = select(a.hierarchy.root, args.var)
        with open_named(args, args.b, args.options_b) as b:
            return compare(a, b, tolerance=args.tolerance, encoding=args.encoding, **chosen)


@contextmanager
def announced() -> Iterator[set[str]]:
    """Collect the names of what warnings say is lost, while they are shown as ever."""
    lost: set[str] = set()
    show = warnings.showwarning

    def keep(message: Warning | str, *rest: Any, **others: Any) -> None:
        if isinstance(message, LossWarning):
            lost.update(message.names)
        show(message, *rest, **others)

    warnings.showwarning = keep
    try:
        yield lost
    finally:
        warnings.showwarning = show


def verify(
    args: argparse.Namespace,
    wanted: Selection,
    word: str,
    own: Collection[str],
    lost: Collection[str],
) -> int:
    """Do what was asked for after copying; return 1 if source and copy differ.

    Parameters
    ----------
    wanted
        What was copied of the source.
    word
        The format of the copy. A classic one is compared with what classic netCDF is to hold of
        the source, an aggregation with integers in place of enums.
    own
        Global attributes that the copy has to have for its kind, whatever the source has.
    lost
        What the copy has announced to be lost, as of `LossWarning`: it is no difference.
    """
    if not args.verify:
        return 0
    from nczarr_xarray.export.copy.netcdf import as_classic
    from nczarr_xarray.export.form.lacking import Lacking, as_netcdf_names, suited
    from nczarr_xarray.tools.compare import compare

    with open_named(args, args.source, args.source_options) as opened:
        source = wanted.of(suited(opened, word, wanted.variables))
        source = as_netcdf_names(source, word)
        original = source
        if word.startswith("NETCDF3"):
            lacking = Lacking(netcdf4=True)  # which was told while copying
            source = as_classic(source, args.target, lacking, word)
        with open_named(args, args.target, args.target_options) as target:
            sides = source, target
            if word == "CFA":
                sides = _with_flags(source), _with_flags(target)
            comparison = compare(*(_without(side, own) for side in sides))
            if original is not source and (paths := _retyped(original, source)):
                # what is stored has become another number; a reader is to get the same
                again = compare(original, target, variables=paths)
                found = [one for one in again.differences if one.property == "decoded value"]
                comparison = replace(comparison, differences=(*comparison.differences, *found))
            comparison = comparison.without(lost)
    if not comparison.equal:
        show(comparison)
    return int(not comparison.equal)


def _retyped(one: Opened, other: Opened) -> list[str]:
    """Return the paths of variables of numbers that have another type in `other`."""
    types = {v.path: v.nc_type for v in other.hierarchy.root.all_variables()}
    variables = one.hierarchy.root.all_variables()
    return [v.path for v in variables if v.dtype.kind in "iu" and types.get(v.path) != v.nc_type]


def _without(opened: Opened, names: Collection[str]) -> Opened:
    """Return an open dataset without some global attributes."""
    root = opened.hierarchy.root
    kept = {name: one for name, one in root.attributes.items() if name not in names}
    changed = replace(opened.hierarchy, root=replace(root, attributes=kept))
    return replace(opened, hierarchy=changed)


def _with_flags(opened: Opened) -> Opened:
    """Return an open dataset whose root has integers with flags in place of enums."""
    from nczarr_xarray.export.cfa.master import without_enum

    root = opened.hierarchy.root
    used = [variable.enum for variable in root.variables.values()]
    types = {name: enum for name, enum in root.types.items() if enum not in used}
    variables = {name: without_enum(variable) for name, variable in root.variables.items()}
    changed = replace(opened.hierarchy, root=replace(root, types=types, variables=variables))
    return replace(opened, hierarchy=changed)
