"""The structure of a dataset as flat facts in text, which can be compared.

A fact is an object, ``"attribute /sst:units"``, with its properties, ``{"type": "char",
"value": '"K"'}``. The order of objects is none of them, and neither is how data are stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.form.storage import netcdf_text, stored_as
from nczarr_xarray.model import Attribute, Group, Variable, join
from nczarr_xarray.tools.compare.report import Difference
from nczarr_xarray.tools.compare.values import enum_text, spelled, type_text, variable_type

Facts: TypeAlias = Mapping[str, Mapping[str, str]]

#: Generations without netCDF's metadata.
_PURE = frozenset({"v2", "v3"})
#: The escaped path before the name of an attribute.
_OWNER = re.compile(r"((?:[^\\:]|\\.)*):", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outline:
    """The structure of a dataset.

    Parameters
    ----------
    facts
        All of it.
    pure
        Whether it is that of Zarr without netCDF's metadata, which states less.
    """

    facts: Facts
    pure: bool

    @classmethod
    def of(
        cls, opened: Opened, only: Collection[str] | None = None, *, storage: bool = False
    ) -> Outline:
        """Return the structure of an open dataset.

        Parameters
        ----------
        only
            Paths of the variables that are wanted, with their attributes; None for everything.
        storage
            Whether chunks, codecs and byte order belong to it.
        """
        hierarchy = opened.hierarchy
        found = facts(hierarchy.root)
        if storage:
            found |= storage_facts(opened)
        return cls(found, hierarchy.generation in _PURE).of_variables(only)

    def of_variables(self, only: Collection[str] | None) -> Outline:
        """Return the structure of some variables alone; all of it for None."""
        if only is None:
            return self
        paths = frozenset(map(_escaped, only))
        kept = {name: one for name, one in self.facts.items() if _variable_of(name) in paths}
        return Outline(kept, self.pure)

    def without(self, variables: Collection[str]) -> Outline:
        """Return the structure without some variables, by their paths."""
        paths = frozenset(map(_escaped, variables))
        kept = {name: one for name, one in self.facts.items() if _variable_of(name) not in paths}
        return Outline(kept, self.pure)


def readable_variables(root: Group) -> dict[str, Variable]:
    """Return the variables of all groups that can be read, by path, as netCDF has them."""
    return {
        variable.path: netcdf_text(variable)
        for variable in root.all_variables()
        if variable.error is None
    }


def unreadable(opened: Opened) -> dict[str, NCZarrError]:
    """Return why variables of an open dataset cannot be read, by path."""
    return {
        variable.path: variable.error
        for variable in opened.hierarchy.root.all_variables()
        if variable.error is not None
    }


def facts(root: Group) -> dict[str, dict[str, str]]:
    """Return the facts of all objects, except of variables that cannot be read."""
    found: dict[str, dict[str, str]] = {}
    for group in root.walk():
        found[f"group {group.path}"] = {}
        for enum in group.types.values():
            found[f"type {join(group.path, enum.name)}"] = {"members": enum_text(enum)}
        for dim in group.dimensions.values():
            unlimited = "yes" if dim.unlimited else "no"
            found[f"dimension {dim.path}"] = {"length": str(dim.size), "unlimited": unlimited}
        found.update(_attributes(group.path, group.attributes))
    for path, variable in readable_variables(root).items():
        dimensions = ", ".join(dimension.path for dimension in variable.dimensions)
        found[f"variable {path}"] = {
            "type": variable_type(variable),
            "dimensions": f"({dimensions})",
            "shape": str(variable.shape),
        }
        found.update(_attributes(path, variable.attributes))
    return found


def _attributes(path: str, attributes: Mapping[str, Attribute]) -> dict[str, dict[str, str]]:
    return {attribute_object(path, one.name): _attribute(one) for one in attributes.values()}


def attribute_object(path: str, name: str) -> str:
    """Return what facts call an attribute of the group or variable at `path`."""
    return f"attribute {_escaped(path)}:{name}"


def _escaped(path: str) -> str:
    """Return a path in which no colon can be taken for that before the name of an attribute."""
    return path.replace("\\", "\\\\").replace(":", "\\:")


def _variable_of(name: str) -> str | None:
    """Return the escaped path of a variable, or of that which an object belongs to.

    Attributes of groups have the path of the group; other objects have None.
    """
    kind, _, path = name.partition(" ")
    if kind == "attribute":
        owner = _OWNER.match(path)
        return owner and owner[1]
    return _escaped(path) if kind in ("variable", "storage") else None


def _attribute(attribute: Attribute) -> dict[str, str]:
    value = attribute.value
    kind = attribute.type
    if attribute.enum is not None:
        kind = f"enum {attribute.enum.name} {enum_text(attribute.enum)}"
    elif isinstance(value, np.ndarray):
        kind = type_text(value.dtype)
    # netCDF's own programs do not tell NULs at the end of text from none
    texts = (value.rstrip("\0"),) if isinstance(value, str) else value
    found = {"type": kind, "value": ", ".join(spelled(texts))}
    if attribute.json is not None:
        found["json"] = _ordered(attribute.json)
    return found


def _ordered(text: str) -> str:
    """Return JSON whose members are in an order that does not depend on who wrote it."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except ValueError:  # Python reads no integer of thousands of digits
        return text


