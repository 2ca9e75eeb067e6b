"""Whole datasets over HTTP, S3 and other filesystems."""

from __future__ import annotations

import asyncio
import json
import pickle
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.keystore import RemoteStore
from nczarr_xarray import DatasetNotFoundError, FormatError, NCZarrWarning, StoreError
from nczarr_xarray.dataset.file import loop_of
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.builders.trees import read_tree, write_tree
from tests.support.corpora.samples import CONSOLIDATED, NCZARR, vector
from tests.support.corpora.samples import DATA as VECTORS
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server


@pytest.fixture
def local(tmp_path: Path) -> xr.Dataset:
    return xr.open_dataset(write_tree(tmp_path, NCZARR), engine="nczarr").load()


def served(objects: dict[str, bytes], prefix: str = "/data/x.file") -> Server:
    return Server({f"{prefix}/{key}": data for key, data in objects.items()})


def test_http_without_listing(local: xr.Dataset) -> None:
    with served(NCZARR) as server:
        url = f"{server.url}/data/x.file#mode=nczarr"
        with xr.open_dataset(url, engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), local)
        groups = xr.open_groups(url, engine="nczarr")
        assert list(groups) == ["/", "/g1", "/g1/sub", "/emptygrp"]


def test_http_pure_without_listing_is_never_an_empty_dataset() -> None:
    pure = vector("dims-zarr+file-4.9.0")
    with served(pure) as server:
        with pytest.raises(StoreError, match="cannot be listed"):
            xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr")


def test_http_consolidated_needs_few_requests(local: xr.Dataset) -> None:
    with served(CONSOLIDATED) as server:
        url = f"{server.url}/data/x.file"
        with xr.open_dataset(url, engine="nczarr", drop_variables=["x"]) as ds:
            metadata = len(server.requests)
            xr.testing.assert_identical(ds.load(), local.drop_vars("x"))
        opening = {request.path.rpartition("/")[2] for request in server.requests[:metadata]}
        assert opening <= {
            ".zmetadata", ".zgroup", ".zattrs", ".zarray", ".nczarr", ".nczgroup", ".nczattr",
            "zarr.json", "incomplete", "journal",
        }  # fmt: skip
        assert metadata <= 10  # all in one round but those of the arrays
        # what each variable's own metadata say was compared when it was read
        assert sum(r.path.endswith("/tx/.zarray") for r in server.requests) == 1


def test_a_dataset_that_is_removed_is_not_missing_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for where chunks are missing, but not for a second after it was seen."""
    with (
        served(CONSOLIDATED) as server,
        xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr", consolidated=False) as ds,
    ):

        def load() -> tuple[xr.DataArray, int]:
            before = len(server.requests)
            return ds.tx.copy().load(), len(server.requests) - before

        values, requests = load()
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        again, more = load()
        assert more == requests + 1
        xr.testing.assert_identical(again, values)
        for key in [key for key in server.files if "/tx/" in key]:
            del server.files[key]
        with pytest.raises(StoreError, match=r"tx/\.zarray is not there any more"):
            load()


def test_arrays_of_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read without a plan if they are small."""
    noise = np.random.default_rng(3).random
    shuffled = {"zlib": True, "shuffle": True}
    made = xr.Dataset(
        {
            "plain": (("y", "x"), noise((3, 4))),
            "big_endian": ("x", np.arange(4, dtype=">i4")),
            "small": ("x", noise(4).astype("f4"), {}, shuffled),
            "large": (("y", "z"), noise((3, 1 << 16)), {}, shuffled),
            "absent": ("x", np.zeros(4), {}, {"_FillValue": -1.0}),
            "longer": ("x", noise(4), {}, {"chunksizes": (5,)}),
            "text": ("y", np.array(["a", "", "\u00e4"], object)),
            "scalar": ((), 7.5),
        }
    )
    made.nczarr.to_nczarr(tmp_path / "d", consolidated=False)
    (tmp_path / "d" / "absent" / "0").unlink()
    local = xr.load_dataset(tmp_path / "d", engine="nczarr")
    assert np.isnan(local["absent"]).all()
    with Server(read_tree(tmp_path / "d", "/d/")) as server:
        with xr.open_dataset(f"{server.url}/d", engine="nczarr") as ds:
            before = len(server.requests)
            xr.testing.assert_identical(ds.load(), local)
            chunks = [r.path for r in server.requests[before:] if "/." not in r.path]
            read = [path.split("/")[2] for path in chunks]
            # xarray looks into text when it is opened
            assert sorted(read) == sorted(map(str, made.drop_vars("text")))
        for name in ("small", "large"):
            (key,) = (key for key in server.files if key.startswith(f"/d/{name}/0"))
            server.files[key] = server.files[key][:-9]
            with (
                xr.open_dataset(f"{server.url}/d", engine="nczarr") as ds,
                pytest.raises(FormatError, match=rf"{name}/0.*cannot be decoded"),
            ):
                ds[name].load()
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        with xr.open_dataset(f"{server.url}/d", engine="nczarr") as ds:
            del server.files["/d/absent/.zarray"]
            with pytest.raises(StoreError, match=r"absent/\.zarray is not there any more"):
                ds["absent"].load()


