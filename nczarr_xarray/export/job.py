"""Carrying out an export: eager and dask's data through sinks, then metadata, then the commit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.create import Change
from nczarr_fsspec.edit import settle
from nczarr_fsspec.journal import Incomplete
from nczarr_fsspec.owner import Owner
from nczarr_fsspec.writable import WritableStore
from nczarr_xarray.export.dataset import Item
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.sink import Sink
from nczarr_xarray.export.source import StoredSource

#: A variable, and where its data go.
Flow = tuple[Item, Sink]


@dataclass(slots=True)
class Job:
    """One export, under way.

    Attributes
    ----------
    change
        What makes it valid at the end.
    flows
        The data.
    documents
        Metadata objects, in the order in which they are put.
    removed
        Keys that go.
    staged_chunks
        How many chunks are staged, where that is to be checked.
    template
        Where dask's arrays go after everything else has been put into place.
    after
        What is done at the very end.
    """

    change: Change
    flows: list[Flow] = field(default_factory=list)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    removed: Iterable[str] = ()
    staged_chunks: int | None = None
    template: WritableStore | None = None
    after: Callable[[], None] | None = None

    def finish(self, pending: Mapping[str, int] | None = None) -> None:
        """Put the metadata, and make all of it valid."""
        put_all(self.change.staged, self.documents)
        mark = Incomplete(Owner.here(), pending) if pending else None
        expected = self.staged_chunks
        if expected is not None:
            expected += len(self.documents)
        self.change.commit(self.removed, expected, mark)

    def run(self, progress: Progress) -> None:
        """Write everything, now; whatever goes wrong, nothing is left behind."""
        with self.or_nothing():
            self.write_eager(progress)
            self.write_lazy(progress)
            self.complete()

    def start(self, progress: Progress) -> Any:
        """Write what needs no dask, now; return the rest as a ``dask.delayed``."""
        with self.or_nothing():
            self.write_eager(progress)
            if self.template is None:
                return self.rest()
            lazy = [(item, sink) for item, sink in self.flows if is_lazy(item)]
            counts = {sink.array.path: chunk_count(sink, sink.array.shape) for _, sink in lazy}
            self.finish({path: count for path, count in counts.items() if count})
        later = [(item, sink.moved(self.template)) for item, sink in lazy]
        return Job(self.change, later, after=partial(settle, self.template)).rest(done=True)

    def rest(self, *, done: bool = False) -> Any:
        """Dask's arrays and then the end, as one ``dask.delayed``."""
        from dask.delayed import delayed

        light = self.without_data()  # they are in the blocks
        end = light.after if done and light.after is not None else light.complete
        return delayed(_finish_after, pure=False)(end, self.blocks())

    def without_data(self) -> Job:
        """The same, light enough to be sent."""
        return replace(self, flows=[])

    def complete(self) -> None:
        """Put the metadata, make everything valid, do what comes after."""
        self.finish()
        if self.after is not None:
            self.after()

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Remove what was staged if anything goes wrong."""
        try:
            yield
        except BaseException:
            self.change.abort()
            raise

    def write_eager(self, progress: Progress) -> None:
        """Write the data that are in memory (or come from a file when they are asked for)."""
        eager = [(item, sink) for item, sink in self.flows if not is_lazy(item)]
        for item, sink in eager:
            progress.expect(chunk_count(sink, item.source.shape))
        for item, sink in eager:
            for first, values in _pieces(item, sink):
                sink.write(values, first, done=progress.advance)

    def write_lazy(self, progress: Progress) -> None:
        """Write dask's arrays, block by block, by whatever scheduler is in use."""
        blocks = self.blocks()
        if not blocks:
            return
        from dask.base import compute
        from dask.callbacks import Callback

        progress.expect(len(blocks))
        client = _distributed_client()
        if client is None:
            written = {block.key for block in blocks}

            def finished(key: Any, *_: Any) -> None:
                if key in written:
                    progress.advance()

            with Callback(posttask=finished):  # type: ignore[no-untyped-call]
                compute(*blocks)  # type: ignore[no-untyped-call]
            return
        from distributed import as_completed

        futures = client.compute(blocks)
        try:
            for future in as_completed(futures):  # type: ignore[no-untyped-call]
                future.result()
                progress.advance()
        finally:
            client.cancel(futures)

    def blocks(self) -> list[Any]:
        """Delayed writes of all blocks of all of dask's arrays."""
        lazy = [(data, sink) for item, sink in self.flows if (data := lazy_data(item)) is not None]
        if not lazy:
            return []
        from dask.base import optimize
        from dask.delayed import delayed

        # together, so that what several variables are computed from is computed once
        arrays = optimize(*(data for data, _ in lazy))  # type: ignore[no-untyped-call]
        write = delayed(_write_block, pure=False)
        found = []
        for array, (_, sink) in zip(arrays, lazy, strict=True):
            first = [np.cumsum([0, *lengths[:-1]]).tolist() for lengths in array.chunks]
            parts = array.to_delayed(optimize_graph=False)
            for index in np.ndindex(parts.shape):
                start = tuple(starts[i] for starts, i in zip(first, index, strict=True))
                found.append(write(sink, start, parts[index]))
        return found


def _pieces(item: Item, sink: Sink) -> Iterator[tuple[tuple[int, ...], np.ndarray[Any, Any]]]:
    """The data of an item, and where each piece begins."""
    if not isinstance(item.source, StoredSource):
        yield (0,) * item.source.ndim, np.asarray(item.source.data)
        return
    for part in item.source.slabs(sink.array.chunk_shape):
        yield tuple(p.start for p in part), item.source.read(part)


def lazy_data(item: Item) -> Any:
    """dask's array, if the data are one, else None."""
    return item.source.data if isinstance(item.source, xr.Variable) and is_lazy(item) else None


def is_lazy(item: Item) -> bool:
    """Whether dask computes the data."""
    return item.source.chunks is not None


def chunk_count(sink: Sink, shape: tuple[int, ...]) -> int:
    """Chunks that data of this shape touch."""
    return math.prod(
        -(-(start + size) // chunk) - start // chunk
        for start, size, chunk in zip(sink.start, shape, sink.array.chunk_shape, strict=True)
    )


def put_all(store: WritableStore, documents: Mapping[str, bytes]) -> None:
    """Put objects in order; those of arrays, which come first, side by side."""
    arrays = [key for key in documents if key.rpartition("/")[2] == ".zarray"]
    prefixes = {key.rpartition("/")[0] for key in arrays}
    leading = [key for key in documents if key.rpartition("/")[0] in prefixes and "/" in key]
    put = partial(_put, store, documents)
    if store.parallel > 2 and len(leading) > 1:
        with ThreadPoolExecutor(min(store.parallel, len(leading))) as pool:
            list(pool.map(put, leading))
    else:
        list(map(put, leading))
    for key in documents:
        if key not in set(leading):
            put(key)


def _put(store: WritableStore, documents: Mapping[str, bytes], key: str) -> None:
    store.put(key, documents[key])


def _write_block(sink: Sink, first: tuple[int, ...], values: Any) -> None:
    sink.write(np.asarray(values), first, threads=1)


def _finish_after(finish: Any, _: Any) -> None:
    finish()


def _distributed_client() -> Any:
    """The client of dask.distributed if it is the scheduler in use, else None."""
    if "distributed" not in sys.modules:
        return None
    import dask
    import distributed

    if dask.config.get("scheduler", None) not in (None, "dask.distributed", "distributed"):
        return None
    try:
        return distributed.get_client()
    except ValueError:
        return None
