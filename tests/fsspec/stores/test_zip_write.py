"""Archives that are packed: their layout is netCDF-C's, and everybody reads them."""

from __future__ import annotations

import os
import random
import shutil
import stat
import struct
import subprocess
import tracemalloc
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec import RemoteZipStore, StoreError, ZipStore
from nczarr_fsspec.ranges.remote import open_source
from nczarr_fsspec.ranges.source import RemoteBytes
from nczarr_fsspec.stores import zipwrite
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.zipformat import Archive, Member
from nczarr_fsspec.stores.zipwrite import pack
from tests.support.builders.archives import DATASET, METHODS, NOISE, make_zip, patched
from tests.support.corpora.samples import DATA as VECTORS
from tests.support.examples import examples
from tests.support.faults.disks import tiny_disk
from tests.support.servers.httpserver import Server


def nothing(key: str) -> bool:
    return False


def make_tree(root: Path, content: Mapping[str, bytes]) -> str:
    root.mkdir(parents=True, exist_ok=True)
    store = DirectoryWriter(root, atomic=False)
    for key, data in content.items():
        store.put(key, data)
    return str(root)


def packed(
    folder: Path,
    content: Mapping[str, bytes],
    base: bytes | None = None,
    removed: frozenset[str] = frozenset(),
    name: str = "d",
) -> Path:
    tree = make_tree(folder / "tree", content)
    old = None if base is None else ZipStore(base)
    target = folder / "new.zip"
    pack(tree, str(target), name, base=old, removed=removed.__contains__)
    return target


def content_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        return {name.partition("/")[2]: archive.read(name) for name in names}


