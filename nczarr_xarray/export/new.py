"""New datasets, groups and variables."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from nczarr_fsspec.changes.journal import HELD, INCOMPLETE, Incomplete, dataset_keys
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    IncompleteExportError,
    on_error,
)
from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.dataset.units import are_times, same_time_units
from nczarr_xarray.export.dataset import Exporter
from nczarr_xarray.export.existing import Existing
from nczarr_xarray.export.options import Mode, WriteRequest
from nczarr_xarray.export.write_target import begin_edit, holds_dataset, is_empty, refuse_nested
from nczarr_xarray.export.write_task import WriteTask, flows_of, plan_contents
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.formats.nczarr.emit import array_documents, group_documents
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import Attribute, Group, Variable, is_below


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
    # most new datasets come where nothing is: then none need be looked for
    if (mode != "w" or request.path != "/") and not (mode == "w-" and is_empty(request.target)):
        existing = _complete(request)
    if existing is None:
        return _new_dataset(request)
    with existing.opened:
        if mode == "w-" and existing.group(request.path) is not None:
            if request.path == "/" and not holds_dataset(request.target):
                return _new_dataset(request)  # which says what is there instead
            name = "a dataset" if request.path == "/" else f"a group {request.path!r}"
            raise DatasetExistsError(
                request.url, f"holds {name}; mode='w' replaces it, mode='a' adds to it"
            )
        if not (existing.group_documents("") or existing.opened.hierarchy.root.variables):
            refuse_nested(request.url, dataset_keys(request.target.keys()))
    return _merge(request, replaced=None if mode == "a" else request.path)


def _new_dataset(request: WriteRequest) -> WriteTask:
    exporter = Exporter(request.profile, align=request.options.align_chunks)
    _collect(exporter, request)
    return plan_contents(exporter.contents, request.target, request.profile, request.options)


def _collect(exporter: Exporter, request: WriteRequest) -> None:
    """Add all groups to an exporter, and raise the problems that it finds."""
    for path, (dataset, asked) in request.groups.items():
        exporter.add(path, dataset, asked._replace(append_dim=request.options.append_dim))
    contents, options = exporter.contents, request.options
    for number, item in enumerate(contents.items):
        if options.align_chunks or not item.chunks_are_asked_for:
            contents.items[number] = item.aligned((0,) * item.source.ndim)
        if options.safe_chunks:
            exporter.problems += contents.items[number].conflicts((0,) * item.source.ndim)
    exporter.problems += problems(contents.root, exporter.profile)
    exporter.check(request.url)


def _merge(request: WriteRequest, replaced: str | None) -> WriteTask:
    """Add groups and variables to a dataset; the group `replaced` is written anew."""
    change = begin_edit(request.target)
    with on_error(change.abort):
        existing = Existing.open(request.target)  # read again, under the lock
        if existing is None:
            raise DatasetNotFoundError(request.url, "was removed just now; write it anew")
        with existing.opened:
            profile = _profile_there(existing, request)
            there = existing.skeleton(replaced)
            exporter = Exporter(profile, there, align=request.options.align_chunks)
            _collect(exporter, request)
            if replaced is None:
                _refuse_other_bounds(exporter, existing)
            removed = _outdated(exporter, existing, request, replaced)
            mark = _mark_without(existing, removed)
            if mark is not None and not mark.pending:
                removed, mark = [*removed, INCOMPLETE, HELD], None
            _note_changes(exporter, existing, profile, replaced)
            final = existing.final_documents(removed, consolidated=request.options.consolidated)
            flows = flows_of(exporter.contents, change, skip_fill=False)
            return WriteTask(change, flows, final, removed, mark=mark)


def _profile_there(existing: Existing, request: WriteRequest) -> Profile:
    """Return the profile of an existing dataset, with the options of the caller."""
    asked = request.profile
    if asked.portable and existing.profile.generation != "v2":
        raise ExportError(request.url, "is NCZarr; portable=True is for pure Zarr: leave it out")
    return replace(
        existing.profile, array_dimensions=asked.array_dimensions, portable=asked.portable
    )


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
            removed += below(item.array.path)
    return removed


def _refuse_other_bounds(exporter: Exporter, existing: Existing) -> None:
    """Raise `ExportError` if bounds that stay would be other times with a new coordinate.

    They have no units of their own: xarray reads them in those of their coordinate.
    """
    for item in exporter.contents.items:
        new, group = item.variable, existing.group(item.variable.group)
        if group is None or new.name not in group.variables:
            continue
        old = group.variables[new.name]
        ours, theirs = _words(new), _words(old)
        units = ours["units"], theirs["units"]
        are_none = not any(map(are_times, units))  # beside either, numbers without units
        if are_none or same_time_units(units[0], ours["calendar"], units[1], theirs["calendar"]):
            continue
        for name in {ours["bounds"], ours["climatology"]} & group.variables.keys():
            bounds = group.variables[name]
            stays = name not in exporter.contents.group(new.group).variables
            if stays and "units" not in bounds.attributes:
                said, wanted = (
                    f"{words['units']!r} ({words['calendar'] or 'standard'})"
                    for words in (theirs, ours)
                )
                raise ExportError(
                    existing.url,
                    f"{bounds.path} is stored in the units of {old.path}, {said}, which would be "
                    f"{wanted}: write {name!r} as well",
                )


def _words(variable: Variable) -> dict[str, str]:
    """Return the attributes that concern bounds, as text."""
    names = ("bounds", "climatology", "units", "calendar")
    given = ((name, variable.attributes.get(name)) for name in names)
    return {name: "" if found is None else str(attribute_value(found)) for name, found in given}


def _mark_without(existing: Existing, removed: Iterable[str]) -> Incomplete | None:
    """Return the mark of what is to come without arrays that are removed; None if it stays.

    It has another name, so that what was to complete the template does not write into new arrays.
    """
    gone = {key.rpartition("/")[0] for key in removed if key.endswith("/.zarray")}
    if not gone & existing.pending:
        return None
    (data,) = existing.opened.keys.get_many([INCOMPLETE])
    assert isinstance(data, bytes)  # or nothing was pending
    mark = Incomplete.parse(data)
    pending = {path: number for path, number in (mark.pending or {}).items() if path not in gone}
    last = {path: key for path, key in mark.last.items() if path in pending}
    return replace(mark, pending=pending, name=uuid.uuid4().hex, last=last)


def _note_changes(
    exporter: Exporter, existing: Existing, profile: Profile, replaced: str | None
) -> None:
    """Note the documents of new groups and variables as changes."""
    for group in exporter.contents.root.walk():
        path = group.path.strip("/")
        for variable in group.variables.values():
            existing.change(array_documents(variable, profile))
        if existing.group(group.path) is None or (replaced and is_below(group.path, replaced)):
            existing.change(group_documents(group, profile, None))
            parent = path.rpartition("/")[0]
            around = existing.group(f"/{parent}")
            goes = replaced and is_below(f"/{parent}", replaced)
            if around is not None and not goes and group.name in around.variables:
                reason = f"{around.variables[group.name].path} is a variable already"
                raise ExportError(existing.url, reason)
            above = existing.group_documents(parent)
            existing.change(emit.add_children(above, parent, groups=[group.name]))
            continue
        dimensions = group.dimensions.values()
        before = existing.group_documents(path)
        existing.change(
            emit.add_children(before, path, dimensions=dimensions, arrays=group.variables)
        )
        before = existing.group_documents(path)
        attributes = _with_old_coordinates(group, existing)
        existing.change(emit.set_attributes(before, path, attributes, profile))


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
