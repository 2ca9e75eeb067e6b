"""What opening and selections cost on a network: the engine itself, over simulated requests."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.dataset.fragments import with_aggregations
from nczarr_xarray.dataset.open import open_keys, open_with
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.cfa.variables import marked
from nczarr_xarray.formats.open_options import EVERYTHING
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import FragmentArray, Group, Variable
from nczarr_xarray.tools.doctor.aggregations import Sample
from nczarr_xarray.tools.doctor.fetching import RehearsedFile, fetch_fragments
from nczarr_xarray.tools.doctor.fetching_zarr import fetch_zarr
from nczarr_xarray.tools.doctor.network import Network
from nczarr_xarray.tools.doctor.patterns import Key
from nczarr_xarray.tools.doctor.references import ReferencesContent, SimulatedReferences
from nczarr_xarray.tools.doctor.simulated import (
    Content,
    SimulatedFile,
    SimulatedStore,
    SimulatedTransport,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a read takes.

    Parameters
    ----------
    rounds
        Requests, or groups of them, that have to wait for each other.
    requests
        All of them.
    nbytes
        That come.
    seconds
        Until the last byte has come, and is decoded as far as `decoding` says.
    decoding
        Seconds that the processors of this machine take to decode what came.
    """

    rounds: int
    requests: int
    nbytes: int
    seconds: float
    decoding: float = 0.0

    def decoded(self, decoding: float, begun: float) -> Cost:
        """Return the cost with the time of decoding, which begins with the first bytes."""
        return replace(self, decoding=decoding, seconds=max(self.seconds, begun + decoding))


class Rehearsal:
    """One dataset, opened over a simulated network. A context manager.

    Parameters
    ----------
    content
        What the server has.
    url
        How the dataset is called.
    file
        Whether it is one file.

    Attributes
    ----------
    opening : Cost
        Of opening it as xarray does: the metadata, and the coordinates that become indexes.
    """

    def __init__(self, content: Content, network: Network, url: str, *, file: bool) -> None:
        self.transport = SimulatedTransport(content, network)
        try:
            if isinstance(content, ReferencesContent):
                self.opened = open_keys(SimulatedReferences(self.transport, url, content.origin))
            elif file:
                self.opened = self._open_file(url)
            else:
                self.opened = open_keys(SimulatedStore(self.transport, url))
            touched = _touched(self.opened.hierarchy.root)
            reads = [_quietly(self._read(variable, None)) for variable in touched]
            reading = self.opened.reading
            if reads and reading is not None:  # as `Opened.read_many` does
                reads.append(reading.watch())
            self._fetch(reads)
        except BaseException:
            self.transport.close()
            raise
        self.opening = self._cost((0, 0, 0.0))

    def variable(self, path: str) -> Variable:
        """Return a variable, of whose chunks nothing has been looked up yet."""
        group, _, name = path.rpartition("/")
        holder = self.opened.hierarchy.root.find(group)
        assert holder is not None
        return holder.variables[name]

    def selection(self, variable: Variable, key: Key, sample: Sample | None = None) -> Cost:
        """Return the cost of a selection, after all that was read before.

        Parameters
        ----------
        sample
            Of an aggregation, one of its fragments.
        """
        transport = self.transport
        before = transport.requests, transport.nbytes, transport.loop.now
        transport.steps.clear()
        if isinstance(self.opened.store, RehearsedFile):
            self.opened.store.opened = True
        self._fetch([self._read(variable, key, sample)])
        return self._cost(before)

    def _open_file(self, url: str) -> Opened:
        transport = self.transport
        source = SimulatedFile(transport, url, url)
        source.run(source.begin(None))
        file = RehearsedFile(source)
        opened = Opened(file, file.hierarchy(EVERYTHING))
        if next(marked(opened.hierarchy), None) is not None:
            opener = open_with  # which nothing is opened by here
            opened = with_aggregations(opened, EVERYTHING, file.hierarchy, opener, url)
        return opened

    def _read(
        self, variable: Variable, key: Key | None, sample: Sample | None = None
    ) -> Coroutine[Any, Any, None]:
        if isinstance(variable.array, FragmentArray) and key is not None and sample is not None:
            return fetch_fragments(self.transport, variable.array, key, sample)
        if isinstance(variable.array, ZarrArray):
            whole = (slice(None),) * len(variable.array.shape)
            return fetch_zarr(self.transport, variable.array, whole if key is None else key)
        return VariableReader(self.opened.store, variable).fetch_remote(key)

    def _fetch(self, reads: Sequence[Coroutine[Any, Any, None]]) -> None:
        store = self.opened.store
        if isinstance(store, SimulatedStore):
            store.run(gather_or_cancel(*reads))
        else:  # which tell the rounds themselves
            self.transport.loop.run_until_complete(gather_or_cancel(*reads))

    def _cost(self, before: tuple[int, int, float]) -> Cost:
        transport = self.transport
        requests, nbytes, now = before
        seconds = transport.loop.now - now
        return Cost(
            transport.rounds, transport.requests - requests, transport.nbytes - nbytes, seconds
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()


async def _quietly(read: Coroutine[Any, Any, None]) -> None:
    """Await what may fail: a coordinate that cannot be read keeps no dataset from opening."""
    with suppress(NCZarrError):
        await read


def _touched(group: Group) -> list[Variable]:
    """Return what xarray reads to open a group: coordinates that become indexes."""
    return [
        variable
        for name, variable in group.variables.items()
        if [dim.name for dim in variable.dimensions] == [name]
        and variable.error is None
        and variable.array is not None
        and (isinstance(variable.array, ZarrArray) or not variable.array.reads_itself)
    ]
