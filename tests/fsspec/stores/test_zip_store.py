"""Zip archives, local and remote: every method, layout and kind of damage."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec import (
    DatasetNotFoundError,
    RemoteZipStore,
    StoreError,
    ZipStore,
    open_keystore,
)
from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Limits, RemoteBytes
from nczarr_fsspec.stores import zip as zip_module
from nczarr_fsspec.stores.zipformat import (
    TAIL_BYTES,
    Archive,
    Member,
    advance,
    answer,
    read_archive,
)
from nczarr_fsspec.transport import open_transport
from nczarr_fsspec.transport.request import Extent
from tests.support.builders.archives import METHODS, NOISE, make_zip, patched
from tests.support.corpora.samples import DATA as VECTORS
from tests.support.examples import examples
from tests.support.faults.locks import lock_is_held, watch_locks
from tests.support.servers.httpserver import Server

MEMBERS = {
    ".zgroup": b'{"zarr_format": 2}',
    "v/.zarray": b"{}",
    "v/0": bytes(1000) + bytes(range(256)) * 40,
    "v/1": NOISE[:5000],
    "v/2": b"",
}


def need_7zip_and_deflate64() -> str:
    path = shutil.which("7z")
    missing = [] if path else ["7z (Debian: 7zip)"]
    if find_spec("zipfile_deflate64") is None:
        missing.append("the package zipfile-deflate64")
    if missing:
        reason = f"this machine lacks {' and '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    assert path is not None
    return path


def remote(server: Server, path: str = "/d.zip") -> RemoteZipStore:
    store = open_keystore(server.url + path)
    assert isinstance(store, RemoteZipStore)
    return store


class TestMembers:
    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    @pytest.mark.parametrize("prefix", ["", "d/"])
    def test_every_method_and_layout(self, method: int, prefix: str) -> None:
        store = ZipStore(make_zip(MEMBERS, method, prefix))
        assert store.get_many(list(MEMBERS)) == list(MEMBERS.values())
        assert store.list("") == {".zgroup", "v"}
        assert store.list("v") == {".zarray", "0", "1", "2"}

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    @settings(max_examples=examples(30), deadline=None)
    @given(st.none() | st.integers(0, 12000), st.none() | st.integers(0, 12000))
    def test_ranges_are_slices(self, method: int, start: int | None, stop: int | None) -> None:
        store = ZipStore(make_zip(MEMBERS, method))
        assert store.get("v/0", slice(start, stop)) == MEMBERS["v/0"][start:stop]

    def test_range_of_a_stored_member_reads_only_that(self) -> None:
        class Counting(io.BytesIO):
            moved = 0

            def read(self, size: int | None = -1, /) -> bytes:
                data = super().read(size)
                Counting.moved += len(data)
                return data

        store = ZipStore(Counting(make_zip({".zgroup": b"{}", "v/0": NOISE})))
        store.list("")
        Counting.moved = 0
        assert store.get("v/0", slice(150_000, 150_100)) == NOISE[150_000:150_100]
        assert Counting.moved == 30 + 100

    @pytest.mark.parametrize("size", [100, 300_000])
    def test_deflate64_as_7zip_makes_it(self, tmp_path: Path, size: int) -> None:
        program = need_7zip_and_deflate64()
        repeats = NOISE[:50_000] * (size // 50_000) or NOISE[:size]  # beyond deflate's 32 KiB
        tree = tmp_path / "d" / "v"
        tree.mkdir(parents=True)
        (tree.parent / ".zgroup").write_bytes(b"{}")
        (tree / "0").write_bytes(repeats)
        command = [program, "a", "-tzip", "-mm=Deflate64", "d.zip", "d"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        path = tmp_path / "d.zip"
        with zipfile.ZipFile(path) as archive:
            method = archive.getinfo("d/v/0").compress_type
        assert method == (9 if size > 100 else 0)
        store = ZipStore(path)
        assert store.get("v/0") == repeats
        assert store.get("v/0", slice(5, 60)) == repeats[5:60]
        with Server({"/d.zip": path.read_bytes()}) as server:
            assert remote(server).get_many(["v/0"]) == [repeats]
        archive_bytes = patched(path.read_bytes(), "d/v/0", size=50)
        if method == 9:
            with pytest.raises(StoreError, match="inflates to more than the stated 50 bytes"):
                ZipStore(archive_bytes).get("v/0")

    def test_what_netcdf_c_wrote(self) -> None:
        paths = sorted(VECTORS.glob("*.dataset.zip"))
        assert len(paths) >= 10
        for path in paths:
            store = ZipStore(path)
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                prefix = names[0].partition("/")[0] + "/"
                for name in names:
                    assert store.get(name.removeprefix(prefix)) == archive.read(name)
            assert ".zgroup" in store.list("")
            store.close()


class TestDirectory:
    def test_zip64_fields(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in MEMBERS.items():
                with archive.open(name, "w", force_zip64=True) as member:
                    member.write(content)
        assert ZipStore(buffer.getvalue()).get_many(list(MEMBERS)) == list(MEMBERS.values())

    def test_zip64_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # as if these were more than 65535 members and 4 GiB
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
        archive = make_zip(MEMBERS, zipfile.ZIP_DEFLATED)
        assert b"PK\x06\x06" in archive
        assert b"PK\x06\x07" in archive
        for content in (archive, b"in front" + archive):
            assert ZipStore(content).get_many(list(MEMBERS)) == list(MEMBERS.values())

    @pytest.mark.slow
    def test_more_members_than_the_old_format_counts(self) -> None:
        archive = make_zip({".zgroup": b"{}", **{f"v/{i}": b"%d" % i for i in range(66_000)}})
        store = ZipStore(archive)
        assert len(store.list("v")) == 66_000
        assert store.get_many(["v/0", "v/65999"]) == [b"0", b"65999"]

    @pytest.mark.parametrize("comment", [b"", b"hello", b"PK\x05\x06 is no end", b"c" * 65535])
    @pytest.mark.parametrize("front", [b"", b"#!/bin/sh\nexit\n" + bytes(70_000)])
    def test_comment_and_prefix(self, comment: bytes, front: bytes) -> None:
        buffer = io.BytesIO(make_zip(MEMBERS))
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.comment = comment
        content = front + buffer.getvalue()
        if comment.startswith(b"PK"):  # the standard library looks for the last signature
            with pytest.raises(StoreError):
                ZipStore(content).list("")
            return
        assert ZipStore(content).get_many(list(MEMBERS)) == list(MEMBERS.values())
        with Server({"/d.zip": content}) as server:
            assert remote(server).get_many(list(MEMBERS)) == list(MEMBERS.values())

    def test_leading_slashes(self) -> None:
        for prefix in ("/", "/d/", "d/", "./", "./d/"):
            assert ZipStore(make_zip(MEMBERS, prefix=prefix)).get("v/1") == MEMBERS["v/1"]

    @pytest.mark.parametrize("prefix", ["", "d\\"])
    @pytest.mark.parametrize("system", [0, 3])
    def test_backslashes_of_windows(self, system: int, prefix: str) -> None:
        """As .NET wrote them before 4.6.1; with those of other systems they belong to a name."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key, content in {**MEMBERS, "..\\evil": b""}.items():
                entry = zipfile.ZipInfo(prefix + key.replace("/", "\\"))
                entry.create_system = system
                archive.writestr(entry, content)
        store = ZipStore(buffer.getvalue())
        if system == 0:
            assert store.list("") == {".zgroup", "v"}
            assert store.get_many(list(MEMBERS)) == list(MEMBERS.values())
        elif not prefix:
            assert store.list("") == {key.replace("/", "\\") for key in MEMBERS} | {"..\\evil"}

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_of_equal_names_the_last_counts(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in [(".zgroup", b"{}"), ("v/0", b"old"), ("v/0", b"newer")]:
                archive.writestr(name, content)
            archive.writestr("/v/0", b"newest")
        store = ZipStore(buffer.getvalue())
        assert store.get("v/0") == b"newest"
        assert store.list("v") == {"0"}

    @pytest.mark.parametrize(
        "name", ["../evil", "v/../../evil", "v//0", "/../evil", "./v", "v/.", "..\\evil", "C:\\x"]
    )
    def test_hostile_names_are_not_seen(self, name: str) -> None:
        store = ZipStore(make_zip({**MEMBERS, name: b"evil"}))
        assert store.list("") - {"..\\evil", "C:\\x"} == {".zgroup", "v"}
        assert store.list("v") == {".zarray", "0", "1", "2"}
        result = store.get_many([name])[0]
        assert result == b"evil" if "\\" in name else isinstance(result, StoreError)

    def test_something_beside_the_dataset(self) -> None:
        beside = {"README.txt": b"", "__MACOSX/d/._.zgroup": b""}
        members = {f"d/{name}": content for name, content in MEMBERS.items()} | beside
        store = ZipStore(make_zip(members))
        assert store.list("") == {".zgroup", "v"}
        assert store.get("v/1") == MEMBERS["v/1"]

    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            (["a/x", "b/y"], r"2 entries at its top \(a, b\)"),
            (["a/.zgroup", "b/.zgroup"], "one dataset"),
            ([f"{i}/x" for i in range(9)], r"9 entries at its top \(0, 1, 2, 3, 4, \.\.\.\)"),
            ([], "is empty"),
        ],
    )
    def test_no_dataset_or_several(self, names: list[str], reason: str) -> None:
        with pytest.raises(DatasetNotFoundError, match=reason):
            ZipStore(make_zip(dict.fromkeys(names, b""))).list("")

    def test_one_directory_without_zarr_keys_is_the_dataset(self) -> None:
        # netCDF-C takes the first segment whatever is below; root metadata may be missing
        assert ZipStore(make_zip({"d/v/.zarray": b"{}"})).list("") == {"v"}

    @pytest.mark.parametrize(
        ("inner", "whose"),
        [
            ({".zgroup": b"{}"}, b"top"),  # a group of the dataset at the top
            ({".zgroup": b"{}", ".zattrs": b'{"a": 1}'}, b"top"),
            ({".zgroup": b"{}", ".nczarr": b"{}"}, b"d"),
            ({".zgroup": b"{}", ".zattrs": b'{"_nczarr_superblock": {}}'}, b"d"),
            ({".zgroup": b'{"_NCZARR_SUPERBLOCK": {}}'}, b"d"),
            ({"v": b""}, b"top"),
        ],
    )
    def test_netcdf_c_reads_what_is_in_the_first_directory(
        self, inner: dict[str, bytes], whose: bytes
    ) -> None:
        """If that is a dataset of NCZarr, it is the one, whatever is at the top."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {"d/whose": b"d", "whose": b"top", ".zgroup": b"{}"}.items():
                archive.writestr(name, data)
            for name, data in inner.items():
                archive.writestr(f"d/{name}", data)
        assert ZipStore(file.getvalue()).get("whose") == whose
        with Server({"/d.zip": file.getvalue()}) as server:
            store = remote(server)
            assert store.get_many(["whose"]) == [whose]
            store.close()


class TestDamage:
    def test_a_directory_that_would_take_all_memory(self) -> None:
        """As a server may have it that says that the archive has a terabyte."""
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 0xF000_0000, 0, 0)
        plan = read_archive("d.zip", 1 << 40, bytes(TAIL_BYTES) + end)
        with pytest.raises(StoreError, match=r"d\.zip: has a directory of 4026531\d{3} bytes"):
            advance(plan)

    @pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all" * 10, bytes(70_000)])
    def test_not_a_zip(self, content: bytes) -> None:
        with pytest.raises(StoreError, match="is not a readable zip archive"):
            ZipStore(content).list("")

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_truncated_anywhere(self, method: int) -> None:
        archive = make_zip(MEMBERS, method)
        for length in [*range(0, len(archive) - 1, 97), len(archive) - 1]:
            results = ZipStore(archive[:length]).get_many(list(MEMBERS))
            assert all(isinstance(result, StoreError) for result in results), length

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_any_damaged_byte_is_an_error_or_harmless(self, method: int) -> None:
        members = {".zgroup": b'{"zarr_format": 2}', "v/0": bytes(40) + NOISE[:20]}
        archive = make_zip(members, method)
        wrong = 0
        for at in range(len(archive)):
            for flip in (0x01, 0x80, 0xFF):
                damaged = bytearray(archive)
                damaged[at] ^= flip
                for result, expected in zip(
                    ZipStore(bytes(damaged)).get_many(list(members)), members.values(), strict=True
                ):
                    # None: the name is damaged
                    assert result is None or result == expected or isinstance(result, StoreError)
                    wrong += isinstance(result, StoreError)
        assert wrong > len(archive) // 2

    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def test_random_damage_to_the_directory(self, data: st.DataObject) -> None:
        archive = make_zip({".zgroup": b"{}", "v/0": NOISE[:100]}, zipfile.ZIP_DEFLATED)
        start = archive.index(b"PK\x01\x02")
        damaged = bytearray(archive)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(start, len(archive) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
        for result in ZipStore(bytes(damaged)).get_many([".zgroup", "v/0"]):
            assert result in (None, b"{}", NOISE[:100]) or isinstance(result, StoreError)

    @pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
    def test_a_bomb_stops_at_the_stated_size(self, method: int) -> None:
        archive = make_zip({".zgroup": b"{}", "v/0": bytes(50_000_000)}, method)
        size = struct.unpack_from("<I", archive, archive.rindex(b"PK\x01\x02") + 20)[0]
        store = ZipStore(patched(archive, "v/0", size=1000))
        tracemalloc.start()
        with pytest.raises(StoreError, match=r"stated 1000 bytes|states two sizes"):
            store.get("v/0")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000 + (size if method else 0)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"flags": 1}, "is encrypted"),
            ({"flags": 0x20}, "is encrypted or a patch"),
            ({"method": 93}, "compression method 93"),
            ({"method": 1}, "compression method 1,"),
            ({"crc": 5}, "CRC-32"),
            ({"size": 4}, "inflates to more than the stated 4 bytes"),
            ({"size": 4_000_000}, "not the stated 4000000 bytes"),
            ({"size": 4_000_000_000}, "has more than 16777216 bytes"),
            ({"compressed": 4_000_000_000}, "damaged archive"),
            ({"offset": 3}, "damaged archive"),
            ({"offset": 4_000_000_000}, "damaged archive"),
        ],
    )
    def test_one_bad_member_is_named_and_leaves_the_others(
        self, fields: dict[str, int], reason: str
    ) -> None:
        archive = patched(make_zip(MEMBERS, zipfile.ZIP_DEFLATED), "v/0", **fields)
        for store in (ZipStore(archive), _served(archive)):
            (bad, good) = store.get_many(["v/0", "v/1"])
            assert isinstance(bad, StoreError)
            assert reason in bad.reason
            assert bad.object.endswith(": member 'v/0'")
            assert good == MEMBERS["v/1"]

    @pytest.mark.parametrize("size", [2**63, 2**64 - 1])
    def test_a_size_that_no_machine_has(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
        archive = make_zip({".zgroup": b"{}", "v/0": NOISE[:200]}, zipfile.ZIP_DEFLATED)
        stated = struct.pack("<Q", 200)
        at = archive.rindex(stated)
        assert at > archive.index(b"PK\x01\x02")
        store = ZipStore(archive[:at] + struct.pack("<Q", size) + archive[at + 8 :])
        with pytest.raises(StoreError, match=f"not the stated {size} bytes"):
            store.get("v/0")

    def test_bad_compressed_data(self) -> None:
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            archive = make_zip(MEMBERS, method)
            at = archive.index(b"v/0") + 3
            damaged = archive[:at] + b"\xff" * 20 + archive[at + 20 :]
            with pytest.raises(StoreError, match="member 'v/0': cannot be decompressed"):
                ZipStore(damaged).get("v/0")

    def test_deflate64_without_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zipfile_deflate64", None)
        archive = patched(make_zip(MEMBERS, zipfile.ZIP_DEFLATED), "v/0", method=9)
        with pytest.raises(StoreError, match="pip install"):
            ZipStore(archive).get("v/0")

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetNotFoundError):
            ZipStore(tmp_path / "nope.zip").list("")
        with pytest.raises(StoreError):
            ZipStore(tmp_path).list("")


def _served(archive: bytes) -> RemoteZipStore:
    """A remote archive without a network: every byte of it goes through the asynchronous code."""
    return RemoteZipStore(_OneFile(archive))


class _OneFile(RemoteBytes):
    """An archive behind an event loop; notes which ranges were read."""

    url, validator, head = "test://d.zip", "", b""
    limits = Limits()

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)
        self.ranges: list[Extent] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = fsspec.asyn.get_loop()
        return loop

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        await asyncio.sleep(0)
        self.ranges += extents
        return [self.content[start:stop] for start, stop in extents]


def open_files() -> Iterator[os.stat_result]:
    """What this process has open."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the list itself
            yield os.fstat(int(number))


