"""Aggregations with groups, templates, missing fragments, and where fragments are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
)
from nczarr_xarray import aggregate, recover, to_cfa
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.cfa.task import Claim
from tests.support.examples import examples
from tests.support.marks import each_once, slow_but

VERSIONS: Any = ("0.4", "0.6.2", "1.13")
KINDS: Any = ("netCDF4", "netCDF3", "NCZarr")
NAMES = ("m.nca", "m.nczarr")


def group(steps: int, dim: str, offset: float = 0) -> xr.Dataset:
    """Data along a dimension of their own, and along x of the root; the second half is missing."""
    values = (offset + np.arange(steps * 6.0)).reshape(steps, 6)
    values[steps // 2 :] = np.nan
    numbers = np.where(np.isnan(values), np.nan, np.arange(steps * 6.0).reshape(steps, 6))
    ds = xr.Dataset(
        {
            "v": ((dim, "x"), values.astype("f4"), {"units": "K"}),
            "n": ((dim, "x"), numbers, {"long_name": "number"}),
        },
        {dim: np.arange(float(steps)), "height": 2.0},
        {"title": f"group of {dim}"},
    )
    ds["n"].encoding = {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.5}
    return ds


def sample() -> xr.DataTree:
    root = group(8, "t").assign_coords(x=np.arange(6) * 2.0)
    return xr.DataTree.from_dict(
        {"/": root, "/g": group(4, "s", 100), "/g/deep": group(6, "r", 200), "/empty": xr.Dataset()}
    )


def at(tree: xr.DataTree, path: str) -> xr.Dataset:
    node: Any = tree[path]
    found: xr.Dataset = node.to_dataset(inherit=False)
    return found


SHAPE = {"t": 3, "s": 2, "r": 2, "x": 4}


def groups(target: Any, engine: Any = "nczarr") -> dict[str, xr.Dataset]:
    found: dict[str, xr.Dataset] = xr.open_groups(target, engine=engine)
    try:
        return {path: one.load() for path, one in found.items()}
    finally:
        for one in found.values():
            one.close()


def by_netcdf(tree: xr.DataTree, path: Path) -> dict[str, xr.Dataset]:
    tree.to_netcdf(path, engine="netcdf4")
    return groups(path, "netcdf4")


def same(found: dict[str, xr.Dataset], wanted: dict[str, xr.Dataset]) -> None:
    assert found.keys() == wanted.keys()
    for path, one in wanted.items():
        xr.testing.assert_identical(found[path], one)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# -- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "kind", "name", "lazy"), each_once(VERSIONS, KINDS, NAMES, [False, True])
)
def test_trees(version: Any, kind: Any, name: str, lazy: bool, tmp_path: Path) -> None:
    tree = sample().chunk(x=3) if lazy else sample()
    options: Any = {"cfa_version": version, "fragment_format": kind, "subarray_shape": SHAPE}
    tree.nczarr.to_cfa(tmp_path / name, **options)
    same(groups(tmp_path / name), by_netcdf(sample(), tmp_path / "x.nc"))
    begins = {one.split(".")[1] for one in names(tmp_path / MasterPlace.find(name, None).stem)}
    assert begins == {"v", "n", "g_v", "g_n", "g_deep_v", "g_deep_n"}


def test_options_by_group(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    encoding = {"/g": {"v": {"zlib": True, "complevel": 3}}}
    tree = sample()
    tree.nczarr.to_cfa(
        target, subarray_shape=SHAPE, encoding=encoding, unlimited_dims={"/g": ["s"]}
    )
    with netCDF4.Dataset(tmp_path / "m" / "m.g_v.0.0.nc") as file:
        assert file["v"].filters()["complevel"] == 3
        assert {*file.variables} == {"s", "x", "height", "v"}
    with netCDF4.Dataset(target) as file:
        assert file["g"].dimensions["s"].isunlimited()
    for options, message in (
        ({"encoding": {"/h": {}}}, "unexpected encoding group '/h'"),
        ({"subarray_shape": {"q": 2}}, "subarray_shape names 'q': no such dimension"),
        ({"region": "auto"}, "is changed group by group"),
    ):
        wrong: Any = options
        with pytest.raises(ExportError, match=message):
            tree.nczarr.to_cfa(tmp_path / "n.nca", **wrong)


@pytest.mark.parametrize(("version", "name"), each_once(VERSIONS, NAMES))
def test_a_group_after_the_other(version: Any, name: str, tmp_path: Path) -> None:
    """A group is added and replaced; the others keep their fragments."""
    target, tree = tmp_path / name, sample()
    shape: Any = {"cfa_version": version, "max_object_size": 60}
    for path in tree.groups:
        at(tree, path).nczarr.to_cfa(target, group=path, **shape)
    same(groups(target), by_netcdf(tree, tmp_path / "x.nc"))
    with pytest.raises(DatasetExistsError, match="holds a group '/g' already; mode='w' replaces"):
        tree["empty"].nczarr.to_cfa(target, group="g")
    before = {*names(tmp_path / "m")}
    deep = group(4, "q", 1000)
    deep.nczarr.to_cfa(target, group="g/deep", mode="w", subarray_shape={"q": 2})
    tree["g/deep"] = xr.DataTree(deep)
    same(groups(target), by_netcdf(tree, tmp_path / "y.nc"))
    after = {*names(tmp_path / "m")}
    assert {one.split(".")[1] for one in before - after} == {"g_deep_v", "g_deep_n"}
    other = next(one for one in VERSIONS if one != version)
    with pytest.raises(ExportError, match="leave cfa_version out"):
        deep.nczarr.to_cfa(target, group="h", cfa_version=other)
    tree["empty"].nczarr.to_cfa(target, group="g", mode="w")
    with xr.open_dataset(target, engine="nczarr") as found:
        xr.testing.assert_identical(found.load(), groups(tmp_path / "x.nc", "netcdf4")["/"])
    assert {one.split(".")[1] for one in names(tmp_path / "m")} == {"v", "n"}


@pytest.mark.parametrize(("version", "kind"), each_once(VERSIONS, KINDS))
def test_changes_of_groups(version: Any, kind: Any, tmp_path: Path) -> None:
    target, tree = tmp_path / "m.nca", sample()
    options: Any = {"cfa_version": version, "fragment_format": kind, "subarray_shape": SHAPE}
    tree.nczarr.to_cfa(target, **options)
    more = group(3, "r", 500).assign_coords(r=[6.0, 7.0, 8.0])
    to_cfa(more, target, group="/g/deep", append_dim="r", fragment_format=kind)
    old = at(tree, "g/deep")
    whole = xr.concat([old, more], "r", data_vars="minimal", coords="minimal", compat="override")
    whole["n"].encoding = old["n"].encoding
    part = whole[["v"]].isel(r=slice(1, 5), x=slice(2, 5)).drop_vars(["r", "height"])
    part.copy(data={"v": np.full((4, 3), 9, "f4")}).nczarr.to_cfa(
        target, group="g/deep", region={"r": slice(1, 5), "x": slice(2, 5)}, fragment_format=kind
    )
    whole["v"][1:5, 2:5] = 9
    tree["g/deep"] = xr.DataTree(whole)
    same(groups(target), by_netcdf(tree, tmp_path / "x.nc"))
    with pytest.raises(DatasetNotFoundError, match="has no group '/h'; write it first"):
        to_cfa(more, target, group="h", append_dim="r")
    with pytest.raises(ExportError, match="append_dim 'r' is not a dimension of any variable"):
        to_cfa(more, target, append_dim="r")


def test_groups_of_aggregated_files_are_changed(tmp_path: Path) -> None:
    for n in range(2):
        tree = xr.DataTree.from_dict({"/g": xr.Dataset({"v": ("t", [n])}, {"t": [n]})})
        tree.to_netcdf(tmp_path / f"{n}.nc")
    target = tmp_path / "m.nca"
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], target)
    new = xr.Dataset({"v": ("t", [2])}, {"t": [2]})
    to_cfa(new, target, group="g", append_dim="t")
    with xr.open_dataset(target, engine="nczarr", group="g") as found:
        assert found["v"].values.tolist() == found["t"].values.tolist() == [0, 1, 2]


def test_two_dimensions_of_one_name(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        outer = file.createDimension("x", 2)
        group = file.createGroup("g")
        inner = group.createDimension("x", 3)
        group.createVariable("v", "f8", (outer, inner))
    with xr.open_dataset(tmp_path / "x.nc", engine="nczarr", group="g") as ds:
        with pytest.raises(ExportError, match="/g/v: has two dimensions of one name"):
            ds.nczarr.to_cfa(tmp_path / "m.nca", group="g", subarray_shape={"x": 1})
    assert names(tmp_path) == ["x.nc"]


# -- missing data --------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "kind", "lazy"), each_once(VERSIONS, KINDS, [False, True]))
def test_fragments_of_missing_data_are_one(
    version: Any, kind: Any, lazy: bool, tmp_path: Path
) -> None:
    target, data = tmp_path / "m.nca", group(9, "t").drop_vars("n")
    given = data.chunk(t=2) if lazy else data
    options: Any = {"fragment_format": kind, "encoding": {"v": {"_FillValue": -9.0}}}
    given.nczarr.to_cfa(target, cfa_version=version, subarray_shape={"t": 2, "x": 4}, **options)
    end = ".zarr" if kind == "NCZarr" else ".nc"
    there = [f"m.v.{t}.{x}{end}" for t in range(2) for x in range(2)]
    shapes = [f"m.v.missing.{shape}{end}" for shape in ("1.2", "1.4", "2.2", "2.4")]
    assert names(tmp_path / "m") == [*there, *shapes]
    data.to_netcdf(tmp_path / "x.nc", encoding=options["encoding"])
    with (
        xr.open_dataset(target, engine="nczarr") as found,
        xr.open_dataset(tmp_path / "x.nc", engine="netcdf4") as wanted,
    ):
        xr.testing.assert_identical(found.load(), wanted.load())
    # a region takes the place of a part of one, and makes others
    new = xr.Dataset({"v": (("t", "x"), np.full((5, 6), np.nan, "f4"))})
    new["v"][4] = 5
    new.nczarr.to_cfa(target, region={"t": slice(0, 5)}, fragment_format=kind)
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found["v"].notnull().sum("x").values.tolist() == [0] * 4 + [6] + [0] * 4
    assert len(names(tmp_path / "m")) == 8


def test_only_what_reads_the_same_is_left_out(tmp_path: Path) -> None:
    """What is missing in another way than by _FillValue, and numbers without one, are written."""
    target = tmp_path / "m.nca"
    values = np.array([-2147483647] * 4, "i4")  # netCDF's default
    ds = xr.Dataset(
        {
            "number": ("t", values),
            "other": ("t", values, {"missing_value": np.int32(-2147483647)}),
            "zero": ("t", np.full(4, -0.0), {"_FillValue": 0.0}),
            "text": ("t", np.array([""] * 4, object)),
        }
    )
    for version in VERSIONS:
        ds.nczarr.to_cfa(target, cfa_version=version, subarray_shape={"t": 2}, mode="w")
        assert not any("missing" in name for name in names(tmp_path / "m"))
        with xr.open_dataset(target, engine="nczarr", mask_and_scale=False) as found:
            assert found["number"].values.tolist() == values.tolist()


# -- templates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "kind", "name"), each_once(VERSIONS, KINDS, NAMES))
def test_templates(version: Any, kind: Any, name: str, tmp_path: Path) -> None:
    """All is missing, then what regions fill; the delayed object writes the rest."""
    target, tree = tmp_path / name, sample()
    lazy = tree.chunk(t=4, s=4, r=6)
    lazy["g/deep"]["n"] = tree["g/deep"]["n"]  # which is written at once
    options: Any = {"cfa_version": version, "fragment_format": kind, "subarray_shape": SHAPE}
    later = lazy.nczarr.to_cfa(target, compute=False, **options)
    found = groups(target)
    wanted = by_netcdf(tree, tmp_path / "x.nc")
    assert found["/"]["v"].isnull().all()
    assert found["/g"]["n"].isnull().all()
    xr.testing.assert_identical(found["/g/deep"]["n"], wanted["/g/deep"]["n"])
    xr.testing.assert_identical(found["/"].coords.to_dataset(), wanted["/"].coords.to_dataset())
    assert all(".missing." in one for one in names(tmp_path / "m") if ".v." in one)
    part = at(tree, "g")[["v"]].isel(s=slice(0, 3)).drop_vars(["s", "height"])
    part.nczarr.to_cfa(target, group="g", region={"s": slice(0, 3)}, fragment_format=kind)
    assert groups(target)["/g"]["v"].notnull().sum("x").values.tolist() == [6, 6, 0, 0]
    later.compute()
    same(groups(target), wanted)


def test_a_template_of_what_cannot_be_missing(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("t", np.arange(4)), "w": ("t", np.array(["a", "b", "c", "d"], object))})
    with pytest.raises(ExportError, match=r"(?s)/v: has no _FillValue.*/w: has no _FillValue"):
        ds.chunk(t=2).nczarr.to_cfa(tmp_path / "m.nca", compute=False)
    assert names(tmp_path) == []
    given = {"v": {"_FillValue": -1}}
    later = ds[["v"]].chunk(t=2).nczarr.to_cfa(tmp_path / "m.nca", compute=False, encoding=given)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].isnull().all()
    with pytest.raises(ExportError, match="compute=False makes a template of a new aggregation"):
        ds.nczarr.to_cfa(tmp_path / "m.nca", region={"t": slice(0, 4)}, compute=False)
    later.compute()
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, 1, 2, 3]


def test_a_template_of_what_is_in_memory_is_whole(tmp_path: Path) -> None:
    later = sample().nczarr.to_cfa(tmp_path / "m.nca", compute=False, subarray_shape=SHAPE)
    same(groups(tmp_path / "m.nca"), by_netcdf(sample(), tmp_path / "x.nc"))
    before = (tmp_path / "m.nca").read_bytes()
    later.compute()
    assert (tmp_path / "m.nca").read_bytes() == before


@pytest.mark.parametrize("scheduler", slow_but(["threads", "processes"], "threads"))
def test_templates_by_any_scheduler(scheduler: str, tmp_path: Path) -> None:
    """What other processes write is there, and what they found to be missing is one fragment."""
    dask = pytest.importorskip("dask")
    target, ds = tmp_path / "m.nca", group(8, "t")
    with dask.config.set(scheduler=scheduler):
        ds.chunk(t=3).nczarr.to_cfa(
            target, cfa_version="1.13", subarray_shape={"t": 2}, compute=False
        ).compute()
    with xr.open_dataset(target, engine="nczarr") as found:
        xr.testing.assert_equal(found.load(), ds)
    there = [name for name in names(tmp_path / "m") if ".v." in name]
    assert [name.split(".")[2] for name in there] == ["0", "1", "missing"]


# -- where fragments are -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["parts", "deep/er/", "{here}/parts", "file://{here}/parts"])
def test_the_folder_of_fragments(path: str, tmp_path: Path) -> None:
    here, moved = tmp_path / "here", tmp_path / "moved"
    here.mkdir()
    target, ds = here / "m.nca", group(4, "t").fillna(3)
    where = path.format(here=here)
    ds.nczarr.to_cfa(target, cfa_version="1.13", subarray_shape={"t": 2}, subarray_path=where)
    folder = here / ("deep/er" if "deep" in path else "parts")
    assert "m.v.0.0.nc" in names(folder)
    assert names(here) == sorted(["m.nca", folder.relative_to(here).parts[0]])
    more = group(4, "t", 50).fillna(4).assign_coords(t=np.arange(4.0, 8.0))
    more.nczarr.to_cfa(target, append_dim="t", subarray_shape={"t": 2})
    assert "m.v.2.0.nc" in names(folder)
    ones = xr.Dataset({"v": (("t", "x"), np.ones((2, 6), "f4"))})
    ones.nczarr.to_cfa(target, region={"t": slice(0, 2)})
    assert len(names(folder)) == 8
    shutil.move(here, moved)
    with xr.open_dataset(moved / "m.nca", engine="nczarr") as found:
        wanted = np.concatenate([ones["v"], ds["v"][2:], more["v"]])
        np.testing.assert_array_equal(found["v"], wanted)
    ds.nczarr.to_cfa(moved / "m.nca", mode="w")  # small enough for the master
    assert names(moved) == ["m.nca"]


@pytest.mark.parametrize("path", ["", ".", "../m", "/elsewhere", "a/../b", "s3://b/c", "a b", "a#"])
def test_folders_that_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="name a folder below"):
        group(4, "t").nczarr.to_cfa(tmp_path / "m.nca", subarray_path=path)
    assert names(tmp_path) == []


def test_fragments_elsewhere_are_cleaned_up(tmp_path: Path) -> None:
    target, ds = tmp_path / "m.nca", group(4, "t")
    ds.nczarr.to_cfa(target, subarray_shape={"t": 2}, subarray_path="a/b")
    before = names(tmp_path / "a/b")
    Claim.begin(MasterPlace.find(target, None)).note(["a/b/m.v.9.nc", "../m.v.0.0.nc"], [])
    (tmp_path / "a/b/m.v.9.nc").write_text("left over")
    (tmp_path.parent / "m.v.0.0.nc").write_text("of somebody else")
    assert recover(target)
    assert names(tmp_path / "a/b") == before
    assert (tmp_path.parent / "m.v.0.0.nc").exists()


# -- anything ------------------------------------------------------------------------------------


@settings(max_examples=examples(20), suppress_health_check=[*HealthCheck], deadline=None)
@given(st.data())
def test_any_tree_and_any_changes(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Groups, templates, regions and appends, values and missing ones: as in one netCDF file."""
    folder = tmp_path_factory.mktemp("any")
    target = folder / data.draw(st.sampled_from(NAMES))
    kind = data.draw(st.sampled_from(KINDS))
    paths = {"/": "t", "/g": "s", "/g/deep": "r"}
    wanted: dict[str, xr.Dataset] = {}

    def values(*shape: int) -> np.ndarray:
        found = np.arange(np.prod(shape), dtype="f4").reshape(shape) + data.draw(st.integers(0, 9))
        if data.draw(st.booleans()):
            found[data.draw(st.integers(0, shape[0])) :] = np.nan
        return found

    for path, dim in paths.items():
        shape = data.draw(st.integers(1, 6)), 5
        wanted[path] = xr.Dataset({"v": ((dim, "x"), values(*shape))})
    tree = xr.DataTree.from_dict(wanted)
    later = data.draw(st.booleans())
    if later or data.draw(st.booleans()):
        tree = tree.chunk()
    options: dict[str, Any] = {
        "cfa_version": data.draw(st.sampled_from(VERSIONS)),
        "fragment_format": kind,
        "subarray_shape": {name: data.draw(st.integers(1, 4)) for name in ("t", "s", "r", "x")},
        "subarray_path": data.draw(st.sampled_from([None, "parts"])),
    }
    rest = tree.nczarr.to_cfa(target, compute=not later, **options)
    if later and data.draw(st.booleans()):
        rest.compute()
    elif later:
        wanted = {path: one.where(False) for path, one in wanted.items()}
    for _ in range(data.draw(st.integers(0, 4))):
        path, dim = data.draw(st.sampled_from(sorted(paths.items())))
        there = wanted[path]
        rows = there.sizes[dim]
        if data.draw(st.booleans()):
            more = xr.Dataset({"v": ((dim, "x"), values(data.draw(st.integers(1, 3)), 5))})
            more.nczarr.to_cfa(target, group=path, append_dim=dim, fragment_format=kind)
            wanted[path] = xr.concat([there, more], dim)
            continue
        region = {}
        for name, size in ((dim, rows), ("x", 5)):
            start = data.draw(st.integers(0, size - 1))
            region[name] = slice(start, data.draw(st.integers(start + 1, size)))
        new = values(*(part.stop - part.start for part in region.values()))
        xr.Dataset({"v": ((dim, "x"), new)}).nczarr.to_cfa(
            target, group=path, region=region, fragment_format=kind
        )
        wanted[path] = there.copy(deep=True)
        wanted[path]["v"][region] = new
    same(groups(target), by_netcdf(xr.DataTree.from_dict(wanted), folder / "x.nc"))
    assert {*names(folder)} - {"parts", "m", "m.nczarr_fragments"} == {target.name, "x.nc"}
