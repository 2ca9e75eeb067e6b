"""What is kept of a file that becomes part of an aggregation: little, for there may be many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.transport.request import UNKNOWN, Stamp
from nczarr_xarray.aggregation.names import joined, text_dimensions
from nczarr_xarray.dataset.units import are_times, calendar_called
from nczarr_xarray.export.cfa.master import unpacked
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.formats.cf import (
    LOCATING,
    Scoped,
    missing_numbers,
    named,
    packing_of,
    stated_numbers,
    text_in,
    with_needed,
)
from nczarr_xarray.model import Hierarchy, Variable, described

#: Bytes of a coordinate variable in one file, up to which it is read of every file.
SMALL_BYTES = 1 << 16
#: Bytes that a text is assumed to have.
_TEXT_BYTES = 32


class VariableForm(NamedTuple):
    """A variable as a file has it, apart from lengths, values and other attributes.

    Attributes
    ----------
    path
        Of the variable.
    dimensions
        Paths of its dimensions; those of texts, where it is labels that are characters.
    nc_type
        netCDF's name of the type of its values, unpacked if it is no coordinate.
    stored_type
        That of what the file holds.
    units, calendar
        Of its values; those of the coordinate that it is the bounds of.
    packing
        Names and values of the attributes by which its values are packed.
    is_coordinate
        Whether it tells where data are.
    is_small
        Whether its values are read of every file.
    inherits
        Whether the units are those of the coordinate that it is the bounds of.
    marks
        Numbers of which attributes say that they stand for missing data.
    """

    path: str
    dimensions: tuple[str, ...]
    nc_type: str
    stored_type: str
    units: str | None
    calendar: str | None
    packing: tuple[tuple[str, Any], ...]
    is_coordinate: bool
    is_small: bool
    inherits: bool
    marks: tuple[int | float, ...]

    @property
    def missing(self) -> tuple[int | float, ...]:
        """Numbers that stand for missing data."""
        return missing_numbers(self.stored_type, self.marks)


@dataclass(frozen=True)
class Layout:
    """What files of the same kind have in common; one object for all of them.

    Parameters
    ----------
    dimensions
        Paths of all dimensions that variables have.
    forms
        The variables.
    stored
        Paths of variables that are called otherwise in the files, and how they are called there.
    """

    dimensions: tuple[str, ...]
    forms: tuple[VariableForm, ...]
    stored: tuple[tuple[str, str], ...] = ()

    @cached_property
    def small(self) -> dict[str, int]:
        """The numbers of the variables whose values are read, by path."""
        small = (form.path for form in self.forms if form.is_small)
        return {path: number for number, path in enumerate(small)}

    @cached_property
    def _by_path(self) -> dict[str, VariableForm]:
        return {form.path: form for form in self.forms}

    def form(self, path: str) -> VariableForm | None:
        """Return a variable; None if there is none."""
        return self._by_path.get(path)

    def with_others(self, layouts: Iterable[Layout]) -> Layout:
        """Return this with what others have and it lacks."""
        dimensions, forms = dict.fromkeys(self.dimensions), {form.path: form for form in self.forms}
        for layout in layouts:
            dimensions |= dict.fromkeys(layout.dimensions)
            for form in layout.forms:
                forms.setdefault(form.path, form)
        return replace(self, dimensions=tuple(dimensions), forms=tuple(forms.values()))

    def combined(self, path: str, values: np.ndarray) -> np.ndarray:
        """Return values of a variable as they are combined: texts, if they are labels."""
        form = self.form(path)
        is_label = form is not None and len(form.dimensions) < values.ndim
        return joined(values) if is_label else values


class Summary(NamedTuple):
    """A file that becomes part of an aggregation.

    Attributes
    ----------
    target
        What opens it, and how messages name it.
    layout
        Its variables.
    sizes
        Lengths of `Layout.dimensions`.
    values
        Of `Layout.small`.
    stamp
        Of the version that was read.
    """

    target: str
    layout: Layout
    sizes: tuple[int, ...]
    values: tuple[np.ndarray, ...]
    stamp: Stamp = UNKNOWN

    def size(self, dimension: str) -> int:
        """Return the length of a dimension."""
        return self.sizes[self.layout.dimensions.index(dimension)]

    def value(self, path: str) -> np.ndarray:
        """Return the values of a variable of `Layout.small`."""
        return self.values[self.layout.small[path]]


@dataclass(frozen=True, slots=True)
class Description:
    """What was found in the metadata of one file.

    Parameters
    ----------
    layout, sizes
        As of `Summary`.
    wanted
        The variables of `Layout.small`, which are to be read.
    """

    layout: Layout
    sizes: tuple[int, ...]
    wanted: tuple[Variable, ...]


def describe(
    target: str,
    hierarchy: Hierarchy,
    names: frozenset[str] = frozenset(),
    scalars: Iterable[str] = (),
) -> Description:
    """Describe a file by its metadata.

    Parameters
    ----------
    names
        Variables that are wanted, besides their coordinates; if there is none, all are.
    scalars
        Variables without dimensions that are coordinates, too.

    Raises
    ------
    ExportError
        If a variable that is wanted is not there, or cannot be part of an aggregation.
    """
    root = Lacking(netcdf4=True).bools(hierarchy).root
    variables = {v.path: (group, v) for group in root.walk() for v in group.variables.values()}
    texts = text_dimensions(root.all_variables())
    coordinates = {
        path
        for path, (_, v) in variables.items()
        if is_index(v) or (not texts.get(path, v.dimensions) and path.strip("/") in scalars)
    }
    parents: dict[str, Variable] = {}
    names_of: dict[str, set[str]] = {}
    for path, (group, variable) in variables.items():
        names_of[path] = set()
        for attribute, other in named(Scoped(variable, group, root), LOCATING):
            names_of[path].add(other.path)
            coordinates.add(other.path)
            if attribute in ("bounds", "climatology"):
                parents.setdefault(other.path, variable)
    if names:
        wanted = _wanted(target, {path: v for path, (_, v) in variables.items()}, names, names_of)
        variables = {path: held for path, held in variables.items() if path in wanted}
    forms, small = [], []
    dimensions: dict[str, int] = {}
    for path, (_, variable) in variables.items():
        _check(target, variable)
        along = variable.dimensions
        if path in coordinates and len(texts.get(path, along)) <= 1:
            along = texts.get(path, along)  # the length of text may differ
        dimensions |= {d.path: d.size for d in along}
        parent = parents.get(path)
        units, calendar = _units(variable)
        inherits = units is None and parent is not None
        if units is None and parent is not None:
            units, calendar = _units(parent)
        # an index is read in any case, and bounds without units have those of it
        is_read = is_index(variable) or (parent is not None and is_index(parent))
        is_small = is_read or (path in coordinates and has_few_bytes(variable))
        forms.append(
            VariableForm(
                path,
                tuple(d.path for d in along),
                str((variable if path in coordinates else unpacked(variable)).nc_type),
                str(variable.nc_type),
                units,
                calendar,
                tuple(packing_of(variable).items()),
                path in coordinates,
                is_small,
                inherits,
                stated_numbers(variable),
            )
        )
        if is_small:
            small.append(variable)
    layout = Layout(tuple(dimensions), tuple(forms))
    return Description(layout, tuple(dimensions.values()), tuple(small))


def has_few_bytes(variable: Variable) -> bool:
    """Tell whether all values of a variable have up to `SMALL_BYTES`."""
    itemsize = _TEXT_BYTES if variable.dtype.kind == "O" else variable.dtype.itemsize
    return itemsize * math.prod(variable.shape) <= SMALL_BYTES


def is_index(variable: Variable) -> bool:
    """Tell a variable that is the coordinate of its only dimension, besides a length of text."""
    first, *others = [dimension.path for dimension in variable.dimensions] or [""]
    is_text = variable.nc_type == "char" and len(others) == 1
    return first == variable.path and (not others or is_text)


def _units(variable: Variable) -> tuple[str | None, str | None]:
    if variable.dtype.kind not in "iuf":  # text is not converted
        return None, None
    units = text_in(variable.attributes, "units")
    if units is None or not are_times(units):
        return units and units.strip(), None
    return units.strip(), calendar_called(text_in(variable.attributes, "calendar"))


def _wanted(
    target: str,
    variables: dict[str, Variable],
    names: frozenset[str],
    names_of: dict[str, set[str]],
) -> set[str]:
    """Return the paths of variables that are wanted, and of what these need."""
    paths = [f"/{name.strip('/')}" for name in sorted(names)]
    for path in paths:
        if path not in variables:
            known = ", ".join(name.strip("/") for name in variables)
            raise ExportError(target, f"has no variable {path.strip('/')!r}; there are {known}")
    return with_needed(paths, variables, names_of)


def _check(target: str, variable: Variable) -> None:
    """Raise if a variable cannot be read, or cannot be written to a master."""
    hint = "name the variables that are wanted"
    if variable.error is not None:
        raise ExportError(target, f"has a variable that cannot be read: {variable.error}; {hint}")
    if variable.nc_type is None or variable.dtype.names:
        kind = described(variable.dtype)
        raise ExportError(
            target, f"{variable.path} holds {kind}, which no aggregation holds; {hint}"
        )


def matched(files: Sequence[Summary], tolerance: float) -> list[Summary]:
    """Return files with one spelling of coordinates that differ by no more than a tolerance.

    The first file that has them counts.

    Parameters
    ----------
    tolerance
        In the units of each coordinate.
    """
    spellings: dict[Any, list[np.ndarray]] = {}
    known: dict[tuple[int, int], np.ndarray] = {}

    def spelling(values: np.ndarray, form: VariableForm | None) -> np.ndarray:
        """Find the spelling of values; those that begin far away are not compared."""
        if form is None or not form.is_coordinate or values.dtype.kind != "f" or not values.size:
            return values
        first = float(values.flat[0])
        if not math.isfinite(first):
            return values
        at = math.floor(first / (2 * tolerance))
        kind = form.path, form.units, form.calendar, values.shape
        for near in (at - 1, at, at + 1):
            for other in spellings.get((kind, near), ()):
                if np.allclose(values, other, rtol=0, atol=tolerance, equal_nan=True):
                    return other
        spellings.setdefault((kind, at), []).append(values)
        return values

    found = []
    for file in files:
        values = []
        for own, path in zip(file.values, file.layout.small, strict=True):
            key = id(own), id(file.layout)
            if key not in known:
                known[key] = spelling(own, file.layout.form(path))
            values.append(known[key])
        found.append(file._replace(values=tuple(values)))
    return found
