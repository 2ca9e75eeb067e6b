"""Local files of which more are used at a time than a process may have open."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.ranges import local
from nczarr_fsspec.ranges.local import LocalFileBytes, OpenFileBytes, RegularFileBytes
from tests.support.faults.disks import open_files

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")

MOST = 4


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(local, "MOST_OPEN", MOST)
    paths = [tmp_path / str(number) for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100)
    return paths


def opened(sources: Sequence[RegularFileBytes]) -> list[bool]:
    found = open_files(Path(sources[0].url).parent)
    return [source.url in found for source in sources]


@pytest.mark.parametrize("pickled", [False, True])
def test_those_opened_last_stay_open(paths: list[Path], pickled: bool) -> None:
    sources: list[RegularFileBytes] = [LocalFileBytes(path) for path in paths]
    if pickled:
        sources = pickle.loads(pickle.dumps(sources))
    for _ in range(2):
        for number, source in enumerate(sources):
            assert source.read(10, 12) == bytes([number] * 2)
            assert sum(opened(sources)) <= MOST
    assert opened(sources) == [False] * (20 - MOST) + [True] * MOST


def test_what_is_closed_does_not_count(paths: list[Path]) -> None:
    kept = LocalFileBytes(paths[0])
    for path in paths[1:]:
        LocalFileBytes(path).close()
        LocalFileBytes(path)  # forgotten
    assert opened([kept]) == [True]


def test_descriptors_are_closed(paths: list[Path]) -> None:
    first = LocalFileBytes(paths[0])
    assert os.fspath(paths[0]) in open_files(paths[0].parent)
    others = [LocalFileBytes(path) for path in paths[1 : MOST + 1]]
    assert os.fspath(paths[0]) not in open_files(paths[0].parent)
    assert first.read(0, 1) == b"\0"
    assert opened(others) == [False, True, True, True]


def test_files_that_the_caller_has_opened(paths: list[Path]) -> None:
    files = [path.open("rb") for path in paths]
    sources = [OpenFileBytes(file) for file in files]
    assert [source.read(0, 1) for source in sources] == [bytes([n]) for n in range(20)]
    assert len(open_files(paths[0].parent)) == len(files) + MOST
    for file in files:
        file.close()


def test_a_file_that_is_replaced_meanwhile_is_an_error(paths: list[Path]) -> None:
    sources = [LocalFileBytes(path) for path in paths]
    os.replace(paths[1], paths[0])
    with pytest.raises(StoreError, match="has changed since it was opened"):
        sources[0].read(0, 1)


def test_threads(paths: list[Path]) -> None:
    """Descriptors are closed by other threads than those that read, and numbers used again."""
    sources = [LocalFileBytes(path) for path in paths]
    barrier = threading.Barrier(8)

    def read(thread: int) -> None:
        barrier.wait()
        for step in range(500):
            number = (step * 7 + thread * 3) % 20
            assert sources[number].read(0, 50) == bytes([number]) * 50
            assert sources[number].read_many([1, 90], [3, 92]) == [bytes([number]) * 2] * 2

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert sum(opened(sources)) <= MOST
