"""Make an aggregation of files that fit together: what its master holds, and its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.aggregation.aggregated import Aggregated, Packing, Tabler, decide
from nczarr_xarray.aggregation.axes import gathered
from nczarr_xarray.aggregation.checks import (
    DECIMALS,
    MARKS,
    as_held,
    converted,
    converter,
    default_filled,
    equal_values,
    holding,
    of_type,
    packed_alike,
    safely_filled,
)
from nczarr_xarray.aggregation.grid import Before, FileGrid
from nczarr_xarray.aggregation.names import with_characters
from nczarr_xarray.aggregation.reading import Key
from nczarr_xarray.aggregation.summary import Layout, Summary, VariableForm, has_few_bytes, is_index
from nczarr_xarray.export.cfa.master import unpacked, without_enum
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.formats.cf import PACKING, missing_in, stated_marks, stated_numbers
from nczarr_xarray.model import Attribute, Dimension, Fragments, Group, Hierarchy, Variable

#: Attributes that stay as in the first file: values are converted to what they say.
_KEPT = frozenset({"units", "calendar", "_FillValue", *PACKING})


@dataclass(slots=True)
class Combiner:
    """Makes an aggregation of files that are known to fit together.

    Parameters
    ----------
    hierarchy
        The metadata of the first file, or of the aggregation that files are added to.
    layout
        What that has.
    files, addresses
        The files, and how the master names them.
    grid
        Where they are.
    differing
        Attributes that differ between files.
    read_first
        Reads a variable of the first file.
    before
        The aggregation that files are added to.
    lacking
        Collects what a master cannot hold.
    blocks
        Where that aggregation is divided.
    """

    hierarchy: Hierarchy
    layout: Layout
    files: Sequence[Summary]
    addresses: np.ndarray
    grid: FileGrid
    differing: frozenset[Key]
    read_first: Callable[[Variable], np.ndarray]
    before: Aggregated | None
    lacking: Lacking
    blocks: Mapping[str, Before] = field(default_factory=dict)
    _tabler: Tabler = field(init=False)
    _dimensions: dict[str, Dimension] = field(default_factory=dict)
    _values: dict[str, np.ndarray] = field(default_factory=dict)
    _tables: dict[str, Fragments] = field(default_factory=dict)

    def aggregated(self) -> Aggregated:
        """Return the aggregation; `ExportError` naming the file whose coordinates do not fit."""
        old = self.before
        self._tabler = Tabler(
            self.files, self.addresses, self.grid, {} if old is None else old.tables, self.blocks
        )
        for group in self.hierarchy.root.walk():
            for dimension in group.dimensions.values():
                self._dimensions[dimension.path] = self._lengthened(dimension)
        for new in self.grid.new:
            self._dimensions[new] = Dimension(new.strip("/"), self.grid.axes[new].length)
        root = self._group(self.hierarchy.root)
        equal: Packing = "equal" if self._equally_packed() else "own"
        packing = equal if old is None else old.packing
        hierarchy = replace(self.hierarchy, root=root, problems=())
        return Aggregated(*with_characters(hierarchy, self._values), self._tables, packing)

    def _lengthened(self, dimension: Dimension) -> Dimension:
        axis = self.grid.axes.get(dimension.path)
        return dimension if axis is None else replace(dimension, size=axis.length)

    def _group(self, group: Group) -> Group:
        variables = {}
        for name, variable in group.variables.items():
            form = self.layout.form(variable.path)
            if form is not None:
                variables[name] = self._variable(variable, form)
        combined = replace(
            group,
            dimensions={n: self._dimensions[d.path] for n, d in group.dimensions.items()},
            attributes=self.lacking.attributes(
                group.path, self._attributes(group.path, group.attributes)
            ),
            variables=variables,
            groups={name: self._group(child) for name, child in group.groups.items()},
        )
        if group.path == "/":
            for new in self.grid.new:
                combined.dimensions.setdefault(new.strip("/"), self._dimensions[new])
        return combined

    def _attributes(self, path: str, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Return the attributes that all files have."""
        kept = _KEPT
        if path == "/" and self.before is not None:
            kept |= {"Conventions"}  # those of an aggregation are never those of its files
        return {
            name: attribute
            for name, attribute in attributes.items()
            if name in kept or (path, name) not in self.differing
        }

    def _fill(self, variable: Variable) -> Variable:
        """Give a variable a fill value that no file has as data, if its own may be data in one.

        All of a coordinate of a dimension are data, where files agree on no mark.
        """
        if all((f"{variable.path}:", name) not in self.differing for name in MARKS):
            return variable
        if is_index(variable):
            self._check_index(variable.path)
            kept = {k: attribute for k, attribute in variable.attributes.items() if k not in MARKS}
            return replace(variable, attributes=kept)
        if not stated_marks(variable) or self._may_be_data(variable):
            return safely_filled(variable, self._unmarked(variable.path))
        return variable

    def _check_index(self, path: str) -> None:
        """Raise if a coordinate of a dimension has missing values, by the marks of its file."""
        there = {} if self.before is None else self.before.values
        holders = (
            [("the aggregation", there[path], self.layout.form(path))] if path in there else []
        )
        holders += [
            (file.target, file.value(path), file.layout.form(path)) for file in self._having(path)
        ]
        for target, values, form in holders:
            if form is not None and missing_in(values, form.marks) is not None:
                raise ExportError(
                    target,
                    f"has missing values of {path}, a coordinate, and the files agree on no "
                    "_FillValue or missing_value, which would mark them",
                )

    def _may_be_data(self, variable: Variable) -> bool:
        """Tell whether marks of a variable may be data in a file.

        Bytes have no safer ones, so that only files that state none count.
        """
        marks = {mark for mark in stated_numbers(variable) if not math.isnan(mark)}
        forms = (layout.form(variable.path) for layout in self._layouts)
        return any(
            form is not None
            and not marks <= set(form.missing)
            and not (form.marks and variable.dtype.itemsize == 1)
            for form in forms
        )

    def _unmarked(self, path: str) -> str | None:
        """Return the type that is stored in files that state no mark; None if all do."""
        forms = [layout.form(path) for layout in (*self._layouts, self.layout)]
        return next((form.stored_type for form in forms if form and not form.marks), None)

    def _variable(self, variable: Variable, form: VariableForm) -> Variable:
        path, old = variable.path, self.before
        variable = without_enum(variable)  # names of numbers may differ
        stored = variable if form.is_coordinate else unpacked(variable)
        if form.nc_type != stored.nc_type:
            variable = of_type(stored, form.nc_type)
        attributes = self._attributes(f"{path}:", variable.attributes)
        dimensions = self._own_dimensions(variable, form)
        made = replace(variable, dimensions=dimensions, attributes=attributes, padding=None)
        made = self._fill(self.lacking.variable(made))
        if 0 in made.shape:  # no part of it is a fragment
            self._values[path] = np.empty(made.shape, made.dtype.newbyteorder("="))
            return made
        along = [d.path for d in dimensions if d.path in self.grid.axes]
        storing = decide(
            path,
            along,
            None if old is None else old.holder(path),
            is_coordinate=form.is_coordinate,
            is_small=self._is_small(form),
            stays=form.is_coordinate or has_few_bytes(variable),
        )
        if storing == "values":
            values = self._values[path] = self._held(form, made, along)
            return holding(made, values)
        if storing == "first values":
            first = self.read_first(variable)
            self._values[path] = as_held(self.files[0].target, first, form, form, made)
        elif storing == "old table":
            assert old is not None
            self._tables[path] = old.tables[path]
        else:
            self._check_inherited(form)
            table = self._tables[path] = self._tabler.table(path, dimensions)
            if not stated_marks(made) and None in table.addresses.tolist():
                where = "in no file, and there are parts without a file"
                return default_filled(made, where, self._unmarked(path))
        return made

    def _check_inherited(self, form: VariableForm) -> None:
        """Raise if fragments need other units, but do not say so: a reader knows no parent."""
        for file in self.files:
            theirs = file.layout.form(form.path)
            if theirs is None or not (theirs.inherits or form.inherits):
                continue
            if converter(theirs, form) is not None:
                raise ExportError(
                    file.target,
                    f"{form.path} has no units of its own, and those of its coordinate are "
                    f"{theirs.units!r}, not {form.units!r}: it is too large to be converted; name "
                    "the variables that are wanted",
                )

    def _own_dimensions(self, variable: Variable, form: VariableForm) -> tuple[Dimension, ...]:
        """Return the dimensions of a variable, with the one that files do not have if it varies."""
        dimensions = tuple(self._dimensions[d.path] for d in variable.dimensions)
        paths = {d.path for d in dimensions}
        if self.before is not None:
            return dimensions
        is_apart = paths.isdisjoint(self.grid.axes)
        along = [
            self._dimensions[new]
            for new in self.grid.new
            if new not in paths
            and (
                not form.is_coordinate
                or variable.path == new
                or (is_apart and self._varies(form, new))
            )
        ]
        return (*along, *dimensions)

    @property
    def _layouts(self) -> Iterable[Layout]:
        """The different layouts of the files."""
        return {id(file.layout): file.layout for file in self.files}.values()

    def _is_small(self, form: VariableForm) -> bool:
        """Tell whether the values of a variable are known of all files."""
        if not form.is_small:
            return False
        forms = (layout.form(form.path) for layout in self._layouts)
        return all(other is None or other.is_small for other in forms)

    def _having(self, path: str) -> list[Summary]:
        """Return the files that have a variable."""
        return [file for file in self.files if file.layout.form(path) is not None]

    def _varies(self, form: VariableForm, new: str) -> bool:
        """Tell whether a coordinate without dimensions differs between files along a new one."""
        if form.dimensions or form.path in self.grid.new or not self._is_small(form):
            return False
        others = [numbers for path, numbers in self.grid.numbers.items() if path != new]
        places = np.array(others, np.int64).reshape(len(others), len(self.files)).T.tolist()
        first: dict[tuple[int, ...], np.ndarray] = {}
        for file, place in zip(self.files, places, strict=True):
            theirs = file.layout.form(form.path)
            if theirs is not None:
                value = converted(file.target, file.value(form.path), theirs, form)
                if not _equal(first.setdefault(tuple(place), value), value):
                    return True
        return False

    def _distinct(self, form: VariableForm) -> list[Summary]:
        """Return a file for each of the different values of a small variable."""
        distinct: dict[tuple[int, int], Summary] = {}
        for file in self._having(form.path):
            distinct.setdefault((id(file.value(form.path)), id(file.layout)), file)
        return list(distinct.values())

    def _value(self, file: Summary, form: VariableForm, variable: Variable) -> np.ndarray:
        theirs = file.layout.form(form.path)
        assert theirs is not None
        values, names = file.value(form.path), theirs.dimensions
        order = [names.index(one) for one in form.dimensions if one in names]
        if order != sorted(order):
            values = values.transpose(order)
        return as_held(file.target, values, theirs, form, variable)

    def _held(self, form: VariableForm, variable: Variable, along: list[str]) -> np.ndarray:
        """Return the values of a variable that the master holds."""
        old = None if self.before is None else self.before.values.get(form.path)
        if old is not None:
            old = as_held("the aggregation", old, form, form, variable)
        if not along:
            if not self._is_small(form):
                assert old is not None
                return old
            files = self._distinct(form)
            values = self._value(files[0], form, variable) if old is None else old
            for file in files:
                value = self._value(file, form, variable)
                other = files[0].target if old is None else "the aggregation"
                self._check_equal(form, values, file, other, value)
            return values
        (dimension,) = along
        axis = self.grid.axes[dimension]
        if form.path == dimension and axis.values is not None:
            return axis.values
        at = [d.path for d in variable.dimensions].index(dimension)
        parts = self._parts(form, variable, dimension, at, old)
        known = [] if old is None else self.blocks[dimension].lengths.tolist()
        new = [parts[number] for number in range(len(known), len(axis.order))]
        everything = np.concatenate([*([] if old is None else [old]), *new], axis=at)
        lengths = np.array([*known, *(part.shape[at] for part in new)], np.int64)
        index, _ = gathered(lengths, axis.order, axis.parts)
        return everything.take(index, at)

    def _parts(
        self,
        form: VariableForm,
        variable: Variable,
        dimension: str,
        at: int,
        old: np.ndarray | None,
    ) -> dict[int, np.ndarray]:
        """Return the values that files have of a variable along a dimension, by block."""
        parts: dict[int, np.ndarray] = {}
        edges = [] if old is None else self.blocks[dimension].edges.tolist()
        owners: dict[int, tuple[tuple[int, int], str]] = {}
        placed = [*zip(self.files, self.grid.numbers[dimension].tolist(), strict=True)]
        for file, number in placed[::-1] if self.grid.overlap == "last" else placed:
            if file.layout.form(form.path) is None:
                continue
            raw = file.value(form.path)
            same = id(raw), id(file.layout)  # the same numbers may have other units
            if number in owners and owners[number][0] == same:
                continue
            value = self._value(file, form, variable)
            if dimension in self.grid.new:
                value = np.expand_dims(value, at)
            if old is not None and number not in parts and number + 1 < len(edges):
                there = slice(edges[number], edges[number + 1])
                parts[number] = old[(slice(None),) * at + (there,)]
            if number in parts and self.grid.overlap != "error":
                continue
            if number in parts:
                other = owners[number][1] if number in owners else "the aggregation"
                self._check_equal(form, parts[number], file, other, value)
            else:
                parts[number] = value
            owners.setdefault(number, (same, file.target))
        for file, number in placed:
            if number not in parts and number + 1 >= max(1, len(edges)):
                reason = f"lacks {form.path}, a coordinate, and no other file has it there"
                raise ExportError(file.target, reason)
        return parts

    def _check_equal(
        self,
        form: VariableForm,
        expected: np.ndarray,
        file: Summary,
        other: str,
        value: np.ndarray,
    ) -> None:
        theirs = file.layout.form(form.path)
        noise = None  # of conversion
        if theirs is not None and theirs.units != form.units:
            noise = 0.0 if form.calendar is None else 10.0**-DECIMALS
        if not _equal(expected, value, noise):
            raise ExportError(
                file.target, f"has other values of the coordinate {form.path} than {other}"
            )

    def _equally_packed(self) -> bool:
        """Tell whether all files have packed their variables in the same way."""
        return all(
            other is not None and packed_alike(other, form)
            for layout in self._layouts
            for form in self.layout.forms
            for other in (layout.form(form.path),)
        )


def _equal(one: Any, other: Any, noise: float | None = None) -> bool:
    """Tell whether arrays are equal; nearly, if there may be noise."""
    if one.shape != other.shape:
        return False
    if noise is not None and one.dtype.kind in "iuf" and other.dtype.kind in "iuf":
        return bool(np.allclose(one, other, rtol=1e-12, atol=noise, equal_nan=True))
    return equal_values(one, other)
