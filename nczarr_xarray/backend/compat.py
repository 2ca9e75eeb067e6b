"""Everything of xarray that is used and not public, in one place.

Plugins broke in the past because these names moved; if one moves again, this
is the only module to mend.
"""

# ruff: noqa: PLC0414 - what others import from here is imported as itself

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from itertools import chain
from types import CodeType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr
from xarray import Index as Index
from xarray import Variable as Variable
from xarray.backends import AbstractDataStore as AbstractDataStore
from xarray.backends import BackendArray as BackendArray
from xarray.backends import BackendEntrypoint as BackendEntrypoint
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE
from xarray.backends.common import NONE_VAR_NAME as NONE_VAR_NAME
from xarray.backends.common import ensure_dtype_not_object as ensure_dtype_not_object
from xarray.backends.store import StoreBackendEntrypoint as StoreBackendEntrypoint
from xarray.backends.writers import WRITEABLE_STORES as WRITEABLE_STORES
from xarray.coding import times
from xarray.coding.strings import CharacterArrayCoder as CharacterArrayCoder
from xarray.coding.strings import EncodedStringCoder as EncodedStringCoder
from xarray.coding.strings import StackedBytesArray
from xarray.coding.strings import check_vlen_dtype as check_vlen_dtype
from xarray.coding.strings import create_vlen_dtype as _create_vlen_dtype
from xarray.coding.times import infer_calendar_name as infer_calendar_name
from xarray.coding.variables import BoolTypeArray
from xarray.conventions import cf_encoder as cf_encoder
from xarray.conventions import encode_dataset_coordinates as encode_dataset_coordinates
from xarray.core.indexing import ExplicitIndexer as ExplicitIndexer
from xarray.core.indexing import ExplicitlyIndexed, MemoryCachedArray
from xarray.core.indexing import LazilyIndexedArray as LazilyIndexedArray
from xarray.core.indexing import VectorizedIndexer as VectorizedIndexer

encode_datetimes = times._encode_cf_datetime_within_map_blocks
encode_timedeltas = times._encode_cf_timedelta_within_map_blocks


class _AsyncStackedBytes(StackedBytesArray):
    __slots__ = ()  # else the class of a slotted instance cannot be changed to this

    async def async_get_duck_array(self) -> Any:
        loaded: Any = np.asarray(await self.array.async_get_duck_array())
        stacked: Any = StackedBytesArray(loaded)
        return stacked.get_duck_array()


class _AsyncBool(BoolTypeArray):
    __slots__ = ()  # else the class of a slotted instance cannot be changed to this

    async def async_get_duck_array(self) -> Any:
        return np.asarray(await self.array.async_get_duck_array(), dtype=self.dtype)


_ASYNCHRONOUS: dict[type, type] = {StackedBytesArray: _AsyncStackedBytes, BoolTypeArray: _AsyncBool}


#: Whether ``encoding["compressor"]`` is ours to use; xarray handed it to zarr-python before.
TO_ZARR_IGNORES_COMPRESSOR = tuple(map(int, xr.__version__.split(".")[:2])) >= (2026, 9)

#: The dtype by which xarray knows variable-length text.
VLEN_STRING: np.dtype = _create_vlen_dtype(str)


def load_asynchronously(variable: Variable) -> None:
    """Let `load_async` work through the two decoding steps that xarray left without it."""
    for layer in _layers(variable):
        if type(layer) in _ASYNCHRONOUS:
            layer.__class__ = _ASYNCHRONOUS[type(layer)]


def _layers(variable: Variable) -> Iterator[Any]:
    """Yield the lazy arrays of a variable's data, each of which is around the next.

    Others have an ``array``, too, in which nothing of xarray is: an index of pandas raises an error
    if it has no such thing.
    """
    data: Any = variable._data
    while isinstance(data, ExplicitlyIndexed):
        yield data
        data = getattr(data, "array", None)


#: See `in_turn`.
_announced: ContextVar[Sequence[Variable]] = ContextVar("_announced", default=())


@contextmanager
def in_turn(variables: Sequence[Variable]) -> Iterator[None]:
    """Tell `loads_in_turn` of variables whose data are wanted one after the other meanwhile."""
    token = _announced.set(variables)
    try:
        yield
    finally:
        _announced.reset(token)


def holds_missing(variable: Variable) -> bool:
    """Tell whether values that are in memory already are missing in part."""
    return in_memory(variable) and bool(np.any(pd.isna(variable.values)))


