"""Read variables, whatever their data are made of.

A `VariableReader` reads selections of one variable. `read_together` reads those of many remote
variables at the same time. `StoredChunks` brings chunks as they are stored. `explained` adds to the
error of a read that failed what has become of the dataset since it was opened.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.keystore import KeyStore, LocalStore, OnLoop, WritableStore
from nczarr_fsspec.stores.missing_chunks import CHANGED, Document
from nczarr_fsspec.transport.recording import caused_by
from nczarr_xarray.chunks.engine import ChunkReader, SmallRead
from nczarr_xarray.chunks.grid import Grid
from nczarr_xarray.chunks.joint import JointPlan, boxes_of
from nczarr_xarray.chunks.pieces import Index, PaddedSelection, padded_selection
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.chunks.sources import EncodedChunk, LocalSource, source_of
from nczarr_xarray.chunks.threads import in_own_thread, in_pool
from nczarr_xarray.codecs.registry import need_libhdf5
from nczarr_xarray.dataset.file import DataFile, at_hand, loop_of
from nczarr_xarray.formats.rounds import caught, collection_paused, together
from nczarr_xarray.model import ChunkTable, Selections, Variable

if TYPE_CHECKING:
    from nczarr_xarray.dataset.replaced_arrays import AsOpened

#: Bytes of an array, decoded, that an event loop may read from memory itself.
MOST_AT_HAND = 1 << 20
#: Selections that are begun together. Their requests are on the way while the next are begun, ...
_AT_A_TIME = 64
#: after so many turns of the event loop.
_TURNS = 2
#: An index of all positions along a dimension.
_ALL = slice(None)


#: A key and whether it selects points; see `VariableReader.read`.
Wanted: TypeAlias = "tuple[tuple[Index, ...] | None, bool]"


class Selection(NamedTuple):
    """What is to be read of a variable; see `VariableReader.read`."""

    reader: VariableReader
    key: tuple[Index, ...]
    points: bool


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
            boxes = boxes_of(key) if points and key is not None else None
            if boxes is not None:
                return boxes.joined(self.read_jointly([(box, False) for box in boxes.keys]))
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
            if isinstance(reader, ChunkReader) and reader.joins and len(wanted) > 1:
                padded, plan = self._joint_plan(wanted)
                found = map(self._converted, reader.read_jointly(plan))
                return [one.finish(data) for one, data in zip(padded, found, strict=True)]
        return [self.read(key, points=points) for key, points in wanted]

    def _joint_plan(self, wanted: Sequence[Wanted]) -> tuple[list[PaddedSelection], JointPlan]:
        padded = [self._padded(key, points) for key, points in wanted]
        of_all = zip(padded, wanted, strict=True)
        return padded, JointPlan([self._plan(one.key, points) for one, (_, points) in of_all])

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
                padded = self._padded(key, points)
                read = partial(reader.read, padded.key, points=points)
                # not a thread of the loop's own, which may need those to find a host
                return padded.finish(await (in_own_thread if reader.has_readers else in_pool)(read))
            everything = key is None or all(isinstance(i, slice) and i == _ALL for i in key)
            reading = reader.reading_whole() if self._is_whole and everything else None
            if reading is not None:
                return self._values(await reading)
            boxes = boxes_of(key) if points and key is not None and reader.joins else None
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

    def joins(self) -> bool:
        """Tell whether `read_jointly_remote` can read it."""
        array = self.array
        if self.error is not None or array is None or array.reads_itself:
            return False
        with suppress(NCZarrError):  # which its read raises again
            reader = None if need_libhdf5(array.codecs) else self.prepare()
            return isinstance(reader, ChunkReader) and reader.joins
        return False

    async def read_jointly_remote(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """Do as `read_jointly` does, on the remote store's loop; only of what `joins`."""
        with caused_by(self.path):
            reader = self.prepare()
            assert isinstance(reader, ChunkReader)
            padded, plan = self._joint_plan(wanted)
            found = await reader.read_jointly_remote(plan)
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


# -- many variables --------------------------------------------------------------------------------
# Selections of many remote variables, read at the same time, the small ones of a file together.
#
# A read of its own takes an event loop longer than decoding a small chunk does: tasks, read rounds
# and futures. So small selections of one file are located in one read round of all, and fetched by
# one read of data. What cannot be read so is read by itself, which finds out why.


