"""A file by any transport: what comes is checked once more, whichever transport it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import HEAD_BYTES, Limits
from nczarr_fsspec.transport.request import Answer, Extent, Request
from nczarr_fsspec.transport.version import FileVersion
from tests.support.virtualnet import VirtualBytes, run

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
    return transport, RemoteFileBytes.unasked(cast("Any", transport), "x", "x", 0)


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
