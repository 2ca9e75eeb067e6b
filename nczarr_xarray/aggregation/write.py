"""Write a master: what it holds, and its tables in the spelling of a dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.undo import on_error
from nczarr_xarray.aggregation.combine import Aggregated
from nczarr_xarray.export.cfa.cfa_task import CfaTask
from nczarr_xarray.export.cfa.claim import Claim
from nczarr_xarray.export.cfa.content import Content, FileKind, Member, held
from nczarr_xarray.export.cfa.existing_master import referred_keys
from nczarr_xarray.export.cfa.master import (
    aggregation,
    conventions,
    dialect_called,
    held_dimensions,
    keeps_packing,
    unpacked,
)
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.formats.nczarr.enums import as_flags
from nczarr_xarray.model import Attribute, Variable


class Plan(NamedTuple):
    """What a master is to say, in which version of the convention, and what kind of file it is."""

    found: Aggregated
    version: str
    kind: FileKind


def write(place: MasterPlace, read: Callable[[], Plan], *, replaces: bool) -> None:
    """Write the master in one step.

    Parameters
    ----------
    read
        Is called when other writers are kept out: it may read the present master.
    replaces
        Whether there may be a master already.

    Raises
    ------
    ConflictError
        If another writer is at work.
    DatasetExistsError
        If there is something that must not be replaced.
    ExportError
        If the dialect cannot say what there is.
    StoreError
        If the store fails; what was there stays.
    """
    if not replaces:
        place.must_be_new()
    referred = partial(referred_keys, place)
    claim = Claim.begin(place, referred)
    with on_error(claim.release):
        if not replaces:
            place.must_be_new()
        plan = read()
        content = _content(place, plan.found, plan.version)
    task = CfaTask(place, plan.kind, claim, referred, [], content, replaces)
    with Progress("aggregate", shown=False, unit=" files") as progress:
        task.run(progress)


def _content(place: MasterPlace, found: Aggregated, version: str) -> Content:
    """Return what the master holds.

    Raises
    ------
    ExportError
        If the dialect cannot say what there is.
    """
    dialect = dialect_called(version, place.url)
    root = found.hierarchy.root
    data = [v for v in found.variables() if v.path in found.values]
    dimensions = held_dimensions((d for g in root.walk() for d in g.dimensions.values()), data)
    members: list[Member] = []
    keeps = found.packing == "after" or (found.packing == "equal" and keeps_packing(dialect))
    for variable in found.variables():
        own = tuple(dimensions[d.path] for d in variable.dimensions)
        variable = replace(plain(variable), dimensions=own)
        table = found.tables.get(variable.path)
        if table is None:
            members.append(held(variable, found.values[variable.path]))
        else:
            members += aggregation(variable if keeps else unpacked(variable), table, dialect)
    attributes = conventions(root.attributes, dialect)
    _check_names(place, members)
    return Content(attributes, members, list(dimensions.values()), group_attributes(found))


def _check_names(place: MasterPlace, members: list[Member]) -> None:
    """Raise if a variable of a table has the name of another variable."""
    seen: set[str] = set()
    for member in members:
        path = member.variable.path
        if path in seen:
            raise ExportError(place.url, f"would hold {path} twice: give the variable another name")
        seen.add(path)


def group_attributes(found: Aggregated) -> dict[str, dict[str, Attribute]]:
    """Return the attributes of groups below the root."""
    groups = (group for group in found.hierarchy.root.walk() if group.path != "/")
    return {group.path: group.attributes for group in groups}


def plain(variable: Variable) -> Variable:
    """Return a variable that masters hold, with its own attributes: enums are plain numbers."""
    if variable.enum is None:
        return replace(variable, attributes=dict(variable.attributes))
    return replace(variable, attributes=as_flags(variable), enum=None)
