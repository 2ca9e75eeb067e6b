"""`nczarr_xarray.upgrade`: data of every release, read by other releases of netCDF-C."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.changes.journal import JOURNAL
from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, LossWarning
from nczarr_xarray import ExportError, open_hierarchy, to_nczarr, upgrade, validate
from nczarr_xarray.cli.dump import write_cdl
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.model import ChunkedArray, Group
from tests.support.builders.trees import read_tree, write_tree
from tests.support.corpora.emit_models import differences, rewritable
from tests.support.corpora.samples import DATA, NCZARR, Objects, vector
from tests.support.faults.killing import Kill, Target, in_process
from tests.support.faults.killing import ours as seen_by_us
from tests.support.marks import slow_but
from tests.support.oracles.nc_adapter import ncdump
from tests.support.oracles.netcdf_c import netcdf_model, netcdf_values

#: A crash of netCDF-C while it wrote left no array in it.
VECTORS = [name for name in rewritable() if name != "quantize-nczarr+file-4.9.0"]
OLD = [name for name in VECTORS if not name.endswith(("4.9.3", "4.10.1"))]
QUICK = ("dims-nczarr+file-4.8.0", "types-nczarr+file-4.8.1", "strings-nczarr+file-4.9.2")


def unpacked(name: str, path: Path) -> Path:
    return write_tree(path, vector(name))


def url_of(path: Path) -> str:
    return f"file://{path}#mode=nczarr,file"


def shown(values: Any) -> tuple[Any, ...]:
    array = np.asarray(values)
    # bytes, in which NaN equals NaN
    return array.shape, array.tolist() if array.dtype.hasobject else array.tobytes()


def values(opened: Opened) -> dict[str, Any]:
    variables = [v for group in opened.hierarchy.root.walk() for v in group.variables.values()]
    return {variable.path: shown(opened.read(variable)) for variable in variables}


def values_by_netcdf_c(path: Path) -> dict[str, Any]:
    return {name: shown(found) for name, found in netcdf_values(url_of(path)).items()}


def chunks(objects: Objects) -> Objects:
    return {k: data for k, data in objects.items() if not k.rpartition("/")[2].startswith(".")}


@pytest.mark.parametrize("name", slow_but(OLD, *QUICK))
def test_todays_netcdf_c_reads_what_old_releases_wrote(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path / "x.file")
    before = read_tree(path)
    with open_hierarchy(path) as opened:
        root, data = opened.hierarchy.root, values(opened)
    assert upgrade(path).is_needed
    assert list(differences(without_sizes(root), netcdf_model(url_of(path)), netcdf_c=True)) == []
    assert values_by_netcdf_c(path) == data
    assert chunks(read_tree(path)) == chunks(before)
    assert [f for f in validate(path, data=True) if f.is_fault] == []
    assert not upgrade(path).is_needed


def without_sizes(root: Group) -> Group:
    """The model without the lengths of strings, which netCDF-C does not tell."""
    for group in root.walk():
        for variable in group.variables.values():
            if variable.nc_type == "string" and isinstance(variable.array, ChunkedArray):
                variable.array = replace(variable.array, dtype=np.dtype("S9"))
    return root


@pytest.mark.parametrize("name", slow_but(VECTORS, *QUICK))
def test_netcdf_c_4_9_0_reads_what_it_can_hold(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path / "x")
    before = read_tree(path)
    large = name.startswith("chunks")  # millions of numbers, as text
    with open_hierarchy(path) as opened:
        pieces: list[str] = []
        read = None if large else opened.read
        assert write_cdl("x", opened.hierarchy.root, pieces.append, read) == []
    try:
        upgrade(path, "4.8.1")
    except ExportError as error:
        assert error.lines
        assert read_tree(path) == before
        return
    assert chunks(read_tree(path)) == chunks(before)
    text = ncdump(*(["-h"] if large else []), url_of(path))
    assert text.split("\n") == "".join(pieces).split("\n")


def test_forms_are_ways_and_back(tmp_path: Path) -> None:
    path = unpacked("types-nczarr+file-4.8.1", tmp_path / "x")
    with open_hierarchy(path) as opened:
        root, data = opened.hierarchy.root, values(opened)
    for compat in ("4.9.3", "4.9.2", "4.8.1", "4.9.2", "4.9.3"):
        assert upgrade(path, compat).is_needed
        with open_hierarchy(path) as opened:
            assert list(differences(root, opened.hierarchy.root)) == []
            assert values(opened) == data


def test_pure_zarr_becomes_nczarr(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    table = xr.Dataset({"v": (("t", "x"), np.arange(6.0).reshape(2, 3))}, {"t": [1, 2]})
    table.to_zarr(path, zarr_format=2, consolidated=True)
    before = values(open_hierarchy(path))
    upgrade(path)
    assert values_by_netcdf_c(path) == before
    assert [f for f in validate(path, data=True) if f.is_fault] == []
    xr.testing.assert_identical(xr.open_zarr(path, consolidated=True).load(), table)


def test_text_of_pure_zarr_becomes_that_of_netcdf(tmp_path: Path) -> None:
    """The mark by which xarray makes text of Zarr's bytes is none for strings."""
    table = xr.Dataset(
        {
            "t": ("x", np.array(["a", "éé", ""], object)),
            "single": ((), "q"),
            "letters": (("x", "n"), np.array([[b"a", b"b"]] * 3)),
        }
    )
    path = tmp_path / "x.zarr"
    to_nczarr(table, f"file://{path}#mode=zarr,file")
    with xr.open_dataset(path, engine="zarr", consolidated=False) as before:
        expected = before.load()
    upgrade(path)
    for url, engine in ((url_of(path), "netcdf4"), (path, "nczarr")):
        with xr.open_dataset(url, engine=engine) as ds:
            xr.testing.assert_equal(ds.load(), expected)


