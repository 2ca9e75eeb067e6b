"""Kerchunk references as JSON: what a key is, what is refused, and what is bounded."""

from __future__ import annotations

import base64
import gc
import json
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    StoreError,
    TooLargeError,
    UnsupportedError,
)
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_fsspec.stores import references as references_module
from nczarr_fsspec.stores.referenceformat import (
    JSONReferences,
    Part,
)
from nczarr_fsspec.stores.references import LocalReferences
from nczarr_xarray.dataset.open import are_references, open_references
from tests.support.examples import examples
from tests.support.faults.disks import open_files
from tests.support.faults.locks import watch_cache
from tests.support.servers.httpserver import Request, Server

DATA = bytes(range(256)) * 64


def parse(document: object) -> JSONReferences:
    return JSONReferences.parse(json.dumps(document).encode(), "r.json")


def local(tmp_path: Path, refs: dict[str, Any], **options: Any) -> KeyStore:
    """References in a file, beside ``data``."""
    (tmp_path / "data").write_bytes(DATA)
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"version": 1, "refs": {".zgroup": "{}", **refs}}))
    return open_references(LocalFileBytes(path), AddressPolicy.of(path, **options))


# ---- format


def test_version_1() -> None:
    refs = parse(
        {
            "version": 1,
            "templates": {"u": "server.domain/path"},
            "gen": [],
            "refs": {
                "key0": "data",
                "key1": ["http://target_url", 10000, 100],
                "key2": ["http://{{u}}", 10000, 100],
                "key3": ["http://{{ u }}/{{u}}", 10000, 100],
                "key4": ["http://target_url"],
                "key5": "base64:" + base64.b64encode(b"\0\xff").decode(),
                "key6": {"zarr_format": 2},
            },
        }
    )
    assert refs.find("key0") == b"data"
    assert refs.find("key1") == Part("http://target_url", 10000, 10100)
    assert refs.find("key2") == Part("http://server.domain/path", 10000, 10100)
    assert refs.find("key3") == Part("http://server.domain/path/server.domain/path", 10000, 10100)
    assert refs.find("key4") == Part("http://target_url")
    assert refs.find("key5") == b"\0\xff"
    assert refs.find("key6") == b'{"zarr_format": 2}'


def test_version_0() -> None:
    refs = parse({".zgroup": "{}", "v/0": ["f", 1, 2], "v/1": "{{not a template}}"})
    assert refs.find("v/0") == Part("f", 1, 3)
    assert refs.find("v/1") == b"{{not a template}}"


def test_values_that_a_caller_has_and_json_has_not() -> None:
    refs = JSONReferences.of(
        {
            "refs": {
                "v/0": ("f", np.int64(1), np.uint8(2)),
                "v/1": bytearray(b"x"),
                "v/2": ["f", np.True_, 2],
            }
        },
        "references",
    )
    assert refs.find("v/0") == Part("f", 1, 3)
    assert refs.find("v/1") == b"x"
    with pytest.raises(StoreError, match="which is no reference"):
        refs.find("v/2")


def test_the_chunk_of_a_scalar_as_virtualizarr_names_it() -> None:
    refs = parse({".zgroup": "{}", "v/.zarray": "{}", "v/": ["f", 1, 2], "w/": "a", "w/0": "b"})
    assert refs.find("v/0") == Part("f", 1, 3)
    assert refs.find("v/1") is None
    assert refs.find("w/0") == b"b"
    assert refs.names("v") == {".zarray"}


def test_names_are_those_directly_below() -> None:
    refs = parse(
        {".zgroup": "{}", "v/.zarray": "{}", "v/0.0": "", "v-w": "", "v/g/x": "", "v0": ""}
    )
    assert refs.names("") == {".zgroup", "v", "v-w", "v0"}
    assert refs.names("v") == {".zarray", "0.0", "g"}
    assert refs.names("v/g") == {"x"}
    assert refs.names("w") == set()


@given(st.sets(st.text(alphabet="a/0.-", min_size=1, max_size=6), max_size=20))
def test_names_are_those_of_all_keys(keys: set[str]) -> None:
    refs = parse({"version": 1, "refs": dict.fromkeys(keys, "")})
    for prefix in ("", "a", "a/a", "0"):
        begin = f"{prefix}/" if prefix else ""
        below = {key[len(begin) :].partition("/")[0] for key in keys if key.startswith(begin)}
        assert refs.names(prefix) == below - {""}


