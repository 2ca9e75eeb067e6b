"""What a server may cost: pages for what it lacks, bodies without end, silence, refusals."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import warnings
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.local import LocalFileSystem

from nczarr_fsspec import (
    DirectoryStore,
    FormatError,
    FsspecStore,
    MappingStore,
    RemoteStore,
    RemoteZipStore,
    StoreError,
    URLError,
    ZipStore,
    open_keystore,
)
from nczarr_fsspec.errors import NCZarrWarning, TooLargeError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.stores.mapping import MemoryFiles
from nczarr_fsspec.transport import open_transport
from nczarr_fsspec.transport import policy as _policy
from nczarr_xarray import to_nczarr
from tests.support.builders.trees import read_tree
from tests.support.faults.memory import little_memory
from tests.support.servers.filesystems import own_memory
from tests.support.servers.httpserver import Server
from tests.support.servers.rawserver import RawServer

PAGE = b"<!DOCTYPE html><html><body>No such page</body></html>"


def dataset() -> xr.Dataset:
    values = np.arange(20.0).reshape(4, 5)
    return xr.Dataset({"v": (("y", "x"), values, {"units": "m"})}, attrs={"title": "here"})


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have all engines imported, whichever test is the first: that takes memory, too."""
    folder = tmp_path_factory.mktemp("first") / "d"
    to_nczarr(dataset(), folder)
    load(folder)


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
def test_a_page_for_what_is_missing(tmp_path: Path, mode: str) -> None:
    where = f"file://{tmp_path}/d#mode={mode},file"
    to_nczarr(dataset(), where, consolidated=mode == "zarr")
    with Server(read_tree(tmp_path / "d", "/d/"), missing_status=200, missing_body=PAGE) as server:
        target = f"{server.url}/d#mode={mode}"
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_identical(found.load(), dataset())


@pytest.mark.parametrize("group", [None, "g"])
def test_a_page_for_what_zarr_3_does_not_have(tmp_path: Path, group: str | None) -> None:
    dataset().to_zarr(tmp_path / "d", zarr_format=3, group=group, consolidated=False)
    with pytest.warns(UserWarning, match="Consolidated metadata"):
        zarr.consolidate_metadata(tmp_path / "d")
    files = read_tree(tmp_path / "d", "/d/")
    with Server(files, missing_status=200, missing_body=PAGE) as server:
        with xr.open_dataset(f"{server.url}/d", engine="nczarr", group=group) as found:
            xr.testing.assert_identical(found.load(), dataset())