def test_whether_it_was_removed_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then missing chunks are no missing data either."""

    async def fails(store: RemoteStore, keys: Sequence[str], *_: Any) -> list[StoreError]:
        return [StoreError(store.url, f"{key} is not answered") for key in keys]

    with (
        served(CONSOLIDATED) as server,
        xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr", consolidated=False) as ds,
    ):
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        monkeypatch.setattr(RemoteStore, "gather_objects", fails)
        with pytest.raises(StoreError, match=r"tx/\.zarray is not answered"):
            ds.tx.load()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("shards", [None, (4,)])
def test_a_dataset_of_zarr_3_that_is_removed(
    shards: tuple[int, ...] | None,
    pickled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoding = {"v": {"chunks": (2,), "shards": shards, "_FillValue": -1.0}}
    values = np.arange(10.0)
    xr.Dataset({"v": ("x", values)}).to_zarr(tmp_path / "z", zarr_format=3, encoding=encoding)
    (tmp_path / "z" / "v" / "c" / "0").unlink()
    values[: 4 if shards else 2] = np.nan
    with (
        Server(read_tree(tmp_path / "z", "/z/")) as server,
        xr.open_dataset(f"{server.url}/z", engine="nczarr", cache=False) as opened,
    ):
        ds = pickle.loads(pickle.dumps(opened)) if pickled else opened
        np.testing.assert_array_equal(ds["v"], values)
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        np.testing.assert_array_equal(ds["v"], values)
        del server.files["/z/v/zarr.json"]
        np.testing.assert_array_equal(ds["v"], values)  # the metadata of the root have it
        server.files.clear()
        with pytest.raises(StoreError, match=r"zarr\.json is not there any more"):
            ds["v"].load()


@pytest.mark.parametrize("target", ["s3://bucket#mode=bytes", "s3://bucket/#mode=bytes"])
def test_a_bucket_is_no_file(target: str) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"^s3://bucket.*: is a bucket, not a file$"):
        xr.open_dataset(target, engine="nczarr", storage_options={"anon": True})


@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_a_removed_array_of_zarr_3_is_not_missing_data(
    s3_server: S3Server,
    shards: tuple[int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = s3_server.signed()
    root = f"{s3_server.private}/removed-{shards}.zarr"
    ds = xr.Dataset({"v": (("y", "x"), np.arange(32.0).reshape(4, 8))})
    chunks = {"v": {"chunks": (2, 2), "shards": shards}}
    ds.to_zarr(tmp_path / "x", zarr_format=3, consolidated=False, encoding=chunks)
    fs = fsspec.filesystem("s3", **options)
    for path, data in read_tree(tmp_path / "x", f"{root}/").items():
        fs.pipe_file(path, data)
    fs.rm(f"{root}/v/c/0/0")
    with xr.open_dataset(f"s3://{root}", engine="nczarr", storage_options=options) as opened:
        monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
        assert np.isnan(opened.v.copy().load()[:2, :2]).all()
        fs.rm(root, recursive=True)
        with pytest.raises(StoreError, match=r"v/zarr\.json is not there any more"):
            opened.v.copy().load()


@pytest.mark.parametrize("pickled", [False, True])
def test_metadata_that_are_trusted_are_not_asked_for(
    pickled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be the only ones, in other processes too."""
    monkeypatch.setattr("nczarr_fsspec.stores.missing_chunks.BELIEVED", 0)
    objects = {key: data for key, data in CONSOLIDATED.items() if key != "tx/1.0"}
    only = {key: data for key, data in objects.items() if "/.z" not in key}
    found = []
    for these in (objects, only):
        with served(these) as server:
            url = f"{server.url}/data/x.file"
            with xr.open_dataset(url, engine="nczarr", consolidated=True) as ds:
                used = pickle.loads(pickle.dumps(ds)) if pickled else ds
                found.append(used.load())
    xr.testing.assert_identical(*found)
    assert (found[0].tx[1] == -2147483647).all()


