"""How the variables of an open dataset are stored: the facts that findings are about."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, RemoteReferences
from nczarr_fsspec.stores.zip import ZipStore
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.formats.rounds import Read, caught, together
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import Array, ChunkTable, CodecConfig, Variable, grid_of

#: Chunks of one variable that are looked up at most.
MOST_CHUNKS = 1 << 20
#: Chunks of a tree whose sizes are asked for, of each variable.
SAMPLE = 16
#: Variables of a remote tree whose chunks are sampled: the largest.
_SAMPLED = 16
#: The largest number of a chunk that is asked for: rounding must not make it more than int64 has.
_MOST_NUMBER = 1 << 62
_TO_BYTES = frozenset({"bytes", "transpose", "vlen-utf8", "vlen-bytes"})


@dataclass(frozen=True, slots=True)
class StorageSize:
    """What the chunks of a variable take as they are stored, as far as known.

    Parameters
    ----------
    count
        How many there are; None if only some were looked at.
    nbytes
        Of all of them, as far as can be told.
    low, high
        Where the first begins and the last ends in the file; None in a tree.
    """

    count: int | None
    nbytes: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class VariableStorage:
    """The storage of one variable.

    Parameters
    ----------
    variable
        The variable itself.
    array
        Its data.
    stored
        None if that cannot be told from the metadata.
    """

    variable: Variable
    array: Array
    stored: StorageSize | None = None

    @property
    def path(self) -> str:
        """Of the variable."""
        return self.variable.path

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is stored."""
        return self.array.shape

    @property
    def itemsize(self) -> int:
        """Bytes of an element as stored."""
        return self.array.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements before codecs."""
        return math.prod(self.shape) * self.itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk before codecs."""
        return math.prod(self.array.chunk_shape) * self.itemsize

    @property
    def count(self) -> int:
        """Chunks in the grid."""
        return math.prod(grid_of(self.shape, self.array.chunk_shape))

    @property
    def objects(self) -> int:
        """What the grid is stored in: its chunks, or shards of several chunks of Zarr 3."""
        array = self.array
        whole = array.object_shape if isinstance(array, ZarrArray) else array.chunk_shape
        return math.prod(grid_of(self.shape, whole))

    @property
    def codecs(self) -> tuple[CodecConfig, ...]:
        """Of a chunk; those are left out that only say how Zarr 3 makes bytes of elements."""
        found = self.array.codecs
        if isinstance(self.array, ZarrArray):
            found = tuple(inner for one in found for inner in one.get("codecs", (one,)))
        return tuple(one for one in found if codec_name(one) not in _TO_BYTES)

    @property
    def padding(self) -> float:
        """The share of the elements of all chunks that lie beyond the shape."""
        whole = self.count * math.prod(self.array.chunk_shape)
        return 1 - math.prod(self.shape) / whole if whole else 0.0

    @property
    def ratio(self) -> float:
        """Stored bytes for each byte before codecs, as far as known; 1 without codecs."""
        if self.stored is None or not self.nbytes or not self.stored.nbytes:
            return 1.0 if not self.codecs else 0.5
        return self.stored.nbytes / self.nbytes


@dataclass(frozen=True, slots=True)
class Survey:
    """The storage of a dataset.

    Parameters
    ----------
    facts
        Of each variable whose chunks can be found.
    others
        Variables that cannot be read, or that other libraries or datasets hold.
    size
        Of the file in bytes; None for a tree.
    index
        Extents of the file that chunk indexes were read from, ascending and apart.
    errors
        Why variables cannot be read, by path.
    """

    facts: tuple[VariableStorage, ...]
    others: tuple[Variable, ...]
    size: int | None = None
    index: tuple[Extent, ...] = ()
    errors: Mapping[str, NCZarrError] = field(default_factory=dict)

    def of(self, path: str) -> VariableStorage | None:
        """Return the facts of the variable at a path."""
        return next((facts for facts in self.facts if facts.path == path), None)

    @property
    def largest(self) -> VariableStorage | None:
        """The variable with the most bytes."""
        return max(self.facts, key=lambda facts: facts.nbytes, default=None)

    @property
    def data_begin(self) -> int | None:
        """Where the data of the file begin: those in chunks and those in one piece."""
        lows = [f.stored.low for f in self.facts if f.stored is not None]
        return min((low for low in lows if low is not None), default=None)


class RecordedFile(DataFile):
    """The same file; notes where its metadata are read."""

    def __init__(self, file: DataFile) -> None:
        vars(self).update(vars(file))
        self.extents: set[Extent] = set()

    def extent_of(self, read: Read) -> Any:
        found = super().extent_of(read)
        if isinstance(found, Extent):
            self.extents.add(found)
        return found


def survey(opened: Opened, among: Container[str] | None = None) -> Survey:
    """Find out how the variables of a dataset are stored.

    Parameters
    ----------
    among
        Paths of those that are looked at; by default all.
    """
    there = opened.hierarchy.root.all_variables()
    variables = [v for v in there if among is None or v.path in among]
    own = [(v, v.array) for v in variables if has_chunks(v)]
    facts = [VariableStorage(v, array) for v, array in own if array is not None]
    known = {one.path for one in facts}
    others = tuple(v for v in variables if v.path not in known)
    if isinstance(opened.store, DataFile):
        found = _of_file(RecordedFile(opened.store), facts, others)
    else:
        found = Survey(tuple(_in_tree(opened.store, facts)), others)
    errors = {v.path: v.error for v in others if v.error is not None}
    return replace(found, errors=errors | dict(_unreadable(opened, facts)))


