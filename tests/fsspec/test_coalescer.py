"""Questions of one turn of an event loop are answered together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nczarr_fsspec.concurrency import Coalescer, Once, Question
from nczarr_fsspec.errors import StoreError

Numbers = list[Question[int, int]]


class Doubler:
    """Doubles numbers, once it is told to; notes what came together."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = []
        self.ready = asyncio.Event()
        self.ended = 0
        self.error: Exception | None = None

    async def __call__(self, questions: Numbers) -> None:
        self.turns.append([question.wish for question in questions])
        try:
            await self.ready.wait()
            for question in questions:
                if self.error and question.wish > 2:
                    raise self.error
                question.settle(question.wish * 2)
        finally:
            self.ended += 1


async def began(count: int, ask: Callable[[int], Awaitable[int]]) -> list[asyncio.Future[int]]:
    """Return that many questions, of which all are sent."""
    waiting: list[asyncio.Future[int]] = [asyncio.ensure_future(ask(n)) for n in range(count)]
    for _ in range(4):
        await asyncio.sleep(0)
    return waiting


class TestMerge:
    def test_one_answer_for_a_turn(self) -> None:
        async def test() -> None:
            doubler = Doubler()
            doubler.ready.set()
            coalescer = Coalescer(doubler)
            assert await asyncio.gather(*map(coalescer.ask, range(5))) == [0, 2, 4, 6, 8]
            assert await coalescer.ask(9) == 18
            assert doubler.turns == [[0, 1, 2, 3, 4], [9]]

        asyncio.run(test())

    def test_who_gives_up_before_the_end_of_the_turn_is_left_out(self) -> None:
        async def test() -> None:
            doubler = Doubler()
            doubler.ready.set()
            coalescer = Coalescer(doubler)
            waiting = [asyncio.ensure_future(coalescer.ask(number)) for number in (7, 8)]
            asyncio.get_running_loop().call_soon(waiting[0].cancel)
            assert await waiting[1] == 16
            assert doubler.turns == [[8]]

        asyncio.run(test())

    def test_each_thread_has_turns_of_its_own(self) -> None:
        turns: list[list[int]] = []

        async def double(questions: Numbers) -> None:
            turns.append([question.wish for question in questions])
            for question in questions:
                question.settle(question.wish * 2)

        coalescer: Coalescer[int, int] = Coalescer(double)

        async def ask() -> None:
            assert await asyncio.gather(*map(coalescer.ask, range(5))) == [0, 2, 4, 6, 8]

        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert turns == [[0, 1, 2, 3, 4]] * 3


class TestShare:
    def test_one_key_is_asked_once_while_it_is_under_way(self) -> None:
        async def test() -> None:
            doubler = Doubler()
            coalescer = Coalescer(doubler)
            waiting = await began(3, lambda number: coalescer.ask(number, "same"))
            waiting += await began(2, lambda number: coalescer.ask(5, "same"))
            doubler.ready.set()
            assert await asyncio.gather(*waiting) == [0] * 5
            assert await coalescer.ask(4, "same") == 8
            assert doubler.turns == [[0], [4]]

        asyncio.run(test())

    def test_afterwards_means_a_question_that_begins_now(self) -> None:
        async def test() -> None:
            doubler = Doubler()
            coalescer = Coalescer(doubler)
            first = await began(1, lambda number: coalescer.ask(1, "same"))
            later = await began(9, lambda number: coalescer.ask(2, "same", after=True))
            assert doubler.turns == [[1]]
            doubler.ready.set()
            assert await asyncio.gather(*first, *later) == [2, *[4] * 9]
            assert doubler.turns == [[1], [2]]

        asyncio.run(test())

    def test_functions(self) -> None:
        async def test() -> None:
            calls: list[str] = []

            async def call() -> int:
                calls.append("")
                await asyncio.sleep(0.01)
                if len(calls) == 2:
                    raise ValueError("two")
                return len(calls)

            once: Once[int] = Once()
            assert await asyncio.gather(*(once.ask(call) for _ in range(9))) == [1] * 9
            found = await asyncio.gather(
                *(once.ask(call) for _ in range(9)), return_exceptions=True
            )
            assert [str(error) for error in found] == ["two"] * 9
            keys = ("a", "b", "a")
            assert await asyncio.gather(*(once.ask(call, key) for key in keys)) == [4, 4, 4]
            assert len(calls) == 4

        asyncio.run(test())


class TestCancel:
    @pytest.mark.parametrize("key", [None, "same"])
    def test_the_others_get_their_answers(self, key: str | None) -> None:
        async def test() -> None:
            doubler = Doubler()
            coalescer = Coalescer(doubler)
            waiting = await began(4, lambda number: coalescer.ask(1, key))
            waiting[0].cancel()
            waiting[2].cancel()
            await asyncio.wait(waiting[:1])
            doubler.ready.set()
            assert [await waiting[1], await waiting[3]] == [2, 2]
            assert waiting[0].cancelled()
            assert waiting[2].cancelled()

        asyncio.run(test())

    @pytest.mark.parametrize("key", [None, "same"])
    def test_nothing_is_left_running_if_all_give_up(self, key: str | None) -> None:
        async def test() -> None:
            doubler = Doubler()
            coalescer = Coalescer(doubler)
            waiting = await began(4, lambda number: coalescer.ask(1, key))
            for one in waiting:
                one.cancel()
            await asyncio.wait(waiting)
            assert all(one.cancelled() for one in waiting)
            assert doubler.ended == 1
            assert asyncio.all_tasks() == {asyncio.current_task()}
            doubler.ready.set()
            assert await coalescer.ask(2, key) == 4  # asked anew

        asyncio.run(test())


class TestErrors:
    def test_all_that_wait_get_one_of_their_own(self) -> None:
        async def test() -> list[Any]:
            doubler = Doubler()
            doubler.ready.set()
            doubler.error = StoreError("x", "is broken")
            doubler.error.__cause__ = KeyError("why")
            reads = map(Coalescer(doubler).ask, range(6))
            return await asyncio.gather(*reads, return_exceptions=True)

        found = asyncio.run(test())
        assert found[:3] == [0, 2, 4]  # what was answered before
        assert [str(error) for error in found[3:]] == ["x: is broken"] * 3
        assert [repr(error.__cause__) for error in found[3:]] == ["KeyError('why')"] * 3
        assert len({*map(id, found[3:])}) == 3

    def test_an_error_of_others_is_passed_on(self) -> None:
        async def test() -> None:
            doubler = Doubler()
            doubler.ready.set()
            doubler.error = MemoryError()
            with pytest.raises(MemoryError):
                await Coalescer(doubler).ask(3)

        asyncio.run(test())


def test_what_another_loop_asks_is_not_waited_for() -> None:
    """As after a fork, in the child."""
    once: Once[int] = Once()

    async def forever() -> int:
        await asyncio.Event().wait()
        return 0

    async def parent() -> None:
        await began(1, lambda number: once.ask(forever))

    async def child() -> None:
        async def answer() -> int:
            return 1

        assert await once.ask(answer) == 1
        assert await once.ask(answer, after=True) == 1

    loop = asyncio.new_event_loop()
    loop.run_until_complete(parent())
    asyncio.run(child())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