@pytest.mark.parametrize("fill", [None, False, True])
def test_bools_become_bytes_that_xarray_takes_for_bools(tmp_path: Path, fill: bool | None) -> None:
    """Their chunks stay, and those that are not stored read as they did."""
    path = tmp_path / "x.zarr"
    group = zarr.create_group(path, zarr_format=2)
    names: dict[str, Any] = {"_ARRAY_DIMENSIONS": ["x"]}
    array = group.create_array(
        "v", shape=(4,), chunks=(2,), dtype=bool, fill_value=fill, attributes=names
    )
    array[:2] = [True, False]
    before = np.asarray(array[:]).tolist()
    with pytest.warns(LossWarning, match="mask of bools") if fill is not None else nullcontext():
        upgrade(path)
    with xr.open_dataset(url_of(path), engine="netcdf4") as ds:
        assert ds["v"].dtype == bool
        assert ds["v"].values.tolist() == before
    assert [f for f in validate(path, data=True) if f.is_fault] == []


def test_separator_of_chunk_keys_stays(tmp_path: Path) -> None:
    objects = dict(vector("dims-nczarr+file-4.8.1"))
    zarray = json.loads(objects["g1/mixed/.zarray"])
    objects["g1/mixed/.zarray"] = json.dumps(zarray | {"dimension_separator": "/"}).encode()
    objects["g1/mixed/0/0"] = objects.pop("g1/mixed/0.0")
    before = values(open_hierarchy(objects))
    upgrade(objects)
    assert json.loads(objects["g1/mixed/.zarray"])["dimension_separator"] == "/"
    assert values(open_hierarchy(objects)) == before


def test_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes((DATA / "dims-nczarr+zip-4.8.1.dataset.zip").read_bytes())
    before = values(open_hierarchy(path))
    upgrade(path)
    with open_hierarchy(path) as opened:
        assert opened.hierarchy.generation == "G2A"
        assert values(opened) == before


@pytest.mark.parametrize(
    ("objects", "compat", "reason"),
    [
        (NCZARR, "4.9.2", "no unlimited dimensions"),
        (NCZARR, "4.7", "it is one of"),
        ({**NCZARR, "t/.zarray": b"{}"}, "4.9.3", "cannot be read"),
        ({k: v for k, v in NCZARR.items() if k[:3] != "emp"}, "4.9.3", "correct that first"),
    ],
)
def test_what_cannot_be_said_is_an_error_before_anything_is_written(
    objects: Objects, compat: str, reason: str
) -> None:
    target = dict(objects)
    with pytest.raises(ExportError, match=reason):
        upgrade(target, compat)
    assert target == objects


