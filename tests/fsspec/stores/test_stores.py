"""What every store promises, and how a target is resolved to one."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec import (
    DatasetNotFoundError,
    DirectoryStore,
    FormatError,
    FsspecStore,
    KeyStore,
    LocalStore,
    MappingStore,
    NCZarrError,
    RemoteStore,
    RemoteZipStore,
    StoreError,
    URLError,
    ZipStore,
    open_keystore,
)
from nczarr_fsspec.errors import TooLargeError
from nczarr_fsspec.keystore import check_key, is_safe_name
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.source import LocalBytes
from nczarr_fsspec.stores.directory import SMALL
from nczarr_fsspec.stores.mapping import MemoryFiles
from nczarr_fsspec.transport import policy as _policy
from tests.support.builders.archives import DATASET, HOSTILE, write_zip
from tests.support.builders.trees import write_tree
from tests.support.servers.filesystems import own_memory
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server, s3_server  # noqa: F401  # the fixture

CHUNK = DATASET["v/0.0"]


@contextmanager
def _directory(folder: Path) -> Iterator[KeyStore]:
    yield DirectoryStore(write_tree(folder / "d", DATASET))


@contextmanager
def _mapping(folder: Path) -> Iterator[KeyStore]:
    yield MappingStore(DATASET)


@contextmanager
def _zip(folder: Path) -> Iterator[KeyStore]:
    yield ZipStore(write_zip(folder / "d.zip", "d/"))


@contextmanager
def _zip_bytes(folder: Path) -> Iterator[KeyStore]:
    yield ZipStore(write_zip(folder / "d.zip").read_bytes())


@contextmanager
def _remote_zip(folder: Path) -> Iterator[KeyStore]:
    content = write_zip(folder / "d.zip", "d/").read_bytes()
    with Server({"/d.zip": content}) as server:
        yield open_keystore(f"{server.url}/d.zip")


@contextmanager
def _http(folder: Path) -> Iterator[KeyStore]:
    with Server({f"/data set/{key}": value for key, value in DATASET.items()}) as server:
        yield open_keystore(f"{server.url}/data%20set#mode=nczarr")


@contextmanager
def _memory(folder: Path) -> Iterator[KeyStore]:
    with memory_tree("contract") as fs:
        yield MappingStore(MemoryFiles(fs, "/contract"))


@contextmanager
def _sync_in_threads(folder: Path) -> Iterator[KeyStore]:
    with memory_tree("threads") as fs:
        yield FsspecStore(fs, "/threads")


@contextmanager
def _mapper(folder: Path) -> Iterator[KeyStore]:
    yield open_keystore(fsspec.get_mapper(f"file://{write_tree(folder / 'd', DATASET)}"))


KINDS: dict[str, Callable[[Path], Any]] = {
    "directory": _directory,
    "mapping": _mapping,
    "zip": _zip,
    "zip-bytes": _zip_bytes,
    "remote-zip": _remote_zip,
    "http": _http,
    "memory": _memory,
    "sync-in-threads": _sync_in_threads,
    "mapper": _mapper,
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyStore]:
    with KINDS[request.param](tmp_path) as opened:
        yield opened
        opened.close()


@contextmanager
def memory_tree(name: str) -> Iterator[MemoryFileSystem]:
    fs = fsspec.filesystem("memory")
    for key, content in DATASET.items():
        fs.pipe_file(f"/{name}/{key}", content)
    yield fs
    fs.rm(f"/{name}", recursive=True)


def read(store: KeyStore, key: str, start: int | None = None, stop: int | None = None) -> Any:
    if isinstance(store, RemoteStore):
        return store.run(store.get(key, slice(start, stop)))
    assert isinstance(store, LocalStore)
    return store.get(key, slice(start, stop))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestContract:
    def test_every_key_is_read(self, store: KeyStore) -> None:
        assert store.get_many(list(DATASET)) == list(DATASET.values())

    def test_missing_keys_and_prefixes_of_keys_are_none(self, store: KeyStore) -> None:
        assert store.get_many(["nope", "v", "g1", "v/0.0/x", "v/9.9"]) == [None] * 5

    @pytest.mark.parametrize(
        ("start", "stop"),
        [(0, 10), (3, 4), (7, None), (None, 9), (1270, 5000), (5000, 6000), (5, 5), (0, 1280)],
    )
    def test_ranges_are_slices(self, store: KeyStore, start: Any, stop: Any) -> None:
        assert read(store, "v/0.0", start, stop) == CHUNK[start:stop]

    def test_range_of_nothing(self, store: KeyStore) -> None:
        assert read(store, "nope", 0, 5) is None
        assert read(store, "v/0.1", 0, 5) == b""

    @pytest.mark.parametrize("key", HOSTILE)
    def test_no_key_leads_out_of_the_dataset(self, store: KeyStore, key: str) -> None:
        with pytest.raises(StoreError, match="is not a key inside a dataset"):
            read(store, key)

    def test_a_key_that_no_file_system_can_hold_is_missing(self, store: KeyStore) -> None:
        assert store.get_many(["\ud800", "x" * 300]) == [None, None]

    def test_lists_what_is_directly_below(self, store: KeyStore) -> None:
        root, group, nothing = store.list_many(["", "g1", "nope"])
        if isinstance(store, FsspecStore) and "http" in store.url:
            assert (root, group, nothing) == (None, None, None)  # HTTP cannot list
            return
        assert root == {".zgroup", ".zattrs", "v", "g1"}
        assert group == {key.split("/")[1] for key in DATASET if key.startswith("g1/")}
        assert nothing == frozenset()

    def test_survives_pickling(self, store: KeyStore) -> None:
        read(store, ".zgroup")
        again = pickle.loads(pickle.dumps(store))
        assert (type(again), again.url) == (type(store), store.url)
        assert again.get_many(["v/0.0", "nope"]) == [CHUNK, None]
        again.close()

    def test_threads_share_it(self, store: KeyStore) -> None:
        keys = list(DATASET) * 4
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda key: read(store, key), keys)) == [DATASET[k] for k in keys]

    def test_works_inside_a_running_event_loop(self, store: KeyStore) -> None:
        async def notebook_cell() -> Any:
            return store.get_many(["v/0.0"]), store.list_many([""])

        assert asyncio.run(notebook_cell())[0] == [CHUNK]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_works_in_a_forked_process(self, store: KeyStore) -> None:
        read(store, ".zgroup")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=lambda: answers.put(store.get_many(["v/0.0", "nope"])))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert answers.get() == [CHUNK, None]
        assert read(store, "v/0.0") == CHUNK  # and still in this one

    def test_close_leaves_nothing_open_and_it_reopens(self, store: KeyStore) -> None:
        read(store, ".zgroup")
        store.close()
        before = settled_open_files()
        store.get_many(list(DATASET))
        store.close()
        # fewer, where something of a test before this one was collected
        assert settled_open_files(before) <= before
        assert read(store, "v/0.0") == CHUNK
        store.close()

    def test_repr_names_it(self, store: KeyStore) -> None:
        assert repr(store) == f"<{type(store).__name__} {store.url}>"


def settled_open_files(expected: int | None = None) -> int:
    """Open files of this process, once the test's own server has closed its ends as well."""
    deadline = time.monotonic() + 60
    count = -1
    while time.monotonic() < deadline:
        previous, count = count, open_files()
        if count == previous if expected is None else count <= expected:
            break
        threading.Event().wait(0.05)
    return count


