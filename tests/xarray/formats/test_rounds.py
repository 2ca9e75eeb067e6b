"""Coroutines that wait for bytes together, and the rounds in which they are answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.formats.rounds import Once, Parsing, both, caught, read, together
from tests.support.builders.h5drive import drive

DATA = bytes(range(256))


async def byte(at: int, rounds: int = 1) -> int:
    """The number at `at`, after so many dependent reads."""
    for _ in range(rounds):
        at = (await read(at, 1))[0]
    return at


async def wrong(rounds: int = 0) -> int:
    await byte(7, rounds)
    raise FormatError("x", f"after {rounds}")


Tree = Any  # an integer: how many rounds a leaf takes; or a list of trees


async def sum_of(tree: Tree) -> int:
    if isinstance(tree, int):
        return await byte(1, tree)
    return sum(await together(sum_of(one) for one in tree))


def leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else [leaf for one in tree for leaf in leaves(one)]


@given(st.recursive(st.integers(0, 4), lambda below: st.lists(below, max_size=4), max_leaves=30))
def test_as_many_rounds_as_the_longest_part_takes(tree: Tree) -> None:
    found = drive(sum_of(tree), DATA)
    listed = leaves(tree)
    assert found.result == len(listed)
    assert found.rounds == max(listed, default=0)
    assert len(found.flat) == sum(listed)


def test_results_are_in_order() -> None:
    found = drive(together(byte(i, i % 3) for i in range(20)), DATA)
    assert found.result == list(range(20))
    # the reads of a round, too
    assert found.reads[0] == [(i, 1) for i in range(20) if i % 3]


def test_both() -> None:
    async def text() -> str:
        return str(await byte(3))

    assert drive(both(byte(2, 2), text()), DATA).result == (2, "3")


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_the_first_error_ends_the_others(rounds: int) -> None:
    ended = []

    async def endless() -> int:
        try:
            while True:
                await together([byte(1), byte(2)])
        finally:
            ended.append(True)

    async def parse() -> list[int]:
        return await together([endless(), wrong(rounds), endless()])

    with pytest.raises(FormatError, match=f"after {rounds}"):
        drive(parse(), DATA)
    # the last one has not begun if the error came at once
    assert len(ended) == (2 if rounds else 1)
    assert isinstance(drive(caught(parse()), DATA).result, FormatError)


def test_whoever_waits_for_bytes_that_are_not_there_is_told() -> None:
    async def parse() -> tuple[Any, int]:
        return await both(caught(byte(999)), byte(5))

    error, number = drive(parse(), DATA).result
    assert isinstance(error, FormatError)
    assert number == 5


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_once(rounds: int) -> None:
    begun = []

    async def part() -> int:
        begun.append(True)
        return await byte(9, rounds)

    async def parse() -> list[int]:
        once = Once(part)

        async def later(after: int) -> int:
            await byte(1, after)
            return await once.get()

        return await together(later(i % 5) for i in range(50))

    found = drive(parse(), DATA)
    assert found.result == [9] * 50
    assert len(begun) == 1
    assert found.rounds == max(rounds, 4)


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_error_is_raised_for_all_that_wait_for_it(rounds: int) -> None:
    async def parse() -> list[int | Any]:
        once = Once(lambda: wrong(rounds))
        parts: list[Parsing[Any]] = [caught(once.get()) for _ in range(5)]
        return await together(parts)

    assert all(isinstance(one, FormatError) for one in drive(parse(), DATA).result)


def test_once_goes_on_when_the_first_that_waits_is_ended() -> None:
    async def parse() -> Any:
        once = Once(lambda: byte(9, 3))

        async def one() -> Any:
            return await caught(_int(together([once.get(), wrong(1)])))

        return await both(one(), once.get())

    error, number = drive(parse(), DATA).result
    assert isinstance(error, FormatError)
    assert number == 9


async def _int(part: Parsing[list[int]]) -> int:
    return sum(await part)
