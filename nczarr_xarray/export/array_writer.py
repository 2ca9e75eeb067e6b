"""What writes the data of one array, whatever its format: blocks in, objects out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from nczarr_fsspec.stores.writable import WritableStore
from nczarr_xarray.export.gate import Gated
from nczarr_xarray.model import Array


class ArrayWriter(Gated, ABC):
    """Writes blocks of one array into a store. Picklable; safe in threads.

    Attributes
    ----------
    array
        The new array; its chunks are the objects that are put.
    store
        The store that they are put into.
    start
        The position in the array where the data begin.
    shared
        Whether blocks may share an object; then all must come from one process.
    """

    array: Array
    store: WritableStore
    start: tuple[int, ...]
    shared: bool = False

    @abstractmethod
    def write(
        self,
        values: np.ndarray,
        first: tuple[int, ...] | None = None,
        *,
        threads: int | None = None,
        done: Callable[[int], None] | None = None,
    ) -> int:
        """Write one block.

        Parameters
        ----------
        first
            The position of the block, counted from `start`.
        threads
            Number of threads that encode; None for as many as are worth having: one per processor,
            and more for a remote store, because they wait most of the time.
        done
            Called with the number of objects that were done.

        Returns
        -------
        int
            How many objects were put: all but those of nothing but the fill value.

        Raises
        ------
        FormatError, StoreError
            If a value cannot be encoded, or an object not be stored.
        """