def stored_array(variable: Variable) -> Any:
    """Return the innermost lazy array of a variable, below those by which xarray decodes it.

    None if its data are in memory or are dask's.
    """
    found = None
    for found in _layers(variable):  # noqa: B007
        pass
    return found


def in_memory(variable: Variable) -> bool:
    """Tell whether looking at a variable's values reads nothing."""
    return variable._in_memory


#: Begins to load a variable; a coroutine that keeps what it loads where xarray will look for it.
_Load: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


def loads_in_turn() -> Iterator[tuple[Variable, _Load]]:
    """Yield the variables that xarray reads one by one, if that is what it does in this thread.

    That is, if `Dataset.load` (of which `compute` and `DataArray.load` make use), `DataTree.load`
    or what writes datasets has called. Only their frames have this information.
    """
    announced = _announced.get()
    if announced:
        yield from _cached(announced)
        return
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        found = _IN_TURN.get(frame.f_code)
        if found is not None:
            yield from found(frame.f_locals)
            return
        if frame.f_back is None:
            return
        frame = frame.f_back


def _loaded(owner: Any) -> Iterator[tuple[Variable, _Load]]:
    return ((variable, variable.load_async) for variable in owner.variables.values())


def _cached(variables: Iterable[Variable]) -> Iterator[tuple[Variable, _Load]]:
    """Yield what writing leaves in memory anyway; that is not so with ``cache=False``."""
    for variable in variables:
        if isinstance(variable._data, MemoryCachedArray):
            yield variable, variable._data.async_get_duck_array


def _code(function: Any) -> CodeType:
    code: CodeType = inspect.unwrap(function).__code__
    return code


def _of_writer(names: Any) -> Iterator[tuple[Variable, _Load]]:
    return _cached(names.get("variables", {}).values())


def _writers() -> Iterator[CodeType]:
    """Yield those functions of xarray that encode what is to be written, or write it.

    One that has moved is left out: then its reads go out one by one.
    """
    yield _code(cf_encoder)
    for module, owner, name in (
        ("common", "AbstractWritableDataStore", "encode"),
        ("common", "AbstractWritableDataStore", "set_variables"),
        ("zarr", "ZarrStore", "set_variables"),
    ):
        with suppress(ImportError, AttributeError):
            found = getattr(import_module(f"xarray.backends.{module}"), owner)
            yield _code(getattr(found, name))


#: The functions of xarray that read variables in turn, and what finds these by the names in there.
_IN_TURN: dict[CodeType, Callable[[Any], Iterator[tuple[Variable, _Load]]]] = {
    _code(xr.Dataset.load): lambda names: _loaded(names["self"]),
    _code(xr.DataTree.load): lambda names: chain.from_iterable(map(_loaded, names["self"].subtree)),
    **dict.fromkeys(_writers(), _of_writer),
}
#: Calls between one of these and a read, at most.
_MOST_FRAMES = 40


def without_indexes(dataset: xr.Dataset) -> xr.Dataset:
    """Return a copy whose variables may all be given other values: those of indexes may not."""
    indexed = [n for n, v in dataset.variables.items() if isinstance(v, xr.IndexVariable)]
    return dataset.copy().drop_indexes(indexed)


def named_as_stored(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose variable called None, if it has one, has the name in files."""
    return dataset.rename({None: NONE_VAR_NAME}) if None in dataset.variables else dataset


class PreferredChunks(dict[Any, Any]):
    """Chunks as ``encoding["preferred_chunks"]``: those that may not be separated, and larger ones.

    xarray makes blocks of dask where nothing else is asked for, and warns of chunks that are
    separated. For the blocks, it asks with a default, the length of the dimension.

    Parameters
    ----------
    stored
        Lengths of what is stored, by name of the dimension.
    blocks
        Lengths of what is read together by default.
    """

    def __init__(self, stored: Mapping[Any, Any], blocks: Mapping[Any, Any]) -> None:
        super().__init__(stored)
        self.blocks = {**blocks}

    def get(self, dimension: Any, default: Any = None) -> Any:
        return super().get(dimension) if default is None else self.blocks.get(dimension, default)


def dataarray_to_dataset(array: xr.DataArray) -> xr.Dataset:
    """Make the Dataset that `xarray.DataArray.to_netcdf` writes of a DataArray."""
    if array.name is None:
        return array.to_dataset(name=DATAARRAY_VARIABLE)
    if array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
        dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()


def netcdf4_lock() -> AbstractContextManager[Any]:
    """Return the lock that xarray holds while it uses netCDF4, which is not safe in threads."""
    from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK

    lock: AbstractContextManager[Any] = NETCDF4_PYTHON_LOCK
    return lock
