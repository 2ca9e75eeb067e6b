"""Write targets: what exists at a destination, and which kind of change suits it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from nczarr_fsspec.changes.create import ROOTS, NewObjects, NewTree, can_be_renamed, refuse_foreign
from nczarr_fsspec.changes.edit import Boxes, Change, Edit
from nczarr_fsspec.changes.journal import (
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    dataset_keys,
    is_chunk_of,
    removable,
)
from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing
from nczarr_fsspec.changes.recovery import finish_journal, pending_in
from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    StoreError,
    on_error,
)
from nczarr_fsspec.stores.zipwrite import pack
from nczarr_xarray.dataset.open import find_destination, open_keys
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.formats.nczarr.spellings import COMPAT, Profile
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr, describes_array, formats

_EXISTS = "holds a dataset; mode='w' replaces it, mode='a' adds to it"
_OTHER_ARCHIVE = (
    "is an archive of something else; mode='w' writes a dataset into it and leaves that alone"
)


def begin_new(
    target: Destination,
    *,
    replace: bool,
    template: bool = False,
    resumption: Resumption | None = None,
) -> tuple[Change, list[str], list[str]]:
    """Begin to write a new dataset.

    Parameters
    ----------
    replace
        Whether an existing dataset may be replaced.
    template
        Whether the dataset is put into place before all its chunks are written.
    resumption
        The work, if it can be continued.

    Returns
    -------
    change, removed, foreign
        The change; keys to remove with the old dataset; keys that belong to
        no dataset and stay.

    Raises
    ------
    DatasetExistsError
        If something exists that must not be replaced.
    """
    if target.kind == "zip":
        archive = new_archive(target, base=False, replace=replace, resumption=resumption)
        with on_error(archive.abort):
            foreign = _foreign(target.keys()) if replace else []
            _refuse_other_format(target, foreign)
            return archive, [], foreign
    if replace and target.store is not None:
        finish_journal(target.store)  # chunks that were moved before their metadata are foreign
    keys = target.keys()
    owned, foreign = dataset_keys(keys), _foreign(keys)
    abandoned = _is_abandoned(target, keys)
    if not abandoned:
        refuse_nested(target.url, owned)
    _refuse_array(target, keys)
    if not replace:
        if not abandoned and ROOTS & set(owned):
            raise DatasetExistsError(target.url, _EXISTS)
        refuse_foreign(target.url, foreign or (() if abandoned else removable(owned)))
    _refuse_other_format(target, foreign)
    path = target.path
    if target.kind == "directory" and path is not None and not foreign:
        path = os.path.realpath(path)
        if can_be_renamed(path):
            links = target.place.follow_symlinks
            tree = NewTree.begin(path, resumption, follow_symlinks=links)
            with on_error(tree.abort):
                if tree.old is not None and not replace:
                    keys = target.keys()  # something may have come before the lock
                    if not _is_abandoned(target, keys):
                        refuse_foreign(target.url, removable(keys))
            return tree, [], []
    assert target.store is not None
    if not template and (abandoned or not (ROOTS & set(owned) or foreign)):
        return NewObjects.begin(target.store, resumption), [], foreign
    change = Edit.begin(target.store)
    with on_error(change.abort):
        return change, removable(dataset_keys(target.keys())), foreign


def _refuse_array(target: Destination, keys: list[str]) -> None:
    """Raise `DatasetExistsError` if there is an array: a dataset around it would lose it."""
    found = {".zarray", "zarr.json"} & set(keys)
    store = target.reader() if found else None
    if store is None or not any(describes_array(k, store.get_one(k) or b"") for k in found):
        return
    raise DatasetExistsError(
        target.url,
        "is a single Zarr array, which a dataset does not replace: choose another path, or "
        "change the dataset that it is a variable of",
    )


def _refuse_other_format(target: Destination, foreign: list[str]) -> None:
    """Raise `FormatError` if another package's format would go on reading what stays."""
    if not foreign or {mark for row in formats() for mark in row.marks}.isdisjoint(foreign):
        return
    store = target.reader()
    assert store is not None
    with suppress(DatasetNotFoundError), open_keys(store, options=OpenOptions()) as opened:
        check_is_zarr(opened.hierarchy, target.url)


def is_empty(target: Destination) -> bool:
    """Tell whether there is nothing at all; what cannot be found out is said by who reads it."""
    if target.store is None:
        return False
    (names,) = target.store.reader().list_many([""])
    return not names


def holds_dataset(target: Destination) -> bool:
    """Tell whether a complete dataset exists."""
    keys = target.keys()
    return INCOMPLETE not in keys and bool(ROOTS & set(dataset_keys(keys)))


def _is_abandoned(target: Destination, keys: list[str]) -> bool:
    """Tell whether the target holds only an abandoned dataset, which was never complete."""
    if INCOMPLETE not in keys or JOURNAL in keys or target.store is None:
        return False
    mark = pending_in(target.store)
    return mark is not None and mark.pending is None


def begin_edit(target: Destination, boxes: Boxes = None) -> Change:
    """Begin a change of the existing dataset: of everything, or of the chunks in `boxes`."""
    if target.store is not None:
        if target.path is not None:
            remove_leftovers(os.path.realpath(target.path))
        return Edit.begin(target.store, boxes)
    return new_archive(target, base=True)


