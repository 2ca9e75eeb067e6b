"""What recorders are told of requests, in virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from nczarr_fsspec import FsspecStore, StoreError
from nczarr_fsspec.place import Place
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.transport import recording
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.policy import ATTEMPTS
from nczarr_fsspec.transport.recording import Record, Try, Watch, caused_by, masked, recorded
from nczarr_fsspec.transport.request import END, Extent, Request
from nczarr_fsspec.transport.throttle import Throttle
from tests.support.servers.virtualhttp import Make, Reply, Session, empty, serving
from tests.support.servers.virtualnet import run

FILES = {"/d/x": bytes(100_000), "/d/y": bytes(10)}


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recording, "now", lambda: asyncio.get_running_loop().time())
    yield
    assert recording.recorders == ()


def records_of(
    make: Make, ask: Callable[[FsspecStore], Any], url: str = "http://h/d"
) -> list[Record]:
    """What is recorded while `ask` is awaited with a store behind a server that answers so."""
    records: list[Record] = []

    async def reading() -> None:
        session = Session(make)

        async def get_client(**_: Any) -> Any:
            return session

        store = Place.of(url, {"get_client": get_client, "skip_instance_cache": True}).open().data
        assert isinstance(store, FsspecStore)
        try:
            with recorded(records.append):
                await ask(store)
        finally:
            store.transport.shared.fs._session = None

    run(reading())
    return records


def test_a_request_is_recorded_from_asking_to_its_last_byte() -> None:
    (record,) = records_of(
        serving(FILES, latency=0.5, rate=1e5), lambda store: store.get("x", slice(10, 50_010))
    )
    assert record.url == "http://h/d/x"
    assert (record.kind, record.extents, record.tail) == ("get", ((10, 50_010),), 0)
    (one,) = record.tries
    assert (one.status, one.nbytes, one.error) == (206, 50_000, "")
    assert (record.asked, one.begin, one.first_byte) == (0, 0, 0.5)
    assert one.end == pytest.approx(1.0)


def test_what_is_missing_is_recorded_with_its_status() -> None:
    (record,) = records_of(serving(FILES), lambda store: store.get("z"))
    assert [one.status for one in record.tries] == [404]
    assert record.extents is None


def test_every_try_is_recorded_with_the_pause_before_it() -> None:
    refusals = iter([503, 429])
    good = serving(FILES, latency=0.1)

    def make(path: str, asked: str) -> Reply:
        status = next(refusals, None)
        return good(path, asked) if status is None else Reply(0.1, empty, status)

    (record,) = records_of(make, lambda store: store.get("y"))
    assert [one.status for one in record.tries] == [503, 429, 200]
    assert [bool(one.error) for one in record.tries] == [True, True, False]
    for before, after in zip(record.tries, record.tries[1:], strict=False):
        assert after.begin - before.end >= 0.1


def test_a_request_that_is_given_up_is_recorded() -> None:
    async def ask(store: FsspecStore) -> None:
        with pytest.raises(StoreError, match="503"):
            await store.get("y")

    (record,) = records_of(lambda *_: Reply(0, empty, 503), ask)
    assert len(record.tries) == ATTEMPTS


def test_waiting_for_a_turn_comes_before_the_first_try() -> None:
    async def ask(store: FsspecStore) -> None:
        store.transport.shared.cap(1)
        await asyncio.gather(store.get("y"), store.get("y"))

    first, second = records_of(serving(FILES, latency=1), ask)
    assert (first.asked, second.asked) == (0, 0)
    assert second.tries[0].begin == pytest.approx(first.end)


def test_what_causes_a_request_is_known_in_its_tasks() -> None:
    async def ask(store: FsspecStore) -> None:
        with caused_by("/sst"):
            await asyncio.gather(store.get("x"), store.get("y"))
        await store.get("y")

    assert [record.cause for record in records_of(serving(FILES), ask)] == ["/sst", "/sst", ""]


def test_all_recorders_are_told_and_only_while_they_record() -> None:
    inner: list[Record] = []

    async def ask(store: FsspecStore) -> None:
        with recorded(inner.append):
            await store.get("y")
        await store.get("x")

    outer = records_of(serving(FILES), ask)
    assert [record.url[-1] for record in outer] == ["y", "x"]
    assert inner == outer[:1]


def test_listings_and_files_of_other_filesystems_are_recorded() -> None:
    records: list[Record] = []
    fs = MemoryFileSystem()
    fs.pipe("/recorded/x", b"0123456789")
    transport = FsspecTransport(fs)

    async def ask() -> None:
        with recorded(records.append):
            await transport.list("/recorded")
            await transport.fetch(Request("/recorded/x", "memory://recorded/x", [Extent(2, END)]))

    try:
        asyncio.run(ask())
    finally:
        transport.close()
        fs.rm("/recorded", recursive=True)
    listed, read = records
    assert (listed.kind, read.kind) == ("list", "get")
    assert read.extents == ((2, None),)
    assert (read.tries[0].nbytes, read.tries[0].status) == (8, None)


def test_secrets_stay_out_of_records() -> None:
    def make(path: str, asked: str) -> Reply:
        return Reply(0, empty, 503)

    async def ask(store: FsspecStore) -> None:
        with pytest.raises(StoreError):
            await store.get("y")

    url = "http://me:hidden@h/d?token=hidden&part=hidden"
    (record,) = records_of(make, ask, url)
    assert "hidden" not in repr(record)
    assert record.url == "http://h/d/y?***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/f.nc", "https://h/f.nc"),
        ("https://me:pass@h/f.nc", "https://***@h/f.nc"),
        ("https://h/f.nc?X-Amz-Signature=abc&Expires=1", "https://h/f.nc?***"),
        ("https://h/f.nc?sv=1&sig=abc", "https://h/f.nc?***"),
        ("https://h/f.nc?hdnts=exp~hmac", "https://h/f.nc?***"),
        ("simplecache::https://a:b@h/f.nc?k=v", "simplecache::https://***@h/f.nc?***"),
        ("s3://bucket/key?versionId=abc", "s3://bucket/key?***"),
    ],
)
def test_urls_are_masked(url: str, shown: str) -> None:
    assert masked(url) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize("recording_on", [False, True])
def test_only_with_a_recorder_is_a_request_watched(
    recording_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Watch] = []
    enter = Watch.__enter__

    def entered(watch: Watch) -> Watch:
        made.append(watch)
        return enter(watch)

    monkeypatch.setattr(Watch, "__enter__", entered)
    transport = FsspecTransport(MemoryFileSystem())

    async def answered(left: float) -> int:
        return 1

    async def ask() -> int:
        with recorded(lambda record: None) if recording_on else nullcontext():
            return await transport._retried(answered, Request("x", "memory://x"))

    monkeypatch.setattr(transport, "throttle", lambda path: Throttle(1))
    assert run(ask())[0] == 1
    assert bool(made) is recording_on


class Refusing(MemoryFileSystem):
    """Takes no objects."""

    protocol = "refusing"

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        raise PermissionError("https://h/x?sig=hidden is not for you")


def test_writes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "now", time.monotonic)  # it waits for a loop of its own
    records: list[Record] = []
    writer = FsspecWriter(MemoryFileSystem(), "/recorded/w")
    with closing(writer), recorded(records.append):
        writer.put("a", b"12345")
        writer.move([("a", "b")])
        assert writer.keys_below("") == ["b"]
        writer.delete(["b"])
    assert [(one.kind, one.url.rpartition("/")[2], one.nbytes) for one in records] == [
        ("put", "a", 5),
        ("copy", "a", 0),
        ("delete", "a", 0),
        ("list", "w", 0),
        ("delete", "b", 0),
    ]
    assert all(record.answered for record in records)


def test_a_write_that_fails_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "now", time.monotonic)
    records: list[Record] = []
    with closing(FsspecWriter(Refusing(), "/recorded/w")) as writer:
        with recorded(records.append), pytest.raises(StoreError):
            writer.put("a", b"1")
    (record,) = records
    assert not record.answered
    assert "hidden" not in record.tries[0].error


def test_no_such_file_is_404_for_every_filesystem() -> None:
    records: list[Record] = []
    transport = FsspecTransport(MemoryFileSystem())

    async def ask() -> None:
        with recorded(records.append):
            assert await transport.fetch(Request("/recorded/none", "memory://none")) is None

    try:
        asyncio.run(ask())
    finally:
        transport.close()
    (record,) = records
    assert (record.tries[0].status, record.answered) == (404, False)


def test_the_end_and_the_bytes_of_a_record_are_those_of_its_tries() -> None:
    record = Record("u", 0, (Try(0, 1, nbytes=5, error="cut"), Try(2, 3, nbytes=10)))
    assert (record.end, record.nbytes) == (3, 15)