def test_stale_consolidated_array_is_an_error_when_read() -> None:
    objects = dict(CONSOLIDATED)
    objects["tx/.zarray"] = objects["tx/.zarray"].replace(b'"<i4"', b'"<f4"')
    with served(objects) as server:
        url = f"{server.url}/data/x.file"
        with xr.open_dataset(url, engine="nczarr") as ds:
            assert ds.x.values.tolist() == [0.0, 0.5, 1.0]
            with pytest.raises(FormatError, match="consolidated=False") as caught:
                ds.tx.load()
            assert "tx/.zarray has changed" in str(caught.value)
        with xr.open_dataset(url, engine="nczarr", consolidated=False) as ds:
            assert ds.tx.dtype == np.float32
        with xr.open_dataset(url, engine="nczarr", consolidated=True) as ds:
            assert ds.tx.load().dtype == np.int32


def test_reads_at_once_compare_with_consolidated_metadata_each() -> None:
    with served(dict(CONSOLIDATED)) as server:
        with open_hierarchy(f"{server.url}/data/x.file") as opened:
            reader = opened.reader(opened.hierarchy.root.variables["tx"])
            loop = loop_of(opened.store)
            assert loop is not None

            async def twice() -> list[Any]:
                return await asyncio.gather(reader.read_remote(), reader.read_remote())

            one, other = loop.run(twice())
            np.testing.assert_array_equal(one, other)


def test_stale_consolidated_root_is_reported_and_left_aside(local: xr.Dataset) -> None:
    objects = dict(CONSOLIDATED)
    objects[".zattrs"] = objects[".zattrs"].replace(b"{", b'{"title": "new", ', 1)
    with served(objects) as server, pytest.warns(NCZarrWarning, match="stale"):
        ds = xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr")
    assert ds.title == "new"


def test_consolidated_mode_of_the_url() -> None:
    with served(NCZARR) as server:
        url = f"{server.url}/data/x.file"
        with pytest.raises(OSError, match=r"has no \.zmetadata"):
            xr.open_dataset(url, engine="nczarr", consolidated=True)
        # as in netCDF-C, the mode word is a wish
        with pytest.warns(NCZarrWarning, match=r"has no \.zmetadata; the single objects are read"):
            ds = xr.open_dataset(f"{url}#mode=nczarr,consolidated", engine="nczarr")
        xr.testing.assert_identical(ds.load(), xr.open_dataset(url, engine="nczarr").load())


def test_servers_that_answer_403_for_what_is_not_there(local: xr.Dataset) -> None:
    with served(NCZARR) as server:
        server.missing_status = 403
        url = f"{server.url}/data/x.file"
        with xr.open_dataset(url, engine="nczarr") as ds:
            assert ds.sizes == local.sizes
            # a chunk that may exist is never taken for a missing one
            with pytest.raises(StoreError, match="403"):
                ds.never.load() if ds.never.size else ds.tx.load()


def test_remote_zip_is_not_downloaded_whole(tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "big.zip"
    data = np.random.default_rng(0).normal(size=(64, 1000))
    ds = xr.Dataset({"v": (("y", "x"), data)})
    ds.to_zarr(tree, zarr_format=2, encoding={"v": {"chunks": (1, 1000)}})
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(p for p in tree.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(tree))
    content = path.read_bytes()
    with Server({"/big.zip": content}) as server:
        with xr.open_dataset(f"{server.url}/big.zip", engine="nczarr") as ds:
            assert np.array_equal(ds.v[10].values, data[10])
        assert server.bytes_sent < len(content) / 2


def test_netcdf_zip_over_http() -> None:
    content = (VECTORS / "dims-nczarr+zip-4.10.1.dataset.zip").read_bytes()
    with Server({"/d.zip": content}) as server:
        with xr.open_dataset(f"{server.url}/d.zip#mode=nczarr,zip", engine="nczarr") as ds:
            assert ds.x.values.tolist() == [0.0, 0.5, 1.0]


def test_retries_hide_a_flaky_server(local: xr.Dataset) -> None:
    with served(NCZARR) as server:
        server.unavailable_every, server.retry_after = 3, "0"
        server.cut_every = 5
        with xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), local)


def test_load_async_overlaps_requests() -> None:
    objects = {".zgroup": b'{"zarr_format": 2}'}
    lists = {"dimensions": {"x": 2}, "arrays": [f"v{i}" for i in range(30)], "groups": []}
    structure = {"_nczarr_superblock": {"version": "2.0.0"}, "_nczarr_group": lists}
    objects[".zattrs"] = json.dumps(structure).encode()
    for i in range(30):
        objects[f"v{i}/.zarray"] = NCZARR["x/.zarray"].replace(b"[3]", b"[2]")
        objects[f"v{i}/.zattrs"] = NCZARR["x/.zattrs"]
        objects[f"v{i}/0"] = np.array([i, i + 1.0]).tobytes()
    with served(objects) as server:
        ds = xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr")
        connections = server.connections

        async def load() -> None:
            await ds.load_async()

        asyncio.run(load())
        assert [float(ds[f"v{i}"][0]) for i in range(30)] == list(range(30))
        assert connections > 1


