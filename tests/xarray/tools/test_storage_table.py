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
from nczarr_fsspec.errors import URLError
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
        assert str(found.nczarr).splitlines()[0] == f"stored in {name}"
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
    assert lines[0].startswith("source unknown")
    assert lines[2].split() == ["t", "y", "7", "×", "x", "10", "280", "B"]


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
    ds = ds.rename(t="<b>")
    assert "<b>" not in ds.nczarr._repr_html_()
    assert "&lt;b&gt;" in ds.nczarr._repr_html_()


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
