"""Copies to netCDF files: netCDF-4, and classic ones (CDF-1, CDF-2 and CDF-5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import FormatError, UsageError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.chunk_writer import ArrayWriter, Done
from nczarr_xarray.export.contents import Contents, Item, StoredSource
from nczarr_xarray.export.copy.classic import as_classic
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.form import cmip7
from nczarr_xarray.export.form.lacking import COMPRESSORS, UNUSED, Lacking
from nczarr_xarray.export.form.storage import StorageProperties, netcdf_text, stored_as
from nczarr_xarray.export.hdf5_chunks import Written, chunk_writers, need_h5py
from nczarr_xarray.export.netcdf_file import declare, existing_variable, need_netcdf4, new_file, put
from nczarr_xarray.export.options import CopyOptions
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.steps import Step, plan_step
from nczarr_xarray.formats.nczarr.limits import NAME
from nczarr_xarray.model import ChunkedArray, Group, Variable, described, grid_of, readable

#: How a variable is stored in a file.
Stored = Callable[[Variable], StorageProperties]


def copy(request: CopyRequest) -> None:
    """Copy to a file of the format that was asked for; an old one stays until it is complete."""
    target = FilePlace.find(request.target, request.target_options)
    given = request.options
    if any(config["id"] not in ("shuffle", "zlib") for config in given.compress or ()):
        reason = "netCDF-4 files that every program reads have zlib: use it, or none"
        raise UsageError("--compress", reason)
    if not request.overwrite:
        target.must_be_new()
    lacking, model = Lacking(netcdf4=True), request.format
    with request.open() as source, request.progress() as progress:
        if model != "NETCDF4":
            source = as_classic(source, target.url, lacking, model)
        need_netcdf4(target.url)
        if model == "NETCDF4":
            need_h5py(target.url)
        for variable in source.hierarchy.root.all_variables():
            check(variable)
        for group in source.hierarchy.root.walk():
            check_names(group)
        source = replace(source, exact=True)
        stored = _Storing(source, given)
        contents = _contents(source, lacking, stored if model == "NETCDF4" else None)
        lacking.tell(target.url)
        fill = partial(fill_file, target.url, source, contents.root, stored, request, progress)
        target.write(fill, overwrite=request.overwrite)


def fill_file(
    url: str,
    source: Opened,
    root: Group,
    stored: Stored,
    request: CopyRequest,
    progress: Progress,
    path: str,
) -> None:
    """Write a file at a path of this machine."""
    model = request.format

    def planned(writers: Iterable[Written]) -> list[Step]:
        steps = []
        for variable, writer in writers:
            item = Item(variable, StoredSource(source.reader(variable), variable))
            steps.append(plan_step(item, writer, request.memory, passes=1))
        for step in steps if request.memory is not None else ():
            request.tell(str(step))
        progress.expect(sum(step.nbytes for step in steps))
        return steps

    with new_file(path, model, url) as file:
        if model != "NETCDF4":
            file.set_fill_off()  # all values are written
        made = declare(file, root, stored)
        if model != "NETCDF4":
            steps = planned((v, _LibraryWriter(v, stored(v), url, own)) for v, own in made)
            _run(steps, progress)
    if model == "NETCDF4":
        with chunk_writers(path, url, root) as writers:
            steps = planned(writers.values())
            others = [v for v in root.all_variables() if v.path not in writers]
            left = {v.path: _LibraryWriter(v, stored(v), url) for v in others}
            last = planned(zip(others, left.values(), strict=True))
            _run(steps, progress)
        if last:
            with new_file(path, model, url, mode="r+") as file:
                for variable in others:
                    left[variable.path].made = existing_variable(file, variable)
                _run(last, progress)
    source.refuse_changed()


def _run(steps: Iterable[Step], progress: Progress) -> None:
    for step in steps:
        for part in range(step.parts):
            step.run(part, lambda _: None)
            progress.advance(step.nbytes // step.parts)


class _LibraryWriter(ArrayWriter):
    """Writes values through netCDF4, which encodes them.

    Parameters
    ----------
    made
        The variable of the file, if that is open already.
    """

    def __init__(
        self, variable: Variable, stored: StorageProperties, url: str, made: Any = None
    ) -> None:
        super().__init__()
        path, chunks = variable.path.strip("/"), stored.chunk_shape
        self.array = ChunkedArray(path, variable.shape, chunks, variable.dtype)
        self.store = MappingWriter({}, url)
        self.start = (0,) * len(chunks)
        self.made = made
        self._variable = variable

    def write_block(
        self, values: np.ndarray, first: tuple[int, ...], threads: int | None, done: Done
    ) -> int:
        ends = zip(first, values.shape, strict=True)
        put(self.made, self._variable, values, tuple(slice(at, at + n) for at, n in ends))
        return 1


class _Storing:
    """Decides how variables are stored: as in the source, but for what is asked for."""

    def __init__(self, opened: Opened, options: CopyOptions) -> None:
        self._opened = opened
        self._options = options

    def __call__(self, variable: Variable) -> StorageProperties:
        stored, asked, shape = stored_as(self._opened, variable), self._options, variable.shape
        if not shape:
            return stored
        itemsize = 8 if stored.dtype.hasobject else stored.dtype.itemsize
        wanted = asked.chunk_shape(variable, itemsize)
        codecs = asked.codecs(stored.dtype) if not stored.dtype.hasobject else None
        codecs = stored.codecs if codecs is None else codecs
        root = self._opened.hierarchy.root
        # check_cmip7_packing fails for data without chunks
        divided = codecs or (asked.cmip7 and variable.path == cmip7.data(root))
        if stored.contiguous and wanted in (None, shape) and not divided:
            return stored
        chunks = wanted or stored.chunk_shape
        if asked.cmip7:
            chunks = cmip7.chunk_shape(root, variable, chunks)
        whole = variable.nc_type == "string" and not any(d.unlimited for d in variable.dimensions)
        if whole and (asked.cmip7 or math.prod(grid_of(shape, chunks)) == 1):
            # netCDF4 writes texts behind the data, and so would be the index of their chunks
            return replace(stored, contiguous=True)
        return replace(stored, chunk_shape=chunks, codecs=codecs, contiguous=False)


def _contents(opened: Opened, lacking: Lacking, stored: Stored | None) -> Contents:
    """Return what a file holds of a dataset; note what it holds in another form.

    Parameters
    ----------
    stored
        How variables are stored, if the file has codecs.
    """
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
            for config in stored(variable).codecs if stored is not None else ():
                row = codec(config["id"])
                if row.compressor and row.options is None:
                    lacking.note(COMPRESSORS, f"{variable.path} ({row.id})")
    return contents


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
