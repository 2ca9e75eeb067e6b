"""Writing a dataset as its variables change: chunks are staged, `commit` makes them valid.

Readers see the state of the last commit, whatever happens meanwhile.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nczarr_fsspec.changes.consistent_reading import stamped
from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.changes.journal import ROOT, dataset_keys
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    StoreError,
    on_error,
)
from nczarr_xarray.chunks.cache import CACHE
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.export.chunk_writer import OldChunks
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.export.write_target import begin_edit, begin_new, check_clashes, decide
from nczarr_xarray.export.write_task import WRITER
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import ChunkedArray, Group
from nczarr_xarray.netcdf4.growing import GrowingElements

#: Bytes of chunks that stay in memory before the longest unused are put.
MEMORY = 256 << 20


class Writer:
    """Writes one dataset.

    Parameters
    ----------
    target
        A path or URL, or whatever `nczarr_xarray.to_nczarr` takes.
    mode
        ``"w"`` replaces, ``"x"`` wants nothing there, ``"a"`` changes what is there, or begins.
    pure
        Whether a new dataset is pure Zarr 2; None leaves it to the target's mode words.
    memory
        Bytes of chunks that may stay in memory.

    Attributes
    ----------
    opened
        The dataset as it was committed last; None before the first commit of a new one.
    taken
        Bytes of chunks in memory.
    """

    def __init__(
        self,
        target: Any,
        mode: str,
        *,
        pure: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        memory: int = MEMORY,
    ) -> None:
        options = WriteOptions(mode="w", pure=pure, storage_options=storage_options)
        self.target, self.profile, self.options = decide(target, options)
        self.lock = threading.RLock()
        self.memory = memory
        self.taken = 0
        self.elements: list[GrowingElements] = []
        self.replaces = mode == "w"
        self.opened: Opened | None = None
        #: the documents of the last commit, as they are made of the model
        self.before: dict[str, bytes] = {}
        self.removed: set[str] = set()
        #: commits the dataset with its present model
        self.save: Callable[[], None] = self.abort
        self._change: Change | None = None
        #: whether what was put is gone: after an error, or at the end
        self._ended = False
        self._foreign: list[str] = []
        if mode == "x" and self.target.keys():
            raise DatasetExistsError(self.target.url, "is there; mode='w' replaces it")
        if mode == "a":
            self._open()
            if self.opened is not None:
                self._note()
        atexit.register(self._at_exit)

    @property
    def root(self) -> Group:
        """The model of the last commit."""
        return Group() if self.opened is None else self.opened.hierarchy.root

    @property
    def _author(self) -> str:
        """Text of ``_NCProperties``, which stays what it was."""
        return WRITER if self.opened is None else self.opened.hierarchy.writer or WRITER

    # -- what is there ----------------------------------------------------------------------------

    def _open(self) -> None:
        """Open what is committed; nothing if there is no dataset."""
        store = self.target.reader()
        if store is None:
            return
        try:
            opened = open_keys(store, options=OpenOptions(consolidated=False))
        except DatasetNotFoundError:
            return
        check_is_zarr(opened.hierarchy, store.url)
        if opened.hierarchy.generation == "v3":
            raise ExportError(self.target.url, "is Zarr 3, of which nothing is changed here")
        self.opened = opened

    def _note(self) -> None:
        """Note what an existing dataset is made of."""
        assert self.opened is not None
        stored = self._documents()
        root = {key: data for key, data in stored.items() if "/" not in key}
        self.profile = emit.generation_profile(root, self.target.url)
        self.options = replace(self.options, consolidated=CONSOLIDATED in [*self.target.keys()])
        self.before = documents(self.root, self.profile, self._author)

    def _documents(self) -> dict[str, bytes]:
        assert self.opened is not None
        assert self.opened.reading is not None
        objects = self.opened.reading.objects
        return {key: data for key, data in objects.items() if isinstance(data, bytes)}

    def check(self, root: Group) -> None:
        """Raise `ExportError` if a model of the dataset as it is differs from what is stored."""
        if self.opened is not None and documents(root, self.profile, self._author) != self.before:
            self.abort()
            reason = "has names or types that would change: use to_nczarr, or change a copy of it"
            raise ExportError(self.target.url, reason)

    # -- chunks -----------------------------------------------------------------------------------

    def make_room(self, nbytes: int) -> None:
        """Put chunks until another one of so many bytes has room."""
        while self.taken + nbytes > self.memory:
            if not any(elements.release_one() for elements in self.elements):
                return

    def put(self, key: str, data: bytes) -> None:
        """Put an object where no reader looks before it is committed."""
        self._begun().staged.put(key, data)

    def put_chunks(self, array: ChunkedArray) -> OldChunks:
        """Return what reads chunks that are put and not committed."""
        assert self._change is not None
        return OldChunks(self._change.staged.reader(), array)

    def _begun(self) -> Change:
        if self._ended:
            reason = "was given up after an error: what was written since the last sync is lost"
            raise StoreError(self.target.url, f"{reason}; open it again")
        if self._change is None:
            if self.opened is None:
                self._change, removed, self._foreign = begin_new(self.target, replace=self.replaces)
                self.removed.update(removed)
            else:
                self._change = begin_edit(self.target)
        return self._change

    # -- the end ----------------------------------------------------------------------------------

    def commit(self, root: Group) -> None:
        """Make everything valid that was written, with a model of it, in one step.

        Raises
        ------
        ExportError
            If the format cannot hold it, or another writer has changed the dataset.
        StoreError
            If it cannot be written; the state before stays.
        """
        found = problems(root, self.profile)
        if found:
            raise ExportError(self.target.url, "cannot be written as it is", found)
        with self.lock:
            made = documents(root, self.profile, self._author)
            changed = {key: data for key, data in made.items() if self.before.get(key) != data}
            chunks = any(elements.changed or elements.put for elements in self.elements)
            if self.opened is not None and not (changed or chunks or self.removed):
                return
            change = self._begun()
            with on_error(self.abort):
                self._check_others()
                check_clashes(
                    self.target.url,
                    self._foreign,
                    [elements.array.path for elements in self.elements],
                    [group.path.strip("/") for group in root.walk()],
                )
                for elements in self.elements:
                    elements.put_changed()
                self._finish(change, made, changed)
            self._change = None
            self.before = made
            self.removed.clear()
            CACHE.clear()
            self._reopen()

    def _finish(
        self, change: Change, made: Mapping[str, bytes], changed: Mapping[str, bytes]
    ) -> None:
        """Put the documents and commit the change."""
        final = dict(changed)
        everything: dict[str, bytes] = dict(made)
        if self.opened is not None:
            # of documents that need no change, what is stored counts: others may have added to it
            stored = self._documents()
            everything = {k: changed.get(k, stored.get(k, data)) for k, data in made.items()}
            roots = [key for key in everything if "/" not in key]
            final |= {key: everything[key] for key in roots}  # in each change: see `changes.edit`
            self.removed |= self.before.keys() - made.keys()
        if self.options.consolidated:
            final[CONSOLIDATED] = consolidate(everything)
        order = [key for key in made if key in final]
        for key in [*(k for k in final if k not in made), *order]:
            data = final[key]
            if key == ROOT and not change.staged.stamps:
                data = stamped(data)
            change.staged.put(key, data)
        change.commit(sorted(self.removed - final.keys()))

    def _check_others(self) -> None:
        """Raise `ExportError` if another writer has changed the metadata."""
        if self.opened is None or self.opened.reading is None:
            return
        store = self.target.reader()
        assert store is not None
        with open_keys(store, options=OpenOptions(consolidated=False)) as now:
            if now.reading is None or not now.reading.agrees(self.opened.reading):
                raise ExportError(
                    self.target.url, "was changed by another writer just now; open it again"
                )

    def _reopen(self) -> None:
        if self.opened is not None:
            self.opened.close()
        self._open()
        if self.opened is None:
            raise StoreError(self.target.url, "is not there any more")
        stored = {v.path.strip("/"): v for v in self.opened.hierarchy.root.all_variables()}
        for elements in self.elements:
            elements.committed(self.opened.reader(stored[elements.array.path]).exactly())

    def rename(self, path: str, new: str) -> None:
        """Give the array at a path another one; all its chunks are written anew."""
        (elements,) = (one for one in self.elements if one.array.path == path)
        names = elements.rename(new)
        if self._change is not None and names:
            self._change.staged.delete(names)
        stored = self.target.keys(path) if self.opened is not None else []
        self.removed.update(dataset_keys(stored, path))

    def abort(self) -> None:
        """Drop what was not committed."""
        with self.lock:
            atexit.unregister(self._at_exit)
            self._ended = True
            change, self._change = self._change, None
            if change is not None:
                change.abort()
            if self.opened is not None:
                self.opened.close()

    def _at_exit(self) -> None:
        """Commit what a program has not closed, as netCDF4-python does."""
        try:
            self.save()
        except Exception as error:  # noqa: BLE001 - others are to be stored, too
            warnings.warn(f"{self.target.url} was not stored: {error}", stacklevel=1)
        self.abort()
