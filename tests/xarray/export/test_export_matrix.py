"""Encodings that come with data stop nobody: source x what is done to it x writer.

Every dataset of `encoding_matrix.SOURCES`, opened by ours and by other engines, goes through
operations and is written by `to_nczarr`; what is opened by ours is written by xarray's own writers
as well. Values are compared after reading back. A few of all combinations are tried, chosen so that
each pair of them is; ``NCZARR_MATRIX=full`` tries all (half an hour).
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import ExportError, FormatError, to_nczarr
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.model import ChunkedArray
from tests.support.corpora.encoding_matrix import BLOCKS, OPERATIONS, OURS, SOURCES, THEIRS, opened

pytestmark = [
    pytest.mark.slow,
    # what zarr-python thinks of text in Zarr 3, xarray of what it is given, numpy of all NaN
    pytest.mark.filterwarnings("ignore"),
]

FULL = os.environ.get("NCZARR_MATRIX") == "full"
CASES = [(name, engine) for name, (_, engines) in SOURCES.items() for engine in engines]
WORK = [
    *((name, op, False) for name, op in OPERATIONS.items()),
    *((name, op, True) for name, op in {**OPERATIONS, **BLOCKS}.items()),
]

#: What engine netcdf4 says of such files xarray's own writers cannot write either: it hands these
#: names to h5py, which does not know them (`test_what_is_not_ours`).
NOT_H5PY = ("zstd", "bzip2")
#: Writers to which a dimension of no length is an unlimited one, whatever engine opened the data.
NO_LENGTH = ("to_netcdf netcdf4", "to_netcdf scipy", "to_nczarr 4.9.2")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = SOURCES[name][0](tmp_path_factory.mktemp(name.replace(" ", "-")))
        return made[name]

    return path


def chosen(number: int, count: int) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Operations to try in one cell; with the cells, all of them come round."""
    if FULL:
        yield from WORK
        return
    for i in range(count):
        yield WORK[(number * count + i) * 7 % len(WORK)]


def same(found: xr.Dataset, expected: xr.Dataset) -> None:
    for name, wanted in expected.variables.items():
        got = found[name].variable
        assert got.dims == wanted.dims, name
        if wanted.dtype.kind in "SUOT":
            one, other = ([as_text(v) for v in a.values.ravel()] for a in (got, wanted))
            assert one == other, name
        else:
            np.testing.assert_array_equal(got.values, wanted.values, err_msg=str(name))


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def uniform(dataset: xr.Dataset) -> bool:
    """Whether dask's blocks make a chunk grid."""
    blocks = [lengths for v in dataset.variables.values() for lengths in v.chunks or ()]
    return all({*b[:-1]} <= {b[0]} and b[-1] <= b[0] for b in blocks)


def refused(writer: str, name: str, engine: str, what: str, changed: xr.Dataset) -> bool:
    """Whether a writer refuses this whatever the encoding is."""
    if "h5netcdf" in writer and any(word in name for word in NOT_H5PY):
        return True
    if writer in NO_LENGTH and 0 in changed.sizes.values():
        return True
    if uniform(changed) or "aligned" in writer or "netcdf" in writer:
        return False
    return writer.startswith("to_zarr")  # for which a grid has to be chosen


@pytest.mark.parametrize(("name", "engine"), CASES, ids=lambda value: value.replace(" ", "-"))
def test_every_encoding_can_be_written(
    source: Callable[[str], Path], tmp_path: Path, name: str, engine: str
) -> None:
    writers = {**OURS, **(THEIRS if engine == "nczarr" else {})}
    failures = []
    numbers = itertools.count(CASES.index((name, engine)) * 11)
    for (writer, write), number in zip(writers.items(), numbers, strict=False):
        for what, operation, lazy in chosen(number, 1):
            folder = tmp_path / f"{writer} {what} {lazy}"
            folder.mkdir()
            with opened(source(name), engine, **({"chunks": {}} if lazy else {})) as ds:
                changed = operation(ds)
                if refused(writer, name, engine, what, changed):
                    continue
                try:
                    with write(changed, folder) as back:
                        same(back, changed.compute())
                except Exception as error:  # noqa: BLE001 - all failures are listed
                    failures.append(f"{writer}, {what}, dask {lazy}: {error!r:.400}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", ["hdf5 zstd", "hdf5 bzip2", "hdf5 blosc", "hdf5 zlib"])
