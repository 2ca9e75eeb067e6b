"""Carrying out an export: data through chunk writers, then the metadata, then the commit."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.changes.create import Change
from nczarr_fsspec.changes.journal import ROOT, Incomplete
from nczarr_fsspec.changes.moment import stamped
from nczarr_fsspec.changes.owned import is_chunk_of
from nczarr_fsspec.changes.owner import Owner
from nczarr_fsspec.changes.recovery import settle
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.writable import WritableStore
from nczarr_xarray.chunks.cache import CACHE
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.dataset import Item
from nczarr_xarray.export.moving import Mover, stored_alike
from nczarr_xarray.export.parallel import Written, compute, optimized, write_blocks
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.stored_source import StoredSource

#: A variable to write, and the chunk writer for its data.
Flow = tuple[Item, ChunkWriter]


@dataclass(slots=True)
class WriteTask:
    """An export: the data to write, and the change that makes them valid.

    Attributes
    ----------
    change
        The change that makes the data valid at the end.
    flows
        Each variable to write, with its chunk writer.
    documents
        Metadata documents by key, in the order in which they are put.
    removed
        Keys to remove.
    staged_chunks
        The number of chunks to stage; None if it is not checked.
    template
        The store for dask's arrays, if they are written after all else is in place.
    after
        A function to call at the very end.
    """

    change: Change
    flows: list[Flow] = field(default_factory=list)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    removed: Iterable[str] = ()
    staged_chunks: int | None = None
    template: WritableStore | None = None
    after: Callable[[], None] | None = None

    def finish(self, mark: Incomplete | None = None) -> None:
        """Put the metadata of groups and make all of it valid; `mark` says what is to come."""
        of_arrays = frozenset(documents_of_arrays(self.documents))
        for key, document in self.documents.items():
            if key not in of_arrays:
                if key == ROOT and not self.change.staged.stamps:
                    document = stamped(document)
                self.change.staged.put(key, document)
        expected = self.staged_chunks
        if expected is not None:
            expected += len(self.documents)
        self.change.commit(self.removed, expected, mark)
        CACHE.clear()  # it may hold chunks of datasets that are still open

    def run(self, progress: Progress) -> None:
        """Write everything now; if anything goes wrong, nothing is left behind."""
        with self.or_nothing():
            self.write_eager(progress)
            self.complete(self.write_lazy(progress))

    def start(self, progress: Progress) -> Any:
        """Write now what needs no dask; return the rest as a ``dask.delayed``."""
        need_dask()
        with self.or_nothing():
            self.write_eager(progress)
            if self.template is None:
                return self.rest()
            lazy = [(item, writer) for item, writer in self.flows if is_lazy(item)]
            counts = {
                writer.array.path: chunk_count(writer, writer.array.shape) for _, writer in lazy
            }
            pending = {path: count for path, count in counts.items() if count}
            mark = Incomplete(Owner.here(), pending, uuid.uuid4().hex)
            self.finish(mark if pending else None)
        later = [(item, writer.for_template(self.template, mark.name)) for item, writer in lazy]
        return WriteTask(self.change, later, after=partial(settle, self.template)).rest(done=True)

    def rest(self, *, done: bool = False) -> Any:
        """Return the writing of dask's arrays, and what follows, as one ``dask.delayed``."""
        from dask.delayed import delayed

        light = self.without_data()  # the data are in the graph of dask
        end = light.settled if done else light.complete
        return delayed(end, pure=False)(optimized(self.writes()))

    def without_data(self) -> WriteTask:
        """Return a copy without the data, which is cheap to send to a worker."""
        return replace(self, flows=[])

    def complete(self, written: Iterable[Written] = ()) -> None:
        """Put the metadata, make everything valid, and do what follows."""
        self.check(written)
        self.finish()
        self.settled()

    def settled(self, _: object = None) -> None:
        """Do the last steps, after everything is valid."""
        if self.after is not None:
            self.after()

    def check(self, written: Iterable[Written]) -> None:
        """Raise `StoreError` if chunks are missing that dask's workers have put.

        They are missing if the target is a mapping, of which other processes
        have copies, or a path that is another folder on another machine.
        """
        staged = self.change.staged
        counts: dict[str, int] = {}
        for path, numbers in written:
            counts[path] = counts.get(path, 0) + int(np.sum(numbers))
        for path, number in counts.items():
            there = sum(is_chunk_of(key, path) for key in staged.keys_below(path))
            if there < number:
                raise StoreError(
                    f"{staged.url}/{path}",
                    f"{number} chunks were written and {there} are there: dask's workers do not "
                    "write to the same place; use a scheduler of this process (threads), or a "
                    "place that all of them share",
                )

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Remove the staged objects if anything goes wrong."""
        try:
            yield
        except BaseException:
            # dask's threads finish the blocks that they have begun
            for _, writer in self.flows:
                writer.shut()
            self.change.abort()
            raise

    def write_eager(self, progress: Progress) -> None:
        """Write the metadata of arrays, and the data that are in memory or in a file."""
        # first: they show which chunks belong to an export that died
        put_all(self.change.staged, documents_of_arrays(self.documents))
        eager = [(item, writer) for item, writer in self.flows if not is_lazy(item)]
        for item, writer in eager:
            progress.expect(chunk_count(writer, item.source.shape))
        for item, writer in eager:
            mover = _mover(item, writer)
            if mover is not None:
                mover.run(progress.advance)
                continue
            for first, values in _pieces(item, writer):
                writer.write(values, first, done=progress.advance)

    def write_lazy(self, progress: Progress) -> list[Written]:
        """Write dask's arrays block by block, with the scheduler in use."""
        writes = self.writes()
        return compute(writes, progress) if writes else []

    def writes(self) -> list[Written]:
        """Return dask's arrays whose blocks write one of the data each; nothing is computed yet."""
        here = self.change.staged.url
        found = []
        for item, writer in self.flows:
            data = lazy_data(item)
            if data is not None:
                # blocks that share chunks run in one process, and put a chunk several times
                counted = not writer.shared and writer.store.url == here
                found.append((writer.array.path, write_blocks(data, writer, counted=counted)))
        return found


