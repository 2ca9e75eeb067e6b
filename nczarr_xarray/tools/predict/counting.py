"""What a dataset is asked for when it is opened, and read, over a network: round by round.

The metadata are really read, so parsers ask for what they ask for. Data are not: once chunks are
located, what is asked for them follows from the planner of requests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nczarr_fsspec.changes.journal import ROOT, STATE_KEYS
from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import ALL, KeyStore, RemoteStore
from nczarr_fsspec.ranges.index_memory import SparseBytes
from nczarr_fsspec.ranges.planner import Requests, plan_requests, widened
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.source import HEAD_BYTES, ByteSource, Limits, LocalBytes, RemoteBytes
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.referencefolder import FolderReferences
from nczarr_fsspec.stores.referenceformat import CONSOLIDATED, Part, References, Row
from nczarr_fsspec.stores.references import PIECE, LocalReferences, RemoteReferences
from nczarr_fsspec.transport.policy import most_connections
from nczarr_fsspec.transport.request import FASTEST, Extent, tells_bandwidth
from nczarr_fsspec.transport.shared import background_loop
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import are_references, open_keys
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.cfa.decode import find
from nczarr_xarray.formats.cfa.dialect import is_master
from nczarr_xarray.formats.registry import EVERYTHING, OpenOptions, Source, read_hierarchy
from nczarr_xarray.formats.rounds import Parsing, Read, caught
from nczarr_xarray.formats.rounds import together as in_rounds
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import Array, ChunkTable, Variable
from nczarr_xarray.tools.predict.network import Network, Request, Round, together
from nczarr_xarray.tools.survey import VariableStorage, has_chunks, sizes_of

T = TypeVar("T")
Key: TypeAlias = tuple[int | slice, ...]
#: A variable, and what is read of it; None is all.
Wanted: TypeAlias = tuple[Variable, Key | None]
#: The chunks of an array that are fetched, window by window.
Chunks: TypeAlias = tuple[Array, list[ChunkTable]]

#: Extents that a request names where the server is not known: most servers of HTTP take several.
_RANGES = 100
#: What a list of names takes.
_LISTING = 1 << 10


class Counted(ABC):
    """A dataset that is opened anew over a network, and counts what it is asked for.

    Attributes
    ----------
    rounds : list of Round
        What it was asked for; they wait for each other.
    opened : Opened
        The dataset, of whose chunks nothing has been located.
    """

    opened: Opened

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def variable(self, path: str) -> Variable:
        """Return a variable."""
        group, _, name = path.rpartition("/")
        holder = self.opened.hierarchy.root.find(group)
        assert holder is not None
        return holder.variables[name]

    def fetch(self, wanted: Sequence[Wanted], *, quiet: bool = False) -> None:
        """Count what selections of some variables ask for, at the same time.

        Parameters
        ----------
        quiet
            Whether those that cannot be read ask for nothing.

        Raises
        ------
        NCZarrError
            If one of them cannot be read, or what it asks for cannot be told.
        """
        store = self.opened.store
        found = self._locate([VariableReader(store, one).located(key) for one, key in wanted])
        chunks: list[Chunks] = []
        for (variable, _), tables in zip(wanted, found, strict=True):
            if not isinstance(tables, NCZarrError):
                assert variable.array is not None
                chunks.append((variable.array, tables))
            elif not quiet:
                raise tables
        self._ask(chunks)

    def rounds_of(self, path: str, key: Key) -> list[Round]:
        """Return what a selection of a variable asks for; errors as of `fetch`."""
        begin = len(self.rounds)
        self.fetch([(self.variable(path), key)])
        return self.rounds[begin:]

    def fetch_coordinates(self) -> None:
        """Count what xarray reads to open the dataset: coordinates that become indexes."""
        variables = self.opened.hierarchy.root.variables.items()
        own = [v for name, v in variables if [dim.name for dim in v.dimensions] == [name]]
        self.fetch([(variable, None) for variable in own if has_chunks(variable)], quiet=True)

    def _locate(
        self, locating: Iterable[Parsing[list[ChunkTable]]]
    ) -> list[list[ChunkTable] | NCZarrError]:
        """Locate chunks, at the same time."""
        return [at_once(caught(one)) for one in locating]

    @abstractmethod
    def _ask(self, chunks: Sequence[Chunks]) -> None:
        """Add the rounds that bring some chunks."""


# -- files ---------------------------------------------------------------------------------------


class CountedFile(Counted, DataFile):
    """One file.

    Parameters
    ----------
    file
        The real one, whose bytes parsers get.
    ranges
        Extents that one request may name; None for what the real file's server takes.
    """

    def __init__(
        self,
        file: DataFile,
        network: Network,
        options: OpenOptions = EVERYTHING,
        *,
        ranges: int | None = None,
    ) -> None:
        Counted.__init__(self)
        vars(self).update(vars(file))
        self._network = network
        self._limits = limits_of(file.source, network, ranges)
        self._known = SparseBytes()
        self._around = False
        head = min(file.source.size, HEAD_BYTES)
        self._known.add(0, bytes(head))
        self._add([Request(head)])
        seen = Source(self.source.url, self.source)
        hierarchy = self.parse(read_hierarchy(seen, options), around=True)
        self.opened = Opened(self, hierarchy)
        if is_master(hierarchy):
            terms = {v.path: v for one in find(hierarchy) for v in one.terms.values()}
            self.fetch([(variable, None) for variable in terms.values()], quiet=True)

    def parse(self, parsing: Parsing[T], *, around: bool = False) -> T:
        self._around = around
        return super().parse(parsing, around=around)

    def _locate(
        self, locating: Iterable[Parsing[list[ChunkTable]]]
    ) -> list[list[ChunkTable] | NCZarrError]:
        return self.parse(in_rounds(map(caught, locating)))

    def _ask(self, chunks: Sequence[Chunks]) -> None:
        for tables in zip_longest(*(tables for _, tables in chunks)):
            there = [one for one in tables if one is not None and one.source is None]
            starts = np.concatenate([one.start for one in there] or [np.empty(0, np.int64)])
            stops = starts + np.concatenate([one.size for one in there] or [starts])
            left = ~self._known.covers(starts, stops)
            self._plan(starts[left], stops[left])

    def _read_round_local(
        self, source: LocalBytes, reads: Sequence[Read]
    ) -> list[memoryview | NCZarrError]:
        self._count(reads)
        return super()._read_round_local(source, reads)

    async def _read_round(
        self, ranges: RangeReader, reads: Sequence[Read], around: bool
    ) -> list[memoryview | NCZarrError]:
        self._count(reads)
        return await super()._read_round(ranges, reads, around)

    def _count(self, reads: Sequence[Read]) -> None:
        """Add what a read round of a parser asks for, as `RangeReader.read_metadata` does."""
        known, limits = self._known, self._limits
        wanted = [one for one in map(self.extent_of, reads) if isinstance(one, Extent)]
        fresh = widened(known.missing(wanted), self.source.size, limits, around=self._around)
        fresh = known.missing(fresh)
        if not fresh:
            return
        bounds = np.asarray(fresh, dtype=np.int64)
        plan = self._plan(bounds[:, 0], bounds[:, 1])
        for start, stop in zip(plan.starts.tolist(), plan.stops.tolist(), strict=True):
            known.add(start, bytes(stop - start))

    def _plan(self, starts: np.ndarray, stops: np.ndarray) -> Requests:
        """Add the requests for pieces of the file."""
        connections = max(1, *map(len, self.rounds))
        plan = plan_requests(starts, stops, self._limits, connections)
        self._add(requests_of(plan))
        return plan

    def _add(self, requests: Sequence[Request]) -> None:
        self.rounds.append(requests)
        if len(requests) == 1:  # which tells how fast a connection is
            nbytes, rate = requests[0].nbytes, min(self._network.rate, FASTEST)
            if tells_bandwidth(nbytes, nbytes / rate):
                self._limits = replace(self._limits, bandwidth=rate)


def limits_of(source: ByteSource | None, network: Network, ranges: int | None = None) -> Limits:
    """Return what is known at first of the way to a file, if it is on a server."""
    if ranges is None:
        ranges = source.limits.ranges if isinstance(source, RemoteBytes) else _RANGES
    return Limits(most_connections(), ranges, network.latency)


def requests_of(plan: Requests) -> list[Request]:
    """Return what the requests of a plan bring."""
    if not len(plan):
        return []
    sizes = np.add.reduceat(plan.stops - plan.starts, plan.first[:-1]).tolist()
    return list(map(Request, sizes, np.diff(plan.first).tolist()))


# -- trees ---------------------------------------------------------------------------------------


class CountedStore(RemoteStore):
    """A store as it would be behind a network: counts what is asked of it.

    Parameters
    ----------
    store
        The real one, which answers.
    rounds
        To which those are added that begin by `run`.
    """

    def __init__(self, store: KeyStore, rounds: list[Round]) -> None:
        self.store = store
        self.url, self.max_metadata = store.url, store.max_metadata
        self.can_list = not isinstance(store, RemoteStore) or store.can_list
        self.rounds = rounds
        self._round: list[Request] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.store.loop if isinstance(self.store, RemoteStore) else background_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._round = []
        self.rounds.append(self._round)
        return super().run(coroutine)

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        data = await self.store.fetch(key, part, most)
        self._round.append(Request(len(data or b"")))
        return data

    async def list(self, prefix: str) -> frozenset[str] | None:
        if not self.can_list:
            return None
        self._round.append(Request(_LISTING))
        return await self.store.names(prefix)


class CountedTree(Counted):
    """A tree, of which each chunk is an object.

    Parameters
    ----------
    store
        The real one.
    facts
        Of its variables: what chunks are about as long as, where that is not asked.
    """

    def __init__(
        self,
        store: KeyStore,
        facts: Sequence[VariableStorage],
        options: OpenOptions = EVERYTHING,
    ) -> None:
        super().__init__()
        self._store = CountedStore(store, self.rounds)
        self._about = {
            one.array.path: round(one.ratio * one.nbytes / max(1, one.objects)) for one in facts
        }
        self._indexes: dict[str, Future[bytes | None]] = {}
        self.opened = open_keys(self._store, options=options)

    def fetch_coordinates(self) -> None:
        begin = len(self.rounds)
        super().fetch_coordinates()
        if any(self.rounds[begin:]) and self.opened.reading is not None:
            self._store.get_many((ROOT, *STATE_KEYS))  # as `Reading.watch` does meanwhile
            self.rounds[begin:] = together([self.rounds[begin:-1], self.rounds[-1:]], 2)

    def fetch(self, wanted: Sequence[Wanted], *, quiet: bool = False) -> None:
        begin, others = len(self.rounds), []
        reads: list[Sequence[Round]] = []
        for variable, key in wanted:
            if not isinstance(variable.array, ZarrArray):
                others.append((variable, key))
                continue
            from nczarr_xarray.tools.predict.counting_zarr3 import rounds_of_zarr

            try:
                reads.append(rounds_of_zarr(self, variable.array, key))
            except NCZarrError:
                if not quiet:
                    raise
        super().fetch(others, quiet=quiet)
        reads.append(self.rounds[begin:])
        self.rounds[begin:] = together(reads, len(reads))

    def _ask(self, chunks: Sequence[Chunks]) -> None:
        requests: list[Request] = []
        for array, tables in chunks:
            for table in tables:
                assert table.source is not None
                in_parts = table.size.max(initial=-1) >= 0
                keys: list[str] = [] if in_parts else table.source.tolist()
                sizes = table.size.tolist() if in_parts else self.sizes(array.path, keys)
                requests += (Request(size or 0) for size in sizes)
        self.rounds.append(requests)

    def sizes(self, path: str, keys: Sequence[str]) -> list[int | None]:
        """Return how long objects of the array at a path are, None for missing ones."""
        store = self._store.store
        if isinstance(store, DirectoryStore):
            sizes = sizes_of(store, keys)
            return [sizes[key] for key in keys]
        return [self._about.get(path, 0)] * len(keys)

    async def index(self, path: str, key: str, part: slice) -> bytes | None:
        """Return the index of a shard; behind a network, that of another shard of the array."""
        store = self._store.store
        if not isinstance(store, RemoteStore):
            return await store.fetch(key, part)
        if path not in self._indexes:  # (its loop may be this one)
            asking = asyncio.run_coroutine_threadsafe(store.get(key, part), store.loop)
            self._indexes[path] = asking
        return await asyncio.wrap_future(self._indexes[path])


# -- references ----------------------------------------------------------------------------------


class CountedReferences(Counted):
    """References, and the files that they name."""

    def __init__(self, store: LocalReferences | RemoteReferences, network: Network) -> None:
        super().__init__()
        origin = store.origin
        self._folder: References | None = None
        self._files: CountedStore | None = None
        self._read: set[str] = set()
        self._store = store
        source = origin if isinstance(origin, ByteSource) else None
        self._limits = limits_of(source, network)
        if isinstance(origin, ByteSource):
            head = min(origin.size, HEAD_BYTES)
            left = range(head, origin.size, PIECE)
            self.rounds += [Request(head)], [Request(min(PIECE, origin.size - at)) for at in left]
        elif isinstance(origin, KeyStore):
            self._files = files = CountedStore(origin, self.rounds)
            are_references(files)  # as it is found out where they are opened
            self._folder = FolderReferences.parse(files.get_one(CONSOLIDATED) or b"", store.url)
        remote = store.as_remote() if isinstance(store, LocalReferences) else store
        self.opened = open_keys(remote)

    def _ask(self, chunks: Sequence[Chunks]) -> None:
        tables = [table for _, tables in chunks for table in tables]
        keys = [key for table in tables for key in _listed(table.source)]
        starts = [start for table in tables for start in _listed(table.start)]
        sizes = [size for table in tables for size in _listed(table.size)]
        self._read_rows(keys)
        files: dict[str, list[tuple[int, int]]] = {}
        found = self._store.find_many(keys)
        for start, size, part in zip(starts, sizes, found, strict=True):
            if not isinstance(part, Part):
                continue
            if part.stop is None:
                raise FormatError(part.address, "is a chunk as a whole, of unknown length")
            extent = part.start, part.stop
            if size >= 0:
                extent = part.start + start, min(part.stop, part.start + start + size)
            files.setdefault(part.address, []).append(extent)
        requests: list[Request] = []
        for extents in files.values():
            bounds = np.asarray(extents, dtype=np.int64)
            requests += requests_of(plan_requests(bounds[:, 0], bounds[:, 1], self._limits))
        self.rounds.append(requests)

    def _read_rows(self, keys: Sequence[str]) -> None:
        """Add the files of references that say where some chunks are, if there are such."""
        if self._folder is None or self._files is None:
            return
        found = map(self._folder.find, keys)
        rows = {row.file for row in found if isinstance(row, Row)} - self._read
        self._files.get_many(sorted(rows))
        self._read |= rows


def _listed(values: np.ndarray | None) -> list[Any]:
    assert values is not None
    found: list[Any] = values.tolist()
    return found
