"""The metadata of a dataset in the form of another release of netCDF-C; chunks stay as they are."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nczarr_fsspec.changes.consistent_reading import same_documents
from nczarr_fsspec.changes.recovery import finish_journal
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    FormatError,
    StoreError,
    on_error,
)
from nczarr_fsspec.keystore import OLD_METADATA
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import find_destination, open_keys
from nczarr_xarray.export.form.lacking import Lacking, rebuilt
from nczarr_xarray.export.form.storage import netcdf_text
from nczarr_xarray.export.progress import Progress
from nczarr_xarray.export.write_target import begin_edit
from nczarr_xarray.export.write_task import WRITER, WriteTask
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.documents import lost_copies, only_copies
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.jsontext import JSON, dumps, loads
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import COMPAT, Profile
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import ChunkedArray, FragmentArray, Group


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The documents of a dataset in two forms.

    Attributes
    ----------
    before, after
        All documents by key, as they are and as they are to be.
    """

    before: Mapping[str, bytes]
    after: Mapping[str, bytes]

    @property
    def removed(self) -> list[str]:
        """Keys of documents that the other form does not have."""
        return sorted(self.before.keys() - self.after.keys())

    @property
    def is_needed(self) -> bool:
        """Whether anything changes."""
        return not same_documents(self.before, self.after)

    def difference(self) -> str:
        """Return what changes, as a unified difference of the documents with a line a member."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for key in sorted(self.before.keys() | self.after.keys()):
            sides = [form.get(key) for form in (self.before, self.after)]
            a, b = ([] if one is None else [*_indented(loads(one, key))] for one in sides)
            name_a, name_b = ("/dev/null" if one is None else key for one in sides)
            yield from difflib.unified_diff(a, b, name_a, name_b, lineterm="")


def upgrade(
    target: Any,
    compat: str = "4.9.3",
    storage_options: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
) -> Upgrade:
    """Write the metadata of a dataset anew, for another release of netCDF-C.

    All documents change in one step, or none. Chunks are neither read nor moved.

    Parameters
    ----------
    target, storage_options
        As for `nczarr_xarray.to_nczarr`: NCZarr of any release, or pure Zarr 2.
    compat
        The netCDF-C release that must be able to read it: ``"4.9.3"``, ``"4.9.2"`` or ``"4.8.1"``.
    dry_run
        Find out what would change, and change nothing.

    Returns
    -------
    Upgrade
        What changes.

    Raises
    ------
    ExportError
        If that release cannot read something. The error lists everything, and nothing is written.
    ConflictError
        If another writer is at work.
    NCZarrError
        If there is no dataset, or it cannot be read or written.
    """
    if compat not in COMPAT:
        raise ExportError("compat", f"is {compat!r}; it is one of {', '.join(COMPAT)}")
    place = _place(target, storage_options)
    profile = Profile(COMPAT[compat])
    planned = _plan(place, profile)
    if dry_run:
        return planned
    if not planned.is_needed:
        if place.store is not None:  # what a writer that died has not moved, only we find
            finish_journal(place.store)
        return planned
    change = begin_edit(place)
    with on_error(change.abort):
        planned = _plan(place, profile)  # again, under the lock
    task = WriteTask(change, documents=planned.after, removed=planned.removed)
    with Progress("upgrade", shown=False) as progress:
        task.run(progress)
    return planned


def _place(target: Any, storage_options: Mapping[str, Any] | None) -> Destination:
    """Find out where the dataset is."""
    try:
        return find_destination(target, storage_options)
    except DatasetExistsError as error:  # which says where to write instead
        reason = "is a file, and NCZarr is a directory or an archive: there is nothing to upgrade"
        raise FormatError(error.object, reason) from None


def _plan(place: Destination, profile: Profile) -> Upgrade:
    """Read a dataset, and say all of it in another form."""
    store, path = place.reader(), place.path
    if store is None or not (path is None or os.path.exists(path)):
        raise DatasetNotFoundError(place.url, "there is no dataset to upgrade")
    with open_keys(store, options=OpenOptions(consolidated=False)) as opened:
        hierarchy = opened.hierarchy
        check_is_zarr(hierarchy, place.url)
        if hierarchy.generation == "v3":
            reason = "is Zarr 3, which netCDF-C does not read: make a copy with nczarr copy"
            raise FormatError(place.url, reason)
        lacking = Lacking(netcdf4=False)
        root = lacking.bools(hierarchy).root
        root = lacking.tree(rebuilt(root, _with_netcdf_text))
        for variable in root.all_variables():
            if isinstance(variable.array, ChunkedArray) and variable.array.dtype.kind == "b":
                variable.array = replace(variable.array, dtype=variable.dtype)  # the same bytes
        found = [*_left_out(opened), *problems(root, profile)]
        if found:
            reason = "cannot be written for this release; nothing was changed"
            raise ExportError(place.url, reason, dict.fromkeys(found))
        after = documents(root, profile, WRITER)
        before = _documents(opened, after)
        lacking.tell(place.url)
    if CONSOLIDATED in before:
        if lost := only_copies(before[CONSOLIDATED], before):
            raise ExportError(place.url, lost_copies(lost))
        after[CONSOLIDATED] = consolidate(after)
    return Upgrade(before, after)


def _with_netcdf_text(group: Group) -> Group:
    return replace(group, variables={n: netcdf_text(v) for n, v in group.variables.items()})


def _left_out(opened: Opened) -> Iterator[str]:
    """Yield what would be lost, because it was not understood when the dataset was opened."""
    for problem in opened.hierarchy.problems:
        yield f"{problem}: correct that first (nczarr validate)"
    for variable in opened.hierarchy.root.all_variables():
        if isinstance(variable.array, FragmentArray):
            yield f"{variable.path}: is an aggregation: write another one (nczarr copy)"


def _documents(opened: Opened, after: Iterable[str]) -> dict[str, bytes]:
    """Return the documents of the same nodes as they are, and consolidated metadata."""
    folders = dict.fromkeys(key[: key.rfind("/") + 1] for key in after)
    # no other form than that of netCDF-C 4.8.0 has its documents
    old = (folder + name for folder in folders for name in sorted(OLD_METADATA))
    keys = [*after, *old, CONSOLIDATED]
    found = {}
    for key, data in zip(keys, opened.keys.get_many(keys), strict=True):
        if isinstance(data, StoreError):
            raise data
        if data is not None:
            found[key] = data
    return found


def _indented(value: JSON, name: str = "", margin: str = "") -> Iterator[str]:
    """Yield a document with a line for each member."""
    if isinstance(value, dict) and value:
        yield f"{margin}{name}{{"
        for member, inner in value.items():
            yield from _indented(inner, f"{dumps(member)}: ", margin + "  ")
        yield f"{margin}}}"
    else:
        yield f"{margin}{name}{dumps(value)}"