class TestLayout:
    def test_is_that_of_netcdf_c(self, tmp_path: Path) -> None:
        path = packed(tmp_path, DATASET)
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        assert entries[0].filename == "d/"
        seen: set[str] = set()
        for entry in entries:
            parent = entry.filename.rstrip("/").rpartition("/")[0]
            assert not parent or f"{parent}/" in seen  # a directory comes before its content
            assert entry.filename not in seen
            seen.add(entry.filename)
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.create_system == 3
            assert entry.extra == b""
            assert entry.flag_bits == (0 if entry.filename.isascii() else 0x800)
            mode = entry.external_attr >> 16
            assert mode == (stat.S_IFDIR | 0o777 if entry.is_dir() else stat.S_IFREG | 0o666)
        assert content_of(path) == DATASET

    @pytest.mark.parametrize("vector", sorted(VECTORS.glob("*.dataset.zip")), ids=lambda p: p.name)
    def test_has_the_entries_of_an_archive_of_netcdf_c(self, tmp_path: Path, vector: Path) -> None:
        with zipfile.ZipFile(vector) as archive:
            theirs = archive.infolist()
            name = theirs[0].filename.rstrip("/")
        ours = packed(tmp_path, content_of(vector), name=name)
        with zipfile.ZipFile(ours) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
        assert entries.keys() == {entry.filename for entry in theirs}
        for entry in theirs:
            assert entry.external_attr == entries[entry.filename].external_attr
            assert entry.compress_type == entries[entry.filename].compress_type
            assert entry.CRC == entries[entry.filename].CRC

    def test_equal_content_makes_equal_archives(self, tmp_path: Path) -> None:
        one = packed(tmp_path / "1", DATASET)
        other = packed(tmp_path / "2", dict(reversed(DATASET.items())))
        third = packed(tmp_path / "3", {}, base=one.read_bytes())
        assert one.read_bytes() == other.read_bytes() == third.read_bytes()

    def test_nothing_is_a_directory(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(packed(tmp_path, {})) as archive:
            assert archive.namelist() == ["d/"]

    def test_files_that_are_not_complete_are_left_out(self, tmp_path: Path) -> None:
        half = ".nczarr-tmp-host-12ab-4711-99-0123456789abcdef"
        path = packed(tmp_path, {".zgroup": b"{}", half: b"half"})
        assert content_of(path) == {".zgroup": b"{}"}

    def test_long_files_go_through_in_blocks(self, tmp_path: Path) -> None:
        size = 5 * zipwrite._BLOCK + 17
        content = {"v/0": NOISE * (size // len(NOISE)) + NOISE[: size % len(NOISE)]}
        tree = make_tree(tmp_path / "tree", content)
        for target, base, source in (("1.zip", None, tree), ("2.zip", "1.zip", "")):
            if not source:
                (tmp_path / "empty").mkdir()
                source = str(tmp_path / "empty")
            old = None if base is None else ZipStore(str(tmp_path / base))
            tracemalloc.start()
            try:
                pack(source, str(tmp_path / target), "d", base=old, removed=nothing)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < 4 * zipwrite._BLOCK
            assert content_of(tmp_path / target) == content
        assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()

    def test_zip64(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the limits far lower: the fields are the same, the files much smaller."""
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100_000)
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 5)
        content = {"a": NOISE, "b": b"short", **{f"v/{n}": b"%d" % n for n in range(10)}}
        first = packed(tmp_path / "1", content)
        second = packed(tmp_path / "2", {}, first.read_bytes())
        assert first.read_bytes() == second.read_bytes()
        assert b"PK\x06\x06" in first.read_bytes()  # the end record of zip64
        with zipfile.ZipFile(first) as archive:
            assert archive.getinfo("d/a").extract_version == 45
        assert content_of(first) == content
        assert ZipStore(first).get_many(list(content)) == list(content.values())
        if shutil.which("7z"):
            subprocess.run(["7z", "t", str(first)], check=True, capture_output=True)

    @pytest.mark.slow
    def test_many_members(self, tmp_path: Path) -> None:
        base = make_zip({".zattrs": b"{}", **{f"v/{n}": b"" for n in range(66_000)}})
        path = packed(tmp_path, {".zgroup": b"{}"}, base)
        assert len(ZipStore(path).list("v")) == 66_000
        with zipfile.ZipFile(path) as archive:
            assert len(archive.namelist()) == 66_004


class TestBase:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("prefix", ["", "other/"])
    def test_members_are_taken_over_as_they_are(
        self, tmp_path: Path, method: str, prefix: str
    ) -> None:
        base = make_zip(DATASET, METHODS[method], prefix)
        new = {"v/0.0": b"new", "w/0": b"more"}
        path = packed(tmp_path, new, base, frozenset({"v/0.1", "w/0", "nope"}))
        expected = {**DATASET, **new}
        del expected["v/0.1"]
        assert content_of(path) == expected
        assert ZipStore(path).get_many(list(expected)) == list(expected.values())
        with zipfile.ZipFile(path) as archive:
            methods = {entry.filename: entry.compress_type for entry in archive.infolist()}
        assert methods["d/g1/50%/0"] == METHODS[method]
        assert methods["d/v/0.0"] == zipfile.ZIP_STORED

    def test_streamed_members(self, tmp_path: Path) -> None:
        """Sizes behind the data, as `zip -` and unseekable outputs write them."""

        class Pipe:
            def __init__(self) -> None:
                self.parts: list[bytes] = []

            def write(self, data: bytes) -> int:
                self.parts.append(bytes(data))
                return len(data)

            def flush(self) -> None:
                pass

        pipe: Any = Pipe()
        with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, data in DATASET.items():
                archive.writestr(key, data)
        path = packed(tmp_path, {}, b"".join(pipe.parts))
        assert content_of(path) == DATASET
        with zipfile.ZipFile(path) as archive:
            assert not any(entry.flag_bits & 0x8 for entry in archive.infolist())

    def test_from_a_server(self, tmp_path: Path) -> None:
        import fsspec

        base = make_zip({**DATASET, "big": NOISE}, zipfile.ZIP_DEFLATED, "x/")
        with Server({"/b.zip": base}) as server:
            source = open_source(fsspec.filesystem("https"), f"{server.url}/b.zip")
            assert isinstance(source, RemoteBytes)
            store = RemoteZipStore(source)
            tree = make_tree(tmp_path / "tree", {"v/0.0": b"new"})
            pack(tree, str(tmp_path / "d.zip"), "d", base=store, removed=nothing)
            store.close()
        assert content_of(tmp_path / "d.zip") == {**DATASET, "big": NOISE, "v/0.0": b"new"}

    @pytest.mark.parametrize(
        "damage",
        [{"offset": 3}, {"compressed": 10**9, "size": 10**9}, {"flags": 1}, {"method": 77}],
    )
    def test_damage_is_not_copied(self, tmp_path: Path, damage: dict[str, int]) -> None:
        base = patched(make_zip(DATASET), "v/0.0", **damage)
        with pytest.raises(StoreError, match=r"damaged|encrypted|method 77"):
            packed(tmp_path, {}, base)
        assert not (tmp_path / "new.zip").exists()

    def test_damaged_content_stays_known_as_damaged(self, tmp_path: Path) -> None:
        base = make_zip({".zgroup": b"{}", "v/0": NOISE[:1000]})
        base = base.replace(NOISE[:1000], bytes(1000))
        path = packed(tmp_path, {}, base)
        with pytest.raises(StoreError, match="CRC"):
            ZipStore(path).get("v/0")

    @given(
        tree=st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=50)),
        base=st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=50), min_size=1),
        removed=st.frozensets(st.sampled_from("abcdef")),
    )
    @settings(max_examples=examples(50))
    def test_what_is_packed(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        tree: dict[str, bytes],
        base: dict[str, bytes],
        removed: frozenset[str],
    ) -> None:
        tree = {f"g/{name}": data for name, data in tree.items()}
        base = {f"g/{name}": data for name, data in base.items()}
        removed = frozenset(f"g/{name}" for name in removed)
        folder = tmp_path_factory.mktemp("packed")
        path = packed(folder, tree, make_zip({".zgroup": b"{}", **base}), removed)
        kept = {key: data for key, data in base.items() if key not in removed}
        assert content_of(path) == {".zgroup": b"{}", **kept, **tree}


class TestErrors:
    def test_a_member_that_ends_early(self, tmp_path: Path) -> None:
        file = b"PK\x03\x04" + bytes(26) + bytes(60)

        class Short(ZipStore):
            archive = Archive("x.zip", {"v": Member(0, 1000, 100, 100, 0, 0, 0)})

            async def read(self, start: int, stop: int) -> bytes:
                return file[start:stop]

        tree, base = make_tree(tmp_path / "tree", DATASET), Short(file, "x.zip")
        with pytest.raises(StoreError, match="member 'v': is truncated"):
            pack(tree, str(tmp_path / "new.zip"), None, base=base, removed=nothing)

    def test_the_archive_must_not_exist(self, tmp_path: Path) -> None:
        (tmp_path / "new.zip").write_bytes(b"precious")
        with pytest.raises(StoreError, match=r"new\.zip: cannot be written: File exists"):
            packed(tmp_path, DATASET)
        assert (tmp_path / "new.zip").read_bytes() == b"precious"

    def test_full_disk(self, tmp_path: Path) -> None:
        tree = make_tree(tmp_path / "tree", {"v/0": NOISE, "v/1": NOISE * 6, "v/2": NOISE})
        with tiny_disk(tmp_path / "disk") as disk:
            with pytest.raises(StoreError, match=r"d\.zip: cannot be written: No space left"):
                pack(tree, str(disk / "d.zip"), "d", base=None, removed=nothing)
            assert os.listdir(disk) == []

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        tree = make_tree(tmp_path / "tree", DATASET)
        (tmp_path / "tree/v/gone").symlink_to("nowhere")
        with pytest.raises(StoreError, match="v/gone: cannot be read: No such file"):
            pack(tree, str(tmp_path / "d.zip"), "d", base=None, removed=nothing)
        assert not (tmp_path / "d.zip").exists()

    def test_a_file_that_becomes_shorter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its checksum is found first, then it is copied: what is lost meanwhile is an error."""
        tree = make_tree(tmp_path / "tree", {"v/0": NOISE[:1000]})
        checksum = zlib.crc32

        def cut(data: bytes, value: int = 0) -> int:
            os.truncate(tmp_path / "tree/v/0", 250)
            return checksum(data, value)

        monkeypatch.setattr(zipwrite, "_BLOCK", 100)
        monkeypatch.setattr(zlib, "crc32", cut)
        with pytest.raises(StoreError, match="v/0: has become shorter while it was packed"):
            pack(tree, str(tmp_path / "d.zip"), "d", base=None, removed=nothing)
        assert not (tmp_path / "d.zip").exists()

    def test_everything_may_be_at_the_top(self, tmp_path: Path) -> None:
        """There readers of Zarr look."""
        tree = make_tree(tmp_path / "tree", DATASET)
        pack(tree, str(tmp_path / "d.zip"), None, base=None, removed=nothing)
        with zipfile.ZipFile(tmp_path / "d.zip") as archive:
            files = [entry for entry in archive.namelist() if not entry.endswith("/")]
        assert sorted(files) == sorted(DATASET)

    def test_names_that_an_archive_cannot_hold(self, tmp_path: Path) -> None:
        tree = make_tree(tmp_path / "tree", {})
        Path(tree, os.fsdecode(b"\xff")).write_bytes(b"")
        with pytest.raises(StoreError, match="cannot be written"):
            pack(tree, str(tmp_path / "d.zip"), "d", base=None, removed=nothing)
        assert not (tmp_path / "d.zip").exists()
        for name in ("", "..", "a/b", "a\0b"):
            with pytest.raises(StoreError, match="cannot be the name of a directory"):
                pack(tree, str(tmp_path / "d.zip"), name, base=None, removed=nothing)

    def test_an_interrupted_pack_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            packed(tmp_path, DATASET)
        assert not (tmp_path / "new.zip").exists()


class TestOthersReadIt:
    def test_7zip_and_unzip(self, tmp_path: Path) -> None:
        base = make_zip(DATASET, zipfile.ZIP_DEFLATED)
        path = packed(tmp_path, {"v/0.0": b"new", "tempé/0": b"x"}, base)
        tried = 0
        for command in (["7z", "t"], ["unzip", "-tq"], ["zip", "-T"]):
            if shutil.which(command[0]):
                subprocess.run([*command, str(path)], check=True, capture_output=True)
                tried += 1
        if not tried:
            pytest.skip("neither 7z nor unzip nor zip is here")

    def test_netcdf_c(self, tmp_path: Path) -> None:
        """By way of the unpacked tree: neither wheels nor Debian's library have its zip store."""
        values = np.arange(12.0).reshape(3, 4)
        tree = tmp_path / "tree"
        with netCDF4.Dataset(f"file://{tree}#mode=nczarr,file", "w") as dataset:
            dataset.createDimension("y", 3)
            dataset.createDimension("x", 4)
            dataset.createVariable("v", "f8", ("y", "x"), chunksizes=(2, 2))[:] = values
        path = tmp_path / "data.zip"
        pack(str(tree), str(path), "data", base=None, removed=nothing)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "out")
        with netCDF4.Dataset(f"file://{tmp_path}/out/data#mode=nczarr,file") as dataset:
            np.testing.assert_array_equal(dataset["v"][:], values)
        store = ZipStore(path)
        assert store.get("v/0.0") == (tree / "v/0.0").read_bytes()

    def test_zarr_python_reads_it_below_its_directory(self, tmp_path: Path) -> None:
        values = np.arange(10)
        array = zarr.create_array(str(tmp_path / "tree/v"), data=values, chunks=(4,), zarr_format=2)
        assert array.shape == (10,)
        path = tmp_path / "data.zip"
        pack(str(tmp_path / "tree"), str(path), "data", base=None, removed=nothing)
        with zarr.storage.ZipStore(path, mode="r") as store:
            np.testing.assert_array_equal(
                zarr.open_array(store, path="data/v", mode="r")[:], values
            )


def test_the_order_of_a_tree_does_not_matter(tmp_path: Path) -> None:
    keys = [f"g{n % 7}/v{n % 3}/{n}" for n in range(200)]
    archives = []
    for seed in range(3):
        random.Random(seed).shuffle(keys)
        archives.append(packed(tmp_path / str(seed), {key: key.encode() for key in keys}))
    assert len({path.read_bytes() for path in archives}) == 1
    (end,) = struct.unpack_from("<H", archives[0].read_bytes(), archives[0].stat().st_size - 12)
    assert end == 200 + 7 + 21 + 1  # entries, as the end record counts them
