"""Chunks that a copy moves as they are stored, and those that it decodes and encodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import compare, to_nczarr
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.cli.main import main
from nczarr_xarray.export import steps
from tests.support.builders.h5load import stored_chunks
from tests.support.examples import examples
from tests.support.servers.realservers import RangeServer

#: netCDF-4's compressors and filters; those whose chunks can be moved.
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "zlib": {"compression": "zlib", "complevel": 1, "shuffle": False},
    "shuffled": {"compression": "zlib", "complevel": 4},
    "checked": {"compression": "zlib", "complevel": 4, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "shuffle": {"shuffle": True},
    "zstd": {"compression": "zstd"},
    "bzip2": {"compression": "bzip2"},
    "blosc": {"compression": "blosc_lz4", "blosc_shuffle": 1},
}
FORMS = {
    "nczarr": ("file://{}/y#mode=nczarr,file",),
    "4.9.2": ("file://{}/y#mode=nczarr,file", "--compat", "4.9.2", "--fixed"),
    "zarr": ("file://{}/y#mode=zarr",),
    "zip": ("{}/y.zip",),
}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of the variable of each chunk that was decoded, but for one of those too long."""
    paths: list[str] = []
    decode = Decoder.decode

    def counted(self: Decoder, data: Any, name: Callable[[int], str]) -> Sequence[Any]:
        if self.array.longer == self.nbytes:  # whether it is so long
            return decode(self, data, name)
        paths.extend([self.array.path.strip("/")] * len(data))
        return decode(self, data, name)

    monkeypatch.setattr(Decoder, "decode", counted)
    return paths


def copied(source: object, folder: Path, form: str = "nczarr", *options: str) -> str:
    """Copy into a folder; return the URL of the copy."""
    target, *more = FORMS[form]
    url = target.format(folder)
    assert main(["copy", str(source), url, *more, *options]) == 0
    return url


def chunks_of(folder: Path, grid: tuple[int, ...], name: str = "v") -> list[bytes | None]:
    """The stored chunks of a variable in a tree, in C order."""
    files = [folder / "y" / name / ".".join(map(str, at)) for at in np.ndindex(*grid)]
    return [file.read_bytes() if file.exists() else None for file in files]


def with_h5py(path: Path, data: np.ndarray[Any, Any], **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=data, **options)


RAMP = np.arange(40 * 30, dtype="f4").reshape(40, 30)


# -- moved -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILTERS)
def test_chunks_of_netcdf_are_moved(
    tmp_path: Path, decoded: list[str], name: str, form: str
) -> None:
    """Edges included, where a dimension cannot grow."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("y", 40)
        ds.createDimension("x", 30)
        ds.createVariable("v", "f4", ("y", "x"), chunksizes=(16, 30), **FILTERS[name])[:] = RAMP
    url = copied(tmp_path / "x.nc", tmp_path, form)
    assert decoded == []
    if form != "zip":
        stored = stored_chunks(tmp_path / "x.nc")
        assert chunks_of(tmp_path, (3, 1)) == [chunk and chunk[1] for chunk in stored]
    for engine in ("nczarr", "netcdf4") if form in ("nczarr", "4.9.2") else ("nczarr",):
        with xr.open_dataset(url, engine=engine) as back:
            np.testing.assert_array_equal(back["v"], RAMP)


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8"])
def test_a_checksum_before_the_shuffle(tmp_path: Path, dtype: str, mode: str) -> None:
    """The shuffle of numcodecs refuses the half element that the checksum adds to those of 8."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("y", 40)
        ds.createDimension("x", 30)
        ds.createVariable("v", dtype, ("y", "x"), chunksizes=(16, 30), **FILTERS["checked"])
        ds["v"][:] = RAMP
    for number, source in enumerate((tmp_path / "x.nc", tmp_path / "0")):
        assert main(["copy", str(source), f"file://{tmp_path}/{number}#mode={mode},file"]) == 0
        back = zarr.open_array(tmp_path / f"{number}" / "v", mode="r", zarr_format=2)
        np.testing.assert_array_equal(back, RAMP)


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_chunks_of_trees_are_moved(
    tmp_path: Path, decoded: list[str], first: str, second: str
) -> None:
    (tmp_path / "one").mkdir()
    encoding = {"v": {"zlib": True, "chunksizes": (16, 7), "_FillValue": -1}}
    source = FORMS[first][0].format(tmp_path / "one")
    to_nczarr(xr.Dataset({"v": (("y", "x"), RAMP)}), source, encoding=encoding)
    url = copied(source, tmp_path, second)
    assert decoded == []
    if "zip" not in (first, second):
        assert chunks_of(tmp_path, (3, 5)) == chunks_of(tmp_path / "one", (3, 5))
    with xr.open_dataset(url, engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], RAMP)


