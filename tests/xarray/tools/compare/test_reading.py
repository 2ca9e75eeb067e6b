"""Values are read within bounds, each chunk as seldom as they allow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_xarray import compare, open_hierarchy, to_nczarr
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.tools import compare as comparison

VALUES = np.arange(64 * 64, dtype="f8").reshape(64, 64)
DATASET = xr.Dataset(dict.fromkeys("abc", (("x", "y"), VALUES)) | {"s": ((), 1)})


def written(path: Path, chunks: tuple[int, int]) -> str:
    to_nczarr(DATASET, path, encoding={name: {"chunksizes": chunks} for name in "abc"})
    return str(path)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that are read at a time."""
    bound = 8 * 16 * 16
    monkeypatch.setattr(comparison, "READ_BYTES", bound)
    return bound


def test_no_more_is_in_memory_than_the_bound(
    tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    most: list[int] = []
    original = Opened.read_many

    def noted(opened: Opened, wanted: Any) -> Any:
        found = original(opened, wanted)
        most.append(sum(np.asarray(values).nbytes for values in found))
        return found

    monkeypatch.setattr(Opened, "read_many", noted)
    a, b = written(tmp_path / "a", (1, 64)), written(tmp_path / "b", (64, 1))
    found = compare(a, b)
    assert found.equal
    assert found.values == 3 * VALUES.size + 1
    assert bound / 2 < max(most) <= bound


def test_each_chunk_is_read_once_where_grids_allow_that(
    tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[str] = Counter()
    a, b = written(tmp_path / "a", (8, 16)), written(tmp_path / "b", (16, 4))
    with open_hierarchy(a) as one, open_hierarchy(b) as other:
        original = DirectoryStore.get

        def counted(store: DirectoryStore, key: str, *args: Any, **options: Any) -> Any:
            reads[f"{store.url}/{key}"] += 1
            return original(store, key, *args, **options)

        monkeypatch.setattr(DirectoryStore, "get", counted)
        assert compare(one, other, variables=["a"]).equal
    chunks = {key: count for key, count in reads.items() if "/a/a/" in key or "/b/a/" in key}
    chunks = {key: n for key, n in chunks.items() if key.rpartition("/")[2][0].isdigit()}
    assert len(chunks) == 8 * 4 + 4 * 16
    assert set(chunks.values()) == {1}


def test_a_dataset_that_changes_meanwhile_is_trouble(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", (8, 8)), written(tmp_path / "b", (8, 8))
    with open_hierarchy(a) as opened:
        to_nczarr(DATASET.drop_vars("c"), a, mode="w")
        found = compare(opened, b)
    assert found.status == 2
    assert "was changed while it was compared" in str(found)
