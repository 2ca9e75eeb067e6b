"""New datasets, groups and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from nczarr_fsspec.changes.create import Change
from nczarr_fsspec.changes.owned import dataset_keys
from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    IncompleteExportError,
)
from nczarr_fsspec.undo import on_error
from nczarr_xarray._version import __version__
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.dataset import Contents, Exporter
from nczarr_xarray.export.existing import Existing, is_below
from nczarr_xarray.export.steps import planned
from nczarr_xarray.export.write_options import WriteOptions
from nczarr_xarray.export.write_request import (
    Mode,
    WriteRequest,
    aligned_item,
    array_of,
    chunk_conflicts,
    shares_chunks,
)
from nczarr_xarray.export.write_target import WriteTarget, check_clashes
from nczarr_xarray.export.write_task import Flow, WriteTask, is_lazy
from nczarr_xarray.formats.nczarr import amend
from nczarr_xarray.formats.nczarr.consolidated import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import (
    Profile,
    array_documents,
    consolidate,
    documents,
    group_documents,
)
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.model import Attribute, Group

#: The name of this package in ``_NCProperties``.
WRITER = f"version=2,nczarr_xarray={__version__},nczarr=2.0.0"


def holds_group(request: WriteRequest) -> bool:
    """Tell whether the group that is to be written exists."""
    existing = _complete(request)
    if existing is None:
        return False
    with existing.opened:
        return existing.group(request.path) is not None


def _complete(request: WriteRequest) -> Existing | None:
    """Return the dataset at the target; a new one that was never complete does not count."""
    with suppress(IncompleteExportError):
        return Existing.open(request.target)
    return None


def plan_new(request: WriteRequest, mode: Mode) -> WriteTask:
    """Plan the writing of groups: as a dataset of their own, or into an existing one."""
    existing = None
    if mode != "w" or request.path != "/":
        existing = _complete(request)
    if existing is None:
        return _new_dataset(request)
    with existing.opened:
        if mode == "w-" and existing.group(request.path) is not None:
            name = "a dataset" if request.path == "/" else f"a group {request.path!r}"
            raise DatasetExistsError(
                request.url, f"holds {name}; mode='w' replaces it, mode='a' adds to it"
            )
    return _merge(request, replaced=None if mode == "a" else request.path)


def _new_dataset(request: WriteRequest) -> WriteTask:
    exporter = Exporter(request.profile, align=request.options.align_chunks)
    _collect(exporter, request)
    return plan_contents(exporter.contents, request.target, request.profile, request.options)


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
    if replace_old and target.holds_dataset():
        template = None
    change, removed, foreign = target.create(
        replace=replace_old,
        template=template is not None,
        resumption=resumption and planned(resumption, found, items),
    )
    with on_error(change.abort):
        arrays = [array_of(item).path for item in items]
        check_clashes(target.url, foreign, arrays, (g.path.strip("/") for g in root.walk()))
        flows = _flows(contents, change, skip_fill=skip_fill, but_lazy=template is not None)
        return WriteTask(
            change, flows, found, removed, template=template, before=before, memory=memory
        )


def _collect(exporter: Exporter, request: WriteRequest) -> None:
    """Add all groups to an exporter, and raise the problems that it finds."""
    for path, dataset in request.groups.items():
        exporter.add(path, dataset, request.asked(path))
    contents, options = exporter.contents, request.options
    for number, item in enumerate(contents.items):
        if options.align_chunks or not item.chunks_are_asked_for:
            contents.items[number] = aligned_item(item, (0,) * item.source.ndim)
    for item in contents.items:
        exporter.problems += chunk_conflicts(item, options, (0,) * item.source.ndim)
    exporter.problems += problems(contents.root, exporter.profile)
    exporter.check(request.url)


def _flows(
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


def _merge(request: WriteRequest, replaced: str | None) -> WriteTask:
    """Add groups and variables to a dataset; the group `replaced` is written anew."""
    change = request.target.edit()
    with on_error(change.abort):
        existing = _still_there(request)  # read again, under the lock
        with existing.opened:
            profile = _profile_there(existing, request)
            there = existing.skeleton(replaced)
            exporter = Exporter(profile, there, align=request.options.align_chunks)
            _collect(exporter, request)
            removed = _outdated(exporter, existing, request, replaced)
            _note_changes(exporter, existing, profile, replaced)
            final = existing.final_documents(removed, consolidated=request.options.consolidated)
            flows = _flows(exporter.contents, change, skip_fill=False)
            return WriteTask(change, flows, final, removed)


def _profile_there(existing: Existing, request: WriteRequest) -> Profile:
    """Return the profile of an existing dataset, with the options of the caller."""
    asked = request.profile
    if asked.portable and existing.profile.generation != "v2":
        raise ExportError(request.url, "is NCZarr; portable=True is for pure Zarr: leave it out")
    return replace(
        existing.profile, array_dimensions=asked.array_dimensions, portable=asked.portable
    )


def _still_there(request: WriteRequest) -> Existing:
    existing = Existing.open(request.target)
    if existing is None:
        raise DatasetNotFoundError(request.url, "was removed just now; write it anew")
    return existing


def _outdated(
    exporter: Exporter, existing: Existing, request: WriteRequest, replaced: str | None
) -> list[str]:
    """Return the keys that are removed because their group or variable is replaced."""

    def below(path: str) -> list[str]:
        return dataset_keys(request.target.keys(path), path)

    if replaced is not None:
        return below(replaced.strip("/"))
    removed: list[str] = []
    for item in exporter.contents.items:
        name, group = item.variable.name, existing.group(item.variable.group)
        if group is not None and name in group.groups:
            raise ExportError(request.url, f"{item.variable.path} is a group already")
        if group is not None and name in group.variables:
            removed += below(array_of(item).path)
    return removed


def _note_changes(
    exporter: Exporter, existing: Existing, profile: Profile, replaced: str | None
) -> None:
    """Note the documents of new groups and variables as changes."""
    for group in exporter.contents.root.walk():
        path = group.path.strip("/")
        for variable in group.variables.values():
            existing.change(array_documents(variable, profile))
        if existing.group(group.path) is None or is_below(group.path, replaced):
            existing.change(group_documents(group, profile, None))
            parent = path.rpartition("/")[0]
            above = existing.group_documents(parent)
            existing.change(amend.add_children(above, parent, groups=[group.name]))
            continue
        dimensions = group.dimensions.values()
        before = existing.group_documents(path)
        existing.change(
            amend.add_children(before, path, dimensions=dimensions, arrays=group.variables)
        )
        before = existing.group_documents(path)
        attributes = _with_old_coordinates(group, existing)
        existing.change(amend.set_attributes(before, path, attributes, profile))


def _with_old_coordinates(group: Group, existing: Existing) -> list[Attribute]:
    """Return the new attributes of a group; what it named as coordinates stays named."""
    attributes = dict(group.attributes)
    there = existing.group(group.path)
    new = attributes.get("coordinates")
    old = there.attributes.get("coordinates") if there is not None else None
    if new is not None and old is not None:
        words = dict.fromkeys(f"{_text(old)} {_text(new)}".split())
        attributes["coordinates"] = replace(new, value=" ".join(words))
    return list(attributes.values())


def _text(attribute: Attribute) -> str:
    return attribute.value if isinstance(attribute.value, str) else ""