def _mover(item: Item, writer: ChunkWriter) -> Mover | None:
    """Return what moves the chunks of an item as they are stored; None if they have to be made."""
    source = item.source
    if not isinstance(source, StoredSource) or source.reader.array is None:
        return None
    alike = stored_alike(source.reader.array, writer.array)
    return Mover(item.variable, source, writer) if alike else None


def _pieces(item: Item, writer: ChunkWriter) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield the parts of the data of an item, each with its position."""
    if not isinstance(item.source, StoredSource):
        yield (0,) * item.source.ndim, np.asarray(item.source.data)
        return
    for part in item.source.slabs(writer.array.chunk_shape):
        yield tuple(p.start for p in part), item.source.read(part)


def lazy_data(item: Item) -> Any:
    """Return the data as dask's array; None if they are not lazy."""
    return item.source.data if isinstance(item.source, xr.Variable) and is_lazy(item) else None


def need_dask() -> None:
    """Raise `ImportError` if dask is not installed."""
    try:
        import dask.delayed  # noqa: F401
    except ImportError:
        raise ImportError("compute=False needs dask: pip install 'nczarr-xarray[dask]'") from None


def is_lazy(item: Item) -> bool:
    """Tell whether dask computes the data."""
    return item.source.chunks is not None


def chunk_count(writer: ChunkWriter, shape: tuple[int, ...]) -> int:
    """Return the number of chunks that data of this shape touch."""
    if 0 in shape:
        return 0
    return math.prod(
        -(-(start + size) // chunk) - start // chunk
        for start, size, chunk in zip(writer.start, shape, writer.array.chunk_shape, strict=True)
    )


def documents_of_arrays(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return those of `documents` that describe arrays."""
    arrays = {key.rpartition("/")[0] for key in documents if key.endswith("/.zarray")}
    return {key: data for key, data in documents.items() if key.rpartition("/")[0] in arrays}


def put_all(store: WritableStore, documents: Mapping[str, bytes]) -> None:
    """Put objects at the same time."""
    if store.parallel > 1 and len(documents) > 1:
        with ThreadPoolExecutor(min(store.parallel, len(documents))) as pool:
            list(pool.map(store.put, documents.keys(), documents.values()))
    else:
        for key, data in documents.items():
            store.put(key, data)
