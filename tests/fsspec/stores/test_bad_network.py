"""Objects of S3 are written through a network that fails: each is old or new, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores import write_fsspec
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.transport import policy
from nczarr_fsspec.transport.policy import ATTEMPTS, RequestLimits, Timeout
from tests.support.servers.badnetwork import FATES, Faults, Network, in_the_end, network
from tests.support.servers.s3server import S3Server

#: what may happen to a request and its answer without anybody waiting
SUDDEN = ("reset", "lost", "cut")
BIG = 11 << 20
#: bytes that no buffers on the way hold
BODY = 9 << 20


@pytest.fixture(autouse=True)
def in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits long, and what is large is less so."""
    monkeypatch.setattr(policy, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(write_fsspec, "SEVERAL_PARTS", BIG)
    monkeypatch.setattr(write_fsspec, "PART", 5 << 20)


@pytest.fixture
def net(s3_server: S3Server) -> Iterator[Network]:
    with network(s3_server.endpoint) as found:
        yield found


@pytest.fixture
def store(net: Network, s3_server: S3Server, tmp_path: Path) -> Iterator[FsspecWriter]:
    fs = s3fs.S3FileSystem(**{**s3_server.signed(), "endpoint_url": net.endpoint})
    found = FsspecWriter(fs, f"{s3_server.private}/{tmp_path.name}")
    found.put("first", b"")  # the buckets are known, and a connection is there
    yield found
    found.close()


def contents(store: FsspecWriter) -> dict[str, bytes]:
    keys = store.keys_below("")
    reader = store.reader()
    try:
        found = reader.get_many(keys, 2 * BIG)
        for data in found:
            if isinstance(data, Exception):
                raise data
        assert all(isinstance(data, bytes) for data in found), found
        return {key: bytes(data) for key, data in zip(keys, found, strict=True)}  # type: ignore[arg-type]
    finally:
        reader.close()


def once(net: Network, fate: str, number: int) -> None:
    """Let `fate` strike the request of that number from now on, and none after it."""
    net.requests = 0
    net.happened.clear()
    net.choose = lambda line: fate if net.requests == number else ""


NOISE = np.random.default_rng(0).bytes(BIG + 5)


def put(store: FsspecWriter, folder: Path) -> None:
    store.put("a", b"new")


def create(store: FsspecWriter, folder: Path) -> None:
    assert store.create("new", b"mine")
    assert not store.create("new", b"another's")


def put_many_parts(store: FsspecWriter, folder: Path) -> None:
    store.put("a", NOISE)


def upload(store: FsspecWriter, folder: Path) -> None:
    (folder / "file").write_bytes(NOISE)
    store.upload("a", str(folder / "file"))


def move(store: FsspecWriter, folder: Path) -> None:
    store.move([("a", "c"), ("b", "d")])


def delete(store: FsspecWriter, folder: Path) -> None:
    store.delete(["a", "b"])


BEFORE = {"a": b"1", "b": b"2"}
AFTER = {
    put: {**BEFORE, "a": b"new"},
    create: {**BEFORE, "new": b"mine"},
    put_many_parts: {**BEFORE, "a": NOISE},
    upload: {**BEFORE, "a": NOISE},
    move: {"c": b"1", "d": b"2"},
    delete: {},
}


@pytest.mark.parametrize("fate", SUDDEN)
@pytest.mark.parametrize("change", AFTER)
def test_any_one_request_may_fail(
    change: object, fate: str, net: Network, store: FsspecWriter, tmp_path: Path
) -> None:
    assert callable(change)
    store.delete(["first"])
    struck, number = 1, 0
    while struck:
        number += 1
        store.delete(store.keys_below(""))
        for key, data in BEFORE.items():
            store.put(key, data)
        once(net, fate, number)
        change(store, tmp_path)
        struck = net.happened.total() or (fate == "cut" and net.requests >= number)
        net.choose = lambda line: ""
        assert contents(store) == AFTER[change], (number, net.happened)
    assert number > 1


def with_limits(store: FsspecWriter) -> FsspecWriter:
    """The same with little time for a request: six seconds, or two for one without a body.

    A busy machine may need more, so nothing but what fails in any case is done just once with it.
    """
    limits = Timeout(connect=1, first_byte=2, rate=BODY / 3)
    return FsspecWriter(store.fs, store.root, limits=RequestLimits(limits))


def test_an_upload_that_another_has_ended(
    store: FsspecWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is old, even if it has as many bytes: that is no success."""
    old = NOISE[::-1]
    store.put("a", old)
    call = s3fs.S3FileSystem._call_s3

    async def ended(self: s3fs.S3FileSystem, method: str, *args: Any, **options: Any) -> Any:
        if method == "complete_multipart_upload":
            where = {name: options[name] for name in ("Bucket", "Key", "UploadId")}
            await call(self, "abort_multipart_upload", **where)
        return await call(self, method, *args, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", ended)
    with pytest.raises(StoreError, match="cannot be written"):
        store.put("a", NOISE)
    assert contents(store)["a"] == old


@pytest.mark.parametrize("fate", FATES)
def test_every_request_fails(fate: str, net: Network, store: FsspecWriter) -> None:
    """Six tries, or two where one takes long; the error names the object; then all is well."""
    if fate not in SUDDEN:
        store = with_limits(store)
    in_the_end(lambda: store.put("a", b"1"))
    net.requests = 0
    net.choose = lambda line: fate
    net.faults = Faults(first=1)
    with pytest.raises(StoreError, match=r"cannot be written: .*tried [26] times") as caught:
        store.put("a", b"2")
    assert caught.value.object.endswith("/a")
    # aiohttp repeats a PUT by itself where a connection ends that was used before
    assert net.requests <= 2 * ATTEMPTS
    net.choose = lambda line: ""
    assert in_the_end(lambda: contents(store))["a"] in (b"1", b"2")
    in_the_end(lambda: store.put("a", b"3"))
    assert in_the_end(lambda: contents(store))["a"] == b"3"


@pytest.mark.parametrize("accepting", [True, False])
def test_a_partition(accepting: bool, net: Network, store: FsspecWriter) -> None:
    """A write is given up in time, be it in the middle of a body; the same store goes on."""
    store = with_limits(store)
    in_the_end(lambda: store.put("a", b"1"))
    for data in (b"2", bytes(BODY)):
        net.part(accepting=accepting)
        with pytest.raises(StoreError, match=r"/a: cannot be written: .*tried 2 times"):
            store.put("a", data)
        net.heal()
        in_the_end(lambda: store.put("b", b"new"))
        assert in_the_end(lambda: contents(store))["b"] == b"new"


def test_a_partition_that_ends_in_time(net: Network, store: FsspecWriter) -> None:
    """Nothing fails where the second try succeeds."""
    net.connections = 0
    net.at_connection = lambda number: net.heal()
    net.part()
    store.put("a", b"1")
    assert net.connections == 1
    assert contents(store)["a"] == b"1"


def test_no_more_is_begun_once_one_has_failed(net: Network, store: FsspecWriter) -> None:
    net.requests = 0
    net.choose = lambda line: "reset"
    reader = store.reader()
    assert isinstance(reader, FsspecStore)
    many = 10 * reader.concurrency
    with pytest.raises(StoreError, match="cannot be moved"):
        store.move([(f"{n}", f"to-{n}") for n in range(many)])
    assert net.requests < 2 * ATTEMPTS * many / 5
