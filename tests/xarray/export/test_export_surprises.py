"""What a sceptical reader of the documentation tried, and what must not surprise anybody."""

from __future__ import annotations

import io
import os
import pickle
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import (
    ConflictError,
    ExportError,
    FormatError,
    IncompleteExportError,
    NCZarrWarning,
    StoreError,
    URLError,
    aggregate,
    compare,
    to_cfa,
    to_nczarr,
)
from nczarr_xarray.cli.main import main

GRID = xr.Dataset(
    {"a": (("y", "x"), np.arange(12.0).reshape(3, 4))}, {"x": [10, 20, 30, 40], "y": [1, 2, 3]}
)


def opened(path: Path, **options: Any) -> xr.Dataset:
    return xr.open_dataset(path, engine="nczarr", **options)


def test_what_is_there_stays_until_its_delayed_replacement_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(GRID, path)
    delayed = to_nczarr(opened(path, chunks={}) + 1, path, mode="w", compute=False)
    xr.testing.assert_identical(opened(path).load(), GRID)
    with pytest.raises(ConflictError, match=r"export of this process.*recover"):
        to_nczarr(GRID[["a"]].drop_vars(["x", "y"]), path, region={"x": slice(0, 4)})
    delayed.compute()
    xr.testing.assert_equal(opened(path).load(), GRID + 1)


def test_a_template_that_was_replaced_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    late = to_nczarr(GRID.chunk(x=4) * 2, path, compute=False)
    to_nczarr(GRID * 3, path, mode="w")
    with pytest.raises(StoreError, match="complete already or was replaced"):
        late.compute()
    xr.testing.assert_equal(opened(path).load(), GRID * 3)


