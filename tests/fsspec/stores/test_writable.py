"""What every store that can be written promises, and how a target is resolved to one."""

from __future__ import annotations

import asyncio
import errno
import io
import multiprocessing
import os
import pickle
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import s3fs
import zarr.storage
from botocore.exceptions import ClientError
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from s3fs.errors import translate_boto_error

from nczarr_fsspec import (
    KeyStore,
    StoreError,
    URLError,
    ZipStore,
)
from nczarr_fsspec.destination import open_destination
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.local_files import FileRange
from nczarr_fsspec.stores import write_directory, write_fsspec
from nczarr_fsspec.stores.mapping import MappingWriter, MemoryFiles
from nczarr_fsspec.stores.ownership import Owner, writer_of
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.stores.zipwrite import pack
from nczarr_fsspec.transport import policy
from nczarr_fsspec.transport.request import FileVersion
from nczarr_xarray.zarr.adopted import ZarrWriter
from tests.support.builders.archives import DATASET, HOSTILE, write_zip
from tests.support.examples import examples
from tests.support.faults.disks import tiny_disk
from tests.support.faults.locks import lock_is_held, watch_locks
from tests.support.servers.filesystems import own_memory
from tests.support.servers.ports import free_port
from tests.support.servers.s3server import S3Server

#: SeaweedFS takes a backslash for a slash
KEYS = {key: content for key, content in DATASET.items() if "\\" not in key}
RACERS = 16


