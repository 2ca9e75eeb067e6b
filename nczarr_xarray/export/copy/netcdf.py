"""Copies to netCDF files: netCDF-4, and classic ones (CDF-1, CDF-2 and CDF-5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.destination import FilePlace
from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_fsspec.text import format_size
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Contents, StoredSource
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.derived import DerivedArray
from nczarr_xarray.export.form.chunk_shapes import Rechunking, boxes
from nczarr_xarray.export.form.classic import (
    TYPES,
    classic_attributes,
    classic_values,
    classic_variable,
    dimension_problems,
    size_problems,
)
from nczarr_xarray.export.form.lacking import (
    CHARACTERS,
    COMPRESSORS,
    FLAGS,
    UNUSED,
    WIDENED,
    Lacking,
)
from nczarr_xarray.export.form.storage import netcdf_text, stored_as
from nczarr_xarray.export.netcdf_file import declare, need_netcdf4, new_file, put
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.steps import one_pass, room
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.formats.nczarr.limits import NAME
from nczarr_xarray.model import Attribute, Dimension, Group, Variable, bytes_of, described, readable


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
        fill = partial(fill_file, target.url, source, contents, plan, model, cache, progress)
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


def fill_file(
    url: str,
    opened: Opened,
    contents: Contents,
    plan: Mapping[str, Planned],
    model: str,
    chunk_cache: int | None,
    progress: Progress,
    path: str,
) -> None:
    """Write a file at a path of this machine."""
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


# -- classic netCDF --------------------------------------------------------------------------------
# A dataset as it can hold one: one group, fewer types, char for strings.


@dataclass(frozen=True, slots=True)
class NarrowedArray(DerivedArray):
    """Integers of another variable in a type that classic netCDF has.

    Parameters
    ----------
    before, after
        The variable as it was, and as it becomes; without arrays.
    """

    before: Variable
    after: Variable

    @property
    def dtype(self) -> np.dtype:
        return self.after.dtype

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        values = self.reader.read(key, points=points)
        return classic_values(np.asarray(values), self.before, self.after)


@dataclass(frozen=True, slots=True)
class CharactersArray(DerivedArray):
    """Texts of another variable as bytes along a last dimension, filled up with NULs."""

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("S1")

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return (*self.base.chunk_shape, self.shape[-1])

    @property
    def blocks(self) -> None:
        return None

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        texts = np.asarray(self.reader.read(key[:-1], points=points))
        data = [t if isinstance(t, bytes) else bytes_of(t) for t in texts.ravel().tolist()]
        whole = np.array(data, f"S{self.shape[-1]}").reshape(texts.shape)
        letters = whole[..., np.newaxis].view("S1")
        return letters[(..., key[-1])]


def as_classic(opened: Opened, url: str, lacking: Lacking, model: str) -> Opened:
    """Return a dataset as a classic file is to hold it; it shares the store of `opened`.

    Parameters
    ----------
    url
        How messages name the file.
    lacking
        Told what is in another form.
    model
        The format, by its word in netCDF4.

    Raises
    ------
    ExportError
        If it cannot be held; it lists all of that.
    """
    return _Conversion(opened, lacking, model).run(url)


class _Conversion:
    def __init__(self, opened: Opened, lacking: Lacking, model: str) -> None:
        self.opened = replace(opened, exact=True)
        self.lacking = lacking
        self.model = model
        self.types = {} if model == "NETCDF3_64BIT_DATA" else TYPES
        self.problems: list[str] = []
        self.dimensions = dict(opened.hierarchy.root.dimensions)

    def run(self, url: str) -> Opened:
        root, *groups = self.opened.hierarchy.root.walk()
        self.lacking.note_unused_enums(self.opened.hierarchy)
        if groups:
            names = ", ".join(group.path for group in groups)
            self.problems.append(f"{names}: classic netCDF has no groups")
        held = self.lacking.attributes("/", root.attributes)
        found = Group(attributes=self.attributes("/", held))
        for name, variable in root.variables.items():
            if variable.error is not None:
                self.problems.append(f"{variable.path}: cannot be read ({variable.error})")
            elif variable.array is not None:
                found.variables[name] = self.variable(self.lacking.variable(netcdf_text(variable)))
        found.dimensions.update(self.dimensions)
        variables = found.variables.values()
        for line in dimension_problems(variables, self.dimensions.values()):
            self.problems.append(f"{line}; --fixed makes unlimited dimensions fixed ones")
        for line in size_problems(variables, self.model):
            self.problems.append(f"{line}; NETCDF3_64BIT_DATA and NETCDF4 have no such limit")
        if self.problems:
            reason = "cannot hold this dataset, but --format NETCDF4 may; nothing was written"
            raise ExportError(url, reason, self.problems)
        hierarchy = replace(self.opened.hierarchy, root=found)
        return replace(self.opened, hierarchy=hierarchy)

    def attributes(self, path: str, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        return classic_attributes(path, attributes, self.problems, self.types)

    def variable(self, variable: Variable) -> Variable:
        """Return a variable as it is held; one that cannot be is among the problems then."""
        if variable.enum is not None:
            self.lacking.note(FLAGS, variable.path)
            variable = replace(variable, attributes=as_flags(variable), enum=None)
        if variable.nc_type == "string":
            return self.text(variable)
        if variable.nc_type is None:
            return variable  # an error of the writer
        attributes = self.attributes(variable.path, variable.attributes)
        if len(attributes) < len(variable.attributes):
            return variable
        after = classic_variable(variable, self.types)
        if after.nc_type == variable.nc_type:
            return after
        self.lacking.note(WIDENED, variable.path)
        reader = self.opened.reader(variable)
        before = replace(variable, array=None)
        path = variable.path.strip("/")
        array = NarrowedArray(path, variable.shape, reader, before, replace(after, array=None))
        return replace(after, array=array, padding=None)

    def text(self, variable: Variable) -> Variable:
        """Return a variable of texts as one of char, with a dimension for their bytes."""
        self.lacking.note(CHARACTERS, variable.path)
        reader = self.opened.reader(variable)
        assert variable.array is not None
        source = StoredSource(reader, variable)
        try:
            letters = self.letters(max(1, source.longest_text(variable.array.chunk_shape)))
        except ValueError as error:
            self.problems.append(f"{variable.path}: {error}")
            return variable
        attributes = dict(variable.attributes)
        fill = attributes.pop("_FillValue", None)
        if fill is not None and fill.value not in ("", ("",)):
            self.lacking.note("left out: fill values of strings", variable.path)
        attributes = self.attributes(variable.path, attributes)
        attributes.setdefault("_Encoding", Attribute("_Encoding", "char", "utf-8"))
        shape = (*variable.shape, letters.size)
        return replace(
            variable,
            nc_type="char",
            dtype=np.dtype("S1"),
            dimensions=(*variable.dimensions, letters),
            attributes=attributes,
            array=CharactersArray(variable.path.strip("/"), shape, reader),
            padding=None,
        )

    def letters(self, length: int) -> Dimension:
        """Return the dimension for texts of a length, called as xarray calls it."""
        name = f"string{length}"
        while name in self.dimensions and self.dimensions[name] != Dimension(name, length):
            name += "_"
        return self.dimensions.setdefault(name, Dimension(name, length))