def read_together(
    wanted: Selection, others: Sequence[Selection]
) -> tuple[np.ndarray, list[np.ndarray | BaseException]]:
    """Read a selection and, at the same time, others of remote stores on the same loop.

    Of the others, errors stand in the place of values.

    Raises
    ------
    NCZarrError
        As `VariableReader.read`, of the first.
    """
    remote = loop_of(wanted.reader.store)
    assert remote is not None
    reading = _read_all([wanted, *others], remember=in_sequence())
    with collection_paused():  # what hundreds of variables take stays until all are read
        values, *of_others = remote.run(reading)
    if not isinstance(values, BaseException):
        return values, of_others
    if isinstance(values, (FormatError, StoreError)):
        explain(wanted.reader, values)
    raise values


def read_selections(selections: Sequence[Selection]) -> list[np.ndarray]:
    """Read selections of any datasets: remote ones at the same time, each chunk of a variable once.

    Raises
    ------
    NCZarrError
        Of the first that cannot be read, as `VariableReader.read`.
    """
    results: dict[int, np.ndarray | BaseException] = {}
    remotes: dict[Any, tuple[OnLoop, list[int]]] = {}
    local: list[int] = []
    for number, one in enumerate(selections):
        remote = loop_of(one.reader.store)
        numbers = local if remote is None else remotes.setdefault(remote.loop, (remote, []))[1]
        numbers.append(number)
    for remote, numbers in remotes.values():
        with collection_paused():
            reading = _read_all([selections[n] for n in numbers], remember=False)
            results.update(zip(numbers, remote.run(reading), strict=True))
    for numbers in _by_reader([selections[n] for n in local]):
        own = [local[n] for n in numbers]
        wanted = [(selections[n].key, selections[n].points) for n in own]
        results.update(zip(own, selections[own[0]].reader.read_jointly(wanted), strict=True))
    for number, one in enumerate(selections):
        found = results[number]
        if isinstance(found, BaseException):
            if isinstance(found, (FormatError, StoreError)):
                explain(one.reader, found)
            raise found
    return [results[number] for number in range(len(selections))]  # type: ignore[misc]


async def _read_all(
    selections: Sequence[Selection], *, remember: bool
) -> list[np.ndarray | BaseException]:
    """Read selections on their loop; errors stand in the place of values."""
    import asyncio

    results: dict[int, np.ndarray | BaseException | None] = dict.fromkeys(range(len(selections)))

    async def read(number: int) -> None:
        reader, key, points = selections[number]
        try:
            results[number] = await reader.read_remote(key, points=points, remember=remember)
        except Exception as error:  # noqa: BLE001 - raised by whoever wants this selection
            results[number] = error

    async def read_small(file: DataFile, small: Mapping[int, SmallSelection]) -> None:
        first = selections[min(small)].reader
        with caused_by(first.path), suppress(Exception):  # what is left is read by itself
            await _read_small(file, [one.read for one in small.values()])
        for number, one in small.items():
            with suppress(Exception):
                values = one.read.values()
                if values is not None:
                    results[number] = one.finish(values)
        for number in small:
            if results[number] is None:
                tasks.create_task(read(number))

    async def read_jointly(numbers: Sequence[int]) -> None:
        wanted = [(selections[n].key, selections[n].points) for n in numbers]
        with suppress(Exception):  # what is left is read by itself
            values = await selections[numbers[0]].reader.read_jointly_remote(wanted)
            results.update(zip(numbers, values, strict=True))
        for number in numbers:
            if results[number] is None:
                tasks.create_task(read(number))

    async with asyncio.TaskGroup() as tasks:
        alone = []
        for numbers in _by_reader(selections):
            if len(numbers) > 1 and selections[numbers[0]].reader.joins():
                tasks.create_task(read_jointly(numbers))
            else:
                alone += numbers
        for at in range(0, len(alone), _AT_A_TIME):
            files: dict[DataFile, dict[int, SmallSelection]] = {}
            for number in alone[at : at + _AT_A_TIME]:
                reader, key, points = selections[number]
                store, small = reader.store, None
                with suppress(Exception):  # its own read raises it again
                    small = reader.begin_small(key, points=points, remember=remember)
                if small is not None and isinstance(store, DataFile):
                    files.setdefault(store, {})[number] = small
                else:
                    tasks.create_task(read(number))
            for file, begun in files.items():
                tasks.create_task(read_small(file, begun))
            for _ in range(_TURNS):
                await asyncio.sleep(0)
    return [  # of one that something else has cancelled there is nothing
        StoreError(one.reader.path, "reading it was cancelled") if values is None else values
        for one, values in zip(selections, results.values(), strict=True)
    ]


def _by_reader(selections: Sequence[Selection]) -> list[list[int]]:
    """Return the numbers of the selections of each reader."""
    numbers: dict[int, list[int]] = {}
    for number, one in enumerate(selections):
        numbers.setdefault(id(one.reader), []).append(number)
    return [*numbers.values()]


