"""Selections of many variables, read at the same time; of remote files, small ones together.

A read of its own takes an event loop longer than decoding a small chunk does: tasks, read rounds
and futures. So small selections of one file are located in one read round of all, and fetched by
one read of data; several of one variable fetch and decode each chunk once. What cannot be read so
is read by itself, which finds out why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import OnLoop
from nczarr_fsspec.transport.recording import caused_by
from nczarr_xarray.chunks.engine import SmallRead
from nczarr_xarray.chunks.pieces import Index
from nczarr_xarray.dataset.file import DataFile, loop_of
from nczarr_xarray.dataset.variable import (
    SmallSelection,
    VariableReader,
    Wanted,
    explain,
    in_sequence,
)
from nczarr_xarray.formats.rounds import caught, collection_paused, together
from nczarr_xarray.model import FragmentArray

#: Selections that are begun together. Their requests are on the way while the next are begun, ...
_AT_A_TIME = 64
#: after so many turns of the event loop.
_TURNS = 2


class Selection(NamedTuple):
    """What is to be read of a variable; see `VariableReader.read`."""

    reader: VariableReader
    key: tuple[Index, ...] | None
    points: bool


def read_together(
    wanted: Selection, others: Sequence[Selection]
) -> tuple[np.ndarray, list[np.ndarray | BaseException]]:
    """Read a selection and, at the same time, others of remote stores on the same loop.

    Of the others, errors stand in the place of values.

    Raises
    ------
    NCZarrError
        As `VariableReader.read`, of the first.
    """
    remote = loop_of(wanted.reader.store)
    assert remote is not None
    reading = _read_all([wanted, *others], remember=in_sequence())
    with collection_paused():  # what hundreds of variables take stays until all are read
        values, *of_others = remote.run(reading)
    if not isinstance(values, BaseException):
        return values, of_others
    if isinstance(values, (FormatError, StoreError)):
        explain(wanted.reader, values)
    raise values


def read_selections(selections: Sequence[Selection]) -> list[np.ndarray]:
    """Read selections of any datasets: remote ones at the same time, each chunk of a variable once.

    Raises
    ------
    NCZarrError
        Of the first that cannot be read, as `VariableReader.read`.
    """
    results: dict[int, np.ndarray | BaseException] = {}
    remotes: dict[Any, tuple[OnLoop, list[int]]] = {}
    local: list[int] = []
    for number, one in enumerate(selections):
        remote = loop_of(one.reader.store)
        numbers = local if remote is None else remotes.setdefault(remote.loop, (remote, []))[1]
        numbers.append(number)
    for remote, numbers in remotes.values():
        with collection_paused():
            reading = _read_all([selections[n] for n in numbers], remember=False)
            results.update(zip(numbers, remote.run(reading), strict=True))
    # fragments of aggregations may have to be waited for; what is at hand keeps processors busy
    with WaitingThreads(_AT_A_TIME, thread_name_prefix="nczarr-load") as pool:
        waiting: list[tuple[list[int], Future[list[np.ndarray]]]] = []
        for numbers in _by_reader([selections[n] for n in local]):
            own = [local[n] for n in numbers]
            reader = selections[own[0]].reader
            wanted = [(selections[n].key, selections[n].points) for n in own]
            if isinstance(reader.array, FragmentArray):
                waiting.append((own, pool.submit(reader.read_jointly, wanted)))
            else:
                results.update(zip(own, reader.read_jointly(wanted), strict=True))
        for own, future in waiting:
            results.update(zip(own, future.result(), strict=True))
    values = []
    for number, one in enumerate(selections):
        found = results[number]
        if isinstance(found, BaseException):
            if isinstance(found, (FormatError, StoreError)):
                explain(one.reader, found)
            raise found
        values.append(found)
    return values


async def read_remote(reader: VariableReader, wanted: Sequence[Wanted]) -> list[np.ndarray]:
    """Read selections of one variable on its loop; errors are as of `VariableReader.read`."""
    if len(wanted) == 1:
        key, points = wanted[0]
        return [await reader.read_remote(key, points=points)]
    values = []
    for found in await _read_all([Selection(reader, *one) for one in wanted], remember=False):
        if isinstance(found, BaseException):
            raise found
        values.append(found)
    return values


async def _read_all(
    selections: Sequence[Selection], *, remember: bool
) -> list[np.ndarray | BaseException]:
    """Read selections on their loop; errors stand in the place of values."""
    import asyncio

    results: dict[int, np.ndarray | BaseException | None] = dict.fromkeys(range(len(selections)))

    async def read(number: int) -> None:
        reader, key, points = selections[number]
        try:
            results[number] = await reader.read_remote(key, points=points, remember=remember)
        except Exception as error:  # noqa: BLE001 - raised by whoever wants this selection
            results[number] = error

    async def read_small(file: DataFile, small: Mapping[int, SmallSelection]) -> None:
        first = selections[min(small)].reader
        with caused_by(first.path), suppress(Exception):  # what is left is read by itself
            await _read_small(file, [one.read for one in small.values()])
        for number, one in small.items():
            with suppress(Exception):
                values = one.read.values()
                if values is not None:
                    results[number] = one.finish(values)
        for number in small:
            if results[number] is None:
                tasks.create_task(read(number))

    async def read_jointly(numbers: Sequence[int]) -> None:
        wanted = [(selections[n].key, selections[n].points) for n in numbers]
        with suppress(Exception):  # what is left is read by itself
            values = await selections[numbers[0]].reader.read_jointly_remote(wanted)
            results.update(zip(numbers, values, strict=True))
        for number in numbers:
            if results[number] is None:
                tasks.create_task(read(number))

    async with asyncio.TaskGroup() as tasks:
        alone = []
        for numbers in _by_reader(selections):
            if len(numbers) > 1 and await selections[numbers[0]].reader.joins():
                tasks.create_task(read_jointly(numbers))
            else:
                alone += numbers
        for at in range(0, len(alone), _AT_A_TIME):
            files: dict[DataFile, dict[int, SmallSelection]] = {}
            for number in alone[at : at + _AT_A_TIME]:
                reader, key, points = selections[number]
                store, small = reader.store, None
                with suppress(Exception):  # its own read raises it again
                    small = reader.begin_small(key, points=points, remember=remember)
                if small is not None and isinstance(store, DataFile):
                    files.setdefault(store, {})[number] = small
                else:
                    tasks.create_task(read(number))
            for file, begun in files.items():
                tasks.create_task(read_small(file, begun))
            for _ in range(_TURNS):
                await asyncio.sleep(0)
    return [  # of one that something else has cancelled there is nothing
        StoreError(one.reader.path, "reading it was cancelled") if values is None else values
        for one, values in zip(selections, results.values(), strict=True)
    ]


def _by_reader(selections: Sequence[Selection]) -> list[list[int]]:
    """Return the numbers of the selections of each reader."""
    numbers: dict[int, list[int]] = {}
    for number, one in enumerate(selections):
        numbers.setdefault(id(one.reader), []).append(number)
    return [*numbers.values()]


async def _read_small(file: DataFile, reads: Sequence[SmallRead]) -> None:
    """Locate the chunks of small reads in one read round, and fetch them by one read."""
    from nczarr_fsspec.ranges.planner import by_owner  # which only remote files need

    tables = await file.parse_remote(together([caught(one.locating()) for one in reads]))
    located: list[SmallRead] = []
    extents: list[tuple[np.ndarray, np.ndarray]] = []
    for one, table in zip(reads, tables, strict=True):
        with suppress(NCZarrError):
            extent = None if isinstance(table, NCZarrError) else one.located(table)
            if extent is not None:
                located.append(one)
                extents.append(extent)
    if not extents:
        return
    starts, stops = map(np.concatenate, zip(*extents, strict=True))
    first = np.cumsum([0, *(len(starts) for starts, _ in extents)])

    async def receive(numbers: np.ndarray, data: list[memoryview]) -> None:
        for owner, rows in by_owner(first, numbers):
            with suppress(NCZarrError):
                parts = [data[i] for i in rows.tolist()]
                located[owner].scatter(numbers[rows] - first[owner], parts)

    await file.read_data(starts, stops, receive)
