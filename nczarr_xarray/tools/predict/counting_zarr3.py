"""What zarr-python asks for when it reads an array of Zarr 3: it reads, and makes nothing of it."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr import config
from zarr.core.buffer import cpu

from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import ALL
from nczarr_xarray.formats.zarr3.array import ZarrArray, array_in
from nczarr_xarray.tools.predict.network import Request, Round, together
from nczarr_xarray.zarr.offered import StoreView

if TYPE_CHECKING:
    from nczarr_xarray.tools.predict.counting import CountedTree, Key

#: How many requests of the same task were before the next one.
_BEFORE: ContextVar[int] = ContextVar("_BEFORE", default=0)


def rounds_of_zarr(tree: CountedTree, array: ZarrArray, key: Key | None) -> list[Round]:
    """Return what zarr-python asks for: so many objects at a time, and of each one after another.

    Raises
    ------
    FormatError
        If that does not go through.
    """
    store = _Fetched(tree, array)
    reading = array_in(store, array.path, json.loads(array.metadata))
    whole = (slice(None),) * len(array.shape) if key is None else key
    lengths = zip(whole, array.shape, strict=True)
    shape = [len(range(*i.indices(n))) for i, n in lengths if isinstance(i, slice)]
    elements: Any = np.broadcast_to(np.zeros((), array.dtype), shape)
    try:
        reading.get_orthogonal_selection(whole, out=_Nowhere(elements))
    except NCZarrError:
        raise
    except Exception as error:  # zarr and the codecs raise whatever they like
        raise FormatError(array.path, f"cannot be counted ({error})") from error
    return together(list(store.rounds.values()), config.get("async.concurrency"))


class _Fetched(StoreView):
    """Chunks are counted, and then are missing; indexes of shards are there.

    Attributes
    ----------
    rounds
        Of each object.
    """

    def __init__(self, tree: CountedTree, array: ZarrArray) -> None:
        super().__init__(tree.opened.keys)
        self._tree, self._array = tree, array
        configs = [codec for codec in array.codecs if "index_location" in codec]
        self._is_sharded = bool(configs)
        self._index_first = any(codec["index_location"] == "start" for codec in configs)
        self.rounds: dict[str, list[list[Request]]] = {}

    async def _get(self, key: str, part: slice) -> bytes | None:
        (size,) = self._tree.sizes(self._array.path, [key])
        before, rounds = _BEFORE.get(), self.rounds.setdefault(key, [])
        _BEFORE.set(before + 1)
        rounds += ([] for _ in range(before + 1 - len(rounds)))
        rounds[before].append(Request(len(range(*part.indices(size or 0)))))
        at_begin = part != ALL and part.start == 0
        at_end = part.start is not None and part.start < 0
        is_index = self._is_sharded and (at_begin if self._index_first else at_end)
        return await self._tree.index(self._array.path, key, part) if is_index else None


class _Nowhere(cpu.NDBuffer):
    """Elements that take no memory."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Leave them as they are."""
