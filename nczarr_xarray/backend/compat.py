"""Everything of xarray that is used and not public, in one place.

Plugins broke in the past because these names moved; if one moves again, this
is the only module to mend.
"""

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
from xarray import Index, Variable
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE
from xarray.backends.common import NONE_VAR_NAME, ensure_dtype_not_object
from xarray.backends.store import StoreBackendEntrypoint
from xarray.backends.writers import WRITEABLE_STORES
from xarray.coding.strings import (
    CharacterArrayCoder,
    EncodedStringCoder,
    StackedBytesArray,
    check_vlen_dtype,
)
from xarray.coding.strings import create_vlen_dtype as _create_vlen_dtype
from xarray.coding.times import (
    _encode_cf_datetime_within_map_blocks,
    _encode_cf_timedelta_within_map_blocks,
    infer_calendar_name,
)
from xarray.coding.variables import BoolTypeArray
from xarray.conventions import cf_encoder, encode_dataset_coordinates
from xarray.core.indexing import (
    ExplicitIndexer,
    ExplicitlyIndexed,
    LazilyIndexedArray,
    MemoryCachedArray,
    VectorizedIndexer,
)

from nczarr_fsspec.errors import ExportError

__all__ = [
    "TO_ZARR_IGNORES_COMPRESSOR",
    "VLEN_STRING",
    "WRITEABLE_STORES",
    "AbstractDataStore",
    "BackendArray",
    "BackendEntrypoint",
    "ExplicitIndexer",
    "Index",
    "LazilyIndexedArray",
    "StoreBackendEntrypoint",
    "Variable",
    "VectorizedIndexer",
    "dataarray_to_dataset",
    "encode_for_netcdf",
    "holds_missing",
    "in_memory",
    "in_turn",
    "load_asynchronously",
    "loads_in_turn",
    "named_as_stored",
    "netcdf4_lock",
    "stored_array",
    "time_numbers",
    "units_of_times",
]


#: Units that may be finer than the resolution in which numpy has times.
_FINE_UNITS = {
    f"{name}{plural}": unit
    for unit, name in (("ns", "nanosecond"), ("us", "microsecond"), ("ms", "millisecond"))
    for plural in ("", "s")
}


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
    return variable._in_memory and bool(pd.isna(variable.values).any())


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


def encode_for_netcdf(dataset: xr.Dataset) -> tuple[dict[Any, Variable], dict[Any, Any]]:
    """Return variables and attributes as the netCDF-4 data model has them (CF; text is str or S1).

    Parameters
    ----------
    dataset
        dask's arrays of objects are taken for text, and stay dask's.

    Raises
    ------
    ValueError
        If values have no such form; of dask's arrays of objects, when they are computed.
    """
    from nczarr_xarray.backend.exact_fill import put_back, set_aside
    from nczarr_xarray.backend.unsigned import as_read, with_other_sign

    try:
        variables, attributes = encode_dataset_coordinates(dataset)
        variables = {
            name: _fine_times(name, _calculable(name, variable))
            for name, variable in variables.items()
        }
        filled, missing = set_aside(variables.items())
        changed, stored = as_read(variables)
        given = {**variables, **filled, **changed}
        variables, attributes = cf_encoder(given, attributes)
    except (AttributeError, KeyError) as error:
        # of units that xarray does not know, or a "coordinates" that is no text
        reason = f"xarray cannot encode it ({type(error).__name__}: {error})"
        raise ValueError(reason) from error
    text: Any = EncodedStringCoder(allows_unicode=True)
    chars: Any = CharacterArrayCoder()
    encoded = {}
    for name, variable in variables.items():
        if name in missing:
            variable = put_back(variable, missing[name])
        if name in stored:
            variable = with_other_sign(variable, stored[name])
        if given[name].dtype.kind == "S" and variable.dtype.kind == "O":
            # none is missing: xarray made objects of them to fill gaps with a text
            variable = variable.copy(data=given[name].data)
        variable = text.encode(_typed(variable, name), name=name)
        encoded[NONE_VAR_NAME if name is None else name] = chars.encode(variable, name=name)
    return encoded, dict(attributes)


def _calculable(name: Any, variable: Variable) -> Variable:
    """Return a variable with which xarray calculates what CF means.

    - xarray casts values to the type of an integer ``scale_factor``, here and when it reads them,
      so that fractions are cut off.
    - It packs numbers that have a fill value in their own type: integers may wrap around, and
      float16 may overflow.
    - For ``_Unsigned`` it rounds floats, even if floats are stored. (When it reads them, it ignores
      the attribute.) Other numbers may become integers as small as the data, whatever is stored.

    Raises
    ------
    ValueError
        If nothing can be stored with the scale or offset.
    """
    found = variable.copy(deep=False)
    encoding, kind = found.encoding, found.dtype.kind
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    if (scale is not None and not (scale and np.isfinite(scale))) or (
        offset is not None and not np.isfinite(offset)
    ):
        reason = f"no number can be stored with scale_factor {scale!r}, add_offset {offset!r}"
        raise ValueError(f"{name!r}: {reason}")
    if isinstance(scale, (int, np.integer)):
        encoding["scale_factor"] = float(scale)
    scaled = (scale, offset) != (None, None)
    stored = np.dtype(encoding.get("dtype") or found.dtype)
    small = kind in "iu" or found.dtype == "f2"
    if scaled and small and {"_FillValue", "missing_value"} & encoding.keys():
        found.data = found.data.astype("f8")
    if encoding.get("_Unsigned") is None:
        return found
    if stored.kind == "f":
        found.attrs.setdefault("_Unsigned", encoding.pop("_Unsigned"))
    elif kind == "f" or (kind in "iu" and found.dtype.itemsize < stored.itemsize):
        found.data = found.data.astype(f"{kind}{8 if kind == 'f' else stored.itemsize}")
    return found