@pytest.mark.parametrize(
    "value",
    [
        [],
        [1],
        [""],
        [None, 0, 1],
        ["u", 1],
        ["u", 0, 1, 2],
        ["u", -1, 5],
        ["u", 0, -5],
        ["u", 0.5, 1],
        ["u", "0", "1"],
        ["u", True, 1],
        ["u", 1 << 63, 1],
        ["u", 1, (1 << 63) - 1],
        5,
        True,
        [["u"], 0, 1],
    ],
)
def test_a_reference_that_makes_no_sense_is_an_error_that_names_the_key(value: object) -> None:
    refs = parse({"version": 1, "refs": {"v/0.1": value}})
    with pytest.raises(StoreError, match=re.escape("r.json: reference 'v/0.1': is ")):
        refs.find("v/0.1")


@pytest.mark.parametrize("text", ["base64:%%%", "base64:A", "\ud800"])
def test_damaged_bytes_are_an_error_that_names_the_key(text: str) -> None:
    refs = parse({"version": 1, "refs": {"k": text}})
    with pytest.raises(StoreError, match="reference 'k': is damaged"):
        refs.find("k")


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        ([], FormatError, "holds no kerchunk references"),
        ({"a": "b"}, FormatError, "holds no kerchunk references"),
        ({"version": 2, "refs": {}}, UnsupportedError, "version 2"),
        ({"version": True, "refs": {}}, UnsupportedError, "version True"),
        ({"version": 1, "refs": []}, FormatError, "'refs'"),
        ({"version": 1, "refs": {}, "gen": [{}]}, UnsupportedError, "'gen'"),
        ({"version": 1, "refs": {}, "templates": {"a": 1}}, FormatError, "'templates'"),
    ],
)
def test_what_are_no_references_is_refused(
    document: object, error: type[NCZarrError], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse(document)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a":' * 100_000, b"[" * 100_000])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError, match="is no JSON"):
        JSONReferences.parse(text, "r.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda some: (
        st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"version": st.just(1) | JSON},
        optional={
            "refs": JSON | st.dictionaries(st.sampled_from(["a", "v/0"]), JSON),
            "templates": JSON | st.dictionaries(st.sampled_from(["u"]), st.text(max_size=9)),
        },
    )
)
def test_any_json_is_references_or_one_of_our_errors(document: dict[str, Any]) -> None:
    try:
        refs = parse(document)
    except FormatError as error:
        assert "r.json" in str(error)
        return
    for key in ("a", "v/0"):
        try:
            found = refs.find(key)
        except StoreError as error:
            assert f"r.json: reference {key!r}" in str(error)
        else:
            assert found is None or isinstance(found, (bytes, Part))
    assert "" not in refs.names("")


# ---- templates


@pytest.mark.parametrize(
    "text",
    ["{{ u + 'x' }}", "{{ f(c='x') }}", "{{ 9**9**9 }}", "{{ nothing }}", "{{ }}", "{{u}}" * 40],
)
def test_templates_that_are_no_names_are_refused_at_once(text: str) -> None:
    document = {"version": 1, "templates": {"u": "x" * 1000, "f": "{{c}}"}, "refs": {"k": [text]}}
    refs = parse(document)
    with pytest.raises(StoreError, match=r"r.json: reference 'k': template"):
        refs.find("k")
    assert [*refs.addresses()] == []


# ---- stores


def test_parts_of_a_local_file(tmp_path: Path) -> None:
    store = local(tmp_path, {"v/0": ["data", 10, 100], "v/1": ["data"], "v/2": "inside"})
    assert isinstance(store, LocalStore)
    assert store.get("v/0") == DATA[10:110]
    assert store.get("v/0", slice(5, 20)) == DATA[15:30]
    assert store.get("v/0", slice(-5, None)) == DATA[105:110]
    assert store.get("v/1") == DATA
    assert store.get("v/2") == b"inside"
    assert store.get("v/3") is None
    buffer = memoryview(bytearray(100))
    assert store.get_into("v/0", buffer) == 100
    assert buffer == DATA[10:110]
    assert store.get_into("v/0", buffer[:50]) == 100
    with pytest.raises(StoreError):
        store.get("../v")


