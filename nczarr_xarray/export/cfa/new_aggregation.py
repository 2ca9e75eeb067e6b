"""Writing a new aggregation."""

from __future__ import annotations

from collections.abc import Callable

import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.cfa.cfa_request import CfaRequest
from nczarr_xarray.export.cfa.cfa_task import CfaTask, Draft, Flow
from nczarr_xarray.export.cfa.content import Content, Member
from nczarr_xarray.export.cfa.existing_master import removable_keys
from nczarr_xarray.export.cfa.fragment_writer import FragmentWriter, beside
from nczarr_xarray.export.cfa.master import (
    address_of,
    aggregation,
    as_fragments,
    conventions,
    dialect_called,
)
from nczarr_xarray.export.cfa.master_place import OWNER, MasterPlace, Names
from nczarr_xarray.export.cfa.parts import Divided, Divider, Parts
from nczarr_xarray.export.cfa.split import table
from nczarr_xarray.export.form.new import Options
from nczarr_xarray.formats.cfa.dialect import OLDEST, WritableDialect
from nczarr_xarray.model import Attribute, Fragments


def plan_new(
    place: MasterPlace,
    dataset: xr.Dataset,
    request: CfaRequest,
    before: Callable[[], None] | None = None,
) -> CfaTask:
    """Plan the writing of a new aggregation, in the place of what is there.

    Parameters
    ----------
    before
        As of `CfaTask`.

    Raises
    ------
    NCZarrError
        If something cannot be written, or must not be replaced.
    """
    dialect = dialect_called(request.version or OLDEST, place.url)
    kind = request.master_kind
    if kind == "netCDF3" and place.is_tree:
        raise ExportError(
            place.url, "is named like a tree, and a CFA3 master is one file: name it .nca"
        )
    fragments = request.fragment_format or kind
    classic = "netCDF3" in (kind, fragments)
    divider = Divider(
        classic=classic,
        are_files=(not place.is_tree, fragments != "NCZarr"),
        most=request.most,
        shape=request.subarray_shape,
    )
    asked = Options(
        request.encoding or {}, request.unlimited_dims, request.encoded, request.more_along
    )
    parts = divider.parts(place.url, dataset, asked)
    replaces = request.mode == "w"

    def draft() -> Draft:
        members = parts.members()
        old = removable_keys(place) if replaces else []
        names = place.names(fragments, request.naming, replaces=bool(old))
        flows = [flow_of(place, one, names, parts, members, dialect) for one in parts.divided]
        tables = []
        for flow in flows:
            own = table_of(place, flow, dialect, relative=request.relative)
            tables.append(aggregation(flow.divided.item.variable, own, dialect))
        attributes = conventions(parts.attributes, dialect) if flows else parts.attributes
        everything = [*members, *(member for one in tables for member in one)]
        master = Content(attributes, everything, parts.dimensions)
        return Draft(kind, master, flows, old)

    return CfaTask.plan(place, draft, replaces=replaces, before=before)


def table_of(
    place: MasterPlace, flow: Flow, dialect: WritableDialect, *, relative: bool | None
) -> Fragments:
    """Return the table of the fragments that are written of a variable."""
    writer = flow.writer
    addresses = [
        address_of(place, place.file.folder + key, dialect, relative=relative)
        for key in writer.keys
    ]
    return table(flow.divided.edges, addresses, writer.variable.name, writer.kind)


def flow_of(
    place: MasterPlace,
    divided: Divided,
    names: Names,
    parts: Parts,
    members: list[Member],
    dialect: WritableDialect,
    first: tuple[int, ...] | None = None,
    old: VariableReader | None = None,
) -> Flow:
    """Return what writes the fragments of a variable.

    Parameters
    ----------
    first
        Place of the first fragment in the grid of the aggregation.
    old
        As of `FragmentWriter`.
    """
    variable, grid = divided.item.variable, divided.grid
    keys = names.keys(variable.name, first or (0,) * len(grid), grid)
    around = beside(variable, members, parts.coordinates)
    item = divided.item._replace(variable=as_fragments(variable, dialect))
    own = divided._replace(item=item)
    owner = Attribute(OWNER, "char", place.name_in_fragments)
    attributes = [*parts.attributes.values(), owner]
    writer = FragmentWriter(place.store, own, names.kind, keys, attributes, around, old)
    return Flow(divided, writer)
