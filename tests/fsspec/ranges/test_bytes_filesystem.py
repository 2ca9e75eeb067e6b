"""``bytes::``: the filesystem and its files, against fsspec's own tests and plain slices."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec import ByteRangeFileSystem, StoreError, URLError
from nczarr_fsspec.place import open_keystore
from nczarr_fsspec.ranges.filesystem import BLOCK, BLOCKS, ByteRangeFile
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_fsspec.ranges.remote import open_source
from tests.support.faults.locks import is_held
from tests.support.servers.realservers import RangeServer, range_server

CONTENT = np.random.default_rng(0).bytes(9_000_000)


pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture(autouse=True, scope="module")
def no_leftovers() -> Iterator[None]:
    yield
    SimpleCacheFileSystem.clear_instance_cache()  # which may be around one of the next
    ByteRangeFileSystem.clear_instance_cache()  # whose connections live as long as they do


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "root"
    folder.mkdir()
    (folder / "x.bin").write_bytes(CONTENT)
    (folder / "y.bin").write_bytes(CONTENT[::-1])
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("first\nsecond é\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[RangeServer]:
    with range_server(root) as server:
        yield server


@pytest.fixture
def server(running: RangeServer) -> RangeServer:
    running.set()
    return running


class Prepared(ByteRangeFileSystem):
    """With the writing methods of the filesystem below, for what tests set up and remove."""

    protocol = "bytes-prepared"

    def mkdir(self, *args: Any, **options: Any) -> Any:
        return self.fs.mkdir(*args, **options)

    def makedirs(self, *args: Any, **options: Any) -> Any:
        return self.fs.makedirs(*args, **options)

    def touch(self, *args: Any, **options: Any) -> Any:
        return self.fs.touch(*args, **options)

    def pipe(self, *args: Any, **options: Any) -> Any:
        return self.fs.pipe(*args, **options)

    def rm(self, *args: Any, **options: Any) -> Any:
        return self.fs.rm(*args, **options)


class Get(AbstractFixtures, AbstractGetTests):
    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:  # that of fsspec before 2026 has a scope of its own
        return LocalFileSystem(auto_mkdir=True)


# Of fsspec's abstract classes, those for copy, put and pipe are about writing, and the one test
# of the class for open is that of mode "xb".
class TestGetFromMemory(Get):
    @pytest.fixture
    def fs(self) -> Iterator[Prepared]:
        memory = MemoryFileSystem()
        yield Prepared(fs=memory)
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]

    @pytest.fixture
    def fs_path(self) -> str:
        return "/tests"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)


class TestGetFromDisk(Get):
    @pytest.fixture
    def fs(self) -> Prepared:
        return Prepared(fs=LocalFileSystem(auto_mkdir=True))

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")


class TestReadOnly:
    """What `AbstractOpenTests` and its like would write."""

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [
            ("mkdir", ["/d"]),
            ("makedirs", ["/d"]),
            ("rmdir", ["/d"]),
            ("touch", ["/f"]),
            ("pipe", ["/f", b""]),
            ("pipe_file", ["/f", b""]),
            ("put", ["/f", "/g"]),
            ("put_file", ["/f", "/g"]),
            ("cp_file", ["/f", "/g"]),
            ("copy", ["/f", "/g"]),
            ("cp", ["/f", "/g"]),
            ("mv", ["/f", "/g"]),
            ("move", ["/f", "/g"]),
            ("rename", ["/f", "/g"]),
            ("rm", ["/f"]),
            ("rm_file", ["/f"]),
            ("delete", ["/f"]),
            ("upload", ["/f", "/g"]),
            ("write_bytes", ["/f", b""]),
            ("open", ["/f", "wb"]),
            ("open", ["/f", "xb"]),
            ("open", ["/f", "ab"]),
            ("open", ["/f", "r+b"]),
            ("open", ["/f", "w"]),
        ],
    )
    def test_it_only_reads(self, method: str, arguments: list[Any]) -> None:
        fs = ByteRangeFileSystem(target_protocol="memory")
        with pytest.raises(OSError, match="only reads") as caught:
            getattr(fs, method)(*arguments)
        assert caught.value.filename == "/f" or arguments == ["/d"]
        assert not fs.fs.exists("/f")


class TestFilesystem:
    def test_the_protocol_is_registered(self, server: RangeServer) -> None:
        fs, path = fsspec.core.url_to_fs(f"bytes::{server.url}/x.bin")
        assert type(fs) is ByteRangeFileSystem
        assert path == f"{server.url}/x.bin"
        assert fs.unstrip_protocol(path) == f"bytes::{server.url}/x.bin"
        assert fs._strip_protocol(f"bytes::{server.url}/d/") == f"{server.url}/d/"
        assert pickle.loads(pickle.dumps(fs)) == fs
        with fsspec.open(f"bytes::{server.url}/x.bin") as file:
            assert file.read() == CONTENT

    def test_options_go_below(self, server: RangeServer) -> None:
        with fsspec.open(
            f"bytes::{server.url}/x.bin",
            http={"headers": {"X-Mine": "1"}},
            bytes={"max_whole": 5},
        ) as file:
            assert file.read(4) == CONTENT[:4]
        fs, _ = fsspec.core.url_to_fs(f"bytes::{server.url}/x.bin", max_whole=5)
        server.set(norange=1)
        with pytest.raises(StoreError, match="5 bytes that are kept"):
            fs.open(f"{server.url}/x.bin")
        with pytest.raises(ValueError, match="either"):
            ByteRangeFileSystem()

    def test_text_and_compression(self, server: RangeServer) -> None:
        with fsspec.open(f"bytes::{server.url}/text", "r", encoding="utf-8") as file:
            assert file.readlines() == ["first\n", "second é\n"]

    def test_info(self, server: RangeServer) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        url = f"{server.url}/x.bin"
        info = fs.info(url)
        assert (info["name"], info["size"], info["type"]) == (url, len(CONTENT), "file")
        assert fs.size(url) == len(CONTENT)
        assert fs.exists(url)
        assert fs.isfile(url)
        assert not fs.exists(f"{server.url}/nope")
        assert fs.ukey(url) == fs.ukey(url)
        for read in (fs.info, fs.cat_file, fs.open):
            with pytest.raises(FileNotFoundError):
                read(f"{server.url}/nope")

    @pytest.mark.parametrize(
        ("start", "end"),
        [
            *((None, None), (0, 10), (5, None), (None, 7), (-9, None), (-20, -3), (50, 20)),
            *((8_999_990, 10**9), (10**9, None), (70_000, 6_000_000), (3, 3)),
        ],
    )
    def test_cat_file(self, server: RangeServer, start: int | None, end: int | None) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        assert fs.cat_file(f"{server.url}/x.bin", start, end) == CONTENT[start:end]

    def test_cat(self, server: RangeServer) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        urls = [f"{server.url}/{name}" for name in ("x.bin", "y.bin", "empty")]
        assert fs.cat(urls) == dict(zip(urls, [CONTENT, CONTENT[::-1], b""], strict=True))

    def test_ranges_of_one_file_are_read_together(self, server: RangeServer) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        starts = list(range(100_000, 8_000_000, 100_000))
        ends = [start + 50 for start in starts]
        urls = [f"{server.url}/x.bin"] * len(starts)
        assert fs.cat_ranges(urls, starts, ends) == [
            CONTENT[start:end] for start, end in zip(starts, ends, strict=True)
        ]
        assert server.requests < 20

    def test_ranges_may_be_arrays(self, server: RangeServer) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        urls = [f"{server.url}/x.bin"] * 2
        expected = [CONTENT[5:9], CONTENT[700:800]]
        assert fs.cat_ranges(urls, np.array([5, 700]), np.array([9, 800])) == expected
        assert fs.cat_ranges(urls, iter([5, 700]), iter([9, 800])) == expected

    def test_paths_without_a_server(self) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        for path in ("x.bin", "/some/x.bin"):
            for read in (fs.info, fs.cat_file, fs.open):
                with pytest.raises(URLError, match=f"^{path}: is no URL of HTTP"):
                    read(path)

    def test_ranges_of_many_files(self, server: RangeServer) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        urls = [f"{server.url}/{name}" for name in ("x.bin", "nope", "y.bin", "x.bin")]
        found = fs.cat_ranges(urls, [1, 2, 3, None], 9)
        assert isinstance(found[1], FileNotFoundError)
        assert found[:1] + found[2:] == [CONTENT[1:9], CONTENT[::-1][3:9], CONTENT[:9]]
        with pytest.raises(FileNotFoundError):
            fs.cat_ranges(urls, 0, 9, on_error="raise")
        with pytest.raises(ValueError, match="as many"):
            fs.cat_ranges(urls, [1], 9)

    def test_connections_are_kept_between_files(self, server: RangeServer) -> None:
        # the connections of other tests are for filesystems with other options
        fs = ByteRangeFileSystem("http", {"headers": {"X-Test": "connections"}})
        for _ in range(5):
            fs.cat_file(f"{server.url}/x.bin", 5, 10)
        assert server.control("stats")["conns"] == 1

    def test_downloads(self, server: RangeServer, tmp_path: Path) -> None:
        fs = ByteRangeFileSystem(target_protocol="http")
        server.set(trunc=4, e503=5)
        fs.get(f"{server.url}/x.bin", str(tmp_path / "x"))
        assert (tmp_path / "x").read_bytes() == CONTENT


def open_file(server: RangeServer, name: str = "x.bin") -> ByteRangeFile:
    fs = ByteRangeFileSystem(target_protocol="http")
    file = fs.open(f"{server.url}/{name}")
    assert isinstance(file, ByteRangeFile)
    return file


class TestFile:
    def test_positions(self, server: RangeServer) -> None:
        with open_file(server) as file, io.BytesIO(CONTENT) as plain:
            assert file.readable()
            assert file.seekable()
            assert not file.writable()
            for offset, whence, count in [
                (0, 0, 10),
                (5, 1, 100_000),
                (-50, 1, 20),
                (-70_000, 2, 65_536),
                (10**9, 0, 5),
                (4_000_000, 0, 3_000_000),
                (0, 0, -1),
                (7, 0, None),
            ]:
                assert file.seek(offset, whence) == plain.seek(offset, whence)
                assert file.read(count) == plain.read(count)
                assert file.tell() == plain.tell()
            buffer = bytearray(100)
            file.seek(-10, 2)
            assert file.readinto(buffer) == 10
            assert buffer[:10] == CONTENT[-10:]
            for wrong in ((-1, 0), (0, 7)):
                with pytest.raises(ValueError, match=r"whence|before"):
                    file.seek(*wrong)
            with pytest.raises(io.UnsupportedOperation):
                file.write(b"")
        for read in (file.read, file.tell, lambda: file.read_at(0, 1), lambda: file.seek(0)):
            with pytest.raises(ValueError, match="closed file"):
                read()

    def test_empty(self, server: RangeServer) -> None:
        with open_file(server, "empty") as file:
            assert file.read() == b""
            assert file.read_at(5, 9) == b""

    def test_the_head_costs_nothing_more(self, server: RangeServer) -> None:
        with open_file(server) as file:
            assert file.read_at(100, BLOCK) == CONTENT[100:BLOCK]
            assert server.requests == 1

    def test_reading_in_sequence_fetches_ahead(self, server: RangeServer) -> None:
        with open_file(server) as file:
            count = 0
            while piece := file.read(10_000):
                assert piece == CONTENT[count : count + len(piece)]
                count += len(piece)
        assert count == len(CONTENT)
        assert server.requests < 25  # of 900 reads

    def test_jumps_fetch_blocks_once(self, server: RangeServer) -> None:
        with open_file(server) as file:
            for _ in range(3):
                for at in (1_000_000, 5_000_000, 3_000_000):
                    assert file.read_at(at, at + 10) == CONTENT[at : at + 10]
        assert server.requests == 4
        assert server.control("stats")["bytes"] == 4 * BLOCK

    def test_large_reads_go_out_in_parts(self, server: RangeServer) -> None:
        with open_file(server) as file:
            assert file.read() == CONTENT
        assert 3 <= server.requests <= 12
        assert server.control("stats")["bytes"] <= 1.03 * len(CONTENT)

    def test_blocks_are_bounded(self, monkeypatch: pytest.MonkeyPatch, server: RangeServer) -> None:
        monkeypatch.setattr("nczarr_fsspec.ranges.filesystem.BLOCKS", 8)
        with open_file(server) as file:
            for at in range(0, len(CONTENT), 70_001):
                assert file.read_at(at, at + 9) == CONTENT[at : at + 9]
            assert len(file._blocks) == 8
        assert BLOCKS * BLOCK == 32 << 20

    def test_threads(self, server: RangeServer) -> None:
        errors: list[str] = []
        with open_file(server) as file:

            def work(seed: int) -> None:
                random = np.random.default_rng(seed)
                for _ in range(40):
                    start = int(random.integers(len(CONTENT)))
                    stop = start + int(random.integers(100_000))
                    if file.read_at(start, stop) != CONTENT[start:stop]:
                        errors.append(f"{start}-{stop}")

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []

    def test_threads_that_read_on_get_bytes_of_their_own(self, server: RangeServer) -> None:
        found: list[bytes] = []
        with open_file(server) as file:

            def work() -> None:
                while piece := file.read(30_000):
                    found.append(piece)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        pieces = [CONTENT[at : at + 30_000] for at in range(0, len(CONTENT), 30_000)]
        assert sorted(found) == sorted(pieces)

    def test_no_thread_comes_between_a_position_and_the_next(
        self, server: RangeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held: list[bool] = []

        class Watched(ByteRangeFile):
            @property
            def _at(self) -> int:
                held.append(is_held(self._lock))
                return self._position

            @_at.setter
            def _at(self, position: int) -> None:
                self._position = position

        with open_file(server) as opened, Watched(opened._source) as file:
            assert file.read(5) + file.read(5) == CONTENT[:10]
            file.seek(3, io.SEEK_CUR)
        assert held == [True] * 3

    def test_a_read_that_fails_leaves_the_position(self, server: RangeServer) -> None:
        with open_file(server) as file:
            file.seek(2_000_000)
            server.change("/empty")
            with pytest.raises(StoreError, match="has changed while it was read"):
                file.read(10)
            assert file.tell() == 2_000_000

    def test_positions_of_small_types(self, server: RangeServer) -> None:
        """As NumPy has them, whose sums are of the same type."""
        with open_file(server) as opened:
            file: Any = opened
            file.seek(100)
            assert file.read(np.uint8(200)) == CONTENT[100:300]
            assert file.seek(np.uint8(200)) == 200
            assert file.read(100) == CONTENT[200:300]
            assert file.seek(np.int8(-100), 1) == 200
            assert file.read_at(np.uint8(250), np.uint8(255)) == CONTENT[250:255]

    def test_pickle(self, server: RangeServer) -> None:
        with open_file(server) as file:
            file.seek(1000)
            copy = pickle.loads(pickle.dumps(file))
            assert copy.read(10) == CONTENT[1000:1010]
            copy.close()

    def test_a_file_that_changes(self, server: RangeServer) -> None:
        with open_file(server) as file:
            file.read_at(1_000_000, 1_000_010)
            server.change("/empty")
            with pytest.raises(StoreError, match="has changed while it was read"):
                file.read_at(2_000_000, 2_000_010)

    @given(
        size=st.sampled_from([1, 10, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]),
        reads=st.lists(
            st.tuples(st.integers(0, 4 * BLOCK), st.integers(0, 2 * BLOCK)), max_size=12
        ),
        skip=st.booleans(),
    )
    def test_any_reads(self, size: int, reads: list[tuple[int, int]], skip: bool) -> None:
        content = CONTENT[:size]
        fs = ChunksInMemory(content)
        with ByteRangeFile(open_source(fs, "x")) as file:
            for start, count in reads:
                if skip:
                    file.seek(start)
                    assert file.read(count) == content[start : start + count]
                else:
                    assert file.read_at(start, start + count) == content[start : start + count]

    def test_in_memory(self) -> None:
        with ByteRangeFile(MemoryBytes(CONTENT, "here")) as file:
            assert file.read() == CONTENT
            assert "here" in repr(file)


class ChunksInMemory(fsspec.AbstractFileSystem):
    """Content behind `FsspecBytes`, without a server."""

    cachable = False

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file", "etag": "1"}

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        return self.content[start:end]


class TestLibraries:
    def test_h5py(self, server: RangeServer, root: Path) -> None:
        h5py = pytest.importorskip("h5py")
        data = np.random.default_rng(1).random((400, 300))
        with h5py.File(root / "x.h5", "w") as written:
            written.create_dataset("a/b", data=data, chunks=(10, 300), compression="gzip")
        with open_file(server, "x.h5") as file, h5py.File(file, "r") as read:
            np.testing.assert_array_equal(read["a/b"][:], data)
        assert server.control("stats")["bytes"] <= 1.1 * (root / "x.h5").stat().st_size
        assert server.requests < 20

    def test_scipy(self, server: RangeServer, root: Path) -> None:
        scipy_io = pytest.importorskip("scipy.io")
        with scipy_io.netcdf_file(root / "x.nc", "w") as written:
            written.createDimension("x", 1000)
            written.createVariable("v", "f8", ("x",))[:] = np.arange(1000.0)
        with open_file(server, "x.nc") as file:
            with scipy_io.netcdf_file(file, "r", mmap=False) as read:
                np.testing.assert_array_equal(read.variables["v"][:], np.arange(1000.0))

    @pytest.mark.parametrize("chain", ["bytes::", "simplecache::bytes::"])
    def test_mappers_of_trees(self, chain: str, server: RangeServer, root: Path) -> None:
        zarr = pytest.importorskip("zarr")
        group = zarr.create_group(root / "tree.zarr", zarr_format=2, overwrite=True)
        group.create_array("v", data=np.arange(5))
        group.create_group("g").create_array("w", data=np.arange(3))
        keys = open_keystore(fsspec.get_mapper(f"{chain}{server.url}/tree.zarr"))
        found = keys.get_many([".zarray", ".zgroup", "g/.zarray", "g/.zgroup", "v/0"])
        assert [isinstance(data, bytes) for data in found] == [False, True, False, True, True]
        assert found[0] is found[2] is None
        keys.close()