def new_archive(
    target: Destination, *, base: bool, replace: bool = False, resumption: Resumption | None = None
) -> NewTree:
    """Begin an archive: a tree that is packed when it is complete."""
    if target.path is None:  # the next writer would not find it: it is never continued
        tree = NewTree(target.url, tempfile.mkdtemp(prefix="nczarr-"))
    else:
        tree = NewTree.begin(os.path.realpath(target.path), resumption)
    with on_error(tree.abort):
        there = _contents(target)  # an error if the file there is no readable archive
        before = None if replace else there if base else ""
        if before not in (None, there):
            reason = _EXISTS if ROOTS & set(dataset_keys(target.keys())) else _OTHER_ARCHIVE
            raise DatasetExistsError(target.url, reason)
        return tree.packed(target.url, partial(_pack, target, base=base, before=before))


def _foreign(keys: list[str]) -> list[str]:
    """Return the keys that belong to no dataset, and stay when it is replaced."""
    return sorted(set(keys) - set(dataset_keys(keys)))


def refuse_nested(url: str, owned: list[str]) -> None:
    """Raise `DatasetExistsError` if these keys are no dataset, but a folder that holds some."""
    folders = sorted({key.partition("/")[0] for key in owned} - {PRIVATE})
    if folders and not ROOTS & set(owned):
        some = ", ".join(folders[:3]) + (", ..." if len(folders) > 3 else "")
        raise DatasetExistsError(
            url,
            f"is no dataset, but a folder that holds some ({some}), which would become part of it "
            "or be removed: choose another path, or remove them first",
        )


def _contents(destination: Destination) -> str:
    """Return a text that identifies the content of an archive; "" if there is none."""
    archive = destination.open_archive()
    if archive is None:
        return ""
    with closing(archive):
        return archive.contents()


def _pack(
    destination: Destination,
    tree: str,
    removed: frozenset[str],
    *,
    base: bool,
    before: str | None,
) -> None:
    """Pack a tree into an archive, and move the archive into place.

    Nothing locks one on a server, and other programs know no lock: so it is looked at again.
    """
    local = destination.path
    file = os.path.basename(destination.place.path if local is None else os.path.realpath(local))
    old = destination.open_archive() if base or before is None else None
    # readers of Zarr look for keys at the top, netCDF-C in a directory
    at_top = "zarr" in destination.place.mode if old is None or not base else not old.directory
    name = None if at_top else file.rpartition(".")[0] or file
    gone = removed.__contains__
    stay: frozenset[str] = frozenset()
    if old is not None and not base:
        stay = frozenset(_foreign([*old.archive.members]))
        gone = old.archive.members.__contains__

    def fill(new: str) -> None:
        pack(tree, new, name, base=old, removed=gone, stay=stay, private=f"{PRIVATE}/")
        # None if it may be anything
        if before is None or _contents(destination) == before:
            return
        if not before:
            raise DatasetExistsError(destination.url, _EXISTS)
        reason = "was changed by another writer just now; look at it and try again"
        raise ExportError(destination.url, reason)

    try:
        if destination.path is None:
            destination.put_archive(fill)
        else:
            with replacing(os.path.realpath(destination.path)) as new:
                fill(new)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(destination.url, f"cannot be written: {error.strerror}") from error
    finally:
        if old is not None:
            old.close()


def check_clashes(
    url: str, foreign: Iterable[str], arrays: Iterable[str], groups: Iterable[str]
) -> None:
    """Raise `ExportError` if something foreign exists where the dataset is to be written."""
    arrays = set(arrays)
    nodes = arrays | set(groups)
    clashes = [
        key for key in foreign if key in nodes or any(is_chunk_of(key, path) for path in arrays)
    ]
    if clashes:
        raise ExportError(
            url,
            f"objects that are in the way do not belong to a dataset: {', '.join(clashes[:5])}; "
            "remove them, or choose another target",
        )


def decide(target: Any, options: WriteOptions) -> tuple[Destination, Profile, WriteOptions]:
    """Decide where to write, and as what; by the mode words of a URL and the options.

    Raises
    ------
    ExportError
        If options contradict each other, or the target.
    """
    destination = find_destination(target, options.storage_options)
    words, url = destination.place.mode, destination.url
    if options.portable and "nczarr" in words and "zarr" not in words:
        raise ExportError(url, "portable=True writes pure Zarr, not NCZarr: write #mode=zarr")
    if options.pure and "nczarr" in words and "zarr" not in words:
        raise ExportError(url, "its mode is that of NCZarr, not of Zarr: write #mode=zarr")
    if options.pure is False and "zarr" in words:
        raise ExportError(url, "its mode is that of Zarr, not of NCZarr: write #mode=nczarr")
    if options.portable or options.pure:
        words |= {"zarr"}
    if options.compat not in COMPAT:
        raise ExportError(url, f"compat is {options.compat!r}; it is one of {', '.join(COMPAT)}")
    generation = "v2" if "zarr" in words else COMPAT[options.compat]
    profile = Profile(generation, "noxarray" not in words, options.portable)
    options = replace(
        options,
        consolidated=options.consolidated or "consolidated" in words,
        safe_chunks=options.safe_chunks and not options.align_chunks,
    )
    place = replace(destination.place, mode=words)
    return replace(destination, place=place), profile, options
