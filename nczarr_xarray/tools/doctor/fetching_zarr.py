"""Fetch data of Zarr 3 over a simulated network: zarr-python asks, and makes nothing of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from zarr.core.buffer import cpu

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.transport.request import Extent, Request
from nczarr_xarray.formats.zarr3.array import ZarrArray, array_in
from nczarr_xarray.tools.doctor.patterns import Key
from nczarr_xarray.tools.doctor.simulated import SimulatedStore, SimulatedTransport
from nczarr_xarray.zarr.offered import StoreView


class _Fetched(SimulatedStore):
    """Chunks take the time to fetch them, and then are missing; indexes of shards are there.

    Parameters
    ----------
    array
        Whose objects these are.
    """

    def __init__(self, transport: SimulatedTransport, array: ZarrArray, prefix: str) -> None:
        super().__init__(transport, array.path, prefix)
        configs = [codec for codec in array.codecs if "index_location" in codec]
        self._is_sharded = bool(configs)
        self._index_first = any(codec["index_location"] == "start" for codec in configs)

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        transport, path = self.transport, f"{self.prefix}{key}"
        request = Request(path, key, most=most)
        at_end = part.start is not None and part.start < 0
        if at_end:
            request = Request(path, key, tail=-part.start)
        elif part != ALL:
            request = Request(path, key, [Extent(part.start, part.stop)])
        await transport.step(transport.fetch(request))
        at_begin = part != ALL and part.start == 0
        is_index = self._is_sharded and (at_begin if self._index_first else at_end)
        return transport.content.index(path, part) if is_index else None


class _Nowhere(cpu.NDBuffer):
    """Elements that take no memory."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Leave them as they are."""


async def fetch_zarr(
    transport: SimulatedTransport, array: ZarrArray, key: Key, prefix: str = ""
) -> None:
    """Fetch what zarr-python would of a selection.

    Parameters
    ----------
    prefix
        As of `SimulatedStore`.

    Raises
    ------
    FormatError
        If that does not go through.
    """
    store = StoreView(_Fetched(transport, array, prefix))
    reading = array_in(store, array.path, json.loads(array.metadata)).async_array
    lengths = zip(key, array.shape, strict=True)
    shape = [len(range(*i.indices(n))) for i, n in lengths if isinstance(i, slice)]
    elements: Any = np.broadcast_to(np.zeros((), array.dtype), shape)
    out = _Nowhere(elements)
    try:
        await reading.get_orthogonal_selection(key, out=out)
    except NCZarrError:
        raise
    except Exception as error:  # zarr and the codecs raise whatever they like
        raise FormatError(array.path, f"cannot be rehearsed ({error})") from error
