"""Copies to netCDF files: netCDF-4, and classic ones (CDF-1, CDF-2 and CDF-5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.text import format_size
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Contents, StoredSource
from nczarr_xarray.export.copy.classic import as_classic
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.form.lacking import COMPRESSORS, UNUSED, Lacking
from nczarr_xarray.export.form.storage import netcdf_text, stored_as
from nczarr_xarray.export.netcdf_file import declare, need_netcdf4, new_file, put
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.rechunk import Rechunking, boxes
from nczarr_xarray.export.steps import one_pass, room
from nczarr_xarray.formats.nczarr.limits import NAME
from nczarr_xarray.model import Group, Variable, described, readable


def copy(request: CopyRequest) -> None:
    """Copy to a file of the format that was asked for; an old one stays until it is complete."""
    target = FilePlace.find(request.target, request.target_options)
    if not request.overwrite:
        target.must_be_new()
    lacking, model, memory = Lacking(netcdf4=True), request.format, request.memory
    with request.open() as source, request.progress() as progress:
        if model != "NETCDF4":
            source = as_classic(source, target.url, lacking, model)
        need_netcdf4(target.url)
        variables = [*source.hierarchy.root.all_variables()]
        for variable in variables:
            check(variable)
        for group in source.hierarchy.root.walk():
            check_names(group)
        source = replace(source, exact=True)
        contents = _contents(source, lacking, netcdf4=model == "NETCDF4")
        lacking.tell(target.url)
        progress.expect(sum(map(_nbytes, variables)))
        plan = {v.path: _planned(source, v, memory) for v in contents.root.all_variables()}
        if memory is not None:
            for variable in variables:
                said = one_pass(plan[variable.path].rechunking)
                request.tell(
                    f"{variable.path.strip('/')}: {format_size(_nbytes(variable))}, {said}"
                )
        # if memory is limited, parts are whole chunks: none need be kept
        cache = None if memory is None else 0
        fill = partial(_fill, target.url, source, contents, plan, model, cache, progress)
        target.write(fill, overwrite=request.overwrite)


def _contents(opened: Opened, lacking: Lacking, *, netcdf4: bool) -> Contents:
    """Return what a file holds of a dataset; note what it holds in another form."""
    lacking.note_hidden(opened.hierarchy)
    root = opened.hierarchy.root
    used = {d for variable in root.all_variables() for d in variable.dimensions}
    contents = Contents()
    for group in root.walk():
        held = contents.group(group.path)
        held.types = group.types
        for name, dimension in group.dimensions.items():
            if dimension.unlimited and dimension.size and dimension not in used:
                lacking.note(UNUSED, dimension.path)
            else:
                held.dimensions[name] = dimension
        held.attributes = lacking.attributes(group.path, group.attributes)
        for name, variable in group.variables.items():
            held.variables[name] = lacking.variable(netcdf_text(variable))
            for config in stored_as(opened, variable).codecs if netcdf4 else ():
                row = codec(config["id"])
                if row.compressor and row.options is None:
                    lacking.note(COMPRESSORS, f"{variable.path} ({row.id})")
    return contents


def _fill(
    url: str,
    opened: Opened,
    contents: Contents,
    plan: Mapping[str, Planned],
    model: str,
    chunk_cache: int | None,
    progress: Progress,
    path: str,
) -> None:
    with new_file(path, model, url) as file:
        if not model.startswith("NETCDF4"):
            file.set_fill_off()  # all values are written
        stored = partial(stored_as, opened)
        for variable, made in declare(file, contents.root, stored, chunk_cache):
            _write_values(plan[variable.path], variable, made, progress)
        opened.refuse_changed()


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
        if NAME.fullmatch(name) is None:
            reason = "is not one that netCDF allows: give it another name first"
            raise FormatError(group.path, f"the name {name!r} {reason}")


class Planned(NamedTuple):
    """How the data of a variable are copied."""

    source: StoredSource
    rechunking: Rechunking


def _planned(opened: Opened, variable: Variable, memory: int | None) -> Planned:
    chunks = stored_as(opened, variable).chunk_shape
    source = StoredSource(opened.reader(variable), variable)
    nbytes = None if memory is None else room(source, chunks, memory)
    return Planned(source, source.rechunking(chunks, nbytes))


def _nbytes(variable: Variable) -> int:
    """Return the bytes of the values of a variable, texts taken for pointers as they are."""
    return math.prod(variable.shape) * variable.dtype.itemsize


def _write_values(planned: Planned, variable: Variable, made: Any, progress: Progress) -> None:
    source, rechunking = planned
    for part in boxes(rechunking.shape, rechunking.parts):
        if not math.prod(p.stop - p.start for p in part):
            continue
        values = source.read(part)
        put(made, variable, values, part)
        progress.advance(values.nbytes)
