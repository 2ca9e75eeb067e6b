from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import DatasetExistsError, ExportError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_xarray import to_nczarr
from nczarr_xarray.aggregation import joining, kerchunk
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.aggregation.reading import read_files
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import TIME, field, step, write
from tests.support.builders.trees import read_tree
from tests.support.marks import each_once
from tests.support.servers.httpserver import Server

VERSIONS = ("0.4", "0.6.2", "1.13")


def chunked(path: Path, times: list[float], chunks: tuple[int, int] = (1, 2), **more: Any) -> str:
    variables: dict[str, Any] = {
        "time": (("time",), np.array(times, "f8"), TIME),
        "name": (("x",), np.array(["a", "bb", "é"]), {}),
        "tas": (
            ("time", "x"),
            field(times),
            {"units": "K", "chunksizes": chunks, "zlib": True, **more},
        ),
        "wide": (("time", "z"), np.ones((len(times), 100)), {"chunksizes": (1, 100)}),
    }
    return write(path, variables)


def three(folder: Path) -> list[str]:
    return [chunked(folder / f"{n}.nc", [2 * n, 2 * n + 1]) for n in range(3)]


def check(references: Any, times: int, **options: Any) -> None:
    with xr.open_dataset(references, engine="nczarr", decode_times=False, **options) as ds:
        assert np.array_equal(ds.tas.values, field([*range(times)]))
        assert ds.time.values.tolist() == [*range(times)]
        assert ds.name.values.tolist() == ["a", "bb", "é"]
        assert ds.tas.attrs == {"units": "K"}
        assert ds.tas.dims == ("time", "x")


def test_json_for_everybody(tmp_path: Path) -> None:
    files = [chunked(tmp_path / f"{n}.nc", [3 * n, 3 * n + 1, 3 * n + 2]) for n in range(3)]
    aggregate(files[::-1], tmp_path / "all.json")
    check(tmp_path / "all.json", 9)
    references = json.loads((tmp_path / "all.json").read_text())
    assert references["refs"]["wide/4.0"][0] == files[1]
    with xr.open_dataset(references, engine="kerchunk", decode_times=False) as ds:
        assert np.array_equal(ds.tas.values, field([*range(9)]))
        assert ds.time.values.tolist() == [*range(9)]
    with pytest.raises(DatasetExistsError, match=r"already; overwrite=True replaces it$"):
        aggregate(files, tmp_path / "all.json")
    aggregate(files[:1], tmp_path / "all.json", "time", overwrite=True)
    check(tmp_path / "all.json", 3)


def test_numbers_of_what_files_have_in_common_are_exact(tmp_path: Path) -> None:
    fill = np.float32(1e20)
    area = (("x",), np.array([1, fill, 3], "f4"), {"_FillValue": fill, "step": np.float32(0.1)})
    files = [step(tmp_path / f"{n}.nc", [n], more={"area": area}) for n in range(2)]
    aggregate(files, tmp_path / "all.json")
    found = fsspec.get_mapper("reference://", fo=str(tmp_path / "all.json"), remote_protocol="file")
    with xr.open_dataset(found, engine="zarr") as ds:
        assert np.array_equal(ds["area"], [1, np.nan, 3], equal_nan=True)
        assert ds["area"].attrs["step"] == np.float32(0.1)


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    files = three(tmp_path)
    aggregate(files, tmp_path / "all.parq")
    check(tmp_path / "all.parq", 6)
    with pytest.raises(DatasetExistsError):
        aggregate(files, tmp_path / "all.parq")
    assert not list(tmp_path.glob(".*"))


def test_parquet_on_another_filesystem(tmp_path: Path) -> None:
    """There a folder is not replaced: it would be old and new for a while."""
    pytest.importorskip("pyarrow")
    folder = f"memory://{tmp_path.name}"
    files, target = [], f"{folder}/all.parq"
    for number, path in enumerate(three(tmp_path)):
        files.append(f"{folder}/{number}.nc")
        fsspec.filesystem("memory").put(path, files[-1])
    aggregate(files, target)
    check(target, 6)
    for overwrite, message in ((False, "is there already"), (True, "in one step here")):
        with pytest.raises(DatasetExistsError, match=message):
            aggregate(files, target, overwrite=overwrite)
    check(target, 6)


