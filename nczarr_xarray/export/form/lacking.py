"""Things that a target cannot hold as its source does: their other form, and the warnings."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from nczarr_fsspec.errors import FormatError, LossWarning, NCZarrWarning, StoreError, caller_level
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.derived import BytesArray
from nczarr_xarray.export.form.storage import stored_as
from nczarr_xarray.formats.cf import NAMING
from nczarr_xarray.formats.nczarr.attributes import NAMED_NUMBERS, is_list_of_one
from nczarr_xarray.formats.nczarr.limits import pure_type
from nczarr_xarray.formats.nczarr.values import fill_attribute, marks_of
from nczarr_xarray.formats.nczarr.zarray import packed
from nczarr_xarray.formats.zarr3.emit import data_type
from nczarr_xarray.model import (
    NC_DTYPES,
    AmbiguousNameError,
    Attribute,
    ChangedError,
    Dimension,
    EnumType,
    Group,
    Hierarchy,
    Variable,
    described,
    is_below,
    join,
    readable,
)

#: Formats with Zarr's types, by their words: what messages call them.
_PURE = {"Zarr2": "Zarr 2", "Zarr3": "Zarr 3"}

#: Names in one warning.
SHOWN = 5
_TRAILING = "NULs at the end of text are left out"
_REPLACED = "bytes that are not UTF-8 become U+FFFD"
FLAGS = (
    "enums become integers with flag_values and flag_meanings (a copy from NCZarr or Zarr to "
    "netCDF-4 makes enums of them again)"
)
CATEGORIES = "categories become integers with flag_values and flag_meanings"
ZONES = "times become those of UTC, and the name of their zone is lost"
WIDENED = "classic netCDF lacks some types: their values become others that can hold them"
CHARACTERS = "strings become char, with a dimension for their bytes"
UNSPECIFIED = "char has no type in the specification of Zarr 3: not every reader has zarr-python's"
TEXT_MARKS = (
    "the _FillValue of text becomes its missing_value, as xarray's engine 'zarr' opens nothing of "
    "Zarr 3 that has one"
)
NO_MARKS = (
    "left out: a _FillValue of char, bool or numbers with _Unsigned, for which xarray opens "
    "nothing of Zarr 3"
)
JSON = "JSON that netCDF lacks becomes text or numbers (NCZarr keeps it for a copy to Zarr)"
MARKS = "the first _FillValue stays one, and missing_value has them all"
COMPRESSORS = "stored without the compressor of the source, which the format of the copy lacks"
UNUSED = "left out: unlimited dimensions of no variable, which have no length in netCDF"
RENAMED = "dimensions keep the names that tell them from others of one name and another length"
EQUAL_MARK = (
    "numbers that equal their _FillValue or missing_value are read as missing: write them with "
    "others (encoding={...: {'_FillValue': ...}})"
)
UNMASKED = "the mask of bools, which {} does not have"
#: Changes without loss: no reader shows the difference, or it can be undone.
_HARMLESS = frozenset(
    {
        _TRAILING,
        FLAGS,
        CATEGORIES,
        CHARACTERS,
        WIDENED,
        UNSPECIFIED,
        COMPRESSORS,
        RENAMED,
    }
)


class Lacking:
    """Adapts the parts of a dataset to what the written format holds, and collects the changes.

    Parameters
    ----------
    netcdf4
        Whether the copy is a netCDF-4 file. If not, it is NCZarr or Zarr, without enums, with text
        that is UTF-8 and without NULs.
    json
        Whether attributes may be any JSON, as those of pure Zarr.
    """

    def __init__(self, *, netcdf4: bool, json: bool = False) -> None:
        self.netcdf4 = netcdf4
        self.json = json
        self._names: dict[str, list[str]] = {}

    def note(self, reason: str, name: str) -> None:
        """Note that something is lost, or held in another form."""
        self._names.setdefault(reason, []).append(name)

    def note_hidden(self, hierarchy: Hierarchy) -> None:
        """Note what was not read, what the model lacks, and enums that the format cannot hold."""
        for problem in hierarchy.left_out():
            self.note("left out, as it cannot be read", str(problem))
        for problem in hierarchy.problems:
            if isinstance(problem, AmbiguousNameError):
                self.note(RENAMED, problem.object)
            elif isinstance(problem, ChangedError):
                self.note(problem.reason, problem.object)
        for error in hierarchy.hidden:
            self.note(f"left out: {error.reason}", error.object)
        if not self.netcdf4:
            self.note_unused_enums(hierarchy)

    def bools(self, hierarchy: Hierarchy, held_paths: Container[str] | None = None) -> Hierarchy:
        """Return a hierarchy whose bools are bytes (`as_byte`); note the masks that are lost.

        Parameters
        ----------
        held_paths
            Paths of the variables that are held; None for all.
        """
        if not any(map(is_bool, hierarchy.root.all_variables())):
            return hierarchy

        def held(group: Group) -> Group:
            variables = dict(group.variables)
            for name, variable in variables.items():
                if is_bool(variable):
                    variables[name] = as_byte(variable)
                    wanted = held_paths is None or variable.path in held_paths
                    if wanted and masks_bools(variable, hierarchy.generation):
                        where = f"{variable.path}:_FillValue"
                        self.note(f"left out: {UNMASKED.format('netCDF')}", where)
            return replace(group, variables=variables)

        return replace(hierarchy, root=rebuilt(hierarchy.root, held))

    def note_unused_enums(self, hierarchy: Hierarchy) -> None:
        """Note enums that are lost, because no variable has them."""
        used = [v.enum for v in hierarchy.root.all_variables() if v.enum]
        for group in hierarchy.root.walk():
            for enum in group.types.values():
                if enum not in used:
                    self.note(
                        "enums that no variable uses are left out", join(group.path, enum.name)
                    )

    def tree(self, root: Group) -> Group:
        """Return a group, and all below it, in the form in which they can be held."""

        def held(group: Group) -> Group:
            variables = group.variables.items()
            return replace(
                group,
                attributes=self.attributes(group.path, group.attributes),
                variables={n: v if v.error is not None else self.variable(v) for n, v in variables},
            )

        return rebuilt(root, held)

    def variable(self, variable: Variable) -> Variable:
        """Return a variable in the form in which it can be held."""
        self.note_enum(variable)
        held = self.attributes(variable.path, variable.attributes, variable.enum)
        nc_type = variable.nc_type
        if nc_type is not None and "_FillValue" in held:
            marks = marks_of(variable)
            if not len(marks):
                self.note("left out: a _FillValue that no element can have", variable.path)
                del held["_FillValue"]
            else:
                kept = fill_attribute(nc_type, marks[0])
                held["_FillValue"] = replace(held["_FillValue"], type=nc_type, value=kept.value)
            if len(marks) > 1:
                self.note(MARKS, variable.path)
                held["missing_value"] = _with_marks(held.get("missing_value"), nc_type, marks)
        return replace(variable, attributes=held)

    def note_json(self, attribute: Attribute, where: str) -> None:
        """Note JSON that netCDF lacks, and numbers that JSON lacks; a list of one is its member."""
        if self.json and attribute.json is None and _is_named(attribute):
            self.note(NAMED_NUMBERS, where)
        elif not self.json and attribute.json and not is_list_of_one(attribute.json):
            self.note(JSON, where)

    def note_enum(self, variable: Variable) -> None:
        """Note that a variable is of an enum, if the written format has none."""
        if variable.enum is not None and not self.netcdf4:
            self.note(FLAGS, variable.path)

    def attributes(
        self, path: str, attributes: Mapping[str, Attribute], enum: EnumType | None = None
    ) -> dict[str, Attribute]:
        """Return the attributes of the object at `path` that can be held.

        `enum` is the enum of a variable.
        """
        held = {}
        for name, attribute in attributes.items():
            where = f"{path}:{readable(name, 'backslashreplace')}"
            if attribute.type == "compound":
                self.note("left out: there is no form for their compound type", where)
                continue
            fill = name == "_FillValue"
            if not fill:
                self.note_json(attribute, where)
            if attribute.enum is not None and not (fill and attribute.enum == enum):
                self.note("values of enums become plain integers", where)
                attribute = replace(attribute, enum=None)
            held[name] = self._text(attribute, where, fill=fill)
        return held

    def _text(self, attribute: Attribute, where: str, *, fill: bool) -> Attribute:
        value = attribute.value
        if isinstance(value, tuple) and not self.netcdf4:
            texts = tuple(map(readable, value))
            if texts != value:
                self.note(_REPLACED, where)
            return replace(attribute, value=texts)
        if not isinstance(value, str) or (fill and self.netcdf4):
            return attribute
        text = value.rstrip("\0")
        if fill:  # which NULs fill up
            return replace(attribute, value=text)
        if text != value and text:  # netCDF4 writes one for a text without characters
            self.note(_TRAILING, where)
        if self.netcdf4:
            return replace(attribute, value=text)
        if "\0" in text:
            self.note("NULs inside of text are left out", where)
            text = text.replace("\0", "")
        if readable(text) != text:
            self.note(_REPLACED, where)
        return replace(attribute, value=readable(text))

    def tell(self, target: str) -> None:
        """Warn of everything that was noted; with `LossWarning` if something is lost."""
        for reason, names in self._names.items():
            shown = ", ".join(names[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            text = f"{target}: {reason}: {shown}{more}"
            harmless = reason in _HARMLESS
            warning = NCZarrWarning(text) if harmless else LossWarning(text, names)
            warnings.warn(warning, stacklevel=caller_level())


def rebuilt(root: Group, changed: Callable[[Group], Group | None]) -> Group:
    """Return a group of changed groups; with one that is left out, all below it must be.

    Parameters
    ----------
    changed
        Returns what becomes of a group, as a new object; what it says of the groups in it is no
        matter.
    """
    made = {group.path: changed(group) for group in root.walk()}
    for group in root.walk():  # not recursive, as `walk`
        if (above := made[group.path]) is not None:
            inside = (made[child.path] for child in group.groups.values())
            above.groups = {one.name: one for one in inside if one is not None}
    found = made[root.path]
    assert found is not None
    return found


def is_bool(variable: Variable) -> bool:
    """Tell whether a variable is of Zarr's bools, which netCDF lacks."""
    return variable.error is None and variable.nc_type is None and variable.dtype.kind == "b"


