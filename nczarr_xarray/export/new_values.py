"""Writing new values of existing variables: a region, all values, or more along a dimension."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import closing
from dataclasses import replace
from itertools import islice, product

import xarray as xr

from nczarr_fsspec.errors import DatasetNotFoundError, ExportError, on_error
from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.export.chunk_writer import ChunkWriter, OldChunks
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.dataset import group_attributes
from nczarr_xarray.export.existing import Existing
from nczarr_xarray.export.options import RegionLike, WriteRequest
from nczarr_xarray.export.placement import Placement, replaced_part
from nczarr_xarray.export.write_target import begin_edit
from nczarr_xarray.export.write_task import Flow, WriteTask, chunk_count
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.model import ChunkedArray, Dimension

Start = tuple[int, ...]

#: Chunks whose existence is asked for at a time.
_AT_A_TIME = 1000


def plan_values(request: WriteRequest, region: RegionLike) -> WriteTask:
    """Plan the replacement of a region of variables; a dimension it does not name is whole."""
    existing = _must_exist(request, "write it first")
    with existing.opened:
        path, dataset = _one_group(request)
        update = Placement(existing, path, dataset)
        slices = replaced_part(update, region)
        items = update.items(update.dataset)
        starts = [update.start(item, slices) for item in items]
        items = _ready(update, items, starts, request)
        update.check()
        change = begin_edit(request.target, update.boxes(items, starts))
        with on_error(change.abort):
            existing = _unchanged(request, existing, [item.array.path for item in items])
            reader = existing.opened.keys
            direct = _fresh(request, existing, items, starts)
            flows: list[Flow] = []
            for item, start in zip(items, starts, strict=True):
                array = item.array
                store = direct.get(array.path, change.staged)
                writer = _writer(item, store, start, OldChunks(reader, array))
                flows.append((item, writer))
            staged = _count(flow for flow in flows if flow[1].array.path not in direct)
            final = existing.final_documents((), consolidated=False) if staged else {}
            counted = None if request.target.store is None else staged
            return WriteTask(change, flows, final, staged_chunks=counted)


def plan_append(request: WriteRequest, append_dim: Hashable) -> WriteTask:
    """Plan the growth of a dimension and its variables."""
    existing = _must_exist(request, "write it first, or append with create=True")
    with existing.opened:
        path, dataset = _one_group(request)
        update = Placement(existing, path, dataset)
        dimension, items, starts = update.growth(append_dim, request.options.labels)
        items = _ready(update, items, starts, request)
        if existing.pending:
            update.problems.append("the dataset is not complete yet; nothing is appended to it")
        update.check()
        change = begin_edit(request.target)
        with on_error(change.abort):
            reader = _unchanged(request, existing, None).opened.keys
            flows = [
                (item, _writer(item, change.staged, start, OldChunks(reader, old)))
                for (item, old), start in zip(
                    _grow(existing, items, dimension), starts, strict=True
                )
            ]
            profile, key = existing.profile, path.strip("/")
            attributes = group_attributes(profile, path, dataset.attrs, request.url).values()
            before = existing.group_documents(key)
            existing.change(emit.set_attributes(before, key, attributes, profile))
            final = existing.final_documents((), consolidated=request.options.consolidated)
            staged = None if request.target.store is None else _count(flows)
            return WriteTask(change, flows, final, staged_chunks=staged)


def _must_exist(request: WriteRequest, advice: str) -> Existing:
    existing = Existing.open(request.target)
    if existing is None:
        raise DatasetNotFoundError(request.url, f"there is no dataset to change; {advice}")
    return existing


def _one_group(request: WriteRequest) -> tuple[str, xr.Dataset]:
    path, dataset, asked = request.one_group()
    if request.options.create:  # what is asked for is for a new dataset
        return path, dataset
    if asked.unlimited:
        raise ExportError(
            request.url,
            "unlimited_dims was given, but dimensions that exist stay what they are: leave it out",
        )
    if asked.encoding:
        raise ExportError(
            request.url, "encoding was given, but variables that exist keep theirs: leave it out"
        )
    return path, dataset


def _grow(
    existing: Existing, items: list[Item], dimension: Dimension
) -> list[tuple[Item, ChunkedArray]]:
    """Change the documents of a dimension and its variables; return their old grids."""
    found = []
    path = dimension.group.strip("/")
    existing.change(
        emit.set_dimension(existing.group_documents(path), path, dimension.name, dimension.size)
    )
    for item in items:
        array = existing.array(item.variable)
        dimensions = tuple(
            dimension if d.path == dimension.path else d for d in item.variable.dimensions
        )
        shape = tuple(d.size for d in dimensions)
        key = f"{array.path}/.zarray"
        document = existing.array_documents(array.path)[key]
        existing.change({key: emit.set_shape(document, key, shape)})
        variable = replace(item.variable, dimensions=dimensions, array=replace(array, shape=shape))
        found.append((item._replace(variable=variable), array))
    return found


def _ready(
    update: Placement, items: list[Item], starts: list[Start], request: WriteRequest
) -> list[Item]:
    """Return the items, if their blocks suit the chunks; otherwise note the problem."""
    if request.options.align_chunks:
        items = [item.aligned(start) for item, start in zip(items, starts, strict=True)]
    if request.options.safe_chunks:
        for item, start in zip(items, starts, strict=True):
            update.problems += item.conflicts(start)
    return items


def _count(flows: Iterable[Flow]) -> int:
    return sum(chunk_count(writer, item.source.shape) for item, writer in flows)


def _unchanged(request: WriteRequest, existing: Existing, arrays: Iterable[str] | None) -> Existing:
    """Return the dataset, read again under the lock that protects this part of it.

    Parameters
    ----------
    existing
        The dataset against which the new values were checked.
    arrays
        Paths of the arrays whose metadata must be the same, with those of their
        groups; None if everything must be.

    Raises
    ------
    ExportError
        If the metadata have changed.
    """
    again = Existing.open(request.target)
    if again is None or not again.agrees(existing, arrays):
        raise ExportError(
            request.url, "was changed by another writer just now; look at it and try again"
        )
    return again


def _fresh(
    request: WriteRequest, existing: Existing, items: list[Item], starts: list[Start]
) -> dict[str, WritableStore]:
    """Return the arrays of a template: they are not read yet, so their chunks are put directly.

    There are none if any chunk exists already. While it was written again, another writer could put
    the last one that is missing, and readers would see old and new values.

    Raises
    ------
    ExportError
        If a region has only a part of a chunk: the existence of a chunk must
        show that it is complete.
    """
    store = request.target.store
    found: dict[str, WritableStore] = {}
    for item, start in zip(items, starts, strict=True):
        array = item.array
        if array.path not in existing.pending or store is None:
            continue
        ends = tuple(a + n for a, n in zip(start, item.source.shape, strict=True))
        whole = all(
            a % c == 0 and (b % c == 0 or b == n)
            for a, b, c, n in zip(start, ends, array.chunk_shape, array.shape, strict=True)
        )
        if not whole or item.shared_chunk(start) is not None:
            raise ExportError(
                request.url,
                f"/{array.path}: the region does not begin and end at borders of chunks "
                f"{array.chunk_shape}, and the dataset is not complete yet: write whole chunks",
            )
        found[array.path] = store
    if any(
        _has_chunk(store, item, start)
        for item, start in zip(items, starts, strict=True)
        if (store := found.get(item.array.path)) is not None
    ):
        return {}
    return found


def _has_chunk(store: WritableStore, item: Item, start: Start) -> bool:
    """Tell whether any of the chunks exists into which the values of an item go."""
    array = item.array
    positions = product(
        *(
            range(first // chunk, -(-(first + size) // chunk))
            for first, size, chunk in zip(start, item.source.shape, array.chunk_shape, strict=True)
        )
    )
    with closing(store.reader()) as reader:
        while keys := [array.chunk_name(position) for position in islice(positions, _AT_A_TIME)]:
            # more than 0 bytes is an error, too; where it is unknown, nothing is put directly
            if any(data is not None for data in reader.get_many(keys, 0)):
                return True
    return False


def _writer(item: Item, store: WritableStore, start: Start, old: OldChunks) -> ChunkWriter:
    """Return the writer of an item, whose chunks exist in part (`old`)."""
    shared = item.shared_chunk(start) is not None
    return ChunkWriter(item.array, store, start, old=old, rounding=item.rounding, shared=shared)