def test_parquet_on_another_filesystem_after_a_writer_was_killed(tmp_path: Path) -> None:
    """What it left is no dataset, and nobody has to remove it."""
    pytest.importorskip("pyarrow")
    memory, folder = fsspec.filesystem("memory"), f"memory://{tmp_path.name}"
    files, target = [], f"{folder}/all.parq"
    for number, path in enumerate(three(tmp_path)):
        files.append(f"{folder}/{number}.nc")
        memory.put(path, files[-1])
    for number in (0, 7):
        memory.pipe(f"{target}/tas/refs.{number}.parq", b"of a longer array")
    aggregate(files, target)
    check(target, 6)
    assert not memory.exists(f"{target}/tas/refs.7.parq")


def _read_nothing(*_: Any) -> None:
    raise AssertionError("files were read")


@pytest.mark.parametrize("exchanged", [True, False])
def test_parquet_is_replaced_as_a_whole(
    exchanged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    files = three(tmp_path)
    target = tmp_path / "all.parq"
    aggregate(files, target, variables=["tas"])
    (target / "tas" / "refs.7.parq").write_bytes(b"of a longer array")
    if not exchanged:
        monkeypatch.setattr(kerchunk, "exchange", lambda one, other: False)
    aggregate(files[:2], target, overwrite=True)
    assert not (target / "tas" / "refs.7.parq").exists()
    with xr.open_dataset(target, engine="nczarr", decode_times=False) as found:
        assert found.sizes["time"] == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        *map(os.path.basename, files),
        target.name,
    }


