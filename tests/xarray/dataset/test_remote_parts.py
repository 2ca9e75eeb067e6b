"""Parts in remote files: begun while others are being found, and ended with the first error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import pytest
from fsspec.asyn import get_loop

from nczarr_fsspec.keystore import OnLoop
from nczarr_xarray.dataset import fragments
from nczarr_xarray.dataset.fragment_datasets import Opening, RemoteFragment
from nczarr_xarray.dataset.fragment_parts import Part
from nczarr_xarray.dataset.fragments import read_on_loop
from nczarr_xarray.formats.registry import OpenOptions

if TYPE_CHECKING:
    from nczarr_fsspec.ranges.remote import RemoteFileBytes


class Loop(OnLoop):
    url = "memory"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()


#: A remote file that is never opened.
FILE = RemoteFragment(cast("RemoteFileBytes", Loop()), None, OpenOptions(), "tas")


def part(number: int) -> Part:
    return Part(number, (), [])


def cost(part: Part) -> int:
    return part.number


def found(part: Part) -> RemoteFragment | None:
    """Find the fragments of all parts but the fourth in remote files."""
    return None if part.number == 4 else FILE


def parts(*numbers: int) -> list[Part]:
    return list(map(part, numbers))


def numbers_of(some: Iterable[Part]) -> list[int]:
    return sorted(one.number for one in some)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "BEGUN_TOGETHER", 3)


def test_they_are_begun_before_all_are_found() -> None:
    begun = threading.Event()

    def find(part: Part) -> RemoteFragment:
        assert part.number < 3 or begun.wait(60)
        return FILE

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        begun.set()
        return True

    assert read_on_loop(parts(*range(4)), find, read, list, None, cost) == []


async def read_even(part: Part, found: Opening | RemoteFragment) -> bool:
    return part.number % 2 == 0


def test_what_is_left() -> None:
    left = read_on_loop(parts(*range(10)), found, read_even, list, None, cost)
    assert numbers_of(left) == [1, 3, 4, 5, 7, 9]


def test_some_of_what_is_left_is_read_with_others() -> None:
    together: list[list[int]] = []

    def read_others(some: list[Part]) -> list[Part]:
        together.append([part.number for part in some])
        return [part for part in some if part.number > 5]

    left = read_on_loop(parts(*range(10)), found, read_even, read_others, None, cost)
    assert numbers_of(left) == [4, 7, 9]
    assert sorted(together) == [[1], [3, 5], [7], [9]]


def test_no_part_at_all() -> None:
    assert read_on_loop([], found, read_even, list, None, cost) == []


def test_an_error_ends_the_others() -> None:
    ended = threading.Event()

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        if part.number == 1:
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        finally:
            if part.number == 0:
                ended.set()
        return True

    with pytest.raises(ZeroDivisionError):
        read_on_loop(parts(*range(9)), found, read, list, None, cost)
    assert ended.wait(60)


def test_no_more_than_so_many_bytes_at_a_time() -> None:
    now, most = 0, 0

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        nonlocal now, most
        now += part.number
        most = max(most, now)
        await asyncio.sleep(0)
        now -= part.number
        return True

    assert read_on_loop(parts(1, 2, 3, 5, 6, 9, 1, 5, 2), found, read, list, 7, cost) == []
    assert most == 9  # what is more by itself is read alone


def test_no_more_than_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "AT_A_TIME", 2)
    now, most = 0, 0

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return True

    read_on_loop(parts(*range(9)), found, read, list, None, cost)
    assert most == 2
