"""Filesystems that behave as sshfs, webdav4, fsspec's FTP and SFTP and others of fsspec do."""

from __future__ import annotations

import asyncio
import ftplib
import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.asyn import AsyncFileSystem

from nczarr_fsspec import FsspecStore, open_source
from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.destination import FilePlace, open_destination
from nczarr_fsspec.errors import DatasetNotFoundError, NCZarrWarning, StoreError
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.transport import fsspec as _fsspec
from nczarr_fsspec.transport.request import Extent
from nczarr_fsspec.transport.shared import SharedFilesystem
from nczarr_xarray import to_nczarr

OLD, NEW = b"\x01" * 300_000, b"\x02" * 300_000


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test find the filesystems of others, or what was said of them."""
    monkeypatch.setattr(SharedFilesystem, "all", WeakValueDictionary())
    _fsspec._warn_of.cache_clear()
    yield
    _fsspec._warn_of.cache_clear()


class Changing(AsyncFileSystem):
    """One file, which changes when `change` says so."""

    cachable = False

    def __init__(self, stated: str = "etag") -> None:
        super().__init__()
        self.content, self.stated, self.version = OLD, stated, 1
        self.infos = self.reads = 0
        self.gone = False
        self.before_read = self.after_read = -1  # the number of the read that it changes at

    def change(self, content: bytes = NEW) -> None:
        self.content, self.version = content, self.version + 1

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        self.infos += 1
        await asyncio.sleep(0)
        if self.gone:
            raise FileNotFoundError(path)
        tag = {self.stated: self.version} if self.stated else {}
        return {"name": path, "size": len(self.content), "type": "file", **tag}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        self.reads += 1
        if self.reads == self.before_read:
            self.change()
        content = self.content[start:end]
        await asyncio.sleep(0)
        if self.reads == self.after_read:
            self.change()
        return content


def opened(fs: Any) -> RemoteFileBytes:
    source = open_source(fs, "x")
    assert isinstance(source, RemoteFileBytes)
    return source


@pytest.fixture
def same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the filesystems of a test as they are."""
    monkeypatch.setattr("nczarr_fsspec.transport.shared.alike", lambda fs: fs)


def part(source: RemoteFileBytes, start: int) -> bytes:
    (data,) = source.run(source.fetch([Extent(start, start + 10)]))
    return bytes(data)


