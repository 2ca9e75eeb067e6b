"""The check of aggregations: that all their fragments are there and fit."""

from __future__ import annotations

from collections.abc import Iterator

from nczarr_fsspec.errors import AccessDeniedError, StoreError
from nczarr_xarray.dataset.fragments import FragmentReader
from nczarr_xarray.formats.cfa.variables import aggregated
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.validate.subject import Subject


def fragments(subject: Subject) -> Iterator[Finding]:
    """Open all fragments of aggregations, and find those that are missing or do not fit."""
    if subject.opened is not None:
        yield from fragment_faults(subject.opened.hierarchy)


def fragment_faults(hierarchy: Hierarchy) -> Iterator[Finding]:
    """Do as `fragments` does, of the metadata of an aggregation."""
    for variable, array in aggregated(hierarchy):
        reader = array.selections(None)
        assert isinstance(reader, FragmentReader)
        for number, fault in reader.faults():
            path = f"{variable.path} fragment {array.fragments.position(number)}"
            if isinstance(fault, AccessDeniedError):
                code, advice = "fragment-denied", "allow its address: --allow"
            elif isinstance(fault, StoreError):
                code, advice = "fragment-missing", "restore it, or say where it is: --replace"
            else:
                code, advice = "fragment-misfit", "restore it, or make the aggregation anew"
            yield Finding("error", code, path, str(fault), advice)