def test_what_is_larger_than_asked_for_is_not_read(tmp_path: Path) -> None:
    store = local(tmp_path, {"big": ["nowhere", 0, 1 << 60], "all": ["data"], "text": "x" * 100})
    for key in ("big", "all", "text"):
        (found,) = store.get_many([key], most=50)
        assert isinstance(found, TooLargeError)
        assert key in str(found)


def test_a_part_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    store = local(tmp_path, {"v/0": ["data", len(DATA) - 5, 6]})
    assert isinstance(store, LocalStore)
    with pytest.raises(StoreError, match=r"beyond the end.*reference 'v/0'"):
        store.get("v/0")
    with pytest.raises(StoreError, match=r"beyond the end.*reference 'v/0'"):
        store.get_into("v/0", memoryview(bytearray(6)))


def test_a_file_that_is_missing_is_an_error_that_names_it_and_the_key(tmp_path: Path) -> None:
    store = local(tmp_path, {"v/0": ["gone.nc", 0, 6]})
    assert isinstance(store, LocalStore)
    with pytest.raises(DatasetNotFoundError, match=r"gone\.nc.*reference 'v/0'"):
        store.get("v/0")


@pytest.mark.parametrize("address", ["http://me:secret@host/x", "http://", " ", "a\0b", "{{u}}"])
def test_an_address_that_makes_no_sense_is_an_error_for_its_key_alone(
    address: str, tmp_path: Path
) -> None:
    store = local(tmp_path, {"v/0": [address, 0, 6], "v/1": ["data", 0, 6]})
    wrong, right = store.get_many(["v/0", "v/1"])
    assert right == DATA[:6]
    assert isinstance(wrong, StoreError)
    assert "reference 'v/0'" in str(wrong)
    assert "secret" not in str(wrong)
    store.close()


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    store = local(tmp_path, {"v/0": ["data", 0, 6]})
    assert isinstance(store, LocalStore)
    store.get("v/0")
    (tmp_path / "data").write_bytes(DATA + b"x")
    with pytest.raises(StoreError, match="has changed"):
        store.get("v/0")
    store.close()
    with pytest.raises(StoreError, match="has changed"):
        store.get("v/0")


