"""Open a dataset: where the pure formats meet a store, or one file.

`open_hierarchy` drives the walk of `nczarr_xarray.formats.nczarr` over a store, or
the parser of a file, and returns an `Opened`, of which xarray, the command line
and tests are views.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
    URLError,
)
from nczarr_fsspec.keystore import KeyStore, RemoteStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.chunks import Index
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.targets import open_file_at, open_target
from nczarr_xarray.dataset.variable import VariableReader, loop_of
from nczarr_xarray.formats.collection import collection_paused
from nczarr_xarray.formats.nczarr import Answer, Naming, Nodes, Options, build, walk
from nczarr_xarray.formats.nczarr.consolidated import Consolidated
from nczarr_xarray.formats.zarr3 import read as v3
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
    if not (group is None or isinstance(group, str)):
        raise URLError("group", f"must be a string or None, not {group!r}")
    check_choice("consolidated", consolidated)
    if not isinstance(anonymous_prefix, str):
        reason = f"must be a string, not {anonymous_prefix!r}"
        raise URLError("anonymous_dimension_prefix", reason)
    folder = None if index_cache is None else Path(index_cache).expanduser()
    source, mode = open_target(target, storage_options, folder)
    if isinstance(source, ByteSource):
        return open_file(source, group=group, tree=tree, index_cache=folder)
    try:
        return open_keys(
            source,
            mode,
            group=group,
            tree=tree,
            consolidated=consolidated,
            anonymous_prefix=anonymous_prefix,
        )
    except (DatasetNotFoundError, AccessDeniedError) as error:
        # a URL need not tell by its name whether it is that of a tree or of one file
        try:
            file = open_file_at(target, storage_options, folder)
        except StoreError as other:
            if group:
                raise error from None
            reason = f"{error.reason}; as one file: {other.reason}"
            raise type(error)(error.object, reason) from None
        if file is None:
            raise
        return open_file(file, group=group, tree=tree, index_cache=folder)


def check_choice(option: str, value: Any) -> None:
    """Raise `URLError` if the value of an option is neither True, False nor None."""
    if not (value is None or isinstance(value, (bool, np.bool_))):
        raise URLError(option, f"must be True, False or None, not {value!r:.80}")


def open_file(
    source: ByteSource,
    *,
    group: str | None = None,
    tree: bool = True,
    index_cache: Path | None = None,
) -> Opened:
    """`open_hierarchy` of one classic or HDF5 file; it is closed if that fails.

    Raises
    ------
    FormatError
        If it is neither.
    """
    file = DataFile(source, index_cache)
    try:
        return Opened(file, file.hierarchy((group or "").strip("/"), tree))
    except BaseException:
        source.close()
        raise


def open_keys(
    store: KeyStore,
    mode: frozenset[str] = frozenset(),
    *,
    group: str | None = None,
    tree: bool = True,
    consolidated: bool | None = None,
    anonymous_prefix: str = "_Anonymous_Dim_",
) -> Opened:
    """`open_hierarchy` of a store that is open; it is closed if that fails.

    Parameters
    ----------
    mode
        The mode words of the target's fragment.
    """
    required = consolidated is True  # the mode word asks for them, and does without
    if consolidated is None and "consolidated" in mode:
        consolidated = True
    options = Options(
        group=(group or "").strip("/"),
        tree=tree,
        pure="zarr" in mode,
        consolidated=consolidated,
        required=required,
        remote=isinstance(store, RemoteStore),
    )
    try:
        nodes, reading = _drive(store, options)
        store = reading.state.store
        naming = Naming(anonymous_prefix, array_dimensions="noxarray" not in mode)
        if nodes.generation == "v3":
            hierarchy = v3.read_hierarchy(
                store,
                options.group,
                naming,
                tree=tree,
                consolidated=consolidated,
                required=required,
            )
        else:
            with collection_paused():
                hierarchy = build(nodes, naming, pure=options.pure)
        _hold_back(hierarchy, reading.state)
    except BaseException:
        store.close()
        raise
    doubtful = consolidated is None and not nodes.complete
    return Opened(store, hierarchy, nodes.consolidated if doubtful else None, reading=reading)


def _drive(store: KeyStore, options: Options) -> tuple[Nodes, Reading]:
    """Answer a walk's waves from the store as of one moment, with all changes that are valid.

    The walk is begun anew if the dataset changes meanwhile, until it does not or
    has only got other data.
    """
    before = None
    for _ in range(ATTEMPTS):
        reading = Reading(store)
        nodes, failure = None, None
        try:
            nodes = _walk(reading, options)
        except NCZarrError as error:  # which may come of the change
            failure = error
        if reading.holds() or (before is not None and reading.agrees(before)):
            if nodes is None:
                assert failure is not None
                raise failure
            return nodes, reading
        before = reading
    raise StoreError(store.url, always_changing(ATTEMPTS))


def always_changing(attempts: int) -> str:
    """Say that a dataset was never the same at the beginning and the end of a reading."""
    return (
        f"was changed by its writers during each of {attempts} attempts to read it; try again "
        "when they write less often"
    )


def _walk(reading: Reading, options: Options) -> Nodes:
    walking = walk(options, reading.store.url)
    try:
        wave = next(walking)
        while True:
            wave = walking.send(Answer(*reading.answer(wave.keys, wave.prefixes)))
    except StopIteration as stop:
        nodes: Nodes = stop.value
        return nodes


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
    unchecked
        Consolidated metadata that each array is still to be compared with.
    exact
        See `VariableReader`.
    reading
        How the metadata of objects with keys were read.
    """

    store: KeyStore | DataFile
    hierarchy: Hierarchy
    unchecked: Consolidated | None = None
    exact: bool = False
    reading: Reading | None = None

    @property
    def keys(self) -> KeyStore:
        """The store of a dataset that is made of objects with keys, not one file."""
        assert isinstance(self.store, KeyStore)
        return self.store

    def holds(self) -> bool:
        """Whether it is all as it was when it was opened (see `Reading.holds`)."""
        return self.reading is None or self.reading.holds()

    def reader(self, variable: Variable) -> VariableReader:
        """A reader of one variable (cheap; it may outlive this object)."""
        mark = None if self.reading is None else self.reading.mark
        return VariableReader(self.store, variable, self.unchecked, mark, exact=self.exact)

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
