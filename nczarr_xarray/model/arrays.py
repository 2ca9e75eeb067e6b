"""The data of variables: the kinds of array that the chunk engine reads.

Nothing here does I/O or knows the metadata of a format.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    runtime_checkable,
)

import numpy as np

#: One codec as Zarr v2 metadata states it: ``{"id": "zlib", "level": 5}``.
CodecConfig: TypeAlias = Mapping[str, Any]


class ChunkTable(NamedTuple):
    """Where chunks are stored: one element of each column for each chunk asked for.

    Attributes
    ----------
    start
        int64, in bytes from the beginning of the source; -1 if a chunk does not exist.
    size
        int64, in bytes as stored; -1 is all that the source has.
    mask
        uint32. Bit i is set if codec i of the array was not applied to the chunk.
    source
        Objects, what holds the bytes: the key of a store (``str``), the bytes themselves, or,
        None, the file that the array is in. None instead of the column: that file, for all.
        What else it may be, such as a place in another dataset, is between a kind of array
        and the source (`nczarr_xarray.chunks.sources`) that is made for it.
    """

    start: np.ndarray
    size: np.ndarray
    mask: np.ndarray
    source: np.ndarray | None = None

    def of(self, which: Any) -> ChunkTable:
        """Return some of the chunks: `which` is a key of numpy."""
        source = None if self.source is None else self.source[which]
        return ChunkTable(self.start[which], self.size[which], self.mask[which], source)


def _whole_objects(count: int) -> ChunkTable:
    """Return a table of chunks that are whole objects of a store; the column of keys is missing."""
    return ChunkTable(
        np.zeros(count, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.uint32)
    )


#: The longest table whose keys are made one by one; shorter ones are a part of it.
_FEW = _whole_objects(16)


class Conversion(Protocol):
    """Makes values of stored elements where that takes more of the file (a heap of strings)."""

    def __call__(self, stored: np.ndarray) -> Coroutine[Any, Any, np.ndarray]:
        """Make values in the shape of `stored`; await `nczarr_xarray.formats.rounds.read` only."""

    @property
    def needs_libhdf5(self) -> bool:
        """Whether it must not run in the thread of an event loop."""

    def exact(self) -> Conversion:
        """Return the conversion to which text that is not UTF-8 is no error: see `text_of`."""


class Selections(Protocol):
    """Reads selections of one array. Picklable is not needed; threads may share it.

    Attributes
    ----------
    has_readers
        Whether it reads by readers of other arrays, which may need all threads of the pool.
    """

    has_readers: bool

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        """Read a selection.

        Parameters
        ----------
        key
            One index per dimension: an integer, a slice or an array of integers.
        points
            Whether arrays select single points together, which then run along the first
            dimensions of the result (numpy's ``vindex``).
        """


@runtime_checkable
class JointSelections(Selections, Protocol):
    """Reads several selections together, with less work or fewer requests than one by one."""

    def read_jointly(self, wanted: Sequence[tuple[tuple[Any, ...], bool]]) -> list[np.ndarray]:
        """Read selections, each a key and whether it is of points: see `read`."""


@dataclass(frozen=True, slots=True)
class Array:
    """The data of a variable: a regular chunk grid, whatever the format behind it.

    Each format has its kinds. A kind overrides what differs; the chunk engine asks for what is
    here, and for nothing else. Arrays are pure (they do no I/O) and picklable.

    Parameters
    ----------
    path
        Of the array, for messages; the key prefix if it is in a store of keys.
    shape
        Lengths per dimension.
    """

    path: str
    shape: tuple[int, ...]
    #: whether `selections` are read by the kind itself, and chunks cannot be located
    reads_itself: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def dtype(self) -> np.dtype:
            """Of the stored elements, with their byte order."""

        @property
        def chunk_shape(self) -> tuple[int, ...]:
            """Lengths per dimension, not 0. Chunks are stored full size, also at the edges."""

    @property
    def fill(self) -> Any:
        """Element of chunks that do not exist, if one is stated; else see `missing`."""
        return None

    @property
    def missing(self) -> Any:
        """What elements read as that are not stored: `fill`, else an empty text, NaT or zero."""
        if self.fill is not None:
            return self.fill
        if self.dtype.hasobject:
            return ""
        if self.dtype.kind in "mM":
            return np.array("NaT", self.dtype)[()]
        return np.zeros((), self.dtype)[()]

    @property
    def codecs(self) -> tuple[CodecConfig, ...]:
        """In the order of encoding."""
        return ()

    @property
    def codec_words(self) -> Literal["zarr2", "zarr3", "hdf5"]:
        """Whose names the codecs have.

        Those of HDF5 may be left out, chunk by chunk: one that cannot be undone is an error of
        the chunks that it was applied to.
        """
        return "hdf5"

    @property
    def order(self) -> Literal["C", "F"]:
        """Element order inside a chunk."""
        return "C"

    @property
    def longer(self) -> int:
        """Bytes that a decoded chunk may have besides its own number; its beginning counts then."""
        return 0

    @property
    def most_of_object(self) -> int:
        """Bytes that an object of several chunks may have; 0 if each chunk is one."""
        return 0

    @property
    def conversion(self) -> Conversion | None:
        """Makes values of the elements, if they are not values themselves."""
        return None

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Bytes from an element to the next per dimension, if the only chunk is plain elements.

        The elements of all dimensions but the first lie one behind the other. Of such a chunk
        the engine reads what is wanted.
        """
        return None

    @property
    def is_chunked(self) -> bool:
        """Whether the chunk grid is that of the storage."""
        return True

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...] | None:
        """Lengths, per dimension, of what is well read together, if chunks do not tell it."""
        return None

    @property
    def elsewhere(self) -> bool:
        """Whether data may be in other files, of whose state that of this dataset tells nothing."""
        return False

    @property
    def described(self) -> str:
        """Name what describes the array: for messages, and in a store, its key."""
        return self.path

    def chunk_name(self, position: tuple[int, ...]) -> str:
        """Name the chunk at a position of the grid, for messages."""
        return f"{self.path} chunk {position}"

    def exact(self) -> Array:
        """Return the same array, whose text keeps bytes that are not UTF-8: see `text_of`."""
        changes: dict[str, Any] = {"conversion": self.conversion and self.conversion.exact()}
        return replace(self, **changes) if self.conversion else self

    def locate(self, ids: np.ndarray) -> Coroutine[Any, Any, ChunkTable]:
        """Find chunks; await `nczarr_xarray.formats.rounds.read` only.

        Parameters
        ----------
        ids
            Ascending numbers of chunks (int64, Python's in grids of more than 2**63 chunks), in C
            order over the chunk grid of the array's current shape; each once.
        """
        raise NotImplementedError

    def selections(self, store: Any) -> Selections:
        """Return what reads selections of the array in an open dataset, if it `reads_itself`.

        Parameters
        ----------
        store
            The keys of the dataset, or its file.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class UndividedArray(Array):
    """Data that are not stored in chunks: to the engine all of it is one."""

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return tuple(max(1, length) for length in self.shape)

    @property
    def is_chunked(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class LibraryArray(UndividedArray):
    """Data that another library reads by selections; what chunks it has is its own business."""

    reads_itself: ClassVar[bool] = True

    @property
    def elsewhere(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ChunkedArray(Array):
    """A regular chunk grid whose chunks are objects of a key/value store.

    Parameters
    ----------
    path
        Key prefix of the array, ``"g1/v"``.
    shape, chunk_shape
        A scalar has ``()`` for both and one chunk, ``<path>/0``.
    dtype, fill, codecs, order
        As of `Array`.
    separator
        Between chunk indices in a key.
    longer
        As of `Array`.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    fill: Any = None
    codecs: tuple[CodecConfig, ...] = ()
    order: Literal["C", "F"] = "C"
    separator: str = "."
    longer: int = field(default=0, compare=False)

    @property
    def codec_words(self) -> Literal["zarr2", "zarr3", "hdf5"]:
        return "zarr2"

    @property
    def described(self) -> str:
        return f"{self.path}/.zarray"

    def chunk_name(self, position: tuple[int, ...]) -> str:
        return f"{self.path}/{self.separator.join(map(str, position)) or '0'}"

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        grid = grid_of(self.shape, self.chunk_shape)
        if len(ids) <= len(_FEW.start):
            keys = [self.chunk_name(position_of(number, grid)) for number in ids.tolist()]
            columns = _FEW.of(slice(len(ids)))
        else:
            keys = self._keys(ids, grid)
            columns = _whole_objects(len(ids))
        return columns._replace(source=np.array(keys, object))

    def _keys(self, ids: np.ndarray, grid: tuple[int, ...]) -> list[str]:
        if not grid:
            return [f"{self.path}/0"] * len(ids)
        *outer, inner = grid
        last = map(str, (ids % inner).tolist())
        if not outer:
            return [f"{self.path}/{number}" for number in last]
        # what many keys begin with is made once: they follow each other
        rest = ids // inner
        is_new = np.ones(len(rest), bool)
        is_new[1:] = rest[1:] != rest[:-1]
        before = [key + self.separator for key in self._keys(rest[is_new], tuple(outer))]
        where = (np.cumsum(is_new) - 1).tolist()
        return list(map(add, map(before.__getitem__, where), last))


