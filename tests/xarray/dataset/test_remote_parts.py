"""Parts in remote files: begun while others are being found, and ended with the first error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from fsspec.asyn import get_loop

from nczarr_fsspec.keystore import OnLoop
from nczarr_xarray.dataset import remote_parts
from nczarr_xarray.dataset.fragment_opener import Opening, RemoteFragment
from nczarr_xarray.dataset.fragment_parts import Part
from nczarr_xarray.dataset.remote_parts import RemoteParts
from nczarr_xarray.formats.alike import MetadataPattern


class Loop(OnLoop):
    url = "memory"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()


class File:
    """A remote file that is never opened."""

    source = Loop()

    def beside(self, name: str) -> RemoteFragment | None:
        raise AssertionError

    async def open(self, pattern: Callable[[], MetadataPattern | None]) -> Opening | None:
        raise AssertionError


def part(number: int) -> Part:
    return Part(number, (), (), ())


def cost(part: Part) -> int:
    return part.number


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_parts, "BEGUN_TOGETHER", 3)


def test_they_are_begun_before_all_are_found() -> None:
    begun = threading.Event()

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        begun.set()
        return True

    with RemoteParts(read, list, None, cost) as remote:
        for number in range(3):
            remote.add(part(number), File())
        assert begun.wait(60)
        assert remote.left() == []


def test_what_is_left() -> None:
    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        return part.number % 2 == 0

    with RemoteParts(read, list, None, cost) as remote:
        for number in range(10):
            remote.add(part(number), None if number == 4 else File())
        assert sorted(one.number for one in remote.left()) == [1, 3, 4, 5, 7, 9]


def test_some_of_what_is_left_is_read_with_others() -> None:
    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        return part.number % 2 == 0

    together: list[list[int]] = []

    def read_others(parts: list[Part]) -> list[Part]:
        together.append([part.number for part in parts])
        return [part for part in parts if part.number > 5]

    with RemoteParts(read, read_others, None, cost) as remote:
        for number in range(10):
            remote.add(part(number), None if number == 4 else File())
        assert sorted(one.number for one in remote.left()) == [4, 7, 9]
    assert sorted(together) == [[1], [3, 5], [7, 9]]


def test_no_part_at_all() -> None:
    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        return True

    with RemoteParts(read, list, None, cost) as remote:
        assert remote.left() == []


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

    with RemoteParts(read, list, None, cost) as remote:
        for number in range(9):
            remote.add(part(number), File())
        with pytest.raises(ZeroDivisionError):
            remote.left()
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

    with RemoteParts(read, list, 7, cost) as remote:
        for number in (1, 2, 3, 4, 6, 9, 1, 5, 2):
            remote.add(part(number), File())
        assert remote.left() == []
    assert most == 9  # what is more by itself is read alone


def test_no_more_than_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_parts, "AT_A_TIME", 2)
    now, most = 0, 0

    async def read(part: Part, found: Opening | RemoteFragment) -> bool:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return True

    with RemoteParts(read, list, None, cost) as remote:
        for number in range(9):
            remote.add(part(number), File())
        remote.left()
    assert most == 2