@pytest.mark.parametrize("kind", [numcodecs.Blosc("zstd", 3, 2), numcodecs.LZ4(), numcodecs.GZip()])
def test_chunks_of_other_writers_are_moved(tmp_path: Path, decoded: list[str], kind: Any) -> None:
    encoding = {"v": {"chunks": (16, 30), "compressors": kind}}
    ds = xr.Dataset({"v": (("y", "x"), RAMP)})
    ds.to_zarr(tmp_path / "x", zarr_format=2, consolidated=False, encoding=encoding)
    copied(tmp_path / "x", tmp_path, "zarr")
    assert decoded == []
    with xr.open_dataset(tmp_path / "y", engine="zarr", consolidated=False) as back:
        np.testing.assert_array_equal(back["v"], RAMP)


def test_remote_files_and_stores(
    files_server: RangeServer, files_root: Path, decoded: list[str], tmp_path: Path
) -> None:
    files_server.set()
    remote = f"memory://{tmp_path}/y"
    for source, target in (
        (f"{files_server.url}/h5.nc", remote),
        (f"{files_server.url}/h5.nc", tmp_path / "y"),
        (remote, tmp_path / "z"),
    ):
        assert main(["copy", str(source), str(target)]) == 0
    assert "v3" not in decoded
    stored = [chunk and chunk[1] for chunk in stored_chunks(files_root / "h5.nc", "v3")]
    assert chunks_of(tmp_path, (10, 1, 2), "v3") == stored
    for target in (remote, str(tmp_path / "y"), str(tmp_path / "z")):
        found = compare(str(files_root / "h5.nc"), target)
        assert found.equal, found


# -- what is missing, or stored in another way ---------------------------------------------


def test_missing_chunks_stay_missing(tmp_path: Path, decoded: list[str]) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("x", 50)
        for name, fill in (("v", None), ("w", 7)):
            options = {"zlib": True, "chunksizes": (10,), "fill_value": fill}
            ds.createVariable(name, "i4", ("x",), **options)[20:30] = range(10)
    copied(tmp_path / "x.nc", tmp_path)
    assert decoded == []
    for name in "vw":
        there = [chunk is not None for chunk in chunks_of(tmp_path, (5,), name)]
        assert there == [False, False, True, False, False]
    assert compare(tmp_path / "x.nc", tmp_path / "y").equal


@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
def test_chunks_that_read_as_something_else_are_written(tmp_path: Path, dtype: str) -> None:
    """h5py's missing chunks are zeros, those of netCDF are not."""
    with h5py.File(tmp_path / "x.nc", "w") as file:
        options = {"chunks": (10,), "compression": "gzip"}
        file.create_dataset("v", (50,), dtype, **options)[20:30] = range(10)
    url = copied(tmp_path / "x.nc", tmp_path)
    with netCDF4.Dataset(url) as back:
        back.set_auto_mask(False)
        assert back["v"][:].tolist() == [*[0] * 20, *range(10), *[0] * 20]


def test_a_filter_mask_is_minded(tmp_path: Path) -> None:
    with_h5py(tmp_path / "x.h5", RAMP, chunks=(10, 30), compression="gzip", shuffle=True)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        plain = RAMP[10:20] + 1
        file["v"].id.write_direct_chunk((10, 0), plain.tobytes(), filter_mask=0b11)
    copied(tmp_path / "x.h5", tmp_path)
    one, other = stored_chunks(tmp_path / "x.h5"), chunks_of(tmp_path, (4, 1))
    assert [new == old[1] for old, new in zip(one, other, strict=True) if old] == [
        True, False, True, True,
    ]  # fmt: skip
    with xr.open_dataset(tmp_path / "y", engine="nczarr") as back:
        expected = RAMP.copy()
        expected[10:20] += 1
        np.testing.assert_array_equal(back["v"], expected)


@pytest.mark.parametrize("grows", [False, True])
def test_what_is_behind_the_end_of_a_dimension_that_grows(tmp_path: Path, grows: bool) -> None:
    """It becomes visible when another variable makes the dimension longer."""
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("x", None if grows else 15)
        for name in "vw":
            options = {"zlib": True, "chunksizes": (10,), "fill_value": -1}
            ds.createVariable(name, "i4", ("x",), **options)[:] = np.arange(15)
    with h5py.File(tmp_path / "x.nc", "a") as file:
        shuffled = numcodecs.Shuffle(4).encode(np.arange(10, 20, dtype="<i4"))
        garbage = numcodecs.Zlib(4).encode(shuffled)
        file["v"].id.write_direct_chunk((10,), garbage)
    url = copied(tmp_path / "x.nc", tmp_path)
    last = chunks_of(tmp_path, (2,))[1]
    elements = numcodecs.Shuffle(4).decode(numcodecs.Zlib().decode(last)).view("<i4").tolist()
    assert elements == ([*range(10, 15), *[-1] * 5] if grows else [*range(10, 20)])
    with netCDF4.Dataset(url) as ds:
        assert ds["v"][:].tolist() == [*range(15)]