class ChunkIndex(Protocol):
    """Where the chunks of a `FileChunks` are. Picklable and safe in threads."""

    def locate(self, ids: np.ndarray) -> Coroutine[Any, Any, ChunkTable]:
        """Find chunks: see `Array.locate`."""


@dataclass(frozen=True, slots=True)
class FileChunks(Array):
    """A regular chunk grid whose chunks are byte ranges of one file.

    Parameters
    ----------
    path, shape, chunk_shape, dtype, fill, codecs, conversion
        As of `Array`.
    index
        Where the chunks are.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype
    index: ChunkIndex
    fill: Any = None
    codecs: tuple[CodecConfig, ...] = ()
    conversion: Conversion | None = None

    def locate(self, ids: np.ndarray) -> Coroutine[Any, Any, ChunkTable]:
        return self.index.locate(ids)


@dataclass(frozen=True, slots=True)
class FileStrides(UndividedArray):
    """Plain elements at regular distances in one file: contiguous data, records of a classic file.

    Parameters
    ----------
    path, shape, dtype, strides, fill, conversion
        As of `Array`.
    start
        Of the first element in the file; None if nothing is stored, and all is `fill`.
    inline
        The bytes themselves, for data that came with the metadata; then `start` is 0.
    """

    dtype: np.dtype
    start: int | None
    strides: tuple[int, ...]
    fill: Any = None
    inline: bytes | None = None
    conversion: Conversion | None = None

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        if 0 in self.shape:  # the first element would lie where the file has ended
            return ChunkTable(np.array([-1]), np.zeros(1, np.int64), np.zeros(1, np.uint32))
        size = self.dtype.itemsize
        for length, stride in zip(self.shape, self.strides, strict=True):
            size += (length - 1) * stride
        start = np.array([-1 if self.start is None else self.start])
        inline = None if self.inline is None else np.array([self.inline], dtype=object)
        return ChunkTable(start, np.array([size]), np.zeros(1, np.uint32), inline)


def grid_of(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return chunks along each dimension."""
    return tuple(-(-n // c) for n, c in zip(shape, chunk_shape, strict=True))


def position_of(number: int, grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return where in a grid a chunk is, by its number in C order, which int64 need not have."""
    position = []
    for count in reversed(grid):
        number, at = divmod(number, count)
        position.append(at)
    return tuple(reversed(position))


def box_of(
    position: tuple[int, ...], chunk_shape: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[slice, ...]:
    """Return the part of an array that lies in a chunk."""
    axes = zip(position, chunk_shape, shape, strict=True)
    return tuple(slice(at * chunk, min((at + 1) * chunk, size)) for at, chunk, size in axes)
