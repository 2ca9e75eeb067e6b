"""What is copied of a dataset: some variables, parts of dimensions, rounded values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError, UsageError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.codecs.quantize import QUANTIZE_ATTRIBUTES, check_quantization
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.derived import DerivedArray, RoundedArray, WindowArray
from nczarr_xarray.export.form.lacking import rebuilt
from nczarr_xarray.formats.cf import needed
from nczarr_xarray.formats.nczarr.values import stated_fill
from nczarr_xarray.model import Attribute, Dimension, Group, Variable


class Quantization(NamedTuple):
    """How values are rounded: the arguments of `quantize`."""

    mode: str
    digits: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What is copied of a dataset; by default all of it, as it is.

    Parameters
    ----------
    variables
        Paths of variables, which what they need comes along with; () for all.
    slices
        Positions by the name or path of a dimension, in ascending steps.
    quantized
        How variables are rounded, by path.
    fixed
        Whether unlimited dimensions become fixed ones.
    """

    variables: tuple[str, ...] = ()
    slices: Mapping[str, slice] = field(default_factory=dict)
    quantized: Mapping[str, Quantization] = field(default_factory=dict)
    fixed: bool = False

    def of(self, opened: Opened) -> Opened:
        """Return an open dataset as it is to be copied; it shares the store of `opened`.

        Raises
        ------
        UsageError
            If the dataset lacks what is named here, or nothing is left of a dimension.
        """
        if self.variables:
            opened = _with_variables(opened, self.variables)
        if self.slices:
            opened = _sliced(opened, self.slices)
        if self.quantized:
            opened = _quantized(opened, self.quantized)
        return _with_fixed_dimensions(opened) if self.fixed else opened


def _known(kind: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known.

    Raises
    ------
    UsageError
        If not.
    """
    names = sorted(known)
    if name not in names:
        listed = f"there are {', '.join(names)}" if names else "there is none"
        raise UsageError(name, f"no {kind} is called so; {listed}{did_you_mean(name, names)}")
    return name


def _rebuilt(opened: Opened, changed: Callable[[Group], Group | None]) -> Opened:
    """Return a dataset of changed groups, see `rebuilt`."""
    root = rebuilt(opened.hierarchy.root, changed)
    return replace(opened, hierarchy=replace(opened.hierarchy, root=root))


def _mapped(
    opened: Opened,
    dimension: Callable[[Dimension], Dimension],
    variable: Callable[[Variable, tuple[Dimension, ...]], Variable],
) -> Opened:
    """Return a dataset with other dimensions, and the variables that are made for these."""

    def changed(group: Group) -> Group:
        return replace(
            group,
            dimensions={name: dimension(d) for name, d in group.dimensions.items()},
            variables={
                name: variable(v, tuple(map(dimension, v.dimensions)))
                for name, v in group.variables.items()
            },
        )

    return _rebuilt(opened, changed)


def _with_fixed_dimensions(opened: Opened) -> Opened:
    """Return the dataset with every unlimited dimension fixed at its present length.

    In netCDF a dimension without elements is an unlimited one.
    """
    return _mapped(
        opened,
        lambda dimension: replace(dimension, unlimited=dimension.size == 0),
        lambda variable, dimensions: replace(variable, dimensions=dimensions),
    )


def _with_variables(opened: Opened, paths: Collection[str]) -> Opened:
    """Return the dataset with some variables, what they need, and the dimensions of these."""
    root = opened.hierarchy.root
    variables = {variable.path: variable for variable in root.all_variables()}
    wanted = needed(root, [_known("variable", path, variables) for path in paths])
    used = {d.path for path in wanted for d in variables[path].dimensions}
    enums = [variables[path].enum for path in wanted]
    inside = [f"{path.rpartition('/')[0]}/" for path in wanted | used]

    def changed(group: Group) -> Group | None:
        if group.path != "/" and not any(path.startswith(f"{group.path}/") for path in inside):
            return None
        return replace(
            group,
            dimensions={name: d for name, d in group.dimensions.items() if d.path in used},
            types={name: enum for name, enum in group.types.items() if enum in enums},
            variables={name: v for name, v in group.variables.items() if v.path in wanted},
        )

    kept = _rebuilt(opened, changed)
    hierarchy = kept.hierarchy
    owners = (*wanted, *(group.path for group in hierarchy.root.walk()))
    attributes = tuple(f"{owner}:" for owner in owners)
    hidden = tuple(error for error in hierarchy.hidden if error.object.startswith(attributes))
    problems = tuple(hierarchy.left_out(owners))
    return replace(kept, hierarchy=replace(hierarchy, hidden=hidden, problems=problems))


def _sliced(opened: Opened, slices: Mapping[str, slice]) -> Opened:
    """Return the dataset with a part of some dimensions."""
    declared = [d for g in opened.hierarchy.root.walk() for d in g.dimensions.values()]
    known = {name for dimension in declared for name in (dimension.name, dimension.path)}
    for name in slices:
        _known("dimension", name, known)

    def window(dimension: Dimension) -> range:
        wanted = slices.get(dimension.path, slices.get(dimension.name, slice(None)))
        return _positions(dimension, wanted)

    def part(variable: Variable, dimensions: tuple[Dimension, ...]) -> Variable:
        if variable.array is None or dimensions == variable.dimensions:
            return replace(variable, dimensions=dimensions)
        array = WindowArray(
            variable.array.path,
            tuple(dimension.size for dimension in dimensions),
            opened.reader(variable),
            tuple(map(window, variable.dimensions)),
            tuple(dimension.unlimited for dimension in dimensions),
        )
        return _derived(replace(variable, dimensions=dimensions), array)

    return _mapped(opened, lambda d: replace(d, size=len(window(d))), part)


def _positions(dimension: Dimension, wanted: slice) -> range:
    """Return the positions of a slice.

    Raises
    ------
    UsageError
        If there is none.
    """
    positions = range(*wanted.indices(dimension.size))
    if dimension.size and not positions:
        reason = f"nothing is left of this dimension, whose length is {dimension.size}"
        raise UsageError(dimension.name, reason)
    return positions


def _quantized(opened: Opened, wanted: Mapping[str, Quantization]) -> Opened:
    """Return the dataset with some variables rounded, and the attributes that say so."""
    variables = [variable.path for variable in opened.hierarchy.root.all_variables()]
    for path in wanted:
        _known("variable", path, variables)

    def rounded(variable: Variable, _: tuple[Dimension, ...]) -> Variable:
        how = wanted.get(variable.path)
        if how is None or variable.array is None:
            return variable
        try:
            check_quantization(variable.dtype, *how)
        except FormatError as error:
            raise UsageError(variable.path, f"cannot be quantized: {error}") from error
        name = QUANTIZE_ATTRIBUTES[how.mode]
        said = Attribute(name, "int", np.array([how.digits], np.int32))
        reader = opened.reader(variable)
        path, fill = variable.array.path, stated_fill(variable)
        array = RoundedArray(path, variable.shape, reader, how.mode, how.digits, fill)
        attributes = {**variable.attributes, name: said}
        return _derived(replace(variable, attributes=attributes), array)

    return _mapped(opened, lambda dimension: dimension, rounded)


def _derived(variable: Variable, array: DerivedArray) -> Variable:
    return replace(variable, array=array, padding=None)
