"""`nczarr_fsspec.ranges.filesystem`: files of obstore, as fsspec reads them."""

from __future__ import annotations

import pytest

from nczarr_fsspec.ranges.filesystem import ObspecFileSystem

obstore = pytest.importorskip("obstore")
stores = pytest.importorskip("obstore.store")

TEN = b"0123456789"


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, None), (3, None), (-3, None), (2, -2), (4, 4), (6, 4), (10, None), (0, 0)],
)
@pytest.mark.parametrize("data", [TEN, b""], ids=["ten", "empty"])
def test_parts(data: bytes, start: int | None, end: int | None) -> None:
    store = stores.MemoryStore()
    obstore.put(store, "x", data)
    filesystem = ObspecFileSystem(store, "memory://x", id(store))
    assert filesystem.cat_file("x", start=start, end=end) == data[start:end]


def test_no_such_file() -> None:
    store = stores.MemoryStore()
    filesystem = ObspecFileSystem(store, "memory://x", id(store))
    with pytest.raises(FileNotFoundError):
        filesystem.cat_file("x")