@pytest.mark.usefixtures("same")
class TestChanges:
    @pytest.mark.parametrize("stated", ["generation", "etag", "mtime", "modify", "LastModified"])
    def test_are_noticed(self, stated: str) -> None:
        fs = Changing(stated)
        source = opened(fs)
        assert part(source, 200_000) == OLD[:10]
        fs.change()
        with pytest.raises(StoreError, match=r"has changed while it was read.*open it again"):
            part(source, 200_000)
        source.close()

    @pytest.mark.parametrize("when", ["before_read", "after_read"])
    def test_while_bytes_come(self, when: str) -> None:
        fs = Changing()
        source = opened(fs)
        setattr(fs, when, fs.reads + 1)
        with pytest.raises(StoreError, match="has changed while it was read"):
            part(source, 200_000)
        source.close()

    @pytest.mark.parametrize("when", ["before_read", "after_read"])
    def test_while_it_is_opened(self, when: str) -> None:
        fs = Changing()
        setattr(fs, when, 1)
        with pytest.raises(StoreError, match="has changed while it was read"):
            opened(fs)

    def test_of_the_size_need_no_tag(self) -> None:
        fs = Changing("")
        with pytest.warns(NCZarrWarning, match="states neither tags nor times"):
            source = opened(fs)
        fs.change(NEW + NEW)
        with pytest.raises(StoreError, match="it had 300000 bytes and has 600000"):
            part(source, 200_000)
        source.close()

    @pytest.mark.usefixtures("no_waiting")
    def test_shorter_files(self) -> None:
        fs = Changing()
        source = opened(fs)
        fs.change(NEW[:10])
        with pytest.raises(StoreError, match="it had 300000 bytes and has 10"):
            part(source, 200_000)
        source.close()

    def test_files_that_are_gone(self) -> None:
        fs = Changing()
        source = opened(fs)
        fs.gone = True
        with pytest.raises(DatasetNotFoundError, match="the file has disappeared"):
            part(source, 200_000)
        source.close()

    def test_one_question_serves_many_reads(self) -> None:
        fs = Changing()
        source = opened(fs)
        before = fs.infos

        async def read() -> None:
            extents = [[Extent(at, at + 1)] for at in range(100_000, 100_100)]
            await gather_or_cancel(*map(source.fetch, extents))

        source.run(read())
        assert 1 <= fs.infos - before <= 3
        source.close()

    def test_how_often_it_is_asked(self) -> None:
        """Before the first bytes, and once after each read: all of these are needed."""
        fs = Changing()
        source = opened(fs)
        assert (fs.reads, fs.infos) == (1, 2)
        for reads in range(2, 5):
            part(source, 100_000 * (reads - 2))
            assert (fs.reads, fs.infos) == (reads, reads + 1)
        source.close()

    def test_a_filesystem_that_says_nothing_is_named_once(self) -> None:
        fs = Changing("")
        with pytest.warns(NCZarrWarning, match="Changing of fsspec states neither"):
            source = opened(fs)
        assert part(source, 200_000) == OLD[:10]
        opened(fs).close()  # a warning would be an error here
        source.close()

    def test_values(self, tmp_path: Path) -> None:
        """What is read later is of the file that was opened, or an error."""
        for number, name in enumerate(("old", "new")):
            values = np.full((4, 20_000), float(number))
            written = xr.Dataset({"v": (("y", "x"), values)})
            written.to_netcdf(tmp_path / name, engine="h5netcdf")
        fs = Changing("mtime")
        fs.content = (tmp_path / "old").read_bytes()
        file = fsspec.core.OpenFile(fs, "x")
        with xr.open_dataset(file, engine="nczarr") as found:
            assert (found["v"][0] == 0).all()
            fs.change((tmp_path / "new").read_bytes())
            with pytest.raises(StoreError, match="has changed while it was read"):
                found["v"][3].load()


class Whole(AsyncFileSystem):
    """As sshfs: it sends all of a file for each part, but what it opens can seek."""

    cachable = False
    content = bytes(range(256)) * 1000

    def __init__(self) -> None:
        super().__init__()
        self.whole = 0

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file", "mtime": 1.0}

    async def _cat_file(self, path: str, **_: Any) -> bytes:
        self.whole += 1
        return self.content

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return io.BytesIO(self.content)


@pytest.mark.usefixtures("same")
def test_parts_of_files_that_come_whole_only() -> None:
    fs = Whole()
    source = opened(fs)
    assert source.head == fs.content[: 1 << 16]
    assert part(source, 200_001) == fs.content[200_001:200_011]
    source.close()
    store = FsspecStore(fs, "d")
    assert store.run(store.get("v", slice(3, 7))) == fs.content[3:7]
    assert store.run(store.get("v", slice(-5, None))) == fs.content[-5:]
    assert store.run(store.get("v", slice(255_990, None))) == fs.content[255_990:]
    assert fs.whole == 0
    assert store.run(store.get("v")) == fs.content
    store.close()


