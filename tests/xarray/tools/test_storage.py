"""``ds.nczarr``, printed, and what help shows of its methods."""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_xarray.tools.storage import Storage, StoredVariable


@pytest.fixture
def ds() -> xr.Dataset:
    return xr.Dataset(
        {"t": (("y", "x"), np.zeros((7, 10), "f4")), "s": ((), np.int16(1))},
        coords={"name": ("y", list("abcdefg"))},
    )


ENCODING: dict[str, Any] = {
    "t": {"zlib": True, "complevel": 4, "shuffle": True, "chunksizes": (2, 5)}
}


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
    assert lines[0] == f"stored in {path}"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:]}
    assert rows["t"] == "y 7 × x 10 8 of 2 × 5 shuffle, zlib 4 280 B"
    assert rows["s"].startswith("scalar")
    assert rows["s"].endswith("2 B")
    assert rows["name"].endswith("?")


def test_what_was_not_read_is_said_to_be_so(ds: xr.Dataset) -> None:
    lines = str(ds.nczarr).splitlines()
    assert lines[0] == "not read from a stored dataset"
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
    [((7, 10), (2, 5), 5 + 3), ((10**6,), (10,), 2 + 25), ((3, 4, 5), (1, 4, 5), 2 + 2)],
)
def test_chunk_grids_are_drawn(shape: tuple[int, ...], chunks: tuple[int, ...], lines: int) -> None:
    encoding = {"chunksizes": chunks, "original_shape": shape}
    data = np.broadcast_to(np.int8(0), shape)
    dims = [f"d{axis}" for axis in range(len(shape))]
    drawing = StoredVariable.of("v", xr.Variable(dims, data, encoding=encoding)).drawing()
    svg = ET.fromstring(drawing)
    assert svg[1].attrib["d"].count("M") == lines


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_what_has_no_chunks_is_not_drawn(shape: tuple[int, ...]) -> None:
    encoding = {"chunksizes": (1,) * len(shape), "original_shape": shape}
    variable = xr.Variable([f"d{n}" for n in shape], np.zeros(shape), encoding=encoding)
    assert StoredVariable.of("v", variable).drawing() == ""


def test_names_are_no_html(ds: xr.Dataset) -> None:
    ds = ds.rename(t="<b>")
    assert "<b>" not in ds.nczarr._repr_html_()
    assert "&lt;b&gt;" in ds.nczarr._repr_html_()


@pytest.mark.parametrize("name", ["to_nczarr", "to_cfa"])
def test_help_shows_every_parameter(ds: xr.Dataset, name: str) -> None:
    function, method = getattr(nczarr_xarray, name), getattr(ds.nczarr, name)
    everything = list(inspect.signature(function).parameters)
    assert list(inspect.signature(method).parameters) == everything[1:]
    assert method.__doc__ == function.__doc__
    assert getattr(type(ds.nczarr), name) is function
