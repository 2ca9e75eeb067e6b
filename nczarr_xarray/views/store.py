"""Any dataset as a store: of a file, the keys of a Zarr 2 tree over its bytes."""

from __future__ import annotations

import asyncio
import builtins
import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nczarr_fsspec.address_policy import Allow
from nczarr_fsspec.changes.journal import STATE_KEYS, with_changes
from nczarr_fsspec.concurrency import Coalescer, Question, gather_or_cancel
from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    NCZarrWarning,
    caller_level,
)
from nczarr_fsspec.keystore import ALL, ZARR_METADATA, KeyStore, RemoteStore, StoreAtHand
from nczarr_fsspec.ranges.source import ByteSource, LocalBytes, RemoteBytes
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import closed_on_error, open_either, open_file, open_keys
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import OpenOptions, check_is_zarr
from nczarr_xarray.model import Hierarchy
from nczarr_xarray.views.zarr_tree import ArrayView, Tree

if TYPE_CHECKING:
    from zarr.abc.store import Store

Data: TypeAlias = bytes | bytearray | memoryview
#: Where a chunk begins in the file, its bytes there, and the mask of its table.
Location: TypeAlias = tuple[int, int, int]


class FileKeys(KeyStore):
    """The keys of a file, wherever that is.

    Parameters
    ----------
    hierarchy
        Of the whole file.
    scattered
        See `nczarr_xarray.views.zarr_tree.view_of`.

    Attributes
    ----------
    file, hierarchy
        As given.
    tree : Tree
        The keys, and what was left out.
    """

    def __init__(self, file: DataFile, hierarchy: Hierarchy, scattered: bool) -> None:
        self.file = file
        self.url = file.url
        self.hierarchy = hierarchy
        self.tree = Tree(hierarchy, scattered=scattered)
        self._readers: dict[str, VariableReader] = {}
        self._scattered = scattered

    def is_object(self, key: str) -> bool:
        """Tell whether a listed key is that of an object, not of a prefix."""
        return self.tree.find(key) is not None

    def close(self) -> None:
        self.file.close()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileKeys):
            return NotImplemented
        mine, theirs = self.file.source, other.file.source
        same = self.url == other.url and mine.validator == theirs.validator
        return mine is theirs or (same and mine.size == theirs.size)

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.hierarchy, self._scattered)

    def reader(self, view: ArrayView) -> VariableReader:
        """Return a reader of the values of an array."""
        path = view.array.path
        if path not in self._readers:
            self._readers[path] = VariableReader(self.file, view.variable)
        return self._readers[path]

    @abstractmethod
    async def _look_up(self, view: ArrayView, number: int) -> Location:
        """Return where a chunk is."""

    @abstractmethod
    async def _encoded(self, view: ArrayView, number: int) -> Data:
        """Return a chunk whose values have to be read and encoded."""

    @abstractmethod
    async def _read(self, start: int, stop: int) -> Data:
        """Return bytes of the file."""

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        found = self.tree.find(key)
        if not isinstance(found, tuple):
            return None if found is None else found[part]
        view, number = found
        at, size, mask = await self._look_up(view, number)
        if at < 0:
            return None
        if part.stop == 0:  # only whether it is there
            return b""
        if mask:
            return bytes((await self._encoded(view, number))[part])
        return bytes(await self._read(*self.extent(view, number, (at, size), part)))

    async def names(self, prefix: str) -> frozenset[str]:
        parsing = self._names(prefix)
        if isinstance(self, RemoteStore):
            return await self.file.parse_remote(parsing)
        return self.file.parse(parsing)

    async def _names(self, prefix: str) -> frozenset[str]:
        """Return the names directly below a prefix; awaits reads of metadata only."""
        names = self.tree.members(prefix)
        view = self.tree.arrays.get(prefix)
        if view is not None:
            numbers, _ = await view.existing()
            names += map(view.name, numbers.tolist())
        return frozenset(names)

    def extent(
        self, view: ArrayView, number: int, stored: tuple[int, int], part: slice
    ) -> tuple[int, int]:
        """Return the extent of the file that has a chunk.

        Raises
        ------
        FormatError
            If the file ends before.
        """
        start, size = stored
        if start + size > self.file.source.size:
            name = f"{view.variable.path} chunk {view.name(number)}"
            raise FormatError(name, f"is beyond the end of {self.url}: truncated?")
        low, high, _ = part.indices(size)
        return start + low, start + max(low, high)


class LocalFileKeys(FileKeys, StoreAtHand):
    """The keys of a file that answers at once."""

    async def _look_up(self, view: ArrayView, number: int) -> Location:
        table = self.file.parse(view.locate(np.array([number], dtype=np.int64)))
        return int(table.start[0]), int(table.size[0]), int(table.mask[0])

    async def _encoded(self, view: ArrayView, number: int) -> Data:
        return view.encoder.encode(self.reader(view).read(view.selection(number)))

    async def _read(self, start: int, stop: int) -> Data:
        source = self.file.source
        assert isinstance(source, LocalBytes)
        return source.read(start, stop)


