"""Enums in formats that have none: integers with CF's flags, and a mark to restore them by.

A variable of an enum gets ``flag_values`` and ``flag_meanings``, which CF's
readers understand, and `MARK`, a text of percent-encoded words. The first word
is the path of the type. If a name is not a word of CF, all names follow. If the
variable has flags of its own, these stay, and members follow as ``name=value``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import quote, unquote

import numpy as np

from nczarr_xarray.model import NC_DTYPES, Attribute, EnumType, Group, Variable, bytes_of, join

#: For netCDF-C it is an attribute like any other.
MARK = "_nczarr_enum"
VALUES, MEANINGS = "flag_values", "flag_meanings"
#: Characters that CF allows in a word of ``flag_meanings``.
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+@-]")


def as_flags(variable: Variable) -> dict[str, Attribute]:
    """Return the attributes of a variable of an enum, with CF's flags and our mark."""
    enum = variable.enum
    assert enum is not None
    attributes = dict(variable.attributes)
    marks = [_quoted(join(enum.group, enum.name))]
    if VALUES in attributes or MEANINGS in attributes:
        marks += [f"{_quoted(name)}={value}" for name, value in enum.members.items()]
    else:
        words = [_NOT_IN_WORDS.sub("_", name) for name in enum.members]
        if words != [*enum.members]:
            marks += map(_quoted, enum.members)
        numbers = np.array([*enum.members.values()], NC_DTYPES[enum.nc_type])
        attributes[VALUES] = Attribute(VALUES, enum.nc_type, numbers)
        attributes[MEANINGS] = Attribute(MEANINGS, "char", " ".join(words))
    attributes[MARK] = Attribute(MARK, "char", " ".join(marks))
    return attributes


def restore(variable: Variable, group_at: Callable[[str], Group | None]) -> None:
    """Restore the enum that was stored as flags, unless its name now means another one.

    `group_at` returns the group at a path, if there is one.
    """
    found = restored(variable)
    if found is None or found.enum is None:
        return
    group = group_at(found.enum.group)
    if group is None or group.types.setdefault(found.enum.name, found.enum) != found.enum:
        return
    variable.enum, variable.attributes = found.enum, found.attributes


def restored(variable: Variable) -> Variable | None:
    """Return a variable as it was before `as_flags`; None if it does not come from there."""
    mark = variable.attributes.get(MARK)
    if mark is None or not isinstance(mark.value, str) or variable.dtype.kind not in "iu":
        return None
    path, *words = mark.value.split() or [""]
    names = [unquote(word, errors="surrogateescape") for word in words]
    group, _, name = unquote(path, errors="surrogateescape").rpartition("/")
    used = {MARK}
    try:
        if words and all("=" in word for word in words):
            parts = [word.rpartition("=") for word in words]
            names = [unquote(part[0], errors="surrogateescape") for part in parts]
            numbers = [int(part[2]) for part in parts]
        else:
            used |= {VALUES, MEANINGS}
            names = names or _meanings(variable.attributes)
            numbers = _numbers(variable.attributes)
        members = dict(zip(names, numbers, strict=True))
    except ValueError:
        return None  # the flags were changed: now they define the meaning of the values
    limits = np.iinfo(variable.dtype)
    within = all(limits.min <= number <= limits.max for number in numbers)
    if not (name and members and all(members) and within) or len(members) < len(names):
        return None
    if not group:  # xarray's datasets do not keep the group of a type
        group = "/" if path.startswith("/") else variable.group
    enum = EnumType(name, members, str(variable.nc_type), group)
    attributes = {n: one for n, one in variable.attributes.items() if n not in used}
    if "_FillValue" in attributes:
        attributes["_FillValue"] = replace(attributes["_FillValue"], enum=enum)
    return replace(variable, enum=enum, attributes=attributes)


def _numbers(attributes: Mapping[str, Attribute]) -> list[int]:
    values = attributes[VALUES].value if VALUES in attributes else None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise ValueError(f"{VALUES} are not integers")
    return [int(value) for value in values.tolist()]


def _meanings(attributes: Mapping[str, Attribute]) -> list[str]:
    value = attributes[MEANINGS].value if MEANINGS in attributes else ""
    return value.split() if isinstance(value, str) else []


def _quoted(text: str) -> str:
    return quote(bytes_of(text))
