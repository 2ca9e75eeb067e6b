"""Short remote files, of which all came with the first answer: they are read from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.chunks.plan import Plan
from nczarr_xarray.dataset import variable
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.servers.httpserver import Server

VALUES = np.arange(60, dtype="i4").reshape(5, 12)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the arrays that are read as what is far away."""
    memory.clear()
    paths = []
    read_remote = ChunkReader.read_remote

    async def noted(reader: ChunkReader, plan: Plan, *, remember: bool = False) -> np.ndarray:
        paths.append(reader._array.path)
        return await read_remote(reader, plan, remember=remember)

    monkeypatch.setattr(ChunkReader, "read_remote", noted)
    return paths


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", None)
        file.createDimension("x", 12)
        file.createVariable("packed", "i4", ("y", "x"), zlib=True, chunksizes=(2, 5))[:] = VALUES
        file.createVariable("plain", "i4", ("x",))[:] = VALUES[0]
        file.createVariable("text", str, ("x",))[:] = np.array(list("abcdefghijkl"), object)
        file.createVariable("shorter", "i4", ("y", "x"), fill_value=-1)[:3] = VALUES[:3]
    return (tmp_path / "a.nc").read_bytes()


@pytest.fixture
def served(content: bytes) -> Iterator[Server]:
    with Server({"/a.nc": content}, etag='"1"') as server:
        yield server


EXPECTED = {
    "packed": VALUES,
    "plain": VALUES[0],
    "text": np.array(list("abcdefghijkl"), object),
    "shorter": np.concatenate([VALUES[:3], np.full((2, 12), -1, "i4")]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_they_are_read_from_memory(served: Server, far: list[str], name: str) -> None:
    with open_hierarchy(f"{served.url}/a.nc") as opened:
        reader = opened.reader(opened.hierarchy.root.variables[name])
        for key in (None, *((slice(1, 9, 3),) * n for n in [EXPECTED[name].ndim])):
            found = asyncio.run(reader.read_async(key, points=False))
            wanted = EXPECTED[name] if key is None else EXPECTED[name][key]
            np.testing.assert_array_equal(found, wanted, strict=True)
    assert not far
    assert len(served.requests) == 1


def test_what_is_much_is_not(
    served: Server, far: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variable, "_MOST_AT_HAND", 4 * 12)
    with open_hierarchy(f"{served.url}/a.nc") as opened:
        for name in ("packed", "plain"):
            reader = opened.reader(opened.hierarchy.root.variables[name])
            found = asyncio.run(reader.read_async(None, points=False))
            np.testing.assert_array_equal(found, EXPECTED[name], strict=True)
    assert far == ["/packed"]


def test_damage_is_an_error_that_names_the_chunk(content: bytes, far: list[str]) -> None:
    at = content.rindex(b"\x78\x5e") if b"\x78\x5e" in content else content.rindex(b"\x78\x01")
    damaged = content[:at] + b"????" + content[at + 4 :]
    with Server({"/a.nc": damaged}) as server, open_hierarchy(f"{server.url}/a.nc") as opened:
        reader = opened.reader(opened.hierarchy.root.variables["packed"])
        with pytest.raises(FormatError, match=r"/packed chunk"):
            asyncio.run(reader.read_async(None, points=False))
    assert not far