class TestLocalFile:
    def test_pickle_reopens(self, tmp_path: Path) -> None:
        path = tmp_path / "d.zip"
        path.write_bytes(make_zip(MEMBERS))
        store = ZipStore(path)
        store.get("v/0")
        again = pickle.loads(pickle.dumps(store))
        assert (again.url, again.get("v/0")) == (str(path), MEMBERS["v/0"])

    def test_a_copy_does_not_read_what_has_taken_its_place(self, tmp_path: Path) -> None:
        """A worker would read other chunks by the metadata that were read before."""
        path, other = tmp_path / "d.zip", tmp_path / "other.zip"
        path.write_bytes(make_zip(MEMBERS))
        store = ZipStore(path)
        store.get("v/0")
        pickled = pickle.dumps(store)
        other.write_bytes(make_zip({**MEMBERS, "v/0": b"other"}))
        other.replace(path)
        assert store.get("v/0") == MEMBERS["v/0"]
        copies = pickle.loads(pickled), pickle.loads(pickle.dumps(pickle.loads(pickled)))
        for copy in (*copies, pickle.loads(pickle.dumps(store))):
            with pytest.raises(StoreError, match=r"d\.zip: the file has changed"):
                copy.get("v/0")

    def test_close_releases_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "d.zip"
        path.write_bytes(make_zip(MEMBERS))

        def is_open() -> bool:  # (other threads of the process open and close files, too)
            return any(os.path.samestat(path.stat(), one) for one in open_files())

        store = ZipStore(path)
        store.get("v/0")
        assert is_open()
        store.close()
        assert not is_open()
        assert store.get("v/0") == MEMBERS["v/0"]
        assert is_open()
        store.close()

    def test_after_close_what_has_taken_its_place_is_refused(self, tmp_path: Path) -> None:
        """A dataset would read other chunks by the metadata that were read before."""
        path = tmp_path / "d.zip"
        path.write_bytes(make_zip(MEMBERS))
        store = ZipStore(path)
        store.get("v/0")
        store.close()
        path.write_bytes(make_zip({".zgroup": b"{}", "v/0": b"other"}, prefix="d/"))
        with pytest.raises(StoreError, match=r"d\.zip: the file has changed"):
            store.get("v/0")

    def test_one_thread_reads_the_directory_for_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "d.zip"
        path.write_bytes(make_zip(MEMBERS))
        watch_locks(monkeypatch)
        store = ZipStore(path)
        held: list[bool] = []

        def watched(*args: Any) -> Any:
            held.append(lock_is_held())
            return read_archive(*args)

        monkeypatch.setattr(zip_module, "read_archive", watched)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(store.get, ["v/1"] * 4)) == [MEMBERS["v/1"]] * 4
        assert held == [True]
        store.close()

    def test_closing_under_readers_is_harmless(self, tmp_path: Path) -> None:
        path = tmp_path / "d.zip"
        path.write_bytes(make_zip(MEMBERS, zipfile.ZIP_DEFLATED))
        store = ZipStore(path)
        stop = threading.Event()

        def close_all_the_time() -> None:
            while not stop.is_set():
                store.close()

        closer = threading.Thread(target=close_all_the_time)
        closer.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                results = list(pool.map(store.get, ["v/0", "v/1"] * 200))
        finally:
            stop.set()
            closer.join()
        assert results == [MEMBERS["v/0"], MEMBERS["v/1"]] * 200


