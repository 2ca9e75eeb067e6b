"""New values in the form of those that are stored: as these are packed, spelt and rounded.

What the stored form cannot hold, or not without loss, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.dataset.units import TimeConversion, same_time_units, time_conversion
from nczarr_xarray.export.form.attributes import encode_attribute, same_value
from nczarr_xarray.export.form.encode import Options, encoded
from nczarr_xarray.export.form.numbers import with_one_fill
from nczarr_xarray.export.form.rounding import rounding_of
from nczarr_xarray.export.form.storage import netcdf_text, netcdf_type
from nczarr_xarray.export.form.text import as_stored, decoded, excess
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.model import ChunkedArray, Group, Variable, join

#: Calendars whose dates xarray reads as numpy's.
_STANDARD = {"standard", "gregorian", "proleptic_gregorian"}
#: What of an encoding makes dates of numbers.
_UNITS = frozenset({"units", "calendar"})


class NewValues(NamedTuple):
    """New values of a stored variable, encoded, and how they are rounded before they are stored."""

    variable: Variable
    source: xr.Variable
    rounding: Rounding | None


class StoredForms:
    """The forms of the variables of an existing group, for new values.

    Parameters
    ----------
    group
        The group.
    stored
        The same for xarray.
    array_of
        Returns how the data of a variable are written.

    Attributes
    ----------
    problems
        Why new values cannot be stored.
    """

    def __init__(
        self, group: Group, stored: xr.Dataset, array_of: Callable[[Variable], ChunkedArray]
    ) -> None:
        self.group = group
        self.stored = stored
        self.array_of = array_of
        self.problems: list[str] = []

    def encoded(self, dataset: xr.Dataset) -> list[NewValues]:
        """Return the variables of `dataset`, encoded as the stored ones are."""
        dataset, numbers, refused = self._in_stored_units(dataset)
        for name, variable in dataset.variables.items():
            problem = None if name in {*refused, *numbers} else self._refusal(name, variable)
            if problem is not None:
                refused[name] = problem
        for name, problem in refused.items():
            self.problems.append(f"{join(self.group.path, str(name))}: {problem}")
        dataset = dataset.drop_vars([*refused])
        forms = {name: self._form(str(name), v) for name, v in dataset.variables.items()}
        for name in numbers & forms.keys():
            forms[name] = {key: forms[name][key] for key in forms[name].keys() - _UNITS}
        whole = numbers | {name for name, v in dataset.variables.items() if v.dtype.kind in "iumMO"}
        options = Options(forms, whole=whole)
        found = encoded(self.group.path, dataset, options, frozenset())
        self.problems += found.problems
        given = {name: frozenset(v.attrs) for name, v in dataset.variables.items()}
        items = (self._item(str(name), v, given[name]) for name, v in found.variables.items())
        return [item for item in items if item is not None]

    def _form(self, name: str, new: xr.Variable) -> dict[str, Any]:
        """Return the encoding of a stored variable for new values of it."""
        stored, path = self.group.variables[name], join(self.group.path, name)
        form = {"_FillValue": None, **with_one_fill(path, self.stored.variables[name].encoding)}
        form.pop("char_dim_name", None)  # shorter text has another; see `as_stored`
        if netcdf_text(stored).nc_type == "string" and new.dtype.kind == "S":
            form["dtype"] = str  # bytes stay whole
        return form

    def _in_stored_units(
        self, dataset: xr.Dataset
    ) -> tuple[xr.Dataset, set[Hashable], dict[Hashable, str]]:
        """Convert numbers of times to the stored units.

        So data are that were opened with ``decode_times=False``, or that models write.

        Returns
        -------
        dataset, numbers, refused
            The converted values, whose they are, and why others cannot be converted.
        """
        found, refused = {}, {}
        for name, new in dataset.variables.items():
            stored = self.stored.variables.get(name)
            if stored is None or new.dtype.kind not in "iuf" or "units" not in stored.encoding:
                continue
            owner = next((v for v in dataset.variables.values() if name in _bounds(v)), new)
            told = {**owner.attrs, **new.attrs}
            units, wanted = told.get("units"), str(stored.encoding["units"])
            if units is None:
                reason = f"holds numbers without units, and times are stored ({wanted})"
                refused[name] = f"{reason}: give it its units as an attribute, or times"
                continue
            try:
                found[name] = _in_units(new, str(units), told.get("calendar"), stored.encoding)
            except ValueError as error:
                reason = f"is in {units!r}, and times are stored in {wanted!r}: {error}"
                refused[name] = f"{reason}; give it times of the stored calendar"
        return dataset.assign(found) if found else dataset, {*found}, refused

    def _refusal(self, name: Hashable, new: xr.Variable) -> str | None:
        """Say why the stored type cannot hold the values, or not without loss; None if it can."""
        variable = self.group.variables.get(str(name))
        if variable is None:
            return f"is not in {self.group.path}; write it with mode='a'"
        if variable.error is not None:
            return str(variable.error)
        return type_refusal(new, self.stored.variables[name])

    def _item(self, name: str, source: xr.Variable, given: frozenset[Any]) -> NewValues | None:
        variable = self.group.variables[name]
        array = self.array_of(variable)
        names = self.dimension_names(variable)
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
            self.problems.append(f"{variable.path}: {problem}")
            return None
        return NewValues(variable, source, rounding_of(variable))

    def dimension_names(self, variable: Variable) -> tuple[Hashable, ...]:
        """Return the dimension names of the dataset, with those that char arrays hide."""
        seen = self.stored.variables[variable.name].dims
        rest = [d.name for d in variable.dimensions][len(seen) :]
        return (*seen, *rest)


def type_refusal(new: xr.Variable, stored: xr.Variable) -> str | None:
    """Say why the stored type cannot hold the values, or not without loss; None if it can."""
    ours, theirs = np.dtype(new.dtype), np.dtype(stored.dtype)
    if theirs.kind in "MO" and "calendar" in stored.encoding:
        # xarray would store a date of another calendar as that of the same name in this one
        told, known = _calendar(new), str(stored.encoding["calendar"])
        if told is not None and told != known and not {told, known} <= _STANDARD:
            return f"has dates of the calendar {told!r}, stored in {known!r}; convert them"
        if told is not None:
            return None
    if ours == theirs or (ours.kind == theirs.kind and ours.kind in "MmOUS"):
        return None
    if {ours.kind, theirs.kind} <= set("OUST"):
        return None
    # numbers have no unit of time, and numpy casts everything to objects
    if theirs.kind not in "mO" and np.can_cast(ours, theirs, "safe"):
        return None
    packed = {"scale_factor", "add_offset"} & stored.encoding.keys()
    if packed and ours.kind == theirs.kind == "f":
        return None  # packed values have fewer digits than both types
    return (
        f"is of type {ours}, stored as {theirs}, which may not hold all of it: give values of that "
        "type, or write the whole variable anew with mode='a'"
    )


def _bounds(variable: xr.Variable) -> set[Any]:
    """Return the names of the bounds of a variable, which have its units."""
    told = {**variable.encoding, **variable.attrs}
    return {told.get("bounds"), told.get("climatology")}


def _in_units(
    new: xr.Variable, units: str, calendar: Any, stored: Mapping[str, Any]
) -> xr.Variable:
    """Return numbers of times in the units of a stored encoding; errors as `time_conversion`."""
    own = None if calendar is None else str(calendar)
    convert = time_conversion(units, own, str(stored["units"]), stored.get("calendar"))
    found = new.copy(deep=False)
    found.attrs = {key: new.attrs[key] for key in new.attrs.keys() - _UNITS}
    if convert is not None:
        exact = new.dtype.kind in "iu" and convert.divisor == 1
        step = partial(_cast, convert, np.dtype("i8" if exact else "f8"))
        lazy = new.chunks is not None
        data = new.data.map_blocks(step, dtype=step.args[1]) if lazy else step(new.to_numpy())
        found = xr.Variable(new.dims, data, found.attrs)
    return found


def _cast(convert: TimeConversion, dtype: np.dtype, block: np.ndarray) -> np.ndarray:
    return convert(block).astype(dtype)


def attribute_refusal(
    variable: Variable, stored: xr.Variable, attributes: Mapping[Any, Any], given: frozenset[Any]
) -> str | None:
    """Say which attributes differ from those of the stored variable; None if none does.

    Parameters
    ----------
    stored
        The variable as xarray reads it.
    attributes, given
        Of the new values when they are encoded, and the names of those that are not by that.
    """
    different = []
    # readers that know no enums, such as netCDF-C, show the flags of one as attributes
    known = variable.attributes if variable.enum is None else as_flags(variable)
    for name, value in attributes.items():
        if name == "units" and name not in given:
            # xarray chooses finer units if the stored ones are too coarse
            stated = variable.attributes.get("units")
            stored_units = (
                # bounds have the units of their coordinate
                stored.encoding.get("units") if stated is None else attribute_value(stated)
            )
            if stored_units is None:
                return f"needs the units {value!r}, and is stored without units"
            calendars = attributes.get("calendar"), stored.encoding.get("calendar")
            if not same_time_units(str(value), calendars[0], str(stored_units), calendars[1]):
                return (
                    f"needs the units {value!r}, and is stored in {stored_units!r}: write what "
                    "is stored with mode='a' and these units in its encoding first"
                )
        if name not in given:
            continue
        old = known.get(str(name))
        try:
            new = encode_attribute(str(name), value)
        except ValueError as error:
            return f"attribute {name!r} {error}"
        if old is None or not same_value(attribute_value(new), attribute_value(old)):
            different.append(str(name))
    if not different:
        return None
    return (
        f"has other attributes than those stored: {', '.join(different)} (drop them, or change "
        "the whole variable with mode='a')"
    )


def _calendar(variable: xr.Variable) -> str | None:
    """Return the calendar of dates; None if these are none."""
    try:
        return str(xr.DataArray(variable).dt.calendar)
    except AttributeError:
        return None
