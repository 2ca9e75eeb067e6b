"""What is checked: a dataset as it was opened, and what is found out of it when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.changes.journal import JOURNAL, METADATA, PRIVATE, base_of, is_chunk_of
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    FormatError,
    IncompleteExportError,
    NCZarrError,
    StoreError,
    UsageError,
)
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import find_destination, open_hierarchy
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.jsontext import JSON, loads
from nczarr_xarray.formats.registry import ZARR, ZARR2
from nczarr_xarray.model import ChunkedArray, FileChunks, FragmentArray, Group, Variable, grid_of
from nczarr_xarray.tools.predict import predict_opening
from nczarr_xarray.tools.predict.aggregations import Aggregation, sample_of
from nczarr_xarray.tools.predict.network import Cost, Network
from nczarr_xarray.tools.survey import Survey, VariableStorage, survey

#: Chunks of a file that are located together.
_WINDOW = 1 << 16
#: Chunks of a variable of a file that are looked at, at most.
MOST_CHUNKS = 1 << 24
#: Chunks of a file of which the places are kept, for several checks ask for them.
_REMEMBERED = 1 << 22


class Extents(NamedTuple):
    """Where chunks of an array in a file are.

    Attributes
    ----------
    ids
        Their numbers.
    starts, sizes
        As of `nczarr_xarray.model.ChunkTable`.
    """

    ids: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


@dataclass
class Subject:
    """A dataset that is checked.

    Attributes
    ----------
    target, storage_options
        What was opened.
    opened
        The dataset; None if it could not be opened, and `failure` says why.
    addresses
        What else it was opened with: ``allow`` and ``replace``.
    network
        For which reads are predicted.
    variable
        The path of the variable of which reads are predicted; None for the largest.
    """

    target: Any
    storage_options: Mapping[str, Any] | None
    opened: Opened | None
    failure: NCZarrError | None
    addresses: Mapping[str, Any] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    variable: str | None = None
    _positions: dict[str, Sequence[tuple[int, ...] | None]] = field(default_factory=dict)
    _extents: dict[str, Sequence[Extents]] = field(default_factory=dict)
    _room: int = _REMEMBERED

    @classmethod
    def open(
        cls,
        target: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        consolidated: bool | None = False,
        **options: Any,
    ) -> Subject:
        """Open a dataset, as far as that is possible.

        Parameters
        ----------
        consolidated
            As of `nczarr_xarray.open_hierarchy`. False: by the documents themselves, and by
            consolidated metadata only where there are no others.

        Raises
        ------
        NCZarrError
            If there is none, or it is out of reach: what is not there cannot be judged.
        """
        opened: Opened | None = None
        failure: NCZarrError | None = None
        try:
            opened = _open(target, consolidated, storage_options=storage_options, **options)
        except FormatError as error:
            failure = error
        except StoreError as error:
            unfinished = isinstance(error, IncompleteExportError)
            if not unfinished and not error.object.endswith(JOURNAL):  # which is damaged
                raise
            failure = error
        return cls(target, storage_options, opened, failure, options)

    def close(self) -> None:
        """Release the stores."""
        if self.opened is not None:
            self.opened.close()
        place = vars(self).get("place")  # if that was looked for
        if place is not None and place.store is not None:
            place.store.close()

    @property
    def url(self) -> str:
        """How findings name the dataset."""
        found = self.opened.store if self.opened is not None else self.place
        return found.url if found is not None else getattr(self.failure, "object", "/")

    @cached_property
    def place(self) -> Destination | None:
        """Where its objects are and could be written.

        None if nothing can be there, it is one file, references say where its objects are, or they
        are those of another package's format.
        """
        if self.opened is None or _has_objects(self.opened):
            with suppress(NCZarrError, ImportError):
                return find_destination(self.target, self.storage_options)
        return None

    @cached_property
    def master(self) -> MasterPlace | None:
        """Where its fragments could be, if it is an aggregation; None if nothing can be there."""
        with suppress(NCZarrError, ImportError):
            return MasterPlace.find(self.target, self.storage_options)
        return None

    @property
    def is_tree(self) -> bool:
        """Whether it is made of objects with keys."""
        if self.opened is None:
            return self.place is not None
        return isinstance(self.opened.store, KeyStore)

    @property
    def is_zarr2(self) -> bool:
        """Whether it could be opened, and has documents of Zarr 2."""
        return self.opened is not None and self.opened.hierarchy.generation in ZARR2

    @property
    def is_nczarr(self) -> bool:
        """Whether it has NCZarr's own keys."""
        return self.is_zarr2 and self.generation != "v2"

    @property
    def generation(self) -> str:
        """The generation or format."""
        assert self.opened is not None
        return self.opened.hierarchy.generation

    @property
    def groups(self) -> list[Group]:
        """All groups; none if it could not be opened."""
        return [] if self.opened is None else list(self.opened.hierarchy.root.walk())

    @property
    def variables(self) -> Iterator[Variable]:
        """All variables."""
        return iter(()) if self.opened is None else self.opened.hierarchy.root.all_variables()

    def error(self, variable: Variable) -> NCZarrError | None:
        """Return why a variable cannot be read, as far as its metadata tell."""
        assert self.opened is not None
        try:
            self.opened.reader(variable).prepare()
        except NCZarrError as error:
            return error
        return None

    @cached_property
    def keys(self) -> Sequence[str] | None:
        """All keys that exist, sorted; None where they cannot be listed."""
        if self.place is None:
            return None
        try:
            return sorted(self.place.keys())
        except StoreError:
            return None

    @cached_property
    def private(self) -> list[str]:
        """The keys that writers keep until they have ended."""
        return [key for key in self.keys or () if key.startswith(f"{PRIVATE}/")]

    @cached_property
    def found(self) -> Mapping[str, bytes]:
        """The metadata objects as stored, by key."""
        found: dict[str, bytes] = {}
        store = None
        if self.opened is not None and self.opened.reading is not None:
            objects = self.opened.reading.objects
            found = {key: data for key, data in objects.items() if isinstance(data, bytes)}
            store = self.opened.keys
        elif self.place is not None:
            store = self.place.reader()
        names = [key for key in self.keys or () if key.rpartition("/")[2] in METADATA]
        names = [key for key in names if key not in found and not key.startswith(f"{PRIVATE}/")]
        if store is not None:
            read = zip(names, store.get_many(names), strict=True)
            found |= {key: data for key, data in read if isinstance(data, bytes)}
        return found

    @cached_property
    def documents(self) -> Mapping[str, JSON]:
        """The metadata documents by key, as far as they can be parsed."""
        found = {}
        for key, data in self.found.items():
            with suppress(FormatError):
                found[key] = loads(data, key)
        return found

    def node(self, path: str) -> dict[str, JSON]:
        """Return the documents of a group or array, by their names."""
        start = f"{path}/" if path else ""
        files = {*spellings.G1_GROUP_FILES, *spellings.G1_ARRAY_FILES}
        return {
            file: self.documents[start + file] for file in files if start + file in self.documents
        }

    def positions(self, array: ChunkedArray) -> Sequence[tuple[int, ...] | None]:
        """Return where in the grid the chunks of `chunk_keys` are; None for no place in it."""
        found = self._positions.get(array.path)
        if found is None:
            found = [_position(array, key) for key in self.chunk_keys[array.path]]
            self._positions[array.path] = found
        return found

    def extents(self, array: FileChunks) -> Iterator[Extents]:
        """Yield where the first `MOST_CHUNKS` chunks of an array in a file are, some at a time.

        Raises
        ------
        NCZarrError
            If they cannot be found.
        """
        if array.path in self._extents:
            yield from self._extents[array.path]
            return
        assert self.opened is not None
        file = self.opened.store
        assert isinstance(file, DataFile)
        count = min(math.prod(grid_of(array.shape, array.chunk_shape)), MOST_CHUNKS)
        windows: list[Extents] | None = [] if count <= self._room else None
        for first in range(0, count, _WINDOW):
            ids = np.arange(first, min(first + _WINDOW, count))
            table = file.parse(array.locate(ids))
            window = Extents(ids, table.start, table.size)
            if windows is not None:
                windows.append(window)
            yield window
        if windows is not None:
            self._room -= count
            self._extents[array.path] = windows

    # reads over a network

    @cached_property
    def survey(self) -> Survey:
        """How its variables are stored."""
        assert self.opened is not None
        return survey(self.opened)

    @cached_property
    def _opening(self) -> tuple[Cost, bool]:
        assert self.opened is not None
        return predict_opening(self.opened, self.survey, self.network)

    @property
    def opening(self) -> Cost:
        """What it takes to open it."""
        return self._opening[0]

    @property
    def is_consolidated(self) -> bool:
        """Whether consolidated metadata are used for that."""
        return self._opening[1]

    @cached_property
    def _tables(self) -> list[Aggregation]:
        there = ((v, v.array) for v in self.survey.others)
        return [Aggregation(v, array) for v, array in there if isinstance(array, FragmentArray)]

    @cached_property
    def chosen(self) -> VariableStorage | None:
        """The variable of which reads are predicted; None if there is none.

        Raises
        ------
        UsageError
            If there is none of this name.
        """
        known: list[VariableStorage] = [*self.survey.facts, *self._tables]
        if self.variable is None:
            return max(known, key=lambda facts: facts.nbytes, default=None)
        path = f"/{self.variable.strip('/')}"
        facts = next((facts for facts in known if facts.path == path), None)
        if facts is None:
            there = ", ".join(one.path for one in known) or "none"
            reason = f"has no variable {self.variable!r} whose reads can be predicted; there are: "
            raise UsageError(self.url, reason + there + did_you_mean(path, [v.path for v in known]))
        return facts

    @cached_property
    def predicted(self) -> VariableStorage | NCZarrError | None:
        """The chosen variable, with a sample if it is an aggregation; why there can be none."""
        if not isinstance(self.chosen, Aggregation):
            return self.chosen
        try:
            return replace(self.chosen, sample=sample_of(self.chosen))
        except NCZarrError as error:
            return error

    @property
    def aggregations(self) -> list[Aggregation]:
        """The variables that are made of fragments; the chosen one has a sample."""
        found = self.predicted
        if not isinstance(found, Aggregation):
            return self._tables
        return [found if one is self.chosen else one for one in self._tables]

    # keys

    @cached_property
    def chunk_keys(self) -> Mapping[str, list[str]]:
        """The keys that are named like chunks of each array of Zarr 2, by its path."""
        arrays = {v.array.path for v in self.variables if isinstance(v.array, ChunkedArray)}
        found: dict[str, list[str]] = {path: [] for path in arrays}
        for key in self.keys or ():
            path = key
            while path and path not in arrays:
                path = path.rpartition("/")[0]
            if path and is_chunk_of(key, path):
                found[path].append(key)
        return found


def _position(array: ChunkedArray, key: str) -> tuple[int, ...] | None:
    """Return where in the grid a chunk is by its key; None if the array has no such chunk."""
    grid = grid_of(array.shape, array.chunk_shape)
    name = key[len(array.path) + 1 :]
    if not grid:
        return () if name == "0" else None
    parts = name.split(array.separator)
    # (Python refuses to make a number of thousands of digits)
    if len(parts) != len(grid) or not all(part.isdecimal() and len(part) < 20 for part in parts):
        return None
    found = tuple(map(int, parts))
    inside = all(at < count for at, count in zip(found, grid, strict=True))
    return found if inside and array.chunk_name(found) == key else None


def _has_objects(opened: Opened) -> bool:
    """Tell whether keys name Zarr's objects in one place; those of references are anywhere."""
    store, references = opened.store, (LocalReferences, RemoteReferences)
    if opened.hierarchy.generation not in ZARR or not isinstance(store, KeyStore):
        return False
    return not isinstance(base_of(store), references)


def _open(target: Any, consolidated: bool | None, **options: Any) -> Opened:
    try:
        return open_hierarchy(target, consolidated=consolidated, **options)
    except DatasetNotFoundError:
        if consolidated is None:
            raise
        return open_hierarchy(target, **options)