async def _read_small(file: DataFile, reads: Sequence[SmallRead]) -> None:
    """Locate the chunks of small reads in one read round, and fetch them by one read."""
    from nczarr_fsspec.ranges.planner import by_owner  # which only remote files need

    tables = await file.parse_remote(together([caught(one.locating()) for one in reads]))
    located: list[SmallRead] = []
    extents: list[tuple[np.ndarray, np.ndarray]] = []
    for one, table in zip(reads, tables, strict=True):
        with suppress(NCZarrError):
            extent = None if isinstance(table, NCZarrError) else one.located(table)
            if extent is not None:
                located.append(one)
                extents.append(extent)
    if not extents:
        return
    starts, stops = map(np.concatenate, zip(*extents, strict=True))
    first = np.cumsum([0, *(len(starts) for starts, _ in extents)])

    async def receive(numbers: np.ndarray, data: list[memoryview]) -> None:
        for owner, rows in by_owner(first, numbers):
            with suppress(NCZarrError):
                parts = [data[i] for i in rows.tolist()]
                located[owner].scatter(numbers[rows] - first[owner], parts)

    await file.read_data(starts, stops, receive)


# -- stored chunks ---------------------------------------------------------------------------------
# The chunks of a variable as they are stored, not decoded.


#: Chunks that are looked for, at most, to learn what is so of all.
_SAMPLED = 64


class StoredChunks:
    """Brings the stored bytes of chunks. Safe in threads; every method blocks.

    Parameters
    ----------
    reader
        Of a variable whose array is a grid of chunks.

    Attributes
    ----------
    is_local : bool
        Whether the chunks are at hand.
    """

    def __init__(self, reader: VariableReader) -> None:
        reader.prepare()
        assert reader.array is not None
        self._reader = reader
        self._array = reader.array
        self._grid = Grid(reader.array)
        self._source = source_of(reader.store, reader.document)
        self._loop = loop_of(reader.store)
        self.is_local = self._loop is None

    def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks (see `Array.locate`).

        Raises
        ------
        NCZarrError
            If their index cannot be read, or one is stated to have more bytes than it can have.
        """
        source, locating = self._source, self._array.locate(ids)
        if isinstance(source, LocalSource):
            table = source.locate(locating)
        else:
            assert self._loop is not None
            table = self._loop.run(source.locate(locating))
        self._grid.check_sizes(ids, table.size)
        return table

    @cached_property
    def are_longer(self) -> bool:
        """Whether chunks are longer than they should be (`Array.longer`), as the first there is."""
        count = math.prod(self._grid.numbers.shape)
        if self._array.longer > self._grid.nbytes:
            for number in range(0, count, max(1, -(-count // _SAMPLED))):
                (data,) = self.fetch(self.locate(np.array([number])))
                if data is not None:
                    return self._grid.decoder.beginning(data) is not None
        return False

    def fetch(self, table: ChunkTable) -> Sequence[EncodedChunk]:
        """Fetch the chunks of a table, which exist as far as it says; None for a missing key.

        Raises
        ------
        NCZarrError
            Naming the object that cannot be read.
        """
        source = self._source
        with explained(self._reader):
            if isinstance(source, LocalSource):
                return source.fetch(table, self._grid.bound)
            assert self._loop is not None
            return self._loop.run(self._fetch_remote(table))

    def put(self, table: ChunkTable, keys: Sequence[str], store: WritableStore) -> list[bool]:
        """Store the chunks of a table as they are; tell which there are.

        What is in files is copied from file to file. Errors are those of `fetch`, and of `store`.

        Parameters
        ----------
        keys
            Where each goes.
        store
            Where to.
        """
        source, ranges = self._source, None
        if isinstance(source, LocalSource):
            ranges = source.ranges(table, self._grid.bound)
        if ranges is None:
            return _put(store.put, keys, self.fetch(table))
        with explained(self._reader):
            return _put(store.put_range, keys, ranges)

    async def _fetch_remote(self, table: ChunkTable) -> Sequence[EncodedChunk]:
        source = self._source
        assert not isinstance(source, LocalSource)
        chunks: list[EncodedChunk] = [None] * len(table.start)

        async def receive(numbers: Any, data: list[Any]) -> None:
            for number, stored in zip(numbers, data, strict=True):
                chunks[number] = stored

        await source.fetch(table, self._grid.bound, receive)
        return chunks


def _put(put: Callable[[str, Any], None], keys: Sequence[str], chunks: Iterable[Any]) -> list[bool]:
    """Put each of what was found but None under its key; tell which were put."""
    there = []
    for key, data in zip(keys, chunks, strict=True):
        there.append(data is not None)
        if data is not None:
            put(key, data)
    return there