def test_what_is_not_ours(source: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Engine netcdf4 has the troubles that are excused above, and one that ours has not."""
    with opened(source(name), "netcdf4") as ds:
        if name == "hdf5 zlib":
            with pytest.raises(RuntimeError):
                THEIRS["to_netcdf netcdf4"](OPERATIONS["nothing"](ds), tmp_path)
            with pytest.raises(TypeError):
                THEIRS["to_netcdf scipy"](OPERATIONS["nothing"](ds), tmp_path)
            return
        with pytest.raises((ValueError, TypeError)):
            THEIRS["to_netcdf h5netcdf"](ds, tmp_path)
        if name == "hdf5 blosc":
            with pytest.raises(ValueError, match="compression"):
                THEIRS["to_netcdf netcdf4"](ds, tmp_path)


# -- what is kept, and what is said of the rest --------------------------------------------------

GRID = xr.Dataset({"v": (("t", "y", "x"), np.arange(480.0).reshape(10, 6, 8))})
CAME = {
    "chunksizes": (4, 3, 8),
    "preferred_chunks": {"t": 4, "y": 3, "x": 8},
    "original_shape": (10, 6, 8),
}


def stored(path: Path) -> ChunkedArray:
    with open_hierarchy(str(path)) as dataset:
        array = dataset.hierarchy.root.variables["v"].array
        assert isinstance(array, ChunkedArray)
        return array


@pytest.mark.parametrize(
    ("work", "chunks"),
    [
        (lambda ds: ds, (4, 3, 8)),
        (lambda ds: ds.transpose("x", "t", "y"), (8, 4, 3)),
        (lambda ds: ds.chunk(t=8, y=3), (4, 3, 8)),  # blocks of whole chunks
        (lambda ds: ds.chunk(t=1), (1, 6, 8)),  # other blocks: the grid is theirs
        (lambda ds: ds.transpose("x", "t", "y").chunk(x=2, y=3), (2, 10, 3)),
        (lambda ds: ds.chunk(t=(3, 7), y=6), (4, 3, 8)),  # no grid: their borders are moved
        (
            lambda ds: ds.isel(t=slice(0, 2)).chunk(y=(1, 5)),
            (2, 5, 8),
        ),  # they are too long for what is left
        (lambda ds: ds.rename(t="time"), (4, 3, 8)),
    ],
)
def test_inherited_chunks(tmp_path: Path, work: Callable[..., xr.Dataset], chunks: Any) -> None:
    ds = GRID.copy()
    ds["v"].encoding = dict(CAME)
    to_nczarr(work(ds), tmp_path / "x")
    assert stored(tmp_path / "x").chunk_shape == chunks
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), work(ds).compute())


def test_chunks_follow_their_dimensions(tmp_path: Path) -> None:
    to_nczarr(GRID, tmp_path / "x", encoding={"v": {"chunks": (5, 4, 3)}})
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as ds:
        assert [*ds["v"].encoding["preferred_chunks"].items()] == [("t", 5), ("y", 4), ("x", 3)]
        to_nczarr(ds.transpose("y", "x", "t"), tmp_path / "y")
    assert stored(tmp_path / "y").chunk_shape == (4, 3, 5)


@pytest.mark.parametrize(
    ("work", "chunks"), [(lambda ds: ds.chunk(t=3), (4, 3, 8)), (lambda ds: ds + 1, (5, 6, 8))]
)
def test_aligned_blocks(tmp_path: Path, work: Callable[..., xr.Dataset], chunks: Any) -> None:
    ds = GRID.chunk(t=(1, 5, 4))
    ds["v"].encoding = dict(CAME)
    to_nczarr(work(ds), tmp_path / "x", align_chunks=True)
    assert stored(tmp_path / "x").chunk_shape == chunks
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), work(ds).compute())


@pytest.mark.parametrize("lazy", [False, True])
def test_chunks_that_are_asked_for_are_not_adapted(tmp_path: Path, lazy: bool) -> None:
    ds = GRID.chunk(t=1) if lazy else GRID
    if lazy:
        with pytest.raises(ExportError, match="inside a chunk"):
            to_nczarr(ds, tmp_path / "x", encoding={"v": CAME})
    else:
        to_nczarr(ds.transpose(), tmp_path / "x", encoding={"v": CAME})
        assert stored(tmp_path / "x").chunk_shape == (4, 3, 8)


#: Encoding; what becomes of it in NCZarr, and in pure Zarr; what the log says.
LEFT_OUT: list[tuple[dict[str, Any], list[Any], list[Any], str]] = [
    ({"compressor": {"id": "gzip", "level": 3}}, [("zlib", 3)], [("gzip", 3)], ""),
    ({"compressor": {"id": "zlib", "level": -1}}, [("zlib", 4)], [("zlib", 4)], ""),
    ({"compressor": {"id": "zstd", "level": -5}}, [("zstd", 1)], [("zstd", 1)], ""),
    ({"compressor": {"id": "lz4"}}, [], [("lz4", None)], "'lz4'.*netCDF-C does not have it"),
    ({"compressor": {"id": "nobody's"}}, [], [], "nobody's.*may change values"),
    ({"filters": [{"id": "quantize", "digits": 1}]}, [], [], "quantize.*may change values"),
    ({"compression": "lzf", "compression_opts": 3}, [], [], "lzf.*is not known"),
    ({"compression": 32015, "complevel": 3}, [], [], "32015.*is not known"),
    ({"zlib": True, "complevel": 77, "fletcher32": True}, [("fletcher32", None)], [], "77"),
    ({"szip": True}, [("zlib", 4)], [("zlib", 4)], ""),
    (
        {"filters": [{"id": "shuffle", "elementsize": 2}], "compressor": {"id": "bz2", "level": 1}},
        [("shuffle", None), ("bz2", 1)],
        [("shuffle", None), ("bz2", 1)],
        "",
    ),
]


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
@pytest.mark.parametrize(("encoding", "netcdf", "pure", "said"), LEFT_OUT)
def test_inherited_codecs(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    encoding: dict[str, Any],
    netcdf: list[Any],
    pure: list[Any],
    said: str,
    mode: str,
) -> None:
    ds = GRID.copy()
    ds["v"].encoding = encoding
    with caplog.at_level(logging.INFO, "nczarr_xarray.export"):
        to_nczarr(ds, f"file://{tmp_path}/x#mode={mode}")
    codecs = stored(tmp_path / "x").codecs
    wanted = netcdf if mode == "nczarr" or "fletcher32" in encoding else pure
    assert [(c["id"], c.get("level")) for c in codecs] == wanted
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        xr.testing.assert_equal(back.load(), ds)
    if said and wanted in ([], netcdf):
        assert re.search(f"/v: inherited.*{said}", caplog.text)
    elif not said:
        assert "/v" not in caplog.text
    if mode == "nczarr" and said:  # asked for, it is an error
        with pytest.raises(ExportError, match="/v: "):
            to_nczarr(ds, tmp_path / "y", encoding={"v": encoding})


#: Values, the encoding they came with, what is stored, and what dask's values do.
VALUES: list[tuple[list[float], dict[str, Any], str, bool]] = [
    ([1e6, 2.0], {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -9}, "f8", False),
    ([-50.0, 2.5], {"dtype": "u1", "scale_factor": 0.5, "add_offset": 1.0}, "f8", False),
    ([100.0, np.nan], {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}, "i2", True),
    ([1.0, np.nan], {"dtype": "i4"}, "f8", True),
    ([1000, 2], {"dtype": "i1"}, "i8", False),
    ([100, 2], {"dtype": "i1"}, "i1", True),
    ([1.0, 3.0], {"_FillValue": 7.0, "missing_value": 8.0}, "f8", True),
    ([1.0, np.nan], {"dtype": "f2"}, "f8", True),
    ([1, 2], {"_FillValue": np.nan}, "i8", True),
    ([1.0, 2.0], {"_FillValue": "x"}, "f8", True),
    ([1.0, 2.0], {"dtype": "nonsense"}, "f8", True),
    ([1, 2], {"significant_digits": 3}, "i8", True),
    ([1.0, 2.0], {"least_significant_digit": "many"}, "f8", True),
    ([1.0, 2.0], {"endian": "middle"}, "f8", True),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("values", "encoding", "dtype", "known"), VALUES)
def test_inherited_encoding_spoils_no_value(
    tmp_path: Path,
    values: list[float],
    encoding: dict[str, Any],
    dtype: str,
    known: bool,
    lazy: bool,
) -> None:
    ds = xr.Dataset({"v": ("x", np.array(values))})
    ds["v"].encoding = encoding
    if lazy and not known:
        with pytest.raises(FormatError, match=r"/v: .*drop_encoding"):
            to_nczarr(ds.chunk(x=1), tmp_path / "x")
        assert not (tmp_path / "x").exists()
        return
    to_nczarr(ds.chunk(x=1) if lazy else ds, tmp_path / "x")
    assert stored(tmp_path / "x").dtype == dtype
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], values)
