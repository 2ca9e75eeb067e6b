"""What is remembered of remote files, in memory and on disk: fewer requests, never other values."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec import StoreError
from nczarr_fsspec.ranges import index_memory
from nczarr_fsspec.ranges.index_memory import Remembered, memory
from nczarr_fsspec.ranges.source import HEAD_BYTES, Known
from nczarr_xarray import NCZarrWarning
from tests.support.builders.remotefiles import FORMATS, check, expected, write_chunks, write_file
from tests.support.examples import examples
from tests.support.marks import each_once
from tests.support.servers.httpserver import Server
from tests.support.servers.realservers import RangeServer, nginx, python_server

READ = """
import sys
import xarray as xr
url, path, folder = sys.argv[1:]
with xr.open_dataset(url, engine="nczarr", index_cache=folder, cache=False) as ds:
    ds.close()
    if path:
        with xr.open_dataset(path, engine="netcdf4") as right:
            xr.testing.assert_identical(ds.load(), right.load())
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    memory.clear()
    yield
    memory.clear()


@pytest.fixture(scope="module")
def root(files_root: Path) -> Path:
    return files_root


@pytest.fixture
def server(files_server: RangeServer) -> RangeServer:
    files_server.set()
    return files_server


def statuses(server: RangeServer) -> list[int]:
    """Of the answers since the last time."""
    found = [request["status"] for request in server.control("log")]
    server.control("reset")
    return found


def opened(target: str, **options: Any) -> xr.Dataset:
    """Opened, and closed again."""
    with xr.open_dataset(target, engine="nczarr", cache=False, **options) as ds:
        return ds