@pytest.mark.parametrize("room", [-1, 0, 1, 100])
@pytest.mark.parametrize("kind", ["directory", "mapping", "zip", "zip-bytes", "memory", "mapper"])
def test_bytes_go_into_a_buffer(tmp_path: Path, kind: str, room: int) -> None:
    with KINDS[kind](tmp_path) as store:
        for key, content in DATASET.items():
            buffer = bytearray(max(0, len(content) + room))
            count = store.get_into(key, memoryview(buffer))
            there = min(len(content), len(buffer))
            assert buffer[:there] == content[:there]
            if len(content) > len(buffer):
                assert count > len(buffer)
            else:
                assert count == len(content)
        assert store.get_into("nope", memoryview(bytearray(1))) is None
        assert store.get_into("g1", memoryview(bytearray(1))) is None
        store.close()


class TestDirectoryStore:
    def test_what_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        write_tree(tmp_path, DATASET)
        (tmp_path / "loop").symlink_to("loop")
        os.mkfifo(tmp_path / "fifo")
        store = DirectoryStore(tmp_path)
        for key, reason in [("loop", "symbolic links"), ("fifo", "not a regular file")]:
            with pytest.raises(StoreError, match=reason) as caught:
                store.get(key)
            assert caught.value.object == str(tmp_path / key)
            with pytest.raises(StoreError, match=reason):
                store.get_into(key, memoryview(bytearray(9)))
        results = store.get_many(["loop", "v/0.0"])
        assert isinstance(results[0], StoreError)
        assert results[1] == CHUNK

    @pytest.mark.parametrize("size", [11, SMALL, SMALL + 1, 3 * SMALL])
    def test_files_that_are_too_large(self, tmp_path: Path, size: int) -> None:
        (tmp_path / "x").write_bytes(bytes(size))
        store = DirectoryStore(tmp_path)
        for most in (10, size - 1):
            with pytest.raises(TooLargeError):
                store.get("x", most=most)
        assert store.get("x", most=size) == bytes(size)

    @pytest.mark.parametrize("size", [0, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL])
    def test_small_and_large_files(self, tmp_path: Path, size: int) -> None:
        content = np.random.default_rng(0).bytes(size)
        (tmp_path / "x").write_bytes(content)
        store = DirectoryStore(tmp_path)
        assert store.get("x") == content
        buffer = bytearray(size)
        assert store.get_into("x", memoryview(buffer)) == size
        assert buffer == content

    @given(
        st.frozensets(st.integers(0, 400)),
        st.integers(1, 400),
        st.sampled_from(["v/{}", "{}", "{}/x", "none/{}"]),
    )
    def test_which_of_many_keys_there_are(
        self, there: frozenset[int], count: int, form: str
    ) -> None:
        keys = [form.format(number) for number in range(count)]
        with TemporaryDirectory() as folder:
            for key in [form.format(number) for number in there] if "none" not in form else []:
                path = Path(folder, key)
                path.parent.mkdir(exist_ok=True)
                path.touch()
            store = DirectoryStore(folder)
            found = store.present(keys)
            expected = [store.get(key) is not None for key in keys]
        if found is not None:
            assert list(found) == expected
        few = len(there) <= 4 * count and form != "{}/x"
        if few and not any(expected[:: max(1, count // 16)]):
            assert found is not None

    def test_a_folder_that_does_not_list_a_file_is_not_believed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "v").mkdir()
        (tmp_path / "v" / "0").touch()
        keys = [f"v/{number}" for number in range(300)]
        assert DirectoryStore(tmp_path).present(keys) == [True] + [False] * 299
        monkeypatch.setattr("itertools.islice", lambda *_: [])
        assert DirectoryStore(tmp_path).present(keys) is None

    def test_names_of_a_folder_of_many_more_files_are_not_believed(self, tmp_path: Path) -> None:
        """Not all of them are looked at."""
        (tmp_path / "v").mkdir()
        for name in ("17", *(f"other{number}" for number in range(100))):
            (tmp_path / "v" / name).touch()
        assert DirectoryStore(tmp_path).present([f"v/{number}" for number in range(20)]) is None

    def test_a_folder_outside_does_not_say_which_keys_there_are(self, tmp_path: Path) -> None:
        (tmp_path / "away").mkdir()
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "v").symlink_to(tmp_path / "away")
        keys = [f"v/{number}" for number in range(300)]
        assert DirectoryStore(tmp_path / "tree").present(keys) is None
        with pytest.raises(StoreError, match="follow_symlinks"):
            DirectoryStore(tmp_path / "tree").get(keys[0])
        following = DirectoryStore(tmp_path / "tree", follow_symlinks=True)
        assert following.present(keys) == [False] * 300

    def test_permission_error_is_mapped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: object) -> int:
            raise PermissionError(13, "Permission denied")

        store = DirectoryStore(write_tree(tmp_path, DATASET))
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match=r"v/0\.0: cannot be read: Permission denied"):
            store.get("v/0.0")

    def test_pickle_does_not_depend_on_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_tree(tmp_path / "d", DATASET)
        monkeypatch.chdir(tmp_path)
        blob = pickle.dumps(DirectoryStore("d"))
        monkeypatch.chdir("/")
        assert pickle.loads(blob).get("v/0.0") == CHUNK

    def test_reads_in_pieces_where_the_system_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, pread = DirectoryStore(write_tree(tmp_path, DATASET)), os.pread
        monkeypatch.setattr(os, "pread", lambda fd, count, at: pread(fd, min(count, 100), at))
        assert store.get("v/0.0") == CHUNK
        assert store.get("v/0.0", slice(5, 700)) == CHUNK[5:700]


