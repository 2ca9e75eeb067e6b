"""Parts of one file that are wanted in one turn: together, and each with an error of its own."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import Batches
from nczarr_fsspec.ranges.source import Limits
from nczarr_fsspec.transport.request import END
from tests.support.servers.virtualnet import VirtualBytes, run

FILE = random.Random(0).randbytes(300_000)
PARTS = [(start, start + 100) for start in range(0, 300_000, 30_000)]


async def broken(number: int) -> None:
    raise StoreError("memory://file", "the line is cut")


async def read_all(batches: Batches) -> list[Any]:
    return await asyncio.gather(*(batches.read(*part) for part in PARTS), return_exceptions=True)


def test_parts_of_one_turn_are_asked_for_together() -> None:
    source = VirtualBytes(FILE, Limits(ranges=10), head=0)
    found, _ = run(read_all(Batches(source)))
    assert found == [FILE[start:stop] for start, stop in PARTS]
    assert len(source.requests) == 1


def test_every_part_hears_of_an_error() -> None:
    source = VirtualBytes(FILE, Limits(ranges=10), head=0, fault=broken)
    found, _ = run(read_all(Batches(source)))
    assert [str(error) for error in found] == ["memory://file: the line is cut"] * len(PARTS)
    assert len({*map(id, found)}) == len(PARTS)  # each has its own, with the way that it took


def test_where_the_size_is_not_known_the_first_part_tells_why() -> None:
    """If it fails, too, the file cannot be read; the others are not tried."""
    source = VirtualBytes(FILE, Limits(ranges=10), head=0, fault=broken)
    source.size = END
    found, _ = run(read_all(Batches(source)))
    assert [str(error) for error in found] == ["memory://file: the line is cut"] * len(PARTS)
    assert len(source.requests) <= 2


def test_an_error_that_nobody_expects_ends_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(VirtualBytes(FILE, head=0))

    async def lacks_memory(_: RangeReader, starts: Any, stops: Any, receive: Any) -> None:
        await receive(np.array([0]), [memoryview(FILE)[:100]])
        raise MemoryError

    monkeypatch.setattr(RangeReader, "read_data", lacks_memory)
    found, _ = run(read_all(batches))
    assert found[0] == FILE[:100]  # what has come is there
    assert [type(one) for one in found[1:]] == [MemoryError] * (len(PARTS) - 1)


@pytest.mark.parametrize("given_up", [[3], range(len(PARTS))])
def test_who_gives_up_leaves_the_others_alone(given_up: Any) -> None:
    source = VirtualBytes(FILE, Limits(ranges=10), head=0)

    async def main() -> list[Any]:
        batches = Batches(source)
        reads = [asyncio.ensure_future(batches.read(*part)) for part in PARTS]
        await asyncio.sleep(0.001)
        for number in given_up:
            reads[number].cancel()
        found = await asyncio.gather(*reads, return_exceptions=True)
        await asyncio.sleep(1)  # virtual: for nobody waits any more
        return found

    found, _ = run(main())
    for number, (start, stop) in enumerate(PARTS):
        if number in given_up:
            assert isinstance(found[number], asyncio.CancelledError)
        else:
            assert found[number] == FILE[start:stop]
    assert source.busy == 0
