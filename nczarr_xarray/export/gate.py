"""The gate of writers: how the threads of one process write together, and how they are stopped."""

from __future__ import annotations

import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.model import Array

if TYPE_CHECKING:
    pass

T = TypeVar("T")


class Gate:
    """Shared by all copies of one writer in one process: counts those inside, and can be shut.

    Attributes
    ----------
    lock
        Held while a chunk is changed that several blocks share.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    @classmethod
    def called(cls, name: str) -> Gate:
        """Return the gate of the writers of this name."""
        with _NAMING:  # a fork has gates of its own: its parent's threads do not exist there
            return _GATES.setdefault((os.getpid(), name), cls())

    def __enter__(self) -> None:
        with self._changed:
            if self._shut:
                raise StoreError("export", "is complete already, or was given up")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self) -> None:
        """Admit no further write, and wait until all writes have ended."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside)


_GATES: WeakValueDictionary[tuple[int, str], Gate] = WeakValueDictionary()
_NAMING = ProcessLock()


class Gated:
    """A writer of blocks whose copies, in one process, pass one gate. Picklable.

    Attributes
    ----------
    lasts
        Tells whether the export still lasts. It is asked where objects are put into their final
        places, by the copies of a writer that were pickled: a task of another process may go on
        after the export was given up, and a delayed one may be computed once more. Neither must
        write into what came there since.
    """

    lasts: Callable[[], bool] | None = None

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._gate = Gate.called(self._name)
        self._home = os.getpid()
        self._pickled = False

    def check_lasts(self, url: str) -> None:
        """Raise `StoreError` if the export is over, unless this is the writer that can be shut."""
        away = self._pickled or os.getpid() != self._home
        if self.lasts is not None and away and not self.lasts():
            raise StoreError(
                url,
                "nothing shows that this export still lasts: it has ended, or dask's workers do "
                "not write to the same place; use a scheduler of this process (threads), or a "
                "place that all of them share",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_gate"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _gate=Gate.called(state["_name"]), _pickled=True)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self._name

    def shut(self) -> None:
        """Write nothing more in this process; return when the last write has ended."""
        self._gate.shut()

    def each(
        self,
        items: Iterator[T],
        work: Callable[[T], int],
        *,
        threads: int,
        done: Callable[[T], None],
        within: AbstractContextManager[None],
    ) -> int:
        """Do some work on each item, in several threads; no item is begun after an error.

        Parameters
        ----------
        work
            Called inside of the gate; returns how many objects it has put.
        threads
            Number of threads, this one included.
        done
            Called with an item whose work has ended, by one thread at a time.
        within
            A context in which each thread works.

        Returns
        -------
        int
            How many objects were put.
        """
        lock = threading.Lock()
        puts: list[int] = []
        errors: list[BaseException] = []

        def take() -> T | None:
            with lock:
                return None if errors else next(items, None)

        def loop() -> None:
            put = 0
            try:
                with within:
                    while (item := take()) is not None:
                        with self._gate:
                            put += work(item)
                        with lock:
                            done(item)
            except BaseException as error:  # noqa: BLE001  (it is raised when all have ended)
                errors.append(error)
            puts.append(put)

        with ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="nczarr-export") as pool:
            # where no more can be started, those that there are do all, without a future of each
            with suppress(RuntimeError):
                for _ in range(threads - 1):
                    pool.submit(loop)
            loop()
        if errors:
            raise errors[0]
        return sum(puts)


# -- array writer --------------------------------------------------------------------------------
# What writes the data of one array, whatever its format: blocks in, objects out.


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


def check_block(path: str, block: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise `FormatError` if a block that dask has computed is not of the shape that it told."""
    if block.shape != shape:
        reason = f"dask has computed a block of shape {block.shape}, which was to have {shape}"
        raise FormatError(
            path, f"{reason}: what makes its blocks (map_blocks ...) states wrong chunks"
        )


def check_kind(path: str, block: np.dtype, dtype: np.dtype) -> None:
    """Raise `FormatError` if numbers are wanted and a block that dask has computed has others.

    numpy casts complex numbers, times and text to numbers, and what these mean is lost.
    """
    if dtype.kind in "iufb" and block.kind not in "iufb":
        reason = f"dask has computed a block of type {block}, which is stored as {dtype}"
        raise FormatError(
            path, f"{reason}: what makes its blocks (map_blocks ...) states another dtype"
        )
