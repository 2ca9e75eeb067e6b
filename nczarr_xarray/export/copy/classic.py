"""A dataset as classic netCDF can hold it: one group, fewer types, char for strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import StoredSource
from nczarr_xarray.export.derived import DerivedArray
from nczarr_xarray.export.form.classic import (
    TYPES,
    classic_attributes,
    classic_values,
    classic_variable,
    dimension_problems,
    size_problems,
)
from nczarr_xarray.export.form.lacking import CHARACTERS, FLAGS, WIDENED, Lacking
from nczarr_xarray.export.form.storage import netcdf_text
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.model import Attribute, Dimension, Group, Variable, bytes_of


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
