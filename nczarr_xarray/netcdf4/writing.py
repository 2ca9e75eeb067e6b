"""Writing a dataset as its variables change: chunks are staged, `commit` makes them valid.

Readers see the state of the last commit, whatever happens meanwhile.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import ExportError, StoreError, URLError, on_error
from nczarr_xarray.chunks.cache import CACHE
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.gradual_tree import GradualTree
from nczarr_xarray.export.write_task import WRITER
from nczarr_xarray.formats.nczarr.emit import documents
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.model import ChunkedArray, Group, Variable
from nczarr_xarray.netcdf4.creating import model_of
from nczarr_xarray.netcdf4.growing import GrowingElements, Position, TreeElements

if TYPE_CHECKING:
    from nczarr_xarray.codecs.quantize import Rounding
    from nczarr_xarray.dataset.variable import VariableReader
    from nczarr_xarray.export.cfa.gradual import GradualAggregation
    from nczarr_xarray.netcdf4.dataset import Dataset
    from nczarr_xarray.netcdf4.variable import Dimension

#: Bytes of chunks that stay in memory before the longest unused are put.
MEMORY = 256 << 20


class Writer(ABC):
    """Writes one dataset: has its chunks in memory, and makes them valid with its model.

    Parameters
    ----------
    target
        What is written, and how far it is.
    memory
        Bytes of chunks that may stay in memory; None for `MEMORY`.

    Attributes
    ----------
    taken
        Bytes of chunks in memory.
    """

    target: GradualTree | GradualAggregation
    dataset: Dataset

    def __init__(self, target: Any, memory: int | None) -> None:
        self.target = target
        self.lock = threading.RLock()
        self.memory = MEMORY if memory is None else memory
        self.taken = 0
        #: the chunks in memory that may leave it, the longest unused first
        self.recent: dict[tuple[GrowingElements, Position], None] = {}
        self._makes_room = False
        self.elements: list[GrowingElements] = []
        #: the documents of the last commit, as they are made of the model
        self.before: dict[str, bytes] = {}
        #: whether what was put is gone: after an error, or at the end
        self._ended = False

    def begin(self, dataset: Dataset) -> None:
        """Write a dataset, which is committed when Python ends.

        Raises
        ------
        ExportError
            If what is stored would change by being written again as it is.
        """
        self.dataset = dataset
        atexit.register(self._at_exit)
        self.check()

    def model(self) -> Group:
        """Return the present model of the dataset."""
        return model_of(self.dataset, self.target.profile)

    @property
    def opened(self) -> Opened | None:
        """The dataset as it was committed last; None before the first commit of a new one."""
        return self.target.opened

    @property
    def root(self) -> Group:
        """The model of the last commit."""
        return Group() if self.opened is None else self.opened.hierarchy.root

    def _documents(self, root: Group) -> dict[str, bytes]:
        """Return the documents of a model, with the author of what is there."""
        author = WRITER if self.opened is None else self.opened.hierarchy.writer or WRITER
        return documents(root, self.target.profile, author)

    # -- variables --------------------------------------------------------------------------------

    def reader(self, stored: Variable | None) -> VariableReader | None:
        """Return what reads the elements of a variable of the last commit; None for a new one."""
        if stored is None or self.opened is None:
            return None
        return self.opened.reader(stored).exactly()

    def note_use(self, elements: GrowingElements, position: Position) -> None:
        """Note that a chunk in memory is used."""
        if elements.leaves:
            self.recent.pop((elements, position), None)
            self.recent[elements, position] = None

    def make_room(self, nbytes: int) -> None:
        """Put chunks until another one of so many bytes has room, and as many more."""
        if self.taken + nbytes <= self.memory or self._makes_room:
            return
        self._makes_room = True  # coordinates are read for fragments
        chosen, taken = [], self.taken
        for elements, position in self.recent:
            if taken + nbytes <= self.memory // 2:
                break
            chosen.append((elements, position))
            taken -= elements.chunks_here[position].nbytes
        self._put(one for one in chosen if one[1] in one[0].changed)
        for elements, position in chosen:
            del self.recent[elements, position]
            elements.forget(position)
        self._makes_room = False

    @abstractmethod
    def _put(self, chosen: Iterable[tuple[Any, Position]]) -> None:
        """Put chunks that have changed, of any elements."""

    # -- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Note what is stored; `ExportError` if it would change by being written again as it is."""
        if self.opened is not None:
            self.before = self._documents(self.model())

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
            found = problems(root, self.target.profile)
            if found:
                raise ExportError(self.target.url, "cannot be written as it is", found)
            made = self._documents(root)
            has_changed = any(elements.changed or elements.put for elements in self.elements)
            if self.opened is None or has_changed or made != self.before:
                self._begin()
                with on_error(self.abort):
                    self._commit(root, made)
                    self._committed()
                self.before = made
                CACHE.clear()

    def _begin(self) -> None:
        """Begin a change, unless one has begun."""
        if self._ended:
            reason = "was given up after an error: what was written since the last sync is lost"
            raise StoreError(self.target.url, f"{reason}; open it again")
        self.target.begin()

    @abstractmethod
    def _commit(self, root: Group, made: Mapping[str, bytes]) -> None:
        """Make a model valid, whose documents are `made`, with all chunks."""

    def _committed(self) -> None:
        """Have elements read what is committed now."""
        stored = {v.path.strip("/"): v for v in self.root.all_variables()}
        for elements in self.elements:
            elements.committed(stored[elements.array.path])

    def abort(self) -> None:
        """Drop what was not committed."""
        with self.lock:
            atexit.unregister(self._at_exit)
            self._ended = True
            self.target.abort()

    def _at_exit(self) -> None:
        """Commit what a program has not closed, as netCDF4-python does."""
        try:
            self.commit()
        except Exception as error:  # noqa: BLE001 - others are to be stored, too
            warnings.warn(f"{self.target.url} was not stored: {error}", stacklevel=1)
        self.abort()


class TreeWriter(Writer):
    """Writes a tree of NCZarr or Zarr 2.

    Parameters
    ----------
    target, memory
        As of `Writer`.
    """

    target: GradualTree

    def check(self) -> None:
        """Note what is stored; `ExportError` if it would change by being written again as it is."""
        super().check()
        if self.opened is not None and self._documents(self.root) != self.before:
            self.abort()
            reason = "has names or types that would change: use to_nczarr, or change a copy"
            raise ExportError(self.target.url, f"{reason} of it")

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
        made = TreeElements(self, array, dimensions, stored, rounding)
        self.elements.append(made)
        return made

    def change(self, stored: Variable, dimensions: tuple[Dimension, ...]) -> GrowingElements:
        """Return the elements of a variable that is stored."""
        if not isinstance(stored.array, ChunkedArray) or stored.nc_type is None:
            reason = f"is of a type that netCDF lacks ({stored.dtype}): nothing here is changed"
            raise URLError(stored.path, reason)
        return self.add(stored.array, dimensions, stored)

    def _put(self, chosen: Iterable[tuple[Any, Position]]) -> None:
        for elements, position in chosen:
            elements.put_changed([position])

    def put(self, key: str, data: memoryview) -> None:
        """Put an object where no reader looks before it is committed."""
        self._begin()
        # far away, what was put before may be missing
        with nullcontext() if self.target.at_hand else on_error(self.abort):
            self.target.put(key, data, self.memory)

    def _commit(self, root: Group, made: Mapping[str, bytes]) -> None:
        for elements in self.elements:
            assert isinstance(elements, TreeElements)
            elements.put_changed(elements.changed)
        self.target.commit(root, made, self.before)
