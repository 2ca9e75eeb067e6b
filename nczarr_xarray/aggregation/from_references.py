"""An aggregation of what kerchunk references name: variables of files, of which they are chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.changes.journal import base_of
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_xarray.aggregation.aggregated import Aggregated, Packing
from nczarr_xarray.aggregation.checks import equal_values
from nczarr_xarray.aggregation.summary import describe
from nczarr_xarray.aggregation.whole_variables import (
    ArrayReferences,
    Placed,
    Placements,
    WholeVariable,
    place,
)
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.cf import fill_of, marks_of, packing_of, text_in
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import ChunkedArray, Fragments, Hierarchy, Variable, grid_of
from nczarr_xarray.views.zarr_tree import ArrayView, view_in_chunks

# -- referenced files ----------------------------------------------------------------------------
# Find in a file the variables of which references name the chunks.


class Referenced(NamedTuple):
    """Chunks of an array that are in one file.

    Attributes
    ----------
    variable
        As the references describe it.
    references
        Of the array.
    numbers
        Of the chunks.
    """

    variable: Variable
    references: ArrayReferences
    numbers: np.ndarray


class Found(NamedTuple):
    """A variable of a file that is a part of an array.

    Attributes
    ----------
    path
        Of the variable of the references.
    placed
        Which part.
    packing
        How it is packed in the file: see `Aggregated.packing`.
    """

    path: str
    placed: Placed
    packing: Packing


class _Candidate(NamedTuple):
    """A variable of a file, as it could be a part of an array of references.

    Attributes
    ----------
    variable, view
        The variable, and it as a Zarr array.
    axes
        Which dimensions of the array it has.
    whole
        Where its chunks are.
    """

    variable: Variable
    view: ArrayView
    axes: tuple[int, ...]
    whole: WholeVariable


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the variables of files that arrays of references are made of.

    Parameters
    ----------
    opened
        The dataset as the references describe it.
    policy
        What addresses mean, and which ones may be opened.
    """

    opened: Opened
    policy: AddressPolicy

    def find(self, wanted: tuple[str, list[Referenced]]) -> list[Found]:
        """Find those of one file.

        Parameters
        ----------
        wanted
            The address of the file, and the chunks that are to be there.

        Raises
        ------
        ExportError
            Naming the reference that is no chunk of a variable of the file, or where the part of
            the array is another than this variable.
        NCZarrError
            If something cannot be read.
        """
        address, arrays = wanted
        try:
            target = self.policy.resolve(address)
            file = open_with(target, OpenOptions(storage_options=self.policy.options(target)))
        except NCZarrError as error:
            reason = f"is in a file that cannot be opened as a dataset: {error}"
            raise arrays[0].references.error(int(arrays[0].numbers[0]), reason) from error
        with file:
            return [variable for chunks in arrays for variable in self._variables(file, chunks)]

    def _variables(self, file: Opened, wanted: Referenced) -> Iterator[Found]:
        """Yield the variables of a file that chunks of an array are."""
        references, left = wanted.references, wanted.numbers
        while len(left):
            first = int(left[0])
            error = references.error(
                first,
                f"{references.shown(first)}, and no variable there has such a chunk, of the shape "
                f"{list(references.array.chunk_shape)}",
            )
            placed = None
            for one in _candidates(file, wanted):
                try:
                    placed = place(references, first, one.whole)
                except ExportError as own:  # its dimensions may be others of the array
                    error = own
                if placed is not None:
                    break
            if placed is None:
                raise error
            packing = _packing(wanted, one, first, file.store.url)
            self._compare(wanted, one, placed, file)
            yield Found(wanted.variable.path, placed, packing)
            left = left[~np.isin(left, placed.numbers)]

    def _compare(
        self, wanted: Referenced, candidate: _Candidate, placed: Placed, file: Opened
    ) -> None:
        """Raise if values differ where the references have no extents of the file."""
        references = wanted.references
        for number in placed.compared.tolist():
            columns = zip(
                references.position(number),
                references.array.chunk_shape,
                placed.extent,
                strict=True,
            )
            parts = [(at * n, min((at + 1) * n, stop), start) for at, n, (start, stop) in columns]
            mine = self.opened.read(
                wanted.variable, tuple(slice(begin, end) for begin, end, _ in parts)
            )
            inside = [slice(begin - start, end - start) for begin, end, start in parts]
            theirs = file.read(
                candidate.variable, tuple(inside[axis] for axis in candidate.axes)
            ).reshape(mine.shape)
            if not equal_values(mine, theirs):
                raise references.error(
                    number,
                    f"{references.shown(number)}, and reads as other values than those of "
                    f"{candidate.variable.path} of {file.store.url}, as its neighbours are",
                )


