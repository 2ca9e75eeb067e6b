"""``ds.nczarr``, printed, and what help shows of its methods."""

from __future__ import annotations

import inspect
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_fsspec.errors import NCZarrWarning, URLError
from nczarr_fsspec.text import format_size
from nczarr_xarray.formats.registry import GENERATIONS
from nczarr_xarray.tools.storage_table import Storage, StoredVariable


@pytest.fixture
def ds() -> xr.Dataset:
    return xr.Dataset(
        {"t": (("y", "x"), np.zeros((7, 10), "f4")), "s": ((), np.int16(1))},
        coords={"name": ("y", list("abcdefg"))},
    )


ENCODING: dict[str, Any] = {
    "t": {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (2, 5)}
}


@pytest.mark.parametrize("name", ["mapping", "BytesIO object"])
def test_what_has_no_address_is_not_looked_for(
    ds: xr.Dataset, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another dataset lies where its name would lead, were it a path."""
    xr.Dataset({"t": ds.t}).nczarr.to_nczarr(tmp_path / name)
    objects: dict[str, bytes] = {}
    ds.nczarr.to_nczarr(objects)
    ds.nczarr.to_nczarr(tmp_path / "x.zip")
    archive = io.BytesIO((tmp_path / "x.zip").read_bytes())
    target: Any = objects if name == "mapping" else archive
    monkeypatch.chdir(tmp_path)
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found.encoding["source"] == name
        assert str(found.nczarr).splitlines()[0] == f"read from {name}"
        with pytest.raises(URLError, match=f"read from '{name}', which is no address"):
            nczarr_xarray.doctor(found)


@pytest.mark.parametrize("suffix", ["nczarr", "nc"])
@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("chunks", [None, {}])
def test_what_was_read_is_described_as_it_was_stored(
    ds: xr.Dataset, tmp_path: Path, suffix: str, decoded: bool, chunks: Any
) -> None:
    path = tmp_path / f"v.{suffix}"
    if suffix == "nc":
        ds.to_netcdf(path, engine="netcdf4", encoding=ENCODING)
    else:
        ds.nczarr.to_nczarr(path, encoding=ENCODING)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks, decode_cf=decoded) as found:
        lines = str(found.nczarr).splitlines()
    words = "HDF5, as netCDF-4" if suffix == "nc" else GENERATIONS["G2A"]
    assert lines[0] == f"stored in {path}: {words}"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:]}
    nbytes = format_size(stored_bytes(path, "t"))
    assert rows["t"] == f"y 7 × x 10 8 of 2 × 5 shuffle, zlib 4 280 B {nbytes}"
    assert rows["s"].startswith("scalar")
    assert rows["s"].endswith("2 B 2 B")
    assert "?" in rows["name"]


def stored_bytes(path: Path, name: str) -> int:
    """What the bytes of a variable take in a netCDF-4 file, or in a tree."""
    if path.is_dir():
        found = [chunk for chunk in (path / name).iterdir() if not chunk.name.startswith(".")]
        return sum(chunk.stat().st_size for chunk in found)
    with h5py.File(path) as file:
        return int(file[name].id.get_storage_size())


def test_variables_of_groups_are_found_by_their_neighbours(ds: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "g.nczarr"
    bare = ds.drop_vars("name")
    inner = bare.assign(t=bare["t"] + 1.5, u=bare["t"])
    xr.DataTree.from_dict({"/": ds, "/g/h": inner}).nczarr.to_nczarr(path)
    with xr.open_dataset(path, engine="nczarr", group="g/h") as found:
        rows = [line.split() for line in str(found.nczarr).splitlines()[2:]]
        # in the root there are a t and an s of the same shapes
        assert {row[0] for row in rows} == {"/g/h/t", "/g/h/s", "/g/h/u"}
        (row,) = [row for row in rows if row[0] == "/g/h/t"]
        assert " ".join(row).endswith(format_size(stored_bytes(path, "g/h/t")))
    with xr.open_datatree(path, engine="nczarr") as tree:
        names = {line.split()[0] for line in str(tree.nczarr).splitlines()}
    assert {"/t", "/s", "/g/h/t", "/g/h/u"} <= names


def test_what_is_gone_is_shown_as_far_as_it_is_known(ds: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "v.nczarr"
    ds.nczarr.to_nczarr(path, encoding=ENCODING)
    found = xr.load_dataset(path, engine="nczarr")
    path.rename(tmp_path / "elsewhere.nczarr")
    lines = str(found.nczarr).splitlines()
    assert lines[0] == f"stored in {path}"
    assert lines[2].split()[-2:] == ["B", "?"]


def test_sizes_that_a_store_does_not_tell_are_unknown_not_zero(ds: xr.Dataset) -> None:
    ds.nczarr.to_nczarr("memory://sizes.nczarr", mode="w")
    with xr.open_dataset("memory://sizes.nczarr", engine="nczarr") as found:
        line = next(text for text in str(found.nczarr).splitlines() if text.startswith("  t "))
    assert line.endswith("280 B  ?")


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"shuffle": True, "fletcher32": True, "zlib": True}, "shuffle, zlib 4, fletcher32"),
        ({"shuffle": True, "fletcher32": True, "zlib": False}, "shuffle, fletcher32"),
        ({"shuffle": True, "zlib": False}, "shuffle"),
    ],
)
def test_a_filter_in_the_place_of_the_compressor_is_named_once(
    ds: xr.Dataset, tmp_path: Path, filters: dict[str, bool], words: str
) -> None:
    path = tmp_path / "v.nczarr"
    ds.nczarr.to_nczarr(path, encoding={"t": {**filters, "complevel": 4}})
    with xr.open_dataset(path, engine="nczarr") as found:
        assert StoredVariable.of("t", found["t"].variable).codecs == words


def test_many_chunks_are_sampled(tmp_path: Path) -> None:
    path = tmp_path / "v.nczarr"
    many = xr.Dataset({"t": ("x", np.arange(1000, dtype="f8"))})
    many.nczarr.to_nczarr(path, encoding={"t": {"chunks": (10,), "zlib": False}})
    with xr.open_dataset(path, engine="nczarr") as found:
        assert str(found.nczarr).split()[-5:] == ["8", "kB", "≈", "8", "kB"]


def test_what_was_not_read_is_said_to_be_so(ds: xr.Dataset) -> None:
    lines = str(ds.nczarr).splitlines()
    assert lines[0] == "in memory, not read from a dataset"
    assert lines[2].split() == ["t", "y", "7", "×", "x", "10", "280", "B"]


def parts(shown: str) -> dict[str, dict[str, str]]:
    """The rows of each table, by its heading and the variable."""
    found: dict[str, dict[str, str]] = {}
    for line in shown.splitlines():
        if not line.startswith(" "):
            rows = found.setdefault(line, {})
        else:
            name, *cells = line.split()
            rows[name] = " ".join(cells)
    return found


@pytest.fixture
def years(tmp_path: Path) -> list[str]:
    """Files of 4, 4 and 2 times."""
    paths = []
    for number, (start, stop) in enumerate(((0, 4), (4, 8), (8, 10))):
        values = np.arange(start * 1000, stop * 1000, dtype="f4").reshape(-1, 1000)
        year = xr.Dataset(
            {"t": (("time", "x"), values)},
            {"time": np.arange(float(start), stop), "x": np.arange(1000.0)},
        )
        path = tmp_path / f"{number}.nc"
        encoding = {"t": {"chunksizes": (2, 1000), "zlib": True}}
        year.to_netcdf(path, engine="netcdf4", encoding=encoding, unlimited_dims=["time"])
        paths.append(str(path))
    return paths


def test_an_aggregation_shows_its_fragments(years: list[str], tmp_path: Path) -> None:
    master = str(tmp_path / "m.nca")
    nczarr_xarray.aggregate(years, master)
    words = "time 10 × x 1,000 3 fragments, 8 … 16 kB, 1 … 2 chunks each shuffle, zlib 4 40 kB ?"
    with xr.open_dataset(master, engine="nczarr") as found:
        shown = parts(str(found.nczarr))
        assert shown[f"stored in {master}: HDF5, as netCDF-4"]["t"] == words
        assert "8 … 16 kB" in found.nczarr._repr_html_()
        assert StoredVariable.of("t", found["t"].variable).grid == (3, 1)
    with nczarr_xarray.open_many(years) as found:
        for one in (found, found["t"], found[["t"]], found.chunk()):
            assert parts(str(one.nczarr))["read from aggregation in memory"]["t"] == words
        with pytest.raises(URLError, match="no address"):
            found.nczarr.doctor()


def test_missing_fragments_are_counted(years: list[str], tmp_path: Path) -> None:
    grid = []
    for path, level in zip(years, (1.0, 2.0, 2.0), strict=True):
        with xr.open_dataset(path, engine="netcdf4") as year:
            grid.append(str(tmp_path / f"{Path(path).stem}-{level}.nc"))
            year.expand_dims(level=[level]).to_netcdf(grid[-1], engine="netcdf4")
    with pytest.warns(NCZarrWarning, match="no file"):
        found = nczarr_xarray.open_many(grid)
    assert "6 fragments (3 missing), 8 … 16 kB" in str(found.nczarr)
    with pytest.warns(NCZarrWarning, match="no file"):
        nczarr_xarray.aggregate(grid, tmp_path / "m.nca", cfa_version="0.6.2")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as master:
        assert "6 fragments (3 missing), 8 … 16 kB" in str(master.nczarr)


def test_many_files_are_not_shown_as_the_first_one(years: list[str]) -> None:
    options: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    with xr.open_mfdataset(years, engine="nczarr", join="override", **options) as found:
        shown = parts(str(found.nczarr))
        assert shown.pop(f"stored in {years[0]}: HDF5, as netCDF-4").keys() == {"variable", "x"}
        ((heading, rows),) = shown.items()
        assert heading == (
            "in memory, joined from several datasets or extended; a part comes from " + years[0]
        )
        assert rows["t"] == "time 10 × x 1,000 40 kB"
        with pytest.raises(URLError, match="comes from several datasets"):
            found.nczarr.doctor()


def test_what_was_changed_is_not_shown_as_it_was_stored(years: list[str]) -> None:
    with xr.open_dataset(years[0], engine="nczarr") as read:
        stored = "time 4 × x 1,000 2 of 2 × 1,000 shuffle, zlib 4"
        whole = parts(str(read.nczarr))[f"stored in {years[0]}: HDF5, as netCDF-4"]
        assert whole["t"].startswith(stored)
        for changed, words in (
            (read.isel(x=0), "time 4 16 B"),
            (read.transpose("x", "time"), "x 1,000 × time 4 16 kB"),
            (read.isel(time=slice(2)).chunk(time=1), "time 2 × x 1,000 8 kB"),
        ):
            shown = parts(str(changed.nczarr))
            assert shown[f"in memory, changed since it was read from {years[0]}"]["t"] == words
            assert changed.nczarr.doctor().url == years[0]
        for computed in (read + 1, read.assign(t=read["t"] * 2), read.mean("x")):
            assert "t" in parts(str(computed.nczarr))["in memory, not read from a dataset"]
        both = xr.merge([read["t"].rename("u") * 2, read["t"]])
        shown = parts(str(both.nczarr))
        assert shown[f"stored in {years[0]}: HDF5, as netCDF-4"]["t"].startswith(stored)
        assert shown["in memory, not read from a dataset"]["u"] == "time 4 × x 1,000 16 kB"


def test_trees_arrays_and_nothing(ds: xr.Dataset) -> None:
    tree = xr.DataTree.from_dict({"/": ds, "/g/h": ds[["s"]]})
    assert "/g/h/s" in str(tree.nczarr)
    assert {v.name for v in Storage.of(ds["t"]).variables} == {"t", "name"}
    assert str(xr.Dataset().nczarr) == "no variables"
    assert "no variables" in xr.Dataset().nczarr._repr_html_()


def test_a_dtype_of_pandas_has_no_size() -> None:
    values = pd.array(["a", "b"], dtype="category")
    stored = StoredVariable.of("v", xr.Variable("x", values))
    assert stored.nbytes is None


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5}}, "blosc lz4 5"),
        ({"shuffle": True, "zstd": True, "complevel": 3}, "shuffle, zstd 3"),
        ({"fletcher32": True}, "fletcher32"),
        ({"szip": {"coding": "nn"}, "complevel": 0}, "szip"),
        ({"compressor": None}, ""),
    ],
)
def test_codecs_in_words(encoding: dict[str, Any], words: str) -> None:
    assert StoredVariable.of("v", xr.Variable("x", [1], encoding=encoding)).codecs == words


@pytest.mark.parametrize(
    ("shape", "chunks", "lines"),
    [
        ((7, 10), (2, 5), 5 + 3),
        ((10**6,), (10,), 2 + 31),  # as many as there is room for
        ((90, 60, 30), (45, 20, 30), (4 + 2) + (2 + 4) + 3),  # front, top and side, and backwards
        ((5, 90, 60, 30), (1, 45, 20, 30), 15),  # the last three
    ],
)
def test_chunk_grids_are_drawn(shape: tuple[int, ...], chunks: tuple[int, ...], lines: int) -> None:
    encoding = {"chunksizes": chunks, "original_shape": shape}
    data = np.broadcast_to(np.int8(0), shape)
    dims = [f"d{axis}" for axis in range(len(shape))]
    drawing = StoredVariable.of("v", xr.Variable(dims, data, encoding=encoding)).drawing()
    svg = ET.fromstring(drawing)
    size = svg.attrib["width"], svg.attrib["height"]
    assert svg.attrib["viewBox"].split() == ["0", "0", *size]  # so that no page cuts it
    assert svg[1].attrib["d"].count("M") == lines
    shown = [text.text for text in svg.iter("text")]
    assert shown == [f"{length:,}" for length in shape[:-4:-1]]
    for path in svg.iter("path"):  # all of it is inside
        for x, y in points(path.attrib["d"]):
            assert 0 <= x <= float(svg.attrib["width"])
            assert 0 <= y <= float(svg.attrib["height"])


def points(path: str) -> Iterator[tuple[float, float]]:
    """Follow a path of SVG."""
    x = y = 0.0
    for step, numbers in re.findall(r"([Mhvl])([^Mhvlz]*)", path):
        found = [float(number) for number in numbers.split()]
        along, down = {"h": (found[0], 0), "v": (0, found[0])}.get(step, found)
        x, y = (along, down) if step == "M" else (x + along, y + down)
        yield round(x, 3), round(y, 3)


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_what_has_no_chunks_is_not_drawn(shape: tuple[int, ...]) -> None:
    encoding = {"chunksizes": (1,) * len(shape), "original_shape": shape}
    variable = xr.Variable([f"d{n}" for n in shape], np.zeros(shape), encoding=encoding)
    assert StoredVariable.of("v", variable).drawing() == ""


def test_names_are_no_html(ds: xr.Dataset) -> None:
    ds = ds.rename(t="<i>")
    assert "<i>" not in ds.nczarr._repr_html_()
    assert "&lt;i&gt;" in ds.nczarr._repr_html_()


@pytest.mark.parametrize("name", ["to_nczarr", "to_cfa", "doctor"])
def test_help_shows_every_parameter(ds: xr.Dataset, name: str) -> None:
    function, method = getattr(nczarr_xarray, name), getattr(ds.nczarr, name)
    everything = list(inspect.signature(function).parameters)
    assert list(inspect.signature(method).parameters) == everything[1:]
    assert method.__doc__ == function.__doc__
    assert getattr(type(ds.nczarr), name) is function


def test_what_was_opened_is_examined_where_it_is_stored(ds: xr.Dataset, tmp_path: Path) -> None:
    for name in "ab":
        ds.nczarr.to_nczarr(tmp_path / f"{name}.nczarr")
    with xr.open_dataset(tmp_path / "a.nczarr", engine="nczarr", chunks={}) as found:
        report = found.rename(t="u").isel(y=0).nczarr.doctor(variable="t", latency=0.2)
        assert report.url == str(tmp_path / "a.nczarr")
        assert (report.variable, report.network.latency) == ("/t", 0.2)
        assert found["t"].nczarr.doctor().url == report.url
        with pytest.raises(URLError, match="was not read"):
            ds.nczarr.doctor()
        with xr.open_dataset(tmp_path / "b.nczarr", engine="nczarr") as other:
            both = found.assign(u=other["t"])
            with pytest.raises(URLError, match="comes from 2 datasets"):
                both.nczarr.doctor()
