"""An aggregation of what kerchunk references name: variables of files, of which they are chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.changes.journal import base_of
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.checks import equal_values
from nczarr_xarray.aggregation.referenced_files import Finder, Referenced
from nczarr_xarray.aggregation.summary import describe
from nczarr_xarray.aggregation.whole_variables import ArrayReferences, Placements
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.formats.cfa.table import fill_of
from nczarr_xarray.model import ChunkedArray, Fragments, Hierarchy, Variable, grid_of

#: Files that are open at a time.
_THREADS = 32
#: Chunks of an array, at most: each one is looked up.
_MOST_CHUNKS = 1 << 23
#: References that are looked up together.
_BATCH = 1 << 12
#: Bytes of a variable that no file has, at most: the aggregation holds it.
_MOST_HELD = 1 << 26


def references_of(opened: Opened) -> LocalReferences | RemoteReferences | None:
    """Return the keys of an open dataset, if they are references."""
    store = base_of(opened.store) if isinstance(opened.store, KeyStore) else None
    return store if isinstance(store, (LocalReferences, RemoteReferences)) else None


def addresses_of(opened: Opened) -> set[str]:
    """Return the addresses of the files that references name; none if they are no references."""
    keys = references_of(opened)
    if keys is None:
        return set()
    found = (_references(keys, variable) for variable in opened.hierarchy.root.all_variables())
    return {address for one in found if one is not None for address in one.addresses}


def aggregated_references(
    opened: Opened, keys: LocalReferences | RemoteReferences, policy: AddressPolicy
) -> Aggregated:
    """Return what references stand for, as an aggregation of variables of files.

    Coordinates, and what is in the references themselves, are read.

    Parameters
    ----------
    opened
        The dataset as the references describe it.
    keys
        Its references.
    policy
        What addresses mean, and which ones may be opened.

    Raises
    ------
    ExportError
        Naming the reference by which an array is not made of whole variables of files, and why.
    NCZarrError
        If something cannot be read.
    """
    hierarchy = _as_netcdf(opened.hierarchy)
    forms = describe(keys.url, hierarchy).layout.forms
    coordinates = {form.path for form in forms if form.is_coordinate}
    held: dict[str, np.ndarray] = {}
    parts: dict[str, tuple[Variable, Placements]] = {}
    for variable in hierarchy.root.all_variables():
        references = None
        if variable.path not in coordinates and variable.dimensions:
            references = _references(keys, variable)
        if references is not None and references.addresses:
            parts[variable.path] = variable, Placements(references)
        else:
            held[variable.path] = _held(opened, variable, keys.url)
    wanted: dict[str, list[Referenced]] = {}
    for variable, placements in parts.values():
        references = placements.references
        for address, numbers in references.chunks_of().items():
            wanted.setdefault(address, []).append(Referenced(variable, references, numbers))
    packings = set()
    finder = Finder(opened, policy)
    with WaitingThreads(_THREADS, thread_name_prefix="nczarr-references") as pool:
        for address, found in zip(wanted, pool.map(finder.find, wanted.items()), strict=True):
            for one in found:
                parts[one.path][1].add(address, one.placed)
                packings |= {one.packing} - {"own"}
    if len(packings) > 1:
        raise ExportError(
            keys.url,
            "unpacks some variables as their files do, and others that are not packed in their "
            "files: no aggregation says both",
        )
    tables = {path: _table(*part) for path, part in parts.items()}
    return Aggregated(hierarchy, held, tables, next(iter(packings), "own"))


def _as_netcdf(hierarchy: Hierarchy) -> Hierarchy:
    """Return what references describe in netCDF's terms: pure Zarr has no characters."""
    found = replace(hierarchy, problems=())
    for group in found.root.walk() if hierarchy.generation == "v2" else ():
        for name, variable in group.variables.items():
            if variable.dtype == np.dtype("S1"):
                group.variables[name] = replace(variable, nc_type="char")
    return found


def _references(
    keys: LocalReferences | RemoteReferences, variable: Variable
) -> ArrayReferences | None:
    """Return the references of an array; None if it is no array of Zarr 2."""
    array = variable.array
    if not isinstance(array, ChunkedArray):
        return None
    grid = grid_of(array.shape, array.chunk_shape)
    if math.prod(grid) > _MOST_CHUNKS:
        raise ExportError(
            variable.path, f"has {math.prod(grid)} chunks, of which {_MOST_CHUNKS} can be looked up"
        )
    return ArrayReferences.of(
        keys.url, array, _found(keys, map(array.chunk_name, np.ndindex(*grid)))
    )


def _found(
    keys: LocalReferences | RemoteReferences, names: Iterator[str]
) -> Iterator[bytes | Part | None]:
    """Yield what the references say of keys; objects are made for some at a time."""
    while batch := [*islice(names, _BATCH)]:
        yield from keys.find_many(batch)


def _table(variable: Variable, placements: Placements) -> Fragments:
    """Return the table of an array; raise if what it lacks would read as something else."""
    table, references, missing = placements.table(), placements.references, placements.missing()
    told, fill = references.array.fill, fill_of(variable)
    # a fill value that the references leave out is anything
    if len(missing) and told is not None and not equal_values(np.asarray(told), np.asarray(fill)):
        raise references.error(
            int(missing[0]),
            f"is not there, and reads as {told}; in an aggregation it would read as {fill}: "
            "make the references with the fill value that is meant",
        )
    return table


def _held(opened: Opened, variable: Variable, url: str) -> np.ndarray:
    """Read a variable that the aggregation is to hold."""
    nbytes = variable.dtype.itemsize * math.prod(variable.shape)
    if nbytes > _MOST_HELD:
        raise ExportError(
            url,
            f"says of no chunk of {variable.path} in which file it is, and its {nbytes} bytes are "
            f"too many to be part of the aggregation itself ({_MOST_HELD})",
        )
    return opened.read(variable)