def test_works_inside_a_running_loop(local: xr.Dataset) -> None:
    with served(NCZARR) as server:

        async def notebook() -> xr.Dataset:
            return xr.open_dataset(f"{server.url}/data/x.file", engine="nczarr").load()

        xr.testing.assert_identical(asyncio.run(notebook()), local)


@pytest.mark.parametrize("url", ["memory://m/x.file#mode=nczarr", "memory://m/x.file"])
def test_memory(url: str, local: xr.Dataset) -> None:
    fs = fsspec.filesystem("memory")
    try:
        for key, data in NCZARR.items():
            fs.pipe(f"/m/x.file/{key}", data)
        with xr.open_dataset(url, engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), local)
        with xr.open_dataset(fs.get_mapper("/m/x.file"), engine="nczarr") as ds:
            xr.testing.assert_identical(ds.load(), local)
    finally:
        fs.rm("/m", recursive=True)


def test_zarr_stores_and_mappings(tmp_path: Path, local: xr.Dataset) -> None:
    archive = tmp_path / "d.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for key, data in NCZARR.items():
            packed.writestr(f"d/{key}", data)
    fs = fsspec.filesystem("memory")
    for key, data in NCZARR.items():
        fs.pipe(f"/z/{key}", data)
    buffers: Any = {k: zarr.core.buffer.cpu.Buffer.from_bytes(v) for k, v in NCZARR.items()}
    targets: list[Any] = [
        NCZARR,
        zarr.storage.LocalStore(tmp_path),
        zarr.storage.MemoryStore(buffers),
        zarr.storage.ZipStore(archive),
        zarr.storage.FsspecStore.from_url("memory://z"),
    ]
    for target in targets:
        with warnings.catch_warnings():
            warnings.simplefilter("error", NCZarrWarning)
            with xr.open_dataset(target, engine="nczarr") as ds:
                xr.testing.assert_identical(ds.load(), local)


@pytest.fixture
def bucket(s3_server: S3Server) -> S3Server:
    fs = fsspec.filesystem("s3", **s3_server.signed())
    for name in (s3_server.public, s3_server.private):
        for key, data in CONSOLIDATED.items():
            fs.pipe(f"{name}/deep/x.file/{key}", data)
    return s3_server


def test_s3_anonymous(bucket: S3Server, local: xr.Dataset) -> None:
    url = f"{bucket.endpoint}/{bucket.public}/deep/x.file#mode=nczarr,s3&aws.profile=no"
    with xr.open_dataset(url, engine="nczarr") as ds:
        xr.testing.assert_identical(ds.load(), local)
    assert list(xr.open_groups(url, engine="nczarr")) == ["/", "/g1", "/g1/sub", "/emptygrp"]


def test_s3_signed(bucket: S3Server, local: xr.Dataset) -> None:
    url = f"s3://{bucket.private}/deep/x.file"
    with xr.open_dataset(url, engine="nczarr", storage_options=bucket.signed()) as ds:
        xr.testing.assert_identical(ds.load(), local)
        assert bucket.secret_key not in repr(ds) + str(ds.encoding) + str(ds.x.encoding)
        assert ds.encoding["source"].startswith("s3://")


def test_s3_pure_zarr_is_listed(bucket: S3Server) -> None:
    fs = fsspec.filesystem("s3", **bucket.signed())
    for key, data in vector("dims-zarr+file-4.9.0").items():
        fs.pipe(f"{bucket.public}/pure/{key}", data)
    url = f"s3://{bucket.public}/pure"
    options = {"anon": True, "endpoint_url": bucket.endpoint}
    groups = xr.open_groups(url, engine="nczarr", storage_options=options)
    assert list(groups) == ["/", "/emptygrp", "/g1", "/g1/sub"]


def test_s3_errors_name_the_cause_and_no_secret(bucket: S3Server) -> None:
    options = {**bucket.signed(), "secret": "wrongwrongwrong"}
    with pytest.raises(OSError, match=r"x\.file") as caught:
        xr.open_dataset(
            f"s3://{bucket.private}/deep/x.file", engine="nczarr", storage_options=options
        )
    assert "wrongwrongwrong" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        xr.open_dataset(
            f"s3://{bucket.public}/nothing/here",
            engine="nczarr",
            storage_options=bucket.signed(),
        )
