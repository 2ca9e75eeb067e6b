from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.errors import DatasetExistsError, ExportError, StoreError
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.aggregation.zarr3 import array_document
from tests.support.httpserver import Server
from tests.support.manyfiles import TIME, write
from tests.support.s3server import S3Server

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # what is not in Zarr 3 yet
icechunk = pytest.importorskip("icechunk")

NOISE = np.random.default_rng(3).normal(size=(2, 30, 40))


def one(path: Path, n: int) -> str:
    packed = {"scale_factor": 0.5, "_FillValue": np.int16(-1), "chunksizes": (1, 15, 40)}
    numbers = (NOISE * 100).astype("i2")
    numbers[0, 0, :3] = -1
    deflated = {"chunksizes": (1, 15, 40), "zlib": True, "units": "K", "_FillValue": np.float32(9)}
    variables: dict[str, Any] = {
        "time": (("time",), np.arange(2.0) + 2 * n, TIME),
        "name": (("y",), np.array([f"é{n}" for n in range(30)]), {}),
        "letter": (("y", "two"), np.array([[b"a", b"b"]] * 30, "S1"), {}),
        "tas": (("time", "y", "x"), (NOISE + n).astype("f4"), deflated),
        "big": (("time", "y", "x"), (NOISE - n).astype(">f8"), {}),
        "packed": (("time", "y", "x"), numbers, packed),
        "mask": (("y",), np.arange(30, dtype="i1"), {"_FillValue": np.int8(3)}),
        "area": (("y",), np.full(30, 1e20, "f4"), {"_FillValue": np.float32(1e20)}),
        "scalar": ((), np.float64(7), {"note": "é"}),
    }
    return write(path, variables, title="é")


def reading(storage: Any) -> Any:
    config = icechunk.Repository.fetch_config(storage)
    access = dict.fromkeys(config.virtual_chunk_containers)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    return repository.readonly_session("main").store


def check(path: Path, master: Path) -> None:
    store = reading(icechunk.local_filesystem_storage(str(path)))
    with (
        xr.open_dataset(master, engine="nczarr") as ours,
        xr.open_zarr(store, consolidated=False) as theirs,
    ):
        xr.testing.assert_equal(ours, theirs)
        assert {n: ours[n].attrs for n in ours} == {n: theirs[n].attrs for n in theirs}
        masked = {name for name, v in ours.variables.items() if "_FillValue" in v.encoding}
        assert {n for n, v in theirs.variables.items() if "_FillValue" in v.encoding} == masked
        assert theirs.attrs["title"] == ours.attrs["title"]


def test_icechunk_reads_what_this_package_reads(tmp_path: Path) -> None:
    folder = tmp_path / "a é"
    folder.mkdir()
    files = [one(folder / f"{n}.nc", n) for n in range(3)]
    aggregate(files, tmp_path / "all.nca")
    aggregate(files, tmp_path / "all.icechunk")
    check(tmp_path / "all.icechunk", tmp_path / "all.nca")


def test_text_with_fill_values_can_be_opened(tmp_path: Path) -> None:
    def file(n: int) -> str:
        text = {
            "flag": (("time", "x"), np.array([[b"a", b"b"]]), {"_FillValue": "b"}),
            "name": (("time", "x"), np.array([["a", "none"]]), {"_FillValue": "none"}),
        }
        time: dict[str, Any] = {"time": (("time",), np.array([n + 0.5]), TIME)}
        return write(tmp_path / f"{n}.nc", {**time, **text})

    aggregate([file(0), file(1)], tmp_path / "all.icechunk")
    store = reading(icechunk.local_filesystem_storage(str(tmp_path / "all.icechunk")))
    with xr.open_zarr(store, consolidated=False) as ds:
        assert ds["flag"].values.tolist() == [[b"a", b"b"]] * 2
        assert ds["name"].values.tolist() == [["a", "none"]] * 2


