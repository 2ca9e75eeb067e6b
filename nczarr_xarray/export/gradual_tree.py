"""Writing a tree chunk by chunk, as a program fills it, and its documents at the end."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from nczarr_fsspec.changes.consistent_reading import stamped
from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.changes.journal import ROOT, dataset_keys
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import DatasetExistsError, DatasetNotFoundError, ExportError, StoreError
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.export.chunk_writer import OldChunks
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.export.write_target import begin_edit, begin_new, check_clashes, decide
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import consolidate
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import ChunkedArray, Group


class GradualTree:
    """A tree of NCZarr or Zarr 2 that is written, or changed, by chunks; `commit` makes them valid.

    Readers see the old tree until then. Of a change that is given up, nothing stays.

    Parameters
    ----------
    target
        A path or URL, or whatever `nczarr_xarray.to_nczarr` takes.
    mode
        ``"w"`` replaces, ``"x"`` wants nothing there, ``"a"`` changes what is there, or begins.
    pure
        Whether a new dataset is pure Zarr 2; None leaves it to the target's mode words.

    Attributes
    ----------
    opened
        The dataset as it was committed last; None before the first commit of a new one.
    profile
        How its documents are spelled.
    """

    def __init__(
        self,
        target: Any,
        mode: str,
        *,
        pure: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = WriteOptions(mode="w", pure=pure, storage_options=storage_options)
        self.target, self.profile, self.options = decide(target, options)
        self.url = self.target.url
        self.replaces = mode == "w"
        self.opened: Opened | None = None
        self._removed: set[str] = set()
        self._change: Change | None = None
        #: what is being put, by key
        self._putting: dict[str, Future[None]] = {}
        self._threads: WaitingThreads | None = None
        self._foreign: list[str] = []
        if mode == "x" and self.target.keys():
            raise DatasetExistsError(self.url, "is there; mode='w' replaces it")
        if mode == "a":
            self._open()
        if self.opened is not None:
            root = {key: data for key, data in self._stored().items() if "/" not in key}
            self.profile = emit.generation_profile(root, self.url)
            consolidated = CONSOLIDATED in [*self.target.keys()]
            self.options = replace(self.options, consolidated=consolidated)

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
            raise ExportError(self.url, "is Zarr 3, of which nothing is changed here")
        if any(True for _ in aggregated(opened.hierarchy)):
            raise ExportError(self.url, "is an aggregation: write format='CFA4' to change it")
        self.opened = opened

    def _stored(self) -> dict[str, bytes]:
        """Return the documents that are stored."""
        assert self.opened is not None
        assert self.opened.reading is not None
        objects = self.opened.reading.objects
        return {key: data for key, data in objects.items() if isinstance(data, bytes)}

    def begin(self) -> Change:
        """Begin a change, unless one has begun, and return it."""
        if self._change is None:
            if self.opened is None:
                self._change, removed, self._foreign = begin_new(self.target, replace=self.replaces)
                self._removed.update(removed)
            else:
                self._change = begin_edit(self.target)
        return self._change

    # -- chunks -----------------------------------------------------------------------------------

    @property
    def at_hand(self) -> bool:
        """Whether chunks are put at once, not by requests of which many are made at a time."""
        return bool(self.begin().staged.parallel == 1)

    def put(self, key: str, data: memoryview, memory: int) -> None:
        """Put an object where no reader looks before it is committed; far away, many at a time.

        Parameters
        ----------
        memory
            Bytes that all that are under way may take.
        """
        staged = self.begin().staged
        if staged.parallel == 1:
            staged.put(key, data)
            return
        if self._threads is None:
            self._threads = WaitingThreads(staged.parallel, thread_name_prefix="nczarr-put")
        most = max(1, min(2 * staged.parallel, memory // max(1, data.nbytes)))
        while key in self._putting or len(self._putting) >= most:
            self._putting.pop(next(iter(self._putting))).result()
        self._putting[key] = self._threads.submit(staged.put, key, bytes(data))

    def _all_put(self) -> None:
        """Wait until all that is put is there."""
        while self._putting:
            self._putting.popitem()[1].result()

    def move(self, key: str, new: str) -> None:
        """Give an object that is put and not committed another key."""
        staged = self.begin().staged
        self._all_put()
        data = staged.reader().get_one(key)
        assert data is not None
        staged.put(new, bytes(data))
        staged.delete([key])

    def put_chunks(self, array: ChunkedArray) -> OldChunks:
        """Return what reads chunks that are put and not committed."""
        assert self._change is not None
        self._all_put()
        return OldChunks(self._change.staged.reader(), array)

    def remove(self, path: str) -> None:
        """Have the array at a path removed by the next commit."""
        stored = self.target.keys(path) if self.opened is not None else []
        self._removed.update(dataset_keys(stored, path))

    # -- the end ----------------------------------------------------------------------------------

    def commit(self, root: Group, made: Mapping[str, bytes], before: Mapping[str, bytes]) -> None:
        """Make all that was put valid, with a model.

        Parameters
        ----------
        made, before
            The documents of the model, and those of the last commit.
        """
        change = self.begin()
        self._check_others()
        check_clashes(
            self.url,
            self._foreign,
            [variable.path.strip("/") for variable in root.all_variables()],
            [group.path.strip("/") for group in root.walk()],
        )
        self._all_put()
        self._finish(change, made, before)
        self._change = None
        self._removed.clear()
        if self.opened is not None:
            self.opened.close()
        self._open()
        if self.opened is None:
            raise StoreError(self.url, "is not there any more")

    def _finish(
        self, change: Change, made: Mapping[str, bytes], before: Mapping[str, bytes]
    ) -> None:
        """Put the documents and commit the change."""
        changed = {key: data for key, data in made.items() if before.get(key) != data}
        final = dict(changed)
        everything: dict[str, bytes] = dict(made)
        if self.opened is not None:
            # of documents that need no change, what is stored counts: others may have added to it
            stored = self._stored()
            everything = {k: changed.get(k, stored.get(k, data)) for k, data in made.items()}
            roots = [key for key in everything if "/" not in key]
            final |= {key: everything[key] for key in roots}  # in each change: see `changes.edit`
            self._removed |= before.keys() - made.keys()
        if self.options.consolidated:
            final[CONSOLIDATED] = consolidate(everything)
        order = [key for key in made if key in final]
        for key in [*(k for k in final if k not in made), *order]:
            data = final[key]
            if key == ROOT and not change.staged.stamps:
                data = stamped(data)
            change.staged.put(key, data)
        change.commit(sorted(self._removed - final.keys() - made.keys()))

    def _check_others(self) -> None:
        """Raise `ExportError` if another writer has changed the metadata."""
        if self.opened is None or self.opened.reading is None:
            return
        store = self.target.reader()
        assert store is not None
        with open_keys(store, options=OpenOptions(consolidated=False)) as now:
            if now.reading is None or not now.reading.agrees(self.opened.reading):
                reason = "was changed by another writer just now; open it again"
                raise ExportError(self.url, reason)

    def abort(self) -> None:
        """Remove what was put and not committed."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        change, self._change = self._change, None
        if change is not None:
            change.abort()
        if self.opened is not None:
            self.opened.close()
