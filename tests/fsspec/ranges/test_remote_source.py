"""A file by any transport: what comes is checked once more, whichever transport it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges import index_memory, reader
from nczarr_fsspec.ranges.index_memory import SparseBytes
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import HEAD_BYTES, Limits
from nczarr_fsspec.transport.request import Answer, Extent, FileVersion, Request
from tests.support.servers.virtualnet import VirtualBytes, run

DATA = bytes(range(256)) * 2000
ONE, OTHER = FileVersion('"1"', size=len(DATA)), FileVersion('"2"', size=len(DATA))


class Transport:
    """Answers with these parts and versions, one after the other."""

    noun, ranges = "file", 1

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    async def fetch(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def source_of(*answers: Answer) -> tuple[Transport, RemoteFileBytes]:
    transport = Transport(*answers)
    return transport, RemoteFileBytes(cast("Any", transport), "x", "x", 0).unasked()


def test_the_first_answer_tells_the_version() -> None:
    transport, source = source_of(Answer([DATA[:5]], ONE), Answer([DATA[5:9]], ONE))

    async def main() -> list[Any]:
        return [await source.fetch([Extent(0, 5)]), await source.fetch([Extent(5, 9)])]

    assert asyncio.run(main()) == [[DATA[:5]], [DATA[5:9]]]
    assert [request.version for request in transport.requests] == [None, ONE]
    assert (source.size, source.validator) == (len(DATA), '"1"')


def test_answers_to_what_was_asked_at_once_are_of_one_version() -> None:
    """None of the requests could name it."""
    _, source = source_of(Answer([DATA[:5]], ONE), Answer([DATA[5:9]], OTHER))
    with pytest.raises(StoreError, match='its tag was "1" and is "2"'):
        asyncio.run(source.fetch([Extent(0, 5), Extent(5, 9)]))


def test_a_part_that_is_too_short() -> None:
    _, source = source_of(Answer([DATA[:4]], ONE))
    with pytest.raises(StoreError, match="4 bytes came of 0-4"):
        asyncio.run(source.fetch([Extent(0, 5)]))


@pytest.mark.parametrize("begin", [DATA[:5], DATA[: HEAD_BYTES - 1], DATA[:HEAD_BYTES]])
def test_a_first_answer_that_is_cut_is_not_kept(begin: bytes) -> None:
    _, source = source_of(Answer([begin], ONE))
    asyncio.run(source.begin(None))
    assert source.size == len(DATA)
    assert source.head == (begin if len(begin) == HEAD_BYTES else b"")


class Short(VirtualBytes):
    """Sends one byte too few."""

    async def fetch(self, extents: Sequence[Extent]) -> list[Any]:
        return [data[:-1] for data in await super().fetch(extents)]


async def read(source: VirtualBytes, start: int, stop: int) -> None:
    async def receive(numbers: Any, pieces: Any) -> None:
        raise AssertionError("nothing may come")

    await RangeReader(source).read_data(np.array([start]), np.array([stop]), receive)


@pytest.mark.parametrize("nbytes", [100, 200_000])
def test_a_reader_hands_over_nothing_that_is_short(nbytes: int) -> None:
    with pytest.raises(StoreError, match="an answer is not as long as what was asked for"):
        run(read(Short(DATA, Limits(), head=0), 1000, 1000 + nbytes))


@pytest.mark.parametrize("part", [(0, len(DATA) + 1), (-1, 5), (5, 4)])
def test_parts_that_are_not_in_the_file(part: tuple[int, int]) -> None:
    source = VirtualBytes(DATA, Limits(), head=0)
    with pytest.raises(StoreError, match="are not in the file"):
        run(read(source, *part))
    assert not source.requests


def test_data_that_nobody_takes_are_not_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is asked for only as `receive` ends."""
    most, piece = 1 << 21, 1 << 18
    monkeypatch.setattr(reader, "HELD_BYTES", most)
    source = VirtualBytes(64 * piece, Limits(), head=0)
    taken = 0
    held: list[int] = []

    async def receive(numbers: Any, pieces: Any) -> None:
        nonlocal taken
        await asyncio.sleep(100)  # virtual
        held.append(source.moved - taken)
        taken += sum(map(len, pieces))

    starts = np.arange(64) * piece
    run(RangeReader(source).read_data(starts, starts + piece, receive))
    assert taken == source.moved == 64 * piece
    assert max(held) <= 2 * most


def test_another_loop_begins_anew() -> None:
    """After a fork, what the old one was about may be half done."""
    source = VirtualBytes(DATA, Limits(), head=0)
    shared = RangeReader(source)

    async def metadata() -> list[memoryview]:
        return await shared.read_metadata([Extent(1000, 1100)])

    for number in (1, 2):
        found, _ = run(metadata())
        assert found == [DATA[1000:1100]]
        assert len(source.requests) == number


def test_bytes_that_were_kept_and_damaged() -> None:
    known = SparseBytes()
    known.add(5, b"abc")
    kept = known.dump()
    assert SparseBytes.load(kept).get(5, 8) == b"abc"
    for at in range(len(kept)):
        with pytest.raises(ValueError, match="index"):
            SparseBytes.load(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])


def test_an_index_of_another_file_is_not_used(tmp_path: Path) -> None:
    """As where names differ in case, and the filesystem has it for one."""
    remembered = SparseBytes()
    remembered.add(0, b"abc")
    header = json.dumps({"identity": "a", "url": "x", "size": 9, "validator": "1"}).encode()
    data = header + b"\n" + remembered.dump()
    for name in "ab":
        (tmp_path / f"{name}.index").write_bytes(index_memory._digest(data) + data)
    index = index_memory.IndexMemory()
    assert index.known("a", tmp_path) == (9, "1")
    assert index.known("b", tmp_path) is None
