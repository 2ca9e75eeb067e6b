"""What a master says of variables that are fragments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import quote

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.places.address import is_absolute
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.places.url import CONTROL
from nczarr_xarray.export.cfa.content import Member, in_one_chunk, whole
from nczarr_xarray.export.cfa.master_place import MasterPlace
from nczarr_xarray.export.form.attributes import encode_attribute
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.formats.cfa.decode import WRITABLE
from nczarr_xarray.formats.cfa.dialect import (
    DATA_CONVENTIONS,
    Encoded,
    Term,
    WritableDialect,
    text_in,
)
from nczarr_xarray.formats.cfa.table import PACKING, packing_attributes, read_as, stated_numbers
from nczarr_xarray.formats.nczarr.attributes import as_flags
from nczarr_xarray.model import (
    NC_DTYPES,
    Attribute,
    Dimension,
    Fragments,
    Variable,
    join,
)

_PACKED = (*PACKING, "missing_value", "valid_min", "valid_max", "valid_range", "actual_range")
#: The conventions that CFA extends, where a dataset says nothing of any.
_CF = "CF-1.8"
#: Says in a fragment how the aggregation unpacks it.
_NOTE = "aggregation_packing"


def dialect_called(version: str, url: str) -> WritableDialect:
    """Return the dialect that is written as a version of the convention.

    Raises
    ------
    ExportError
        If there is none.
    """
    for dialect in WRITABLE:
        if dialect.name == version:
            return dialect
    known = ", ".join(sorted(dialect.name for dialect in WRITABLE))
    raise ExportError(url, f"cannot be written as CFA version {version!r}; write one of {known}")


def address_of(
    place: MasterPlace, target: str, dialect: WritableDialect, *, relative: bool | None
) -> str:
    """Return how a master names a file.

    Parameters
    ----------
    target
        Absolute path or URL of the file.
    relative
        Whether the address is relative to the folder of the master, for a file below that. None
        for what is best with this dialect.

    Raises
    ------
    ExportError
        If the name has control characters and is not encoded: no reader takes such an address.
    """
    plain = dialect.plain_addresses
    key = target.removeprefix(place.folder)
    inside = key not in (target, "")
    is_path = not names_url(target)
    encoded = quote(os.fsencode(target))
    # where there is another file of the encoded name, that would be read
    as_it_is = plain or not is_path or (encoded != target and os.path.lexists(encoded))
    if inside and (relative or (relative is None and not plain)):
        found = key if as_it_is else quote(os.fsencode(key))
        found = f"./{found}" if is_path and is_absolute(found) else found
    else:
        found = target if as_it_is else f"file://{encoded}"
    if CONTROL.search(found):
        raise ExportError(
            target,
            "has control characters in its name, which addresses of cfa_version="
            f"{dialect.name!r} cannot have",
        )
    return found


def held_dimensions(
    dimensions: Iterable[Dimension], data: Iterable[Variable]
) -> dict[str, Dimension]:
    """Return dimensions as a master has them, by path.

    One that the master has no data along cannot be unlimited: its length would be lost.

    Parameters
    ----------
    data
        Variables whose data the master holds.
    """
    used = {d.path for v in data if 0 not in v.shape for d in v.dimensions}
    return {d.path: replace(d, unlimited=d.unlimited and d.path in used) for d in dimensions}


def as_fragments(variable: Variable, dialect: WritableDialect) -> Variable:
    """Return a variable as its fragments have it.

    Where fragments are unpacked before they are aggregated, they hold packed numbers as such, and
    the aggregation says how they are packed. So every program reads the same values, those that
    unpack no fragments too, and the aggregation keeps its packing. A note remains for people.
    """
    packing = packing_attributes(variable)
    if dialect.keeps_packing or not packing:
        return variable
    said = " ".join(f"{name}: {_shown(attribute)}" for name, attribute in packing.items())
    attributes = {k: a for k, a in variable.attributes.items() if k not in packing}
    attributes[_NOTE] = Attribute(_NOTE, "char", said)
    return replace(variable, attributes=attributes)


def _shown(attribute: Attribute) -> str:
    value = attribute.value
    return " ".join(map(repr, value.tolist())) if isinstance(value, np.ndarray) else str(value)


def unpacked(variable: Variable) -> Variable:
    """Return a variable as an aggregation has it whose fragments are unpacked first.

    Its numbers are those that packed ones stand for, so that what speaks of packed ones is left
    out.
    """
    packing = packing_attributes(variable)
    if not packing:
        return variable
    dtype = read_as(variable)
    packing.pop("_Unsigned", None)
    attributes = {k: a for k, a in variable.attributes.items() if k not in _PACKED}
    attributes.pop("_FillValue", None)
    marks = stated_numbers(variable)
    before = dtype
    own = [np.asarray(attribute.value).dtype for attribute in packing.values()]
    if "add_offset" in packing and [one.kind for one in own] != ["f", "f"]:
        own.append(np.dtype(np.float64))  # as xarray does: a sum may need more digits
    dtype = np.result_type(dtype, *own)
    nc_type = netcdf_type(dtype)
    assert nc_type is not None  # numbers that netCDF has become others that it has
    missing = None
    if dtype.kind == "f":  # without a fill value, netCDF's default is missing among packed numbers
        missing = np.array([np.nan])
    elif marks:
        missing = np.array(marks[:1]).astype(before, casting="unsafe")
    if missing is not None:
        attributes["_FillValue"] = Attribute("_FillValue", nc_type, missing.astype(dtype))
    return replace(variable, nc_type=nc_type, dtype=NC_DTYPES[nc_type], attributes=attributes)


def without_enum(variable: Variable) -> Variable:
    """Return a variable with attributes of its own; what is an enum becomes numbers with flags."""
    if variable.enum is None:
        return replace(variable, attributes=dict(variable.attributes))
    return replace(variable, attributes=as_flags(variable), enum=None)


def aggregation(variable: Variable, fragments: Fragments, dialect: WritableDialect) -> list[Member]:
    """Return what a master has of a variable: a scalar, and the variables of its table.

    Parameters
    ----------
    variable
        As the aggregation is, with the dimensions of its data.
    """
    dimensions = tuple((d.name, d.size) for d in variable.dimensions)
    encoded: Encoded = dialect.encode(variable.name, dimensions, fragments)
    attributes = dict(variable.attributes)
    for name, value in encoded.attributes.items():
        attributes[name] = encode_attribute(name, value)
    scalar = replace(
        variable,
        dimensions=(),
        attributes=attributes,
        array=whole(variable, ()),
        dtype=NC_DTYPES[str(variable.nc_type)],
        padding=None,
    )
    return [Member(scalar), *(_term(term, variable.group) for term in encoded.terms)]


def _term(term: Term, owner: str) -> Member:
    """Return a variable of a table, which is in the group of its owner or below that."""
    above, _, name = term.path.strip("/").rpartition("/")
    group = join(owner, above) if above else owner
    values = np.asarray(term.values)
    nc_type = "string" if values.dtype.kind in "OSU" else netcdf_type(values.dtype)
    dimensions = tuple(Dimension(short, size, group=group) for short, size in term.dimensions)
    attributes: dict[str, Attribute] = {
        key: encode_attribute(key, value) for key, value in term.attributes.items()
    }
    variable = Variable(name, group, dimensions, nc_type, values.dtype, attributes)
    return in_one_chunk(variable, values)


def conventions(
    attributes: Mapping[str, Attribute], dialect: WritableDialect
) -> dict[str, Attribute]:
    """Return the attributes of a dataset, with the conventions that a master follows.

    Those that the data follow are noted, if they are others.
    """
    words = (text_in(attributes, "Conventions") or "").replace(",", " ").split()
    wanted = dialect.conventions.replace(",", " ").split()
    kinds = {word.partition("-")[0] for word in wanted} | {"CFA"}
    kept = [word for word in words if word.partition("-")[0] not in kinds]
    if not any(word.startswith("CF-") for word in (*kept, *wanted)):
        kept.insert(0, _CF)  # readers look for both
    text = " ".join([*wanted, *kept] if "CF" in kinds else [*kept, *wanted])
    found = {**attributes, "Conventions": Attribute("Conventions", "char", text)}
    if text_in(attributes, "Conventions") != text:
        own = attributes.get("Conventions") or Attribute("Conventions", "char", "")
        found[DATA_CONVENTIONS] = replace(own, name=DATA_CONVENTIONS)
    return found


def plain_conventions(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes of a master as a fragment has them, which is no aggregation."""
    found = dict(attributes)
    words = (text_in(found, "Conventions") or "").replace(",", " ").split()
    kept = " ".join(word for word in words if not word.startswith("CFA"))
    found.pop("Conventions", None)
    if kept:
        found["Conventions"] = Attribute("Conventions", "char", kept)
    return found
