"""Whole datasets to write, whatever they come from: datasets of xarray, or copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.changes.recovery import finish_journal
from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import on_error
from nczarr_xarray._version import __version__
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.contents import Contents
from nczarr_xarray.export.steps import planned
from nczarr_xarray.export.write_options import WriteOptions, array_of, shares_chunks
from nczarr_xarray.export.write_target import WriteTarget, check_clashes
from nczarr_xarray.export.write_task import Flow, WriteTask, is_lazy
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.profiles import Profile

#: The name of this package in ``_NCProperties``.
WRITER = f"version=2,nczarr_xarray={__version__},nczarr=2.0.0"


def plan_contents(
    contents: Contents,
    target: WriteTarget,
    profile: Profile,
    options: WriteOptions,
    resumption: Resumption | None = None,
    memory: int | None = None,
    before: Callable[[], None] | None = None,
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
    """
    root, items = contents.root, contents.items
    found = documents(root, profile, WRITER)
    if options.consolidated:
        found[CONSOLIDATED] = consolidate(found)
    skip_fill = options.write_empty_chunks is not True
    replace_old = options.mode == "w"
    # the store for dask's arrays, if others may write parts of the dataset before it is complete;
    # what is there stays until everything that replaces it has been written
    template = None if options.compute else target.store
    if replace_old and template is not None:
        finish_journal(template)  # of a dead writer: else its template, half in place, looks whole
        if target.holds_dataset():
            template = None
    change, removed, foreign = target.create(
        replace=replace_old,
        template=template is not None,
        resumption=resumption and planned(resumption, found, items),
    )
    with on_error(change.abort):
        arrays = [array_of(item).path for item in items]
        check_clashes(target.url, foreign, arrays, (g.path.strip("/") for g in root.walk()))
        flows = flows_of(contents, change, skip_fill=skip_fill, but_lazy=template is not None)
        return WriteTask(
            change, flows, found, removed, template=template, before=before, memory=memory
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
        shared = shares_chunks(item, (0,) * item.source.ndim)
        # netCDF-C 4.10.1 swaps the bytes of the fill value that it gives for missing chunks
        swapped = array_of(item).dtype.byteorder == ">"
        skip = skip_fill and not shared and not swapped and not (but_lazy and is_lazy(item))
        writer = ChunkWriter(
            array_of(item), change.staged, rounding=item.rounding, skip_fill=skip, shared=shared
        )
        flows.append((item, writer))
    return flows
