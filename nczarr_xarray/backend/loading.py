"""Load many lazy objects of xarray together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, TypeVarTuple

import xarray as xr

from nczarr_fsspec.errors import URLError
from nczarr_xarray.backend.compat import in_memory, stored_array
from nczarr_xarray.backend.lazy_array import Loading, NCZarrArray, first_asked
from nczarr_xarray.dataset.selections import read_selections

Ts = TypeVarTuple("Ts")
T = TypeVar("T", xr.DataArray, xr.Dataset, xr.DataTree, xr.Variable)

#: Bytes of values that `iterate` loads together.
_PART = 1 << 28


def load(*objects: *Ts, max_bytes: int | None = None) -> tuple[*Ts]:
    """Load lazy objects together: each chunk is fetched and decoded once, whoever wants it.

    All requests of a round are made at a time. Values that are not those of a dataset of this
    engine (dask's, another engine's) are loaded as xarray loads them.

    Parameters
    ----------
    *objects
        DataArrays, Datasets, DataTrees, Variables: selections of one dataset, or of many. They are
        loaded in place.
    max_bytes
        Bytes that their values may have.

    Returns
    -------
    tuple
        The objects.

    Raises
    ------
    NCZarrError
        If something cannot be read; what is lazy stays so. `URLError` for more than `max_bytes`.
    """
    variables = {id(one): one for given in objects for one in _variables(given)}
    lazy = [one for one in variables.values() if not in_memory(one)]
    nbytes = sum(one.nbytes for one in lazy)
    if max_bytes is not None and nbytes > max_bytes:
        raise URLError("max_bytes", f"the values have {nbytes} bytes: load parts, or use iterate")
    begun: list[Loading] = []
    try:
        for one in lazy:
            if isinstance(stored_array(one), NCZarrArray):
                coroutine = one.load_async()
                selection = first_asked(coroutine)
                if selection is not None:
                    begun.append(Loading(coroutine, selection))
        found = read_selections([loading.selection for loading in begun])
        for loading, values in zip(begun, found, strict=True):
            loading.finish(values)
    finally:
        for loading in begun:
            loading.loading.close()
    for one in lazy:
        one.load()  # what is not of this engine, and what cannot be decoded
    return objects


async def load_async(*objects: *Ts, max_bytes: int | None = None) -> tuple[*Ts]:
    """Do as `load` does, without blocking the event loop."""
    return await asyncio.to_thread(lambda: load(*objects, max_bytes=max_bytes))


def iterate(objects: Iterable[T], *, max_bytes: int = _PART) -> Iterator[T]:
    """Load lazy objects one after the other, in bounded memory.

    Parameters
    ----------
    objects
        As of `load`; they stay lazy.
    max_bytes
        Bytes of values that are loaded together: of as many objects as have no more, or of one.

    Yields
    ------
    A loaded copy of each object, in their order.
    """
    part: list[T] = []
    nbytes = 0
    for one in objects:
        size = sum(v.nbytes for v in _variables(one) if not in_memory(v))
        if part and nbytes + size > max_bytes:
            yield from load(*part)
            part, nbytes = [], 0
        part.append(one.copy(deep=False))
        nbytes += size
    yield from load(*part)


def _variables(given: Any) -> Iterator[xr.Variable]:
    """Yield the variables of an object, coordinates included."""
    if isinstance(given, xr.Variable):
        yield given
    elif isinstance(given, xr.DataArray):
        yield given.variable
        yield from (coordinate.variable for coordinate in given.coords.values())
    elif isinstance(given, xr.Dataset):
        yield from given.variables.values()
    elif isinstance(given, xr.DataTree):
        for node in given.subtree:
            yield from node.variables.values()
    else:
        members = "; give what is in it: load(*objects)" if isinstance(given, (list, tuple)) else ""
        kinds = "DataArray, Dataset, DataTree or Variable"
        raise TypeError(f"{type(given).__name__} is no {kinds}{members}")
