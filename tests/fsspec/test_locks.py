"""Locks are held where they have to be (see `tests.support.locks`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fsspec.implementations.chained import ChainedFileSystem

from nczarr_fsspec.ranges import memory
from nczarr_fsspec.ranges.memory import IndexMemory
from nczarr_fsspec.transport.policy import Timeout
from nczarr_fsspec.transport.shared import SharedFilesystem
from tests.support.locks import LastUsed, is_held


def test_what_is_remembered_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_FILES", 2)
    remembered = IndexMemory()
    files = remembered._files = LastUsed(remembered._lock)
    for name in ("a", "b", "b", "c"):
        source: Any = SimpleNamespace(identity=name, size=1, validator="x")
        remembered.of(source)
    assert list(files) == ["b", "c"]
    assert files.held == [True] * len(files.held)


def test_one_call_at_a_time_of_a_filesystem_that_threads_share() -> None:
    class Cache(ChainedFileSystem):
        protocol: ClassVar[str] = "a-cache"

        def cat_file(self, *_: Any, **__: Any) -> bytes:
            assert shared._lock is not None
            return b"held" if is_held(shared._lock) else b""

    shared = SharedFilesystem(Cache(), Timeout())
    assert shared._call("cat_file", "x") == b"held"
