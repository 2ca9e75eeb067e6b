"""What stands in on systems that lack a function of Linux: it reads the same."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec import local_files
from nczarr_fsspec.stores import directory
from nczarr_fsspec.stores.directory import birth_of
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


class TestBirth:
    def test_of_a_file(self, tmp_path: Path) -> None:
        """It stays when the file changes; another file has another one, or the system has none."""
        path = tmp_path / "x"
        path.write_bytes(b"1")
        first = birth_of(str(path))
        path.write_bytes(b"22")
        assert birth_of(str(path)) == first
        assert first is None or first <= path.stat().st_mtime_ns + 10**9

    def test_of_nothing(self, tmp_path: Path) -> None:
        assert birth_of(str(tmp_path / "none")) is None

    @pytest.mark.parametrize(
        ("status", "birth"),
        [(SimpleNamespace(st_birthtime=1.5), 1_500_000_000), (SimpleNamespace(), None)],
    )
    def test_on_other_systems(
        self, status: SimpleNamespace, birth: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(directory, "sys", SimpleNamespace(platform="darwin"))
        monkeypatch.setattr(directory, "os", SimpleNamespace(stat=lambda _: status))
        assert birth_of("x") == birth

    def test_with_a_c_library_that_does_not_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
        directory._statx.cache_clear()
        try:
            assert birth_of(str(tmp_path)) is None
        finally:
            directory._statx.cache_clear()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python itself counts there")
@pytest.mark.parametrize(("count", "found"), [(1, 1), (None, 1)])
def test_processors_where_affinity_is_not_known(
    count: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert processors() == found
