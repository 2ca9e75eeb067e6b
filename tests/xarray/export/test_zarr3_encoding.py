"""What the encoding of Zarr 3 tells of its codecs, and what all writers make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from nczarr_xarray import to_nczarr
from nczarr_xarray.backend.compat import TO_ZARR_IGNORES_COMPRESSOR
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import ChunkedArray
from tests.support.corpora.encoding_matrix import THEIRS

# what zarr-python thinks of text and of numcodecs in Zarr 3
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
needs_compressor = pytest.mark.skipif(
    not TO_ZARR_IGNORES_COMPRESSOR, reason='an older xarray leaves encoding["compressor"] to zarr'
)

FIELD = np.arange(4096, dtype="f4").reshape(64, 64)
SHUFFLE = {"id": "shuffle", "elementsize": 4}
CHECKSUM = {"id": "fletcher32"}
BLOSC = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}


def named(name: str, **settings: Any) -> dict[str, Any]:
    """A codec of numcodecs as Zarr 3 states it."""
    return {"name": f"numcodecs.{name}", "configuration": settings}


#: Codecs in Zarr 3, and in shards or not; netCDF's words that are not False; codecs in NCZarr.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "none": ({"compressors": None}, {}, []),
    "gzip": (
        {"compressors": GzipCodec(level=2)},
        {"zlib": True, "complevel": 2},
        [{"id": "zlib", "level": 2}],
    ),
    "gzip in shards": (
        {"compressors": GzipCodec(level=2), "shards": (32, 32)},
        {"zlib": True, "complevel": 2},
        [{"id": "zlib", "level": 2}],
    ),
    "gzip, checksum": (
        {"compressors": [GzipCodec(level=1), Crc32cCodec()]},
        {"zlib": True, "complevel": 1, "fletcher32": True},
        [{"id": "zlib", "level": 1}, CHECKSUM],
    ),
    "checksum": ({"compressors": Crc32cCodec()}, {"fletcher32": True}, [CHECKSUM]),
    "shuffle, gzip": (
        {"compressors": [named("shuffle", elementsize=4), GzipCodec(level=3)]},
        {"zlib": True, "complevel": 3, "shuffle": True},
        [SHUFFLE, {"id": "zlib", "level": 3}],
    ),
    "zstd": (
        {"compressors": ZstdCodec(level=5)},
        {"zstd": True, "complevel": 5},
        [{"id": "zstd", "level": 5}],
    ),
    "fast zstd": (
        {"compressors": ZstdCodec(level=-3)},
        {"zstd": True, "complevel": 1},
        [{"id": "zstd", "level": 1}],
    ),
    "bz2": (
        {"compressors": named("bz2", level=3)},
        {"bzip2": True, "complevel": 3},
        [{"id": "bz2", "level": 3}],
    ),
    "lz4": ({"compressors": named("lz4")}, {}, []),
    "transposed": (
        {"filters": TransposeCodec(order=(1, 0)), "compressors": GzipCodec(level=2)},
        {"zlib": True, "complevel": 2},
        [{"id": "zlib", "level": 2}],
    ),
    "scaled": (
        {
            "filters": named("fixedscaleoffset", scale=10, offset=0, dtype="<f4"),
            "compressors": GzipCodec(level=2),
        },
        {"zlib": True, "complevel": 2},
        [{"id": "zlib", "level": 2}],
    ),
}
#: The same of codecs that netCDF's words cannot tell.
BESIDE_NETCDF: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "zstd's own level": ({"compressors": "auto"}, {}, [{"id": "zstd", "level": 0}]),
    "zstd's own level, checksum": (
        {"compressors": [ZstdCodec(level=0), Crc32cCodec()]},
        {"fletcher32": True},
        [{"id": "zstd", "level": 0}, CHECKSUM],
    ),
    "blosc": (
        {"compressors": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4)},
        {"complevel": 3},
        [BLOSC],
    ),
    "blosc, checksum": (
        {
            "compressors": [
                BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4),
                Crc32cCodec(),
            ]
        },
        {"complevel": 3, "fletcher32": True},
        [BLOSC, CHECKSUM],
    ),
}
WORDS = ("zlib", "zstd", "bzip2", "szip", "blosc", "shuffle", "fletcher32", "complevel")


def tree(path: Path, **storage: Any) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=3)
    names: Any = {"dimension_names": ("y", "x"), "chunks": (16, 16)}
    group.create_array("v", shape=(64, 64), dtype="f4", **names, **storage)[:] = FIELD
    return path


def codecs(path: Path) -> list[Any]:
    with open_hierarchy(str(path)) as dataset:
        array = dataset.hierarchy.root.variables["v"].array
        assert isinstance(array, ChunkedArray)
        assert array.chunk_shape == (16, 16)
        return list(array.codecs)


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(name, marks=needs_compressor) for name in BESIDE_NETCDF)]
)
def test_compression_is_kept(tmp_path: Path, case: str) -> None:
    storage, words, stored = {**CASES, **BESIDE_NETCDF}[case]
    with xr.open_dataset(tree(tmp_path / "x", **storage), engine="nczarr") as ds:
        told = {key: ds["v"].encoding[key] for key in WORDS if ds["v"].encoding.get(key)}
        assert told == words
        to_nczarr(ds, tmp_path / "y")
        if case != "lz4":  # which NCZarr refuses where it is asked for
            to_nczarr(ds.drop_encoding(), tmp_path / "z", encoding={"v": ds["v"].encoding})
            assert codecs(tmp_path / "z") == stored
        ds.to_netcdf(tmp_path / "y.nc", engine="netcdf4")
    assert codecs(tmp_path / "y") == stored
    with netCDF4.Dataset(tmp_path / "y.nc") as file:
        applied = {key: value for key, value in file["v"].filters().items() if value}
        assert file["v"].chunking() == [16, 16]
    if "blosc" in case:  # xarray fails to write it in netCDF
        words = {key: value for key, value in words.items() if key != "complevel"}
    assert applied == words
    for back in (tmp_path / "y", tmp_path / "y.nc"):
        with xr.open_dataset(back, engine="nczarr") as found:
            np.testing.assert_array_equal(found["v"], FIELD)


@pytest.mark.parametrize("writer", THEIRS)
def test_text_scalars_and_defaults_are_written_by_all(tmp_path: Path, writer: str) -> None:
    """Zarr 3's default is zstd, of which h5py knows nothing."""
    ds = xr.Dataset(
        {
            "v": (("y", "x"), FIELD),
            "text": ("y", np.array([f"é{i}" for i in range(64)])),
            "scalar": ((), 2.5),
            "flag": ("y", np.arange(64) % 2 == 0),
        }
    )
    ds.to_zarr(tmp_path / "x", zarr_format=3, consolidated=False)
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as found:
        with THEIRS[writer](found, tmp_path) as back:
            np.testing.assert_array_equal(back["v"], FIELD)
            assert [str(text) for text in back["text"].values] == list(ds["text"].values)
            assert back["scalar"] == 2.5
