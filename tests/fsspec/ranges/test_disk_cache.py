from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges.whole_files import DiskCache, locked
from tests.support.marks import slow_but


def content(name: str, size: int) -> bytes:
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def filler(name: str, size: int, made: list[str] | None = None) -> Callable[[int], None]:
    def fill(descriptor: int) -> None:
        if made is not None:
            made.append(name)
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(content(name, size)[at : at + 1000] for at in range(0, size, 1000))

    return fill


def read(cache: DiskCache, name: str, size: int, made: list[str] | None = None) -> bytes:
    descriptor = cache.open(name, size, filler(name, size, made))
    try:
        return os.pread(descriptor, size + 1, 0)
    finally:
        os.close(descriptor)


def held(folder: Path) -> int:
    """Bytes of all files, as of one moment."""
    with locked(str(folder / "lock")):
        found = {}
        for entry in os.scandir(folder):
            if entry.name != "lock":
                status = entry.stat()
                found[status.st_ino] = status.st_size
    return sum(found.values())


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.file")}


def test_a_file_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    cache = DiskCache(str(tmp_path / "a" / "b"))
    for _ in range(3):
        assert read(cache, "x", 5000, made) == content("x", 5000)
    assert made == ["x"]
    assert read(cache, "empty", 0) == b""
    assert oct((tmp_path / "a" / "b").stat().st_mode & 0o777) == "0o700"
    assert oct((tmp_path / "a" / "b" / "x.file").stat().st_mode & 0o777) == "0o600"


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its size from the beginning, and after a loss of power zeros would be read."""
    synced, renamed = [], []
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        synced.append(os.pread(descriptor, 5001, 0))
        fsync(descriptor)

    def rename(old: str, new: str) -> None:
        renamed.append(len(synced))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    read(DiskCache(str(tmp_path)), "x", 5000)
    assert synced == [content("x", 5000)]
    assert renamed == [1]


def test_one_of_another_size_is_made_again(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path))
    (tmp_path / "x.file").write_bytes(b"cut")
    assert read(cache, "x", 5000) == content("x", 5000)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 10_000)
    for name in "abc":
        read(cache, name, 3000)
    read(cache, "a", 3000)
    read(cache, "d", 3000)
    assert names(tmp_path) == {"a", "c", "d"}
    read(cache, "e", 9000)
    assert names(tmp_path) == {"e"}
    assert held(tmp_path) <= 10_000


def test_a_file_that_is_open_stays_readable(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 5000)
    descriptor = cache.open("a", 4000, filler("a", 4000))
    read(cache, "b", 4000)
    assert names(tmp_path) == {"b"}
    assert os.pread(descriptor, 4000, 0) == content("a", 4000)
    os.close(descriptor)


def test_without_room_a_file_is_made_and_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 5000)
    (tmp_path / "other.part").write_bytes(bytes(3000))
    assert read(cache, "x", 4000) == content("x", 4000)
    assert names(tmp_path) == set()
    assert held(tmp_path) == 3000


def test_parts_of_the_dead_are_removed(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 5000)
    part = tmp_path / "other.part"
    part.write_bytes(bytes(3000))
    os.utime(part, (time.time() - 100_000,) * 2)
    read(cache, "x", 4000)
    assert names(tmp_path) == {"x"}
    assert not part.exists()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.nc").write_bytes(bytes(9000))
    cache = DiskCache(str(tmp_path), 5000)
    read(cache, "x", 4000)
    read(cache, "y", 4000)
    assert (tmp_path / "mine.nc").exists()
    assert names(tmp_path) == {"y"}


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(descriptor: int) -> None:
        os.write(descriptor, b"abc")
        raise StoreError("https://h.org/x", "has gone")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    cache = DiskCache(str(tmp_path), 5000)
    for size in (4000, 6000):
        with pytest.raises(StoreError, match=r"^https://h\.org/x: has gone"):
            cache.open("x", size, fail)
    with pytest.raises(StoreError, match=r"No space left on device; free some"):
        cache.open("x", 4000, full)
    assert held(tmp_path) == 0
    assert read(cache, "x", 5000) == content("x", 5000)
    blocked = DiskCache(str(tmp_path / "x.file" / "folder"))
    with pytest.raises(StoreError, match="a file cannot be kept there"):
        read(blocked, "y", 1)


@pytest.mark.parametrize("text", [b"", b"%020d" % 9000])
def test_what_the_lock_holds_does_not_count(tmp_path: Path, text: bytes) -> None:
    cache = DiskCache(str(tmp_path), 10_000)
    for name in "abcdefgh":
        (tmp_path / "lock").write_bytes(text)
        read(cache, name, 3000)
        assert held(tmp_path) <= 10_000
    assert "h" in names(tmp_path)


def test_files_that_others_removed(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 10_000)
    for name in "abcdefgh":
        assert read(cache, name, 3000) == content(name, 3000)
        (tmp_path / f"{name}.file").unlink()
    assert held(tmp_path) == 0


def _work(folder: str, cap: int, seed: int) -> str:
    """Use a cache in several threads; return what went wrong."""
    cache = DiskCache(folder, cap)

    def use(thread: int) -> str:
        chosen = random.Random(seed * 100 + thread)
        for step in range(40):
            number = int(chosen.expovariate(0.1)) % 40
            size = 500 + number * 97
            if read(cache, f"n{number}", size) != content(f"n{number}", size):
                return f"wrong bytes of n{number}"
            if step % 8 == 0 and held(Path(folder)) > cap:
                return "too many bytes"
        return ""

    with ThreadPoolExecutor(4) as pool:
        return "".join(pool.map(use, range(4)))


@pytest.mark.parametrize("cap", slow_but([3_000, 12_000, 1_000_000], 12_000))
def test_many_processes_and_threads_use_one_cache(tmp_path: Path, cap: int) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        work = [(str(tmp_path), cap, seed) for seed in range(3)]
        assert pool.starmap(_work, work) == [""] * 3
    assert held(tmp_path) <= cap
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_the_lock_is_held_does_not_keep_it(tmp_path: Path) -> None:
    with locked(str(tmp_path / "lock")):
        child = os.fork()
        if not child:
            try:
                signal.pause()  # until it is killed
            finally:
                os._exit(1)
    try:
        with locked(str(tmp_path / "lock")):
            assert child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
