"""Fetch data over a simulated network, and make nothing of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.reader import RangeReader, Receive
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_xarray.chunks.plan import plan_outer
from nczarr_xarray.dataset.alike_files import AlikeFiles
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_parts import FragmentGrid, Part
from nczarr_xarray.dataset.fragment_values import needs_names, reading_of
from nczarr_xarray.dataset.fragments import AT_ONCE
from nczarr_xarray.dataset.open_fragments import RemoteVariable, options_for
from nczarr_xarray.dataset.remote_parts import AT_A_TIME
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.rounds import Read
from nczarr_xarray.formats.zarr3.array import ZarrArray
from nczarr_xarray.model import FragmentArray
from nczarr_xarray.tools.doctor.aggregations import Sample, TreeSample
from nczarr_xarray.tools.doctor.fetching_zarr import fetch_zarr
from nczarr_xarray.tools.doctor.patterns import Key
from nczarr_xarray.tools.doctor.simulated import (
    BLANK,
    FRAGMENT,
    STEPS,
    SimulatedFile,
    SimulatedStore,
    SimulatedTransport,
)


class RehearsedFile(DataFile):
    """A file that tells a transport which of its reads are rounds.

    Attributes
    ----------
    opened : bool
        Whether it is open: from then on the bytes of data do not matter.
    """

    def __init__(self, source: RemoteFileBytes) -> None:
        assert isinstance(source, SimulatedFile)
        super().__init__(source)
        self.opened = False
        self._transport = source.transport

    async def read_data(self, starts: np.ndarray, stops: np.ndarray, receive: Receive) -> None:
        blank = BLANK.set(self.opened)
        try:
            await self._transport.step(super().read_data(starts, stops, receive))
        finally:
            BLANK.reset(blank)

    async def _read_round(self, ranges: RangeReader, reads: Sequence[Read], around: bool) -> Any:
        return await self._transport.step(super()._read_round(ranges, reads, around))


async def fetch_fragments(
    transport: SimulatedTransport, array: FragmentArray, key: Key, sample: Sample
) -> None:
    """Open the fragments of a selection, and fetch their parts, as `FragmentReader.read` does.

    Some fragments are under way together, and none of them waits for a step of another. So
    of each so many, only the steps of one count for the transport: of the one that has the most.
    """
    in_trees = isinstance(sample, TreeSample)
    grid, at_a_time = FragmentGrid(array), AT_ONCE if in_trees else AT_A_TIME
    gate, files = asyncio.Semaphore(at_a_time), AlikeFiles(entire=needs_names(array))
    #: of each fragment, in the order in which they are begun
    steps: list[list[tuple[float, float]]] = []

    async def fetch(part: Part) -> None:
        async with gate:
            steps.append([])
            STEPS.set(steps[-1])
            if isinstance(sample, TreeSample):
                await _fetch_of_tree(transport, array, part, sample)
            else:
                await _fetch_of_file(transport, array, part, files, alike=sample.alike)

    plan = plan_outer(key, array.shape, grid.edges)
    await gather_or_cancel(*(fetch(part) for _, part in grid.parts(plan) if part is not None))
    for at in range(0, len(steps), at_a_time):
        longest: list[tuple[float, float]] = max(steps[at : at + at_a_time], key=len)
        transport.steps += longest


async def _fetch_of_file(
    transport: SimulatedTransport,
    array: FragmentArray,
    part: Part,
    files: AlikeFiles,
    *,
    alike: bool,
) -> None:
    """Fetch a part of a file; `alike` if the metadata of one need not be parsed again."""
    address, name, _ = array.fragments.places(part.number)[0]
    source = SimulatedFile(transport, f"{FRAGMENT}{address}", address)
    options = options_for(name, None, entire=needs_names(array))
    remote = RemoteVariable(source, None, options, name, RehearsedFile)
    found = await remote.open(partial(files.pattern, name))
    if found is None:
        raise FormatError(address, "is no file whose parts can be read")
    if alike and not found.alike:
        await files.learn_remote(name, found)
    file = found.reader.store
    assert isinstance(file, RehearsedFile)
    file.opened = True
    reading = reading_of(array, part.number, found.variable)
    await found.reader.fetch_remote(reading.request(part.key, points=False).key)


async def _fetch_of_tree(
    transport: SimulatedTransport, array: FragmentArray, part: Part, sample: TreeSample
) -> None:
    """Fetch a part of a tree that is opened by the same requests as the sample."""
    store = SimulatedStore(transport, array.fragments.places(part.number)[0].address, FRAGMENT)
    for asked in sample.opening:
        gets = (store.get(*one) for one in asked.keys)
        await transport.step(gather_or_cancel(*gets, *map(store.list, asked.prefixes)))
    variable = sample.facts.variable
    key = reading_of(array, part.number, variable).request(part.key, points=False).key
    if isinstance(variable.array, ZarrArray):
        await fetch_zarr(transport, variable.array, key, FRAGMENT)
    else:
        await transport.step(VariableReader(store, variable).fetch_remote(key))
