"""Read selections of one variable, whatever its data are made of."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.stores.missing_chunks import Document
from nczarr_fsspec.transport.recording import caused_by
from nczarr_xarray.chunks.engine import ChunkReader, SmallRead
from nczarr_xarray.chunks.pieces import Index, PaddedSelection, padded_selection
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.chunks.threads import in_own_thread, in_pool
from nczarr_xarray.codecs.registry import need_libhdf5
from nczarr_xarray.dataset.failed_reads import explain, explained
from nczarr_xarray.dataset.file import DataFile, at_hand, loop_of
from nczarr_xarray.model import ChunkTable, Selections, Variable

if TYPE_CHECKING:
    from nczarr_xarray.dataset.replaced_arrays import AsOpened

#: Bytes of an array, decoded, that an event loop may read from memory itself.
MOST_AT_HAND = 1 << 20
#: An index of all positions along a dimension.
_ALL = slice(None)


class Selection(NamedTuple):
    """What is to be read of a variable; see `VariableReader.read`."""

    reader: VariableReader
    key: tuple[Index, ...]
    points: bool


class VariableReader:
    """Reads selections of one variable. Picklable and safe in threads.

    Parameters
    ----------
    as_opened
        What the array of a tree was when that was opened, if others may change it.
    trusted
        Whether the array's own metadata need not be there.
    exact
        Whether text keeps bytes that are not UTF-8 (`nczarr_xarray.model.text_of`). Else they
        are an error, and in NCZarr, where netCDF-C cuts long text at any byte, U+FFFD.
    """

    def __init__(
        self,
        store: KeyStore | DataFile,
        variable: Variable,
        as_opened: AsOpened | None = None,
        *,
        trusted: bool = False,
        exact: bool = False,
    ) -> None:
        self.store = store
        self.path = variable.path
        array = variable.array
        self.array = array.exact() if exact and array is not None else array
        self.exact = exact
        self.error = variable.error
        self.shape = variable.shape
        self.padding = variable.padding
        self.dtype = variable.dtype.newbyteorder("=")
        #: whether a selection of all is one of all that is stored
        self._is_whole = self.array is not None and self.array.shape == self.shape
        self.as_opened = as_opened
        #: as of `nczarr_xarray.chunks.sources.RemoteKeys`
        self.document: Document | None = None
        if array is not None:
            recognize = None if as_opened is None else as_opened.recognize
            watch = None if as_opened is None else as_opened.watch
            self.document = Document(array.described, recognize, watch, needed=not trusted)
        self._reader: ChunkReader | Selections | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def exactly(self) -> VariableReader:
        """Return the reader whose text keeps bytes that are not UTF-8."""
        other = copy(self)
        vars(other).update(exact=True, array=self.array and self.array.exact(), _reader=None)
        return other

    def prepare(self) -> ChunkReader | Selections:
        """Find out whether the variable can be read, as far as its metadata tell.

        Raises
        ------
        NCZarrError
            If not.
        """
        if self.error is not None:
            error = copy(self.error)  # that is remembered, and raised often
            error.found_in(self.store.url)
            raise error
        if self._reader is None:
            array, store = self.array, self.store
            assert array is not None
            is_library = array.reads_itself
            self._reader = (
                array.selections(store) if is_library else ChunkReader(array, store, self.document)
            )
        return self._reader

    def read(self, key: tuple[Index, ...] | None = None, *, points: bool = False) -> np.ndarray:
        """Read a selection, blocking.

        Parameters
        ----------
        key
            One index per dimension; None reads everything. See `plan_outer`.
        points
            Whether index arrays select points (`plan_points`), not a box.

        Returns
        -------
        Values in native byte order, of `dtype`, without the dimensions that integers index.

        Raises
        ------
        NCZarrError
            Naming the object that cannot be read or decoded.
        """
        with explained(self):
            reader = self.prepare()
            if not isinstance(reader, ChunkReader):
                padded = self._padded(key, points)
                return padded.finish(reader.read(padded.key, points=points))
            remote = loop_of(self.store)
            if remote is not None:
                remember = in_sequence()
                return remote.run(self.read_remote(key, points=points, remember=remember))
            if self._is_whole and not points:
                block = reader.read_block(key, remember=in_sequence())
                if block is not None:
                    return self._converted(block)
            padded = self._padded(key, points)
            plan = self._plan(padded.key, points)
            return padded.finish(self._converted(reader.read(plan, remember=in_sequence())))

    def _converted(self, data: np.ndarray) -> np.ndarray:
        """Return values of elements that were read of a local store."""
        assert self.array is not None
        conversion, store = self.array.conversion, self.store
        if conversion is not None and isinstance(store, DataFile):
            return store.parse(conversion(data))
        return self._values(data)

    async def read_async(self, key: tuple[Index, ...] | None, *, points: bool) -> np.ndarray:
        """Do as `read` does, from any event loop without blocking it."""
        import asyncio

        remote = loop_of(self.store)
        if remote is not None:
            reading = self.read_remote(key, points=points)
            future = asyncio.run_coroutine_threadsafe(reading, remote.loop)
            try:
                return await asyncio.wrap_future(future)
            except (FormatError, StoreError) as error:
                await asyncio.to_thread(explain, self, error)
                raise
        return await asyncio.to_thread(self.read, key, points=points)

    async def read_remote(
        self, key: tuple[Index, ...] | None = None, *, points: bool = False, remember: bool = False
    ) -> np.ndarray:
        """Do as `read` does, on the remote store's loop; `remember` if similar reads may follow."""
        with caused_by(self.path):
            array, store = self.array, self.store
            is_library = array is not None and (array.reads_itself or need_libhdf5(array.codecs))
            if is_library and self._reader is None:  # not on an event loop
                await in_pool(self.prepare)
            if not (is_library or remember):
                here = self._at_hand()
                if here is not None:
                    return here.read(key, points=points)
            reader = self.prepare()
            if not isinstance(reader, ChunkReader):
                padded = self._padded(key, points)
                read = partial(reader.read, padded.key, points=points)
                # not a thread of the loop's own, which may need those to find a host
                return padded.finish(await (in_own_thread if reader.has_readers else in_pool)(read))
            reading = reader.reading_whole() if self._selects_all(key) else None
            if reading is not None:
                return self._values(await reading)
            padded = self._padded(key, points)
            plan = self._plan(padded.key, points)
            data = await reader.read_remote(plan, remember=remember)
            conversion = array.conversion if array is not None else None
            if conversion is not None and isinstance(store, DataFile):
                if conversion.needs_libhdf5:
                    return padded.finish(await in_pool(store.parse, conversion(data)))
                return padded.finish(await store.parse_remote(conversion(data)))
            return padded.finish(self._values(data))

    def begin_small(
        self, key: tuple[Index, ...] | None, *, points: bool, remember: bool
    ) -> tuple[SmallRead, Callable[[np.ndarray], np.ndarray]] | None:
        """Begin to read little of a remote file.

        Returns
        -------
        The read, and what makes of its values those of `read`; None if the selection is not small,
        or is read in another way.

        Raises
        ------
        NCZarrError
            As `read`.
        """
        array = self.array
        if array is None or not isinstance(self.store, DataFile):
            return None
        if array.reads_itself or array.conversion or need_libhdf5(array.codecs):
            return None
        reader = self.prepare()
        assert isinstance(reader, ChunkReader)
        padded = self._padded(key, points)
        small = reader.begin_small(self._plan(padded.key, points), remember=remember)
        if small is None:
            return None
        return small, lambda data: padded.finish(self._values(data))

    async def located(self, key: tuple[Index, ...] | None) -> list[ChunkTable]:
        """Find out which bytes `read_remote` would fetch, as `ChunkReader.located` does.

        Raises
        ------
        NCZarrError
            As `read`, but for what only fetching and decoding show; and `FormatError` for data
            that another library reads.
        """
        reader = self.prepare()
        if not isinstance(reader, ChunkReader):
            raise FormatError(self.path, "is read by another library, or of other datasets")
        plan = self._plan(self._padded(key, points=False).key, points=False)
        return await reader.located(plan)

    def _at_hand(self) -> VariableReader | None:
        """Return what reads the same from memory; None if it is not there, or much."""
        file, array = self.store, self.array
        if not isinstance(file, DataFile) or array is None:
            return None
        if array.conversion is not None and array.conversion.needs_libhdf5:
            return None  # not on an event loop
        elements = max(math.prod(array.shape), math.prod(array.chunk_shape))
        here = at_hand(file.source) if elements * array.dtype.itemsize <= MOST_AT_HAND else None
        if here is None:
            return None
        other = copy(self)
        other.store = here
        return other

    def _padded(self, key: tuple[Any, ...] | None, points: bool) -> PaddedSelection:
        assert self.array is not None
        shape, stored = self.shape, self.array.shape
        key = (_ALL,) * len(shape) if key is None else key
        return padded_selection(key, shape, stored, self.padding, points=points, path=self.path)

    def _selects_all(self, key: tuple[Index, ...] | None) -> bool:
        """Tell whether an index selects all that is stored."""
        everything = key is None or all(isinstance(i, slice) and i == _ALL for i in key)
        return self._is_whole and everything

    def _plan(self, key: tuple[Any, ...], points: bool) -> Plan:
        assert self.array is not None
        plan = plan_points if points else plan_outer
        # a dimension without length has no chunks either
        chunks = [max(1, length) for length in self.array.chunk_shape]
        return plan(key, self.array.shape, chunks)

    def _values(self, data: np.ndarray) -> np.ndarray:
        """Return stored elements as values: fixed-size bytes of NC_STRING become str."""
        if self.dtype.kind != "O" or data.dtype.kind != "S":
            return data
        values = np.empty(data.size, dtype=object)
        texts: list[bytes] = data.ravel().tolist()
        if any(b"\0" in text for text in texts):  # what is behind the end is no matter, as in C
            texts = [text.partition(b"\0")[0] for text in texts]
        # netCDF-C cuts long strings at a byte, possibly inside a character
        errors = "surrogateescape" if self.exact else "replace"
        values[:] = [text.decode("utf-8", errors) for text in texts]
        return values.reshape(data.shape)


def in_sequence() -> bool:
    """Tell whether this read may be one of many, one after the other, as a program makes them.

    The threads of dask (and of anything else) share the work: what one has read, none reads again.
    """
    return threading.current_thread() is threading.main_thread()
