"""Everything we use of xarray that is not public, in one place.

Plugins broke in the past because these names moved; if one moves again, this
is the only module to mend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray import Index, Variable
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.coding.strings import StackedBytesArray, create_vlen_dtype
from xarray.coding.variables import BoolTypeArray
from xarray.core.indexing import (
    BasicIndexer,
    ExplicitIndexer,
    LazilyIndexedArray,
    OuterIndexer,
    VectorizedIndexer,
)

__all__ = [
    "AbstractDataStore",
    "BackendArray",
    "BackendEntrypoint",
    "BasicIndexer",
    "ExplicitIndexer",
    "Index",
    "LazilyIndexedArray",
    "OuterIndexer",
    "StoreBackendEntrypoint",
    "Variable",
    "VectorizedIndexer",
    "create_vlen_dtype",
    "load_asynchronously",
]


class _AsyncStackedBytes(StackedBytesArray):  # type: ignore[misc]  # untyped in xarray
    async def async_get_duck_array(self) -> Any:
        loaded = np.asarray(await self.array.async_get_duck_array())
        return StackedBytesArray(loaded).get_duck_array()


class _AsyncBool(BoolTypeArray):  # type: ignore[misc]  # untyped in xarray
    async def async_get_duck_array(self) -> Any:
        return np.asarray(await self.array.async_get_duck_array(), dtype=self.dtype)


_ASYNCHRONOUS = {StackedBytesArray: _AsyncStackedBytes, BoolTypeArray: _AsyncBool}


def load_asynchronously(variable: Variable) -> None:
    """Let `load_async` work through the two decoding steps that xarray left without it."""
    data = variable._data
    while hasattr(data, "array"):
        data.__class__ = _ASYNCHRONOUS.get(type(data), type(data))
        data = data.array
