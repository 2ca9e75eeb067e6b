"""The check of what releases of netCDF-C read."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.profiles import COMPAT, Profile
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.finding import Finding, Severity
from nczarr_xarray.tools.validate.subject import Subject

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
