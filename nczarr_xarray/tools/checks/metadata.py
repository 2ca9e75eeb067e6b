"""Checks of the metadata as they are understood, and of who else understands them."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_fsspec.errors import FormatError, IncompleteExportError, NCZarrError, UnsupportedError
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.documents import KEY
from nczarr_xarray.formats.nczarr.jsontext import dumps
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import COMPAT, Profile
from nczarr_xarray.formats.zarr3.array import FILE
from nczarr_xarray.model import AmbiguousNameError, FragmentArray
from nczarr_xarray.tools.checks import Finding, Severity, some
from nczarr_xarray.tools.checks.subject import Subject

_RESTORE = "restore the object from a copy, or correct it by hand"
_AGAIN = "get the file again, or restore it from a copy: nothing else brings the bytes back"
#: What to do with data that no installed package reads.
ELSEWHERE = "it may be sound: read it with a program that has the codec or type"


def opening(subject: Subject) -> Iterator[Finding]:
    """Find what keeps the dataset from being opened at all."""
    failure = subject.failure
    if isinstance(failure, FormatError):  # else it is of a writer: see `leftovers`
        advice = "nothing of the dataset can be read until this is put right: restore it"
        yield Finding("error", "unreadable", failure.object, failure.reason, advice)


def variables(subject: Subject) -> Iterator[Finding]:
    """Find variables that cannot be read because of their metadata."""
    told = {finding.path for finding in dimensions(subject)}
    for variable in subject.variables:
        found = subject.error(variable)
        if isinstance(found, UnsupportedError):
            yield _unsupported(variable.path, found)
        elif found is None or isinstance(found, IncompleteExportError):
            continue  # the mark of an export is a finding of its own
        elif variable.path not in told:
            yield Finding("error", "metadata", found.object, found.reason, _advice(found, _RESTORE))


def _advice(found: NCZarrError, advice: str) -> str:
    """Return what to do about an object, or about the whole file if a part of it is lost."""
    return _AGAIN if "truncated" in found.reason else advice


def _unsupported(path: str, found: UnsupportedError) -> Finding:
    return Finding("note", "unsupported", path, found.reason, ELSEWHERE)


def groups(subject: Subject) -> Iterator[Finding]:
    """Find what is left out or repaired when the dataset is opened."""
    for problem in subject.opened.hierarchy.problems if subject.opened is not None else ():
        if isinstance(problem, UnsupportedError):
            yield _unsupported(problem.object, problem)
        elif isinstance(problem, AmbiguousNameError):
            advice = "not all programs open such groups: give each length a name of its own, "
            advice += "unless a convention (OME-Zarr) wants one name"
            yield Finding("warning", "dimension-names", problem.object, problem.reason, advice)
        else:
            advice = "readers leave it out or guess: correct the metadata"
            yield Finding(
                "warning", "left-out", problem.object, problem.reason, _advice(problem, advice)
            )


def root(subject: Subject) -> Iterator[Finding]:
    """Find documents of the root that are lost, though the dataset opens without them."""
    if subject.opened is None:
        return
    name = FILE if subject.generation == "v3" else ".zgroup" if subject.is_zarr2 else None
    # (documents that are in .zmetadata only are a finding of their own)
    if name is not None and not {name, KEY}.intersection(subject.keys or {name}):
        text = "is missing: attributes may be lost, and many readers do not open the dataset"
        yield Finding("warning", "root", name, text, _RESTORE)
    if subject.is_zarr2 and not subject.is_nczarr and (kept := sorted(_of_nczarr(subject))):
        text = "has no superblock of NCZarr, so types of attributes, and unlimited and unused "
        text += f"dimensions, are not read; but there is more of NCZarr: {some(kept)}"
        advice = f"open the dataset that these are of by its own path, or {_RESTORE}"
        yield Finding("warning", "root", "/", text, advice)


def _of_nczarr(subject: Subject) -> Iterator[str]:
    """Yield the keys of documents that have something of NCZarr."""
    for path, document in subject.documents.items():
        for file, key in (*spellings.GROUP, *spellings.ARRAY, *spellings.ATTRIBUTES):
            there = key is None or (isinstance(document, dict) and key in document)
            if there and file == path.rpartition("/")[2]:
                yield path
                break


def dimensions(subject: Subject) -> Iterator[Finding]:
    """Find arrays of NCZarr whose dimensions do not exist, or have another length."""
    lengths = {dim.path: dim.size for group in subject.groups for dim in group.dimensions.values()}
    for variable in subject.variables if subject.is_nczarr else ():
        documents = subject.node(variable.path.strip("/"))
        zarray = documents.get(".zarray")
        shape = zarray.get("shape") if isinstance(zarray, dict) else None
        try:
            references = spellings.dimension_references(documents, variable.path)
        except FormatError:
            continue  # `variables` has it
        if references is None and zarray is not None:
            text = "has no dimensions of NCZarr: its attributes may be lost"
            yield Finding("warning", "dimension-rank", variable.path, text, _RESTORE)
            continue
        if references is None or not isinstance(shape, list):
            continue
        if len(references) != len(shape) and (references or shape not in ([], ["1"])):
            yield Finding(
                "error",
                "dimension-rank",
                variable.path,
                f"refers to {len(references)} dimensions and has shape {dumps(shape)}",
                _RESTORE,
            )
            continue
        for reference, size in zip(references, shape, strict=False):
            path = f"/{reference.strip('/')}"
            if path not in lengths:
                text = f"refers to the dimension {path!r}, which no group declares"
                advice = "netCDF-C crashes at it: declare the dimension in the list of its group"
                yield Finding("error", "dimension-missing", variable.path, text, advice)
            elif str(lengths[path]) != size:
                text = f"has length {size} along {path!r}, which has length {lengths[path]}"
                advice = "netCDF-C opens nothing of the dataset: make the two lengths equal"
                yield Finding("error", "dimension-length", variable.path, text, advice)


# -- releases of netCDF-C --------------------------------------------------------------------------

#: The releases that read each generation.
_READERS = {
    "G1": "no release of netCDF-C reads it reliably: netCDF-C 4.8.0 wrote it",
    "G2U": "netCDF-C 4.8.1 and 4.9.0 read it",
    "G2L": "netCDF-C 4.9.1 and 4.9.2 read it",
    "G2A": "netCDF-C 4.9.3 and later read it",
    "v2": "pure Zarr 2, without types and unlimited dimensions of netCDF",
}


def releases(subject: Subject) -> Iterator[Finding]:
    """Say which releases of netCDF-C read the dataset."""
    if subject.is_zarr2:
        text = _READERS[subject.generation]
        if subject.generation == "G2L" and _is_safe_later(subject):
            text = f"{text}, later ones too"
        advice = (
            "" if subject.generation == "G2A" else "for other releases: nczarr upgrade --compat"
        )
        yield Finding("note", "compat", "/", text, advice)


def obstacles(subject: Subject) -> Iterator[Finding]:
    """Find what the releases that read the generation would not read back."""
    known = COMPAT.values() if subject.is_nczarr else ()
    generation = next((one for one in known if one == subject.generation), None)
    if generation is None or subject.opened is None:
        return
    # old releases cannot do all that they wrote
    severity: Severity = "warning" if generation == "G2A" else "note"
    others = tuple(  # which are findings of their own, or scalars as they are stored
        f"{variable.path}: "
        for variable in subject.variables
        if variable.error is not None or isinstance(variable.array, FragmentArray)
    )
    for line in problems(subject.opened.hierarchy.root, Profile(generation)):
        if not line.startswith(others):
            path, _, text = line.partition(": ")
            yield Finding(severity, "netcdf-c", path, text, "'nczarr copy' writes another form")


def _is_safe_later(subject: Subject) -> bool:
    """Tell whether 4.9.3 and later read G2L: with attributes everywhere, and without scalars."""
    return all(
        variable.dimensions and ".zattrs" in subject.node(variable.path.strip("/"))
        for variable in subject.variables
    )