class TestMappingStore:
    def test_any_buffer_is_bytes(self) -> None:
        store = MappingStore({"a": bytearray(b"12"), "b": memoryview(b"34"), "c": bytearray()})
        assert store.get_many(["a", "b", "c"]) == [b"12", b"34", b""]

    def test_what_is_not_bytes_is_named(self) -> None:
        with pytest.raises(StoreError, match="mapping/a: holds str where bytes are needed"):
            MappingStore({"a": "text"}).get("a")

    def test_a_broken_mapping_is_an_error_of_ours(self) -> None:
        class Broken(dict[str, bytes]):
            def __getitem__(self, key: str) -> bytes:
                raise RuntimeError("down")

        with pytest.raises(StoreError, match="down"):
            MappingStore(Broken()).get("a")

    def test_listing_follows_changes(self) -> None:
        mapping = {"a/b": b""}
        store = MappingStore(mapping)
        assert store.list("") == {"a"}
        mapping["c"] = b""
        assert store.list("") == {"a", "c"}


class TestFilesystems:
    def test_a_filesystem_of_another_event_loop_is_made_anew(self) -> None:
        with Server({"/d/x": b"1"}) as server:

            async def elsewhere() -> Any:
                fs = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True)
                store = FsspecStore(fs, f"{server.url}/d")
                return store.get_many(["x"]), store

            found, store = asyncio.run(elsewhere())
            assert found == [b"1"]
            store.close()

    def test_stores_share_connections_until_the_last_closes(self) -> None:
        with Server({"/a/x": b"1", "/b/x": b"2"}) as server:
            # an option that no other test has, for connections are shared by those with the same
            own = {"headers": {"X-Test": "shared connections"}}
            first, second = (open_keystore(f"{server.url}/{n}", storage_options=own) for n in "ab")
            assert first.get_many(["x"]) == [b"1"]
            first.close()
            assert second.get_many(["x"]) == [b"2"]
            first.get_many(["x"])
            second.close()
            assert first.get_many(["x"]) == [b"1"]
            first.close()
            assert server.connections == 2  # one for the first, one for all that followed

    def test_users_of_the_same_filesystem_are_left_alone(self) -> None:
        with Server({"/a/x": b"1"}) as server:
            fs = fsspec.filesystem("http")
            fs.cat_file(f"{server.url}/a/x")
            session = fs._session
            store = FsspecStore(fs, f"{server.url}/a")
            store.get_many(["x"])
            store.close()
            assert fs._session is session
            assert not session.closed

    def test_listings_are_never_stale(self) -> None:
        with memory_tree("fresh") as fs:
            store = FsspecStore(DirFileSystem("/fresh", fs=fs).fs, "/fresh")
            names: Any = store.list_many([""])[0]
            assert "new" not in (names or ())
            fs.pipe_file("/fresh/new", b"")
            assert "new" in store.list_many([""])[0]  # type: ignore[operator]

    def test_sync_requests_overlap(self) -> None:
        together = threading.Barrier(2, timeout=60)

        class Slow(AbstractFileSystem):
            protocol = "slow"

            def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
                together.wait()  # broken, and an error, unless another request is under way
                return b"ok"

        assert FsspecStore(Slow(), "/d").get_many(["a", "b"]) == [b"ok", b"ok"]

    def test_an_open_file_is_used_by_one_thread_at_a_time(self, tmp_path: Path) -> None:
        with write_zip(tmp_path / "d.zip", method=zipfile.ZIP_DEFLATED).open("rb") as file:
            store = FsspecStore(fsspec.filesystem("zip", fo=file), "")
            assert store.get_many(list(DATASET) * 5) == list(DATASET.values()) * 5

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (PermissionError("no"), "PermissionError: no"),
            (TimeoutError(), "TimeoutError: no message"),
            (RuntimeError("at http://u:pw@h/?sig=abc"), r"at http://\*\*\*@h/\?sig=\*\*\*"),
            (RuntimeError("password hunter22 refused"), r"password \*\*\* refused"),
        ],
    )
    def test_every_failure_is_a_store_error_without_secrets(
        self, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)

        class Failing(MemoryFileSystem):
            protocol = "failing"
            cachable = False

            def cat_file(self, *args: Any, **kwargs: Any) -> bytes:
                raise error

            def ls(self, *args: Any, **kwargs: Any) -> list[str]:
                raise error

        fs = Failing(password="hunter22")
        store = FsspecStore(fs, "/d")
        (got,), (listed,) = store.get_many(["x"]), store.list_many(["g"])
        for result in (got, listed):
            assert isinstance(result, StoreError)
            assert result.__cause__ is None
            assert result.__suppress_context__
            with pytest.raises(StoreError, match=reason):
                raise result

    def test_a_memory_of_its_own(self, tmp_path: Path) -> None:
        fs = own_memory()
        fs.pipe_file("/d/x", b"1")
        fs.pipe_file("/d.zip", write_zip(tmp_path / "d.zip").read_bytes())
        assert open_keystore(fs.get_mapper("/d")).get_many(["x"]) == [b"1"]
        assert FsspecStore(fs, "/d").get_many(["x"]) == [b"1"]
        assert open_keystore(fs.get_mapper("/d.zip")).get_many(["v/0.0"]) == [CHUNK]

    def test_no_listing_is_none_not_empty(self) -> None:
        class Blind(MemoryFileSystem):
            protocol = "blind"

            def ls(self, *args: Any, **kwargs: Any) -> list[str]:
                raise NotImplementedError

        assert FsspecStore(Blind(), "/d").list_many([""]) == [None]

    def test_blocking_inside_the_io_loop_is_an_error_not_a_deadlock(self) -> None:
        with Server({"/d/x": b"1"}) as server:
            store = open_keystore(f"{server.url}/d")
            assert isinstance(store, RemoteStore)

            async def wrong() -> None:
                store.get_many(["x"])

            with pytest.raises(StoreError, match="inside the I/O event loop"):
                store.run(wrong())