def test_copies_by_pickle_share_what_was_read(tmp_path: Path) -> None:
    store = local(tmp_path, {"v/0": ["data", 0, 6]})
    text = pickle.dumps(store)
    assert len(text) < 3000
    copy = pickle.loads(text)
    (tmp_path / "r.json").unlink()
    assert copy.get("v/0") == DATA[:6]
    assert copy.contents() == store.contents()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which references were read from JSON."""
    found: list[str] = []
    of = JSONReferences.of

    def noted(document: object, shown: str) -> JSONReferences:
        found.append(shown)
        return of(document, shown)

    monkeypatch.setattr(JSONReferences, "of", noted)
    return found


def test_copies_in_another_process_read_once(tmp_path: Path, read: list[str]) -> None:
    text = pickle.dumps(local(tmp_path, {"v/0": ["data", 0, 6]}))  # the store itself has gone
    gc.collect()
    read.clear()
    for _ in range(5):
        assert pickle.loads(text).get("v/0") == DATA[:6]
    assert len(read) == 1


def test_opening_references_to_a_network_reads_them_once(tmp_path: Path, read: list[str]) -> None:
    store = local(tmp_path, {"v/0": ["https://host/data", 0, 6], "v/1": "text"})
    assert isinstance(store, RemoteStore)
    assert store.get_many(["v/1"]) == [b"text"]
    assert len(read) == 1


def test_few_of_many_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references_module, "OPEN_HERE", 2)
    for number in range(5):
        (tmp_path / f"data{number}").write_bytes(DATA[number:])
    store = local(tmp_path, {f"v/{i}": [f"data{i}", 0, 9] for i in range(5)})
    for number in (0, 1, 2, 3, 4, 0, 2):
        assert store.get_many([f"v/{number}"]) == [DATA[number : number + 9]]
        assert len([path for path in open_files(tmp_path) if "/data" in path]) <= 2
    store.close()


def test_a_part_is_read_into_the_memory_of_others(tmp_path: Path) -> None:
    refs = {"v/0": ["data", 10, 5], "v/1": "inside", "v/2": ["data", len(DATA) - 1, 5]}
    store = local(tmp_path, {**refs, "v/3": ["data"]})
    assert isinstance(store, LocalStore)
    buffer = bytearray(8)
    assert store.get_into("v/0", memoryview(buffer)) == 5
    assert buffer[:5] == DATA[10:15]
    assert store.get_into("v/0", memoryview(bytearray(4))) == 5  # it has no room
    assert store.get_into("v/1", memoryview(buffer)) == 6
    assert buffer[:6] == b"inside"
    assert store.get_into("v/3", memoryview(bytearray(len(DATA)))) == len(DATA)
    assert store.get_into("v/9", memoryview(buffer)) is None
    with pytest.raises(StoreError, match="beyond the end"):
        store.get_into("v/2", memoryview(buffer))


def test_what_references_are_is_known_by_their_file(tmp_path: Path) -> None:
    first = local(tmp_path, {"v/0": "a"}).contents()
    assert local(tmp_path, {"v/0": "a", "v/1": "b"}).contents() != first
    in_memory = {"version": 1, "refs": {".zgroup": "{}"}}
    one, other = (open_references(in_memory, AddressPolicy.of(tmp_path)) for _ in range(2))
    assert one.contents() == pickle.loads(pickle.dumps(one)).contents() != other.contents()


def test_a_file_of_json_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references_module, "MAX_JSON", 10)
    with pytest.raises(StoreError, match="write so many of them as Parquet"):
        local(tmp_path, {})


# ---- behind a network


@pytest.fixture(scope="module")
def several() -> Iterator[Server]:
    with Server({f"/data{i}": DATA[i:] for i in range(3)}) as server:
        yield server


def remote(server: Server, refs: dict[str, Any], **options: Any) -> KeyStore:
    """References in memory to what a server has."""
    document = {"version": 1, "refs": {".zgroup": "{}", **refs}}
    policy = AddressPolicy.of(f"{server.url}/r.json", **options)
    store = open_references(document, policy)
    assert isinstance(store, RemoteStore)
    return store


def test_parts_of_a_file_come_together_and_nothing_else_is_asked() -> None:
    with Server({"/data": DATA}) as server:
        store = remote(server, {f"v/{i}": ["data", 100 * i, 100] for i in range(100)})
        found = store.get_many([f"v/{i}" for i in range(100)])
        assert found == [DATA[100 * i : 100 * i + 100] for i in range(100)]
        assert len(server.requests) == 1
        store.close()


def test_few_remote_files_stay_open(several: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references_module, "OPEN_ELSEWHERE", 1)
    caches = watch_cache(monkeypatch, "nczarr_fsspec.stores.references")
    store = remote(several, {f"v/{i}": [f"data{i}", 5, 9] for i in range(3)})
    for number in (0, 1, 2, 0):
        assert store.get_many([f"v/{number}"]) == [DATA[number + 5 : number + 14]]
        assert max(map(len, caches)) == 1
    assert store.get_many([f"v/{i}" for i in range(3)]) == [DATA[i + 5 : i + 14] for i in range(3)]
    store.close()


def test_one_part_beyond_the_end_leaves_the_others_alone() -> None:
    with Server({"/data": DATA}) as server:
        refs = {"a": ["data", 0, 10], "b": ["data", len(DATA) - 5, 10], "c": ["data", 20, 10]}
        store = remote(server, {**refs, "d": ["nowhere", 0, 10], "e": ["data"]})
        a, b, c, d, e = store.get_many(["a", "b", "c", "d", "e"])
        assert (a, c, e) == (DATA[:10], DATA[20:30], DATA)
        assert isinstance(b, StoreError)
        assert "beyond the end" in str(b)
        assert "reference 'b'" in str(b)
        assert isinstance(d, DatasetNotFoundError)
        assert "reference 'd'" in str(d)
        (late,) = store.get_many(["b"])
        assert isinstance(late, StoreError)
        store.close()


@pytest.mark.parametrize("ranges", ["ignored", "unsaid", "no-total"])
def test_servers_that_serve_ranges_badly(ranges: str) -> None:
    with Server({"/data": DATA}, ranges=ranges) as server:
        store = remote(server, {"a": ["data", 50, 10], "b": ["data", 16000, 10]})
        assert store.get_many(["a", "b"]) == [DATA[50:60], DATA[16000:16010]]
        store.close()


def test_of_a_whole_file_no_more_than_a_part_comes() -> None:
    with Server({"/data": DATA}) as server:
        store = remote(server, {"a": ["data"]})
        assert isinstance(store, RemoteStore)
        parts = [slice(5, 9), slice(None, 7), slice(100, 200), slice(3, 3)]
        found = [store.run(store.get("a", part, 10)) for part in parts]
        assert found == [DATA[part] for part in parts]
        assert server.bytes_sent < 4 * 4096
        with pytest.raises(StoreError, match=r"beyond the end.*reference 'a'"):
            store.run(store.get("a", slice(5, len(DATA) + 1)))
        assert store.run(store.get("a", slice(-5, None))) == DATA[-5:]
        store.close()


def test_a_remote_file_that_changes_is_an_error() -> None:
    with Server({"/data": DATA}, etag='"1"') as server:
        store = remote(server, {"a": ["data", 50, 10], "b": ["data", 60, 10]})
        assert store.get_many(["a"]) == [DATA[50:60]]
        server.etag = '"2"'
        (found,) = store.get_many(["b"])
        assert isinstance(found, StoreError)
        assert "has changed" in str(found)
        store.close()


def test_requests_are_tried_again() -> None:
    with Server({"/data": DATA}, unavailable_every=1, relent=True) as server:
        store = remote(server, {"a": ["data", 50, 10]})
        assert store.get_many(["a"]) == [DATA[50:60]]
        store.close()


@given(
    st.dictionaries(
        st.sampled_from([f"v/{number}" for number in range(30)]),
        st.one_of(
            st.binary(max_size=20),
            st.tuples(st.integers(0, 2), st.integers(0, len(DATA)), st.integers(0, 5000)),
            st.integers(0, 2),
        ),
        min_size=1,
    )
)
@settings(max_examples=examples(40), deadline=None)
def test_all_kinds_of_references_at_once(
    several: Server, contents: dict[str, bytes | int | tuple[int, int, int]]
) -> None:
    refs: dict[str, Any] = {"always": ["data0", 0, 1]}
    wanted: dict[str, bytes | None] = {"v/none": None}
    for key, what in contents.items():
        if isinstance(what, bytes):
            refs[key] = "base64:" + base64.b64encode(what).decode()
            wanted[key] = what
        elif isinstance(what, int):
            refs[key] = [f"data{what}"]
            wanted[key] = several.files[f"/data{what}"]
        else:
            file, start, size = what
            data = several.files[f"/data{file}"][start : start + size]
            refs[key] = [f"data{file}", start, size]
            if len(data) == size:
                wanted[key] = data
    store = remote(several, refs)
    found = dict(zip(refs, store.get_many(list(refs)), strict=True))
    found["v/none"] = store.get_many(["v/none"])[0]
    for key, answer in found.items():
        if key in wanted:
            assert answer == wanted[key]
        elif key != "always":
            assert isinstance(answer, StoreError)
            assert key in str(answer)
    store.close()


def test_a_part_beyond_the_end_fails_alone_though_the_size_is_not_known_yet() -> None:
    """The refusal comes before the answer that tells the size."""
    asked_again = threading.Event()

    class Held(Server):
        def answer_to(self, handler: BaseHTTPRequestHandler, request: Request, number: int) -> None:
            if request.range == "bytes=0-0":
                if [one.range for one in self.requests].count("bytes=0-0") == 1:
                    asked_again.wait(timeout=60)
                asked_again.set()
            super().answer_to(handler, request, number)

    with Held({"/data": DATA}) as server:
        store = remote(server, {"in": ["data", 0, 1], "out": ["data", len(DATA), 1]})
        inside, outside = store.get_many(["in", "out"])
        assert inside == DATA[:1]
        assert isinstance(outside, StoreError)
        assert "beyond the end" in str(outside)
        store.close()


def test_parts_of_a_file_that_may_not_be_read_fail_together() -> None:
    with Server({"/data": DATA}, password="me:secret") as server:
        store = remote(server, {f"v/{i}": ["data", 4000 * i, 1] for i in range(4)})
        found = store.get_many([f"v/{i}" for i in range(4)])
        assert [type(error) for error in found] == [AccessDeniedError] * 4
        assert len(server.requests) <= 5  # one more than the parts, since the size is not known
        store.close()


def test_threads_share_a_store_and_its_requests() -> None:
    with Server({"/data": DATA}) as server:
        store = remote(server, {f"v/{i}": ["data", 100 * i, 100] for i in range(100)})
        with ThreadPoolExecutor(8) as pool:
            keys = [f"v/{i}" for i in range(100)]
            for found in pool.map(store.get_many, [keys] * 8):
                assert found == [DATA[100 * i : 100 * i + 100] for i in range(100)]
        store.close()


def test_files_that_threads_share_are_kept_under_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the one that a thread looks for could go before it is moved to the end."""
    monkeypatch.setattr("nczarr_fsspec.stores.references.OPEN_HERE", 2)
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(DATA[:10])
    refs = {f"v/{number}": [str(tmp_path / f"{number}"), 0, 4] for number in range(4)}
    caches = watch_cache(monkeypatch, "nczarr_fsspec.stores.references")
    store = open_references({"version": 1, "refs": refs}, AddressPolicy.of(f"{tmp_path}/r.json"))
    assert isinstance(store, LocalReferences)
    for key in (*refs, "v/3"):
        assert store.get(key) == DATA[:4]
    held = [one for cache in caches for one in cache.held]
    assert held
    assert all(held)


