"""Writing a dataset as its variables change: chunks are staged, `commit` makes them valid.

Readers see the state of the last commit, whatever happens meanwhile.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.changes.consistent_reading import stamped
from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.changes.journal import ROOT, dataset_keys
from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    StoreError,
    URLError,
    on_error,
)
from nczarr_xarray.chunks.cache import CACHE
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.export.chunk_writer import OldChunks
from nczarr_xarray.export.options import WriteOptions
from nczarr_xarray.export.write_target import begin_edit, begin_new, check_clashes, decide
from nczarr_xarray.export.write_task import WRITER
from nczarr_xarray.formats.cfa.dialect import aggregated
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.formats.nczarr.documents import KEY as CONSOLIDATED
from nczarr_xarray.formats.nczarr.emit import consolidate, documents
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import ChunkedArray, Group, Variable
from nczarr_xarray.netcdf4.growing import GrowingElements, TreeElements

if TYPE_CHECKING:
    from concurrent.futures import Future

    from nczarr_xarray.codecs.quantize import Rounding
    from nczarr_xarray.dataset.variable import VariableReader
    from nczarr_xarray.formats.nczarr.spellings import Profile
    from nczarr_xarray.netcdf4.dimension import Dimension

#: Bytes of chunks that stay in memory before the longest unused are put.
MEMORY = 256 << 20


class Writer(ABC):
    """Writes one dataset: has its chunks in memory, and makes them valid with its model.

    Parameters
    ----------
    url
        How messages name the dataset.
    memory
        Bytes of chunks that may stay in memory.

    Attributes
    ----------
    profile
        How the model is spelled, which tells whether it has changed.
    opened
        The dataset as it was committed last; None before the first commit of a new one.
    taken
        Bytes of chunks in memory.
    model
        Returns the present model of the dataset.
    """

    def __init__(self, url: str, profile: Profile, memory: int | None) -> None:
        self.url = url
        self.profile = profile
        self.lock = threading.RLock()
        self.memory = MEMORY if memory is None else memory
        self.taken = 0
        self.elements: list[GrowingElements] = []
        self.opened: Opened | None = None
        self.model: Callable[[], Group] = Group
        #: the documents of the last commit, as they are made of the model
        self.before: dict[str, bytes] = {}
        #: whether what was put is gone: after an error, or at the end
        self._ended = False

    def begin(self, model: Callable[[], Group]) -> None:
        """Have a dataset with this model, which is committed when Python ends."""
        self.model = model
        atexit.register(self._at_exit)
        self.check()

    @property
    def root(self) -> Group:
        """The model of the last commit."""
        return Group() if self.opened is None else self.opened.hierarchy.root

    @property
    def _author(self) -> str:
        """Text of ``_NCProperties``, which stays what it was."""
        return WRITER if self.opened is None else self.opened.hierarchy.writer or WRITER

    def _documents(self) -> dict[str, bytes]:
        """Return the documents of the present model."""
        return documents(self.model(), self.profile, self._author)

    # -- variables --------------------------------------------------------------------------------

    @abstractmethod
    def add(
        self,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None = None,
        rounding: Rounding | None = None,
        **asked: Any,
    ) -> GrowingElements:
        """Return the elements of a variable, which is a part of the dataset from now on.

        Parameters
        ----------
        array
            How they are stored.
        stored
            The variable of the last commit; None for a new one.
        rounding
            A function that rounds values before they are stored.
        **asked
            What only aggregations have.
        """

    def _reader(self, stored: Variable | None) -> VariableReader | None:
        if stored is None or self.opened is None:
            return None
        return self.opened.reader(stored).exactly()

    @abstractmethod
    def change(self, stored: Variable, dimensions: tuple[Dimension, ...]) -> GrowingElements:
        """Return the elements of a variable that is stored."""

    @abstractmethod
    def make_room(self, nbytes: int) -> None:
        """Put chunks until another one of so many bytes has room."""

    @abstractmethod
    def rename(self, path: str, new: str) -> None:
        """Give the array at a path another one; all its chunks are written anew."""

    def _called(self, path: str) -> GrowingElements:
        (found,) = (one for one in self.elements if one.array.path == path)
        return found

    # -- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `ExportError` if what is stored would change by being written again as it is."""

    def commit(self) -> None:
        """Make everything valid that was written, in one step.

        Raises
        ------
        ExportError
            If the format cannot hold it, or another writer has changed the dataset.
        StoreError
            If it cannot be written; the state before stays.
        """
        with self.lock:
            for elements in self.elements:
                elements.settle()
            root = self.model()
            found = problems(root, self.profile)
            if found:
                raise ExportError(self.url, "cannot be written as it is", found)
            made = documents(root, self.profile, self._author)
            has_changed = any(elements.changed or elements.put for elements in self.elements)
            if self.opened is None or has_changed or made != self.before:
                self._begun()
                with on_error(self.abort):
                    self._commit(root, made)
                self.before = made
                CACHE.clear()

    def _begun(self) -> Any:
        """Begin a change, unless one has begun, and return it."""
        if self._ended:
            reason = "was given up after an error: what was written since the last sync is lost"
            raise StoreError(self.url, f"{reason}; open it again")
        return self._begin()

    @abstractmethod
    def _begin(self) -> Any:
        """Begin a change, unless one has begun, and return it."""

    @abstractmethod
    def _commit(self, root: Group, made: Mapping[str, bytes]) -> None:
        """Make a model valid, whose documents are `made`, with all chunks."""

    def _committed(self) -> None:
        """Have elements read what is committed now."""
        assert self.opened is not None
        stored = {v.path.strip("/"): v for v in self.root.all_variables()}
        for elements in self.elements:
            elements.committed(self.opened.reader(stored[elements.array.path]).exactly())

    def abort(self) -> None:
        """Drop what was not committed."""
        with self.lock:
            atexit.unregister(self._at_exit)
            self._ended = True
            self._give_up()
            if self.opened is not None:
                self.opened.close()

    @abstractmethod
    def _give_up(self) -> None:
        """Remove what was put and not committed."""

    def _at_exit(self) -> None:
        """Commit what a program has not closed, as netCDF4-python does."""
        try:
            self.commit()
        except Exception as error:  # noqa: BLE001 - others are to be stored, too
            warnings.warn(f"{self.url} was not stored: {error}", stacklevel=1)
        self.abort()


