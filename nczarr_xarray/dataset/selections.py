"""Read selections of many remote variables at the same time, the small ones of a file together.

A read of its own takes an event loop longer than decoding a small chunk does: tasks, read rounds
and futures. So small selections of one file are located in one read round of all, and fetched by
one read of data. What cannot be read so is read by itself, which finds out why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.ranges.planner import by_owner
from nczarr_fsspec.transport.recording import caused_by
from nczarr_xarray.chunks.engine import SmallRead
from nczarr_xarray.dataset.failed_reads import explain
from nczarr_xarray.dataset.file import DataFile, loop_of
from nczarr_xarray.dataset.variable import Selection, in_sequence
from nczarr_xarray.formats.rounds import caught, collection_paused, together

#: Selections that are begun together. Their requests are on the way while the next are begun, ...
_AT_A_TIME = 64
#: after so many turns of the event loop.
_TURNS = 2


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


async def _read_all(
    selections: Sequence[Selection], *, remember: bool
) -> list[np.ndarray | BaseException]:
    """Read selections on their loop; errors stand in the place of values."""
    results: list[np.ndarray | BaseException | None] = [None] * len(selections)

    async def read(number: int) -> None:
        reader, key, points = selections[number]
        try:
            results[number] = await reader.read_remote(key, points=points, remember=remember)
        except Exception as error:  # noqa: BLE001 - raised by whoever wants this selection
            results[number] = error

    async def read_small(file: DataFile, small: Mapping[int, _Small]) -> None:
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

    async with asyncio.TaskGroup() as tasks:
        for at in range(0, len(selections), _AT_A_TIME):
            files: dict[DataFile, dict[int, _Small]] = {}
            for number in range(at, min(at + _AT_A_TIME, len(selections))):
                store = selections[number].reader.store
                small = _begin(selections[number], remember=remember)
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
        for one, values in zip(selections, results, strict=True)
    ]


class _Small(NamedTuple):
    """A small selection of a file, and what makes values of what its read brings."""

    read: SmallRead
    finish: Callable[[np.ndarray], np.ndarray]


def _begin(selection: Selection, *, remember: bool) -> _Small | None:
    """Begin to read a selection with others; None if it is to be read by itself."""
    reader, key, points = selection
    try:
        begun = reader.begin_small(key, points=points, remember=remember)
    except Exception:  # noqa: BLE001 - its own read raises it again
        return None
    return None if begun is None else _Small(*begun)


async def _read_small(file: DataFile, reads: Sequence[SmallRead]) -> None:
    """Locate the chunks of small reads in one read round, and fetch them by one read."""
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