def masks_bools(variable: Variable, generation: str, *, stated: bool = True) -> bool:
    """Tell whether xarray masks some of a variable of bools, but nothing of its copy.

    Parameters
    ----------
    stated
        Whether that lacks the attribute ``_FillValue``, too.
    """
    hidden = generation == "v2" and variable.array is not None and variable.array.fill is not None
    return hidden or (stated and "_FillValue" in variable.attributes)


def as_byte(variable: Variable) -> Variable:
    """Return a variable of bools as the bytes that xarray makes of them, and bools of again."""
    attributes = {**variable.attributes, "dtype": Attribute("dtype", "char", "bool")}
    attributes.pop("_FillValue", None)  # xarray takes what is missing for True
    return replace(variable, nc_type="byte", dtype=NC_DTYPES["byte"], attributes=attributes)


def _is_named(attribute: Attribute) -> bool:
    """Tell whether an attribute has numbers that JSON has not."""
    value = attribute.value
    numbers = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return numbers and not bool(np.isfinite(value).all())


def _with_marks(missing: Attribute | None, nc_type: str, marks: Sequence[Any]) -> Attribute:
    """Return the ``missing_value`` of a variable with marks that ``_FillValue`` cannot have."""
    before = () if missing is None or isinstance(missing.value, str) else missing.value
    if nc_type in ("char", "string"):
        texts = dict.fromkeys([*(one for one in before if isinstance(one, str)), *marks])
        return Attribute("missing_value", "string", tuple(texts))
    numbers = list(dict.fromkeys([*(one for one in before if not isinstance(one, str)), *marks]))
    return Attribute("missing_value", nc_type, np.array(numbers).astype(NC_DTYPES[nc_type]))


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
        return replace(group, variables=found)

    root = rebuilt(opened.hierarchy.root, kept)
    problems = (*opened.hierarchy.problems, *damaged.values())
    hidden = (*opened.hierarchy.hidden, *lost.values())
    hierarchy = replace(opened.hierarchy, root=root, problems=problems, hidden=hidden)
    return replace(opened, hierarchy=hierarchy)


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
    assert variable.array is not None
    array = BytesArray(variable.array.path, variable.shape, opened.reader(variable))
    return replace(as_byte(variable), array=array, padding=None)


# -- names and dimensions as netCDF can have them --------------------------------------------------


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
