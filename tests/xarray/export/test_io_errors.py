"""Every single system call of a writer or reader fails: the dataset is old or new, never other."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nczarr_fsspec.errors import NCZarrError, StoreError
from tests.support.faults.killing import SCENARIOS, Target, ours
from tests.support.faults.syscalls import READS, WRITES, watched

pytestmark = [
    pytest.mark.slow,  # an export for each call
    # of a variable whose metadata cannot be read; its values are an error
    pytest.mark.filterwarnings("ignore:variable .* cannot be read"),
]


class Refusal:
    """Lets one call fail, or that and all that follow."""

    def __init__(self, number: int = 0, code: int = errno.EIO, *, lasts: bool = False) -> None:
        self.number = number
        self.code = code
        self.lasts = lasts
        self.calls = 0

    def __call__(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "close":  # the descriptor is gone, whatever it answers
            return
        reads = name == "open" and not args[1] & os.O_CREAT
        if self.code == errno.ENOSPC and (reads or name in ("unlink", "rmdir")):
            return  # which need no room
        self.calls += 1
        if self.number and (self.calls == self.number or (self.lasts and self.calls > self.number)):
            raise OSError(self.code, os.strerror(self.code))


def prepared(scenario: str, name: str, folder: Path) -> Target:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target = Target(str(folder / name))
    before = SCENARIOS[scenario].before
    if before is not None:
        before(target)
    return target


@pytest.mark.parametrize(
    ("scenario", "name", "code", "lasts"),
    [
        *((name, "d", errno.EIO, False) for name in ("new", "smaller", "append")),
        ("unaligned region", "d", errno.EIO, False),
        ("append", "d.zip", errno.EIO, False),
        ("smaller", "d", errno.ENOSPC, True),
        ("unaligned region", "d", errno.ENOSPC, True),
        ("new", "d.zip", errno.ENOSPC, True),
    ],
)
def test_writing(scenario: str, name: str, code: int, lasts: bool, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    change = SCENARIOS[scenario].change
    target = prepared(scenario, name, folder)
    old = ours(target)
    counted = Refusal(code=code)
    with watched(folder, WRITES, counted):
        change(target)
    new = ours(target)
    failures = 0
    for number in range(1, counted.calls + 1):
        target = prepared(scenario, name, folder)
        error = None
        with watched(folder, WRITES, Refusal(number, code, lasts=lasts)):
            try:
                change(target)
            except NCZarrError as found:
                error = found
        seen = ours(target)
        if error is None:
            assert seen == new, number
        else:
            failures += 1
            assert str(folder) in str(error)
            # an error that is met while others are looked for may count as their change
            told = os.strerror(code) in str(error) or "was changed by another writer" in str(error)
            assert told, (number, error)
            assert seen in (old, new), number
        if seen != new:
            change(target)
            assert ours(target) == new, number
    assert failures > counted.calls // 3


def test_reading(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    target = prepared("append", "d", folder)
    whole = ours(target)
    counted = Refusal()
    with watched(folder, READS, counted):
        assert ours(target) == whole
    failures = 0
    for number in range(1, counted.calls + 1):
        for lasts in (False, True):
            with watched(folder, READS, Refusal(number, lasts=lasts)):
                try:
                    assert ours(target) == whole, number
                except StoreError as error:
                    failures += 1
                    assert os.strerror(errno.EIO) in str(error)
                    assert str(folder) in str(error)
    assert failures > counted.calls