# ---- what may be named


def test_remote_references_may_name_their_own_server_alone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    secret = str(tmp_path / "secret")
    with Server({"/data": DATA}) as server, Server({"/data": DATA}) as other:
        addresses = [secret, f"file://{secret}", f"{other.url}/data", "s3://bucket/key"]
        refs = {f"v/{i}": [address, 0, 4] for i, address in enumerate(addresses)}
        for found in remote(server, refs | {"x": ["data"]}).get_many(list(refs)):
            assert isinstance(found, AccessDeniedError)
            assert "allow=" in str(found)
            assert "reference 'v/" in str(found)
        assert not other.requests
        allowed = remote(server, refs | {"x": ["data"]}, allow=[other.url, tmp_path])
        assert allowed.get_many(["v/0", "v/2"]) == [b"secr", DATA[:4]]
        moved = remote(
            server, {"x": ["s3://bucket/data", 0, 4]}, replace={"s3://bucket": server.url}
        )
        assert moved.get_many(["x"]) == [DATA[:4]]


def test_their_server_must_not_redirect_to_another() -> None:
    with Server({"/x/data": DATA}) as other, Server({}) as server:
        server.redirect = f"{other.url}/x"
        (found,) = remote(server, {"v/0": ["data", 0, 4]}).get_many(["v/0"])
        assert isinstance(found, AccessDeniedError)
        assert "redirects" in str(found)
        assert not other.requests


def test_credentials_stay_with_the_server_that_has_the_references() -> None:
    with Server({"/data": DATA}) as server, Server({"/data": DATA}) as other:
        options = {"headers": {"Authorization": "Bearer secret"}}
        refs = {"own": ["data", 0, 4], "other": [f"{other.url}/data", 0, 4]}
        store = remote(server, refs, allow=[other.url], storage_options=options)
        assert store.get_many(["own", "other"]) == [DATA[:4], DATA[:4]]
        assert server.requests[0].headers["Authorization"] == "Bearer secret"
        assert "Authorization" not in other.requests[0].headers


# ---- detection


@pytest.mark.parametrize(
    ("mapping", "yes"),
    [
        ({"version": 1, "refs": {}}, True),
        ({".zgroup": "{}"}, True),
        ({".zgroup": b"{}"}, False),
        ({"refs": b"bytes"}, False),
        ({}, False),
        ({"v/0": ["u", 0, 1]}, False),
    ],
)
def test_mappings_that_are_references(mapping: dict[str, Any], yes: object) -> None:
    assert are_references(mapping) is yes
