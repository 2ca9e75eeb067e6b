"""What stands in on systems that lack a function of Linux: it reads the same."""

from __future__ import annotations

import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec import local_files
from nczarr_xarray.chunks.threads import processors

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def windows() -> ModuleType:
    """The module as it is where `os` has neither ``pread`` nor ``preadv``."""
    spec = importlib.util.spec_from_file_location("elsewhere", local_files.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(os, "pread")
        patch.delattr(os, "preadv")
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "data"
    path.write_bytes(DATA)
    return path


class TestWithoutPread:
    @given(start=st.integers(0, len(DATA) + 9), length=st.integers(-5, len(DATA) + 9))
    def test_reads(self, windows: ModuleType, path: Path, start: int, length: int) -> None:
        with path.open("rb", buffering=0) as file:
            wanted = DATA[start : max(start, start + length)]
            assert windows.read_at(file.fileno(), start, start + length) == wanted
            room = bytearray(max(0, length))
            assert windows.read_into(file.fileno(), start, memoryview(room)) == len(wanted)
            assert room[: len(wanted)] == wanted

    def test_threads_do_not_move_the_position_of_others(
        self, windows: ModuleType, path: Path
    ) -> None:
        places = [(at * 37 % 9000, 100 + at % 7) for at in range(400)]
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda one: windows.pread(file.fileno(), one[1], one[0]), places))
        assert found == [DATA[start : start + count] for start, count in places]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself counts there")
@pytest.mark.parametrize(("count", "found"), [(1, 1), (None, 1)])
def test_processors_where_affinity_is_not_known(
    count: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert processors() == found