class TestResolve:
    def test_directory_by_path_and_url(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "d.file", DATASET)
        for target in (
            str(root),
            root,
            f"file://{root}",
            f"file://{root}#mode=nczarr,file",
            f"dir://{root.name}::file://{root.parent}",
        ):
            store = open_keystore(target)
            assert isinstance(store, DirectoryStore), target
            assert (store.url, store.get_many(["v/0.0"])) == (str(root), [CHUNK])

    @pytest.mark.parametrize("mode", ["zip", "nczarr,zip", "bytes", "s3", "gs3"])
    @pytest.mark.parametrize("place", ["file", "memory"])
    def test_a_mode_that_a_directory_contradicts(
        self, tmp_path: Path, mode: str, place: str
    ) -> None:
        root = write_tree(tmp_path / "d.file", DATASET)
        url = f"file://{root}"
        if place == "memory":
            fsspec.filesystem("memory").put(str(root), f"/{tmp_path.name}", recursive=True)
            url = f"memory://{tmp_path.name}"
        # (an archive is not looked for in memory before it is read)
        with pytest.raises((URLError, StoreError), match=r"directory|modes s3 and gs3 need|file"):
            open_keystore(f"{url}#mode={mode}")

    def test_urls_as_python_makes_them(self, tmp_path: Path) -> None:
        """``Path.as_uri`` encodes, netCDF-C does not decode: what is there counts."""
        root = write_tree(tmp_path / "a b%c#d", DATASET)
        for suffix in ("", "#mode=nczarr,file"):
            store = open_keystore(root.as_uri() + suffix)
            assert (store.url, store.get_many(["v/0.0"])) == (str(root), [CHUNK])
        literal = write_tree(tmp_path / "a%20b", DATASET)
        write_tree(tmp_path / "a b", DATASET)
        assert open_keystore(f"file://{literal}").url == str(literal)
        assert open_keystore((tmp_path / "a b").as_uri()).url == str(literal)

    def test_zip_by_content(self, tmp_path: Path) -> None:
        path = write_zip(tmp_path / "no-extension", "d/")
        for target in (path, f"file://{path}", f"file://{path}#mode=nczarr,zip"):
            store = open_keystore(target)
            assert isinstance(store, ZipStore)
            assert store.get("v/0.0") == CHUNK
            store.close()

    @pytest.mark.parametrize("start", [b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x05"])
    def test_a_file_that_is_named_as_an_archive(self, tmp_path: Path, start: bytes) -> None:
        path = tmp_path / "d.zip"
        path.write_bytes(start + bytes(100))
        for target in (path, f"file://{path}"):
            assert isinstance(Place.of(target).open().data, LocalBytes)
        with pytest.raises(StoreError, match="is not a readable zip archive"):
            Place.of(f"file://{path}#mode=nczarr,zip").open()

    def test_zip_with_something_in_front(self, tmp_path: Path) -> None:
        path = write_zip(tmp_path / "d.zip")
        path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
        assert open_keystore(path).get_many(["v/0.0"]) == [CHUNK]

    def test_an_existing_path_wins_over_a_fragment(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "d#mode=zarr", DATASET)
        assert open_keystore(str(root)).get_many(["v/0.0"]) == [CHUNK]

    def test_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_tree(tmp_path / "d", DATASET)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert open_keystore("~/d").get_many(["v/0.0"]) == [CHUNK]

    @pytest.mark.parametrize("form", ["{}", "file://{}", "file://{}#mode=nczarr,file"])
    def test_missing(self, tmp_path: Path, form: str) -> None:
        with pytest.raises(DatasetNotFoundError, match="no such file or directory"):
            open_keystore(form.format(tmp_path / "nope"))
        with pytest.raises(FileNotFoundError):
            open_keystore(form.format(tmp_path / "nope"))

    def test_missing_with_a_fragment_gets_a_hint(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetNotFoundError, match=r"write file:///.*/x\.zip#mode=zip"):
            open_keystore(f"{tmp_path}/x.zip#mode=zip")

    def test_memory(self, tmp_path: Path) -> None:
        with memory_tree("resolve") as fs:
            store = open_keystore("memory://resolve#mode=nczarr")
            assert isinstance(store, MappingStore)
            assert (store.url, store.get("v/0.0")) == ("memory://resolve", CHUNK)
            fs.pipe_file("/resolve/archive", write_zip(tmp_path / "d.zip").read_bytes())
            archive = open_keystore("memory://resolve/archive")
            assert isinstance(archive, ZipStore)
            assert archive.get_many(["v/0.0", "nope"]) == [CHUNK, None]
            for target in ("memory://nowhere", "memory://resolve/nope.zip"):
                with pytest.raises(DatasetNotFoundError):
                    open_keystore(target)

    def test_chained_urls(self, tmp_path: Path) -> None:
        path = write_zip(tmp_path / "d.zip", "d/")
        store = open_keystore(f"zip://d::file://{path}")
        assert isinstance(store, FsspecStore)
        assert store.get_many(["v/0.0", "nope"]) == [CHUNK, None]
        assert "g1" in store.list_many([""])[0]  # type: ignore[operator]
        assert store.url == f"zip://d::file://{path}"
        with Server({"/d.zip": path.read_bytes(), "/t/v/0.0": CHUNK}) as server:
            for url in ("/d.zip", "/t"):
                chained = open_keystore(f"simplecache::{server.url}{url}")
                assert chained.get_many(["v/0.0", "nope"]) == [CHUNK, None]
                chained.close()

    def test_mappers(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "d", DATASET)
        assert isinstance(open_keystore(fsspec.get_mapper(str(root))), DirectoryStore)
        with memory_tree("mapper") as fs:
            for target in (
                fs.get_mapper("/mapper"),
                DirFileSystem("/mapper", fs=fs).get_mapper(""),
                DirFileSystem("/", fs=fs).get_mapper("mapper"),
            ):
                store = open_keystore(target)
                assert isinstance(store, MappingStore)
                assert store.get_many(["v/0.0", "nope"]) == [CHUNK, None]
        with Server({"/d/v/0.0": CHUNK}) as server:
            store = open_keystore(fsspec.get_mapper(f"{server.url}/d"))
            assert isinstance(store, FsspecStore)
            assert store.get_many(["v/0.0"]) == [CHUNK]
            store.close()

    def test_mapping_and_store(self) -> None:
        store = open_keystore(DATASET)
        assert isinstance(store, MappingStore)
        assert open_keystore(store) is store

    def test_file_objects(self, tmp_path: Path) -> None:
        path = write_zip(tmp_path / "d.zip", "d/")
        with path.open("rb") as file:
            store = open_keystore(file)
            assert store.get_many(["v/0.0", "nope"]) == [CHUNK, None]
            store.close()
            assert not file.closed
            assert store.get_many(["v/0.0"]) == [CHUNK]
        (result,) = store.get_many(["v/0.0"])
        assert isinstance(result, StoreError)
        assert open_keystore(io.BytesIO(path.read_bytes())).get_many(["v/0.0"]) == [CHUNK]
        assert open_keystore(path.read_bytes()).get_many(["v/0.0"]) == [CHUNK]
        with fsspec.open(str(path)) as opened:  # it knows its filesystem and path
            assert isinstance(open_keystore(opened), ZipStore)

    @pytest.mark.parametrize(
        "start", [b"CDF\x01....", b"CDF\x02....", b"CDF\x05....", b"\x89HDF\r\n\x1a\n"]
    )
    def test_single_files_are_no_stores_of_keys(self, tmp_path: Path, start: bytes) -> None:
        path = tmp_path / "x.nc"
        path.write_bytes(start + bytes(100))
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/single.nc", path.read_bytes())
        opened = io.BytesIO(path.read_bytes())
        for target in (path, f"file://{path}", opened, opened.getvalue(), "memory://single.nc"):
            source = Place.of(target).open().data
            assert isinstance(source, LocalBytes)
            assert bytes(source.read(0, len(start))) == start
            with pytest.raises(FormatError, match="neither a directory nor a zip"):
                open_keystore(target)
        fs.rm("/single.nc")

    def test_other_content(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        for content in (b"", b"hello world"):
            path.write_bytes(content)
            with pytest.raises(FormatError, match="neither a directory nor a zip"):
                open_keystore(path)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(StoreError, match="not a regular file"):
            open_keystore(tmp_path / "fifo")
        with pytest.raises(URLError, match="binary mode"):
            open_keystore(io.StringIO("text"))
        with pytest.raises(URLError, match="int object"):
            open_keystore(5)

    def test_options_that_cannot_be_used_are_an_error(self, tmp_path: Path) -> None:
        root = write_tree(tmp_path / "d", DATASET)
        for target in (root, f"file://{root}", DATASET, MappingStore(DATASET)):
            with pytest.raises(URLError, match="storage_options"):
                open_keystore(target, {"anon": True})
            assert open_keystore(target, {}).get_many(["v/0.0"]) == [CHUNK]

    def test_unknown_protocols_and_options(self) -> None:
        with pytest.raises(URLError, match="gopher"):
            open_keystore("gopher://127.0.0.1/x")
        with pytest.raises(URLError, match="unknown"):
            open_keystore("memory://x#mode=nonsense")

    def test_a_server_that_refuses_on_connecting(self) -> None:
        class Refusing(MemoryFileSystem):
            protocol = "refusing"

            def __init__(self, **options: Any) -> None:
                raise ConnectionRefusedError(f"nobody at refusing://u:{options['password']}@h/")

        fsspec.register_implementation("refusing", Refusing, clobber=True)
        with pytest.raises(StoreError, match="nobody at") as caught:
            open_keystore("refusing://x", {"password": "hunter22"})
        assert "hunter22" not in str(caught.value)


#: SeaweedFS takes a backslash for a slash
S3_DATASET = {key: content for key, content in DATASET.items() if "\\" not in key}


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> S3Server:  # noqa: F811
    import s3fs

    fs = s3fs.S3FileSystem(**s3_server.signed())
    for name in (s3_server.public, s3_server.private):
        for key, content in S3_DATASET.items():
            fs.pipe_file(f"{name}/d/{key}", content)
    return s3_server


class TestS3:
    def test_reads_and_lists(self, bucket: S3Server) -> None:
        store = open_keystore(bucket.url("d"))
        assert isinstance(store, FsspecStore)
        assert store.get_many([*S3_DATASET, "nope", "v"]) == [*S3_DATASET.values(), None, None]
        root, group, nothing = store.list_many(["", "g1", "nope"])
        assert root == {".zgroup", ".zattrs", "v", "g1"}
        assert group == {key.split("/")[1] for key in S3_DATASET if key.startswith("g1/")}
        assert nothing == frozenset()
        for start, stop in [(0, 10), (7, None), (1270, 5000), (5000, 6000)]:
            assert read(store, "v/0.0", start, stop) == CHUNK[start:stop]
        again = pickle.loads(pickle.dumps(store))
        assert again.get_many(["v/0.0"]) == [CHUNK]
        again.close()
        store.close()

    def test_a_key_is_one_request(self, bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        import aiohttp

        asked: list[str] = []
        request = aiohttp.ClientSession._request

        async def counted(session: Any, method: str, url: Any, **options: Any) -> Any:
            asked.append(f"{method} {url}".removeprefix(f"GET {bucket.endpoint}/"))
            return await request(session, method, url, **options)

        monkeypatch.setattr(aiohttp.ClientSession, "_request", counted)
        store = open_keystore(bucket.url("d"))
        store.get_many(["v/0.0", "nope"])
        assert sorted(asked) == ["public/d/nope", "public/d/v/0.0"]
        store.list_many(["", "nope"])
        assert [text.partition("?list-type=2")[0] for text in asked[2:]] == ["public", "public"]
        store.close()

    def test_signed(self, bucket: S3Server) -> None:
        options = {"key": bucket.access_key, "secret": bucket.secret_key}
        store = open_keystore(bucket.url("d", bucket=bucket.private), options)
        assert store.get_many(["v/0.0"]) == [CHUNK]
        assert bucket.secret_key not in repr(store) + store.url
        store.close()

    def test_no_permission_says_how_to_get_it(self, bucket: S3Server) -> None:
        store = open_keystore(bucket.url("d", bucket=bucket.private), {"anon": True})
        (result,) = store.get_many(["v/0.0"])
        assert isinstance(result, StoreError)
        assert "s3://private/d/v/0.0" in result.object
        assert "credentials" in result.reason
        store.close()

    def test_wrong_secret_stays_secret(self, bucket: S3Server) -> None:
        options = {"key": bucket.access_key, "secret": "not-the-right-one"}
        store = open_keystore(bucket.url("d", bucket=bucket.private), options)
        (result,) = store.get_many(["v/0.0"])
        assert isinstance(result, StoreError)
        assert "not-the-right-one" not in str(result)
        assert bucket.access_key not in str(result)
        store.close()

    def test_missing_bucket(self, bucket: S3Server) -> None:
        options = {"key": bucket.access_key, "secret": bucket.secret_key}
        store = open_keystore(bucket.url("d", bucket="absent"), options)
        (result,) = store.get_many(["v/0.0"])
        assert isinstance(result, DatasetNotFoundError)
        assert "no such bucket" in result.reason
        store.close()

    def test_listings_are_never_stale(self, bucket: S3Server) -> None:
        store = open_keystore(bucket.url("d"))
        store.list_many(["", "g2"])
        import s3fs

        fs = s3fs.S3FileSystem(**bucket.signed())
        fs.pipe_file(f"{bucket.public}/d/g2/.zgroup", b"{}")
        assert store.list_many(["g2"]) == [{".zgroup"}]
        fs.rm(f"{bucket.public}/d/g2/.zgroup")
        assert store.list_many(["g2"]) == [frozenset()]
        store.close()

    def test_close_leaves_nothing_open(self, bucket: S3Server) -> None:
        store = open_keystore(bucket.url("d"))
        store.get_many(["v/0.0"])
        store.close()
        before = settled_open_files()
        store.get_many(list(S3_DATASET))
        assert open_files() > before
        store.close()
        assert settled_open_files(before) <= before

    def test_zip(self, bucket: S3Server, tmp_path: Path) -> None:
        import s3fs

        content = write_zip(tmp_path / "d.zip", "d/").read_bytes()
        s3fs.S3FileSystem(**bucket.signed()).pipe_file(f"{bucket.public}/d.zip", content)
        store = open_keystore(bucket.url("d.zip", ",zip"))
        assert isinstance(store, RemoteZipStore)
        assert store.get_many(["v/0.0", "nope"]) == [CHUNK, None]
        store.close()
        with pytest.raises(DatasetNotFoundError):
            open_keystore(bucket.url("absent.zip"))


@given(st.text(alphabet="a./\0\n\\é"))
def test_a_key_is_made_of_safe_names(key: str) -> None:
    if all(map(is_safe_name, key.split("/"))):
        assert check_key(key) is key
    else:
        with pytest.raises(StoreError):
            check_key(key)


def test_importing_is_light() -> None:
    code = (
        "import sys, nczarr_fsspec; nczarr_fsspec.open_keystore; nczarr_fsspec.ZipStore;"
        "print([m for m in ('fsspec', 'aiohttp', 's3fs', 'numpy', 'xarray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("end", ["", "del store; gc.collect()", "store.close()"])
def test_a_process_that_ends_without_closing_is_quiet(end: str) -> None:
    code = f"""if True:
        import gc, os, sys, warnings
        from nczarr_fsspec import open_keystore
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        store = open_keystore(sys.argv[1])
        assert store.get_many(["x"] * 20) == [b"1"] * 20
        child = os.fork()
        if not child:
            assert store.get_many(["x"] * 20) == [b"1"] * 20
            del store
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get_many(["x"] * 20) == [b"1"] * 20
        {end}
    """
    with Server({"/d/x": b"1"}) as server:
        command = [sys.executable, "-W", "always::ResourceWarning", "-c", code, f"{server.url}/d"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_exists() -> None:
    import nczarr_fsspec

    assert all(getattr(nczarr_fsspec, name) is not None for name in nczarr_fsspec.__all__)
    assert sorted(nczarr_fsspec.__all__) == dir(nczarr_fsspec)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        nczarr_fsspec.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_errors_are_ours() -> None:
    assert issubclass(StoreError, NCZarrError)
    assert issubclass(StoreError, OSError)