class RemoteFileKeys(FileKeys, RemoteStore):
    """The keys of a file that waits for a network.

    What is asked for in the same turn of the event loop is looked up together and fetched
    together.
    """

    get = FileKeys.fetch
    list = FileKeys.names

    def __init__(self, file: DataFile, hierarchy: Hierarchy, scattered: bool) -> None:
        super().__init__(file, hierarchy, scattered)
        self._lookups: dict[str, Coalescer[int, Location]] = {}
        self._bytes: Coalescer[tuple[int, int], bytes] = Coalescer(self._fetch)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        source = self.file.source
        assert isinstance(source, RemoteBytes)
        return source.loop

    async def _look_up(self, view: ArrayView, number: int) -> Location:
        path = view.array.path
        if path not in self._lookups:
            self._lookups[path] = Coalescer(partial(self._locate, view))
        return await self._lookups[path].ask(number)

    async def _encoded(self, view: ArrayView, number: int) -> Data:
        values = await self.reader(view).read_remote(view.selection(number))
        return await asyncio.to_thread(view.encoder.encode, values)

    async def _read(self, start: int, stop: int) -> Data:
        return await self._bytes.ask((start, stop))

    async def _locate(
        self, view: ArrayView, questions: builtins.list[Question[int, Location]]
    ) -> None:
        numbers = np.array([question.wish for question in questions], dtype=np.int64)
        ids, where = np.unique(numbers, return_inverse=True)
        try:
            table = await self.file.parse_remote(view.locate(ids))
        except NCZarrError as error:
            if len(ids) > 1:  # one of them fails: read them one by one to find it
                await gather_or_cancel(*(self._locate(view, [question]) for question in questions))
                return
            for question in questions:
                question.fail(error)
            return
        for at, question in zip(where.tolist(), questions, strict=True):
            question.settle((int(table.start[at]), int(table.size[at]), int(table.mask[at])))

    async def _fetch(self, questions: builtins.list[Question[tuple[int, int], bytes]]) -> None:
        ranges = self.file.ranges
        assert ranges is not None
        starts, stops = np.array([question.wish for question in questions], dtype=np.int64).T

        async def receive(numbers: Any, parts: Any) -> None:
            for number, data in zip(numbers.tolist(), parts, strict=True):
                questions[number].settle(bytes(data))

        await ranges.read_data(starts, stops, receive)


#: One of these is at the root of every tree.
_ROOT_KEYS = (*sorted(ZARR_METADATA), ".nczarr")


def open_view(target: Any, options: OpenOptions, *, scattered: bool = True) -> KeyStore:
    """Open a dataset as `nczarr_xarray.views.store.open_store` shows it.

    Parameters
    ----------
    scattered
        See `nczarr_xarray.views.zarr_tree.view_of`.
    """
    of_file = partial(keys_of_file, scattered=scattered)
    return open_either(target, options, _keys_of_tree, of_file)


def keys_of_file(
    source: ByteSource, options: OpenOptions, master: Any = None, *, scattered: bool
) -> FileKeys:
    """Open a file as the keys of a tree; close it if that fails."""
    opened = open_file(source, options, master if isinstance(master, (str, os.PathLike)) else None)
    with closed_on_error(source):
        assert isinstance(opened.store, DataFile)
        local = isinstance(opened.store.source, LocalBytes)
        kind = LocalFileKeys if local else RemoteFileKeys
        return kind(opened.store, opened.hierarchy, scattered)


def _keys_of_tree(store: KeyStore, mode: frozenset[str], *_: object) -> KeyStore:
    """Return the objects of a tree, with all valid changes; its hierarchy is not read."""
    with closed_on_error(store):
        *roots, incomplete, journal = store.get_many((*_ROOT_KEYS, *STATE_KEYS))
        keys = with_changes(store, incomplete, journal).store
        if any(isinstance(root, bytes) and root.lstrip()[:1] == b"{" for root in roots):
            return keys
        (names,) = keys.list_many([""])
        if not isinstance(names, frozenset) or not names:
            raise DatasetNotFoundError(store.url, "there is no dataset here")
    opened = open_keys(store, mode, OpenOptions(tree=False))  # a root without metadata
    with closed_on_error(store):
        check_is_zarr(opened.hierarchy, store.url)
    return opened.keys


def open_store(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    replace: Mapping[str, str] | None = None,
    allow: Allow = None,
) -> Store:
    """Open a dataset as a read-only zarr-python store.

    A classic or HDF5 file is shown as a Zarr 2 tree with consolidated metadata, as xarray writes
    it: dimensions by ``_ARRAY_DIMENSIONS``, and ``_FillValue`` as the fill value. Chunks go as
    they are stored wherever Zarr has their codecs; others are decoded and shown uncompressed.
    What is contiguous is shown in chunks of about 2 MiB. The data of an aggregation in a file are
    shown uncompressed, in chunks as long as its longest fragments. An NCZarr or Zarr tree is shown
    as it is, with all changes that are valid.

    Parameters
    ----------
    target
        A path, URL, file or store, as for ``xarray.open_dataset(..., engine="nczarr")``.
    storage_options
        Options of the target's filesystem (fsspec).
    replace, allow
        Of an aggregation: see `nczarr_fsspec.address_policy.AddressPolicy.of`.

    Returns
    -------
    zarr.abc.store.Store
        Picklable. Requests of the same moment are merged: with remote files raise the number
        of chunks that zarr-python asks for at a time, ``zarr.config.set({"async.concurrency":
        128})``.

    Raises
    ------
    DatasetNotFoundError
        If there is no dataset.
    FormatError, StoreError, URLError
        If it cannot be read or understood.

    Warns
    -----
    NCZarrWarning
        For each variable of a file that cannot be shown.
    """
    from nczarr_xarray.zarr.offered import StoreView  # with zarr, which references do without

    options = OpenOptions(storage_options=storage_options, replace=replace, allow=allow)
    keys = open_view(target, options)
    for problem in keys.tree.problems if isinstance(keys, FileKeys) else ():
        warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=caller_level())
    return StoreView(keys)
