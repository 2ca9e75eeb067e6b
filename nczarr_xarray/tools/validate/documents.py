"""Checks of single documents of Zarr 2 against what netCDF-C reads.

This package reads all of it. netCDF-C does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.attributes import HIDDEN
from nczarr_xarray.formats.nczarr.jsontext import JSON, has_remains, is_standard
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.finding import Finding, Severity
from nczarr_xarray.tools.validate.subject import Subject


def _filters(zarray: dict[str, JSON]) -> str | None:
    return "'filters' is [], at which netCDF-C crashes" if zarray.get("filters") == [] else None


def _order(zarray: dict[str, JSON]) -> str | None:
    return None if "order" in zarray else "'order' is missing, without which netCDF-C crashes"


def _byte_order(zarray: dict[str, JSON]) -> str | None:
    dtype = zarray.get("dtype")
    if isinstance(dtype, str) and dtype[:1] == "|" and dtype[1:2] in "iuf" and dtype[2:] != "1":
        return f"the dtype {dtype!r} has no byte order: netCDF-C swaps the bytes"
    return None


#: What netCDF-C cannot cope with in a ``.zarray``, apart from what `compat` finds in the model.
_RULES: tuple[Callable[[dict[str, JSON]], str | None], ...] = (
    _filters,
    _order,
    _byte_order,
)


def arrays(subject: Subject) -> Iterator[Finding]:
    """Find members of ``.zarray`` at which netCDF-C crashes or reads wrong values."""
    # pure Zarr need not be for netCDF-C
    severity: Severity = "warning" if subject.is_nczarr else "note"
    advice = "'nczarr upgrade' writes the metadata anew; or correct the member by hand"
    for variable in subject.variables if subject.is_zarr2 else ():
        path = variable.path.strip("/")
        zarray = subject.node(path).get(".zarray")
        if not isinstance(zarray, dict):
            continue
        for rule in _RULES:
            text = rule(zarray)
            if text is not None:
                yield Finding(severity, "netcdf-c", f"{path}/.zarray", text, advice)


def attribute_types(subject: Subject) -> Iterator[Finding]:
    """Find types without an attribute, and attributes that have no value to take a type from."""
    if not subject.is_nczarr:
        return
    paths = [group.path for group in subject.groups] + [v.path for v in subject.variables]
    for path in (path.strip("/") for path in paths):
        documents = subject.node(path)
        values = documents.get(".zattrs", {})
        try:
            types = spellings.attribute_types(documents, path)
        except ValueError:  # `metadata.groups` has it
            continue
        key = f"{path}/.zattrs".lstrip("/")
        for name in types if isinstance(values, dict) else ():
            if name not in values and name not in HIDDEN:
                text = f"has a type for the attribute {name!r}, which is not there"
                yield Finding(
                    "warning", "attribute-type", key, text, "remove the type, or add the attribute"
                )
            elif types[name] == "|J0" and name not in HIDDEN:
                text = f"gives the attribute {name!r} the type |J0, which is for NCZarr's own"
                yield Finding(
                    "warning", "attribute-type", key, text, "netCDF-C fails: correct the type"
                )
        for name, value in values.items() if isinstance(values, dict) else ():
            if value == [] and name not in types and name not in HIDDEN:
                text = f"the attribute {name!r} is empty and has no type: netCDF-C fails"
                yield Finding("warning", "attribute-type", key, text, "add its type, or remove it")


def array_dimensions(subject: Subject) -> Iterator[Finding]:
    """Find arrays of NCZarr whose ``_ARRAY_DIMENSIONS`` are not their dimensions."""
    for variable in subject.variables if subject.is_nczarr else ():
        path = variable.path.strip("/")
        values = subject.node(path).get(".zattrs")
        names = values.get("_ARRAY_DIMENSIONS") if isinstance(values, dict) else None
        own = [dim.name for dim in variable.dimensions]
        if names is None or variable.error is not None or names == own:
            continue
        if isinstance(variable.array, FragmentArray):  # stored as a scalar
            continue
        if own or names != ["_scalar_"]:
            text = f"_ARRAY_DIMENSIONS are {names}, the dimensions {own}"
            advice = "readers of pure Zarr see other names: 'nczarr upgrade' writes them anew"
            yield Finding("warning", "array-dimensions", f"{path}/.zattrs", text, advice)


def dialect(subject: Subject) -> Iterator[Finding]:
    """Find documents that are JSON in netCDF-C's dialect only, or not even that."""
    # pure Zarr need not be for netCDF-C
    severity: Severity = "warning" if subject.is_nczarr else "note"
    for key in subject.documents if subject.is_zarr2 else ():
        if is_standard(subject.found[key]):
            continue
        if has_remains(subject.found[key]):
            text = "is followed by the end of an older document: netCDF-C does not open the dataset"
            yield Finding(severity, "netcdf-c", key, text, "'nczarr upgrade' writes it anew")
        else:
            text = "is not standard JSON (bare NaN, trailing commas, or what netCDF-C 4.8 escaped)"
            advice = "strict readers refuse it: 'nczarr upgrade' writes it anew"
            yield Finding("note", "dialect", key, text, advice)