def test_a_variable_that_ends_before_its_dimension(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as ds:
        ds.createDimension("x", None)
        for name, length in (("v", 15), ("w", 40)):
            ds.createVariable(name, "i4", ("x",), zlib=True, chunksizes=(10,))[:] = range(length)
    copied(tmp_path / "x.nc", tmp_path)
    assert compare(tmp_path / "x.nc", tmp_path / "y").equal


# -- decoded -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"compression": "lzf"}, ()),
        ({"compression": "szip"}, ()),
        ({"scaleoffset": True, "compression": "gzip"}, ()),
        ({"compression": "gzip"}, ("--compress", "zlib:9")),
        ({"compression": "gzip"}, ("--compress", "none")),
        ({"compression": "gzip"}, ("--chunks", "phony_dim_0=8,phony_dim_1=30")),
        ({"compression": "gzip", "dtype": ">i4"}, ("--compat", "4.9.2")),
    ],
)
def test_what_is_stored_in_another_way_is_decoded(
    tmp_path: Path, decoded: list[str], options: dict[str, Any], how: tuple[str, ...]
) -> None:
    data = RAMP.astype(options.pop("dtype", "<i4"))
    with_h5py(tmp_path / "x.h5", data, chunks=(10, 30), **options)
    url = copied(tmp_path / "x.h5", tmp_path, "nczarr", *how)
    assert decoded == ["v"] * 4
    for engine in ("nczarr", "netcdf4"):
        with xr.open_dataset(url, engine=engine) as back:
            np.testing.assert_array_equal(back["v"], RAMP)


def test_an_object_that_cannot_be_a_chunk_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ds = xr.Dataset({"v": (("y", "x"), RAMP)})
    to_nczarr(ds, tmp_path / "x", encoding={"v": {"zlib": True, "chunksizes": (10, 30)}})
    (tmp_path / "x" / "v" / "2.0").write_bytes(bytes(1 << 20))
    assert main(["copy", str(tmp_path / "x"), str(tmp_path / "y")]) == 1
    assert "v/2.0" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["x"]


def test_damage_that_is_moved_is_found_by_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ds = xr.Dataset({"v": (("y", "x"), RAMP)})
    to_nczarr(ds, tmp_path / "x", encoding={"v": {"zlib": True, "chunksizes": (10, 30)}})
    (tmp_path / "x" / "v" / "2.0").write_bytes(b"damage")
    assert main(["copy", "--verify", str(tmp_path / "x"), str(tmp_path / "y")]) == 1
    assert "v/2.0" in capsys.readouterr().out


# -- any dataset -------------------------------------------------------------------------


@st.composite
def variables(draw: st.DrawFn) -> Callable[[Path], None]:
    """Write a netCDF-4 file with one variable, perhaps not all of it."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    chunks = [draw(st.integers(1, size)) for size in shape]
    dtype = np.dtype(draw(st.sampled_from(["i1", "u2", "i4", "u8", "f4", "f8", "S1"])))
    options = dict(draw(st.sampled_from([*FILTERS.values()])))
    if options.get("compression", "").startswith("blosc"):
        options = {}  # as a filter of HDF5 it fails on chunks as short as these
    if dtype.itemsize > 1:
        options["endian"] = draw(st.sampled_from(["little", "big"]))
        dtype = dtype.newbyteorder(options["endian"])
    if dtype.kind != "S":
        options["fill_value"] = draw(st.sampled_from([None, 0, 7]))
    unlimited = draw(st.booleans())
    part = tuple(slice(*sorted(draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape)
    seed = draw(st.integers(0, 9))

    def write(path: Path) -> None:
        with netCDF4.Dataset(path, "w") as ds:
            names = [f"d{axis}" for axis in range(len(shape))]
            for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
                ds.createDimension(name, None if unlimited and axis == 0 else size)
            variable = ds.createVariable("v", dtype, names, chunksizes=chunks, **options)
            variable.long_name = "any"
            values = np.random.default_rng(seed).integers(97, 99, shape, "u1")
            values = values.view("S1") if dtype.kind == "S" else values.astype(dtype)
            if values[part].size:
                variable[part] = values[part]

    return write


@settings(max_examples=examples(25), deadline=None)
@given(write=variables(), form=st.sampled_from(["nczarr", "4.9.2", "zarr"]))
def test_moved_or_not_it_is_the_same(write: Callable[[Path], None], form: str) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        write(folder / "x.nc")
        with netCDF4.Dataset(folder / "x.nc") as ds:
            if form == "4.9.2" and 0 in ds["v"].shape:
                return  # that release has no dimensions of length 0
        for path in ("moved", "decoded"):
            (folder / path).mkdir()
        moved = copied(folder / "x.nc", folder / "moved", form)
        patch.setattr(steps, "stored_alike", lambda *_: False)
        copied(folder / "x.nc", folder / "decoded", form)
        found = compare(folder / "moved" / "y", folder / "decoded" / "y", encoding=True)
        assert found.equal, found
        options: dict[str, Any] = {"mask_and_scale": False}
        with xr.open_dataset(folder / "x.nc", engine="netcdf4", **options) as original:
            with xr.open_dataset(moved, engine="nczarr", **options) as ours:
                xr.testing.assert_equal(ours, original)
            if form != "zarr":
                with xr.open_dataset(moved, engine="netcdf4", **options) as theirs:
                    xr.testing.assert_identical(theirs, original)