def test_aggregation_is_refused(tmp_path: Path) -> None:
    table = xr.Dataset({"v": ("t", np.arange(400.0))}, {"t": np.arange(400)})
    table.nczarr.to_cfa(str(tmp_path / "m.nczarr"), max_object_size=1000)
    with pytest.raises(ExportError, match="is an aggregation"):
        upgrade(tmp_path / "m.nczarr", "4.9.2")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    xr.Dataset({"v": ("x", np.arange(3))}).to_zarr(
        tmp_path / "x.zarr", zarr_format=3, consolidated=False
    )
    with pytest.raises(ValueError, match="is Zarr 3"):
        upgrade(tmp_path / "x.zarr")
    with pytest.raises(FileNotFoundError):
        upgrade(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "refs.json").write_text("{}")
    with pytest.raises(FormatError, match=r"is a file, .*nothing to upgrade"):
        upgrade(tmp_path / "refs.json")


def test_nothing_to_upgrade(tmp_path: Path) -> None:
    for name in ("typo", "typo.zip"):
        with pytest.raises(DatasetNotFoundError, match="there is no dataset to upgrade"):
            upgrade(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = unpacked("dims-nczarr+file-4.8.0", tmp_path / "x")
    before = read_tree(path)
    assert main(["upgrade", str(path), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert read_tree(path) == before
    assert "--- .nczarr" in lines
    assert "+++ /dev/null" in lines
    assert '+  "_nczarr_superblock": {' in lines
    assert main(["upgrade", str(path)]) == 0
    assert capsys.readouterr().out.endswith("removed\n")
    assert not (path / ".nczarr").exists()
    assert main(["upgrade", str(path)]) == 0
    assert "already" in capsys.readouterr().out


# -- kills -------------------------------------------------------------------------

TABLE = xr.Dataset({"a": ("x", np.arange(5))}, attrs={"title": "old"})


def _old(target: Target) -> None:
    to_nczarr(TABLE, target.url, compat="4.8.1", consolidated=True)


def _upgrade(target: Target) -> None:
    upgrade(target.url)


@pytest.mark.slow
def test_killed_upgrade_leaves_the_old_form_or_the_new_one(tmp_path: Path) -> None:
    """At every fifth call that touches the store: readers see all, and the next upgrade ends it."""
    first = Target(str(tmp_path / "0"))
    _old(first)
    content = seen_by_us(first)
    whole = in_process(_upgrade, first, kill=Kill())
    assert whole.error is None
    forms = set()
    for call in range(1, whole.calls + 1, 5):
        target = Target(str(tmp_path / str(call)))
        _old(target)
        run = in_process(_upgrade, target, kill=Kill(call, after=bool(call % 2)))
        assert run.killed
        assert seen_by_us(target) == content, run.killed
        with open_hierarchy(target.url) as opened:
            forms.add(opened.hierarchy.generation)
        upgrade(target.url)
        assert seen_by_us(target) == content
        assert not Path(target.url, JOURNAL).exists(), run.killed  # only we would read it
        main(["validate", target.url, "--fix"])
        left = {key for key in read_tree(Path(target.url)) if ".nczarr-tmp-" not in key}
        assert left == read_tree(Path(first.url)).keys(), run.killed
        assert not any(f.is_fault for f in validate(target.url))
    assert forms == {"G2U", "G2A"}


@pytest.mark.parametrize("gone", [".zattrs", "v/.zattrs"])
def test_what_only_consolidated_metadata_have_is_not_lost(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "d"
    to_nczarr(xr.Dataset({"v": ("x", [1, 2])}, attrs={"title": "t"}), path, consolidated=True)
    (path / gone).unlink()
    before = read_tree(path)
    with pytest.raises(ExportError, match=rf"{gone}: only \.zmetadata has this"):
        upgrade(path)
    assert read_tree(path) == before
