"""Read a variable, whatever its data are made of.

A `VariableReader` reads selections of one variable. `explained` adds to the error of a read that
failed what has become of the dataset since it was opened.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore
from nczarr_fsspec.stores.missing_chunks import CHANGED, Document
from nczarr_fsspec.transport.recording import caused_by
from nczarr_xarray.chunks.engine import ChunkReader, SmallRead
from nczarr_xarray.chunks.joint import JointPlan, boxes_of
from nczarr_xarray.chunks.pieces import Index, PaddedSelection, padded_selection
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.chunks.threads import in_own_thread, in_pool
from nczarr_xarray.codecs.registry import need_libhdf5
from nczarr_xarray.dataset.file import DataFile, at_hand, loop_of
from nczarr_xarray.model import ChunkTable, JointSelections, Selections, Variable

if TYPE_CHECKING:
    from nczarr_xarray.dataset.replaced_arrays import AsOpened

#: Bytes of an array, decoded, that an event loop may read from memory itself.
MOST_AT_HAND = 1 << 20
#: An index of all positions along a dimension.
_ALL = slice(None)


#: A key and whether it selects points; see `VariableReader.read`.
Wanted: TypeAlias = "tuple[tuple[Index, ...] | None, bool]"


class SmallSelection(NamedTuple):
    """A small selection of a file, and what makes values of what its read brings."""

    read: SmallRead
    finish: Callable[[np.ndarray], np.ndarray]


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
        self.documents: tuple[Document, ...] = ()
        if array is not None:
            recognize = None if as_opened is None else as_opened.recognize
            watch = None if as_opened is None else as_opened.watch
            document = Document(array.described, recognize, watch, needed=not trusted)
            self.documents = (document,)
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
                array.selections(store)
                if is_library
                else ChunkReader(array, store, *self.documents)
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
            remote = loop_of(self.store)
            if remote is not None and isinstance(reader, ChunkReader):
                remember = in_sequence()
                return remote.run(self.read_remote(key, points=points, remember=remember))
            boxes = boxes_of(key) if points and key is not None and _joins(reader) else None
            if boxes is not None:
                return boxes.joined(self.read_jointly([(box, False) for box in boxes.keys]))
            if not isinstance(reader, ChunkReader):
                padded = self._padded(key, points)
                return padded.finish(reader.read(padded.key, points=points))
            if self._is_whole and not points:
                block = reader.read_block(key, remember=in_sequence())
                if block is not None:
                    return self._converted(block)
            padded = self._padded(key, points)
            plan = self._plan(padded.key, points)
            return padded.finish(self._converted(reader.read(plan, remember=in_sequence())))

    def read_jointly(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """Read several selections of what is at hand, each chunk once; errors are as of `read`."""
        with explained(self):
            reader = self.prepare()
            if len(wanted) > 1 and _joins(reader):
                padded, stored = self._all_padded(wanted)
                found: Iterable[np.ndarray]
                if isinstance(reader, ChunkReader):
                    found = map(self._converted, reader.read_jointly(self._joint_plan(stored)))
                else:
                    found = reader.read_jointly(stored)
                return [one.finish(data) for one, data in zip(padded, found, strict=True)]
        return [self.read(key, points=points) for key, points in wanted]

    def _all_padded(
        self, wanted: Sequence[Wanted]
    ) -> tuple[list[PaddedSelection], list[tuple[tuple[Index, ...], bool]]]:
        padded = [self._padded(key, points) for key, points in wanted]
        of_all = zip(padded, wanted, strict=True)
        return padded, [(one.key, points) for one, (_, points) in of_all]

    def _joint_plan(self, stored: Sequence[tuple[tuple[Index, ...], bool]]) -> JointPlan:
        return JointPlan([self._plan(key, points) for key, points in stored])

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
            array = self.array
            is_library = array is not None and (array.reads_itself or need_libhdf5(array.codecs))
            if is_library and self._reader is None:  # not on an event loop
                await in_pool(self.prepare)
            if not (is_library or remember):
                here = self._at_hand()
                if here is not None:
                    return here.read(key, points=points)
            reader = self.prepare()
            if not isinstance(reader, ChunkReader):
                # not a thread of the loop's own, which may need those to find a host
                in_thread = in_own_thread if reader.has_readers else in_pool
                return await in_thread(partial(self.read, key, points=points))
            everything = key is None or all(isinstance(i, slice) and i == _ALL for i in key)
            reading = reader.reading_whole() if self._is_whole and everything else None
            if reading is not None:
                return self._values(await reading)
            boxes = boxes_of(key) if points and key is not None and _joins(reader) else None
            if boxes is not None:
                return boxes.joined(
                    await self.read_jointly_remote([(box, False) for box in boxes.keys])
                )
            padded = self._padded(key, points)
            plan = self._plan(padded.key, points)
            data = await reader.read_remote(plan, remember=remember)
            return padded.finish(await self._converted_remote(data))

    async def _converted_remote(self, data: np.ndarray) -> np.ndarray:
        """Return values of elements that were read of a remote store."""
        assert self.array is not None
        conversion, store = self.array.conversion, self.store
        if conversion is None or not isinstance(store, DataFile):
            return self._values(data)
        if conversion.needs_libhdf5:
            return await in_pool(store.parse, conversion(data))
        return await store.parse_remote(conversion(data))

    async def joins(self) -> bool:
        """Tell whether `read_jointly_remote` reads several selections with less work."""
        array = self.array
        if self.error is not None or array is None:
            return False
        with suppress(NCZarrError):  # which its read raises again
            if array.reads_itself:
                return _joins(await in_pool(self.prepare))
            return not need_libhdf5(array.codecs) and _joins(self.prepare())
        return False

    async def read_jointly_remote(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """Do as `read_jointly` does, on the remote store's loop; only of what `joins`."""
        with caused_by(self.path):
            reader = self.prepare()
            if not isinstance(reader, ChunkReader):
                return await in_own_thread(partial(self.read_jointly, wanted))
            padded, stored = self._all_padded(wanted)
            found = await reader.read_jointly_remote(self._joint_plan(stored))
            values = [await self._converted_remote(data) for data in found]
            return [one.finish(data) for one, data in zip(padded, values, strict=True)]

    def begin_small(
        self, key: tuple[Index, ...] | None, *, points: bool, remember: bool
    ) -> SmallSelection | None:
        """Begin to read little of a remote file.

        Returns
        -------
        None if the selection is not small, or is read in another way.

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
        return SmallSelection(small, lambda data: padded.finish(self._values(data)))

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


def _joins(reader: ChunkReader | Selections) -> TypeGuard[ChunkReader | JointSelections]:
    """Tell whether several selections are read with less work than one by one."""
    return reader.joins if isinstance(reader, ChunkReader) else isinstance(reader, JointSelections)


def in_sequence() -> bool:
    """Tell whether this read may be one of many, one after the other, as a program makes them.

    The threads of dask (and of anything else) share the work: what one has read, none reads again.
    """
    return threading.current_thread() is threading.main_thread()


# -- failed reads ----------------------------------------------------------------------------------
# What is said of a read that failed: which dataset it is about, and whether that has changed.
#
# Whether bytes are damaged is found out by what decodes them (`nczarr_xarray.chunks.decoder`), and
# whether chunks are missing or gone by `nczarr_fsspec.stores.missing_chunks`. Here it is found out,
# once a read has failed, whether the dataset is still the one that was opened, which explains both.


@contextmanager
def explained(reader: VariableReader) -> Iterator[None]:
    """Explain the errors of a read, and see at its end that the dataset is the one that was opened.

    Else its missing chunks would be fill values of another one that has taken its place.
    """
    try:
        yield
        store = reader.store
        if isinstance(store, LocalStore):
            if reader.as_opened is None:
                store.check_place()
            else:
                reader.as_opened.check(store)
    except (FormatError, StoreError) as error:
        explain(reader, error)
        raise
    except MemoryError as error:
        reason = f"the selection does not fit into memory ({error}): read a part"
        raise FormatError(reader.path, reason) from None


def explain(reader: VariableReader, error: NCZarrError) -> None:
    """Add to an error which dataset it is about, and if that has changed since its opening."""
    error.found_in(reader.store.url)
    known = reader.error is not None or error.reason.endswith(CHANGED)
    if not known and isinstance(reader.store, KeyStore) and _has_changed(reader, reader.store):
        error.reason += f"; {CHANGED}"


def _has_changed(reader: VariableReader, store: KeyStore) -> bool:
    try:
        store.check_place()
    except StoreError:  # which is all that tells two trees of Zarr 3 apart
        return True
    if reader.as_opened is None:
        return False
    from nczarr_fsspec.changes.consistent_reading import look

    with suppress(StoreError):
        now, before = look(store), reader.as_opened.mark
        # a root that is not there any more may only be out of reach, as the rest is
        return now != before and not (now.root is None and before.root is not None)
    return False
