"""New values for existing variables, checked: regions, appends, whole variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.backend.compat import encode_for_netcdf, named_as_stored, without_indexes
from nczarr_xarray.backend.exact_fill import put_back, set_aside
from nczarr_xarray.backend.unsigned import read_dtype
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.as_stored import rounding_of
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.form.numbers import (
    as_integers,
    becomes_integers,
    inexact,
    is_scaled,
    overflow_check,
    refuse_values,
    with_one_fill,
)
from nczarr_xarray.export.form.refusals import attribute_refusal, type_refusal
from nczarr_xarray.export.form.text import (
    as_stored,
    decoded,
    empty_text,
    excess,
    settle_objects,
    whole_text,
)
from nczarr_xarray.export.storage import netcdf_type
from nczarr_xarray.export.stored import netcdf_text
from nczarr_xarray.model import ChunkedArray, Dimension, Group, Variable, join

Region = Mapping[Any, slice]


class ExistingValues(Protocol):
    """An existing dataset that gets new values."""

    @property
    def url(self) -> str:
        """How messages name it."""

    @property
    def opened(self) -> Opened:
        """The dataset in its present state."""

    def group(self, path: str) -> Group | None:
        """Return the group at `path`, unchanged."""

    def dataset(self, path: str) -> xr.Dataset:
        """Return the group at `path` for xarray."""

    def array(self, variable: Variable) -> ChunkedArray:
        """Return how the data of a variable are written; raise its error if it cannot be read."""


class Growth(NamedTuple):
    """New values that are appended.

    Attributes
    ----------
    dimension
        The one that grows, with its new length.
    items
        The variables along it.
    starts
        Where the new values of each begin.
    """

    dimension: Dimension
    items: list[Item]
    starts: list[tuple[int, ...]]


class Update:
    """New values for variables of one group, checked against the stored dataset.

    Parameters
    ----------
    existing
        The dataset.
    path
        Path of the group.
    dataset
        The new values.
    """

    def __init__(self, existing: ExistingValues, path: str, dataset: xr.Dataset) -> None:
        self.existing = existing
        self.path = path
        self.dataset = named_as_stored(dataset)
        self.stored = named_as_stored(existing.dataset(path))
        group = existing.group(path)
        assert group is not None  # or `existing.dataset` had raised
        self.group: Group = group
        self.problems: list[str] = []

    def check(self) -> None:
        """Raise `ExportError` if any problem was found."""
        if self.problems:
            reason = "cannot store these values; nothing was written"
            raise ExportError(self.existing.url, reason, dict.fromkeys(self.problems))

    # -- the values ------------------------------------------------------------

    def items(self, dataset: xr.Dataset) -> list[Item]:
        """Return the variables of `dataset`, encoded as the stored ones are."""
        refused = {name: self._refusal(name, v) for name, v in dataset.variables.items()}
        self.problems += [f"{name}: {found}" for name, found in refused.items() if found]
        gone = [name for name, found in refused.items() if found]
        dataset = without_indexes(dataset.drop_vars(gone))  # the user's encoding stays as it is
        packed: dict[str, bool] = {}
        for name, variable in dataset.variables.items():
            path, encoding = join(self.path, str(name)), self.stored.variables[name].encoding
            settle_objects(variable, encoding)
            encoding = whole_text(variable, with_one_fill(path, encoding))
            encoding.pop("char_dim_name", None)  # shorter text has another; see `as_stored`
            kept = netcdf_text(self.group.variables[str(name)])
            if kept.nc_type == "string" and variable.dtype.kind == "S":
                encoding["dtype"] = str  # bytes stay whole
            variable.encoding = {"_FillValue": None, **encoding}
            if kept.nc_type in ("char", "string"):
                empty_text(variable)
            self._check_numbers(str(name), variable)
            stored = self.group.variables[str(name)]
            if becomes_integers(variable, stored):
                is_float = np.dtype(variable.dtype).kind == "f"
                del variable.encoding["dtype"]  # see `as_integers`
                if is_float or variable.chunks is not None:
                    # xarray takes no dask times without a dtype, and rounds fills to float32
                    exact = not is_float and stored.dtype.itemsize == 8
                    variable.encoding["dtype"] = "i8" if exact else "f8"
                packed[str(name)] = not is_float
        filled, missing = set_aside(dataset.variables.items())
        for name, variable in filled.items():
            dataset.variables[name].data = variable.data
        try:
            encoded, _ = encode_for_netcdf(dataset)
        except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
            self.problems.append(str(error))
            return []
        for name, exact in packed.items():
            encoded[name] = self._packed(name, encoded[name], exact)
        for name, places in missing.items():
            encoded[name] = put_back(encoded[name], places)
        given = {name: frozenset(v.attrs) for name, v in dataset.variables.items()}
        found = (self._item(str(name), source, given[name]) for name, source in encoded.items())
        return [item for item in found if item is not None]

    def _check_numbers(self, name: str, variable: xr.Variable) -> None:
        """Let numbers be checked that xarray would change without a word when it encodes them."""
        encoding, stored = variable.encoding, self.group.variables[name].dtype
        path, kind = join(self.path, name), variable.dtype.kind
        scaled = kind in "iub" and is_scaled(encoding)
        if kind in "iu" and stored.kind == "f":
            self._through(name, variable, partial(refuse_values, path, inexact))
        if stored.kind == "f" and kind in "fiu" and is_scaled(encoding):
            check = overflow_check(encoding)
            self._through(name, variable, partial(refuse_values, path, check))
        elif stored.kind in "iu" and "dtype" in encoding and kind in "fiub":
            wanted = read_dtype(encoding)
            if kind != "f" and not scaled and not np.can_cast(variable.dtype, wanted):
                # not by way of float64, which would round large ones
                whole = partial(as_integers, dtype=wanted, path=path, exact=True)
                self._through(name, variable, whole, wanted)
            if "_Unsigned" in encoding:
                check = overflow_check(encoding)
                self._through(name, variable, partial(refuse_values, path, check))
        if scaled:
            variable.data = variable.data.astype("f8")

    def _through(
        self,
        name: str,
        variable: xr.Variable,
        step: Callable[[np.ndarray], np.ndarray],
        dtype: np.dtype | None = None,
    ) -> None:
        """Replace values by what a step makes of them; its `FormatError` is a problem."""
        dtype = dtype or variable.dtype
        if variable.chunks is not None:
            variable.data = variable.data.map_blocks(step, dtype=dtype)
            return
        try:
            variable.data = step(variable.to_numpy())
        except FormatError as error:
            self.problems.append(f"{name}: {error.reason}")
            variable.data = np.zeros(variable.shape, dtype)  # to check the rest

    def _packed(self, name: str, encoded: xr.Variable, exact: bool) -> xr.Variable:
        """Return encoded numbers as the integers to store; numbers that are none are problems."""
        dtype = self.group.variables[name].dtype.newbyteorder("=")
        if encoded.dtype.kind not in "fiu" or encoded.dtype == dtype:
            return encoded
        packed = encoded.copy(deep=False)
        convert = partial(as_integers, dtype=dtype, path=join(self.path, name), exact=exact)
        self._through(name, packed, convert, dtype)
        return packed

    def _refusal(self, name: Hashable, new: xr.Variable) -> str | None:
        """Say why the stored type cannot hold the values, or not without loss; None if it can."""
        variable = self.group.variables.get(str(name))
        if variable is None:
            return f"is not in {self.path}; write it with mode='a'"
        if variable.error is not None:
            return str(variable.error)
        return type_refusal(new, self.stored.variables[name])

    def _item(self, name: str, source: xr.Variable, given: frozenset[Any]) -> Item | None:
        variable = self.group.variables[name]
        array = self.existing.array(variable)
        names = self._dimension_names(variable)
        variable = replace(variable, nc_type=netcdf_text(variable).nc_type)
        if variable.nc_type == "char":
            hidden = len(names) > len(self.stored.variables[name].dims)
            source = as_stored(source, names, variable.dimensions[-1] if hidden else None)
        elif array.dtype.kind == "b":  # xarray has made bytes of them, as netCDF has no bool
            source = source.astype(bool)
        whole = variable.nc_type == "string" and source.dtype.kind == "S"
        nc_type = "string" if whole else netcdf_type(source.dtype)
        problem = None
        if source.dims != names:
            problem = f"has dimensions {source.dims}, stored with {names}"
        elif nc_type != variable.nc_type:
            problem = (
                f"would be {nc_type or source.dtype} when encoded, stored as "
                f"{variable.nc_type} (do all values fit its units, scale and offset?)"
            )
        elif nc_type == "string":
            try:
                if whole and array.dtype.kind == "U":
                    source = decoded(source)
                problem = excess(source, array.dtype)
            except ValueError as error:
                problem = str(error)
        problem = problem or attribute_refusal(
            variable, self.stored.variables[name], source.attrs, given
        )
        if problem is not None:
            self.problems.append(f"{name}: {problem}")
            return None
        return Item(variable, source, rounding_of(variable))

    def _dimension_names(self, variable: Variable) -> tuple[Hashable, ...]:
        """Return the dimension names of the dataset, with those that char arrays hide."""
        seen = self.stored.variables[variable.name].dims
        rest = [d.name for d in variable.dimensions][len(seen) :]
        return (*seen, *rest)

    def start(self, item: Item, region: Region) -> tuple[int, ...]:
        """Return the position of the new values in the variable."""
        found = []
        assert isinstance(item.source, xr.Variable)
        for name, size, dimension in zip(
            item.source.dims, item.source.shape, item.variable.dimensions, strict=True
        ):
            part = region.get(name, slice(0, dimension.size))
            if part.stop - part.start != size:
                self.problems.append(
                    f"{item.variable.name}: has length {size} along {name!r}, where "
                    f"{part.stop - part.start} is to be replaced"
                )
            found.append(part.start)
        return tuple(found)

    def boxes(
        self, items: list[Item], starts: list[tuple[int, ...]]
    ) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the chunks that the new values touch, by array."""
        found = {}
        for item, start in zip(items, starts, strict=True):
            array = self.existing.array(item.variable)
            found[array.path] = tuple(
                (first // chunk, -(-(first + size) // chunk))
                for first, size, chunk in zip(
                    start, item.source.shape, array.chunk_shape, strict=True
                )
            )
        return found

    # -- appending -------------------------------------------------------------

    def growth(self, name: Hashable) -> Growth:
        """Return what is appended along a dimension; notes what else keeps it from that.

        Raises
        ------
        ExportError
            If that is no dimension of the new values, or of any variable there.
        """
        dataset = self.dataset
        if name not in dataset.dims:
            reason = f"append_dim {name!r} is not a dimension of the new values"
            raise ExportError(self.existing.url, reason)
        dimension = self._grown(name)
        self.check()
        assert dimension is not None
        self._check_complete(dimension)
        along = [key for key, variable in dataset.variables.items() if name in variable.dims]
        for key in along:
            if dataset.variables[key].dims.count(name) > 1:
                self.problems.append(f"{key}: has {name!r} twice; write the whole variable anew")
        others = [key for key in dataset.variables if key not in along]
        self._check_constants(dataset[others].drop_vars(along, errors="ignore"))
        items = self.items(dataset.drop_vars(others))
        region = {name: slice(dimension.size - dataset.sizes[name], dimension.size)}
        return Growth(dimension, items, [self.start(item, region) for item in items])

    def _grown(self, name: Hashable) -> Dimension | None:
        """Return the dimension to append along, with its new length; None if that is impossible."""
        for variable in self.group.variables.values():
            if variable.error is None:
                names = self._dimension_names(variable)
                if name in names:
                    dimension = variable.dimensions[names.index(name)]
                    return replace(dimension, size=dimension.size + self.dataset.sizes[name])
        self.problems.append(f"append_dim {name!r} is not a dimension of any variable there")
        return None

    def _check_complete(self, dimension: Dimension) -> None:
        """Note variables along a growing dimension for which there are no new values."""
        for variable in self.existing.opened.hierarchy.root.all_variables():
            along = any(d.path == dimension.path for d in variable.dimensions)
            given = variable.group == self.group.path and variable.name in self.dataset.variables
            if along and not given:
                self.problems.append(
                    f"{variable.path}: lies along {dimension.path} as well and would be left "
                    "with fill values; give its new values too"
                )

    def _check_constants(self, dataset: xr.Dataset) -> None:
        """Note variables that do not grow, but differ from the stored ones."""
        for name, variable in dataset.variables.items():
            stored: xr.Variable | None = self.stored.variables.get(name)
            if stored is None:
                self.problems.append(f"{name}: is not in the dataset; write it with mode='a'")
            elif not self.same_when_stored(name, variable, stored):
                self.problems.append(
                    f"{name}: differs from what is stored, and is not appended to; drop it, or "
                    "write it with mode='a'"
                )

    def same_when_stored(self, name: Hashable, new: xr.Variable, stored: xr.Variable) -> bool:
        """Tell whether values are those that are stored, or become them.

        Packing and quantization round, and text that is missing is stored as empty.
        """
        if new.equals(stored):
            return True
        problems, self.problems = self.problems, []
        encoded = [
            _rounded(item)
            for variable in (new, stored)
            for item in self.items(xr.Dataset({name: (variable.dims, variable.to_numpy())}))
        ]
        problems, self.problems = self.problems, problems
        return not problems and encoded[0].equals(encoded[1])


def _rounded(item: Item) -> xr.Variable:
    """Return the values of an item as they are stored."""
    assert isinstance(item.source, xr.Variable)
    values = item.source.to_numpy()
    return xr.Variable(item.source.dims, item.rounding(values) if item.rounding else values)
