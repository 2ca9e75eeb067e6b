"""What cannot be written is refused with the name of what it is, before anything is there."""

from __future__ import annotations

import lzma
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_xarray import DatasetExistsError, ExportError, open_hierarchy, to_nczarr
from tests.support.builders.trees import read_tree

DATA = np.arange(4, dtype="i4")


def refused(ds: xr.Dataset, folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(ExportError, match=message):
        to_nczarr(ds, folder / "d", **options)
    assert not (folder / "d").exists()


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"w": {}}, "encoding is given for 'w': no such variable"),
        ({"vv": {}}, r"encoding is given for 'vv': no such variable; did you mean v\?"),
        ({"v": {"zlb": True}}, r"unexpected encoding parameters \['zlb'\].*; did you mean zlib\?"),
        ({"v": 5}, "v"),
        ({"s": {"_nczarr_maxstrlen": 0}}, "_nczarr_maxstrlen is 0, not a number of bytes"),
        ({"s": {"_nczarr_maxstrlen": "x"}}, "_nczarr_maxstrlen is 'x', not a number of bytes"),
        ({"v": {"complevel": 77, "zlib": True}}, "77"),
        ({"v": {"compression": "nothing such"}}, "nothing such"),
        ({"v": {"dtype": str}}, "/v: would be int, and the dtype of its encoding is <class 'str'>"),
        ({"v": {"dtype": "S1"}}, "/v: would be int, and the dtype of its encoding is 'S1'"),
        ({"v": {"dtype": "U5"}}, "/v: would be int, and the dtype of its encoding is 'U5'"),
        ({"s": {"dtype": "S5"}}, "/s: would be string, and the dtype of its encoding is 'S5'"),
    ],
)
def test_encodings(encoding: Any, message: str, tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", DATA), "s": ("x", ["a", "b", "c", "d"])})
    refused(ds, tmp_path, message, encoding=encoding)


def test_a_contiguous_variable_along_an_unlimited_dimension(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", DATA)})
    encoding = {"v": {"contiguous": True}}
    refused(
        ds,
        tmp_path,
        "contiguous: it has an unlimited dimension",
        encoding=encoding,
        unlimited_dims=["x"],
    )


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (xr.Dataset({5: ("x", DATA)}), "the name 5 is not text"),
        (xr.Dataset({"v": ((5,), DATA)}), "the dimension name 5 is not text"),
        (xr.Dataset({"v": ("x", DATA, {5: 1})}), "the attribute name 5 is not text"),
        (xr.Dataset(attrs={5: 1}), "the attribute name 5 is not text"),
        (xr.Dataset({"v": ("x", DATA, {"coordinates": 1})}), "/v: xarray cannot encode it"),
        (xr.Dataset({"v": ("x", DATA, {"a": object()})}), "/v: attribute 'a'"),
        (xr.Dataset({"v": ("x", DATA, {"a": {"b": {1}}})}), "/v: attribute 'a'"),
        (xr.Dataset({"v": ("x", DATA, {"a": np.ones((2, 2))})}), "attribute 'a' has 2 dimensions"),
    ],
)
def test_names_and_attributes(ds: xr.Dataset, message: str, tmp_path: Path) -> None:
    refused(ds, tmp_path, message)


def test_what_is_no_dataset(tmp_path: Path) -> None:
    value: Any = [1]
    with pytest.raises(TypeError, match="list is no Dataset, DataArray or DataTree"):
        to_nczarr(value, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("new", "options", "message"),
    [
        (xr.Dataset({"w": ("x", DATA[:3])}), {}, "/w: has length 3 along /x, which has length 4"),
        (xr.Dataset({"g": ("x", DATA)}), {}, "/: a variable and a group are both called 'g'"),
        (xr.Dataset({"w": ("x", DATA)}), {"group": "g", "mode": "w-"}, "holds a group '/g'"),
        (xr.Dataset({"w": ("x", DATA)}), {"group": "v"}, "/v is a variable already"),
        (xr.Dataset({"w": ("x", DATA)}), {"group": "v", "mode": "w"}, "/v is a variable already"),
        (xr.Dataset({"w": ("x", DATA)}), {"group": "v", "mode": "w-"}, "/v is a variable already"),
        (xr.Dataset({"w": ("x", DATA)}), {"group": "g/v/h"}, "/g/v is a variable already"),
    ],
)
def test_what_does_not_go_with_what_is_there(
    new: xr.Dataset, options: Any, message: str, tmp_path: Path
) -> None:
    own = xr.Dataset({"v": ("x", DATA)})
    to_nczarr(xr.DataTree.from_dict({"/": own, "/g": own}), tmp_path / "d")
    before = read_tree(tmp_path / "d")
    with pytest.raises((ExportError, DatasetExistsError), match=message):
        to_nczarr(new, tmp_path / "d", **{"mode": "a", **options})
    assert read_tree(tmp_path / "d") == before