def storage_facts(opened: Opened) -> dict[str, dict[str, str]]:
    """Return how the variables of an open dataset are stored, as facts."""
    found = {}
    for variable in readable_variables(opened.hierarchy.root).values():
        if variable.array is not None:
            stored = stored_as(opened, variable)
            codecs = [{k: v for k, v in c.items() if k != "elementsize"} for c in stored.codecs]
            found[f"storage {variable.path}"] = {
                "chunks": "none" if stored.contiguous else str(stored.chunk_shape),
                "codecs": json.dumps(codecs, sort_keys=True, default=str),
                "byte order": "big" if stored.dtype.str.startswith(">") else "little",
            }
    return found


def differences(a: Outline, b: Outline) -> Iterator[Difference]:
    """Yield what differs between the structures of two datasets.

    Where one of them is pure Zarr, what that cannot state is left aside (`notes`).
    """
    both = a.pure and b.pure
    one, other = (_stated(facts, json=both) for facts in (a.facts, b.facts))
    if a.pure or b.pure:
        one, other = _as_zarr(one, other), _as_zarr(other, one)
    lacking = one.keys() ^ other.keys()
    for name in [*one, *(name for name in other if name not in one)]:
        ours, theirs = one.get(name), other.get(name)
        if ours is None or theirs is None:
            if not lacking.intersection(_wholes(name)):
                yield Difference(name, "", a=_summary(ours), b=_summary(theirs))
            continue
        for key in ours:
            if ours[key] != theirs[key]:
                yield Difference(name, key, a=ours[key], b=theirs[key])


def notes(a: Outline, b: Outline) -> list[str]:
    """Return what `differences` leaves aside."""
    names = [name for name, outline in (("A", a), ("B", b)) if outline.pure]
    if not names:
        return []
    what = "types of attributes, unlimited and unused dimensions are not compared"
    return [f"{' and '.join(names)} without netCDF's metadata: {what}"]


def _as_zarr(facts: Facts, others: Facts) -> Facts:
    """Return facts as Zarr without netCDF's metadata states them, to be compared with `others`."""
    found: dict[str, Mapping[str, str]] = {}
    for name, properties in facts.items():
        kind = name.partition(" ")[0]
        if kind == "attribute":
            value = properties["value"]
            if others.get(name, {}).get("type") == "float" and properties["type"] == "double":
                value = _singles(value)
            # Zarr 2 has a fill value anyway; NaN stands for missing data without being told
            if name in others or not (name.endswith(":_FillValue") and value == "nan"):
                found[name] = {"value": value}
        elif kind == "variable":
            # Zarr does not say in which group a dimension is declared
            paths = properties["dimensions"].strip("()").split(", ")
            short = ", ".join(path.rpartition("/")[2] for path in paths)
            found[name] = {**properties, "dimensions": f"({short})"}
        elif kind != "dimension":
            found[name] = properties
    return found


def _stated(facts: Facts, *, json: bool) -> Facts:
    """Return facts whose attributes are the JSON that states them, or what netCDF makes of it."""
    found: dict[str, Mapping[str, str]] = {}
    for name, properties in facts.items():
        text = properties.get("json")
        if text is not None:
            kept = {key: one for key, one in properties.items() if key != "json"}
            properties = {**kept, "value": text} if json else kept
        found[name] = properties
    return found


def _singles(doubles: str) -> str:
    """Return numbers of JSON as the single-precision numbers that they stand for."""
    numbers = [one.partition(" ")[0] for one in doubles.split(", ") if one]
    return ", ".join(spelled(np.array(numbers, np.float64).astype(np.float32)))


def _wholes(name: str) -> Iterator[str]:
    """Yield the names of the variable and of the groups that an object may be a part of."""
    kind, _, path = name.partition(" ")
    if kind in ("attribute", "storage"):
        path = re.sub(r"\\(.)", r"\1", _variable_of(name) or "", flags=re.DOTALL)
        yield f"variable {path}"
        yield f"group {path}"
    while (path := path.rpartition("/")[0]) != "":
        yield f"group {path}"


def _summary(properties: Mapping[str, str] | None) -> str | None:
    """Return the properties of an object that only one dataset has."""
    if properties is None:
        return None
    return ", ".join(f"{key} {value}" for key, value in properties.items())