def test_a_delayed_export_is_computed_once(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    delayed = to_nczarr(GRID.chunk(x=4), path, compute=False)
    delayed.compute()
    to_nczarr(GRID * 5, path, mode="r+")
    with pytest.raises(StoreError, match="complete already"):
        delayed.compute()
    xr.testing.assert_equal(opened(path).load(), GRID * 5)


def test_a_part_of_a_template_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    both = GRID.assign(b=GRID["a"] + 1)
    late = to_nczarr(both.chunk(x=2), path, compute=False)
    new = -GRID[["a"]].drop_vars(["x", "y"])
    to_nczarr(new, path, mode="a")  # in one chunk: fewer than were to come
    with pytest.warns(NCZarrWarning, match="'/b' cannot be read"):
        found = opened(path)
    np.testing.assert_array_equal(found["a"], new["a"])
    with pytest.raises(IncompleteExportError):
        found["b"].load()
    with pytest.raises(StoreError, match="complete already or was replaced"):
        late.compute()
    to_nczarr(both[["b"]].drop_vars(["x", "y"]), path, mode="r+")
    xr.testing.assert_identical(opened(path).load(), both.assign(a=new["a"]))


@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_template_is_replaced_as_a_whole(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(GRID.chunk(x=2), path, group="g", compute=False)
    to_nczarr(GRID, path, group="g", mode=mode)
    xr.testing.assert_identical(opened(path, group="g").load(), GRID)
    assert not (path / ".nczarr_export").exists()


@pytest.mark.parametrize("url", ["{}.zip", "memory://{}.zip"])
def test_a_delayed_archive_is_computed_once(tmp_path: Path, url: str) -> None:
    target = url.format(tmp_path / "x")
    delayed = to_nczarr(GRID.chunk(x=2), target, compute=False)
    again = pickle.loads(pickle.dumps(delayed))
    delayed.compute()
    for late in (delayed, again):
        with pytest.raises(StoreError, match=r"x\.zip: this change is over already"):
            late.compute()
        xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr").load(), GRID)
    assert not [name for name in os.listdir(tmp_path) if name != "x.zip"]


# xarray says so, and casts all the same
pytestmark = pytest.mark.filterwarnings(
    "ignore:saving variable:xarray.SerializationWarning", "ignore:Times can't be:UserWarning"
)
PACKED = {"a": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("encoding", "value", "reason"),
    [
        (PACKED, 1e6, "int16 cannot hold"),
        ({"a": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": None}}, np.nan, "missing values"),
    ],
)
def test_packed_values_that_do_not_fit_are_refused(
    tmp_path: Path, encoding: dict[str, Any], value: float, reason: str, chunked: bool
) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(GRID, path, unlimited_dims=["x"], encoding=encoding)
    new = GRID.assign(a=GRID.a.where(GRID.a > 3, value)).assign_coords(x=GRID.x.values + 100)
    with pytest.raises((ExportError, FormatError), match=reason):
        to_nczarr(new.chunk(x=4) if chunked else new, path, append_dim="x")
    xr.testing.assert_allclose(opened(path).load(), GRID)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("way", [{"append_dim": "k"}, {"mode": "r+"}])
@pytest.mark.parametrize(
    ("encoding", "values", "good"),
    [
        ({"dtype": "i2", "scale_factor": 0.5}, np.array([100000]), 1000),
        ({"dtype": "i2", "add_offset": 10.0}, np.array([-70000], "i4"), -7000),
        ({"dtype": "i2", "_FillValue": -9}, np.array([40000], "u2"), 4000),
        ({"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, np.array([300.0], "f4"), 200),
        ({"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, np.array([300], "u2"), 200),
        ({"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}, np.array([-2.0], "f4"), 254),
        ({"dtype": "f8"}, np.array([2**53 + 1]), 2**53 + 2),
        ({"dtype": "f8"}, np.array([2**64 - 1], "u8"), 2**63),
        ({"dtype": "f4", "scale_factor": 1e-3}, np.array([1e37]), 1000),
        ({"dtype": "f4", "scale_factor": 1e-3}, np.array([-1e37], "f4"), 1000),
        ({"dtype": "f4", "scale_factor": 2.0**-99, "_FillValue": 0.0}, np.array([10**10]), 1),
        ({"dtype": "f4", "add_offset": 1.0}, np.array([np.inf, 1e39]), np.inf),
    ],
)
def test_numbers_of_another_type_are_stored_as_they_are_or_refused(
    tmp_path: Path,
    encoding: dict[str, Any],
    values: np.ndarray,
    good: int,
    way: dict[str, Any],
    chunked: bool,
) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(xr.Dataset({"v": ("k", [1.0])}), path, encoding={"v": encoding})
    new = xr.Dataset({"v": ("k", values)}).isel(k=slice(None, None, -1))
    if way == {"mode": "r+"}:
        new = new.isel(k=[0])
    with pytest.raises((ExportError, FormatError), match=r"v.*holds.*cannot hold"):
        to_nczarr(new.chunk() if chunked else new, path, **way)
    assert opened(path)["v"].values.tolist() == [1]
    new = xr.Dataset({"v": ("k", np.array([good], values.dtype))})
    to_nczarr(new.chunk() if chunked else new, path, **way)
    assert opened(path)["v"].values.tolist()[-1] == good


@pytest.mark.parametrize("value", ["NaT", "2000-01-01T12", "9999999-01-01"])
def test_times_that_the_stored_type_cannot_hold_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.nczarr"
    times = xr.Dataset({"t": ("k", np.array(["2000-01-01", "2000-01-02"], "M8[s]"))})
    to_nczarr(times, path, encoding={"t": {"dtype": "i4", "units": "days since 2000-01-01"}})
    new = xr.Dataset({"t": ("k", np.array(["1999-12-30", value], "M8[s]"))})
    with pytest.raises(ExportError), np.errstate(all="ignore"):
        to_nczarr(new, path, mode="r+")
    assert opened(path).equals(times)
    to_nczarr(times.assign(t=times.t - np.timedelta64(3, "D")), path, mode="r+")
    assert opened(path).t.values[0] == np.datetime64("1999-12-29")


def test_coordinates_stay_coordinates_when_others_are_added(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(xr.Dataset(coords={"s": 5, "lat": ("q", [1, 2])}), path)
    to_nczarr(xr.Dataset(coords={"u": 7}), path, mode="a")
    assert set(opened(path).coords) == {"s", "lat", "u"}


@pytest.mark.parametrize("unlimited", [[], ["t"]])
def test_variables_are_added_along_a_dimension_without_rows(tmp_path: Path, unlimited: Any) -> None:
    empty = xr.Dataset({"v": ("t", np.zeros(0))})
    to_nczarr(empty, tmp_path / "x.nczarr", unlimited_dims=unlimited)
    to_nczarr(empty.rename(v="w"), tmp_path / "x.nczarr", mode="a")
    rows = xr.Dataset({"v": ("t", [1.0, 2.0]), "w": ("t", [3.0, 4.0])})
    to_nczarr(rows, tmp_path / "x.nczarr", append_dim="t")
    xr.testing.assert_identical(opened(tmp_path / "x.nczarr").load(), rows)


def test_unlimited_dims_are_refused_where_they_could_not_be_heeded(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    to_nczarr(GRID, path)
    with pytest.raises(ExportError, match="unlimited_dims"):
        to_nczarr(GRID.assign_coords(x=GRID.x + 50), path, append_dim="x", unlimited_dims=["x"])


def test_unlimited_dims_of_a_tree_need_not_be_in_every_group(tmp_path: Path) -> None:
    path = tmp_path / "x.nczarr"
    groups = {f"/{name}": xr.Dataset({name: ("time", [1, 2])}) for name in "ab"}
    to_nczarr(xr.DataTree.from_dict(groups), path, unlimited_dims=["time"])
    for name in groups:
        assert opened(path, group=name).encoding["unlimited_dims"] == {"time"}


@pytest.mark.parametrize(
    "encoding", [{"compressor": "gzip"}, {"chunks": (1, 1), "chunksizes": (2, 2)}]
)
def test_encoding_that_contradicts_itself_is_refused(
    tmp_path: Path, encoding: dict[str, Any]
) -> None:
    with pytest.raises(ExportError, match=r"compressor|chunksizes"):
        to_nczarr(GRID, tmp_path / "x.nczarr", encoding={"a": encoding})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("chunked", [False, True])
def test_text_with_nul_is_refused(tmp_path: Path, chunked: bool) -> None:
    text = xr.Dataset({"b": ("x", np.array(["a\0", "b"], object))})
    if chunked:
        text = text.chunk(x=1)
    with pytest.raises((ExportError, ValueError), match="NUL"):
        to_nczarr(text, tmp_path / "x.nczarr")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "option", ["compute", "consolidated", "safe_chunks", "align_chunks", "write_empty_chunks"]
)
@pytest.mark.parametrize("value", ["yes", 1, "False"])
def test_what_is_neither_true_nor_false_is_refused(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(ExportError, match=f"{option}: must be True or False, not {value!r}"):
        to_nczarr(GRID, tmp_path / "x.nczarr", **{option: value})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"storage_options": "anon"}, "storage_options: must be a dict, not str"),
        ({"encoding": ["zlib"]}, "encoding: must be a dict of dicts, not list"),
        ({"group": 3}, "group: must be a string or None, not 3"),
        ({"unlimited_dims": True}, "unlimited_dims: must be names of dimensions, not True"),
        ({"callback": print}, "callback: must be a callback of fsspec"),
        ({"append_dim": "x", "mode": "w"}, "mode is 'w'; with append_dim it is 'a', or left out"),
    ],
)
def test_options_of_the_wrong_kind(tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises((ExportError, URLError), match=reason):
        to_nczarr(GRID, tmp_path / "x.nczarr", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_no_callback_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    to_nczarr(GRID, tmp_path / "x.nczarr")
    before = sorted(tmp_path.rglob("*"))
    told: Any = print
    with pytest.raises(URLError, match="callback"):
        to_cfa(GRID, tmp_path / "x.nca", callback=told)
    with pytest.raises(URLError, match="callback"):
        aggregate([tmp_path / "x.nczarr"], tmp_path / "x.nca", dim="t", callback=told)
    with pytest.raises(URLError, match="callback"):
        compare(tmp_path / "x.nczarr", tmp_path / "x.nczarr", callback=told)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.name == "nt", reason="there are no such permissions")
@pytest.mark.parametrize("name", ["d.zip", "m.nca", "c.nc"])
def test_a_file_that_is_replaced_keeps_its_permissions(name: str, tmp_path: Path) -> None:
    """What only its owner may read is not shown to others by an append."""
    path, whole = tmp_path / name, xr.Dataset({"v": ("t", np.arange(4.0))})

    def write(part: xr.Dataset, **options: Any) -> None:
        if name == "d.zip":
            to_nczarr(part, path, unlimited_dims=None if options else ["t"], **options)
        elif name == "m.nca":
            to_cfa(part, path, **options)
        else:
            to_nczarr(part, tmp_path / "source", "w")
            main(["copy", str(tmp_path / "source"), str(path), "--overwrite"])

    write(whole)
    path.chmod(0o600)
    write(whole, append_dim="t")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs two groups")
@pytest.mark.parametrize("name", ["d", "d.zip"])
def test_what_is_replaced_stays_in_its_group(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    to_nczarr(GRID, path)
    os.chown(path, -1, 12345)
    path.chmod(0o2770 if name == "d" else 0o640)
    to_nczarr(GRID, path, "w")
    assert path.stat().st_gid == 12345
    assert stat.S_IMODE(path.stat().st_mode) == (0o2770 if name == "d" else 0o640)
    if name == "d":
        assert {file.stat().st_gid for file in path.rglob("*")} == {12345}


def with_other_files(url: str, directory: str) -> dict[str, bytes]:
    """Add files to an archive that belong to no dataset; return these."""
    others = {"README": b"read me", "figure.png": b"\x89PNG", f"{directory}notes.txt": b"mine"}
    fs, path = fsspec.core.url_to_fs(url)
    content = io.BytesIO(fs.cat_file(path) if fs.exists(path) else b"")
    with zipfile.ZipFile(content, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in others.items():
            archive.writestr(name, data)
    fs.pipe_file(path, content.getvalue())
    return others


def others_in(url: str, names: Iterable[str]) -> dict[str, bytes]:
    """Read files from an archive."""
    fs, path = fsspec.core.url_to_fs(url)
    with zipfile.ZipFile(io.BytesIO(fs.cat_file(path))) as archive:
        return {name: archive.read(name) for name in names if name in archive.namelist()}


@pytest.mark.parametrize("options", [{"mode": "w"}, {"mode": "a"}, {"append_dim": "y"}], ids=str)
@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_other_files_of_an_archive_stay(
    scheme: str, mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """As those of a folder: only the dataset is changed, or replaced."""
    url = f"{scheme}://{tmp_path}/x.zip"
    target = f"{url}#mode={mode},zip"
    to_nczarr(GRID, target)
    others = with_other_files(url, "x/" if mode == "nczarr" else "")
    to_nczarr(GRID, target, **options)
    assert others_in(url, others) == others
    with xr.open_dataset(target, engine="nczarr") as back:
        assert back.sizes["y"] == (6 if "append_dim" in options else 3)


@pytest.mark.parametrize(("before", "after"), [("nczarr", "zarr"), ("zarr", "nczarr")])
def test_other_files_stay_where_they_are_in_an_archive(
    before: str, after: str, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/x.zip"
    to_nczarr(GRID, f"{url}#mode={before},zip")
    others = with_other_files(url, "x/" if before == "nczarr" else "")
    to_nczarr(GRID + 1, f"{url}#mode={after},zip", mode="w")
    assert others_in(url, others) == others
    assert opened(tmp_path / "x.zip")["a"].values[0, 0] == 1


def test_an_archive_without_a_dataset(tmp_path: Path) -> None:
    """Only what is in the way of the dataset keeps it from being written there."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/list.csv", "1,2")
    to_nczarr(GRID, path, mode="w")
    assert others_in(f"file://{path}", ["x/list.csv"]) == {"x/list.csv": b"1,2"}
    xr.testing.assert_identical(opened(path).load(), GRID)
    before = path.read_bytes()
    with pytest.raises(ExportError, match=r"in the way .*: list\.csv"):
        to_nczarr(GRID.rename(a="list.csv"), path, mode="w")
    assert path.read_bytes() == before
