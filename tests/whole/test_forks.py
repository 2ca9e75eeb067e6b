"""What is opened before a fork reads right in the children, while the parent goes on reading.

A child gets the parent's memory with all locks as they were, but only one of its threads; file
descriptors are shared, with their positions.
"""

# ruff: noqa: SIM115 - the readers keep the files open
from __future__ import annotations

import faulthandler
import gzip
import io
import json
import mmap
import os
import pickle
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import ProcessLock, cached_property
from nczarr_fsspec.ranges.local import FileObjectBytes, OpenFileBytes, open_file_object
from nczarr_xarray import open_store, to_cfa, to_nczarr
from nczarr_xarray.views.references import references
from tests.support.faults.locks import is_held
from tests.support.marks import slow_but, slow_cases_but
from tests.support.servers.httpserver import Server

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork"),
    # a fork among threads is what these tests are about
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of files that readers go by
]

RIGHT, WRONG, REFUSED = 0, 1, 2
#: Guards against a child that waits for ever, and then tells where. Processes may be stopped, too.
SECONDS = 200

#: Reads element number n; all are what `VALUES` says.
Reader = Callable[[int], Any]
VALUES = np.arange(1 << 14, dtype="f8")


def dataset() -> xr.Dataset:
    return xr.Dataset({"v": ("x", VALUES), "s": ((), 1.5)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same variable in every form."""
    folder = tmp_path_factory.mktemp("forks")
    encoding: dict[str, Any] = {"v": {"zlib": True, "shuffle": True, "chunksizes": (128,)}}
    dataset().to_netcdf(folder / "classic.nc", engine="scipy")
    dataset().to_netcdf(folder / "h5.nc", engine="h5netcdf", encoding=encoding)
    to_nczarr(dataset(), folder / "tree.nczarr", encoding=encoding)
    to_nczarr(dataset(), folder / "d.zip", encoding=encoding)
    to_cfa(dataset(), folder / "master.nca", max_object_size=20_000)
    dataset().to_zarr(folder / "v3.zarr", zarr_format=3, consolidated=True)
    with h5py.File(folder / "virtual.h5", "w") as file:
        file["data"] = VALUES
        layout = h5py.VirtualLayout(VALUES.shape, "f8")
        layout[:] = h5py.VirtualSource(".", "data", VALUES.shape)
        file.create_virtual_dataset("v", layout)
    refs = references(folder / "h5.nc")
    (folder / "refs.json").write_text(json.dumps(refs).replace(f"{folder}/", ""))
    (folder / "classic.nc.gz").write_bytes(gzip.compress((folder / "classic.nc").read_bytes()))
    with zipfile.ZipFile(folder / "outer.zip", "w") as archive:
        archive.write(folder / "classic.nc", "classic.nc")
    return folder


def in_engine(target: Any, **options: Any) -> Reader:
    variable = xr.open_dataset(target, engine="nczarr", cache=False, **options).v.variable
    return lambda n: variable[n].values


def read_view(path: Path) -> Reader:
    array: Any = zarr.open_group(open_store(path), mode="r")["v"]
    return lambda n: array[n]


def read_bytes(path: Path) -> Reader:
    file = fsspec.open(f"bytes::file://{path}").open()
    start = file.read().find(VALUES[:64].astype(">f8").tobytes())
    assert start > 0

    def read(n: int) -> Any:
        file.seek(start + 8 * n)
        return np.frombuffer(file.read(8), ">f8")[0]

    return read


def temporary(path: Path) -> Any:
    file = tempfile.TemporaryFile()
    file.write(path.read_bytes())
    return file


def mapped(path: Path) -> Any:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


#: What a fork may share; each opens it.
LOCAL: dict[str, Callable[[Path], Reader]] = {
    "classic path": lambda d: in_engine(d / "classic.nc"),
    "hdf5 path": lambda d: in_engine(d / "h5.nc"),
    "virtual path": lambda d: in_engine(d / "virtual.h5"),
    "classic file": lambda d: in_engine((d / "classic.nc").open("rb")),
    "hdf5 file": lambda d: in_engine((d / "h5.nc").open("rb")),
    "raw file": lambda d: in_engine((d / "classic.nc").open("rb", buffering=0)),
    "file to be changed": lambda d: in_engine((d / "h5.nc").open("r+b")),
    "temporary file": lambda d: in_engine(temporary(d / "h5.nc")),
    "virtual file": lambda d: in_engine((d / "virtual.h5").open("rb")),
    "fsspec file": lambda d: in_engine(fsspec.open(f"file://{d}/h5.nc").open()),
    "memory": lambda d: in_engine(io.BytesIO((d / "h5.nc").read_bytes())),
    "mapped file": lambda d: in_engine(mapped(d / "h5.nc")),
    "bytes file": lambda d: read_bytes(d / "classic.nc"),
    "directory": lambda d: in_engine(d / "tree.nczarr"),
    "zip path": lambda d: in_engine(d / "d.zip"),
    "zip file": lambda d: in_engine((d / "d.zip").open("rb")),
    "zip in memory": lambda d: in_engine(io.BytesIO((d / "d.zip").read_bytes())),
    "zip of fsspec": lambda d: in_engine(f"zip://d::file://{d}/d.zip"),
    "zarr 3": lambda d: in_engine(d / "v3.zarr"),
    "zarr store": lambda d: in_engine(zarr.storage.LocalStore(d / "v3.zarr")),
    "zarr view": lambda d: read_view(d / "h5.nc"),
    "references": lambda d: in_engine(d / "refs.json"),
    "aggregation": lambda d: in_engine(d / "master.nca"),
}
#: What cannot be known to be safe.
UNKNOWN: dict[str, Callable[[Path], Reader]] = {
    "gzip": lambda d: in_engine(gzip.open(d / "classic.nc.gz")),
    "zip member": lambda d: in_engine(zipfile.ZipFile(d / "outer.zip").open("classic.nc")),
    "subclass": lambda d: in_engine(Tame(d / "h5.nc")),
    "filesystem of a file": lambda d: in_engine(
        fsspec.filesystem("zip", fo=(d / "d.zip").open("rb")).get_mapper("d")
    ),
    "zip in subclass": lambda d: in_engine(Tame(d / "d.zip")),
}


class Tame(io.FileIO):
    """A file whose class may do anything."""


@contextmanager
def forked(child: Callable[[], int]) -> Iterator[None]:
    """Run `child` in a forked process meanwhile, and see that it says `RIGHT`."""
    pid = os.fork()
    if pid == 0:
        code = WRONG
        try:
            faulthandler.dump_traceback_later(SECONDS, exit=True)  # tells where it waits
            code = child()
        finally:
            os._exit(code)
    try:
        yield
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == RIGHT, f"the child ended with {status}"


def check(read: Reader, seed: int, count: int = 60) -> int:
    places = np.random.default_rng(seed).integers(0, len(VALUES), count).tolist()
    return RIGHT if all(read(n) == VALUES[n] for n in places) else WRONG


@pytest.mark.parametrize(
    "name", slow_but(LOCAL, "classic path", "hdf5 path", "hdf5 file", "directory", "zip path")
)
def test_children_and_parent_read_at_the_same_time(folder: Path, name: str) -> None:
    read = LOCAL[name](folder)
    assert check(read, 0) == RIGHT
    with ExitStack() as stack:
        for seed in (1, 2):
            stack.enter_context(forked(lambda seed=seed: check(read, seed)))  # type: ignore[misc]
        assert check(read, 3) == RIGHT
    assert check(read, 4) == RIGHT


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_share_its_position_is_refused(folder: Path, name: str) -> None:
    read = UNKNOWN[name](folder)
    assert check(read, 0) == RIGHT

    def child() -> int:
        try:
            read(5)
        except StoreError as error:
            return RIGHT if "after a fork" in str(error) else WRONG
        return WRONG

    with forked(child):
        pass
    assert check(read, 1) == RIGHT  # and nothing has moved the file


def fork_while_reading(read: Reader, forks: int) -> None:
    """Fork while other threads read, so that locks are held."""
    over = threading.Event()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            while not over.is_set():
                assert check(read, seed, 20) == RIGHT
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(forks):
            with forked(lambda seed=seed: check(read, seed, 3)):  # type: ignore[misc]
                pass
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["hdf5 path", "virtual path", "virtual file", "memory", "directory", "zip file", "zarr 3",
         "zip of fsspec", "references", "aggregation"],
        "hdf5 path", "directory",
    ),
)  # fmt: skip
def test_locks_of_threads_that_are_gone(folder: Path, name: str) -> None:
    fork_while_reading(LOCAL[name](folder), 8)


@pytest.mark.parametrize(
    ("name", "mode"),
    slow_cases_but(
        [("h5.nc", "bytes"), ("virtual.h5", "bytes"), ("tree.nczarr", "nczarr"),
         ("v3.zarr", "zarr"), ("d.zip", "zip")],
        "h5.nc", "tree.nczarr",
    ),
)  # fmt: skip
def test_requests_of_threads_that_are_gone(folder: Path, name: str, mode: str) -> None:
    paths = [folder / name] if (folder / name).is_file() else (folder / name).rglob("*")
    files = {f"/{p.relative_to(folder)}": p.read_bytes() for p in paths if p.is_file()}
    with Server(files) as server:
        fork_while_reading(in_engine(f"{server.url}/{name}#mode={mode}"), 3)


def test_requests_of_threads_that_are_gone_for_references(folder: Path) -> None:
    files = {f"/{name}": (folder / name).read_bytes() for name in ("refs.json", "h5.nc")}
    with Server(files) as server:
        fork_while_reading(in_engine(f"{server.url}/refs.json"), 3)


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_a_cache_over_a_network(folder: Path, cache: str) -> None:
    """Chunks that the parent has not read yet are fetched by the child."""
    paths = (folder / "tree.nczarr").rglob("*")
    files = {f"/{p.relative_to(folder)}": p.read_bytes() for p in paths if p.is_file()}
    with Server(files) as server:
        read = in_engine(f"{cache}::{server.url}/tree.nczarr")
        assert check(read, 0, 5) == RIGHT
        with forked(lambda: check(read, 1, 5)):
            assert check(read, 2, 5) == RIGHT


class TestProcessLock:
    def test_one_at_a_time(self) -> None:
        lock = ProcessLock()
        inside: list[int] = []

        def work(number: int) -> None:
            for _ in range(200):
                with lock:
                    inside.append(number)  # (calls, at which threads may take turns)
                    assert inside == [number]
                    assert inside.pop() == number

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, range(4)))
        finally:
            sys.setswitchinterval(interval)
        assert not is_held(lock)
        with lock:
            assert is_held(lock)

    def test_free_in_a_child(self) -> None:
        lock = ProcessLock()

        def child() -> int:
            with lock, ExitStack():
                return RIGHT

        with lock:  # held by this thread, which in the child is the one there is
            with forked(child):
                pass


def test_a_property_that_another_thread_computes() -> None:
    """With Python 3.11's own, a child waits for that thread, which it has not."""
    begun, go_on = threading.Event(), threading.Event()
    main = threading.current_thread()

    class Slow:
        @cached_property
        def value(self) -> int:
            if threading.current_thread() is not main:
                begun.set()
                assert go_on.wait(SECONDS)
            return 5

    def child() -> int:
        return RIGHT if Slow().value == 5 else WRONG

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    assert begun.wait(SECONDS)
    try:
        with forked(child):
            pass
    finally:
        go_on.set()
        thread.join()
    one = Slow()
    assert one.value == 5
    assert vars(one) == {"value": 5}
    assert isinstance(Slow.value, cached_property)


class TestFileObjects:
    def test_the_position_is_the_callers(self, folder: Path) -> None:
        with (folder / "classic.nc").open("rb") as file:
            file.seek(7)
            source = open_file_object(file)
            assert isinstance(source, OpenFileBytes)
            source.read(100, 200)
            assert file.tell() == 7
            source.close()
            assert bytes(source.read(0, 3)) == b"CDF"

    def test_what_is_not_in_the_file_yet(self, tmp_path: Path) -> None:
        with (tmp_path / "x").open("w+b") as file:
            file.write(b"not written yet")
            assert bytes(open_file_object(file).read(4, 11)) == b"written"

    def test_a_number_is_used_again(self, folder: Path) -> None:
        """What is closed is an error, also if another file got its descriptor."""
        file = (folder / "classic.nc").open("rb")
        number = file.fileno()
        source = open_file_object(file)
        file.close()
        with (folder / "h5.nc").open("rb") as other:
            assert other.fileno() == number
            with pytest.raises(StoreError, match="closed file"):
                source.read(0, 3)

    def test_a_file_that_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        path.write_bytes(b"CDF\1 and more")
        with path.open("rb") as file:
            source = open_file_object(file)
            path.write_bytes(b"another length")
            with pytest.raises(StoreError, match="changed since it was opened"):
                source.read(0, 3)

    def test_what_is_no_plain_file(self, folder: Path) -> None:
        """Its descriptor may be that of other bytes."""
        unknown = [gzip.open(folder / "classic.nc.gz"), Tame(folder / "h5.nc")]
        for file in (*unknown, io.BytesIO(b"CDF"), io.BufferedReader(Tame(folder / "h5.nc"))):
            with file:
                source: Any = open_file_object(file)  # type: ignore[arg-type]
                assert isinstance(source, FileObjectBytes)

    def test_a_file_cannot_be_pickled(self, folder: Path) -> None:
        with (folder / "classic.nc").open("rb") as file, pytest.raises(TypeError, match="pickle"):
            pickle.dumps(open_file_object(file))
