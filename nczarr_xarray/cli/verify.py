"""``nczarr copy --verify``: the copy is compared with its source."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import LossWarning
from nczarr_xarray.cli.compare import show
from nczarr_xarray.cli.selection import selection
from nczarr_xarray.cli.target import open_named

if TYPE_CHECKING:
    from nczarr_xarray.dataset.opened import Opened


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--verify``."""
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the copy again and compare it with SRC, as nczarr compare does",
    )


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


def verify(args: argparse.Namespace, word: str, own: Collection[str], lost: Collection[str]) -> int:
    """Do what was asked for after copying; return 1 if source and copy differ.

    Parameters
    ----------
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
    from nczarr_xarray.export.classic import as_classic
    from nczarr_xarray.export.form.lacking import Lacking
    from nczarr_xarray.export.selection import as_netcdf_names, suited
    from nczarr_xarray.tools.compare import compare

    with open_named(args, args.source, args.source_options) as opened:
        wanted = selection(args)
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
