"""Why new values do not fit stored ones: their types and calendars, and their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from nczarr_xarray.dataset.shown import attribute_value
from nczarr_xarray.dataset.time_units import same_time_units
from nczarr_xarray.export.form.attributes import encode_attribute, same_value
from nczarr_xarray.formats.nczarr.enums import as_flags
from nczarr_xarray.model import Variable

#: Calendars whose dates xarray reads as numpy's.
_STANDARD = {"standard", "gregorian", "proleptic_gregorian"}


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
    return f"is of type {ours}, stored as {theirs}; convert it with astype"


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
