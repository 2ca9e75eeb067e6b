"""A large chunk of plain elements, which threads read together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.local_files import read_into
from nczarr_xarray.chunks import sources
from nczarr_xarray.chunks.threads import share

VALUES = np.arange((1 << 22) + 999, dtype="<i4").reshape(1, -1)


def _write(folder: Path, fill: int | None = None) -> Path:
    """Write one chunk; none if everything is `fill`."""
    array = zarr.create_array(
        folder / "v",
        shape=VALUES.shape,
        chunks=VALUES.shape,
        dtype="<i4",
        compressors=None,
        zarr_format=2,
        fill_value=fill,
        attributes={"_ARRAY_DIMENSIONS": ["y", "x"]},
    )
    if fill is None:
        array[...] = VALUES
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    return folder


def _read(path: Path) -> np.ndarray:
    with xr.open_dataset(path, engine="nczarr", cache=False, mask_and_scale=False) as ds:
        return ds["v"].to_numpy()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the sizes of what is read together."""
    found: list[int] = []

    def spy(descriptor: int, start: int, room: memoryview) -> int:
        found.append(len(room))
        return read_into(descriptor, start, room)

    monkeypatch.setattr(sources, "read_into", spy)
    return found


def test_a_large_chunk_is_read_in_parts(tmp_path: Path, parts: list[int]) -> None:
    np.testing.assert_array_equal(_read(_write(tmp_path / "x.zarr")), VALUES)
    assert sum(parts) == VALUES.nbytes
    assert max(parts) == 1 << 21


def test_a_large_chunk_that_is_not_stored(tmp_path: Path, parts: list[int]) -> None:
    assert (_read(_write(tmp_path / "x.zarr", fill=7)) == 7).all()
    assert parts == []


@pytest.mark.parametrize("size", [0, VALUES.nbytes - 1, VALUES.nbytes + 1])
def test_a_large_chunk_of_another_size_is_named(
    tmp_path: Path, size: int, parts: list[int]
) -> None:
    (chunk,) = _write(tmp_path / "x.zarr").glob("v/0*")
    with open(chunk, "r+b") as file:
        file.truncate(size)
    with pytest.raises(NCZarrError, match=r"v/0\.0: .*bytes"):
        _read(tmp_path / "x.zarr")
    assert parts == []


@pytest.mark.parametrize("failure", ["error", "short"])
def test_what_cannot_be_read_in_parts_is_read_at_once(
    tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int, start: int, room: memoryview) -> int:
        if failure == "error":
            raise OSError
        room[:] = bytes(len(room))  # the memory may have had the right values
        return len(room) - (start > 0)

    path = _write(tmp_path / "x.zarr")
    monkeypatch.setattr(sources, "read_into", fail)
    np.testing.assert_array_equal(_read(path), VALUES)


def test_parts_are_shared_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def spy(function: Any, items: Any, nbytes: int) -> None:
        asked.append((len(items), nbytes))
        share(function, items, nbytes)

    monkeypatch.setattr(sources, "share", spy)
    np.testing.assert_array_equal(_read(_write(tmp_path / "x.zarr")), VALUES)
    assert asked == [(9, 1 << 21)]
