"""One process at a time takes over from a writer that has ended."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.changes.recovery import Succession
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.ownership import AT_WORK, Owner

DEAD = replace(Owner.here(), started="before")
#: of another machine: nobody can tell whether it has ended
FAR = replace(Owner.here(), host="far")


def entry(owner: Owner) -> bytes:
    return json.dumps({"owner": owner.document, "work": "w"}).encode()


def line_of(*objects: bytes) -> Succession:
    return Succession(MappingWriter({f"line.{n}": data for n, data in enumerate(objects)}), "line.")


ENTRIES = {entry(DEAD): True, entry(FAR): False, b"released": True, b"damaged": False, b"[]": False}


@settings(deadline=None)
@given(objects=st.lists(st.sampled_from([*ENTRIES]), max_size=5))
def test_the_last_in_the_line_counts(objects: list[bytes]) -> None:
    at_work, number = line_of(*objects).end(DEAD, "first")
    assert number == len(objects)
    assert (at_work is None) == (not objects or ENTRIES[objects[-1]])


def test_a_turn() -> None:
    line = line_of(entry(DEAD))
    before = set(AT_WORK)
    with line.turn(1) as entered:
        assert entered
        at_work, number = line.end(DEAD, "first")
        assert at_work is not None
        assert (at_work.pid, number) == (Owner.here().pid, 2)
    assert before == AT_WORK
    assert line.end(DEAD, "first") == (None, 2)


@pytest.mark.parametrize("number", [-1, 0, 1])
def test_the_next_one_may_enter_after_a_failure(number: int) -> None:
    """Although the process lives on, where others see it."""
    line = line_of(*[entry(DEAD)] * number)
    with pytest.raises(KeyboardInterrupt), line.turn(number, "w"):
        raise KeyboardInterrupt
    AT_WORK.add("w")  # what others see
    assert line.end(Owner.here(), "w") == (None, number + 2)
    AT_WORK.discard("w")


@pytest.mark.parametrize("stored", [False, True])
def test_entering_that_is_interrupted(stored: bool) -> None:
    class Interrupted(MappingWriter):
        calls = 0

        def create(self, key: str, data: Any) -> bool:
            self.calls += 1
            if self.calls > 1:
                return super().create(key, data)
            if stored:
                super().create(key, data)
            raise KeyboardInterrupt

    line = Succession(Interrupted({}), "line.")
    with pytest.raises(KeyboardInterrupt), line.turn(0):
        pytest.fail("it has not entered")
    assert [*line.store.keys_below("")] == (["line.0", "line.1"] if stored else [])
    with line.turn(line.end(DEAD, "first")[1]) as entered:
        assert entered


def test_a_turn_of_another_process_stays() -> None:
    line, ran = line_of(entry(FAR)), []
    with suppress(KeyboardInterrupt), line.turn(0) as entered:
        ran.append(entered)
        raise KeyboardInterrupt
    assert ran == [False]
    assert line.end(DEAD, "first") == (FAR, 1)


def test_one_of_many_enters() -> None:
    line, start, done = line_of(), Barrier(8), Barrier(8)

    def enter(_: int) -> bool:
        start.wait()
        with line.turn(0) as entered:
            done.wait()
            return entered

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(enter, range(8))) == [False] * 7 + [True]


def test_a_service_that_has_something_under_any_key() -> None:
    class Anything(MappingWriter):
        def reader(self) -> Any:
            return SimpleNamespace(get_one=lambda key: b"<html>")

    with pytest.raises(StoreError, match="something for any key"):
        Succession(Anything({}), "line.").end(DEAD, "first")
