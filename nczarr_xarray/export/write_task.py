"""Carrying out an export: data through chunk writers, then the metadata, then the commit.

Whole datasets become a task here, whatever they come from.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.changes.consistent_reading import stamped
from nczarr_fsspec.changes.create import NewObjects
from nczarr_fsspec.changes.edit import Change, complete_template
from nczarr_fsspec.changes.journal import ROOT, Incomplete, is_chunk_of
from nczarr_fsspec.changes.recovery import finish_journal
from nczarr_fsspec.changes.resumption import Notes, Resumption
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import StoreError, on_error
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.stores.ownership import Owner
from nczarr_xarray._version import __version__
from nczarr_xarray.chunks.cache import CACHE
from nczarr_xarray.export.chunk_writer import ArrayWriter, ChunkWriter
from nczarr_xarray.export.contents import Contents, Item, StoredSource
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.export.parallel import (
    Written,
    compute,
    distributed_client,
    not_shared,
    optimized,
    run_parts,
    write_blocks,
)
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.steps import Step, plan_step, planned
from nczarr_xarray.export.write_target import begin_new, check_clashes, holds_dataset
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.registry import describes_array
from nczarr_xarray.model import grid_of

if TYPE_CHECKING:
    pass


#: A variable to write, and the writer of its data.
Flow = tuple[Item, ArrayWriter]


@dataclass(slots=True)
class WriteTask:
    """An export: the data to write, and the change that makes them valid.

    Attributes
    ----------
    change
        The change that makes the data valid at the end.
    flows
        Each variable to write, with the writer of its data.
    documents
        Metadata documents by key, in the order in which they are put.
    removed
        Keys to remove.
    staged_chunks
        The number of chunks to stage; None if it is not checked.
    template
        The store for dask's arrays, if they are written after all else is in place.
    before
        A function to call before all of it becomes valid; if it raises, nothing does.
    memory
        Bytes that the program may take: see `plan_step`.
    notes
        What is done of the work, if it can be continued.
    mark
        The mark of the chunks that are written later, if it changes.
    """

    change: Change
    flows: Sequence[Flow] = ()
    documents: Mapping[str, bytes] = field(default_factory=dict)
    removed: Iterable[str] = ()
    staged_chunks: int | None = None
    template: WritableStore | None = None
    before: Callable[[], None] | None = None
    memory: int | None = None
    notes: Notes | None = field(default=None, init=False)
    mark: Incomplete | None = None
    _steps: list[Step] | None = field(default=None, init=False)  # by `steps`

    def __post_init__(self) -> None:
        if isinstance(self.change, NewObjects):
            for _, writer in self.flows:
                writer.lasts = self.change.is_there

    def finish(self, written: Iterable[Written] = ()) -> None:
        """Put the metadata of groups and make all of it valid, if all is there that was written."""
        if written:
            self.check(written)
        of_arrays = frozenset(documents_of_arrays(self.documents))
        for key, document in self.documents.items():
            if key not in of_arrays:
                if key == ROOT and not self.change.staged.stamps:
                    document = stamped(document)
                self.change.staged.put(key, document)
        expected = self.staged_chunks
        if expected is not None:
            expected += len(self.documents)
        if self.before is not None:
            self.before()
        self.change.commit(self.removed, expected, self.mark)
        CACHE.clear()  # it may hold chunks of datasets that are still open

    def run(self, progress: Progress) -> None:
        """Write everything now; if anything goes wrong, nothing is left behind."""
        with self.or_nothing():
            self.write_eager(progress)
            writes = self.writes()
            sizes = [Step(*flow).nbytes for flow in self.flows if flow[0].is_lazy]
            self.finish(compute(writes, sizes, progress) if writes else ())

    def start(self, progress: Progress) -> Any:
        """Write now what needs no dask; return the rest as a ``dask.delayed``."""
        with self.or_nothing():
            self.write_eager(progress)
            if self.template is None:
                return self.rest()
            lazy = [
                (item, writer)
                for item, writer in self.flows
                if item.is_lazy and isinstance(writer, ChunkWriter) and 0 not in writer.array.shape
            ]
            arrays = [writer.array for _, writer in lazy]
            pending = {one.path: math.prod(grid_of(one.shape, one.chunk_shape)) for one in arrays}
            last = {  # in the farthest corner
                one.path: one.chunk_name(tuple(n - 1 for n in grid_of(one.shape, one.chunk_shape)))
                for one in arrays
            }
            mark = Incomplete(Owner.here(), pending, uuid.uuid4().hex, last)
            self.mark = mark if pending else None
            self.finish()
        later = [(item, writer.for_template(self.template, mark.name)) for item, writer in lazy]
        # without any, the dataset is complete
        end = partial(_end_template, self.template if pending else None)
        return WriteTask(self.change, later).rest(end)

    def rest(self, end: Callable[[list[Written]], None] | None = None) -> Any:
        """Return the writing of dask's arrays, and what follows, as one ``dask.delayed``."""
        from dask.delayed import delayed

        end = end or self.without_data().finish  # the data are in the graph of dask
        return delayed(end, pure=False)(optimized(self.writes()))

    def without_data(self) -> WriteTask:
        """Return a copy without the data, which is cheap to send to a worker."""
        return replace(self, flows=())

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
                said = f"{number} chunks were written and {there} are there"
                raise not_shared(f"{staged.url}/{path}", said)

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Abort the change if anything goes wrong; what is done of its work is noted before."""
        try:
            yield
        except BaseException:
            # dask's threads finish the blocks that they have begun
            for _, writer in self.flows:
                writer.shut()
            if self.notes is not None:
                with suppress(StoreError):
                    self.notes.put()
            self.change.abort()
            raise

    def write_eager(self, progress: Progress) -> None:
        """Write the metadata of arrays, and the data that are in memory or in a file."""
        # first: they show which chunks belong to an export that died
        put_all(self.change.staged, documents_of_arrays(self.documents))
        self.notes = Notes(self.change.staged, self.change.resumption)
        steps = self.steps()
        client = distributed_client()
        if client is not None and all(step.can_be_sent for step in steps):
            self._write_by_workers(client, steps, progress)
            return
        progress.expect(sum(step.nbytes for step in steps))
        starts = list(accumulate((step.parts for step in steps), initial=0))[:-1]
        left = [
            step.item.source
            for step, first in zip(steps, starts, strict=True)
            if not isinstance(step.item.source, StoredSource) and not self.notes.is_done(first)
        ]
        with ExitStack() as reading:
            if left:  # only data of xarray have need of it
                from nczarr_xarray.backend.compat import in_turn

                reading.enter_context(in_turn(left))
            for step, first in zip(steps, starts, strict=True):
                self._run(step, first, self.notes, progress)

    def _run(self, step: Step, first: int, notes: Notes, progress: Progress) -> None:
        """Do the parts of a step that are not done; `first` is the number of its first one."""
        end = progress.done + step.nbytes
        chunk = step.nbytes // max(1, chunk_count(step.writer, step.item.source.shape))

        def done(count: int) -> None:
            progress.advance(count * chunk)

        for part in range(step.parts):
            nbytes = step.nbytes // step.parts
            if notes.is_done(first + part):
                progress.skip(max(0, min(nbytes, end - progress.done)))
                continue
            step.run(part, done)
            notes.note(first + part, step.written(part))
        progress.advance(max(0, end - progress.done))
        if left := step.leftovers():
            notes.put()  # before what it takes to do its parts again is removed
            step.writer.store.delete(left)

    def _write_by_workers(self, client: Any, steps: list[Step], progress: Progress) -> None:
        """Have the parts of all steps done on a cluster, as its data are read from a store."""
        progress.expect(sum(step.nbytes for step in steps))
        first = [(number, 0) for number, step in enumerate(steps) if step.first_alone]
        rest = (
            (number, part)
            for number, step in enumerate(steps)
            for part in range(int(step.first_alone), step.parts)
        )
        written: dict[str, int] = {}
        for parts in (iter(first), rest):
            with closing(run_parts(client, steps, parts)) as finished:
                for number, _, put in finished:
                    step = steps[number]
                    path = step.writer.array.path
                    written[path] = written.get(path, 0) + put
                    progress.advance(step.nbytes // step.parts)
        for step in steps:
            if left := step.leftovers():
                step.writer.store.delete(left)
        self.check(written.items())

    def steps(self) -> list[Step]:
        """Return the plan of all data that are not of dask, which is made once."""
        if self._steps is None:
            eager = (flow for flow in self.flows if not flow[0].is_lazy)
            self._steps = [plan_step(*flow, self.memory) for flow in eager]
        return self._steps

    def writes(self) -> list[Written]:
        """Return dask's arrays whose blocks write one of the data each; nothing is computed yet."""
        here = self.change.staged.url
        found = []
        for item, writer in self.flows:
            data = item.lazy_data
            if data is not None:
                # blocks that share chunks run in one process, and put a chunk several times
                counted = not writer.shared and writer.store.url == here
                blocks = write_blocks(item.variable.path, data, writer, counted=counted)
                found.append((writer.array.path, blocks))
        return found