@pytest.mark.parametrize("what", ["mine", "all.parq/mine.txt", "all.parq"])
def test_what_is_no_reference_stays(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is found out before any file is read."""
    pytest.importorskip("pyarrow")
    files = three(tmp_path)
    mine = tmp_path / what
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    if what == "mine":
        aggregate(files, tmp_path / "all.parq")
    with monkeypatch.context() as patch:
        patch.setattr(joining, "read_files", _read_nothing)
        with pytest.raises(DatasetExistsError):
            aggregate(files, tmp_path / "all.parq", overwrite=what != "mine")
    assert mine.read_text() == "mine"


def test_json_that_came_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, target = three(tmp_path), tmp_path / "all.json"

    def meanwhile(*arguments: Any) -> list[int]:
        added = read_files(*arguments)
        target.write_text("mine")
        return added

    monkeypatch.setattr(joining, "read_files", meanwhile)
    with pytest.raises(DatasetExistsError):
        aggregate(files, target)
    assert target.read_text() == "mine"


def test_a_new_dimension(tmp_path: Path) -> None:
    def one(n: int) -> str:
        values = np.arange(6.0).reshape(2, 3) + n
        return write(tmp_path / f"{n}.nc", {"v": (("y", "x"), values, {"chunksizes": (1, 3)})})

    aggregate([one(n) for n in range(3)], tmp_path / "all.json", "run")
    with xr.open_dataset(tmp_path / "all.json", engine="nczarr") as ds:
        assert ds.v.dims == ("run", "y", "x")
        assert ds.v[:, 1, 2].values.tolist() == [5, 6, 7]


def test_remote_files(tmp_path: Path) -> None:
    memory.clear()
    files = {f"/{n}.nc": Path(chunked(tmp_path / f"{n}.nc", [n])).read_bytes() for n in range(4)}
    with Server(files) as server:
        aggregate([f"{server.url}/{n}.nc" for n in range(4)], tmp_path / "all.json")
        check(tmp_path / "all.json", 4)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"chunks": (1, 3)}, r"b.nc: /tas has the chunks \[1, 3\], and in .*a.nc \[1, 2\]: no "),
        ({"zlib": False}, r"b.nc: /tas has the (compressor|filters) null, and in"),
        ({"units": "mK"}, r"b.nc: /tas has another units than in .*a.nc: references cannot"),
        ({"_FillValue": np.float32(-1)}, r"b.nc: /tas has the fill_value -1.0, and in .*a.nc"),
    ],
)
def test_what_one_array_cannot_hold_is_refused(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    a = chunked(tmp_path / "a.nc", [0])
    b = chunked(tmp_path / "b.nc", [1], **other)
    with pytest.raises(ExportError, match=message):
        aggregate([a, b], tmp_path / "all.json")
    assert not (tmp_path / "all.json").exists()


def test_a_chunk_may_reach_over_the_end_of_all(tmp_path: Path) -> None:
    a = chunked(tmp_path / "a.nc", [0, 1], (2, 3))
    b = chunked(tmp_path / "b.nc", [2, 3, 4], (2, 3))
    aggregate([a, b], tmp_path / "all.json")
    check(tmp_path / "all.json", 5)


@pytest.mark.parametrize("option", [{"append": True}, {"cfa_version": "1.13"}, {"format": "CFA4"}])
def test_options_of_masters(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ExportError, match="is to be references"):
        aggregate([chunked(tmp_path / "a.nc", [0])], tmp_path / "all.json", "time", **option)


@pytest.mark.parametrize(
    ("source", "target", "name"),
    each_once(VERSIONS, (*VERSIONS[1:], VERSIONS[0]), ["new.nca", "sub/new.nca", "new.zarr"]),
)
def test_masters_are_converted(tmp_path: Path, source: str, target: str, name: str) -> None:
    (tmp_path / "sub").mkdir()
    files = [chunked(tmp_path / f"{n}.nc", [n]) for n in range(3)]
    aggregate(files, tmp_path / "old.nca", cfa_version=source)
    convert_references(tmp_path / "old.nca", tmp_path / name, cfa_version=target)
    check(tmp_path / name, 3)
    with pytest.raises(DatasetExistsError):
        convert_references(tmp_path / "old.nca", tmp_path / name, cfa_version=target)
    convert_references(tmp_path / "old.nca", tmp_path / name, cfa_version=target, overwrite=True)
    check(tmp_path / name, 3)


@pytest.mark.parametrize("source", VERSIONS)
def test_masters_become_references(tmp_path: Path, source: str) -> None:
    files = [chunked(tmp_path / f"{n}.nc", [n]) for n in range(3)]
    aggregate(files, tmp_path / "old.nca", cfa_version=source)
    convert_references(tmp_path / "old.nca", tmp_path / "new.json")
    check(tmp_path / "new.json", 3)


def test_options_of_a_master_are_not_for_its_files(tmp_path: Path) -> None:
    data = {f"/{n}.nc": Path(chunked(tmp_path / f"{n}.nc", [n])).read_bytes() for n in range(2)}
    with Server({}) as here, Server(data) as there:
        aggregate([f"{there.url}{name}" for name in data], tmp_path / "m.nca")
        here.files["/m.nca"] = (tmp_path / "m.nca").read_bytes()
        there.requests.clear()
        memory.clear()
        convert_references(
            f"{here.url}/m.nca",
            tmp_path / "new.json",
            storage_options={"headers": {"Authorization": "Bearer master"}},
            allow={f"{there.url}/": {"headers": {"X-Key": "files"}}},
        )
        check(tmp_path / "new.json", 2)
    own = {request.headers.get("Authorization") for request in here.requests}
    assert own == {"Bearer master"}
    converting = [r for r in there.requests if "X-Key" in r.headers]
    assert {request.path for request in converting} == set(data)
    assert not [r for r in there.requests if "Authorization" in r.headers]


@pytest.mark.parametrize("source", VERSIONS)
@pytest.mark.parametrize("target", [*VERSIONS, "json"])
def test_packing_is_converted(tmp_path: Path, source: str, target: str) -> None:
    for n in range(2):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("t", 1)
            file.createVariable("t", "f8", ("t",))[:] = n
            made = file.createVariable("v", "i2", ("t",), fill_value=-1)
            made.setncatts({"scale_factor": 0.5, "add_offset": 10.0})
            made[:] = [10.5 + n]
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "old.nca", cfa_version=source)
    if target == "json":
        convert_references(tmp_path / "old.nca", tmp_path / "new.json")
        new = tmp_path / "new.json"
    else:
        new = tmp_path / "new.nca"
        convert_references(tmp_path / "old.nca", new, cfa_version=target)
    with xr.open_dataset(new, engine="nczarr") as ds:
        assert ds.v.values.tolist() == [10.5, 11.5]


@pytest.mark.parametrize("target", VERSIONS)
def test_what_to_cfa_packs_is_converted(tmp_path: Path, target: str) -> None:
    ds = xr.Dataset({"v": ("t", [10.5, 11.5])}, {"t": [0.0, 1.0]})
    encoding = {"v": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    ds.nczarr.to_cfa(
        tmp_path / "old.nca", cfa_version="1.13", subarray_shape={"t": 1}, encoding=encoding
    )
    convert_references(tmp_path / "old.nca", tmp_path / "new.nca", cfa_version=target)
    with xr.open_dataset(tmp_path / "new.nca", engine="nczarr") as found:
        assert found.v.values.tolist() == [10.5, 11.5]
    more = step(tmp_path / "3.nc", [3])
    with pytest.raises(ExportError, match="packs the values of /v itself"):
        aggregate([more], tmp_path / "old.nca", append=True)


def test_references_that_hold_all_data_become_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.nc", {"v": (("x",), np.arange(3.0), {"units": "K"})})
    aggregate([path], tmp_path / "a.json", "x")
    convert_references(tmp_path / "a.json", tmp_path / "b.nca")
    with xr.open_dataset(tmp_path / "b.nca", engine="nczarr") as ds:
        assert ds.v.values.tolist() == [0, 1, 2]


def test_groups_of_references(tmp_path: Path) -> None:
    for n in range(2):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("t", 1)
            file.createVariable("t", "f8", ("t",))[:] = n
            for path in ("a", "a/b"):
                group = file.createGroup(path)
                group.note = path
                group.createVariable("v", "f8", ("t",))[:] = n + len(path)
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "all.json")
    with xr.open_datatree(tmp_path / "all.json", engine="nczarr") as tree:
        assert np.asarray(tree["a/v"]).tolist() == [1, 2]
        assert np.asarray(tree["a/b/v"]).tolist() == [3, 4]
        assert tree["a/b"].attrs["note"] == "a/b"


def test_of_one_file_in_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file, target = chunked(tmp_path / "x.nc", [0, 1, 2]), tmp_path / "x.parq"
    for _ in range(2):  # other references are replaced, as JSON is
        assert main(["refs", file, str(target)]) == 0
        assert target.is_dir()
        check(target, 3)
    (target / "notes.txt").write_text("mine")
    assert main(["refs", file, str(target)]) == 1
    assert (target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["s3://bucket/x.json", "s3://bucket/x.parq"])
def test_of_one_file_to_a_url(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = chunked(tmp_path / "x.nc", [0, 1, 2])
    monkeypatch.chdir(tmp_path)
    assert main(["refs", file, target]) == 2
    assert f"{target}: is a URL" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.nc"]


@pytest.mark.parametrize(
    "how",
    [{"mode": "a"}, {"mode": "a", "append_dim": "time"}, {"mode": "r+", "region": "auto"}],
    ids=["add", "append", "region"],
)
def test_nothing_is_written_into_a_folder_of_references(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    pytest.importorskip("pyarrow")
    target = tmp_path / "refs.parq"
    aggregate(three(tmp_path), target)
    before = read_tree(target)
    ds = xr.Dataset({"tas": (("time", "x"), np.zeros((1, 3)))}, {"time": [5.0]})
    with pytest.raises(ExportError, match="are kerchunk references, and what they refer to"):
        to_nczarr(ds, target, **how)
    assert read_tree(target) == before