def _fine_times(name: Any, variable: Variable) -> Variable:
    """Return times and durations with the resolution of their units, where that is finer.

    xarray (2026.9) would divide them by zero, and store NaT or infinity. So it would with blocks of
    dask whose resolution is coarser than dask has told, from which xarray takes the units.
    """
    kind, encoding = variable.dtype.kind, variable.encoding
    units, lazy = str(encoding.get("units")), variable.chunks is not None
    if kind not in "mM" and not (kind == "O" and lazy and " since " in units):
        return variable
    unit = _FINE_UNITS.get(units.partition(" since ")[0].strip().lower())
    finer = variable.dtype if unit is None or kind == "O" else np.dtype(f"{kind}8[{unit}]")
    finer = max(variable.dtype, finer)
    if lazy:
        how = tuple(encoding.get(key) for key in ("units", "calendar", "dtype"))
        blocks = variable.data.map_blocks(_storable_times, finer, str(name), how, dtype=finer)
        return variable.copy(data=blocks)
    if finer == variable.dtype:
        return variable
    return variable.copy(data=_cast_times(variable.values, finer))


def _storable_times(
    times: np.ndarray, finer: np.dtype, name: str, how: tuple[Any, Any, Any]
) -> np.ndarray:
    """Return a block of dask with a finer resolution; `ExportError` if units cannot hold it.

    In memory, xarray chooses finer units.
    """
    units, calendar, dtype = how
    try:
        found = _cast_times(times, finer)
        if units is not None and dtype is not None and found.size:
            if found.dtype.kind == "m":
                _encode_cf_timedelta_within_map_blocks(found, units, dtype)
            else:
                calendar = calendar or infer_calendar_name(found)
                _encode_cf_datetime_within_map_blocks(found, units, calendar, dtype)
    except (ValueError, OverflowError) as error:
        reason = f"blocks of dask have times that {units!r} as {dtype} cannot hold"
        advice = "give other units or another dtype by encoding=, or load the variable"
        raise ExportError(name, f"{reason} ({error}): {advice}") from error
    return found


def _cast_times(times: np.ndarray, finer: np.dtype) -> np.ndarray:
    """Return times with a finer resolution; `OverflowError` if one is out of its range.

    numpy before 2.5 wraps it around.
    """
    if times.dtype.kind != finer.kind or times.dtype >= finer:
        return times
    found = times.astype(finer)
    if not np.array_equal(found.astype(times.dtype), times, equal_nan=True):
        raise OverflowError(f"times are out of the range of {finer}")
    return found


def time_numbers(times: np.ndarray, units: Mapping[str, Any]) -> np.ndarray:
    """Return the integers that xarray makes of all times that are not missing.

    Parameters
    ----------
    times
        Of numpy or of cftime, or durations.
    units
        Their encoding. xarray chooses finer units where these are too coarse.
    """
    times = np.atleast_1d(times)
    known = times[~pd.isna(times)]
    if not known.size:
        return np.zeros(0, "i8")
    plain = Variable(("times",), known, encoding={**units, "dtype": np.dtype("i8")})
    numbers: np.ndarray = encode_for_netcdf(xr.Dataset({"v": plain}))[0]["v"].to_numpy()
    return numbers


def units_of_times(variable: Variable) -> str | None:
    """Return the units that xarray chooses for times, or None for other values.

    Raises
    ------
    ValueError
        If xarray cannot encode the times.
    """
    kind = variable.dtype.kind
    if kind == "O" and any(hasattr(value, "calendar") for value in variable.to_numpy().flat[:1]):
        kind = "M"  # dates of cftime
    if kind not in ("m", "M"):
        return None
    plain = Variable(variable.dims, variable.to_numpy())
    units: str = encode_for_netcdf(xr.Dataset({"v": plain}))[0]["v"].attrs["units"]
    return units


def _typed(variable: Variable, name: Any) -> Variable:
    """Return objects as text, bytes or numbers, whichever they are."""
    if variable.dtype.kind != "O" or check_vlen_dtype(variable.dtype) is not None:
        return variable
    if variable.chunks is None:
        typed: Variable = ensure_dtype_not_object(variable, name=name)
        return typed
    return variable.copy(data=variable.data.map_blocks(_texts, str(name), dtype=VLEN_STRING))


def _texts(block: Any, name: str) -> Any:
    """Return objects that must be text; what is missing is empty, as xarray has it."""
    block = np.asarray(block, object)  # of a scalar, dask has the object itself
    texts = np.where(pd.isna(block), "", block).astype(VLEN_STRING)
    for value in texts.ravel().tolist():
        if not isinstance(value, str):
            raise ExportError(
                name,
                f"dask's arrays of objects are taken for text, and this one holds {value!r:.60}: "
                "convert it with astype",
            )
    return texts


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