def test_masters_and_references_become_versions_of_a_repository(tmp_path: Path) -> None:
    files = [one(tmp_path / f"{n}.nc", n) for n in range(3)]
    aggregate(files[:2], tmp_path / "two.json")
    aggregate(files, tmp_path / "three.nca")
    convert_references(tmp_path / "two.json", tmp_path / "all.icechunk")
    check(tmp_path / "all.icechunk", tmp_path / "two.json")
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        convert_references(tmp_path / "three.nca", tmp_path / "all.icechunk")
    convert_references(tmp_path / "three.nca", tmp_path / "all.icechunk", overwrite=True)
    check(tmp_path / "all.icechunk", tmp_path / "three.nca")
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "all.icechunk"))
    )
    assert len([*repository.ancestry(branch="main")]) == 3  # the first one is empty


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    file = one(tmp_path / "0.nc", 0)
    aggregate([file], tmp_path / "all.icechunk", "time")
    status = os.stat(file)
    os.utime(file, (status.st_atime, status.st_mtime + 10))
    storage = icechunk.local_filesystem_storage(str(tmp_path / "all.icechunk"))
    with xr.open_zarr(reading(storage), consolidated=False) as ds:
        with pytest.raises(icechunk.IcechunkError, match=r"checksum of the object .* has changed"):
            ds.tas.load()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/all\.icechunk: cannot be written: .*[Dd]irectory"):
        aggregate([one(tmp_path / "0.nc", 0)], tmp_path / "file" / "all.icechunk", "time")


def test_a_port_that_icechunk_loses(tmp_path: Path) -> None:
    with Server({"/0.nc": Path(one(tmp_path / "0.nc", 0)).read_bytes()}) as server:
        with pytest.raises(ExportError, match="as it loses others"):
            aggregate([f"{server.url}/0.nc"], tmp_path / "all.icechunk", "time")
    assert not (tmp_path / "all.icechunk").exists()


@pytest.mark.parametrize(("dtype", "order"), [("<c8", "C"), ("<M8[s]", "C"), ("<f4", "F")])
def test_what_zarr_3_lacks_is_refused(dtype: Any, order: str) -> None:
    array = {"dtype": dtype, "order": order, "shape": [2], "chunks": [2], "fill_value": None}
    with pytest.raises(ExportError, match=r"v: holds .* Zarr 3"):
        array_document("v", {**array, "filters": None, "compressor": None}, {})


def test_files_and_repository_in_a_private_bucket(tmp_path: Path, s3_server: S3Server) -> None:
    options = s3_server.signed()
    folder = f"{s3_server.private}/icechunk"
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for n in range(2):
        fs.put_file(one(tmp_path / f"{n}.nc", n), f"{folder}/{n}.nc")
    files = [f"s3://{folder}/{n}.nc" for n in range(2)]
    target = f"s3://{folder}/all.icechunk"
    aggregate(files, target, storage_options=options)
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "all.nca")
    keys = {"access_key_id": options["key"], "secret_access_key": options["secret"]}
    storage = icechunk.s3_storage(
        bucket=s3_server.private,
        prefix="icechunk/all.icechunk",
        endpoint_url=options["endpoint_url"],
        allow_http=True,
        force_path_style=True,
        **keys,
    )
    access = {f"s3://{s3_server.private}/": icechunk.s3_static_credentials(**keys)}
    repository = icechunk.Repository.open(
        storage, authorize_virtual_chunk_access=icechunk.containers_credentials(access)
    )
    store = repository.readonly_session("main").store
    with (
        xr.open_dataset(tmp_path / "all.nca", engine="nczarr") as ours,
        xr.open_zarr(store, consolidated=False) as theirs,
    ):
        xr.testing.assert_equal(ours, theirs)
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        aggregate(files, target, storage_options=options)


def test_without_icechunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icechunk", None)
    with pytest.raises(ImportError, match=r"pip install 'nczarr-xarray\[icechunk\]'"):
        aggregate([one(tmp_path / "0.nc", 0)], tmp_path / "all.icechunk", "time")


def test_a_repository_that_could_not_be_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    files = [one(tmp_path / f"{n}.nc", n) for n in range(2)]
    target = tmp_path / "all.icechunk"
    with monkeypatch.context() as patched:
        patched.setattr(icechunk.Session, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            aggregate(files, target)
    assert sorted(os.listdir(tmp_path)) == ["0.nc", "1.nc"]
    aggregate(files, target)
    with monkeypatch.context() as patched:
        patched.setattr(icechunk.Session, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            aggregate(files, target, overwrite=True)
    aggregate(files, tmp_path / "all.nca")
    check(target, tmp_path / "all.nca")
