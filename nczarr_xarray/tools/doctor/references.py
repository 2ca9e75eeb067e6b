"""Kerchunk references behind a simulated network: they themselves, and the files that they name."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.keystore import ALL, KeyStore
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_fsspec.stores.referenceformat import Part
from nczarr_fsspec.stores.references import LocalReferences, Origin, RemoteReferences
from nczarr_fsspec.transport.request import END, Data
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.references import are_references
from nczarr_xarray.tools.doctor.contents import (
    RANGES,
    AggregationContent,
    FileContent,
    TreeContent,
)
from nczarr_xarray.tools.doctor.simulated import (
    FRAGMENT,
    Content,
    SimulatedFile,
    SimulatedStore,
    SimulatedTransport,
)
from nczarr_xarray.tools.finding import Finding
from nczarr_xarray.tools.survey import SAMPLE, VariableStorage, keys_of

T = TypeVar("T")

#: Chunks that are looked at, of one variable.
_MOST = 1 << 14


class _Files(Content):
    """Files of data, which have no end."""

    def size(self, path: str) -> int:
        return 1 << 60

    def read(self, path: str, start: int, stop: int) -> Data:
        return bytes(stop - start)


def of_references(store: KeyStore | DataFile, facts: VariableStorage | None) -> Iterator[Finding]:
    """Say in how many files the chunks of a variable are, if references name them."""
    if facts is None or not isinstance(store, (LocalReferences, RemoteReferences)):
        return
    # each file of a folder behind a network is a request
    few = isinstance(store, RemoteReferences) and isinstance(store.origin, KeyStore)
    keys = keys_of(facts, SAMPLE if few else _MOST)
    found = [part for part in store.find_many(keys) if isinstance(part, Part)]
    files = len({part.address for part in found})
    some = "" if len(keys) == facts.count else f", of {len(keys):,} that were looked at"
    text = f"has {len(found):,} chunks in {files:,} files{some}; each file needs its own requests"
    yield Finding("note", "references", facts.path, text)


class ReferencesContent(AggregationContent):
    """References, and the files that they name.

    Attributes
    ----------
    origin : Origin
        Where the real references are.
    """

    def __init__(self, store: LocalReferences | RemoteReferences) -> None:
        origin = self.origin = store.origin
        files = _Files(RANGES, can_list=False)
        own: Content = files  # those in memory are not asked for
        if isinstance(origin, ByteSource):
            own = FileContent(DataFile(origin))
            files.ranges = own.ranges
        elif isinstance(origin, KeyStore):
            own = TreeContent(origin, (), {})
        super().__init__(own, files)


class SimulatedReferences(RemoteReferences):
    """References behind a `SimulatedTransport`."""

    def __init__(self, transport: SimulatedTransport, url: str, origin: Origin) -> None:
        if isinstance(origin, ByteSource):
            source = SimulatedFile(transport, url, url)
            source.run(source.begin(None))
            origin = source
        elif isinstance(origin, KeyStore):
            origin = _Folder(transport, url)
            are_references(origin)  # as it is found out where it is opened
        super().__init__(origin, _Opener(transport))
        self._transport = transport

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._transport.loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._transport.loop.run_until_complete(coroutine)

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        await self._find(key)  # which may take steps of its own
        return await self._transport.step(super().get(key, part, most))

    async def _ready(self) -> Any:
        return await self._transport.step(super()._ready())


class _Folder(SimulatedStore):
    """A folder of Parquet."""

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return await self.transport.step(super().get(key, part, most))


class _File(SimulatedFile):
    """A file that references name."""

    async def fetch_all(self, most: int | None = None) -> Data:
        raise FormatError(self.url, "is a chunk as a whole, of unknown length")


class _Opener:
    """Opens these."""

    def __init__(self, transport: SimulatedTransport) -> None:
        self._transport = transport

    def open(self, address: str) -> SimulatedFile:
        """Open a file, of which nothing is asked yet."""
        file = _File(self._transport, f"{FRAGMENT}{address}", address)
        file.size = END
        return file
