"""What is copied of a dataset: some variables, parts of dimensions, rounded values."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError, UsageError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.codecs.quantize import QUANTIZE_ATTRIBUTES, check_quantization
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Contents
from nczarr_xarray.export.derived import BytesArray, DerivedArray, RoundedArray, WindowArray
from nczarr_xarray.export.form.fills import fill_value
from nczarr_xarray.export.form.lacking import UNMASKED, as_byte, is_bool, masks_bools
from nczarr_xarray.export.form.stored import stored_as
from nczarr_xarray.formats.nczarr.dtypes import packed
from nczarr_xarray.formats.nczarr.limits import pure_type
from nczarr_xarray.formats.needed import NAMING, needed
from nczarr_xarray.formats.zarr3.emit import data_type
from nczarr_xarray.model import (
    NC_DTYPES,
    Array,
    Attribute,
    ChangedError,
    Dimension,
    EnumType,
    Group,
    Variable,
    described,
    is_below,
    join,
)

_T = TypeVar("_T")
_Declared = TypeVar("_Declared", Dimension, EnumType, Variable)

_FORM_C = "names become those of Unicode's normal form C, which netCDF demands"
_TWIN = "dimensions of other groups become others of the same length, as netCDF has none from there"
#: Formats with Zarr's types, by their words: what messages call them.
_PURE = {"Zarr2": "Zarr 2", "Zarr3": "Zarr 3"}


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


def suited(opened: Opened, word: str, wanted: Collection[str] = ()) -> Opened:
    """Return the dataset as far as a format can hold its variables.

    Those whose metadata are damaged or unknown become `Hierarchy.problems`, those of types that
    the format lacks `Hierarchy.hidden`. Where netCDF's types count, Zarr's bools become bytes, as
    xarray stores them.

    Parameters
    ----------
    word
        The word of ``--format``.
    wanted
        Paths of variables that are kept in any case, with their errors. If nothing else would be
        left, all are.
    """
    variables = list(opened.hierarchy.root.all_variables())
    damaged: dict[str, FormatError] = {}
    lost: dict[str, FormatError] = {}
    for variable in variables:
        path, error = variable.path, variable.error
        if path in wanted or isinstance(error, StoreError):
            continue
        if isinstance(error, FormatError):
            damaged[path] = FormatError(path, str(error).removeprefix(f"{path}: "))
        elif error is None and (reason := _lacks(word, opened, variable)):
            lost[path] = FormatError(path, reason)
    if len(damaged) + len(lost) == len(variables):
        damaged, lost = {}, {}
    left_out = {*damaged, *lost}
    for variable in variables:
        if (
            word != "Zarr2"
            and is_bool(variable)
            and masks_bools(variable, opened.hierarchy.generation, stated=word not in _PURE)
        ):
            where = f"{variable.path}:_FillValue"
            reason = UNMASKED.format(_PURE.get(word, "netCDF"))
            lost[where] = FormatError(where, reason)

    def kept(group: Group) -> Group:
        found = {
            name: _as_bytes(opened, variable)
            if word not in _PURE and is_bool(variable)
            else variable
            for name, variable in group.variables.items()
            if variable.path not in left_out
        }
        return replace(group, variables=found, groups={})

    suited = _rebuilt(opened, kept)
    problems = (*opened.hierarchy.problems, *damaged.values())
    hidden = (*opened.hierarchy.hidden, *lost.values())
    return replace(suited, hierarchy=replace(suited.hierarchy, problems=problems, hidden=hidden))


def _lacks(word: str, opened: Opened, variable: Variable) -> str | None:
    """Say that a format has no type for a variable, if it has none."""
    text, dtype = variable.nc_type == "string", variable.dtype
    if word == "Zarr2":
        stored = stored_as(opened, variable)
        lacks = not text and any(pure_type(dtype, stored.dtype, stored.codecs))
    elif word == "Zarr3":
        lacks = not text and (dtype.hasobject or data_type(packed(dtype)) is None)
    else:
        lacks = variable.nc_type not in NC_DTYPES and dtype.kind != "b"
    return f"{_PURE.get(word, 'netCDF')} has no type for {described(dtype)}" if lacks else None


def _as_bytes(opened: Opened, variable: Variable) -> Variable:
    """Return a variable of bools as bytes, which are read as such."""
    array = BytesArray(_array(variable).path, variable.shape, opened.reader(variable))
    return _derived(as_byte(variable), array)


def _array(variable: Variable) -> Array:
    assert variable.array is not None
    return variable.array


def as_netcdf_names(opened: Opened, word: str) -> Opened:
    """Return the dataset with names and dimensions that netCDF can have, if a format demands it.

    Names get Unicode's normal form C. A dimension of a group that a variable is not in gets a twin
    in the group of the variable. What changes becomes `Hierarchy.problems`.

    Parameters
    ----------
    word
        The word of ``--format``.

    Raises
    ------
    FormatError
        If two names become one.
    """
    if word in _PURE:
        return opened
    changed: list[FormatError] = []
    root = _in_form_c(_with_twins(opened, changed).hierarchy.root, changed)
    if not changed:
        return opened
    problems = (*opened.hierarchy.problems, *changed)
    return replace(opened, hierarchy=replace(opened.hierarchy, root=root, problems=problems))


def _with_twins(opened: Opened, changed: list[FormatError]) -> Opened:
    """Return the dataset without variables along dimensions of groups that they are not in."""

    def nearer(group: Group) -> Group:
        declared = dict(group.dimensions)
        twins: dict[Dimension, Dimension] = {}

        def twin(dimension: Dimension) -> Dimension:
            if is_below(group.path, dimension.group):
                return dimension
            if dimension not in twins:
                name = dimension.name
                while name in declared or name in group.variables:
                    name += "_"
                twins[dimension] = replace(dimension, name=name, group=group.path)
                declared[name] = twins[dimension]
            return twins[dimension]

        variables = {}
        for name, variable in group.variables.items():
            dimensions = tuple(map(twin, variable.dimensions))
            if dimensions != variable.dimensions:
                changed.append(ChangedError(variable.path, _TWIN))
            variables[name] = replace(variable, dimensions=dimensions)
        return replace(group, dimensions=declared, variables=variables, groups={})

    return _rebuilt(opened, nearer)


def _in_form_c(root: Group, changed: list[FormatError]) -> Group:
    """Return a group with all names, and those in attributes that name variables, in form C."""

    def named(owner: str, things: Mapping[str, _T], renamed: Callable[[_T], _T]) -> dict[str, _T]:
        found: dict[str, _T] = {}
        for name, thing in things.items():
            new = _form_c(name)
            if new in found:
                reason = (
                    f"two names become {new!r} in Unicode's normal form C, which netCDF demands"
                )
                raise FormatError(owner, f"{reason}: rename one")
            if new != name:
                changed.append(ChangedError(f"{owner}{name}", _FORM_C))
            found[new] = renamed(thing)
        return found

    def path_named(thing: _Declared) -> _Declared:
        return replace(thing, name=_form_c(thing.name), group=_form_c(thing.group))

    def attribute(one: Attribute) -> Attribute:
        value = one.value
        if one.name in NAMING and not isinstance(value, np.ndarray):
            value = _form_c(value) if isinstance(value, str) else tuple(map(_form_c, value))
        return replace(
            one, name=_form_c(one.name), value=value, enum=one.enum and path_named(one.enum)
        )

    def variable(one: Variable) -> Variable:
        return replace(
            path_named(one),
            dimensions=tuple(map(path_named, one.dimensions)),
            attributes=named(f"{one.path}:", one.attributes, attribute),
            enum=one.enum and path_named(one.enum),
        )

    contents = Contents()
    for group in root.walk():
        inside = join(group.path, "")
        new = contents.group(_form_c(group.path))
        new.dimensions = named(inside, group.dimensions, path_named)
        new.types = named(inside, group.types, path_named)
        new.attributes = named(f"{group.path}:", group.attributes, attribute)
        new.variables = named(inside, group.variables, variable)
        named(inside, group.groups, lambda one: one)
    return contents.root


def _form_c(text: str) -> str:
    return unicodedata.normalize("NFC", text)


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
    """Return a dataset of changed groups; those below one that is left out must be so, too.

    Parameters
    ----------
    changed
        Gives what becomes of the contents of a group, without the groups in it.
    """
    root = changed(opened.hierarchy.root)
    assert root is not None
    contents = Contents(root)
    for group in opened.hierarchy.root.walk():
        for name, child in group.groups.items():
            new = changed(child)
            if new is not None:
                contents.group(group.path).groups[name] = new
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
            groups={},
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
            groups={},
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
        _check_quantization(variable.path, variable.dtype, how)
        name = QUANTIZE_ATTRIBUTES[how.mode]
        said = Attribute(name, "int", np.array([how.digits], np.int32))
        reader = opened.reader(variable)
        path, fill = variable.array.path, fill_value(variable)
        array = RoundedArray(path, variable.shape, reader, how.mode, how.digits, fill)
        attributes = {**variable.attributes, name: said}
        return _derived(replace(variable, attributes=attributes), array)

    return _mapped(opened, lambda dimension: dimension, rounded)


def _derived(variable: Variable, array: DerivedArray) -> Variable:
    return replace(variable, array=array, padding=None)


def _check_quantization(path: str, dtype: np.dtype, wanted: Quantization) -> None:
    try:
        check_quantization(dtype, *wanted)
    except FormatError as error:
        raise UsageError(path, f"cannot be quantized: {error}") from error
