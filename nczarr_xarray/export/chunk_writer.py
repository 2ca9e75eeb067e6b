"""Writing the data of one array: blocks of values in, encoded chunks out.

Copies of a writer in one process pass one gate, by which they are stopped.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from nczarr_fsspec.changes.recovery import pending_in
from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import KeyStore, RemoteStore, WritableStore
from nczarr_fsspec.stores.missing_chunks import Document
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.export.form.rounding import as_integers
from nczarr_xarray.model import Array, ChunkedArray

#: Bytes of chunks that are being sent to a remote store at a time.
IN_FLIGHT_BYTES = 1 << 28
#: Bytes of small chunks that are encoded together: the size of a processor's caches.
RUN_BYTES = 1 << 18
#: Runs of chunks per thread, at least, so that all threads end at about the same time.
RUNS_PER_THREAD = 4

T = TypeVar("T")
#: Called with the number of objects that were done.
Done: TypeAlias = Callable[[int], None] | None


class Gate:
    """Shared by all copies of one writer in one process: counts those inside, and can be shut.

    Attributes
    ----------
    lock
        Held while a chunk is changed that several blocks share.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    @classmethod
    def called(cls, name: str) -> Gate:
        """Return the gate of the writers of this name."""
        with NAMING:  # a fork has gates of its own: its parent's threads do not exist there
            return GATES.setdefault((os.getpid(), name), cls())

    def __enter__(self) -> None:
        with self._changed:
            if self._shut:
                raise StoreError("export", "is complete already, or was given up")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self) -> None:
        """Admit no further write, and wait until all writes have ended."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside)


GATES: WeakValueDictionary[tuple[int, str], Gate] = WeakValueDictionary()
NAMING = ProcessLock()


class Gated:
    """A writer of blocks whose copies, in one process, pass one gate. Picklable.

    Attributes
    ----------
    lasts
        Tells whether the export still lasts. It is asked where objects are put into their final
        places, by the copies of a writer that were pickled: a task of another process may go on
        after the export was given up, and a delayed one may be computed once more. Neither must
        write into what came there since.
    """

    lasts: Callable[[], bool] | None = None

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self.gate = Gate.called(self._name)
        self.home = os.getpid()
        self._pickled = False

    def check_lasts(self, url: str) -> None:
        """Raise `StoreError` if the export is over, unless this is the writer that can be shut."""
        away = self._pickled or os.getpid() != self.home
        if self.lasts is not None and away and not self.lasts():
            raise StoreError(
                url,
                "nothing shows that this export still lasts: it has ended, or dask's workers do "
                "not write to the same place; use a scheduler of this process (threads), or a "
                "place that all of them share",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "gate"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, gate=Gate.called(state["_name"]), _pickled=True)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self._name

    def write(
        self, values: np.ndarray, first: tuple[int, ...], *, threads: int | None = None
    ) -> int:
        """Write the block that begins at `first`; return how many objects were put."""
        raise NotImplementedError

    def shut(self) -> None:
        """Write nothing more in this process; return when the last write has ended."""
        self.gate.shut()

    def each(
        self,
        items: Iterator[T],
        work: Callable[[T], int],
        *,
        threads: int,
        done: Callable[[T], None],
        within: AbstractContextManager[None],
    ) -> int:
        """Do some work on each item, in several threads; no item is begun after an error.

        Parameters
        ----------
        work
            Called inside of the gate; returns how many objects it has put.
        threads
            Number of threads, this one included.
        done
            Called with an item whose work has ended, by one thread at a time.
        within
            A context in which each thread works.

        Returns
        -------
        int
            How many objects were put.
        """
        lock = threading.Lock()
        puts: list[int] = []
        errors: list[BaseException] = []

        def take() -> T | None:
            with lock:
                return None if errors else next(items, None)

        def loop() -> None:
            put = 0
            try:
                with within:
                    while (item := take()) is not None:
                        with self.gate:
                            put += work(item)
                        with lock:
                            done(item)
            except BaseException as error:  # noqa: BLE001  (it is raised when all have ended)
                errors.append(error)
            puts.append(put)

        with ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="nczarr-export") as pool:
            # where no more can be started, those that there are do all, without a future of each
            with suppress(RuntimeError):
                for _ in range(threads - 1):
                    pool.submit(loop)
            loop()
        if errors:
            raise errors[0]
        return sum(puts)


# -- array writer --------------------------------------------------------------------------------
# What writes the data of one array, whatever its format: blocks in, objects out.


class ArrayWriter(Gated, ABC):
    """Writes blocks of one array into a store. Picklable; safe in threads.

    Attributes
    ----------
    array
        The new array; its chunks are the objects that are put.
    store
        The store that they are put into.
    start
        The position in the array where the data begin.
    shared
        Whether blocks may share an object; then all must come from one process.
    """

    array: Array
    store: WritableStore
    start: tuple[int, ...]
    shared: bool = False

    def write(
        self,
        values: np.ndarray,
        first: tuple[int, ...] | None = None,
        *,
        threads: int | None = None,
        done: Done = None,
    ) -> int:
        """Write one block.

        Parameters
        ----------
        first
            The position of the block, counted from `start`.
        threads
            Number of threads that encode; None for as many as are worth having: one per processor,
            and more for a remote store, because they wait most of the time.
        done
            Called with the number of objects that were done.

        Returns
        -------
        int
            How many objects were put: all but those of nothing but the fill value.

        Raises
        ------
        FormatError, StoreError
            If a value cannot be encoded, or an object not be stored.
        """
        self.check_lasts(self.store.url)
        if 0 in values.shape:
            return 0
        return self.write_block(values, first or (0,) * values.ndim, threads, done)

    @abstractmethod
    def write_block(
        self, values: np.ndarray, first: tuple[int, ...], threads: int | None, done: Done
    ) -> int:
        """Do what `write` does, with a block that is not empty."""


def check_block(path: str, block: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise `FormatError` if a block that dask has computed is not of the shape that it told."""
    if block.shape != shape:
        reason = f"dask has computed a block of shape {block.shape}, which was to have {shape}"
        raise FormatError(
            path, f"{reason}: what makes its blocks (map_blocks ...) states wrong chunks"
        )