class Endless(RawServer):
    """An HTTP server that sends a head and then a block again and again, up to `MOST` bytes.

    Parameters
    ----------
    files
        What it answers rightly, by path; others are not there.
    path
        For which it sends head and block; None for all that are not there.
    """

    MOST = 256 << 20

    def __init__(
        self, files: dict[str, bytes], path: str | None, head: bytes = b"", block: bytes = b" "
    ) -> None:
        self.files = {name: content for name, content in files.items() if name != path}
        self.path = path
        self.head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n"
        self.block = block * max(1, (1 << 16) // len(block))
        self.sent = 0

    def serve(self, reader: Any, writer: Any) -> None:
        path = reader.readline().split()[1].decode()
        while reader.readline().strip():
            pass
        self.answer(path, writer)

    def answer(self, path: str, out: Any) -> None:
        content = self.files.get(path)
        if content is not None:
            length = f"Content-Length: {len(content)}\r\n"
            out.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n".encode() + content)
            return
        if self.path not in (None, path):
            out.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n")
            return
        out.write(self.head)
        before = self.sent
        while self.sent < before + self.MOST:
            out.write(self.block)
            self.sent += len(self.block)


def load(target: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine="nczarr", **options) as found:
        return found.load()


CHUNK = "/d/v/0.0"
#: what sockets and streams hold of a body that is not read on
UNREAD = 24 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    to_nczarr(dataset(), folder / "d")
    return read_tree(folder / "d", "/d/")


class TestBodiesOverHTTP:
    @pytest.mark.parametrize("path", ["/d/.zattrs", "/d/v/.zarray", "/d/v/.zattrs"])
    def test_endless_metadata(self, files: dict[str, bytes], path: str) -> None:
        options = {"max_metadata": 1 << 20}
        warned = pytest.warns(NCZarrWarning) if "v" in path else nullcontext()
        with Endless(files, path) as server, little_memory(20 << 20), warned:
            with pytest.raises(TooLargeError, match="option max_metadata"):
                load(f"{server.url}/d#mode=nczarr", storage_options=options)["v"].load()
        assert server.sent < UNREAD

    def test_nothing_but_endless_objects(self) -> None:
        options = {"max_metadata": 1 << 20}
        with Endless({}, None) as server, little_memory(60 << 20):
            with pytest.raises(TooLargeError, match="option max_metadata"):
                load(f"{server.url}/d#mode=nczarr", storage_options=options)
        assert server.sent < 12 * UNREAD

    def test_an_endless_chunk(self, files: dict[str, bytes]) -> None:
        with Endless(files, CHUNK) as server, little_memory(20 << 20):
            with pytest.raises(FormatError, match=r"v/0\.0: has more than \d+ bytes"):
                load(f"{server.url}/d#mode=nczarr")
        assert server.sent < UNREAD

    def test_an_endless_end_of_a_chunk(self, files: dict[str, bytes]) -> None:
        with Endless(files, CHUNK) as server, little_memory(20 << 20):
            store = open_keystore(f"{server.url}/d#mode=nczarr")
            assert isinstance(store, RemoteStore)
            with pytest.raises(TooLargeError):
                store.run(store.get("v/0.0", slice(5, None), 1 << 20))
        assert server.sent < UNREAD

    def test_a_chunk_that_inflates(self, files: dict[str, bytes]) -> None:
        bomb = gzip.compress(bytes(200 << 20), 1)
        head = b"Content-Encoding: gzip\r\n"
        with Endless(files, CHUNK, head, bomb) as server, little_memory(20 << 20):
            with pytest.raises(FormatError, match=r"v/0\.0: has more than \d+ bytes"):
                load(f"{server.url}/d#mode=nczarr")

    def test_compression_that_was_not_asked_for(self, files: dict[str, bytes]) -> None:
        with Endless(files, CHUNK, b"Content-Encoding: br\r\n") as server:
            with pytest.raises(StoreError, match=r"compressed it \(br\), though it was asked not"):
                load(f"{server.url}/d#mode=nczarr")

    def test_what_is_compressed_is_read(self, files: dict[str, bytes]) -> None:
        with Server(files, gzip=True) as server:
            xr.testing.assert_identical(load(f"{server.url}/d"), dataset())


def test_what_fails_in_s3_is_tried_again(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of request: of a file, of an object, of a listing."""
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)
    with Server({"/b/d/x": b"1"}, unavailable_every=1) as server:  # each once
        fs = s3fs.S3FileSystem(
            endpoint_url=server.url, key="k", secret="s", skip_instance_cache=True
        )
        store = FsspecStore(fs, "b/d")
        assert store.get_many(["x"]) == [b"1"]
        assert store.get_many(["x"]) == [b"1"]
        assert [request.status for request in server.requests] == [503, 200, 200]
        (listed,) = store.list_many([""])
        assert listed == frozenset()  # the server has no listing, and says 404
        assert [request.status for request in server.requests[3:]] == [503, 404]
        store.close()


@pytest.mark.parametrize("number", [1, 2])  # of the request: the first goes through s3fs
def test_objects_of_s3_are_bounded(number: int) -> None:
    s3fs = pytest.importorskip("s3fs")
    content = bytes(8 << 20)
    with Server({"/b/d/x": content, "/b/d/small": b"1"}) as server:
        fs = s3fs.S3FileSystem(
            endpoint_url=server.url, key="k", secret="s", skip_instance_cache=True
        )
        store = FsspecStore(fs, "b/d")
        for _ in range(number):
            with pytest.raises(TooLargeError, match="has more than 1000 bytes"):
                store.run(store.get("x", most=1000))
        assert store.run(store.get("small", most=1)) == b"1"
        assert store.run(store.get("x", most=len(content))) == content
        store.close()


def remote(fs: Any, path: str) -> RemoteFileBytes:
    """The file at `path`, read as if behind a network."""
    source = RemoteFileBytes(open_transport(fs), path, path, 0)
    source.run(source.begin(None))
    return source


@pytest.mark.parametrize("store", ["fsspec", "memory", "mapping", "directory", "zip", "zip-remote"])
def test_objects_of_any_store_are_bounded(store: str, tmp_path: Path) -> None:
    content = b"x" * 1000

    class Plain(LocalFileSystem):
        """A filesystem of which nothing is known."""

        protocol = "plain"
        asked: ClassVar[list[Any]] = []

        def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
            self.asked.append((start, end))
            return bytes(super().cat_file(path, start=start, end=end))

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(content)
    (tmp_path / "d" / "empty").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "d.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(".zgroup", "{}")
        archive.writestr("x", content)
        archive.writestr("empty", b"")
    memory = own_memory()
    memory.pipe({"/d/x": content, "/d/empty": b""})
    opened: Any = {
        "fsspec": lambda: FsspecStore(Plain(), f"{tmp_path}/d"),
        "memory": lambda: MappingStore(MemoryFiles(memory, "/d")),
        "mapping": lambda: MappingStore({"x": content, "empty": b""}),
        "directory": lambda: DirectoryStore(tmp_path / "d"),
        "zip": lambda: ZipStore(tmp_path / "d.zip"),
        "zip-remote": lambda: RemoteZipStore(remote(Plain(), f"{tmp_path}/d.zip")),
    }[store]()

    def get(key: str, *part: slice, **most: Any) -> Any:
        found = opened.get(key, *part, **most)
        return opened.run(found) if isinstance(opened, RemoteStore) else found

    assert get("x", most=1000) == get("x") == content
    assert get("x", slice(10, 20), most=1000) == content[10:20]
    assert get("empty", most=0) == b""
    assert get("nope", most=0) is None
    with pytest.raises(TooLargeError, match="has more than 999 bytes"):
        get("x", most=999)
    (many,) = opened.get_many(["x"], 999)
    assert isinstance(many, TooLargeError)
    opened.max_metadata = 999
    assert isinstance(opened.get_many(["x"])[0], TooLargeError)
    opened.close()


class TestLocal:
    @pytest.mark.parametrize("compressed", [False, True])
    def test_a_huge_chunk_file(self, tmp_path: Path, compressed: bool) -> None:
        encoding = {"v": {"zlib": compressed, "chunksizes": (2, 5)}}
        to_nczarr(dataset(), tmp_path / "d", encoding=encoding)
        with (tmp_path / "d" / "v" / "1.0").open("r+b") as file:
            file.truncate(10 << 30)
        found = xr.open_dataset(tmp_path / "d", engine="nczarr")
        with little_memory(1 << 20):
            np.testing.assert_array_equal(found["v"][:2], dataset()["v"][:2])
            for key in (slice(None), slice(3, 4)):
                with pytest.raises(FormatError, match=r"v/1\.0: has more than \d+ bytes"):
                    found["v"][key].load()
        found.close()

    @pytest.mark.parametrize("name", [".zgroup", ".zattrs", "v/.zarray", "v/.zattrs"])
    def test_a_huge_metadata_file(self, tmp_path: Path, name: str) -> None:
        to_nczarr(dataset(), tmp_path / "d")
        with (tmp_path / "d" / name).open("r+b") as file:
            file.truncate(10 << 30)
        with little_memory(1 << 20), pytest.warns(NCZarrWarning) if "/" in name else nullcontext():
            with pytest.raises(TooLargeError, match="storage option max_metadata"):
                load(tmp_path / "d")

    def test_a_member_that_inflates(self, tmp_path: Path) -> None:
        to_nczarr(dataset(), tmp_path / "d.zip")
        with zipfile.ZipFile(tmp_path / "d.zip", "a", zipfile.ZIP_DEFLATED) as archive:
            (name,) = [name for name in archive.namelist() if name.strip("/").count("/") == 1
                       and name.endswith("/.zattrs")]  # fmt: skip
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the name repeats
                with archive.open(name, "w", force_zip64=True) as member:
                    for _ in range(100):
                        member.write(bytes(1 << 20))
        with little_memory(8 << 20), pytest.raises(TooLargeError, match="max_metadata"):
            load(tmp_path / "d.zip")

    def test_the_limit_is_an_option(self, tmp_path: Path) -> None:
        to_nczarr(dataset(), tmp_path / "d")
        xr.testing.assert_identical(load(tmp_path / "d"), dataset())
        for target in (tmp_path / "d", f"file://{tmp_path}/d#mode=nczarr"):
            with pytest.raises(TooLargeError, match="has more than 10 bytes"):
                load(target, storage_options={"max_metadata": 10})
        store = Place.of(tmp_path / "d", {"max_metadata": 10}).open().data
        assert pickle.loads(pickle.dumps(store)).max_metadata == 10
        with pytest.raises(URLError, match="max_metadata is a number of bytes, not 'x'"):
            load(tmp_path / "d", storage_options={"max_metadata": "x"})


def test_a_huge_chunk_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        chunked = file.create_dataset("v", (4, 5), "f8", chunks=(2, 5), compression="gzip")
        chunked[...] = dataset()["v"]
        size = chunked.id.get_chunk_info_by_coord((2, 0)).size
    content = bytearray(path.read_bytes())
    entry = struct.pack("<IIQQQ", size, 0, 2, 0, 0)  # size, filter mask, where in the variable
    assert content.count(entry) == 1
    at = content.index(entry)
    content[at : at + 4] = struct.pack("<I", 3 << 30)
    path.write_bytes(content)
    with path.open("r+b") as out:
        out.truncate(4 << 30)
    found = xr.open_dataset(path, engine="nczarr")
    with little_memory(1 << 20):
        np.testing.assert_array_equal(found["v"][:2], dataset()["v"][:2])
        with pytest.raises(
            FormatError, match=r"chunk \(1, 0\): is stated to have 3221225472 bytes"
        ):
            found["v"].load()
    found.close()


@pytest.mark.slow
def test_what_codecs_make_longer_is_read(tmp_path: Path) -> None:
    """The bound of a chunk is no less than what any codec makes of noise."""
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16, dtype=np.uint8)
    compressors = [
        *(numcodecs.Zlib(0), numcodecs.GZip(9), numcodecs.BZ2(9), numcodecs.LZMA()),
        *(numcodecs.Blosc(clevel=0), numcodecs.Blosc("lz4"), numcodecs.LZ4(), numcodecs.Zstd()),
    ]
    for number, compressor in enumerate(compressors):
        for filters in (None, [numcodecs.AsType("f8", "u1")], [numcodecs.Fletcher32()]):
            root = zarr.open_group(tmp_path / f"{number}{bool(filters)}", mode="w", zarr_format=2)
            array = root.create_array(
                "v", shape=noise.shape, chunks=noise.shape, dtype="u1",
                compressors=compressor, filters=filters,
            )  # fmt: skip
            array[:] = noise
            array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
            found = load(root.store.root, mask_and_scale=False)
            np.testing.assert_array_equal(found["v"], noise)


HUGE = (2**31, 2**40, 2**60, 2**63 - 1, 2**63, 10**400)
DEEP = "[" * 200_000
FAILURES = (FormatError, StoreError)


def opened_or_refused(target: Any, **options: Any) -> list[str]:
    """What goes wrong, if anything, when all of a dataset is looked at: errors of ours only."""
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = xr.open_dataset(target, engine="nczarr", **options)
        except FAILURES as error:
            return [str(error)]
        with found:
            for name in found.variables:
                for part in (found[name], found[name].isel(dict.fromkeys(found[name].dims, 0))):
                    try:
                        part.load()
                    except FAILURES as error:
                        told.append(str(error))
    return told


def len_of(value: object) -> str:
    """The name of a case; some numbers are long."""
    return str(value)[:20]


class TestDamage:
    """MemoryError and RecursionError are no answer to what a file says."""

    @staticmethod
    def changed(folder: Path, key: str, change: Any) -> None:
        path = folder / key
        path.write_text(change(path.read_text()))

    @pytest.mark.parametrize("mode", ["nczarr", "zarr"])
    @pytest.mark.parametrize("key", [".zattrs", "v/.zattrs", "v/.zarray", ".zmetadata"])
    def test_deep_json(self, tmp_path: Path, mode: str, key: str) -> None:
        where = f"file://{tmp_path}/d#mode={mode},file"
        to_nczarr(dataset(), where, consolidated=True)
        for document in (DEEP, f'{{"a": {DEEP}', '{"a":' * 100_000, f'"{DEEP}'):
            (tmp_path / "d" / key).write_text(document)
            told = opened_or_refused(where, consolidated=key == ".zmetadata")
            assert any("nested too deeply" in one or "JSON" in one for one in told)

    @pytest.mark.parametrize("number", HUGE, ids=len_of)
    @pytest.mark.parametrize("what", ["shape", "chunks", "both"])
    @pytest.mark.parametrize("mode", ["nczarr", "zarr"])
    def test_huge_sizes(self, tmp_path: Path, mode: str, what: str, number: int) -> None:
        where = f"file://{tmp_path}/d#mode={mode},file"
        to_nczarr(dataset(), where, consolidated=True)

        def grown(text: str) -> str:
            document = json.loads(text)
            found = document["metadata"]["v/.zarray"] if "metadata" in document else document
            for name in ("shape", "chunks") if what == "both" else (what,):
                found[name] = [number, 5]
            return json.dumps(document)

        self.changed(tmp_path / "d", "v/.zarray", grown)
        self.changed(tmp_path / "d", ".zmetadata", grown)
        for consolidated in (False, True):
            if opened_or_refused(where, consolidated=consolidated):
                continue
            # elements of a chunk that is said to have more rows are where they were
            assert what == "chunks"
            with xr.open_dataset(where, engine="nczarr", consolidated=consolidated) as found:
                np.testing.assert_array_equal(found.v, dataset().v)

    @pytest.mark.parametrize("change", ["deep", *HUGE], ids=len_of)
    @pytest.mark.parametrize("inline", [False, True])
    def test_zarr_3(self, tmp_path: Path, change: Any, inline: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of zarr-python, about consolidated metadata
            dataset().to_zarr(tmp_path / "d", zarr_format=3, consolidated=inline)

        def damaged(text: str) -> str:
            if change == "deep":
                return text.replace('"attributes": {', f'"attributes": {{"a": {DEEP},', 1)
            document = json.loads(text)
            found = document
            if "consolidated_metadata" in document:
                found = document["consolidated_metadata"]["metadata"]["v"]
            found["shape"] = [change, 5]
            found["chunk_grid"]["configuration"]["chunk_shape"] = [change, 5]
            return json.dumps(document)

        self.changed(tmp_path / "d", "zarr.json" if inline else "v/zarr.json", damaged)
        assert opened_or_refused(tmp_path / "d", consolidated=inline)

    @pytest.mark.slow
    def test_deep_groups_of_hdf5(self, tmp_path: Path) -> None:
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / "deep.h5", "w") as file:
            group = file
            for _ in range(1100):
                group = group.create_group("g")
            file["v"] = [1.0]
        for name in ("open_dataset", "open_datatree", "open_groups"):
            with pytest.warns(NCZarrWarning, match="deep"):
                found = getattr(xr, name)(tmp_path / "deep.h5", engine="nczarr")
            root = found if name == "open_dataset" else found["/"]
            assert root["v"].size == 1


@pytest.mark.parametrize("target", ["d#mode=nczarr", "d.nc#mode=bytes"])
def test_an_option_that_http_does_not_have(target: str) -> None:
    with Server({}) as server, pytest.raises(URLError, match="no option 'timeot'; did you mean ti"):
        load(f"{server.url}/{target}", storage_options={"timeot": 3})


@pytest.mark.parametrize("mode", ["nczarr", "bytes"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"auth": ("user", "Qz7")}, "auth: is an aiohttp.BasicAuth; for a pair, logins="),
        ({"headers": "Qz7"}, "headers: is a mapping of names to texts, not str"),
        ({"headers": {"X": 5}}, "storage_options: HTTP cannot use them: .*5"),
        ({"params": {"a": None}}, "storage_options: HTTP cannot use them: .*None"),
        ({"ssl": 5}, "storage_options: HTTP cannot use them: ssl should be"),
        ({"cookies": {"a b": "Qz7"}}, "storage_options: HTTP cannot use them: Illegal key 'a b'"),
        ({"client_kwargs": {"connector": 5}}, "storage_options: HTTP cannot use them: .*int"),
        ({"client_kwargs": 5}, "client_kwargs: is a mapping, not int"),
        ({"client_kwargs": {"foo": 1}}, "storage_options: HTTP has no option 'foo'"),
        ({"netrc": 5}, "netrc: is a path, True or False, not int"),
        ({"cookie_jar": 5}, "cookie_jar: is a path, not int"),
    ],
    ids=str,
)
def test_options_of_the_wrong_kind(options: dict[str, Any], reason: str, mode: str) -> None:
    with Server({}) as server, pytest.raises(URLError, match=f"^{reason}") as caught:
        load(f"{server.url}/d#mode={mode}", storage_options=options)
    assert "Qz7" not in str(caught.value)
    assert not server.requests