def _end_template(template: WritableStore | None, _: object) -> None:
    """Complete a template when its last arrays have been written."""
    if template is not None:
        complete_template(template)


def need_dask() -> None:
    """Raise `ImportError` if dask is not installed."""
    try:
        import dask.delayed  # noqa: F401
    except ImportError:
        raise ImportError("compute=False needs dask: pip install 'nczarr-xarray[dask]'") from None


def chunk_count(writer: ArrayWriter, shape: tuple[int, ...]) -> int:
    """Return the number of chunks that data of this shape touch."""
    if 0 in shape:
        return 0
    return math.prod(
        -(-(start + size) // chunk) - start // chunk
        for start, size, chunk in zip(writer.start, shape, writer.array.chunk_shape, strict=True)
    )


def documents_of_arrays(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return those of `documents` that describe arrays."""
    arrays = {key.rpartition("/")[0] for key in documents if describes_array(key, documents[key])}
    return {key: data for key, data in documents.items() if key.rpartition("/")[0] in arrays}


def put_all(store: WritableStore, documents: Mapping[str, bytes]) -> None:
    """Put objects at the same time."""
    if store.parallel > 1 and len(documents) > 1:
        with WaitingThreads(min(store.parallel, len(documents))) as pool:
            list(pool.map(store.put, documents.keys(), documents.values()))
    else:
        for key, data in documents.items():
            store.put(key, data)


#: The name of this package in ``_NCProperties``.
WRITER = f"version=2,nczarr_xarray={__version__},nczarr=2.0.0"


def plan_contents(
    contents: Contents,
    target: Destination,
    profile: Profile,
    options: WriteOptions,
    resumption: Resumption | None = None,
    memory: int | None = None,
    before: Callable[[], None] | None = None,
    *,
    stated: Mapping[str, bytes] | None = None,
    flows: Callable[[Change], Sequence[Flow]] | None = None,
) -> WriteTask:
    """Plan the writing of a whole dataset that has been checked.

    Parameters
    ----------
    resumption
        The work, if it can be continued.
    memory
        Bytes that the program may take, if they are limited.
    before
        As of `WriteTask`.
    stated, flows
        The documents, and what returns the items with the writers of their arrays, if they are not
        those of Zarr 2.
    """
    if stated is None:
        stated = documents(contents.root, profile, WRITER)
        if options.consolidated:
            stated[CONSOLIDATED] = consolidate(stated)
    replace_old = options.mode == "w"
    # the store for dask's arrays, if others may write parts of the dataset before it is complete;
    # what is there stays until everything that replaces it has been written
    template = None if options.compute else target.store
    if replace_old and template is not None:
        finish_journal(template)  # of a dead writer: else its template, half in place, looks whole
        if holds_dataset(target):
            template = None
    change, removed, foreign = begin_new(
        target,
        replace=replace_old,
        template=template is not None,
        resumption=resumption and planned(resumption, stated, contents.items),
    )
    if flows is None:
        skip_fill, but_lazy = options.write_empty_chunks is not True, template is not None
        flows = partial(flows_of, contents, skip_fill=skip_fill, but_lazy=but_lazy)
    with on_error(change.abort):
        arrays = [item.array.path for item in contents.items]
        groups = (group.path.strip("/") for group in contents.root.walk())
        check_clashes(target.url, foreign, arrays, groups)
        return WriteTask(
            change, flows(change), stated, removed, template=template, before=before, memory=memory
        )


def flows_of(
    contents: Contents, change: Change, *, skip_fill: bool, but_lazy: bool = False
) -> Sequence[Flow]:
    """Return items with the chunk writers of their new arrays.

    Parameters
    ----------
    skip_fill
        Whether chunks of nothing but the fill value are left out.
    but_lazy
        Store all chunks of dask's arrays: their existence shows that they were written.
    """
    flows = []
    for item in contents.items:
        shared = item.shared_chunk((0,) * item.source.ndim) is not None
        # netCDF-C 4.10.1 swaps the bytes of the fill value that it gives for missing chunks
        swapped = item.array.dtype.byteorder == ">"
        skip = skip_fill and not shared and not swapped and not (but_lazy and item.is_lazy)
        writer = ChunkWriter(
            item.array, change.staged, rounding=item.rounding, skip_fill=skip, shared=shared
        )
        flows.append((item, writer))
    return flows