def _candidates(file: Opened, wanted: Referenced) -> Iterator[_Candidate]:
    """Yield the variables of a file that have chunks of the shape of an array, its name first."""
    if not isinstance(file.store, DataFile):
        return
    array = wanted.references.array
    rank, names = len(array.shape), [d.name for d in wanted.variable.dimensions]
    variables = file.hierarchy.root.all_variables()
    for variable in sorted(variables, key=lambda one: one.path != wanted.variable.path):
        dimensions = [dimension.name for dimension in variable.dimensions]
        # dimensions of length 1 may be absent in the file
        choices = itertools.combinations(range(rank), len(dimensions))
        for axes in sorted(choices, key=lambda axes: [names[axis] for axis in axes] != dimensions):
            if any(n != 1 for axis, n in enumerate(array.chunk_shape) if axis not in axes):
                continue
            try:
                view = view_in_chunks(variable, tuple(array.chunk_shape[axis] for axis in axes))
            except NCZarrError:
                continue  # a variable of which Zarr can have no chunks
            if view is None or view.count > len(wanted.references.codes):
                continue
            shape = [1] * rank
            for axis, length in zip(axes, variable.shape, strict=True):
                shape[axis] = length
            table = file.store.parse(view.locate(np.arange(view.count)))
            whole = WholeVariable(variable.path, tuple(shape), table)
            yield _Candidate(variable, view, axes, whole)


def _packing(wanted: Referenced, candidate: _Candidate, first: int, url: str) -> Packing:
    """Return how a variable of a file is packed; raise if its numbers mean something else."""
    array, view, in_file = wanted.references.array, candidate.view.array, candidate.variable
    packed, there = packing_of(wanted.variable), packing_of(in_file)
    pairs: list[tuple[str, Any, Any]] = [
        ("type", array.dtype, view.dtype),
        ("order", array.order, view.order),
        ("codecs", [one["id"] for one in array.codecs], [one["id"] for one in view.codecs]),
        ("missing values", _missing(wanted.variable), _missing(in_file)),
        ("packing", packed, there or packed),
    ]
    for name in ("units", "calendar"):
        stated, theirs = (text_in(v.attributes, name) for v in (wanted.variable, in_file))
        pairs.append((name, stated, stated if theirs is None else theirs))
    for what, mine, theirs in pairs:
        if mine != theirs:
            raise wanted.references.error(
                first,
                f"is in the array {array.path}, which has the {what} {mine}; {in_file.path} of "
                f"{url} has {theirs}",
            )
    return "own" if not packed else "equal" if there else "after"


def _missing(variable: Variable) -> set[bytes]:
    """Return the values that stand for missing data, as elements of the variable."""
    if variable.dtype.kind not in "iuf":
        return set()
    return {np.array(mark).astype(variable.dtype).tobytes() for mark in marks_of(variable)}


# -- from references -----------------------------------------------------------------------------


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
    arrays = (_references(keys, variable) for variable in opened.hierarchy.root.all_variables())
    return {address for one in arrays if one is not None for address in one.addresses}


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
        for address, variables in zip(wanted, pool.map(finder.find, wanted.items()), strict=True):
            for one in variables:
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
    described = replace(hierarchy, problems=())
    for group in described.root.walk() if hierarchy.generation == "v2" else ():
        for name, variable in group.variables.items():
            if variable.dtype == np.dtype("S1"):
                group.variables[name] = replace(variable, nc_type="char")
    return described


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
    stated, fill = references.array.fill, fill_of(variable)
    # a fill value that the references leave out is anything
    if (
        len(missing)
        and stated is not None
        and not equal_values(np.asarray(stated), np.asarray(fill))
    ):
        raise references.error(
            int(missing[0]),
            f"is not there, and reads as {stated}; in an aggregation it would read as {fill}: "
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
