"""Checks of documents of Zarr 2: what netCDF-C reads of each, and consolidated copies of them.

This package reads all of it. netCDF-C does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from nczarr_fsspec.errors import FormatError, IncompleteExportError, NCZarrError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.attributes import HIDDEN
from nczarr_xarray.formats.nczarr.documents import KEY, Consolidated
from nczarr_xarray.formats.nczarr.jsontext import JSON, has_remains, is_standard, loads, same
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.checks import Finding, Severity, some
from nczarr_xarray.tools.checks.commands import command
from nczarr_xarray.tools.checks.metadata import dimensions
from nczarr_xarray.tools.checks.subject import Subject


def _obstacles(zarray: dict[str, JSON]) -> Iterator[str]:
    """Yield what netCDF-C cannot cope with in a ``.zarray``, apart from what the model shows."""
    if zarray.get("filters") == []:
        yield "'filters' is [], at which netCDF-C crashes"
    if "order" not in zarray:
        yield "'order' is missing, without which netCDF-C crashes"
    dtype = zarray.get("dtype")
    if isinstance(dtype, str) and dtype[:1] == "|" and dtype[1:2] in "iuf" and dtype[2:] != "1":
        yield f"the dtype {dtype!r} has no byte order: netCDF-C swaps the bytes"


def arrays(subject: Subject) -> Iterator[Finding]:
    """Find members of ``.zarray`` at which netCDF-C crashes or reads wrong values."""
    # pure Zarr need not be for netCDF-C
    severity: Severity = "warning" if subject.is_nczarr else "note"
    advice = "'nczarr upgrade' writes the metadata anew; or correct the member by hand"
    for variable in subject.variables if subject.is_zarr2 else ():
        path = variable.path.strip("/")
        zarray = subject.node(path).get(".zarray")
        for text in _obstacles(zarray) if isinstance(zarray, dict) else ():
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
        key, values = f"{path}/.zattrs".lstrip("/"), values if isinstance(values, dict) else {}
        for name in [name for name in {**types, **values} if name not in HIDDEN]:
            text = ""
            if name not in values:
                text = f"has a type for the attribute {name!r}, which is not there"
                advice = "remove the type, or add the attribute"
            elif types.get(name) == "|J0":
                text = f"gives the attribute {name!r} the type |J0, which is for NCZarr's own"
                advice = "netCDF-C fails: correct the type"
            elif values[name] == [] and name not in types:
                text = f"the attribute {name!r} is empty and has no type: netCDF-C fails"
                advice = "add its type, or remove it"
            if text:
                yield Finding("warning", "attribute-type", key, text, advice)


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


# -- consolidated metadata -------------------------------------------------------------------------


def consolidated(subject: Subject) -> Iterator[Finding]:
    """Find ``.zmetadata`` that is damaged, or differs from the documents."""
    data = subject.found.get(KEY) if subject.is_zarr2 else None
    if data is None:
        return
    anew = f"make it anew: {command(subject, 'validate', '--fix')}"
    try:
        known = Consolidated.parse(loads(data, KEY)).documents
    except FormatError as error:
        text = f"{error.reason}: readers that trust it fail"
        yield Finding("warning", "consolidated-damaged", KEY, text, anew)
        return
    only = sorted(_only_copies(subject, known))
    if only:
        text = f"has {len(only)} documents that are missing or damaged themselves: {some(only)}"
        advice = "if they are right, write these documents under their own keys"
        yield Finding("warning", "consolidated-only", KEY, text, advice)
        return
    known = {key: _own(document) for key, document in known.items()}
    own = _documents(subject)
    there = {key: document for key, document in subject.documents.items() if key != KEY}
    stale = [key for key, document in own.items() if not same(document, known.get(key))]
    # what no group lists may be repeated as well, as it is
    stale += [key for key in known.keys() - own.keys() if not same(known[key], there.get(key))]
    if stale:
        text = f"is stale: {len(stale)} documents differ: {some(sorted(stale))}"
        yield Finding("warning", "consolidated-stale", KEY, text, anew)


def _own(document: JSON) -> JSON:
    """Return a document without what zarr-python adds to groups here: all that is below them."""
    if isinstance(document, dict):
        return {name: one for name, one in document.items() if name != "consolidated_metadata"}
    return document


def _only_copies(subject: Subject, known: Mapping[str, JSON]) -> Iterator[str]:
    """Yield documents that are missing or damaged themselves, though their node is there."""
    assert subject.opened is not None
    keys = subject.keys or ()
    broken = {v.path.strip("/") for v in subject.variables if _is_broken(subject.error(v))}
    broken |= {finding.path.strip("/") for finding in dimensions(subject)}
    damaged = {problem.object for problem in subject.opened.hierarchy.problems}
    for key, document in known.items():
        path = key.rpartition("/")[0]
        start = f"{path}/" if path else ""
        at = bisect_left(keys, start)
        is_there = at < len(keys) and keys[at].startswith(start)
        if key not in subject.documents:
            is_only = is_there or path in broken
        else:  # what is valid JSON may be damaged, too
            suspect = path in broken or key in damaged
            is_only = suspect and not same(document, subject.documents[key])
        if is_only:
            yield key


def _is_broken(error: NCZarrError | None) -> bool:
    """Tell whether the metadata of a variable may be damaged; chunks may be still to come."""
    return error is not None and not isinstance(error, IncompleteExportError)


def _documents(subject: Subject) -> dict[str, JSON]:
    """Return the documents of all groups and variables, by key."""
    paths = [group.path for group in subject.groups] + [v.path for v in subject.variables]
    found = {}
    for path in paths:
        start = f"{path.strip('/')}/".lstrip("/")
        for name in {*spellings.GROUP_FILES, *spellings.ARRAY_FILES}:
            if start + name in subject.documents:
                found[start + name] = subject.documents[start + name]
    return found