class Folders(fsspec.AbstractFileSystem):
    """Files in folders that are not made by themselves; errors of FTP; no copies over others.

    Arguments that it does not know go to what it is made of, as webdav4's do.
    """

    protocol = "webdav"
    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    folders: ClassVar[set[str]] = set()
    made: ClassVar[list[str]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in self.files:
            content = self.files[path]
            return {"name": path, "size": len(content), "type": "file", "etag": hash(content)}
        if path == "" or path in self.folders:
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        path = self._strip_protocol(path)
        if path and path not in self.folders:
            raise FileNotFoundError(path)
        with self.lock:
            names = sorted({*self.files, *self.folders})
        found = [self.info(name) for name in names if name.rpartition("/")[0] == path]
        return found if detail else [one["name"] for one in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        assert not create_parents
        with self.lock:
            if path in self.folders:
                raise ftplib.error_perm("550 File exists")
            self._need(path)
            self.folders.add(path)
            self.made.append(path)

    def _need(self, path: str) -> None:
        above = path.rpartition("/")[0]
        if above and above not in self.folders:
            raise ftplib.error_perm("550 No such file or directory.")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._upload(self._strip_protocol(path), value, **options)

    def _upload(self, path: str, value: bytes) -> None:
        self._need(path)
        with self.lock:
            self.files[path] = bytes(value)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **options: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes(), **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        if path not in self.files:
            raise FileNotFoundError(path) from ftplib.error_perm("550 No such file or directory.")
        return self.files[path][start:end]

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if path2 in self.files:
            raise RuntimeError(f"{path2} already exists")
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        if path not in self.files:
            raise ftplib.error_perm("550 No such file or directory.")
        with self.lock:
            del self.files[path]


class Rooted(Folders):
    """As SFTP: a path without a slash at its beginning is one of the home of the user."""

    protocol = "sftp"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("sftp://h.org")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        assert path.startswith("/")
        self.files[path] = value


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> str:
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.setitem(known, "webdav", Folders)
    monkeypatch.setitem(known, "sftp", Rooted)
    Folders.files.clear()
    Folders.folders.clear()
    Folders.made.clear()
    return "webdav://"


def dataset(first: float = 0.0) -> xr.Dataset:
    values = first + np.arange(40.0).reshape(4, 10)
    return xr.Dataset({"v": (("y", "x"), values)}, {"y": np.arange(4)})


class TestFolders:
    def test_trees(self, folders: str) -> None:
        target, chunks = f"{folders}d/e/t.nczarr", {"v": {"chunks": (2, 5)}}
        to_nczarr(dataset().isel(y=slice(2)), target, encoding=chunks)
        to_nczarr(dataset().isel(y=slice(2, None)), target, append_dim="y")
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_equal(found.load(), dataset())
        to_nczarr(dataset(7.0), target, mode="w")
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_equal(found.load(), dataset(7.0))

    @pytest.mark.parametrize("folder", ["", "d/e/"])
    def test_aggregations(self, folders: str, folder: str) -> None:
        """At the root, too, where the name of the master is not that of a host."""
        target = f"{folders}{folder}m.nca"
        dataset().nczarr.to_cfa(target, subarray_shape={"y": 2})
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_equal(found.load(), dataset())
        assert sorted(Folders.files)[-2:] == [f"{folder}m/m.v.{n}.0.nc" for n in range(2)]

    def test_archives(self, folders: str) -> None:
        for first in (0.0, 1.0):
            to_nczarr(dataset(first), f"{folders}d/t.zip", mode="w")
            with xr.open_dataset(f"{folders}d/t.zip", engine="nczarr") as found:
                xr.testing.assert_equal(found.load(), dataset(first))
        assert list(Folders.files) == ["d/t.zip"]

    @pytest.mark.usefixtures("folders")
    def test_many_writers_make_the_same_folder(self) -> None:
        writer = FsspecWriter(Folders(), "d/e")
        keys = [f"f/g/{number}" for number in range(40)]
        writer._keys.run_each(lambda path: writer._put(b"x", path), [f"d/e/{key}" for key in keys])
        assert writer.keys_below("") == sorted(keys)
        assert Folders.made == ["d", "d/e", "d/e/f", "d/e/f/g"]
        writer.close()

    @pytest.mark.usefixtures("folders")
    def test_objects_are_made_once(self) -> None:
        writer = FsspecWriter(Folders(), "d")
        assert [writer.create("k", b"1"), writer.create("k", b"2")] == [True, False]
        assert Folders.files == {"d/k": b"1"}
        writer.close()


class Blobs(AsyncFileSystem):
    """As adlfs: what must not be replaced is said by `overwrite`."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]

    async def _pipe_file(self, path: str, value: bytes, overwrite: bool = True, **_: Any) -> None:
        if not overwrite and path == "d/late":
            self.files[path] = b"of another"
        if not overwrite and path in self.files:
            raise FileExistsError(path)
        self.files[path] = value


@pytest.mark.usefixtures("same")
def test_another_writer_may_have_come_first() -> None:
    fs = Blobs()
    writer = FsspecWriter(fs, "d")
    assert writer.create("early", b"1")
    assert not writer.create("late", b"2")
    assert fs.files == {"d/early": b"1", "d/late": b"of another"}
    writer.close()


class Renaming(AsyncFileSystem):
    """As sshfs: it has a rename, and writes in place."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, ...]] = []

    async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.done.append(("put", rpath.rpartition("/")[0]))

    async def _mv(self, path1: str, path2: str, **_: Any) -> None:
        self.done.append(("rename", path2))


@pytest.mark.usefixtures("same")
def test_whole_files_are_renamed_at_the_end(tmp_path: Path) -> None:
    fs = Renaming()
    (tmp_path / "x").write_bytes(b"1")
    writer = FsspecWriter(fs, "d")
    writer.upload("x.zip", str(tmp_path / "x"))
    assert fs.done == [("put", "d"), ("rename", "d/x.zip")]
    writer.close()


def write_two(path: str) -> None:
    Path(path).write_bytes(b"2")


@pytest.mark.usefixtures("folders")
def test_what_is_written_at_the_root_of_a_server_is_not_at_home() -> None:
    place = FilePlace.find("sftp://h.org/m.nca")
    place.store.put("m/f.nc", b"1")
    open_destination("sftp://h.org/a.zip").put_archive(write_two)
    assert Folders.files == {"/m/f.nc": b"1", "/a.zip": b"2"}


class Failing(Folders):
    """As FTP: it says of every failure that there is no such file."""

    failures: ClassVar[list[str]] = []
    connections: ClassVar[list[int]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connections.append(1)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        if self.failures:
            cause = ftplib.error_temp if self.failures[-1].startswith("4") else ftplib.error_perm
            raise FileNotFoundError(path) from cause(self.failures.pop())
        return super().cat_file(path, start, end, **options)


@pytest.mark.usefixtures("no_waiting", "folders")
class TestFTP:
    def test_a_failure_is_no_absence(self) -> None:
        """A chunk that is absent reads as the fill value."""
        Failing.files["v/0"] = b"1"
        store = FsspecStore(Failing(), "")
        Failing.failures[:] = ["530 Please log in"]
        (found,) = store.get_many(["v/0"])
        assert isinstance(found, StoreError)
        assert store.get_many(["v/0", "v/1"]) == [b"1", None]
        store.close()

    def test_what_may_pass_is_tried_again(self) -> None:
        Failing.files["v/0"] = b"1"
        store = FsspecStore(Failing(), "")
        Failing.failures[:] = ["421 Timeout."]
        assert store.get_many(["v/0"]) == [b"1"]
        store.close()

    def test_a_connection_that_was_closed_is_made_anew(self) -> None:
        """Each thread has one of its own: here it is this one's."""
        Failing.files["v/0"] = b"1"
        shared = FsspecStore(Failing(), "").transport.shared
        before = len(Failing.connections)
        for _ in range(2):
            assert shared._call("cat_file", "v/0") == b"1"
        assert len(Failing.connections) == before + 1
        Failing.failures[:] = ["421 Timeout."]
        with pytest.raises(FileNotFoundError):
            shared._call("cat_file", "v/0")
        assert shared._call("cat_file", "v/0") == b"1"
        assert len(Failing.connections) == before + 2