class TestRemote:
    MANY: ClassVar = {
        ".zgroup": b"{}",
        **{f"v/{i}": NOISE[i * 1000 : i * 1000 + 5000] for i in range(195)},
    }

    def test_only_what_is_needed_moves(self) -> None:
        archive = make_zip(self.MANY, prefix="d/")
        assert len(archive) > 900_000
        with Server({"/d.zip": archive}) as server:
            store = remote(server)
            assert store.list_many(["v"])[0] == {str(i) for i in range(195)}
            assert [request.range for request in server.requests] == [f"bytes=-{TAIL_BYTES}"]
            assert store.get_many(["v/3", "v/77"]) == [self.MANY["v/3"], self.MANY["v/77"]]
            assert len(server.requests) == 3  # one for the directory, one for each member
            assert server.bytes_sent < TAIL_BYTES + 2 * 5100
            store.close()

    def test_a_directory_longer_than_the_tail_takes_one_request_more(self) -> None:
        members = {".zgroup": b"{}", **{f"v/{'x' * 200}{i}": b"%d" % i for i in range(1000)}}
        archive = make_zip(members)
        with Server({"/d.zip": archive}) as server:
            store = remote(server)
            assert len(server.requests) == 2
            assert store.get_many(list(members)[:3]) == list(members.values())[:3]
            store.close()

    def test_a_small_archive_is_one_request(self) -> None:
        with Server({"/d.zip": make_zip(MEMBERS)}) as server:
            store = remote(server)
            assert store.get_many(list(MEMBERS)) == list(MEMBERS.values())
            assert len(server.requests) == 1
            store.close()

    def test_a_piece_of_a_stored_member(self) -> None:
        archive = make_zip({".zgroup": b"{}", "v/0": NOISE, "w/0": bytes(TAIL_BYTES)})
        with Server({"/d.zip": archive}) as server:
            store = remote(server)
            got = store.run(store.get("v/0", slice(1000, 1100)))
            assert got == NOISE[1000:1100]
            assert server.bytes_sent == TAIL_BYTES + 30 + 100
            store.close()

    def test_many_at_once_read_the_directory_once(self) -> None:
        files = _OneFile(make_zip(self.MANY))
        store = RemoteZipStore(files)
        assert store.get_many(list(self.MANY)) == list(self.MANY.values())
        assert sum(stop == files.size for _, stop in files.ranges) == 1

    def test_a_gap_is_not_read(self) -> None:
        archive = make_zip({".zgroup": b"{}", "v/0": b"x", "v/1": NOISE, "w": bytes(TAIL_BYTES)})
        # take v/1 out of the directory, as an archiver that deletes without packing
        buffer = io.BytesIO(archive)
        with zipfile.ZipFile(buffer, "a") as editor:
            editor.filelist = [info for info in editor.filelist if info.filename != "v/1"]
            editor.comment = b"changed"
        files = _OneFile(buffer.getvalue())
        store = RemoteZipStore(files)
        assert store.get_many(["v/0", "v/1"]) == [b"x", None]
        (member,) = [extent for extent in files.ranges if extent.stop < files.size]
        assert member[1] - member[0] < 70_000 < len(NOISE)

    @pytest.mark.parametrize("ranges", ["no-suffix", "no-suffix-501", "no-total"])
    def test_servers_without_suffix_ranges(self, ranges: str) -> None:
        archive = make_zip(self.MANY)
        with Server({"/d.zip": archive}, ranges=ranges) as server:
            store = remote(server)
            assert store.get_many(["v/3"]) == [self.MANY["v/3"]]
            if ranges == "no-total":  # the end of what? the size comes with another answer
                assert server.requests[2].range is None
                store.close()
                return
            # the test server's socket buffers take some of a body that nobody reads
            small = [request for request in server.requests if request.status == 206]
            assert [request.sent for request in small][:2] == [1, TAIL_BYTES]
            store.close()

    def test_a_server_without_ranges(self) -> None:
        """It is read once, and kept in memory if it is small enough, as any file is."""
        with Server({"/d.zip": make_zip(self.MANY)}, ranges="ignored") as server:
            with pytest.raises(StoreError, match=r"does not serve byte ranges.*simplecache::"):
                open_keystore(f"{server.url}/d.zip", {"max_whole": 100_000})
            before = len(server.requests)
            store = remote(server)
            assert store.get_many(list(self.MANY)) == list(self.MANY.values())
            assert len(server.requests) == before + 1
            store.close()
        with Server({"/d.zip": make_zip(MEMBERS)}, ranges="ignored") as server:  # all is tail
            store = remote(server)
            assert store.get_many(list(MEMBERS)) == list(MEMBERS.values())
            store.close()

    def test_the_way_around_named_in_the_message_works(self) -> None:
        with Server({"/d.zip": make_zip(self.MANY)}, ranges="ignored") as server:
            store = open_keystore(f"simplecache::{server.url}/d.zip")
            assert store.get_many(["v/3", "v/4"]) == [self.MANY["v/3"], self.MANY["v/4"]]
            store.close()

    def test_missing_empty_and_other_files(self) -> None:
        two = make_zip({"a/x": b"", "b/x": b""})
        files = {"/empty.zip": b"", "/text.zip": b"hello" * 100, "/two.zip": two}
        with Server(files) as server:
            with pytest.raises(DatasetNotFoundError, match="no such file"):
                remote(server, "/nope.zip")
            with pytest.raises(StoreError, match="not a readable zip"):
                remote(server, "/empty.zip")
            with pytest.raises(StoreError, match="not a readable zip"):
                remote(server, "/text.zip")
            with pytest.raises(DatasetNotFoundError, match="2 entries"):
                remote(server, "/two.zip")

    def test_a_failed_opening_is_tried_again(self) -> None:
        archive = make_zip(MEMBERS)
        with Server({"/d.zip": archive}) as server:
            store = remote(server)
            store.close()
            server.missing_status = 403
            server.files.clear()
            (result,) = store.get_many(["v/0"])
            assert isinstance(result, StoreError)
            assert "status 403" in result.reason
            server.files["/d.zip"] = archive
            assert store.get_many(["v/0"]) == [MEMBERS["v/0"]]
            store.close()

    def test_an_archive_that_changes_is_noticed(self) -> None:
        with Server({"/d.zip": make_zip(self.MANY)}) as server:
            store = remote(server)
            changed = {name: content[::-1] for name, content in self.MANY.items()}
            server.files["/d.zip"] = make_zip(changed)
            (result,) = store.get_many(["v/0"])
            assert isinstance(result, StoreError)
            assert "CRC-32" in result.reason
            store.close()

    def test_chosen_by_mode_or_name(self) -> None:
        archive = make_zip(MEMBERS)
        with Server({"/d": archive, "/d.zip": archive, "/t.zip/.zgroup": b"{}"}) as server:
            for target in ("/d#mode=nczarr,zip", "/d.zip", "/d.zip?token=hunter22", "/d.ZIP"):
                server.files["/d.ZIP"] = archive
                store = open_keystore(server.url + target)
                assert isinstance(store, RemoteZipStore)
                assert "hunter22" not in store.url
                assert store.get_many(["v/1"]) == [MEMBERS["v/1"]]
                store.close()
            tree = open_keystore(f"{server.url}/t.zip#mode=nczarr,file")
            assert tree.get_many([".zgroup"]) == [b"{}"]
            tree.close()

    @pytest.mark.filterwarnings("ignore:MemoryFileSystem of fsspec states neither")
    def test_any_filesystem(self) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe_file("/any/d.zip", make_zip(self.MANY))
        transport = open_transport(fs)
        source = RemoteFileBytes(transport, "/any/d.zip", "any", 0)
        source.run(source.begin(None, TAIL_BYTES))
        store = RemoteZipStore(source)
        assert store.get_many(["v/3", "nope"]) == [self.MANY["v/3"], None]
        fs.rm("/any", recursive=True)

    @pytest.mark.slow
    def test_survives_faults_of_the_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from nczarr_fsspec.transport import policy as _policy

        monkeypatch.setattr(_policy, "FIRST_WAIT", 0.0)
        for fault in ("cut_every", "unavailable_every", "reset_every"):
            archive = make_zip(self.MANY, zipfile.ZIP_DEFLATED)
            with Server({"/d.zip": archive}, **{fault: 3}) as server:  # type: ignore[arg-type]
                store = remote(server)
                assert store.get_many(list(self.MANY)) == list(self.MANY.values())
                store.close()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("part", [ALL, slice(0, 40)])
def test_a_member_of_which_not_all_comes(part: slice, whole: bool) -> None:
    """A part has no checksum: only its length tells."""
    file = (b"PK\x03\x04" + bytes(26) + bytes(100))[:60]
    member = Member(0, 130, 100, 100, zlib.crc32(bytes(100)), 0, 0)
    archive = Archive("x.zip", {"v": member})
    with pytest.raises(StoreError, match=r"member 'v': is truncated: 30 bytes where \d+ are"):
        answer(archive.read("v", part, None, whole=whole), lambda start, stop: file[start:stop])
