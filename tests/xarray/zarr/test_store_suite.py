"""zarr-python's own tests of stores, over each kind of store that we read and write."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from zarr.core.buffer import Buffer, cpu
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests
from zarr.testing.strategies import keys as zarr_keys

from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from tests.support.builders.zarrwriting import WritingView
from tests.support.servers.filesystems import own_memory
from tests.support.servers.s3server import S3Server

pytestmark = pytest.mark.slow

STORES = ["directory", "mapping", "memory", pytest.param("s3", marks=pytest.mark.servers)]
#: Sequences of rules that a state machine tries; each rule asks S3 for every object there is.
SEQUENCES = {"s3": 4}
#: S3 itself has no folders: of an object that was deleted nothing is left.
FOLDERS = "SeaweedFS lists folders whose last object was deleted"


@pytest.fixture(params=STORES)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WritableStore]:
    kind = request.param
    store: WritableStore
    if kind == "directory":
        store = DirectoryWriter(tmp_path / "d")
    elif kind == "mapping":
        store = MappingWriter({})
    elif kind == "memory":
        store = FsspecWriter(own_memory(), "/suite")
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        fs = s3fs.S3FileSystem(**server.signed(), skip_instance_cache=True)
        store = FsspecWriter(fs, f"{server.private}/{tmp_path.parent.name}-{tmp_path.name}")
    yield store
    store.close()


class TestWritten(StoreTests[WritingView, cpu.Buffer]):
    """All tests of the class apply to a store that reads and writes."""

    store_cls = WritingView
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, writer: WritableStore) -> dict[str, Any]:
        return {"writer": writer}

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> WritingView:
        return sync(WritingView.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> WritingView:
        return WritingView(**store_kwargs)

    async def set(self, store: WritingView, key: str, value: Buffer) -> None:
        await asyncio.to_thread(store.writer.put, key, value.to_bytes())

    async def get(self, store: WritingView, key: str) -> Buffer:
        (data,) = await asyncio.to_thread(store.writer.reader().get_many, [key])
        assert isinstance(data, bytes)
        return self.buffer_cls.from_bytes(data)

    def test_store_repr(self, store: WritingView) -> None:
        assert repr(store) == f"<WritingView {store.writer.url}>"

    def test_store_supports_writes(self, store: WritingView) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: WritingView) -> None:
        assert store.supports_listing


for _name, _test in inspect.getmembers(TestWritten, inspect.iscoroutinefunction):
    if _name.startswith("test_"):
        setattr(TestWritten, _name, pytest.mark.asyncio(_test))


class OneOrTheOther(ZarrStoreStateMachine):
    """No key is both that of an object and the beginning of others, as `a` beside `a/b` would be.

    File systems cannot have that, and no dataset has it. Where it can be, `StoreView` lists the
    object alone. Then `clear` would leave the others for the next example, which hypothesis calls
    an inconsistent generation of data.
    """

    @rule(key=zarr_keys(), data=st.binary(max_size=100))
    def set(self, key: str, data: bytes) -> None:
        assume(not any(f"{key}/".startswith(f"{one}/") for one in self.model if one != key))
        assume(not any(one.startswith(f"{key}/") for one in self.model))
        super().set(key=key, data=data)


@pytest.mark.parametrize("machine", [OneOrTheOther, ZarrHierarchyStateMachine])
@pytest.mark.filterwarnings("ignore")  # of zarr-python, about types that hypothesis chooses
def test_stateful(
    machine: Any,
    writer: WritableStore,
    request: pytest.FixtureRequest,
) -> None:
    """Hypothesis changes a store and a simple model of one alike; they stay the same."""
    kind = request.node.callspec.params["writer"]
    if kind == "s3" and machine is ZarrHierarchyStateMachine:
        pytest.skip(FOLDERS)
    run_state_machine_as_test(
        lambda: machine(WritingView(writer)),  # type: ignore[arg-type]  # whatever makes one
        settings=settings(
            max_examples=SEQUENCES.get(kind, 12),
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
