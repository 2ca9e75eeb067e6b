"""Write targets: what exists at a destination, and which kind of change suits it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from nczarr_fsspec.changes.create import (
    ROOTS,
    NewObjects,
    NewTree,
    can_be_renamed,
    refuse_foreign,
)
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
from nczarr_fsspec.keystore import KeyStore, WritableStore
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.zipwrite import pack
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.registry import check_is_zarr, describes_array, formats

_EXISTS = "holds a dataset; mode='w' replaces it, mode='a' adds to it"
_OTHER_ARCHIVE = (
    "is an archive of something else; mode='w' writes a dataset into it and leaves that alone"
)


class WriteTarget:
    """The target of a write task: a destination, and what exists there.

    Parameters
    ----------
    destination
        The destination to write to.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.url = destination.url
        self.store = self._store()

    def _store(self) -> WritableStore | None:
        destination = self.destination
        if destination.kind == "directory":
            assert destination.path is not None
            if os.path.exists(destination.path) and not os.path.isdir(destination.path):
                raise DatasetExistsError(
                    self.url,
                    "is a file, which a directory does not replace: choose another name, or one "
                    "that ends in .zip",
                )
            return DirectoryWriter(
                destination.path, follow_symlinks=destination.place.follow_symlinks
            )
        return destination.store

    def reader(self) -> KeyStore | None:
        """Return a store that reads the target as it is now; None if there is no archive."""
        if self.store is not None:
            return self.store.reader()
        return self.destination.open_archive()

    def keys(self, below: str = "") -> list[str]:
        """Return all keys that exist."""
        if self.store is not None:
            return self.store.keys_below(below)
        archive = self.reader()
        if archive is None:
            return []
        try:
            return list(_keys_of(archive, below))
        finally:
            archive.close()

    def create(
        self, *, replace: bool, template: bool = False, resumption: Resumption | None = None
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
        if self.destination.kind == "zip":
            archive = self._archive(base=False, replace=replace, resumption=resumption)
            with on_error(archive.abort):
                foreign = _foreign(self.keys()) if replace else []
                self._refuse_other_format(foreign)
                return archive, [], foreign
        if replace and self.store is not None:
            finish_journal(self.store)  # chunks that were moved before their metadata are foreign
        keys = self.keys()
        owned, foreign = dataset_keys(keys), _foreign(keys)
        abandoned = self._is_abandoned(keys)
        if not abandoned:
            _refuse_nested(self.url, owned)
        self._refuse_array(keys)
        if not replace:
            if not abandoned and ROOTS & set(owned):
                raise DatasetExistsError(self.url, _EXISTS)
            refuse_foreign(self.url, foreign or (() if abandoned else removable(owned)))
        self._refuse_other_format(foreign)
        path = self.destination.path
        if self.destination.kind == "directory" and path is not None and not foreign:
            path = os.path.realpath(path)
            if can_be_renamed(path):
                links = self.destination.place.follow_symlinks
                tree = NewTree.begin(path, resumption, follow_symlinks=links)
                with on_error(tree.abort):
                    if tree.old is not None and not replace:
                        self._refuse_new()
                return tree, [], []
        assert self.store is not None
        if not template and (abandoned or not (ROOTS & set(owned) or foreign)):
            return NewObjects.begin(self.store, resumption), [], foreign
        change = Edit.begin(self.store)
        with on_error(change.abort):
            return change, removable(dataset_keys(self.keys())), foreign

    def refuse_nested(self) -> None:
        """Raise `DatasetExistsError` if the target is no dataset, but a folder that holds some."""
        _refuse_nested(self.url, dataset_keys(self.keys()))

    def _refuse_array(self, keys: list[str]) -> None:
        """Raise `DatasetExistsError` if there is an array: a dataset around it would lose it."""
        found, store = {".zarray", "zarr.json"} & set(keys), self.reader()
        if store is None or not any(describes_array(k, store.get_one(k) or b"") for k in found):
            return
        raise DatasetExistsError(
            self.url,
            "is a single Zarr array, which a dataset does not replace: choose another path, or "
            "change the dataset that it is a variable of",
        )

    def _refuse_other_format(self, foreign: list[str]) -> None:
        """Raise `FormatError` if another package's format would go on reading what stays."""
        if not foreign or {mark for row in formats() for mark in row.marks}.isdisjoint(foreign):
            return
        store = self.reader()
        assert store is not None
        with suppress(DatasetNotFoundError), open_keys(store, options=OpenOptions()) as opened:
            check_is_zarr(opened.hierarchy, self.url)

    def _refuse_new(self) -> None:
        """Raise `DatasetExistsError` if there is something now, which has come before the lock."""
        keys = self.keys()
        if not self._is_abandoned(keys):
            refuse_foreign(self.url, removable(keys))

    def holds_dataset(self) -> bool:
        """Tell whether a complete dataset exists."""
        keys = self.keys()
        return INCOMPLETE not in keys and bool(ROOTS & set(dataset_keys(keys)))

    def _is_abandoned(self, keys: list[str]) -> bool:
        """Tell whether the target holds only an abandoned dataset, which was never complete."""
        if INCOMPLETE not in keys or JOURNAL in keys or self.store is None:
            return False
        mark = pending_in(self.store)
        return mark is not None and mark.pending is None

    def edit(self, boxes: Boxes = None) -> Change:
        """Begin a change of the existing dataset: of everything, or of the chunks in `boxes`."""
        if self.store is not None:
            if self.destination.path is not None:
                remove_leftovers(os.path.realpath(self.destination.path))
            return Edit.begin(self.store, boxes)
        return self._archive(base=True)

    def _archive(
        self, *, base: bool, replace: bool = False, resumption: Resumption | None = None
    ) -> NewTree:
        destination = self.destination
        if destination.path is None:  # the next writer would not find it: it is never continued
            tree = NewTree(self.url, tempfile.mkdtemp(prefix="nczarr-"))
        else:
            tree = NewTree.begin(os.path.realpath(destination.path), resumption)
        with on_error(tree.abort):
            there = _contents(destination)  # an error if the file there is no readable archive
            before = None if replace else there if base else ""
            if before not in (None, there):
                reason = _EXISTS if ROOTS & set(dataset_keys(self.keys())) else _OTHER_ARCHIVE
                raise DatasetExistsError(self.url, reason)
            return tree.packed(self.url, partial(_pack, destination, base=base, before=before))


def _foreign(keys: list[str]) -> list[str]:
    """Return the keys that belong to no dataset, and stay when it is replaced."""
    return sorted(set(keys) - set(dataset_keys(keys)))


def _refuse_nested(url: str, owned: list[str]) -> None:
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
    try:
        return archive.contents()
    finally:
        archive.close()


def _refuse_changed(destination: Destination, before: str | None) -> None:
    """Raise if an archive is not what `_contents` told before; None if it may be anything."""
    if before is None or _contents(destination) == before:
        return
    if not before:
        raise DatasetExistsError(destination.url, _EXISTS)
    raise ExportError(
        destination.url, "was changed by another writer just now; look at it and try again"
    )


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
        _refuse_changed(destination, before)

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


def _keys_of(store: KeyStore, prefix: str) -> Iterable[str]:
    """Yield the keys below one; what has nothing below it is a key itself."""
    pending = [prefix]
    while pending:
        above = pending.pop()
        (names,) = store.list_many([above])
        if isinstance(names, StoreError):
            raise names
        pending += [f"{above}/{name}" if above else name for name in names or ()]
        if not names and above != prefix:
            yield above
