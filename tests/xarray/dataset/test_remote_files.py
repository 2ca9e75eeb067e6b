"""Classic and HDF5 files from wherever they are, as ``engine="netcdf4"`` reads them locally."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import re
import shutil
import ssl
import warnings
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec import DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.errors import AccessDeniedError
from nczarr_fsspec.ranges.index_memory import memory
from nczarr_fsspec.transport import policy as _policy
from nczarr_xarray import FormatError, to_nczarr
from nczarr_xarray.backend.entrypoint import NCZarrBackendEntrypoint
from nczarr_xarray.chunks.grid import GridPieces
from nczarr_xarray.chunks.threads import BATCH_BYTES
from tests.support.builders.remotefiles import FORMATS, STEPS, check, expected, write_file
from tests.support.builders.trees import read_tree
from tests.support.marks import slow_but
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import (
    FAULTS,
    Nginx,
    RangeServer,
    nginx,
    python_server,
    range_server,
)
from tests.support.servers.s3server import S3Server


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered, and nobody waits before trying again."""
    monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)
    memory.clear()


@pytest.fixture(scope="module")
def root(files_root: Path) -> Path:
    return files_root


@pytest.fixture(scope="module")
def real(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(root, tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture
def server(files_server: RangeServer) -> RangeServer:
    files_server.set()
    return files_server


def failure(target: Any, **options: Any) -> Exception:
    """How opening and reading `target` fails: with one of our errors."""
    with pytest.raises((StoreError, FormatError, URLError)) as caught:
        xr.open_dataset(target, engine="nczarr", **options).load()
    return caught.value


class TestTargets:
    @pytest.mark.parametrize("name", FORMATS)
    def test_every_format(self, server: RangeServer, root: Path, name: str) -> None:
        check(f"{server.url}/{name}#mode=bytes", root / name)
        assert server.requests <= 25

    def test_small_chunks_are_decoded_in_batches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many of them one request brings."""
        values = np.arange(800 * 64 * 64, dtype="f4").reshape(800, 64, 64)
        encoding = {"v": {"chunksizes": (1, 64, 64), "zlib": True, "shuffle": True}}
        written = xr.Dataset({"v": (("t", "y", "x"), values)})
        written.to_netcdf(tmp_path / "v.nc", engine="netcdf4", encoding=encoding)
        counts = []
        scatter = GridPieces.scatter

        def counted(self: GridPieces, rows: Any, data: Any) -> None:
            counts.append(len(data))
            scatter(self, rows, data)

        monkeypatch.setattr(GridPieces, "scatter", counted)
        with range_server(tmp_path) as server:
            ds = xr.open_dataset(f"{server.url}/v.nc", engine="nczarr")
            np.testing.assert_array_equal(ds["v"].values, values)
        assert sum(counts) == 800
        assert 1 < max(counts) <= BATCH_BYTES // (64 * 64 * 4)

    @pytest.mark.parametrize(
        "spelled",
        [
            "h5.nc#bytes",
            "h5.nc",
            "h5.nc#",
            "h5.nc?a=b&token=hunter22",
            "h5.nc?a=b.zarr#mode=bytes",
            "%685.nc",
            "plain#mode=bytes",
            "plain",
            "plain?a=b",
            "./c1.nc#mode=bytes",
        ],
    )
    def test_urls(self, server: RangeServer, root: Path, spelled: str) -> None:
        url = f"{server.url}/{spelled}"
        check(url, root / ("c1.nc" if "c1" in spelled else "h5.nc"))
        with xr.open_dataset(url, engine="nczarr") as ds:
            assert ds.encoding["source"].startswith(f"{server.url}/")
            assert "hunter22" not in ds.encoding["source"]

    def test_a_tree_is_looked_for_first_where_the_name_says_nothing(
        self, server: RangeServer, root: Path
    ) -> None:
        check(f"{server.url}/plain", root / "h5.nc")
        asked = [request["path"] for request in server.control("log")]
        assert "/plain/.zgroup" in asked
        assert asked.index("/plain") == 10  # as docs/remote.md says
        server.set()
        check(f"{server.url}/h5.nc", root / "h5.nc")
        assert {request["path"] for request in server.control("log")} == {"/h5.nc"}

    @pytest.mark.parametrize("name", ["h5.nc", "c5.nc", "plain"])
    def test_local_ways(self, root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        path = root / name
        monkeypatch.chdir(root)
        memory_url = f"memory://{os.fspath(root).strip('/')}/{name}"
        with fsspec.open(memory_url, "wb") as file:
            file.write(path.read_bytes())
        for target in (
            path,
            str(path),
            name,
            f"file://{path}#mode=bytes",
            f"file://{path}",
            memory_url,
            f"{memory_url}#mode=bytes",
            f"local://{path}#mode=bytes",
            f"bytes::file://{path}",
            fsspec.open(path),
            fsspec.open(memory_url),
            io.BytesIO(path.read_bytes()),
            path.read_bytes(),
            bytearray(path.read_bytes()),
            memoryview(path.read_bytes()),
        ):
            check(target, path)
        with path.open("rb") as file, fsspec.open(path) as other:
            check(file, path)
            check(other, path)
            assert not file.closed
            assert not other.closed

    def test_files_of_fsspec(self, server: RangeServer, root: Path, tmp_path: Path) -> None:
        for name in ("h5.nc", "plain"):
            url = f"{server.url}/{name}"
            check(fsspec.open(url), root / "h5.nc")
            with fsspec.open(url) as file:
                check(file, root / "h5.nc")
        (tmp_path / "x.gz").write_bytes(gzip.compress((root / "c1.nc").read_bytes()))
        check(fsspec.open(tmp_path / "x.gz", compression="infer"), root / "c1.nc")
        with fsspec.open(tmp_path / "x.gz", compression="gzip") as file:
            check(file, root / "c1.nc")

    def test_chains(self, server: RangeServer, root: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(root / "pack.zip", "w") as archive:
            archive.write(root / "h5.nc", "deep/h5.nc")
            archive.write(root / "h5.nc", "plain")
        cache = {"cache_storage": str(tmp_path / "cache")}
        for target, options in (
            (f"bytes::{server.url}/h5.nc", None),
            (f"bytes::{server.url}/plain", None),
            (f"simplecache::{server.url}/h5.nc#mode=bytes", {"simplecache": cache}),
            (f"simplecache::{server.url}/plain", {"simplecache": cache}),
            (f"filecache::{server.url}/h5.nc", {"filecache": cache}),
            (f"zip://deep/h5.nc::{root}/pack.zip", None),
            (f"zip://plain::file://{root}/pack.zip#mode=bytes", None),
            (f"zip://deep/h5.nc::{server.url}/pack.zip", None),
            (f"zip://deep/h5.nc::bytes::{server.url}/pack.zip", None),
            (f"dir://h5.nc::{server.url}", None),
        ):
            check(target, root / "h5.nc", storage_options=options)

    def test_our_own_filesystem_costs_nothing(self, server: RangeServer, root: Path) -> None:
        # how much is read around metadata depends on the latency that was measured
        server.set(latency_ms=50)
        check(f"bytes::{server.url}/h5.nc", root / "h5.nc")
        through = server.requests
        server.set(latency_ms=50)
        memory.clear()
        check(f"{server.url}/h5.nc", root / "h5.nc")
        assert through <= server.requests + 3

    def test_a_zip_archive_called_like_a_file(self, root: Path) -> None:
        dataset = expected(root / "c1.nc")
        to_nczarr(dataset, root / "tree.zip", mode="w")
        shutil.move(root / "tree.zip", root / "zipped.nc")
        with Server({"/zipped.nc": (root / "zipped.nc").read_bytes()}) as server:
            for target in (root / "zipped.nc", f"{server.url}/zipped.nc"):
                for _ in range(2):
                    with xr.open_dataset(target, engine="nczarr") as ds:
                        xr.testing.assert_identical(ds.load(), dataset)

    def test_a_tree_called_like_a_file(self, root: Path, real: Nginx) -> None:
        """nginx answers 403 for a directory, others a page, or 404."""
        dataset = expected(root / "c1.nc")
        to_nczarr(dataset, f"file://{root}/tree.nc#mode=nczarr,file", mode="w")
        objects = read_tree(root / "tree.nc", "/tree.nc/")
        page = {"/tree.nc": b"<!DOCTYPE HTML>\n<title>Directory listing</title>"}
        with Server(objects | page) as listing, Server(objects) as bare:
            for url in (real.plain, listing.url, bare.url):
                for mode in ("", "#mode=nczarr"):
                    with xr.open_dataset(f"{url}/tree.nc{mode}", engine="nczarr") as ds:
                        xr.testing.assert_identical(ds.load(), dataset)

    def test_whether_it_is_ours(self, root: Path) -> None:
        guess = NCZarrBackendEntrypoint().guess_can_open
        for ours in ("https://h/x.nc#mode=bytes", "s3://b/x#bytes", "file:///x.nc#mode=bytes"):
            assert guess(ours)
        for other in ("https://h/x.nc", "s3://b/x.nc", str(root / "h5.nc"), root / "c1.nc"):
            assert not guess(other)


class TestWhatIsNoFile:
    CONTENT: ClassVar[dict[str, bytes]] = {
        "/page.nc": b"\n<!DOCTYPE html><html>Sorry, you must log in</html>",
        "/page": b"<html>Sorry, you must log in</html>",
        "/empty.nc": b"",
        "/text.nc": b"netcdf x {\n}\n",
        "/long.nc": bytes(300_000),
        "/cut.nc": b"\x89HDF\r\n\x1a\n",
        "/cdf9.nc": b"CDF\x09" + bytes(100),
        "/a.nc.gz": b"\x1f\x8b\x08\x00" + bytes(100),
        "/a.grib": b"GRIB" + bytes(100),
        "/lfs.nc": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "/gone.nc/.hidden": b"",
    }

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("page.nc", r"neither .* it begins with b'\\n<!DOCTYPE .*, as a web page does"),
            ("page.nc#mode=bytes", r"neither .* as a web page does"),
            ("page", r"neither .* b'<html>Sorry.*, as a web page does"),
            ("empty.nc", r"neither .*: it is empty"),
            ("text.nc", r"neither .*: it begins with b'netcdf x {\\n}\\n'"),
            ("long.nc", r"neither .*: it begins with b'\\x00"),
            ("cut.nc", r"neither|truncated"),
            ("cdf9.nc", r"begins with b'CDF\\t"),
            ("a.nc.gz", r", as gzip does: decompress it first"),
            ("a.grib", r", as GRIB does: engine='cfgrib' reads it"),
            ("lfs.nc", r", as a pointer of Git LFS does: git lfs pull gets the file"),
        ],
    )
    def test_other_content(self, name: str, reason: str) -> None:
        with Server(self.CONTENT) as server:
            error = failure(f"{server.url}/{name}")
            assert isinstance(error, FormatError)
            path = name.partition("#")[0]
            assert str(error).startswith(f"{server.url}/{path}: ")
            assert str(error).count("\n") == 0
            assert re.search(reason, str(error))
            other = failure(io.BytesIO(self.CONTENT[f"/{path}"]))
            assert isinstance(other, FormatError)

    @pytest.mark.parametrize("name", ["nope.nc", "nope", "nope.nc#mode=bytes", "gone.nc"])
    def test_nothing_there(self, name: str) -> None:
        with Server(self.CONTENT) as server:
            error = failure(f"{server.url}/{name}")
            assert isinstance(error, DatasetNotFoundError)
            assert isinstance(error, FileNotFoundError)
            assert "no such file (HTTP status 404" in str(error)
            assert f"{server.url}/{name.partition('#')[0]}" in str(error)

    @pytest.mark.parametrize("name", ["nope.nc", "nope", "nope.nc#mode=bytes"])
    def test_access_denied(self, name: str) -> None:
        with Server(self.CONTENT, missing_status=403) as server:
            error = failure(f"{server.url}/{name}")
            assert isinstance(error, AccessDeniedError)
            assert isinstance(error, PermissionError)
            assert "status 403" in str(error)

    def test_a_file_where_trees_are_forbidden(self, root: Path) -> None:
        """As on servers that answer 403 for all that is not there."""
        with Server({"/data": (root / "h5.nc").read_bytes()}, missing_status=403) as server:
            check(f"{server.url}/data", root / "h5.nc")

    def test_local(self, tmp_path: Path) -> None:
        (tmp_path / "empty.nc").touch()
        (tmp_path / "text.nc").write_text("text")
        for target, kind in (
            (tmp_path / "nope.nc", FileNotFoundError),
            (f"file://{tmp_path}/nope.nc#mode=bytes", FileNotFoundError),
            (f"memory://{tmp_path}/nope.nc", FileNotFoundError),
            (tmp_path / "empty.nc", FormatError),
            (tmp_path / "text.nc", FormatError),
        ):
            error = failure(target)
            assert isinstance(error, kind)
            assert (target if isinstance(target, str) else target.name).partition("#")[0] in str(
                error
            )
        with (tmp_path / "text.nc").open() as text:
            assert "binary mode" in str(failure(text))

    def test_groups_and_variables(self, server: RangeServer, root: Path) -> None:
        for target in (f"{server.url}/h5.nc", root / "h5.nc", f"{server.url}/c1.nc"):
            error = failure(target, group="model/nope")
            assert isinstance(error, DatasetNotFoundError)
            assert "model" in str(error)

    @pytest.mark.parametrize("name", FORMATS)
    def test_cut_off_files(self, root: Path, name: str) -> None:
        """Opening fails, or what is not there fails when it is read; the rest is right."""
        content = (root / name).read_bytes()
        with Server({}) as server:
            for keep in (0.1, 0.5, 0.9):
                server.files["/x.nc"] = content[: int(keep * len(content))]
                for target in (f"{server.url}/x.nc", io.BytesIO(server.files["/x.nc"])):
                    self._check_what_is_there(target, root / name)

    @staticmethod
    def _check_what_is_there(target: Any, path: Path) -> None:
        right = expected(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ds = xr.open_dataset(target, engine="nczarr")
            except FormatError:
                return
        with ds:
            for name, variable in ds.variables.items():
                try:
                    values = variable.load()
                except (FormatError, StoreError):
                    continue
                xr.testing.assert_identical(values, right.variables[name])


class TestOptions:
    def test_headers_and_passwords(self, root: Path) -> None:
        with Server({"/x.nc": (root / "h5.nc").read_bytes()}, password="me:hunter22") as server:
            url = f"{server.url}/x.nc"
            token = "Basic bWU6aHVudGVyMjI="
            headers = {"headers": {"Authorization": token, "X-Other": "yes"}}
            check(url, root / "h5.nc", storage_options=headers)
            assert {request.headers.get("X-Other") for request in server.requests} == {"yes"}
            check(url.replace("://", "://me:hunter22@"), root / "h5.nc")
            error = failure(url)
            assert isinstance(error, AccessDeniedError)
            assert "status 401" in str(error)
            assert "storage_options" in str(error)
            with xr.open_dataset(
                url.replace("://", "://me:hunter22@"), engine="nczarr", cache=False
            ) as ds:
                assert "hunter22" not in ds.encoding["source"]
                server.password = "me:another"
                with pytest.raises(StoreError, match="401") as caught:
                    ds.v3.load()
                assert "hunter22" not in str(caught.value)

    def test_what_is_wrong_with_them(self, server: RangeServer, root: Path) -> None:
        for target, options, reason in (
            (f"{server.url}/h5.nc", {"max_whole": "much"}, "max_whole is a number of bytes"),
            (f"file://{root}/h5.nc#mode=bytes", {"anon": True}, "storage_options"),
            (root / "h5.nc", {"anon": True}, "storage_options"),
        ):
            error = failure(target, storage_options=options)
            assert isinstance(error, URLError)
            assert reason in str(error)

    def test_drop_variables(self, server: RangeServer, root: Path) -> None:
        for url in (f"{server.url}/h5.nc", f"{server.url}/c2.nc"):
            path = root / url.rpartition("/")[2]
            options: Any = {"drop_variables": ["v0", "time"], "decode_times": False}
            with xr.open_dataset(url, engine="nczarr", **options) as ds:
                xr.testing.assert_identical(ds.load(), expected(path, **options))


class TestServers:
    def test_without_ranges(self, root: Path) -> None:
        with python_server(root) as url:
            for name in FORMATS:
                check(f"{url}/{name}#mode=bytes", root / name)
            check(f"{url}/plain", root / "h5.nc")
            size = (root / "h5.nc").stat().st_size
            options = {"max_whole": size}
            check(f"{url}/h5.nc", root / "h5.nc", storage_options=options)
            error = failure(f"{url}/h5.nc", storage_options={"max_whole": size - 1})
            assert isinstance(error, StoreError)
            assert f"the file of {size} bytes is larger than" in str(error)
            assert "simplecache::" in str(error)
            bounded = {"bytes": {"max_whole": size - 1}}
            error = failure(f"bytes::{url}/h5.nc", storage_options=bounded)
            assert "is larger than" in str(error)

    def test_nginx(self, real: Nginx, root: Path) -> None:
        context = ssl.create_default_context(cafile=str(real.authority))
        for name in FORMATS:
            check(f"{real.plain}/{name}", root / name)
            check(f"{real.tls}/{name}", root / name, storage_options={"ssl": context})
        error = failure(f"{real.tls}/h5.nc")
        assert isinstance(error, StoreError)
        assert "certificate" in str(error).lower()
        check(f"{real.plain}/locked/h5.nc".replace("://", "://me:hunter22@"), root / "h5.nc")

    def test_s3(self, s3_server: S3Server, root: Path, no_aws: None) -> None:
        signed = s3_server.signed()
        fs = fsspec.filesystem("s3", **signed, skip_instance_cache=True)
        for bucket in (s3_server.public, s3_server.private):
            for name in ("h5.nc", "c1.nc", "plain"):
                fs.pipe_file(f"{bucket}/files/{name}", (root / name).read_bytes())
        anonymous = {"anon": True, "endpoint_url": s3_server.endpoint}
        public, private = (f"s3://{b}/files" for b in (s3_server.public, s3_server.private))
        for name in ("h5.nc", "c1.nc", "plain"):
            for fragment in ("", "#mode=bytes", "#mode=bytes,s3"):
                check(f"{public}/{name}{fragment}", root / name, storage_options=anonymous)
            check(f"{private}/{name}", root / name, storage_options=signed)
            check(f"{private}/{name}#mode=bytes", root / name, storage_options=signed)
        check(s3_server.url("files/h5.nc", ",bytes"), root / "h5.nc")
        for fragment in ("", "#mode=bytes"):
            error = failure(f"{public}/nope.nc{fragment}", storage_options=anonymous)
            assert isinstance(error, DatasetNotFoundError)
            error = failure(f"{private}/h5.nc{fragment}", storage_options=anonymous)
            assert isinstance(error, AccessDeniedError)
            assert "AWS_PROFILE" in str(error)
        # a version is one version here, too
        url = f"{private}/h5.nc"
        options: Any = {"engine": "nczarr", "storage_options": signed, "cache": False}
        with xr.open_dataset(url, **options) as ds:
            fs.pipe_file(f"{s3_server.private}/files/h5.nc", (root / "c5.nc").read_bytes())
            for name in ("v3", "v2"):
                with pytest.raises(StoreError, match="has changed while it was read"):
                    ds[name].load()
        check(url, root / "c5.nc", storage_options=signed)


class TestFaults:
    @pytest.mark.parametrize("name", slow_but(["h5.nc", "c1.nc"], "h5.nc"))
    @pytest.mark.parametrize("fault", FAULTS)
    def test_the_values_are_right(
        self, server: RangeServer, root: Path, fault: str, name: str
    ) -> None:
        server.set(**FAULTS[fault])
        for _ in range(2):
            check(f"{server.url}/{name}", root / name)

    @pytest.mark.parametrize("name", ["h5.nc", "c2.nc"])
    @pytest.mark.parametrize("knobs", [{}, {"weak": 1}, {"max_ranges": 0}])
    def test_a_file_that_changes(
        self, server: RangeServer, root: Path, name: str, knobs: dict[str, int]
    ) -> None:
        server.set(**knobs)
        url = f"{server.url}/{name}"
        with xr.open_dataset(url, engine="nczarr", cache=False) as ds:
            ds.v1[3].load()
            server.change(f"/{name}", **knobs)
            for _ in range(2):
                for variable in ("v1", "v2", "v3", "v0"):
                    with pytest.raises(StoreError, match="has changed while it was read") as error:
                        ds[variable].load()
                    assert "open it again" in str(error.value)
                    assert str(error.value).startswith(url)
            check(url, root / name)  # while the old one is open
            with pytest.raises(StoreError, match="has changed"):
                ds.v2[70].load()

    def test_values_of_two_versions_are_never_mixed(self, tmp_path: Path) -> None:
        old, new = (write_file(tmp_path / "h5.nc", seed).read_bytes() for seed in (1, 2))
        assert len(old) != len(new) or old != new
        with Server({"/x.nc": old}) as server:
            url = f"{server.url}/x.nc"
            with xr.open_dataset(url, engine="nczarr", cache=False) as ds:
                server.files["/x.nc"] = new
                if len(old) != len(new):  # nothing else tells, for this server has no validators
                    with pytest.raises(StoreError, match="has changed"):
                        ds.load()
            check(url, tmp_path / "h5.nc")

    def test_a_server_that_dies(self, root: Path) -> None:
        with Server({"/x.nc": (root / "h5.nc").read_bytes()}) as server:
            ds = xr.open_dataset(f"{server.url}/x.nc", engine="nczarr", cache=False)
            server.unavailable_every, server.relent = 1, False
            with pytest.raises(StoreError, match="503"):
                ds.v3.load()
            server.unavailable_every = 0
            assert ds.v3.shape == ds.v3.load().shape
            server.reset_every = 1
            with pytest.raises(StoreError, match="tried"):
                ds.v1.load()
        with pytest.raises(StoreError, match="cannot connect"):
            ds.v2.load()
        ds.close()


class TestLazy:
    @pytest.mark.parametrize("name", FORMATS)
    def test_opening_reads_no_data(self, server: RangeServer, root: Path, name: str) -> None:
        with xr.open_dataset(f"{server.url}/{name}", engine="nczarr") as ds:
            opening = server.control("stats")
            assert opening["bytes"] < 0.3 * (root / name).stat().st_size
            assert opening["requests"] <= 8
            names = [n for n in ds.variables if n not in ("time", "x", "text")]
            assert not any(ds.variables[n]._in_memory for n in names)
            server.control("reset")
            ds.v3.isel(time=77, x=slice(3, 9)).load()
            assert 1 <= server.requests <= 2
            server.control("reset")
            ds.v3.load()
            first = server.control("stats")
            assert 1 <= first["requests"] <= 12
            assert first["bytes"] <= 1.1 * ds.v3.nbytes
            ds.v3.load()  # kept by xarray
            assert server.requests == first["requests"]

    def test_every_kind_of_index(self, server: RangeServer, root: Path) -> None:
        for name in FORMATS:
            right = expected(root / name)
            with xr.open_dataset(f"{server.url}/{name}", engine="nczarr", cache=False) as ds:
                for key in (
                    {"time": 5},
                    {"time": -1, "y": slice(None, None, -2)},
                    {"time": [3, 30, 4], "x": [0, 25]},
                    {"time": slice(35, None, 2), "x": slice(10, 2, -3)},
                    {"time": slice(5, 5)},
                    {
                        "time": xr.DataArray([1, 20, 39], dims="p"),
                        "y": xr.DataArray([0, 5, 24], dims="p"),
                    },
                    {"y": 3, "x": 4},
                ):
                    for variable in ("v0", "v1"):
                        one = ds[variable].isel(key).load()
                        xr.testing.assert_identical(one, right[variable].isel(key))

    def test_groups(self, server: RangeServer, root: Path) -> None:
        url, path = f"{server.url}/h5.nc", root / "h5.nc"
        with xr.open_dataset(url, engine="nczarr", group="model/run") as ds:
            xr.testing.assert_identical(ds.load(), expected(path, group="model/run"))
        ours = xr.open_groups(url, engine="nczarr")
        theirs = xr.open_groups(path, engine="netcdf4")
        assert list(ours) == list(theirs)
        for name, ds in theirs.items():
            xr.testing.assert_identical(ours[name].load(), ds.load())
            ours[name].close()
            ds.close()
        with (
            xr.open_datatree(url, engine="nczarr") as tree,
            xr.open_datatree(path, engine="netcdf4") as other,
        ):
            xr.testing.assert_identical(tree.load(), other.load())

    def test_event_loops(self, server: RangeServer, root: Path) -> None:
        async def notebook(target: Any) -> xr.Dataset:
            with xr.open_dataset(target, engine="nczarr") as ds:
                assert ds.v0[0].values.shape == ds.v0.shape[1:]
                return await ds.load_async()

        for target in (f"{server.url}/h5.nc", root / "h5.nc"):
            xr.testing.assert_identical(asyncio.run(notebook(target)), expected(root / "h5.nc"))

    @pytest.mark.parametrize("name", ["h5.nc", "c1.nc"])
    def test_many_threads(self, server: RangeServer, root: Path, name: str) -> None:
        right = expected(root / name)
        for target in (f"{server.url}/{name}", root / name):
            with (
                xr.open_dataset(target, engine="nczarr", cache=False) as ds,
                ThreadPoolExecutor(16) as pool,
            ):
                names = ["v0", "v1", "v2", "v3"]
                wanted = [(n, t) for t in range(0, STEPS, 3) for n in names]
                found = pool.map(lambda want: ds[want[0]][want[1]].values, wanted)
                for (variable, step), values in zip(wanted, found, strict=True):
                    np.testing.assert_array_equal(values, right[variable][step].values)

    def test_opened_by_many_threads_at_once(self, server: RangeServer, root: Path) -> None:
        url = f"{server.url}/h5.nc"

        def read(_: int) -> xr.Dataset:
            with xr.open_dataset(url, engine="nczarr") as ds:
                return ds.load()

        with ThreadPoolExecutor(8) as pool:
            for ds in pool.map(read, range(16)):
                xr.testing.assert_identical(ds, expected(root / "h5.nc"))


class TestLocal:
    def test_the_same_file_twice(self, root: Path) -> None:
        with (
            xr.open_dataset(root / "h5.nc", engine="nczarr") as one,
            xr.open_dataset(root / "h5.nc", engine="nczarr") as other,
        ):
            one.v0.load()
            one.close()
            xr.testing.assert_identical(other.load(), expected(root / "h5.nc"))

    def test_used_after_it_was_closed(self, root: Path) -> None:
        ds = xr.open_dataset(root / "c1.nc", engine="nczarr")
        ds.close()
        xr.testing.assert_identical(ds.load(), expected(root / "c1.nc"))
        ds.close()

    @pytest.mark.parametrize("how", ["replaced", "rewritten", "longer"])
    def test_a_file_that_changes(self, tmp_path: Path, how: str) -> None:
        path = write_file(tmp_path / "h5.nc", 1)
        other = write_file(tmp_path / "other.nc", 2)
        with (
            xr.open_dataset(path, engine="nczarr", cache=False) as ds,
            xr.open_dataset(path, engine="nczarr", cache=False) as closed,
        ):
            before = expected(path)
            closed.close()
            if how == "replaced":
                other.replace(path)
            elif how == "rewritten":
                path.write_bytes(other.read_bytes())
            else:
                with path.open("ab") as file:
                    file.write(b"more")
            with pytest.raises(StoreError, match="has changed since it was opened"):
                closed.v0.load()
            if how == "replaced":  # the old file is still there for who has it open
                xr.testing.assert_identical(ds.v0.load(), before.v0)
            else:
                with pytest.raises(StoreError, match="has changed since it was opened"):
                    ds.v0.load()
        check(path, path)

    @pytest.mark.slow
    def test_a_file_that_is_deleted(self, tmp_path: Path) -> None:
        path = write_file(tmp_path / "c1.nc")
        before = expected(path)
        ds = xr.open_dataset(path, engine="nczarr", cache=False)
        path.unlink()
        xr.testing.assert_identical(ds.v0.load(), before.v0)  # it is still open
        ds.close()
        with pytest.raises(DatasetNotFoundError, match=r"c1\.nc"):
            ds.v1.load()


def test_a_file_that_is_written_twice_in_a_second(tmp_path: Path) -> None:
    """Behind a server whose tags are times and sizes, as Caddy and WsgiDAV have them."""

    def content(name: str) -> bytes:
        xr.Dataset({name: ("x", np.arange(9.0))}).to_netcdf(tmp_path / name, engine="scipy")
        return (tmp_path / name).read_bytes()

    now = formatdate(usegmt=True)
    with Server({"/x.nc": content("a")}, etag='"t2r6sb144"', modified=now) as server:
        for name in "ab":
            server.files["/x.nc"] = content(name)
            with xr.open_dataset(f"{server.url}/x.nc", engine="nczarr") as ds:
                assert list(ds) == [name]
                assert ds[name].values.tolist() == list(range(9))
