"""One damaged chunk is one finding of `nczarr validate --data`, which names variable and chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import netCDF4
import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.abc import Codec
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from nczarr_xarray import open_hierarchy, validate
from nczarr_xarray.cli.main import main

DATA = np.random.default_rng(0).integers(0, 1000, (8, 16, 16)).astype("i4")
DIMS, CHUNKS = ("t", "y", "x"), (2, 16, 16)
#: The chunk that is damaged, in the grid of chunks.
NUMBER = 3


def hdf5(path: Path, **options: Any) -> None:
    with netCDF4.Dataset(path, "w") as ds:
        for name, length in zip(DIMS, DATA.shape, strict=True):
            ds.createDimension(name, length)
        ds.createVariable("v", "i4", DIMS, chunksizes=CHUNKS, **options)[:] = DATA


def nczarr(path: Path) -> None:
    source = path.with_name("source.nc")
    hdf5(source, fletcher32=True)
    assert main(["copy", str(source), str(path)]) == 0


def zarr2(path: Path, *filters: Codec, compressor: Codec | None = None) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    array = group.create_array(
        "v", shape=DATA.shape, chunks=CHUNKS, dtype="i4", filters=filters, compressors=compressor
    )
    array.attrs["_ARRAY_DIMENSIONS"] = list(DIMS)
    array[:] = DATA


def zarr3(path: Path, *codecs: Any, shards: tuple[int, ...] | None = None) -> None:
    zarr.open_group(path, mode="w").create_array(
        "v",
        shape=DATA.shape,
        chunks=CHUNKS,
        shards=shards,
        dtype="i4",
        dimension_names=DIMS,
        compressors=codecs,
    )[:] = DATA


class Damage(NamedTuple):
    """A dataset, and one of its chunks.

    Attributes
    ----------
    make
        Writes the dataset.
    path
        What the finding is to name.
    at
        Where a byte of the object, or of the chunk of a file, is changed: a share of its length.
    cut
        Whether it is cut there instead.
    """

    make: Callable[[Path], None]
    path: str = "/v chunk (3, 0, 0)"
    at: float = 0.5
    cut: bool = False


SHARDS = (4, 16, 16)
CASES = {
    "fletcher32.nc": Damage(lambda path: hdf5(path, fletcher32=True)),
    "zlib-fletcher32.nc": Damage(lambda path: hdf5(path, fletcher32=True, zlib=True)),
    "zlib.nc": Damage(lambda path: hdf5(path, zlib=True)),
    "fletcher32.nczarr": Damage(nczarr, "v/3.0.0"),
    "crc32.zarr2": Damage(lambda path: zarr2(path, numcodecs.CRC32()), "v/3.0.0"),
    "adler32.zarr2": Damage(lambda path: zarr2(path, numcodecs.Adler32()), "v/3.0.0"),
    "fletcher32.zarr2": Damage(lambda path: zarr2(path, numcodecs.Fletcher32()), "v/3.0.0"),
    "lookup3.zarr2": Damage(
        lambda path: zarr2(path, numcodecs.checksum32.JenkinsLookup3()), "v/3.0.0"
    ),
    "zlib.zarr2": Damage(lambda path: zarr2(path, compressor=numcodecs.Zlib()), "v/3.0.0"),
    "cut.zarr2": Damage(zarr2, "v/3.0.0", cut=True),
    "crc32c.zarr3": Damage(lambda path: zarr3(path, Crc32cCodec()), "v/c/3/0/0"),
    "gzip-crc32c.zarr3": Damage(lambda path: zarr3(path, GzipCodec(), Crc32cCodec()), "v/c/3/0/0"),
    "gzip.zarr3": Damage(lambda path: zarr3(path, GzipCodec()), "v/c/3/0/0"),
    "cut.zarr3": Damage(zarr3, "v/c/3/0/0", cut=True),
    "cut-blosc.zarr3": Damage(lambda path: zarr3(path, BloscCodec()), "v/c/3/0/0", cut=True),
    # the second chunk of the second shard, and the index behind both
    "chunk.shards": Damage(
        lambda path: zarr3(path, Crc32cCodec(), shards=SHARDS), "v/c/1/0/0", 0.7
    ),
    "index.shards": Damage(
        lambda path: zarr3(path, ZstdCodec(), shards=SHARDS), "v/c/1/0/0", 0.999
    ),
}


def damage(target: Path, case: Damage) -> None:
    if target.suffix == ".nc":
        with open_hierarchy(target) as opened:
            array = opened.hierarchy.root.variables["v"].array
            assert array is not None
            table = opened.file.parse(array.locate(np.array([NUMBER])))
        path, start, size = target, int(table.start[0]), int(table.size[0])
    else:
        path = target / case.path
        start, size = 0, path.stat().st_size
    data = bytearray(path.read_bytes())
    at = start + int(size * case.at)
    data[at] ^= 0xFF
    path.write_bytes(data[:at] if case.cut else data)


@pytest.mark.parametrize("name", CASES)
def test_one_damaged_chunk_is_one_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    case, target = CASES[name], tmp_path / name
    case.make(target)
    assert not any(f.is_fault for f in validate(target, data=True))
    damage(target, case)
    (found,) = (f for f in validate(target, data=True) if f.is_fault)
    assert (found.severity, found.code, found.path) == ("error", "chunk-undecodable", case.path)
    assert "(of /v" in found.text
    assert "\n" not in found.text
    # the first of those of the shard, if its index is damaged
    chunk = {"index.shards": "chunk (2, 0, 0) and 1 more"}.get(name, "chunk (3, 0, 0)")
    assert "c/" not in found.path or chunk in found.text
    capsys.readouterr()
    assert main(["validate", "--data", str(target)]) == 1
    assert f"{found.path}: {found.text}" in capsys.readouterr().out


def test_without_a_checksum_other_values_are_read(tmp_path: Path) -> None:
    """As the page says: nothing in such a chunk tells what it was."""
    target = tmp_path / "x.nc"
    hdf5(target)
    damage(target, Damage(hdf5))
    assert not any(f.is_fault for f in validate(target, data=True))