class TreeWriter(Writer):
    """Writes a tree of NCZarr or Zarr 2.

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
    """

    def __init__(
        self,
        target: Any,
        mode: str,
        *,
        pure: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        memory: int | None = None,
    ) -> None:
        options = WriteOptions(mode="w", pure=pure, storage_options=storage_options)
        self.target, profile, self.options = decide(target, options)
        super().__init__(self.target.url, profile, memory)
        self.replaces = mode == "w"
        self.removed: set[str] = set()
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
                self._note()

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
            raise ExportError(self.url, "is Zarr 3, of which nothing is changed here")
        if any(True for _ in aggregated(opened.hierarchy)):
            raise ExportError(self.url, "is an aggregation: write format='CFA4' to change it")
        self.opened = opened

    def _note(self) -> None:
        """Note what an existing dataset is made of."""
        assert self.opened is not None
        root = {key: data for key, data in self._stored().items() if "/" not in key}
        self.profile = emit.generation_profile(root, self.url)
        self.options = replace(self.options, consolidated=CONSOLIDATED in [*self.target.keys()])
        self.before = documents(self.root, self.profile, self._author)

    def _stored(self) -> dict[str, bytes]:
        """Return the documents that are stored."""
        assert self.opened is not None
        assert self.opened.reading is not None
        objects = self.opened.reading.objects
        return {key: data for key, data in objects.items() if isinstance(data, bytes)}

    def check(self) -> None:
        """Raise `ExportError` if what is stored would change by being written again as it is."""
        if self.opened is not None and self._documents() != self.before:
            self.abort()
            reason = "has names or types that would change: use to_nczarr, or change a copy of it"
            raise ExportError(self.url, reason)

    def add(
        self,
        array: ChunkedArray,
        dimensions: tuple[Dimension, ...],
        stored: Variable | None = None,
        rounding: Rounding | None = None,
        **asked: Any,
    ) -> GrowingElements:
        """Return the elements of a variable, which is a part of the dataset from now on."""
        made = TreeElements(self, array, dimensions, self._reader(stored), rounding)
        self.elements.append(made)
        return made

    def change(self, stored: Variable, dimensions: tuple[Dimension, ...]) -> GrowingElements:
        """Return the elements of a variable that is stored."""
        if stored.error is not None:
            raise stored.error
        if not isinstance(stored.array, ChunkedArray) or stored.nc_type is None:
            reason = f"is of a type that netCDF lacks ({stored.dtype}): nothing here is changed"
            raise URLError(stored.path, reason)
        return self.add(stored.array, dimensions, stored)

    # -- chunks -----------------------------------------------------------------------------------

    def make_room(self, nbytes: int) -> None:
        """Put chunks until another one of so many bytes has room."""
        while self.taken + nbytes > self.memory:
            if not any(elements.release_some() for elements in self.elements):
                return

    @property
    def at_hand(self) -> bool:
        """Whether chunks are put at once, not by requests of which many are made at a time."""
        return bool(self._begun().staged.parallel == 1)

    def put(self, key: str, data: memoryview) -> None:
        """Put an object where no reader looks before it is committed; far away, many at a time."""
        staged = self._begun().staged
        if staged.parallel == 1:
            staged.put(key, data)
            return
        with on_error(self.abort):  # what was put before may be missing
            if self._threads is None:
                self._threads = WaitingThreads(staged.parallel, thread_name_prefix="nczarr-put")
            most = max(1, min(2 * staged.parallel, self.memory // max(1, data.nbytes)))
            while key in self._putting or len(self._putting) >= most:
                self._putting.pop(next(iter(self._putting))).result()
            self._putting[key] = self._threads.submit(staged.put, key, bytes(data))

    def _all_put(self) -> None:
        """Wait until all that is put is there."""
        while self._putting:
            self._putting.popitem()[1].result()

    def move(self, key: str, new: str) -> None:
        """Give an object that is put and not committed another key."""
        staged = self._begun().staged
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

    def _begin(self) -> Change:
        if self._change is None:
            if self.opened is None:
                self._change, removed, self._foreign = begin_new(self.target, replace=self.replaces)
                self.removed.update(removed)
            else:
                self._change = begin_edit(self.target)
        return self._change

    # -- the end ----------------------------------------------------------------------------------

    def _commit(self, root: Group, made: Mapping[str, bytes]) -> None:
        change = self._begun()
        self._check_others()
        check_clashes(
            self.url,
            self._foreign,
            [elements.array.path for elements in self.elements],
            [group.path.strip("/") for group in root.walk()],
        )
        for elements in self.elements:
            assert isinstance(elements, TreeElements)
            elements.put_changed()
        self._all_put()
        changed = {key: data for key, data in made.items() if self.before.get(key) != data}
        self._finish(change, made, changed)
        self._change = None
        self.removed.clear()
        self._reopen()

    def _finish(
        self, change: Change, made: Mapping[str, bytes], changed: Mapping[str, bytes]
    ) -> None:
        """Put the documents and commit the change."""
        final = dict(changed)
        everything: dict[str, bytes] = dict(made)
        if self.opened is not None:
            # of documents that need no change, what is stored counts: others may have added to it
            stored = self._stored()
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
        change.commit(sorted(self.removed - final.keys() - made.keys()))

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

    def _reopen(self) -> None:
        if self.opened is not None:
            self.opened.close()
        self._open()
        if self.opened is None:
            raise StoreError(self.url, "is not there any more")
        self._committed()

    def rename(self, path: str, new: str) -> None:
        """Give the array at a path another one; all its chunks are written anew."""
        self._called(path).rename(new)
        stored = self.target.keys(path) if self.opened is not None else []
        self.removed.update(dataset_keys(stored, path))

    def _give_up(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        change, self._change = self._change, None
        if change is not None:
            change.abort()
