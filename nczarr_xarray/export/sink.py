"""Where the data of one array go: blocks of values in, encoded chunks out."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.writable import WritableStore
from nczarr_xarray.chunks.encode import Encoder
from nczarr_xarray.chunks.engine import ChunkReader, workers
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.export.dataset import Rounding
from nczarr_xarray.model import ChunkedArray

#: Bytes of chunks that are on their way to a remote store at a time.
IN_FLIGHT_BYTES = 1 << 28
#: Chunks a thread takes at a time from the common list.
BATCH = 4

Box = tuple[tuple[int, int], ...]


class Old(NamedTuple):
    """The chunks that an array has already, for those that are only changed in part.

    Parameters
    ----------
    store, array
        Where they are, and the array as it was.
    """

    store: KeyStore
    array: ChunkedArray


class Sink:
    """Writes blocks of one array. Picklable; blocks that share no chunk may come in parallel.

    Parameters
    ----------
    array
        As it is to be.
    store
        Where its chunks go.
    start
        Where in the array the data begin.
    old
        Chunks that are there already.
    rounding
        What is done to the values first.
    skip_fill
        Whether chunks that hold nothing but the fill value are left out.
    shared
        Whether blocks may share a chunk; then all must come from one process.
    """

    def __init__(
        self,
        array: ChunkedArray,
        store: WritableStore,
        start: tuple[int, ...] | None = None,
        *,
        old: Old | None = None,
        rounding: Rounding | None = None,
        skip_fill: bool = False,
        shared: bool = False,
    ) -> None:
        self.array = array
        self.store = store
        self.start = start or (0,) * len(array.shape)
        self.old = old
        self.rounding = rounding
        self.skip_fill = skip_fill
        self.shared = shared
        self.encoder = Encoder(array)
        self._home = os.getpid()
        self._lock = threading.Lock()

    def moved(self, store: WritableStore) -> Sink:
        """The same for another store."""
        return Sink(self.array, store, self.start, rounding=self.rounding, shared=self.shared)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, f"{self.store.url}/{self.array.path}/{id(self)}"

    def __setitem__(self, key: Any, values: Any) -> None:
        """Write the block at `key`, slices that count from `start`: how dask stores."""
        key = key if isinstance(key, tuple) else (key,)
        values = np.asarray(values)
        first = [0 if part is Ellipsis else part.start or 0 for part in key]
        first += [0] * (values.ndim - len(first))
        self.write(values, tuple(first[: values.ndim]), threads=1)

    def write(
        self,
        values: np.ndarray[Any, Any],
        first: tuple[int, ...] | None = None,
        *,
        threads: int | None = None,
        done: Callable[[int], None] | None = None,
    ) -> None:
        """Write one block.

        Parameters
        ----------
        first
            Where it begins, counted from `start`.
        threads
            Encode in so many; None for as many as there are processors. A
            remote store gets more, for they wait.
        done
            Told how many chunks have been written.

        Raises
        ------
        FormatError, StoreError
            If a value cannot be encoded, or a chunk not be stored.
        """
        if self.rounding is not None:
            values = self.rounding(values)
        first = first or (0,) * values.ndim
        low = tuple(s + f for s, f in zip(self.start, first, strict=True))
        high = tuple(n + size for n, size in zip(low, values.shape, strict=True))
        if 0 in values.shape:
            return
        positions = itertools.product(
            *(
                range(a // c, -(-b // c))
                for a, b, c in zip(low, high, self.array.chunk_shape, strict=True)
            )
        )
        count = math.prod(
            -(-b // c) - a // c for a, b, c in zip(low, high, self.array.chunk_shape, strict=True)
        )
        threads = min(self._threads(threads), count)

        def work(some: Iterator[tuple[int, ...]]) -> int:
            number = 0
            for position in some:
                self._write_chunk(position, values, low, high)
                number += 1
            return number

        if threads < 2:
            number = work(positions)
            if done is not None:
                done(number)
            return
        self._in_threads(threads, positions, work, done)

    def _threads(self, wanted: int | None) -> int:
        if self.store.parallel <= workers():
            return workers() if wanted is None else wanted
        in_flight = max(2, IN_FLIGHT_BYTES // max(1, self.encoder.nbytes))
        return min(self.store.parallel, in_flight)

    def _in_threads(
        self,
        threads: int,
        positions: Iterator[tuple[int, ...]],
        work: Callable[[Iterator[tuple[int, ...]]], int],
        done: Callable[[int], None] | None,
    ) -> None:
        lock = threading.Lock()
        failed = threading.Event()

        def take() -> list[tuple[int, ...]]:
            with lock:
                return [] if failed.is_set() else list(itertools.islice(positions, BATCH))

        def loop() -> None:
            try:
                while batch := take():
                    number = work(iter(batch))
                    if done is not None:
                        with lock:
                            done(number)
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(threads - 1, thread_name_prefix="nczarr-export") as pool:
            others = [pool.submit(loop) for _ in range(threads - 1)]
            loop()
        for other in others:
            other.result()

    def _write_chunk(
        self,
        position: tuple[int, ...],
        values: np.ndarray[Any, Any],
        low: tuple[int, ...],
        high: tuple[int, ...],
    ) -> None:
        """Write what `values`, which reach from `low` to `high`, hold of one chunk."""
        array = self.array
        source = []
        whole = True
        for i, chunk, size, a, b in zip(
            position, array.chunk_shape, array.shape, low, high, strict=True
        ):
            begin, end = i * chunk, min((i + 1) * chunk, size)
            whole = whole and a <= begin and end <= b
            source.append(slice(max(a, begin) - a, min(b, end) - a))
        key = f"{array.path}/{array.separator.join(map(str, position)) or '0'}"
        part = values[tuple(source)] if source else values
        if whole:
            self._put(key, part)
            return
        if self.shared and os.getpid() != self._home:
            raise StoreError(
                f"{self.store.url}/{key}",
                "two dask blocks share this chunk, which only one process can write; use "
                "align_chunks=True",
            )
        with self._lock:
            self._put(key, self._merged(key, position, part, low, high))

    def _put(self, key: str, part: np.ndarray[Any, Any]) -> None:
        if self.skip_fill and self.encoder.is_fill(part):
            return
        self.store.put(key, self.encoder.encode(part))

    def _merged(
        self,
        key: str,
        position: tuple[int, ...],
        part: np.ndarray[Any, Any],
        low: tuple[int, ...],
        high: tuple[int, ...],
    ) -> np.ndarray[Any, Any]:
        """The whole chunk: what was there, and `part` in it."""
        array = self.array
        begin = tuple(i * c for i, c in zip(position, array.chunk_shape, strict=True))
        end = tuple(
            min(b + c, n) for b, c, n in zip(begin, array.chunk_shape, array.shape, strict=True)
        )
        shape = tuple(e - b for b, e in zip(begin, end, strict=True))
        dtype = array.dtype.newbyteorder("=")
        fill = array.fill if array.fill is not None else np.zeros((), dtype)[()]
        chunk = np.full(shape, fill, dtype=dtype)
        seen = self._seen(key)
        if seen is not None:
            inside = tuple(
                slice(b, min(e, n)) for b, e, n in zip(begin, end, seen.array.shape, strict=True)
            )
            if all(part.start < part.stop for part in inside):
                plan = plan_outer(inside, seen.array.shape, seen.array.chunk_shape)
                store = seen.store
                reader = ChunkReader(seen.array)
                old = read_blocking(reader, store, plan)
                chunk[tuple(slice(0, n) for n in old.shape)] = old
        target = tuple(
            slice(max(a, b) - b, min(z, e) - b)
            for a, z, b, e in zip(low, high, begin, end, strict=True)
        )
        chunk[target] = self.encoder.as_stored(part)
        return chunk

    def _seen(self, key: str) -> Old | None:
        """Where the chunk is now: written by a block before, or old, or nowhere."""
        if self.shared:
            written = self.store.reader()
            if written.get_many([key])[0] is not None:
                return Old(written, self.array)
        return self.old


def read_blocking(reader: ChunkReader, store: KeyStore, plan: Any) -> np.ndarray[Any, Any]:
    """Read a plan from either kind of store."""
    from nczarr_fsspec.keystore import LocalStore, RemoteStore

    if isinstance(store, RemoteStore):
        return store.run(reader.read_remote(store, plan))
    assert isinstance(store, LocalStore)
    return reader.read(store, plan)