def another_process(url: str, path: Path | str, folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", READ, url, str(path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


class TestMemory:
    def test_what_users_change_is_theirs(self, server: RangeServer, tmp_path: Path) -> None:
        """The metadata of an open file are those of the next one, too."""
        path = tmp_path / "x.nc"
        with netCDF4.Dataset(path, "w") as ds:
            ds.limits = np.array([1.0, 2.0])
            ds.createVariable("v", "f4", ()).limits = np.array([3.0, 4.0])
        with Server({"/x.nc": path.read_bytes()}, etag='"1"') as simple:
            first = opened(f"{simple.url}/x.nc")
            first.attrs["limits"][0] = first.v.attrs["limits"][0] = 99
            again = opened(f"{simple.url}/x.nc")
        assert again.attrs["limits"].tolist() == [1, 2]
        assert again.v.attrs["limits"].tolist() == [3, 4]

    @pytest.mark.parametrize(
        ("name", "knobs"),
        each_once(list(FORMATS), [{}, {"weak": 1}, {"redirect": 1}, {"max_ranges": 0}]),
    )
    def test_opening_again_is_one_request(
        self, server: RangeServer, root: Path, name: str, knobs: dict[str, int]
    ) -> None:
        server.set(**knobs)
        url = f"{server.url}/{name}"
        opened(url)
        first = statuses(server)
        assert first.count(206) > 1
        ds = opened(url)
        assert [s for s in statuses(server) if s != 302] == [304]
        xr.testing.assert_identical(ds.load(), expected(root / name))
        ds.close()
        if name == "h5.nc":
            opened(url, group="model/run")
            assert statuses(server)[-1] in (206, 304)
            opened(url, group="model/run")
            assert [s for s in statuses(server) if s != 302] == [304]
        check(url, root / name)

    @pytest.mark.parametrize("folder", [None, "index"])
    def test_what_was_looked_up_is_remembered_too(
        self, server: RangeServer, root: Path, tmp_path: Path, folder: str | None
    ) -> None:
        """On disk, when the file is closed."""
        write_chunks(root / "chunks.nc")
        counts = []
        for _ in range(2):
            options: Any = {} if folder is None else {"index_cache": tmp_path / folder}
            with xr.open_dataset(f"{server.url}/chunks.nc", engine="nczarr", **options) as ds:
                statuses(server)
                ds.v.isel(time=1234).load()
                counts.append(len(statuses(server)))
            if folder is not None:
                memory.clear()
        assert counts[0] > counts[1] == 1

    def test_a_file_without_metadata_elsewhere(self, server: RangeServer, root: Path) -> None:
        """All of it comes with the first request; the second does not bring it again."""
        xr.Dataset({"v": ("x", [1, 2, 3])}).to_netcdf(root / "tiny.nc")
        for count, size in ((206, (root / "tiny.nc").stat().st_size), (304, 0)):
            check(f"{server.url}/tiny.nc", root / "tiny.nc")
            assert server.control("stats")["bytes"] == size
            assert statuses(server) == [count]

    @pytest.mark.parametrize("folder", [None, "index"])
    def test_a_file_that_changed_is_read_anew(
        self, server: RangeServer, root: Path, tmp_path: Path, folder: str | None
    ) -> None:
        options = {} if folder is None else {"index_cache": tmp_path / folder}
        url, path = f"{server.url}/moving.nc", root / "moving.nc"
        for seed in (1, 2, 3):
            write_file(path, seed)
            check(url, path, **options)
            assert 304 not in statuses(server)
            if folder is not None:
                memory.clear()
            check(url, path, **options)
            assert statuses(server).count(304) == 1

    def test_it_is_that_of_one_place(self, root: Path, tmp_path: Path) -> None:
        """Files of one size and one tag, at one server, and for one user."""
        one, other = tmp_path / "one.nc", tmp_path / "other.nc"
        for seed, path in enumerate((one, other)):
            xr.Dataset({"v": ("x", [seed, 1, 2])}, attrs={"n": seed}).to_netcdf(
                path, format="NETCDF3_CLASSIC"
            )
        assert one.stat().st_size == other.stat().st_size
        content = {"/a/x.nc": one.read_bytes(), "/b/x.nc": other.read_bytes()}
        content |= {"/c/x.nc": other.read_bytes()}
        for options in ({}, {"index_cache": tmp_path / "index"}):
            with Server(content, etag='"same"') as server:
                for _ in range(2):
                    check(f"{server.url}/a/x.nc", one, **options)
                    check(f"{server.url}/b/x.nc", other, **options)
                    check(f"{server.url}/a/x.nc?v=1", one, **options)
                    memory.clear() if options else None
                counted = [request.status for request in server.requests]
                assert counted == [206, 206, 206, 304, 304, 304]

    def test_it_opens_no_doors(self, root: Path) -> None:
        with Server(
            {"/x.nc": (root / "c1.nc").read_bytes()}, password="me:hunter22", etag='"1"'
        ) as server:
            check(f"{server.url}/x.nc".replace("://", "://me:hunter22@"), root / "c1.nc")
            with pytest.raises(StoreError, match="401"):
                opened(f"{server.url}/x.nc")
            with pytest.raises(StoreError, match="401"):
                opened(f"{server.url}/x.nc".replace("://", "://me:wrong@"))

    @pytest.mark.parametrize("folder", [None, "index"])
    def test_nothing_is_remembered_of_a_server_without_validators(
        self, server: RangeServer, root: Path, tmp_path: Path, folder: str | None
    ) -> None:
        options = {} if folder is None else {"index_cache": tmp_path / folder}
        server.set(noetag=1)
        url, path = f"{server.url}/moving.nc", root / "moving.nc"
        counts = []
        for seed in (1, 2, 2):
            write_file(path, seed)
            check(url, path, **options)
            counts.append(len(statuses(server)))
        assert min(counts) > 2
        assert not list(tmp_path.rglob("*.index"))

    def test_a_server_with_times_only(self, root: Path) -> None:
        """A file may be replaced by an older one, which is not modified since."""
        path = root / "older.nc"
        with python_server(root) as url:
            for seed in (1, 2, 3):
                write_file(path, seed)
                os.utime(path, (1e9 - 1000 * seed, 1e9 - 1000 * seed))
                check(f"{url}/older.nc", path)

    def test_a_whole_file_is_not_metadata(self, server: RangeServer, tmp_path: Path) -> None:
        """A server without ranges sends all of it."""
        server.set(norange=1)
        opened(f"{server.url}/c1.nc", index_cache=tmp_path)
        (file,) = tmp_path.glob("*.index")
        assert file.stat().st_size < 2 * HEAD_BYTES

    def test_it_is_bounded(
        self, server: RangeServer, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        urls = {name: f"{server.url}/{name}" for name in FORMATS}

        def remembered() -> set[str]:
            """Files whose opening takes one request; asking changes the order."""
            found = set()
            for name, url in urls.items():
                statuses(server)
                opened(url)
                if statuses(server) == [304]:
                    found.add(name)
            return found

        monkeypatch.setattr(index_memory, "MOST_FILES", 2)
        for name, url in urls.items():
            check(url, root / name)
        assert len(memory._files) == 2
        assert remembered() == set()  # each opening drives the next one out
        opened(urls["c1.nc"])
        opened(urls["c5.nc"])
        statuses(server)
        for name in ("c1.nc", "c5.nc", "c1.nc"):
            opened(urls[name])
        assert statuses(server) == [304] * 3
        monkeypatch.setattr(index_memory, "MOST_FILES", 100)
        monkeypatch.setattr(index_memory, "MOST_BYTES", 1)
        for name, url in urls.items():
            check(url, root / name)
            assert len(memory._files) == 1  # that which is in use
        monkeypatch.setattr(index_memory, "MOST_BYTES", 1 << 28)
        for url in urls.values():
            opened(url)
        assert remembered() == set(FORMATS)

    def test_so_are_the_groups_of_a_file(self) -> None:
        parsed = Remembered(Known(1, "v")).parsed
        for number in range(100):
            parsed[number, False] = number
        assert list(parsed.values()) == list(range(100))[-index_memory.MOST_PARSED :]


class TestDisk:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["h5.nc", "c1.nc"])
    def test_another_process_opens_with_one_request(
        self, server: RangeServer, root: Path, tmp_path: Path, name: str
    ) -> None:
        folder = tmp_path / "deep" / "index"
        url = f"{server.url}/{name}#mode=bytes"
        another_process(url, "", folder)
        assert len(statuses(server)) > 1
        another_process(url, "", folder)
        assert statuses(server) == [304]
        another_process(url, root / name, folder)
        assert statuses(server).count(304) == 1
        (file,) = folder.iterdir()
        assert 0 < file.stat().st_size < 400_000
        if os.name == "posix":
            assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)

    def test_no_secret_is_kept(self, root: Path, tmp_path: Path) -> None:
        with Server(
            {"/x.nc": (root / "c1.nc").read_bytes()}, password="me:hunter22", etag='"1"'
        ) as server:
            url = f"{server.url}/x.nc?token=abracadabra".replace("://", "://me:hunter22@")
            check(url, root / "c1.nc", index_cache=tmp_path)
        (file,) = tmp_path.iterdir()
        for secret in ("hunter22", "abracadabra"):
            assert secret.encode() not in file.read_bytes()
            assert secret not in file.name

    @pytest.fixture
    def entry(self, server: RangeServer, tmp_path: Path) -> Path:
        opened(f"{server.url}/h5.nc", index_cache=tmp_path / "index")
        statuses(server)
        memory.clear()
        (file,) = (tmp_path / "index").iterdir()
        return file

    @pytest.mark.parametrize(
        "content", [b"", b"\n", b"no index", b"{}\n", bytes(100_000), b'{"size": 1}\nabc']
    )
    def test_what_is_no_index(
        self, server: RangeServer, root: Path, entry: Path, content: bytes
    ) -> None:
        entry.write_bytes(content)
        check(f"{server.url}/h5.nc", root / "h5.nc", index_cache=entry.parent)
        assert 304 not in statuses(server)
        memory.clear()  # it was written anew
        check(f"{server.url}/h5.nc", root / "h5.nc", index_cache=entry.parent)
        assert statuses(server).count(304) == 1

    def test_damage(self, server: RangeServer, root: Path, entry: Path) -> None:
        good = entry.read_bytes()

        @settings(max_examples=examples(25))
        @given(st.integers(0, len(good) - 1), st.integers(1, 255), st.booleans())
        def damaged(at: int, mask: int, cut: bool) -> None:
            data = bytearray(good)
            data[at] ^= mask
            entry.write_bytes(data[:at] if cut else data)
            memory.clear()
            with xr.open_dataset(
                f"{server.url}/h5.nc", engine="nczarr", index_cache=entry.parent
            ) as ds:
                assert 304 not in statuses(server)
                xr.testing.assert_identical(ds.v0[70].load(), right.v0[70])

        right = expected(root / "h5.nc")
        damaged()

    def test_that_of_another_file(
        self, server: RangeServer, root: Path, entry: Path, tmp_path: Path
    ) -> None:
        opened(f"{server.url}/c1.nc", index_cache=tmp_path / "other")
        (other,) = (tmp_path / "other").iterdir()
        other.replace(entry)
        memory.clear()
        statuses(server)
        check(f"{server.url}/h5.nc", root / "h5.nc", index_cache=entry.parent)
        assert 304 not in statuses(server)

    def test_a_folder_in_its_place(self, server: RangeServer, root: Path, entry: Path) -> None:
        entry.unlink()
        entry.mkdir()
        (entry / "x").touch()
        with pytest.warns(NCZarrWarning, match="the index cannot be kept there"):
            check(f"{server.url}/h5.nc", root / "h5.nc", index_cache=entry.parent)
        assert os.listdir(entry.parent) == [entry.name]

    def test_a_folder_that_cannot_be_made(
        self, server: RangeServer, root: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        for folder in (tmp_path / "file", tmp_path / "file" / "deep"):
            with pytest.warns(NCZarrWarning, match="the index cannot be kept there") as caught:
                check(f"{server.url}/c1.nc", root / "c1.nc", index_cache=folder)
            assert len(caught) == 1

    def test_local_files_need_none(self, root: Path, tmp_path: Path) -> None:
        check(root / "h5.nc", root / "h5.nc", index_cache=tmp_path / "index")
        assert not (tmp_path / "index").exists()


def test_nginx_and_a_file_that_was_replaced_within_the_second(tmp_path: Path) -> None:
    """Its tag is the same for both versions, if they have the same size."""
    root = tmp_path / "root"
    root.mkdir()
    path = root / "x.nc"

    now = time.time() // 1

    def write(value: int) -> None:
        path.unlink(missing_ok=True)
        with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
            file.title = f"title {value}"
            file.createDimension("x", 3)
            file.createVariable("v", "i4", ("x",))[:] = value
        os.utime(path, (now, now))

    with nginx(root, tmp_path) as server:
        for value in (1, 2):
            write(value)
            with xr.open_dataset(f"{server.plain}/x.nc", engine="nczarr") as found:
                assert found.title == f"title {value}"
                assert found["v"].values.tolist() == [value] * 3
