"""Arrays that are read when xarray indexes them: remote ones together, where it wants several.

xarray loads the variables of a dataset one after the other, and does not tell a backend which ones.
So the first read looks up the stack for the call that it is part of (`loads_in_turn`). If the call
will read other remote variables, too, all of them are read at once and given to xarray, which finds
them loaded later. Nothing is kept here, and nothing is read that was not asked for:
it all happens within one call of `Dataset.load`, or of what writes a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from contextvars import ContextVar
from types import coroutine
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.backend.compat import (
    VLEN_STRING,
    BackendArray,
    ExplicitIndexer,
    VectorizedIndexer,
    loads_in_turn,
    stored_array,
)
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.selections import Selection, read_together
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.model import element_of

#: Of variables that are read with one that is asked for: bytes of their values, and how many.
MOST_BYTES = 64 << 20
MOST_VARIABLES = 1024

#: Whether arrays say what they would read, instead of reading it.
_only_asked = ContextVar("_only_asked", default=False)


class NCZarrArray(BackendArray):
    """A variable's data, read when indexed. Picklable, safe in threads and processes.

    Attributes
    ----------
    failed
        While xarray opens the dataset: told why the variable cannot be read, if so. xarray gets
        zeros then; it only wants to know what becomes of times.
    """

    __slots__ = ("dtype", "failed", "reader", "shape")

    def __init__(self, reader: VariableReader) -> None:
        self.reader = reader
        self.failed: Callable[[NCZarrError], None] | None = None
        self.shape = reader.shape
        self.dtype = reader.dtype
        if reader.dtype.kind == "O":
            # of sequences that of their elements, as netCDF4-python has it: xarray would look
            # into objects to see whether they are dates
            self.dtype = element_of(reader.dtype) or VLEN_STRING

    def __getitem__(self, key: ExplicitIndexer) -> np.ndarray:
        try:
            return self._read(key)
        except NCZarrError as error:
            if self.failed is None:
                raise
            self.failed(error)
            zeros: np.ndarray = np.broadcast_to(np.zeros((), self.dtype), self.shape)
            wanted: np.ndarray = zeros[key.tuple]
            return wanted

    def _read(self, key: ExplicitIndexer) -> np.ndarray:
        wanted = self._selection(key)
        others = list(_wanted_besides(self))
        if not others:
            return self.reader.read(wanted.key, points=wanted.points)
        try:
            values, found = read_together(wanted, [other.selection for other in others])
            for other, value in zip(others, found, strict=True):
                other.finish(value)
        finally:
            for other in others:
                other.loading.close()
        return values

    async def async_getitem(self, key: ExplicitIndexer) -> np.ndarray:
        wanted = self._selection(key)
        if _only_asked.get():
            return await _answer(wanted)
        return await self.reader.read_async(wanted.key, points=wanted.points)

    def _selection(self, key: ExplicitIndexer) -> Selection:
        pointwise = isinstance(key, VectorizedIndexer)
        points = pointwise and any(isinstance(index, np.ndarray) for index in key.tuple)
        return Selection(self.reader, key.tuple, points)


@coroutine
def _answer(selection: Selection) -> Generator[Selection, np.ndarray, np.ndarray]:
    """Return what a coroutine of xarray gets by `Loading.finish`, not by a loop."""
    return (yield selection)


class Loading(NamedTuple):
    """A variable that xarray has begun to load, up to where it needs values of a selection."""

    loading: Coroutine[Any, Any, Any]
    selection: Selection

    def finish(self, values: np.ndarray | BaseException) -> None:
        """Let xarray decode and keep the values; later, reading the variable raises an error."""
        if not isinstance(values, BaseException):
            # StopIteration when it is loaded, or whatever decoding raises
            with suppress(Exception):
                self.loading.send(values)


def _wanted_besides(asked: NCZarrArray) -> Iterator[Loading]:
    """Begin to load the variables that xarray will read after this one."""
    remote = loop_of(asked.reader.store)
    if remote is None:
        return
    nbytes = count = 0
    for variable, load in loads_in_turn():
        array = stored_array(variable)
        if not isinstance(array, NCZarrArray) or array is asked or array.reader.error is not None:
            continue
        other = loop_of(array.reader.store)
        if other is None or other.loop is not remote.loop:
            continue
        nbytes += variable.nbytes
        count += 1
        if nbytes > MOST_BYTES or count > MOST_VARIABLES:
            return
        loading = load()
        selection = first_asked(loading)
        if selection is not None:
            yield Loading(loading, selection)


def first_asked(loading: Coroutine[Any, Any, Any]) -> Selection | None:
    """Run a coroutine of xarray up to where it reads; None if it fails, as the read will, too."""
    token = _only_asked.set(True)
    try:
        selection: Selection | None = loading.send(None)
        return selection
    except Exception:  # noqa: BLE001 - of any array that xarray has put around ours
        return None
    finally:
        _only_asked.reset(token)