@contextmanager
def _directory(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield DirectoryWriter(folder / "d")


@contextmanager
def _new_directory(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield DirectoryWriter(folder / "d", atomic=False)


@contextmanager
def _memory(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield MappingWriter(MemoryFiles(fsspec.filesystem("memory"), "/writable"))


@contextmanager
def _synchronous(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield FsspecWriter(fsspec.filesystem("memory"), "/synchronous")


@contextmanager
def _files_through_fsspec(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield FsspecWriter(LocalFileSystem(), str(folder / "d"))


@contextmanager
def _s3(folder: Path, request: pytest.FixtureRequest) -> Iterator[WritableStore]:
    server: S3Server = request.getfixturevalue("s3_server")
    fs = s3fs.S3FileSystem(**server.signed())
    yield FsspecWriter(fs, f"{server.private}/{folder.name}")


@contextmanager
def _mapping(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield MappingWriter({})


@contextmanager
def _zarr_memory(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield ZarrWriter(zarr.storage.MemoryStore())


@contextmanager
def _zarr_fsspec(folder: Path, _: Any) -> Iterator[WritableStore]:
    yield ZarrWriter(zarr.storage.FsspecStore.from_url("memory://zarr-writable"))


KINDS: dict[str, Callable[[Path, pytest.FixtureRequest], Any]] = {
    "directory": _directory,
    "new-directory": _new_directory,
    "memory": _memory,
    "synchronous": _synchronous,
    "files-through-fsspec": _files_through_fsspec,
    "s3": _s3,
    "mapping": _mapping,
    "zarr-memory": _zarr_memory,
    "zarr-fsspec": _zarr_fsspec,
}


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.servers) if kind == "s3" else kind for kind in KINDS
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WritableStore]:
    with KINDS[request.param](tmp_path, request) as opened:
        yield opened
        opened.close()


def read(store: WritableStore, *keys: str) -> list[Any]:
    reader = store.reader()
    try:
        return reader.get_many(keys)
    finally:
        reader.close()


def in_place(store: WritableStore) -> bool:
    """Whether it is a file protocol of fsspec."""
    return isinstance(store, FsspecWriter) and isinstance(store.fs, LocalFileSystem)


def fill(store: WritableStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.put, KEYS, KEYS.values()))


class TestContract:
    def test_what_was_put_is_read(self, store: WritableStore) -> None:
        fill(store)
        assert read(store, *KEYS, "nope") == [*KEYS.values(), None]
        store.put("v/0.0", b"new")
        store.put("v/0.1", b"")
        assert read(store, "v/0.0", "v/0.1") == [b"new", b""]

    def test_any_buffer_is_bytes(self, store: WritableStore) -> None:
        values = np.arange(12, dtype="<i2").reshape(3, 4)
        buffers: dict[str, Any] = {
            "a": bytearray(b"12"),
            "b": memoryview(b"1234")[1:3],
            "c": values,
            "d": values[:0],
            "e": np.float64(1.5).tobytes(),
        }
        for key, data in buffers.items():
            store.put(key, data)
        expected = [b"12", b"23", values.tobytes(), b"", np.float64(1.5).tobytes()]
        assert read(store, *buffers) == expected

    @pytest.mark.parametrize("key", HOSTILE)
    def test_no_key_leads_out_of_the_dataset(self, store: WritableStore, key: str) -> None:
        def keys_below() -> Any:
            return store.keys_below(key) if key else store.child(key)

        calls: list[Callable[[], Any]] = [
            lambda: store.put(key, b""),
            lambda: store.create(key, b""),
            lambda: store.delete(["v", key]),
            lambda: store.move([("v", key)]),
            lambda: store.move([(key, "v")]),
            lambda: store.child(key),
            keys_below,
        ]
        for call in calls:
            with pytest.raises(StoreError, match="is not a key inside a dataset"):
                call()

    def test_create_stores_only_what_is_not_there(self, store: WritableStore) -> None:
        assert store.create("g/lock", b"mine")
        assert not store.create("g/lock", b"yours")
        assert read(store, "g/lock") == [b"mine"]
        store.delete(["g/lock"])
        assert store.create("g/lock", b"yours")
        assert store.create("empty", b"")
        assert not store.create("empty", b"x")

    def test_one_of_many_creators_wins(self, store: WritableStore) -> None:
        for number in range(5):
            key = f"locks/{number}"
            gate = threading.Barrier(RACERS)

            def race(racer: int, key: str = key, gate: Any = gate) -> bool:
                gate.wait()
                return store.create(key, b"%d" % racer)

            with ThreadPoolExecutor(RACERS) as pool:
                won = [racer for racer, first in enumerate(pool.map(race, range(RACERS))) if first]
            assert len(won) == 1
            assert read(store, key) == [b"%d" % won[0]]

    def test_keys_below(self, store: WritableStore) -> None:
        assert store.keys_below("") == []
        assert store.keys_below("v") == []
        fill(store)
        assert store.keys_below("") == sorted(KEYS)
        assert store.keys_below("v") == ["v/.zarray", "v/0.0", "v/0.1"]
        assert store.keys_below("g1/50%") == ["g1/50%/0"]
        assert store.keys_below("v/0.0") == []
        assert store.keys_below("nope") == []

    def test_deleted_keys_are_gone(self, store: WritableStore) -> None:
        fill(store)
        store.put("g1/starXX0/0", b"not what the pattern star*[0] is about")
        gone = ["v/0.0", "v/.zarray", "v/0.1", "g1/star*[0]/0"]
        store.delete([*gone, "v/9.9", "nope/x", "v/0.0"])
        store.delete([])
        assert store.keys_below("") == sorted({*KEYS, "g1/starXX0/0"} - set(gone))
        listed, below = store.reader().list_many(["", "v"])
        assert below == frozenset()
        if not in_place(store) and "private" not in store.url:  # SeaweedFS has directories, too
            assert listed == {".zgroup", ".zattrs", "g1"}

    def test_move_replaces_and_may_be_repeated(self, store: WritableStore) -> None:
        fill(store)
        pairs = [("v/0.0", "v/0.1"), ("g1/a b#c/0", "h/k/l/0"), ("g1/star*[0]/0", "g1/50%/0")]
        store.move(pairs[:1])  # as if it had been interrupted
        store.move(pairs)
        store.move(iter(pairs))
        store.move([("v/0.1", "v/0.1")])
        assert read(store, *(target for _, target in pairs)) == [KEYS[old] for old, _ in pairs]
        assert read(store, *(old for old, _ in pairs)) == [None] * 3
        with pytest.raises(StoreError, match=r"nope.* cannot be moved"):
            store.move([("nope", "neither")])

    def test_child(self, store: WritableStore) -> None:
        fill(store)
        child = store.child("g1")
        assert child.url == f"{store.url}/g1"
        assert child.keys_below("") == sorted(k[3:] for k in KEYS if k.startswith("g1/"))
        child.put("w/0", b"new")
        assert child.create("w/1", b"first")
        assert not child.create("w/1", b"second")
        child.move([("w/0", "w/2")])
        child.delete(["50%/0"])
        assert read(store, "g1/w/2", "g1/w/0", "g1/w/1", "g1/50%/0") == [
            b"new",
            None,
            b"first",
            None,
        ]
        assert read(child, "w/2", ".zgroup") == [b"new", KEYS["g1/.zgroup"]]
        assert child.reader().list_many(["w", ""])[0] == {"1", "2"}
        assert child.child("w").keys_below("") == ["1", "2"]
        child.close()

    def test_a_reader_sees_all_or_nothing(self, store: WritableStore) -> None:
        if in_place(store) or (isinstance(store, DirectoryWriter) and not store.atomic):
            return  # as is documented
        contents = [bytes([number]) * size for number, size in enumerate((3, 300_000, 70_000))]
        store.put("v/0", contents[0])
        stop = threading.Event()

        def write() -> None:
            chosen = random.Random(1)
            while not stop.is_set():
                store.put("v/0", chosen.choice(contents))

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            try:
                reader = store.reader()
                seen = [reader.get_many(["v/0"])[0] for _ in range(150)]
                reader.close()
            finally:
                stop.set()
            writing.result()
        assert set(seen) <= set(contents)
        assert store.keys_below("") == ["v/0"]

    def test_survives_pickling(self, store: WritableStore) -> None:
        store.put("v/0", b"data")
        again = pickle.loads(pickle.dumps(store))
        assert (type(again), again.url) == (type(store), store.url)
        assert read(again, "v/0") == [b"data"]
        assert again.keys_below("") == ["v/0"]
        again.put("v/1", b"more")
        assert not again.create("v/1", b"again")
        again.close()

    def test_works_inside_a_running_event_loop(self, store: WritableStore) -> None:
        async def notebook_cell() -> Any:
            store.put("v/0", b"data")
            return store.create("v/0", b""), store.keys_below("")

        assert asyncio.run(notebook_cell()) == (False, ["v/0"])

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_works_in_a_forked_process(self, store: WritableStore) -> None:
        store.put("v/0", b"data")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def work() -> None:
            store.put("v/1", b"more")
            answers.put((store.create("v/0", b"x"), store.keys_below("")))

        child = context.Process(target=work)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert answers.get() == (False, ["v/0", "v/1"])
        store.put("v/2", b"and in this one")

    def test_reader_and_repr(self, store: WritableStore) -> None:
        reader = store.reader()
        assert isinstance(reader, KeyStore)
        assert reader.url == store.url
        assert repr(store) == f"<{type(store).__name__} {store.url}>"
        assert store.parallel >= 1
        reader.close()


@st.composite
def _actions(draw: st.DrawFn) -> list[tuple[str, Any]]:
    names = st.sampled_from(["a/0", "a/1", "a/b/0", "c", "d/e/f", ".zgroup"])
    action = st.one_of(
        st.tuples(st.just("put"), st.tuples(names, st.binary(max_size=4))),
        st.tuples(st.just("create"), st.tuples(names, st.binary(max_size=4))),
        st.tuples(st.just("delete"), st.lists(names, max_size=3)),
        st.tuples(st.just("move"), st.tuples(names, names)),
    )
    return draw(st.lists(action, max_size=15))


@given(_actions())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_every_store_is_a_dict(tmp_path_factory: pytest.TempPathFactory, actions: Any) -> None:
    folder = tmp_path_factory.mktemp("model")
    fs = own_memory()
    stores: list[WritableStore] = [
        DirectoryWriter(folder / "d"),
        DirectoryWriter(folder / "n", atomic=False),
        FsspecWriter(fs, "/root"),
        MappingWriter({}).child("x"),
        ZarrWriter(zarr.storage.MemoryStore()).child("x"),
    ]
    model: dict[str, bytes] = {}
    for name, arguments in actions:
        if name == "create":
            key, data = arguments
            assert {store.create(key, data) for store in stores} == {key not in model}
            model.setdefault(key, data)
        elif name == "put":
            for store in stores:
                store.put(*arguments)
            model[arguments[0]] = arguments[1]
        elif name == "delete":
            for store in stores:
                store.delete(arguments)
            for key in arguments:
                model.pop(key, None)
        elif arguments[0] in model or arguments[1] in model:
            for store in stores:
                store.move([arguments])
            if arguments[0] in model:
                model[arguments[1]] = model.pop(arguments[0])
    for store in stores:
        assert store.keys_below("") == sorted(model)
        assert read(store, *model) == list(model.values())
    for root in ("d", "n"):
        parents = {str(parent) for key in model for parent in Path(key).parents} - {"."}
        found = {str(p.relative_to(folder / root)) for p in (folder / root).rglob("*/")}
        assert found == parents


class TestCreating:
    """Where nothing creates at once, no thread comes between looking and storing."""

    def test_in_a_mapping(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch_locks(monkeypatch)
        held: list[bool] = []

        class Watched(dict[str, bytes]):
            def __contains__(self, key: object) -> bool:
                held.append(lock_is_held())
                return super().__contains__(key)

            def __setitem__(self, key: str, data: bytes) -> None:
                held.append(lock_is_held())
                super().__setitem__(key, data)

        assert MappingWriter(Watched()).create("v/lock", b"mine")
        assert held == [True, True]

    def test_in_files_of_a_filesystem(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch_locks(monkeypatch)
        held: list[tuple[str, bool]] = []

        class Watched(MemoryFileSystem):
            store: ClassVar[dict[str, Any]] = {}
            pseudo_dirs: ClassVar[list[str]] = [""]

            def cat_file(self, *args: Any, **options: Any) -> bytes:
                held.append(("cat_file", lock_is_held()))
                return super().cat_file(*args, **options)

            def pipe_file(self, *args: Any, **options: Any) -> None:
                held.append(("pipe_file", lock_is_held()))
                super().pipe_file(*args, **options)

        fs = Watched(skip_instance_cache=True)
        assert FsspecWriter(fs, "/d").create("v/lock", b"mine")
        assert held == [("cat_file", True), ("pipe_file", True)]


def _create_in_another_process(path: str, key: str, gate: Any, answers: Any, number: int) -> None:
    store = DirectoryWriter(path)
    gate.wait(60)
    answers.put((number, store.create(key, b"%d" % number * 1000)))


class TestDirectoryWriter:
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_one_of_many_processes_creates(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("fork")
        for key in ("a/lock", "b/lock", "c/lock"):
            gate, answers = context.Barrier(6), context.SimpleQueue()
            children = [
                context.Process(
                    target=_create_in_another_process,
                    args=(str(tmp_path), key, gate, answers, number),
                )
                for number in range(6)
            ]
            for child in children:
                child.start()
            results = [answers.get() for _ in children]
            for child in children:
                child.join(60)
            winners = [number for number, first in results if first]
            assert len(winners) == 1
            assert (tmp_path / key).read_bytes() == b"%d" % winners[0] * 1000
        assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["lock"] * 3

    def test_a_folder_stays_while_its_first_file_is_made(self, tmp_path: Path) -> None:
        """Others remove folders that they find empty."""
        store = DirectoryWriter(tmp_path / "d")

        def make(path: str) -> None:
            DirectoryWriter(tmp_path / "d").delete(["v/other"])
            assert not os.path.exists(path)
            Path(path).write_bytes(b"data")

        store.put_file("v/0", make)
        assert (tmp_path / "d/v/0").read_bytes() == b"data"
        assert os.listdir(tmp_path / "d/v") == ["0"]

    @pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
    def test_create_without_hard_links(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(*args: object) -> None:
            raise OSError(number, "no links here")

        monkeypatch.setattr(os, "link", refuse)
        store = DirectoryWriter(tmp_path)
        gate = threading.Barrier(RACERS)

        def race(racer: int) -> bool:
            gate.wait()
            return store.create("v/lock", b"%d" % racer)

        with ThreadPoolExecutor(RACERS) as pool:
            won = [racer for racer, first in enumerate(pool.map(race, range(RACERS))) if first]
        assert len(won) == 1
        assert store.reader().get("v/lock") == b"%d" % won[0]
        assert os.listdir(tmp_path / "v") == ["lock"]

    @pytest.mark.parametrize("atomic", [True, False])
    def test_full_disk(self, tmp_path: Path, atomic: bool) -> None:
        with tiny_disk(tmp_path / "disk") as disk:
            store = DirectoryWriter(disk / "d", atomic=atomic)
            store.put("v/0", bytes(600_000))
            calls = (store.put, store.create)
            for call in calls:
                with pytest.raises(StoreError, match="cannot be written: No space left") as caught:
                    call("v/1", bytes(600_000))
                assert caught.value.object == str(disk / "d/v/1")
            assert os.listdir(disk / "d/v") == ["0"]
            if atomic:
                with pytest.raises(StoreError, match="No space left"):
                    store.put("v/0", bytes(700_000))
                assert read(store, "v/0") == [bytes(600_000)]
            store.delete(["v/0"])
            store.put("v/1", bytes(600_000))

    def test_read_only_disk(self, tmp_path: Path) -> None:
        with tiny_disk(tmp_path / "disk") as disk:
            (disk / "v").mkdir()
            (disk / "v/0").write_bytes(b"old")
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            store = DirectoryWriter(disk)
            calls: list[Callable[[], Any]] = [
                lambda: store.put("v/0", b"new"),
                lambda: store.put("w/0", b"new"),
                lambda: store.create("v/1", b"new"),
                lambda: store.delete(["v/0"]),
                lambda: store.move([("v/0", "v/1")]),
            ]
            for call in calls:
                with pytest.raises(StoreError, match=f"{disk}/[vw]/[01]: .*Read-only file system"):
                    call()
            assert store.keys_below("") == ["v/0"]

    def test_directory_without_permission(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = DirectoryWriter(tmp_path)
        store.put("v/0", b"old")
        (tmp_path / "v").chmod(0o500)
        try:
            if os.access(tmp_path / "v", os.W_OK):  # root may write anywhere
                open_file = os.open

                def refuse(path: Any, flags: int, *rest: Any) -> int:
                    if flags & os.O_CREAT:
                        raise PermissionError(errno.EACCES, "Permission denied")
                    return open_file(path, flags, *rest)

                monkeypatch.setattr(os, "open", refuse)
            for call in (store.put, store.create):
                with pytest.raises(StoreError, match=r"v/1: cannot be written: Permission denied"):
                    call("v/1", b"")
            assert os.listdir(tmp_path / "v") == ["0"]
        finally:
            (tmp_path / "v").chmod(0o700)

    @pytest.mark.parametrize("atomic", [True, False])
    def test_an_interrupted_put_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool
    ) -> None:
        def interrupt(*args: object) -> int:
            raise KeyboardInterrupt

        store = DirectoryWriter(tmp_path, atomic=atomic)
        monkeypatch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.put("v/0", b"data")
        assert os.listdir(tmp_path / "v") == []

    def test_writes_in_pieces_where_the_system_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, store = os.write, DirectoryWriter(tmp_path)
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:100]))
        store.put("v/0.0", DATASET["v/0.0"])
        assert read(store, "v/0.0") == [DATASET["v/0.0"]]

    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_key_that_cannot_be_a_file(self, tmp_path: Path, atomic: bool) -> None:
        store = DirectoryWriter(tmp_path, atomic=atomic)
        store.put("v/0", b"")
        for key, reason in [
            ("v", "directory"),
            ("v/0/1", "Not a directory|File exists"),
            ("x" * 300, "too long"),
            ("\ud800", "encode"),
        ]:
            with pytest.raises(StoreError, match=reason):
                store.put(key, b"data")
        store.delete(["v", "v/0/1", "x" * 300, "\ud800"])
        assert store.keys_below("") == ["v/0"]

    def test_temporaries_of_the_dead_are_no_keys(self, tmp_path: Path) -> None:
        store = DirectoryWriter(tmp_path)
        name = ".nczarr-tmp-a-host-12ab-4711-99-0123456789abcdef"
        (tmp_path / name).write_bytes(b"")
        (tmp_path / ".nczarr-tmp-of-a-user").write_bytes(b"")
        assert store.keys_below("") == [".nczarr-tmp-of-a-user"]
        assert list(store.temporaries()) == [(name, Owner("a-host", "12ab", 4711, "99", ""))]

    def test_a_temporary_tells_its_writer(self, tmp_path: Path) -> None:
        store = DirectoryWriter(tmp_path)
        found: list[tuple[str, Owner]] = []

        def fill(path: str) -> None:
            Path(path).write_bytes(b"")
            found.extend(store.temporaries())

        store.put_file("v/0", fill)
        assert len(found) == 2  # the file, and what keeps its folder meanwhile
        for name, owner in found:
            assert name.startswith("v/.nczarr-tmp-")
            assert owner == replace(Owner.here(), since="")
            assert not owner.is_dead()
        assert [*store.temporaries()] == []

    def test_links_are_followed_and_end(self, tmp_path: Path) -> None:
        (tmp_path / "d/v").mkdir(parents=True)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/0").write_bytes(b"")
        (tmp_path / "d/linked").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "d/v/round").symlink_to(tmp_path / "d/v")
        (tmp_path / "d/v/0").write_bytes(b"")
        store = DirectoryWriter(tmp_path / "d", follow_symlinks=True)
        assert {"linked/0", "v/0"} <= set(store.keys_below(""))
        store.put("linked/1", b"1")
        assert (tmp_path / "elsewhere/1").read_bytes() == b"1"

    def test_a_directory_may_go_between_two_puts(self, tmp_path: Path) -> None:
        store = DirectoryWriter(tmp_path)

        def work(number: int) -> None:
            for _ in range(100):
                store.put(f"v/w/{number}", b"")
                store.move([(f"v/w/{number}", f"x/y/{number}")])
                store.delete([f"x/y/{number}"])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert os.listdir(tmp_path) == []

    def test_no_thread_removes_a_folder_that_another_has_just_made(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch_locks(monkeypatch)
        seen: list[tuple[str, bool]] = []

        def watched(name: str) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                seen.append((name, lock_is_held()))
                return getattr(os, name)(*args, **options)

            return call

        names = ("open", "makedirs", "replace", "rmdir")
        instead = SimpleNamespace(**{**vars(os), **{name: watched(name) for name in names}})
        monkeypatch.setattr(write_directory, "os", instead)
        store = DirectoryWriter(tmp_path, atomic=False)
        steps: list[tuple[Callable[[], None], str]] = [
            (lambda: store.put("v/0", b""), "open"),
            (lambda: store.move([("v/0", "w/0")]), "replace"),
        ]
        for step, make in steps:
            seen.clear()
            step()
            assert seen[:3] == [(make, False), ("makedirs", True), (make, True)]
            assert set(seen[3:]) <= {("rmdir", True)}
        seen.clear()
        store.delete(["w/0"])
        assert seen == [("rmdir", True)]

    def test_files_get_the_rights_that_the_umask_leaves(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            for name, atomic in (("a", True), ("b", False)):
                DirectoryWriter(tmp_path / name, atomic=atomic).put("v/0", b"")
                assert (tmp_path / name / "v").stat().st_mode & 0o777 == 0o750
                assert (tmp_path / name / "v/0").stat().st_mode & 0o777 == 0o640
        finally:
            os.umask(before)


@pytest.mark.parametrize("atomic", [True, False])
def test_a_folder_that_cannot_be_made_is_tried_a_few_times(
    tmp_path: Path, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems, such as /proc, say that a folder that they refuse is not there."""
    tried = 0

    def refused(*_: object, **options: object) -> None:
        nonlocal tried
        tried += 1
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    store = DirectoryWriter(tmp_path, atomic=atomic)
    monkeypatch.setattr(os, "makedirs", refused)
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        store.put("a/b", b"")
    assert 0 < tried <= 100


class Plain(AbstractFileSystem):
    """A filesystem with nothing but the least there can be."""

    protocol = "plain"
    cachable = False
    files: dict[str, bytes] = {}  # noqa: RUF012 - one for all threads
    failures: list[Exception] = []  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self.failures:
            raise self.failures.pop()
        self.files[path] = value

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]

    def rm_file(self, path: str) -> None:
        del self.files[path]

    def put_file(self, lpath: str, rpath: str, *_: Any, **kwargs: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())


class Awaited(AsyncFileSystem):
    """The same, to be awaited."""

    protocol = "awaited"
    cachable = False
    files: dict[str, bytes] = {}  # noqa: RUF012

    async def _put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        self.files[rpath] = await asyncio.to_thread(Path(lpath).read_bytes)


def write_two(path: str) -> None:
    Path(path).write_bytes(b"2")


class TestFsspecWriter:
    def test_a_filesystem_that_cannot_copy(self) -> None:
        store = FsspecWriter(Plain(), "root")
        store.put("a", b"1")
        store.move([("a", "b")])
        assert Plain.files == {"root/b": b"1"}

    @pytest.mark.parametrize("kind", [Plain, Awaited])
    def test_whole_files_of_a_filesystem_that_cannot_rename(
        self, kind: type[Plain | Awaited], tmp_path: Path
    ) -> None:
        kind.files.clear()
        (tmp_path / "file").write_bytes(b"1")
        store = FsspecWriter(kind(), "root")
        store.upload("d/a", str(tmp_path / "file"))
        store.put_file("b", write_two)
        assert kind.files == {"root/d/a": b"1", "root/b": b"2"}
        store.close()

    def test_a_file_that_was_put_is_removed_without_descriptors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Connections may have taken the last ones, and it would be said that nothing was put."""

        def upload(self: FsspecWriter, key: str, path: str) -> None:
            assert os.path.isfile(path)
            put.append(key)
            monkeypatch.setattr(os, "open", refuse)
            monkeypatch.setattr(os, "scandir", refuse)

        def refuse(path: Any, *_: Any, **__: Any) -> int:
            raise OSError(errno.EMFILE, "Too many open files", path)

        put: list[str] = []
        monkeypatch.setattr(FsspecWriter, "upload", upload)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        FsspecWriter(own_memory(), "root").put_file("a", write_two)
        monkeypatch.undo()
        assert put == ["a"]
        assert os.listdir(tmp_path) == []

    def test_a_whole_file_has_a_name_of_its_writer_until_it_is_complete(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put, names = LocalFileSystem.put_file, []

        def noted(fs: Any, local: str, path: str, **kwargs: Any) -> None:
            put(fs, local, path, **kwargs)
            names.extend(os.listdir(tmp_path / "d"))
            assert writer.keys_below("") == []

        monkeypatch.setattr(LocalFileSystem, "put_file", noted)
        writer = FsspecWriter(LocalFileSystem(), str(tmp_path))
        writer.put_file("d/a", write_two)
        (name,) = names
        assert writer_of(name) == replace(Owner.here(), since="")
        assert writer.keys_below("") == ["d/a"]

    def test_what_may_pass_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(policy, "FIRST_WAIT", 0.0)
        store = FsspecWriter(Plain(), "root")
        Plain.failures[:] = [ConnectionResetError("a"), TimeoutError("b")]
        store.put("again", b"1")
        assert Plain.files["root/again"] == b"1"
        Plain.failures[:] = [ConnectionResetError("down")] * policy.ATTEMPTS
        with pytest.raises(StoreError, match="root/x: cannot be written: ConnectionResetError"):
            store.put("x", b"")
        Plain.failures[:] = [ValueError("never"), ValueError("never")]
        with pytest.raises(StoreError, match="never"):
            store.put("x", b"")
        assert len(Plain.failures) == 1  # tried once
        Plain.failures.clear()

    def test_secrets_stay_secret(self) -> None:
        store = FsspecWriter(Plain(password="hunter22"), "root")
        Plain.failures[:] = [ValueError("at sftp://u:hunter22@h/ with hunter22")]
        with pytest.raises(StoreError) as caught:
            store.put("x", b"")
        assert "hunter22" not in str(caught.value)
        assert caught.value.__cause__ is None


class _LosesAnAnswer(BaseHTTPRequestHandler):
    """An S3 server that stores an object, fails to say so, and then knows that it is there."""

    protocol_version = "HTTP/1.1"
    stored: bytes | None
    attempts: int

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        state: Any = self.server
        state.attempts += 1
        if state.attempts == 1:
            assert self.headers["If-None-Match"] == "*"
            state.stored = _without_framing(body)
            self.answer(500, b"<Error><Code>InternalError</Code></Error>")
        else:
            state.stored = state.stored or b"theirs"
            self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def do_GET(self) -> None:
        stored = getattr(self.server, "stored", None)
        if stored is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.answer(200, stored)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class _Short(BaseHTTPRequestHandler):
    """An S3 server in front of which something answers 200 without what was asked for.

    `conditions` is the status of puts that must not replace anything.
    """

    protocol_version = "HTTP/1.1"
    body: bytes = b""
    conditions = 200

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.answer(self.conditions if "If-None-Match" in self.headers else 200, self.body)

    do_POST = do_PUT  # noqa: N815 - as http.server calls them

    def do_HEAD(self) -> None:
        self.answer(200, b"")

    def do_GET(self) -> None:
        if "list-type" in self.path:
            self.answer(200, self.body)
        else:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def answer(self, status: int, body: bytes) -> None:
        vars(self.server)["requests"] = vars(self.server).get("requests", 0) + 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def short(body: bytes = b"", conditions: int = 200) -> Iterator[tuple[FsspecWriter, Any]]:
    handler = type("Handler", (_Short,), {"body": body, "conditions": conditions})
    server: Any = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    fs = s3fs.S3FileSystem(key="k", secret="s", endpoint_url=endpoint)
    store = FsspecWriter(fs, "bucket/d")
    try:
        yield store, server
    finally:
        store.close()
        server.shutdown()
        server.server_close()


def in_folder(reader: Any) -> Any:
    return reader.run(reader.list(""))


def _without_framing(body: bytes) -> bytes:
    """What botocore sends in one signed chunk with a trailing checksum, or as it is."""
    if b"x-amz-checksum" not in body:
        return body
    size, _, rest = body.partition(b"\r\n")
    return rest[: int(size.partition(b";")[0], 16)]


class TestS3:
    @pytest.fixture
    def writer(self, s3_server: S3Server, tmp_path: Path) -> Iterator[FsspecWriter]:
        with _s3_writer(s3_server, tmp_path.name) as store:
            yield store

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made: list[str] = []
        call = s3fs.S3FileSystem._call_s3

        async def counted(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
            made.append(method)
            return await call(fs, method, *args, **kwargs)

        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
        return made

    def test_requests(self, writer: FsspecWriter, calls: list[str]) -> None:
        writer.bulk = 2
        writer.put("a", b"1")
        assert calls == ["put_object"]
        calls.clear()
        writer.create("b", b"1")
        assert calls == ["get_object", "put_object"]
        calls.clear()
        writer.move([("a", "c"), ("b", "d")])
        assert sorted(calls) == [*["copy_object"] * 2, "delete_objects", *["head_object"] * 2]
        calls.clear()
        writer.delete(["c", "d", "e"])
        assert calls == ["delete_objects"] * 2
        calls.clear()
        assert writer.keys_below("") == []
        assert calls == ["list_objects_v2"]

    def test_threads_share_the_event_loop(
        self, writer: FsspecWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many puts wait at a time as threads call."""
        waiting, everybody = [0], asyncio.Event()

        async def wait_for_all(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
            waiting[0] += 1
            if waiting[0] == writer.parallel:
                everybody.set()
            await asyncio.wait_for(everybody.wait(), 60)

        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", wait_for_all)
        with ThreadPoolExecutor(writer.parallel) as pool:
            list(pool.map(lambda number: writer.put(str(number), b""), range(writer.parallel)))
        assert waiting == [writer.parallel]

    def test_an_upload_cut_off_leaves_nothing(
        self, writer: FsspecWriter, calls: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted = s3fs.S3FileSystem._call_s3

        async def cut(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("PartNumber") == 2:
                raise OSError(errno.EPIPE, "the line was cut")
            return await counted(fs, method, *args, **kwargs)

        writer.put("big", b"old")
        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", cut)
        with pytest.raises(StoreError, match=r"/big: cannot be written: .*the line was cut"):
            writer.put("big", bytes(101 << 20))
        assert calls[-1] == "abort_multipart_upload"
        assert read(writer, "big") == [b"old"]

    def test_an_answer_that_was_lost(self) -> None:
        server: Any = ThreadingHTTPServer(("127.0.0.1", free_port()), _LosesAnAnswer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        fs = s3fs.S3FileSystem(key="k", secret="s", endpoint_url=endpoint)
        store = FsspecWriter(fs, "bucket/d")
        try:
            for content, first in ((b"mine", True), (b"other", False)):
                server.attempts, server.stored = 0, None
                if not first:  # somebody else came between
                    server.attempts, server.stored = 1, None
                assert store.create("lock", content) == first
        finally:
            store.close()
            server.shutdown()
            server.server_close()

    @pytest.mark.usefixtures("no_waiting")
    @pytest.mark.parametrize("body", [b"", b"<html/>", b"<?xml version='1.0'?> <Result/>"])
    @pytest.mark.parametrize(
        ("what", "call"),
        [
            ("moved.*WithoutCopyObjectResult", lambda store: store.move([("a", "b")])),
            ("deleted.*WithoutDeleteResult", lambda store: store.delete(["a"])),
            ("listed.*WithoutListBucketResult", lambda store: store.keys_below("")),
            ("500.*WithoutListBucketResult", lambda store: in_folder(store.reader())),
            ("written", lambda store: store.put("big", bytes(2000))),
        ],
    )
    def test_a_success_without_its_result_is_none(
        self, what: str, call: Any, body: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(write_fsspec, "SEVERAL_PARTS", 1000)
        with short(body) as (store, server), pytest.raises(StoreError, match=what):
            call(store)
        assert server.requests <= 40

    @pytest.mark.usefixtures("no_waiting")
    def test_a_service_that_refuses_all_conditions(self) -> None:
        """And whatever is asked to be new is not there."""
        body = b"<Error><Code>PreconditionFailed</Code></Error>"
        with short(body, 412) as (store, server):
            with pytest.raises(StoreError, match=r"d/x: cannot be written: .*412"):
                store.create("x", b"1")
            assert server.requests <= 40

    def test_what_may_not_be_written_or_deleted(self, s3_server: S3Server) -> None:
        s3fs.S3FileSystem(**s3_server.signed()).pipe_file(f"{s3_server.public}/w/x", b"here")
        fs = s3fs.S3FileSystem(anon=True, endpoint_url=s3_server.endpoint)
        store = FsspecWriter(fs, f"{s3_server.public}/w")
        for call in (store.put, store.create):
            with pytest.raises(StoreError, match=r"AccessDenied.*choose credentials") as caught:
                call("y", b"")
            assert caught.value.object == "s3://public/w/y"
        with pytest.raises(StoreError, match=r"s3://public/w/x: cannot be deleted: AccessDenied"):
            store.delete(["x", "y"])
        assert read(store, "x") == [b"here"]
        store.close()

    def test_missing_bucket(self, s3_server: S3Server) -> None:
        fs = s3fs.S3FileSystem(**s3_server.signed())
        store = FsspecWriter(fs, "absent/d")
        calls: list[Callable[[], Any]] = [
            lambda: store.create("x", b""),  # not put, for which SeaweedFS makes a bucket
            lambda: store.delete(["x"]),
            lambda: store.move([("x", "y")]),
            lambda: store.keys_below(""),
        ]
        for call in calls:
            with pytest.raises(StoreError, match=r"s3://absent/d.*[Bb]ucket"):
                call()
        store.close()

    def test_upload(self, writer: FsspecWriter, tmp_path: Path) -> None:
        (tmp_path / "x.zip").write_bytes(b"content")
        writer.upload("x.zip", str(tmp_path / "x.zip"))
        assert read(writer, "x.zip") == [b"content"]
        with pytest.raises(StoreError, match="cannot be written: FileNotFoundError"):
            writer.upload("y.zip", str(tmp_path / "nope"))


class _Answers:
    """A filesystem of S3 whose service answers as the test says, without a service.

    An answer is a dict, the code of an error, or an iterator of such.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
        self.calls: list[str] = []
        self.given: list[dict[str, Any]] = []
        self.answers = answers
        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", self.answer)
        self.writer = FsspecWriter(s3fs.S3FileSystem(anon=True), "bucket/d")

    async def answer(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(method)
        self.given.append(kwargs)
        found = self.answers[method]
        found = next(found) if isinstance(found, Iterator) else found
        if isinstance(found, str):
            told = {"Error": {"Code": found}, "ResponseMetadata": {"HTTPStatusCode": 404}}
            raise translate_boto_error(ClientError(told, method))
        return found


def test_objects_that_s3_has_not_deleted_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer to a request for many is a success that has errors in it."""
    missing = {"Key": "d/a", "Code": "NoSuchKey", "Message": "was not there"}
    failed = {"Key": "d/b", "Code": "AccessDenied", "Message": "not you"}
    s3 = _Answers(monkeypatch, delete_objects={"Errors": [missing]})
    s3.writer.delete(["a", "b"])
    s3.answers["delete_objects"] = {"Errors": [missing, failed]}
    with pytest.raises(StoreError, match="cannot be deleted: AccessDenied: not you") as caught:
        s3.writer.delete(["a", "b"])
    assert caught.value.object == "s3://bucket/d/b"
    s3.writer.close()


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ServiceUnavailable"])
def test_objects_that_s3_could_not_delete_just_now(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "FIRST_WAIT", 0.0)
    busy = {"Errors": [{"Key": "d/b", "Code": code, "Message": "later"}]}
    s3 = _Answers(monkeypatch, delete_objects=iter([busy, busy, {}]))
    s3.writer.delete(["a", "b"])
    assert s3.calls == ["delete_objects"] * 3
    s3.answers["delete_objects"] = busy
    with pytest.raises(StoreError, match=f"cannot be deleted: {code} .tried 6 times"):
        s3.writer.delete(["a", "b"])
    s3.writer.close()


@pytest.mark.parametrize("left", [frozenset(), frozenset({"b"}), frozenset({"a", "b"})])
def test_a_move_whose_source_is_not_found(
    left: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved before if only its target is there. If both are, nothing may be deleted."""
    head = {"ContentLength": 1, "ETag": "", "LastModified": ""}
    s3 = _Answers(monkeypatch, head_object=head, copy_object="NoSuchKey", delete_objects={})

    async def read(path: str, count: int | None = None) -> bytes | None:
        assert count == 1
        return b"1" if path[-1] in left else None

    monkeypatch.setattr(s3.writer, "read_object", read)
    moved = left == {"b"}
    with nullcontext() if moved else pytest.raises(StoreError, match=r"d/a: .*NoSuchKey"):
        s3.writer.move([("a", "b")])
    assert ("delete_objects" in s3.calls) == moved
    s3.writer.close()


def test_a_service_without_conditional_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some refuse the header, others ignore it."""
    s3 = _Answers(monkeypatch, get_object="NoSuchKey", put_object=iter(["NotImplemented", {}]))
    assert s3.writer.create("a", b"1")
    assert s3.calls == ["get_object", "put_object", "put_object"]
    assert [given.get("IfNoneMatch") for given in s3.given] == [None, "*", None]
    s3.answers["get_object"] = "AccessDenied"
    with pytest.raises(StoreError, match="AccessDenied"):
        s3.writer.create("a", b"1")
    s3.writer.close()


VERSION = FileVersion('"1"', size=7)


@pytest.mark.parametrize(
    ("after", "stored"),
    [
        pytest.param(VERSION._replace(etag='"2"'), True, id="it is there"),
        pytest.param(VERSION, False, id="what was there before"),
        pytest.param(FileVersion('"2"', size=6), False, id="of another writer"),
        pytest.param(None, False, id="nothing"),
    ],
)
def test_whether_an_upload_was_stored_whose_answer_was_lost(
    after: FileVersion | None, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 forgets an upload that is complete, as it does one that was aborted."""
    monkeypatch.setattr(write_fsspec, "SEVERAL_PARTS", 1)
    s3 = _Answers(
        monkeypatch,
        create_multipart_upload={"UploadId": "1"},
        upload_part={"ETag": '"p"'},
        complete_multipart_upload="NoSuchUpload",
        abort_multipart_upload={},
    )
    versions = [VERSION, after]

    async def version(_: str) -> FileVersion | None:
        return versions.pop(0)

    monkeypatch.setattr(s3.writer, "version_of", version)
    with nullcontext() if stored else pytest.raises(StoreError, match="d/x: cannot be written"):
        s3.writer.put("x", b"content")
    assert ("abort_multipart_upload" in s3.calls) == (not stored)
    s3.writer.close()


def test_what_s3fs_takes_for_a_version_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object ``d/a`` would be replaced, by each chunk in turn."""
    writer = _Answers(monkeypatch).writer
    key = "a?versionId=b/.zarray"
    for use in (partial(writer.put, key, b""), partial(writer.create, key, b"")):
        with pytest.raises(StoreError, match="which names another object"):
            use()
    with pytest.raises(StoreError, match="which names another object"):
        writer.delete([key])
    (found,) = writer.reader().get_many([key])
    assert isinstance(found, StoreError)
    writer.close()


@contextmanager
def _s3_writer(server: S3Server, folder: str) -> Iterator[FsspecWriter]:
    store = FsspecWriter(s3fs.S3FileSystem(**server.signed()), f"{server.private}/{folder}")
    yield store
    store.close()


class TestZarrWriter:
    def test_a_store_for_reading(self) -> None:
        with pytest.raises(StoreError, match="read_only=False"):
            ZarrWriter(zarr.storage.MemoryStore(read_only=True))

    def test_what_the_store_raises_is_an_error_of_ours(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail(*args: Any) -> None:
            raise RuntimeError("down")

        store = ZarrWriter(zarr.storage.MemoryStore())
        monkeypatch.setattr(zarr.storage.MemoryStore, "set", fail)
        with pytest.raises(StoreError, match=r"v/0: cannot be written \(down\)"):
            store.put("v/0", b"")


class TestMappingWriter:
    def test_a_broken_mapping_is_an_error_of_ours(self) -> None:
        class Broken(dict[str, bytes]):
            def __setitem__(self, key: str, value: bytes) -> None:
                raise RuntimeError("down")

        with pytest.raises(StoreError, match=r"mapping/a: cannot be written: .*down"):
            MappingWriter(Broken()).put("a", b"")


class TestDestination:
    def test_local_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        path = str(tmp_path / "d.zarr")
        targets: list[Any] = [
            path,
            Path(path),
            "d.zarr",
            "~/d.zarr",
            f"file://{path}",
            f"file://{path}/",
            f"dir://d.zarr::file://{tmp_path}",
            fsspec.get_mapper(path),
            DirFileSystem(str(tmp_path), LocalFileSystem()).get_mapper("d.zarr"),
        ]
        for target in targets:
            found = open_destination(target)
            assert (found.kind, found.path) == ("directory", path)
            assert isinstance(found.store, DirectoryWriter)
            assert found.store.path == path
        assert os.listdir(tmp_path) == []
        found = open_destination(f"file://{path}#mode=nczarr,file,noxarray")
        assert (found.url, found.path) == (f"file://{path}", path)
        assert found.place.mode == {"nczarr", "file", "noxarray"}

    def test_archives(self, tmp_path: Path) -> None:
        for name, fragment in (("d.zip", ""), ("d.ZIP", "#mode=zarr"), ("d", "#mode=nczarr,zip")):
            found = open_destination(f"file://{tmp_path}/{name}{fragment}")
            assert (found.kind, found.path) == ("zip", str(tmp_path / name))
            assert found.open_archive() is None
        assert open_destination(f"file://{tmp_path}/d.zip#mode=nczarr,file").kind == "directory"
        write_zip(tmp_path / "zipped.nc", "zipped/")
        found = open_destination(tmp_path / "zipped.nc")
        assert found.kind == "zip"
        archive = found.open_archive()
        assert isinstance(archive, ZipStore)
        assert archive.get("v/0.0") == DATASET["v/0.0"]
        (tmp_path / "noise.zip").write_bytes(b"noise")
        with pytest.raises(StoreError, match="not a readable zip"):
            open_destination(tmp_path / "noise.zip").open_archive()
        (tmp_path / "folder.zip").mkdir()
        assert open_destination(tmp_path / "folder.zip").kind == "directory"
        with pytest.raises(URLError, match="is a directory"):
            open_destination(f"file://{tmp_path}/folder.zip#mode=nczarr,zip")

    @pytest.mark.parametrize("name", ["b.nc", "B.NC4", "b.cdf", "b.h5", "b.hdf5", "b.nca"])
    def test_a_name_of_one_file_needs_a_choice(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        for target in (path, str(path), f"file://{path}", f"memory://{name}", f"s3://b/{name}"):
            with pytest.raises(URLError, match=r"tree of objects.*#mode=nczarr"):
                open_destination(target)
        assert not path.exists()
        assert open_destination(f"file://{path}#mode=nczarr,file").kind == "directory"
        assert open_destination(f"file://{path}#mode=zarr").kind == "directory"
        assert open_destination(f"file://{path}#mode=nczarr,zip").kind == "zip"
        assert open_destination(f"memory://{name}#mode=zarr").kind == "objects"
        assert open_destination(fsspec.get_mapper(f"memory://{name}")).kind == "objects"
        path.mkdir()  # the choice was made
        assert open_destination(path).kind == "directory"

    def test_a_path_that_looks_like_a_url(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        odd = tmp_path / "memory:/x#mode=zarr"
        odd.mkdir(parents=True)
        assert open_destination("memory:/x#mode=zarr").path == str(odd)
        with pytest.raises(URLError, match="write file:///"):
            open_destination("x.zarr#mode=zarr")

    def test_objects(self) -> None:
        found = open_destination("memory://dest/d#mode=nczarr")
        assert (found.kind, found.url, found.path) == ("objects", "memory://dest/d", None)
        assert isinstance(found.store, MappingWriter)
        found.store.put("v/0", b"1")
        fs = fsspec.filesystem("memory")
        assert fs.cat_file("/dest/d/v/0") == b"1"
        for target in (
            fs.get_mapper("/dest/d"),
            DirFileSystem("/dest", fs=fs).get_mapper("d"),
            "dir://d::memory://dest",
            "memory:///dest/d",
        ):
            store = open_destination(target).store
            assert store is not None
            assert store.keys_below("") == ["v/0"]

    def test_mappings_and_stores(self) -> None:
        mapping: MutableMapping[str, bytes] = {}
        found = open_destination(mapping)
        assert isinstance(found.store, MappingWriter)
        found.store.put("v/0", b"1")
        assert mapping == {"v/0": b"1"}
        assert open_destination(found.store).store is found.store

    def test_s3(self, s3_server: S3Server, tmp_path: Path) -> None:
        options = {"key": s3_server.access_key, "secret": s3_server.secret_key}
        url = s3_server.url(tmp_path.name, bucket=s3_server.private)
        for target, given_options in (
            (url, options),
            (f"s3://{s3_server.private}/{tmp_path.name}", s3_server.signed()),
        ):
            found = open_destination(target, given_options)
            assert found.kind == "objects"
            assert found.store is not None
            assert s3_server.secret_key not in repr(found) + found.url
            assert found.store.url == found.url
            found.store.put("v/0", b"1")
            assert found.store.keys_below("") == ["v/0"]
            found.store.delete(["v/0"])
            found.store.close()

    def test_remote_archives(self, s3_server: S3Server, tmp_path: Path) -> None:
        options = {"key": s3_server.access_key, "secret": s3_server.secret_key}
        url = s3_server.url(f"{tmp_path.name}/d.zip", bucket=s3_server.private)
        for target, given_options in ((url, options), ("memory://dest.zip", {})):
            found = open_destination(target, given_options)
            assert (found.kind, found.path, found.store) == ("zip", None, None)
            assert found.open_archive() is None
            write_zip(tmp_path / "d.zip", "d/")
            found.put_archive(partial(os.rename, tmp_path / "d.zip"))
            archive = found.open_archive()
            assert archive is not None
            assert archive.get_many(["v/0.0"]) == [DATASET["v/0.0"]]
            (tmp_path / "tree/w").mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree/w/0").write_bytes(b"new")
            new = tmp_path / "new.zip"
            pack(str(tmp_path / "tree"), str(new), "d", base=archive, removed="v/0.1".__eq__)
            packed = ZipStore(new)
            assert packed.get_many(["v/0.0", "v/0.1", "w/0"]) == [DATASET["v/0.0"], None, b"new"]
            new.unlink()
            archive.close()

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("https://example.org/d", "plain HTTP is for reading"),
            ("http://example.org/d.zip#mode=zarr", "plain HTTP is for reading"),
            ("https://example.org/x.nc#mode=bytes", "to_netcdf"),
            ("simplecache::memory://d", "cache"),
            ("zip://d::file:///tmp/nothing-here.zip", "cache|cannot open|FileNotFound"),
            ("memory://x#mode=nonsense", "unknown"),
            ("gopher://127.0.0.1/x", "gopher"),
            ("", "is not a path"),
            (5, "int object"),
            (io.BytesIO(), "a file object cannot hold"),
        ],
    )
    def test_what_cannot_be_written(self, target: Any, reason: str) -> None:
        with pytest.raises((URLError, StoreError), match=reason):
            open_destination(target)

    def test_http_mappers(self) -> None:
        with pytest.raises(URLError, match="plain HTTP is for reading"):
            open_destination(fsspec.get_mapper("http://127.0.0.1:9/d"))

    @pytest.mark.parametrize("start", [b"CDF\x01", b"CDF\x05", b"\x89HDF\r\n\x1a\n"])
    def test_a_netcdf_file_is_not_taken_for_a_place(self, tmp_path: Path, start: bytes) -> None:
        path = tmp_path / "x.zip"
        path.write_bytes(start + bytes(100))
        with pytest.raises(URLError, match="to_netcdf"):
            open_destination(path)

    def test_options_that_cannot_be_used_are_an_error(self, tmp_path: Path) -> None:
        targets: list[Any] = [tmp_path / "d", f"file://{tmp_path}/d", {}]
        for target in targets:
            with pytest.raises(URLError, match="storage_options"):
                open_destination(target, {"anon": True})

    def test_a_path_that_cannot_be_looked_at(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        for path in (tmp_path / "loop", f"{tmp_path}/nul\0"):
            with pytest.raises(StoreError, match="cannot be looked at"):
                open_destination(path)


def test_what_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    source, store = tmp_path / "source", DirectoryWriter(tmp_path / "d")
    source.write_bytes(b"new")
    source.chmod(0o644)
    store.put("v/0", b"old")
    (tmp_path / "d/v/0").chmod(0o600)
    with open(source, "rb") as file:
        store.put_range("v/0", FileRange(file.fileno(), 0, 3, str(source)))
    assert (tmp_path / "d/v/0").read_bytes() == b"new"
    assert (tmp_path / "d/v/0").stat().st_mode & 0o777 == 0o600
    assert source.stat().st_mode & 0o777 == 0o644


def test_to_move_a_link_to_what_is_there_leaves_no_source(tmp_path: Path) -> None:
    """The system renames nothing if both names are of one file."""
    store = DirectoryWriter(tmp_path)
    store.put("staged/v/0", b"new")
    (tmp_path / "v").mkdir()
    os.link(tmp_path / "staged/v/0", tmp_path / "v/0")
    store.move([("staged/v/0", "v/0")])
    assert store.keys_below("") == ["v/0"]
    assert store.reader().get_one("v/0") == b"new"


def test_a_link_whose_answer_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of NFS makes it, and is asked again: it answers that there is something."""

    def twice(*names: str, link: Any = os.link) -> None:
        link(*names)
        link(*names)

    monkeypatch.setattr(os, "link", twice)
    store = DirectoryWriter(tmp_path)
    assert store.create("a/journal", b"ours")
    assert not store.create("a/journal", b"theirs")
    assert (tmp_path / "a" / "journal").read_bytes() == b"ours"
    assert os.listdir(tmp_path / "a") == ["journal"]


@pytest.mark.parametrize("renames", [True, False])
def test_creating_where_there_are_no_links(
    renames: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, come = DirectoryWriter(tmp_path), iter([False, True])

    def refused(_: str, name: str) -> None:
        if next(come):
            Path(name).write_bytes(b"came just now")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    if not renames:
        monkeypatch.setattr("nczarr_fsspec.local_files.rename_with", lambda *_: 1)
    assert store.create("a", b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert not store.create("b", b"ours")
    assert (tmp_path / "b").read_bytes() == b"came just now"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_key_that_cannot_be_written_leaves_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Any, *args: Any, real: Any = os.mkdir) -> None:
        if os.path.basename(path) == "c":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, *args)

    monkeypatch.setattr(os, "mkdir", full)
    for put in (DirectoryWriter(tmp_path).put, DirectoryWriter(tmp_path).create):
        with pytest.raises(StoreError, match="cannot be written: No space left"):
            put("a/b/c/0", b"data")
        assert not [*tmp_path.iterdir()]
