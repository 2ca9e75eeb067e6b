"""Open a dataset: where the pure formats meet a store, or one file.

`open_hierarchy` answers what a format asks for from a store or a file, and returns an
`Opened`, of which xarray, the command line and tests are views.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from nczarr_fsspec.changes.journal import State
from nczarr_fsspec.changes.moment import Reading
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    StoreError,
)
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.chunks.plan import Index
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.targets import open_target
from nczarr_xarray.dataset.variable import VariableReader, loop_of
from nczarr_xarray.formats.format import Source
from nczarr_xarray.formats.nczarr.nodes import Answer
from nczarr_xarray.formats.open_options import EVERYTHING, OpenOptions
from nczarr_xarray.formats.registry import read_hierarchy
from nczarr_xarray.model import (
    Hierarchy,
    Variable,
)

T = TypeVar("T")

#: How often a dataset is read that changes meanwhile, each time.
ATTEMPTS = 50


def open_hierarchy(
    target: Any,
    *,
    group: str | None = None,
    tree: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: bool | None = None,
    anonymous_prefix: str = "_Anonymous_Dim_",
    index_cache: str | os.PathLike[str] | None = None,
) -> Opened:
    """Open a dataset and read its metadata.

    Parameters
    ----------
    target
        Whatever `nczarr_fsspec.open_keystore` takes, or a zarr-python Store.
    group
        Path of the group wanted; None for the root.
    tree
        Whether the groups below it are wanted too.
    storage_options
        For fsspec.
    consolidated
        True: ``.zmetadata`` must be there and is trusted. False: it is not
        looked at. None: it is used if it saves round trips and agrees with
        the root objects, and each variable is checked when it is read.
    anonymous_prefix
        See `nczarr_xarray.formats.nczarr.Naming`.
    index_cache
        Folder in which the metadata of a remote classic or HDF5 file are kept for
        other processes when it is closed; made if it is not there.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset, or no such group.
    FormatError, StoreError, URLError
        If the root or the wanted group cannot be read or understood.
    """
    return open_with(
        target,
        OpenOptions(
            group=group,
            tree=tree,
            storage_options=storage_options,
            consolidated=consolidated,
            anonymous_dimension_prefix=anonymous_prefix,
            index_cache=index_cache,
        ),
    )


def open_with(target: Any, options: OpenOptions) -> Opened:
    """Do what `open_hierarchy` does, with what is asked for as one object."""
    return open_either(
        target,
        options,
        lambda store, mode: open_keys(store, mode, options),
        lambda source: open_file(source, options),
    )


def open_either(
    target: Any,
    options: OpenOptions,
    of_tree: Callable[[KeyStore, frozenset[str]], T],
    of_file: Callable[[ByteSource], T],
) -> T:
    """Find out whether there is a tree or a file at `target`, and open it as such.

    Parameters
    ----------
    of_tree
        Opens a tree, given the mode words of the target; raises `DatasetNotFoundError` if there
        is none.
    of_file
        Opens a file.

    Raises
    ------
    NCZarrError
        If there is neither, or what `of_tree` or `of_file` raise.
    """
    found = open_target(target, options.storage_options, options.folder)
    if isinstance(found.data, ByteSource):
        return of_file(found.data)
    try:
        return of_tree(found.data, found.mode)
    except (DatasetNotFoundError, AccessDeniedError) as error:
        # a URL need not tell by its name whether it is that of a tree or of one file
        if found.as_file is None:
            raise
        try:
            file = found.as_file()
        except StoreError as other:
            if options.path:
                raise error from None
            reason = f"{error.reason}; as one file: {other.reason}"
            raise type(error)(error.object, reason) from None
    return of_file(file)


@contextmanager
def closed_on_error(data: KeyStore | ByteSource) -> Iterator[None]:
    """Close a store or a file if what is done meanwhile fails."""
    try:
        yield
    except BaseException:
        data.close()
        raise


def open_file(source: ByteSource, options: OpenOptions = EVERYTHING) -> Opened:
    """Open one file as `open_with` does; close it if that fails.

    Raises
    ------
    FormatError
        If the file is of no known format.
    """
    file = DataFile(source, options.folder)
    with closed_on_error(source):
        return Opened(file, file.hierarchy(options))


def open_keys(
    store: KeyStore, mode: frozenset[str] = frozenset(), options: OpenOptions = EVERYTHING
) -> Opened:
    """Open a store's dataset as `open_with` does; close the store if that fails.

    The metadata are read as of one moment, with all changes that are valid. They are read anew
    if the dataset changes meanwhile, until it does not or has only got other data.

    Parameters
    ----------
    mode
        The mode words of the target's fragment.
    """
    before = None
    with closed_on_error(store):
        for _ in range(ATTEMPTS):
            reading = Reading(store)
            hierarchy, failure = None, None
            try:
                hierarchy = _read_tree(reading, mode, options)
            except NCZarrError as error:  # which may come of the change
                failure = error
            if reading.holds() or (before is not None and reading.agrees(before)):
                if hierarchy is None:
                    assert failure is not None
                    raise failure
                _hold_back(hierarchy, reading.state)
                return Opened(reading.state.store, hierarchy, reading=reading)
            before = reading
        raise StoreError(store.url, always_changing(ATTEMPTS))


def _read_tree(reading: Reading, mode: frozenset[str], options: OpenOptions) -> Hierarchy:
    """Answer what a format asks for from the store."""
    source = Source(reading.store.url, reading.store, mode)
    parsing = read_hierarchy(source, options)
    try:
        wanted = parsing.send(None)
        while True:
            answer = Answer(*reading.answer(wanted.keys, wanted.prefixes))
            source.data = reading.state.store
            wanted = parsing.send(answer)
    except StopIteration as stop:
        hierarchy: Hierarchy = stop.value
        return hierarchy
    finally:
        parsing.close()


def always_changing(attempts: int) -> str:
    """Say that a dataset was never the same at the beginning and the end of a reading."""
    return (
        f"was changed by its writers during each of {attempts} attempts to read it; try again "
        "when they write less often"
    )


def _hold_back(hierarchy: Hierarchy, state: State) -> None:
    """Keep arrays whose chunks are not all there from being read."""
    for group in hierarchy.root.walk() if state.pending else ():
        for variable in group.variables.values():
            error = state.pending.get(variable.path.strip("/"))
            variable.error = variable.error or error


@dataclass(slots=True)
class Opened:
    """An open dataset. A context manager; closing it releases the store.

    Attributes
    ----------
    store
        Where the chunks are.
    hierarchy
        The metadata.
    exact
        See `VariableReader`.
    reading
        How the metadata of objects with keys were read.
    """

    store: KeyStore | DataFile
    hierarchy: Hierarchy
    exact: bool = False
    reading: Reading | None = None

    @property
    def keys(self) -> KeyStore:
        """The store of a dataset that is made of objects with keys, not one file."""
        assert isinstance(self.store, KeyStore)
        return self.store

    def holds(self) -> bool:
        """Tell whether it is all as it was when it was opened (see `Reading.holds`)."""
        return self.reading is None or self.reading.holds()

    def reader(self, variable: Variable) -> VariableReader:
        """Return a reader of one variable (cheap; it may outlive this object)."""
        mark = None if self.reading is None else self.reading.mark
        unchecked = self.hierarchy.unchecked
        return VariableReader(self.store, variable, unchecked, mark, exact=self.exact)

    def read(
        self, variable: Variable, key: tuple[Index, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        """Read an orthogonal selection of `variable`; all of it for None."""
        return self.reader(variable).read(key)

    def read_many(
        self, wanted: Iterable[tuple[Variable, tuple[Index, ...] | None]]
    ) -> list[np.ndarray[Any, Any] | NCZarrError]:
        """Read selections of several variables, a remote store's requests overlapping.

        Errors stand in the place of values. `holds` says afterwards whether the
        dataset was changed meanwhile.
        """
        readers = [(self.reader(variable), key) for variable, key in wanted]
        remote = loop_of(self.store)
        if remote is not None and readers:
            reads = [reader.read_remote(key) for reader, key in readers]
            return remote.run(self._watched(reads))
        return [_caught(partial(reader.read, key)) for reader, key in readers]

    async def _watched(self, reads: list[Coroutine[Any, Any, T]]) -> list[T | NCZarrError]:
        if self.reading is None:
            return await _gather_caught(reads)
        found, _ = await asyncio.gather(_gather_caught(reads), self.reading.watch())
        return found

    def close(self) -> None:
        """Release the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _gather_caught(
    coroutines: list[Coroutine[Any, Any, T]],
) -> list[T | NCZarrError]:
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, NCZarrError):
            raise result
    return results  # type: ignore[return-value]  # only NCZarrErrors are left


def _caught(function: Callable[[], T]) -> T | NCZarrError:
    try:
        return function()
    except (FormatError, StoreError) as error:
        return error