class OldChunks:
    """The existing chunks of an array, for those of which only a part is replaced.

    Parameters
    ----------
    store, array
        The store of the chunks, and the array before the change.
    """

    def __init__(self, store: KeyStore, array: ChunkedArray) -> None:
        self.store = store
        self.array = array
        self._reader = ChunkReader(array, store, Document(array.described))

    def __reduce__(self) -> tuple[type[OldChunks], tuple[KeyStore, ChunkedArray]]:
        return type(self), (self.store, self.array)

    def read(self, part: tuple[slice, ...]) -> np.ndarray:
        """Return the values of one part."""
        plan = plan_outer(part, self.array.shape, self.array.chunk_shape)
        if isinstance(self.store, RemoteStore):
            return self.store.run(self._reader.read_remote(plan))
        return self._reader.read(plan)


class Span(NamedTuple):
    """One chunk along one dimension, and which values of a block lie in it.

    Parameters
    ----------
    name
        Its number as text, as in keys.
    begin, end
        The positions in the array where it begins and ends.
    values
        The part of the block that lies in it.
    inside
        The part of the chunk that this is.
    whole
        Whether that is all of the chunk.
    """

    name: str
    begin: int
    end: int
    values: slice
    inside: slice
    whole: bool


def spans(low: int, high: int, chunk: int, size: int) -> list[Span]:
    """Return the chunks that the values ``[low, high)`` of a dimension of length `size` touch."""
    found = []
    for number in range(low // chunk, -(-high // chunk)):
        begin, end = number * chunk, min((number + 1) * chunk, size)
        first, last = max(low, begin), min(high, end)
        found.append(
            Span(
                str(number),
                begin,
                end,
                slice(first - low, last - low),
                slice(first - begin, last - begin),
                first == begin and last == end,
            )
        )
    return found


Position = tuple[Span, ...]


class Run(NamedTuple):
    """Chunks that lie side by side along one dimension.

    Parameters
    ----------
    before, after
        The spans along the dimensions before and after that one.
    along
        The span of each chunk along it; none for a scalar.
    """

    before: Position
    along: list[Position]
    after: Position


class ChunkWriter(ArrayWriter):
    """Writes blocks of one array. Picklable; blocks that share no chunk may be written in parallel.

    Parameters
    ----------
    array
        The array to write, in its final shape.
    store
        The store that its chunks are put into.
    start
        The position in the array where the data begin.
    old
        The chunks that exist already.
    rounding
        A function that rounds the values before they are encoded.
    skip_fill
        Whether chunks that hold nothing but the fill value are left out.
    shared
        Whether blocks may share a chunk; then all must come from one process.

    Attributes
    ----------
    in_flight
        Bytes of chunks, when decoded, that are on their way to a remote store at a time.
    """

    def __init__(
        self,
        array: ChunkedArray,
        store: WritableStore,
        start: tuple[int, ...] | None = None,
        *,
        old: OldChunks | None = None,
        rounding: Rounding | None = None,
        skip_fill: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.array: ChunkedArray = array
        self.store = store
        self.start = start or (0,) * len(array.shape)
        self.old = old
        self.rounding = rounding
        self.skip_fill = skip_fill
        self.shared = shared
        self.in_flight = IN_FLIGHT_BYTES
        self.encoder = Encoder(array)
        self._template = ""

    def for_template(self, store: WritableStore, name: str) -> ChunkWriter:
        """Return a writer for a template in place; it writes while the mark has this name."""
        writer = ChunkWriter(
            self.array, store, self.start, rounding=self.rounding, shared=self.shared
        )
        writer._template = name
        return writer

    def __setitem__(self, key: Any, values: Any) -> None:
        """Write the block at `key`, slices that count from `start`, as dask's ``store`` does."""
        key = key if isinstance(key, tuple) else (key,)
        values = np.asarray(values)
        parts = [part for part in key if part is not Ellipsis and part.stop is not None]
        if len(parts) == values.ndim:  # of dask, not all of a variable
            told = tuple(part.stop - (part.start or 0) for part in parts)
            check_block(f"/{self.array.path}", values, told)
        first = [0 if part is Ellipsis else part.start or 0 for part in key]
        first += [0] * (values.ndim - len(first))
        self.write(values, tuple(first[: values.ndim]), threads=1)

    def check_lasts(self, url: str) -> None:
        super().check_lasts(url)
        mark = pending_in(self.store) if self._template else None
        if self._template and (mark is None or mark.name != self._template):
            raise StoreError(
                self.store.url,
                "the dataset that these data were to complete is complete already or was replaced; "
                "export them again",
            )

    def write_block(
        self, values: np.ndarray, first: tuple[int, ...], threads: int | None, done: Done
    ) -> int:
        if self.rounding is not None:
            values = self.rounding(values)
        array = self.array
        dtype = array.dtype.newbyteorder("=")
        # dask's blocks may be of another dtype than dask has told; numpy casts complex numbers,
        # times and text to numbers, and what these mean is lost
        if dtype.kind in "iufb" and values.dtype.kind not in "iufb":
            reason = f"dask has computed a block of type {values.dtype}, which is stored as {dtype}"
            raise FormatError(
                f"/{array.path}",
                f"{reason}: what makes its blocks (map_blocks ...) states another dtype",
            )
        if dtype.kind in "iu" and values.dtype.kind in "iuf" and values.dtype != dtype:
            values = as_integers(values, dtype, f"/{array.path}", exact=True)
        axes = [
            spans(s + f, s + f + size, chunk, length)
            for s, f, size, chunk, length in zip(
                self.start, first, values.shape, array.chunk_shape, array.shape, strict=True
            )
        ]
        threads = min(self.threads(threads), math.prod(map(len, axes)))

        def finished(run: Run) -> None:
            if done is not None:
                done(len(run.along))

        return self.each(
            self._runs(axes, threads),
            lambda run: self._write_run(run, values),
            threads=threads,
            done=finished,
            # not for remote stores: many more requests wait than chunks are being encoded
            within=self.encoder.scratch if self.at_once else nullcontext(),
        )

    @property
    def at_once(self) -> bool:
        """Whether the store answers at once, so that there are no more threads than processors."""
        return self.store.parallel == 1

    def threads(self, wanted: int | None) -> int:
        """Return how many threads are worth having (`wanted`: see `write`)."""
        if self.at_once:
            return processors() if wanted is None else wanted
        return min(self.store.parallel, max(2, self.in_flight // max(1, self.encoder.nbytes)))

    def _runs(self, axes: list[list[Span]], threads: int) -> Iterator[Run]:
        """Yield all chunks that a block touches, adjacent ones as one run."""
        if not axes:
            yield Run((), [()], ())
            return
        # the last dimension with chunks side by side: a map a step has them along time
        axis = max((i for i, spans_ in enumerate(axes) if len(spans_) > 1), default=0)
        after = tuple(span for (span,) in axes[axis + 1 :])
        along = axes[axis]
        length = 1
        if self.at_once:  # in a remote store, each chunk is a request of its own
            fair = -(-math.prod(map(len, axes)) // (RUNS_PER_THREAD * threads))
            length = max(1, min(fair, RUN_BYTES // max(1, self.encoder.nbytes)))
        for before in itertools.product(*axes[:axis]):
            for start in range(0, len(along), length):
                yield Run(before, [(span,) for span in along[start : start + length]], after)

    def _write_run(self, run: Run, values: np.ndarray) -> int:
        """Write the `values` of a run of chunks; return how many were put."""
        positions = [(*run.before, *spans_, *run.after) for spans_ in run.along]
        if len(positions) < 2 or not all(
            span.whole and span.end - span.begin == length
            for position in (positions[0], positions[-1])
            for span, length in zip(position, self.array.chunk_shape, strict=True)
        ):
            return sum(self._write_chunk(position, values) for position in positions)
        block = values[
            tuple(
                slice(first.values.start, last.values.stop)
                for first, last in zip(positions[0], positions[-1], strict=True)
            )
        ]
        separator = self.array.separator
        start = "".join(span.name + separator for span in run.before)
        end = "".join(separator + span.name for span in run.after)
        put = 0
        chunks = self.encoder.encode_run(
            block, len(positions), axis=len(run.before), skip_fill=self.skip_fill
        )
        for (span,), data in zip(run.along, chunks, strict=True):
            if data is not None:
                self.store.put(f"{self.array.path}/{start}{span.name}{end}", data)
                put += 1
        return put

    def _write_chunk(self, position: Position, values: np.ndarray) -> bool:
        """Write the `values` of one chunk; tell whether it was put."""
        array = self.array
        key = f"{array.path}/{array.separator.join([span.name for span in position]) or '0'}"
        part = values[tuple([span.values for span in position])] if position else values
        if all(span.whole for span in position):
            return self.put_chunk(key, part)
        if not self.shared:
            return self.put_chunk(key, self._merged(position, part, self.old))
        if os.getpid() == self.home:
            with self.gate.lock:
                return self.put_chunk(key, self._merged(position, part, self.seen_before(key)))
        raise StoreError(
            f"{self.store.url}/{key}",
            "two dask blocks share this chunk, which only one process can write; use "
            "align_chunks=True",
        )

    def put_chunk(self, key: str, part: np.ndarray) -> bool:
        if self.skip_fill and self.encoder.is_fill(part):
            return False
        self.store.put(key, self.encoder.encode(part))
        return True

    def _merged(self, position: Position, part: np.ndarray, seen: OldChunks | None) -> np.ndarray:
        """Return the whole chunk: its old elements, with `part` copied into it."""
        array = self.array
        dtype = array.dtype.newbyteorder("=")
        shape = [span.end - span.begin for span in position]
        chunk = np.full(shape, array.missing, dtype=dtype)
        if seen is not None:
            there = tuple(
                slice(span.begin, min(span.end, size))
                for span, size in zip(position, seen.array.shape, strict=True)
            )
            if all(one.start < one.stop for one in there):
                before = seen.read(there)
                chunk[tuple(map(slice, before.shape))] = before
        chunk[tuple(span.inside for span in position)] = self.encoder.as_stored(part)
        return chunk

    def seen_before(self, key: str) -> OldChunks | None:
        """Return where a chunk is now: put by an earlier block, stored before, or nowhere."""
        written = self.store.reader()
        found = written.get_many([key], sys.maxsize)[0]  # it was written here: no bound is needed
        if isinstance(found, StoreError):
            raise found
        return self.old if found is None else OldChunks(written, self.array)
