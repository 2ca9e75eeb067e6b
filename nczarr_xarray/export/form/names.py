"""Names and dimensions as netCDF can have them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.form.lacking import _PURE, rebuilt
from nczarr_xarray.formats.cfa.dialect import NAMING
from nczarr_xarray.model import (
    Attribute,
    ChangedError,
    Dimension,
    EnumType,
    Group,
    Variable,
    is_below,
    join,
)

_FORM_C = "names become those of Unicode's normal form C, which netCDF demands"

_TWIN = "dimensions of other groups become others of the same length, as netCDF has none from there"

_T = TypeVar("_T")

_Declared = TypeVar("_Declared", Dimension, EnumType, Variable)


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
    root = _in_form_c(_with_twins(opened.hierarchy.root, changed), changed)
    if not changed:
        return opened
    problems = (*opened.hierarchy.problems, *changed)
    return replace(opened, hierarchy=replace(opened.hierarchy, root=root, problems=problems))


def _with_twins(root: Group, changed: list[FormatError]) -> Group:
    """Return a group without variables along dimensions of groups that they are not in."""

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
        return replace(group, dimensions=declared, variables=variables)

    return rebuilt(root, nearer)


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

    def group(one: Group) -> Group:
        inside = join(one.path, "")
        named(inside, one.groups, lambda child: child)
        return Group(
            _form_c(one.path),
            dimensions=named(inside, one.dimensions, path_named),
            types=named(inside, one.types, path_named),
            attributes=named(f"{one.path}:", one.attributes, attribute),
            variables=named(inside, one.variables, variable),
        )

    return rebuilt(root, group)


def _form_c(text: str) -> str:
    return unicodedata.normalize("NFC", text)
