"""One question for all that wait."""

from __future__ import annotations

import asyncio

import pytest

from nczarr_fsspec.concurrency import AskedOnce


class Source:
    """Answers with the number of the call, as soon as it is told to."""

    def __init__(self) -> None:
        self.calls = 0
        self.ready = asyncio.Event()
        self.again = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        if number > 1:
            self.again.set()
        await self.ready.wait()
        if self.fails:
            raise ValueError(str(number))
        return number


def test_all_that_wait_get_what_one_asks() -> None:
    async def test() -> None:
        question, source = AskedOnce[int](), Source()
        waiting = [asyncio.ensure_future(question.ask(source)) for _ in range(100)]
        await asyncio.sleep(0)
        source.ready.set()
        assert await asyncio.gather(*waiting) == [1] * 100
        assert await question.ask(source) == 2

    asyncio.run(test())


def test_all_that_wait_get_the_error() -> None:
    async def test() -> None:
        question, source = AskedOnce[int](), Source()
        source.fails = True
        waiting = [asyncio.ensure_future(question.ask(source)) for _ in range(100)]
        await asyncio.sleep(0)
        source.ready.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in found] == ["1"] * 100
        assert source.calls == 1

    asyncio.run(test())


def test_another_asks_if_the_first_is_cancelled() -> None:
    async def test() -> None:
        question, source = AskedOnce[int](), Source()
        waiting = [asyncio.ensure_future(question.ask(source)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[5].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        await source.again.wait()
        source.ready.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [one for one in found if not isinstance(one, asyncio.CancelledError)] == [2] * 8
        assert source.calls == 2

    asyncio.run(test())


def test_a_question_of_another_loop_is_not_waited_for() -> None:
    """As after a fork, in the child."""
    question, kept = AskedOnce[int](), []

    async def begins() -> None:
        asking = question.asking()
        kept.append(asking)  # else it ends here
        asking.__enter__()

    async def asks() -> None:
        source = Source()
        source.ready.set()
        assert await question.told() is None
        assert await question.ask(source) == 1

    asyncio.run(begins())
    asyncio.run(asks())
