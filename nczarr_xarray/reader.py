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

from nczarr_fsspec.changes.journal import PRIVATE, STATE_KEYS, State, with_changes
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    StoreError,
    URLError,
)
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray._collection import collection_paused
from nczarr_xarray.chunks import Index
from nczarr_xarray.files import DataFile
from nczarr_xarray.formats import v3
from nczarr_xarray.formats.nczarr import Answer, Naming, Nodes, Options, Wave, build, walk
from nczarr_xarray.formats.nczarr.consolidated import Consolidated
from nczarr_xarray.model import (
    Hierarchy,
    Variable,
)
from nczarr_xarray.targets import open_file_at, open_target
from nczarr_xarray.variables import VariableReader, loop_of

T = TypeVar("T")


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
        nodes, state = _drive(store, options)
        store = state.store
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
        _hold_back(hierarchy, state)
    except BaseException:
        store.close()
        raise
    doubtful = consolidated is None and not nodes.complete
    return Opened(store, hierarchy, nodes.consolidated if doubtful else None)


def _drive(store: KeyStore, options: Options, *, again: bool = True) -> tuple[Nodes, State]:
    """Answer a walk's waves from the store, with all changes that are valid."""
    walking = walk(options, store.url)
    wave = next(walking)
    first, state = _first_answer(store, wave)
    answer = first if state.store is store else _answer(state.store, wave)
    try:
        while True:
            wave = walking.send(answer)
            answer = _answer(state.store, wave)
    except StopIteration as stop:
        nodes: Nodes = stop.value
        return nodes, state
    except (DatasetNotFoundError, FormatError):
        # A change covers the root for a moment. It may have begun when the journal had been
        # looked for, and have ended when that was read: then it is all different now.
        if not again or not isinstance(store, LocalStore):
            raise
        now, state = _first_answer(store, next(walk(options, store.url)))
        if state.store is store and now == first:
            raise
        return _drive(store, options, again=False)


def _first_answer(store: KeyStore, wave: Wave) -> tuple[Answer, State]:
    """Answer the first wave, and see whether an export has left something.

    No request waits for this one: it goes with the others where the store
    is not listed, and is not made where the listing shows no need.
    """
    if isinstance(store, RemoteStore) and store.can_list and wave.prefixes:
        answer = _answer(store, wave)
        root = answer.listings[0] if answer.listings else None
        if isinstance(root, frozenset) and PRIVATE in root:
            return answer, with_changes(store, *store.get_many(STATE_KEYS))
        return answer, State(store)
    # last, so that nothing is missed that became valid while the others were read (over a network
    # all go at a time; there, that changes remove before they move keeps old and new apart)
    answer = _answer(store, Wave((*wave.keys, *STATE_KEYS), wave.prefixes))
    count = len(wave.keys)
    state = with_changes(store, *answer.objects[count:])
    return Answer(answer.objects[:count], answer.listings), state


def _hold_back(hierarchy: Hierarchy, state: State) -> None:
    """Keep arrays whose chunks are not all there from being read."""
    for group in hierarchy.root.walk() if state.pending else ():
        for variable in group.variables.values():
            error = state.pending.get(variable.path.strip("/"))
            variable.error = variable.error or error


def _answer(store: KeyStore, wave: Wave) -> Answer:
    if isinstance(store, RemoteStore):

        async def both() -> Answer:
            objects, listings = await asyncio.gather(
                store.gather_objects(wave.keys), store.gather(store.list, wave.prefixes)
            )
            return Answer(objects, listings)

        return store.run(both())
    return Answer(store.get_many(wave.keys), store.list_many(wave.prefixes))


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
    """

    store: KeyStore | DataFile
    hierarchy: Hierarchy
    unchecked: Consolidated | None = None
    exact: bool = False

    @property
    def keys(self) -> KeyStore:
        """The store of a dataset that is made of objects with keys, not one file."""
        assert isinstance(self.store, KeyStore)
        return self.store

    def reader(self, variable: Variable) -> VariableReader:
        """A reader of one variable (cheap; it may outlive this object)."""
        return VariableReader(self.store, variable, self.unchecked, exact=self.exact)

    def read(
        self, variable: Variable, key: tuple[Index, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        """Read an orthogonal selection of `variable`; all of it for None."""
        return self.reader(variable).read(key)

    def read_many(
        self, wanted: Iterable[tuple[Variable, tuple[Index, ...] | None]]
    ) -> list[np.ndarray[Any, Any] | NCZarrError]:
        """Read selections of several variables, a remote store's requests overlapping.

        Errors stand in the place of values.
        """
        readers = [(self.reader(variable), key) for variable, key in wanted]
        remote = loop_of(self.store)
        if remote is not None and readers:
            reads = [reader.read_remote(key) for reader, key in readers]
            return remote.run(_gather_caught(reads))
        return [_caught(partial(reader.read, key)) for reader, key in readers]

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
