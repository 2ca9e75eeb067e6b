"""What is read of the directory trees of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nczarr_fsspec.stores.directory import DirectoryStore


def tree_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Note the key of each `DirectoryStore.get` from now on, and how many bytes it gave."""
    noted: list[tuple[str, int]] = []
    get: Callable[..., bytes | None] = DirectoryStore.get

    def noting(self: DirectoryStore, key: str, *how: Any, **more: Any) -> bytes | None:
        data = get(self, key, *how, **more)
        noted.append((key, len(data or b"")))
        return data

    monkeypatch.setattr(DirectoryStore, "get", noting)
    return noted