def has_chunks(variable: Variable) -> bool:
    """Tell whether a variable can be read, and where its chunks are can be found."""
    array = variable.array
    if variable.error is not None or array is None:
        return False
    return isinstance(array, ZarrArray) or not array.reads_itself


def _unreadable(opened: Opened, facts: list[VariableStorage]) -> Iterable[tuple[str, NCZarrError]]:
    """Yield variables whose codecs, say, cannot be undone."""
    for one in facts:
        try:
            opened.reader(one.variable).prepare()
        except NCZarrError as error:
            yield one.path, error


def _of_file(
    file: RecordedFile, facts: list[VariableStorage], others: tuple[Variable, ...]
) -> Survey:
    few = [one for one in facts if one.count <= MOST_CHUNKS]
    found = file.parse(together(caught(one.array.locate(np.arange(one.count))) for one in few))
    tables = dict(zip((one.path for one in few), found, strict=True))
    known = tuple(
        VariableStorage(f.variable, f.array, _stored(f, tables.get(f.path))) for f in facts
    )
    return Survey(known, others, file.source.size, _joined(file.extents))


def _joined(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Return extents with those made one that overlap."""
    found: list[Extent] = []
    for extent in sorted(extents):
        if found and extent.start < found[-1].stop:
            found[-1] = Extent(found[-1].start, max(found[-1].stop, extent.stop))
        else:
            found.append(extent)
    return tuple(found)


def _stored(facts: VariableStorage, table: ChunkTable | NCZarrError | None) -> StorageSize | None:
    if table is None or isinstance(table, NCZarrError):
        return None
    there = table.start >= 0
    start, size = table.start[there], table.size[there]
    if table.source is not None or not len(start):  # with the metadata, or nowhere
        return StorageSize(int(there.sum()), int(size.sum()))
    high = int((start + size).max())
    # other variables may lie between plain elements
    nbytes = int(size.sum()) if facts.array.strides is None else facts.nbytes
    return StorageSize(len(start), nbytes, int(start.min()), high)


def _in_tree(store: KeyStore, facts: list[VariableStorage]) -> Iterable[VariableStorage]:
    largest = sorted(facts, key=lambda one: -one.nbytes)[:_SAMPLED]
    sampled = {one.path: keys_of(one) for one in largest}
    sizes = sizes_of(store, [key for keys in sampled.values() for key in keys])
    for one in facts:
        own = [sizes[key] for key in sampled.get(one.path, ()) if key in sizes]
        there = [size for size in own if size is not None]
        if not own or len(own) < len(sampled[one.path]):
            yield one
            continue
        share = len(there) / len(own)
        mean = sum(there) / len(there) if there else 0.0
        count = len(there) if len(own) == one.objects else None
        nbytes = sum(there) if count is not None else round(mean * share * one.objects)
        yield VariableStorage(one.variable, one.array, StorageSize(count, nbytes))


def keys_of(facts: VariableStorage, most: int = SAMPLE) -> list[str]:
    """Return the keys of some chunks, or shards, evenly spread; of all if there are few."""
    last = min(max(0, facts.objects - 1), _MOST_NUMBER)
    numbers = np.unique(np.linspace(0, last, most).astype(np.int64))
    if isinstance(facts.array, ZarrArray):
        return _keys_of_objects(facts.array, numbers) if facts.count else []
    locating = facts.array.locate(numbers if facts.count else numbers[:0])
    try:
        locating.send(None)
    except StopIteration as stop:
        table: ChunkTable = stop.value
        return [] if table.source is None else [str(key) for key in table.source.tolist()]
    locating.close()
    return []


def _keys_of_objects(array: ZarrArray, numbers: np.ndarray) -> list[str]:
    chunks = [
        whole // own for whole, own in zip(array.object_shape, array.chunk_shape, strict=True)
    ]
    grid = grid_of(array.shape, array.object_shape)
    places = np.stack(np.unravel_index(numbers, grid), -1) if grid else np.empty((1, 0), int)
    return [array.chunk_name(tuple((place * chunks).tolist())) for place in places]


def codec_name(config: CodecConfig) -> str:
    """Return what a codec is called."""
    return str(config.get("id") or config.get("name"))


def sizes_of(store: KeyStore, keys: Sequence[str]) -> dict[str, int | None]:
    """Return bytes of the objects of a tree, None for missing ones, as far as that is cheap.

    A remote store is asked for the first byte of each, in one round; what a remote archive
    or another library hold is not looked at.
    """
    if isinstance(store, (DirectoryStore, ZipStore)):
        return {key: store.get_into(key, memoryview(bytearray(1))) for key in keys}
    if isinstance(store, (LocalReferences, RemoteReferences)):  # which tell it themselves
        return {
            key: _length(found)
            for key, found in zip(keys, store.find_many(keys), strict=True)
            if not isinstance(found, Part) or found.stop is not None
        }
    if not isinstance(store, FsspecStore):
        return {}

    found = store.run(store.gather(store.size, keys))
    return {k: s for k, s in zip(keys, found, strict=True) if not isinstance(s, StoreError)}


def _length(found: bytes | Part | None) -> int | None:
    if isinstance(found, Part):
        return found.size
    return None if found is None else len(found)