@pytest.mark.parametrize("encoding", [{}, {"dtype": "S1"}])
def test_a_fill_value_of_more_characters_than_one(encoding: Any, tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("x", np.array([b"a", b"b"]))})
    message = "/v: _FillValue .*xyz.* is longer than 1 bytes"
    refused(ds, tmp_path, message, encoding={"v": {"_FillValue": b"xyz", **encoding}})


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (xr.Dataset({"\udc80": ("x", DATA)}), "'.udc80' is not valid Unicode"),
        (xr.Dataset({"v": ("x", DATA, {"\udc80": 1})}), "the name is not valid Unicode"),
    ],
)
def test_names_that_pure_zarr_cannot_hold(ds: xr.Dataset, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        to_nczarr(ds, f"file://{tmp_path}/d#mode=zarr")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("value", "nc_type", "stored"),
    [
        (np.array([], "i2"), "short", []),
        (np.array([], ">f8"), "double", []),
        ([], "char", ""),
        ((), "char", ""),
        (["a"], "char", "a"),
        (np.array(["a"]), "char", "a"),
        (["a", "b"], "string", ("a", "b")),
        (np.array(["a", b"b"], object), "string", ("a", "b")),
    ],
)
def test_attributes_that_are_written(value: Any, nc_type: str, stored: Any, tmp_path: Path) -> None:
    to_nczarr(xr.Dataset({"v": ("x", DATA, {"a": value})}), tmp_path / "d")
    with open_hierarchy(tmp_path / "d") as opened:
        attribute = opened.hierarchy.root.variables["v"].attributes["a"]
    found = attribute.value
    assert attribute.type == nc_type
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == stored


@pytest.mark.parametrize(
    ("encoding", "member"),
    [
        (
            {
                "compressor": numcodecs.LZMA(
                    format=lzma.FORMAT_RAW,
                    filters=[{"id": lzma.FILTER_DELTA, "dist": 8}, {"id": lzma.FILTER_LZMA2}],
                )
            },
            '"filters": [{"id": 3, "dist": 8},{"id": 33}]',
        ),
        (
            {
                "filters": [
                    numcodecs.FixedScaleOffset(offset=0.5, scale=2.0, dtype="f8", astype="i4")
                ]
            },
            '"scale": 2.0, "offset": 0.5',
        ),
    ],
)
def test_settings_of_codecs_are_stored_as_they_are(
    encoding: Any, member: str, tmp_path: Path
) -> None:
    """Lists, objects and numbers among them: zarr-python makes the same codec of these."""
    ds = xr.Dataset({"v": ("x", np.arange(1000) + 0.5)})
    to_nczarr(ds, f"file://{tmp_path}/d#mode=zarr", encoding={"v": encoding})
    assert member in (tmp_path / "d/v/.zarray").read_text()
    tree: Any = zarr.open(tmp_path / "d", mode="r")
    assert np.array_equal(tree["v"][:], ds["v"].values)


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("form", ["", "#mode=zarr", "memory", "Zarr 3"])
def test_no_dataset_replaces_a_variable_of_another(
    form: str, compute: bool, tmp_path: Path
) -> None:
    ds = xr.Dataset({"v": ("x", DATA)})
    place = f"memory://{tmp_path}/d" if form == "memory" else f"file://{tmp_path}/d"
    mode = form if form.startswith("#") else ""
    if form == "Zarr 3":
        ds.to_zarr(tmp_path / "d", zarr_format=3, consolidated=False)
    else:
        to_nczarr(ds, f"{place}{mode}")
    with pytest.raises(DatasetExistsError, match=r"d/v.*: is a single Zarr array, which"):
        to_nczarr(ds, f"{place}/v{mode}", mode="w", compute=compute)
    with xr.open_dataset(f"{place}{mode}", engine="nczarr") as left:
        xr.testing.assert_identical(left.load(), ds)


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ({"_FillValue": [1, 2]}, r" \(the encoding is _FillValue=\[1, 2\]\)"),
        ({"scale_factor": "a", "dtype": "i2"}, r" \(.*dtype='i2', scale_factor='a'\)"),
        ({"dtype": "i1", "_FillValue": 999}, r" \(the encoding is _FillValue=999, dtype='i1'\)"),
    ],
)
def test_what_xarray_does_not_understand_is_named(
    encoding: Any, message: str, tmp_path: Path
) -> None:
    refused(xr.Dataset({"v": ("x", DATA)}), tmp_path, f"/v: .*{message}", encoding={"v": encoding})


def test_an_archive_of_something_else_is_not_called_a_dataset(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", "notes")
    before = (tmp_path / "a.zip").read_bytes()
    with pytest.raises(DatasetExistsError, match="is an archive of something else; mode='w'"):
        to_nczarr(xr.Dataset({"v": ("x", DATA)}), tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]
