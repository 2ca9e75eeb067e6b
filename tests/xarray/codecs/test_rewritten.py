"""Objects that netCDF-C rewrote in place, and szip: what only a live oracle shows."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import zlib
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError
from nczarr_xarray.codecs.codec import Size
from nczarr_xarray.codecs.registry import step_of
from nczarr_xarray.model import ChunkedArray

pytestmark = pytest.mark.filterwarnings("ignore:h5py is running against:UserWarning")

PLAIN = bytes(range(200)) * 10
STREAMS = {
    "zlib": zlib.compress(PLAIN),
    "gzip": gzip.compress(PLAIN),
    "bz2": bz2.compress(PLAIN),
    "zstd": bytes(numcodecs.Zstd(3).encode(PLAIN)),
    "zstd checksum": bytes(numcodecs.Zstd(3, checksum=True).encode(PLAIN)),
    "zstd repeated byte": bytes(numcodecs.Zstd(3).encode(bytes(2000))),
    "blosc": bytes(numcodecs.Blosc("lz4", 5, 1).encode(PLAIN)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_follows_a_stream_is_ignored(name: str) -> None:
    array = ChunkedArray("v", (len(PLAIN),), (len(PLAIN),), np.dtype("u1"))
    decode, _ = step_of({"id": name.partition(" ")[0]}, array, Size(len(PLAIN)))
    stored = STREAMS[name]
    expected = bytes(2000) if "repeated" in name else PLAIN
    for rest in (b"", b"x", stored, b"\0" * 50):
        assert bytes(decode(stored + rest)) == expected
    for missing in (1, 5, len(stored) // 2):
        with pytest.raises(Exception, match=r".+"):
            decode(stored[:-missing])


def test_shorter_rewrite_is_read_right(tmp_path: Path) -> None:
    """4.10.1 leaves the end of the old objects behind, and then does not open the dataset."""
    path = tmp_path / "x.file"
    url = f"file://{path}#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as nc:
        nc.title = "a very long title " * 5
        nc.createDimension("x", 10)
        variable = nc.createVariable("v", "i4", ("x",))
        variable.note = "something to be forgotten"
        variable[:] = 1
        nc.sync()
        nc.title = variable.note = "short"
        variable[:] = 5
    with pytest.raises(json.JSONDecodeError, match="Extra data"):
        json.loads((path / ".zattrs").read_text())
    with xr.open_dataset(url, engine="nczarr") as ds:
        assert (ds.title, ds.v.note) == ("short", "short")
        assert (ds.v.values == 5).all()


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((30, 64), (7, 32)),
    ((30, 64), (7, 30)),
    ((5, 9), (5, 9)),
    ((40, 6), (16, 4)),
    ((100,), (33,)),
    ((3, 300), (2, 100)),
    ((6, 5000), (3, 700)),
    ((40, 3), (33, 3)),
    ((4, 5, 70), (2, 3, 33)),
]


@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize("coding", ["ec", "nn"])
@pytest.mark.slow
def test_szip_of_any_shape(tmp_path: Path, kind: str, coding: str) -> None:
    wanted: dict[str, np.ndarray[Any, Any]] = {}
    path = tmp_path / "x.file"
    for number, (pixels, (shape, chunks)) in enumerate(itertools.product((4, 8, 32), SHAPES)):
        if chunks == (33, 3) and pixels == 32 and kind == "u1":
            continue  # netCDF-C refuses to write it
        data = (np.arange(np.prod(shape)) // 3 % 117).astype(kind).reshape(shape)
        url = f"file://{path}{number}#mode=nczarr,file"
        try:
            with netCDF4.Dataset(url, "w") as nc:
                for axis, size in enumerate(shape):
                    nc.createDimension(f"d{axis}", size)
                nc.createVariable(
                    "v", kind, tuple(nc.dimensions), chunksizes=chunks, compression="szip",
                    szip_coding=coding, szip_pixels_per_block=pixels,
                )[:] = data  # fmt: skip
        except (OSError, RuntimeError):
            continue  # netCDF-C cannot write data that szip does not make smaller
        wanted[f"{path}{number}"] = data
    assert len(wanted) >= 4
    for target, data in wanted.items():
        with xr.open_dataset(target, engine="nczarr") as ds:
            assert np.array_equal(ds.v.values, data), target


def test_szip_with_a_wrong_size_is_an_error(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/x.file#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as nc:
        nc.createDimension("x", 64)
        nc.createVariable("v", "i4", ("x",), compression="szip")[:] = np.arange(64)
    chunk = tmp_path / "x.file" / "v" / "0"
    chunk.write_bytes(b"\x07" + chunk.read_bytes()[1:])
    with xr.open_dataset(url, engine="nczarr") as ds:
        with pytest.raises(FormatError, match="v/0: the szip size is not 256"):
            ds.v.load()
