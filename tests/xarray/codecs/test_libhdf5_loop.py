"""libhdf5, and the lock that guards it, are never used in the thread of an event loop.

Whoever holds the lock may be waiting for that loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest
from xarray.backends import locks

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.keystore import ALL, RemoteStore
from nczarr_xarray.codecs.filters import szip_encoder
from nczarr_xarray.dataset.open import open_file
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import EVERYTHING
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import ChunkedArray, Dimension, Variable
from tests.support.faults.filepromises import RemoteMemory


class _Lock:
    """A lock that counts who takes it, and refuses threads that run an event loop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken = 0

    def __enter__(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise AssertionError("the lock is taken on a loop")
        self.lock.acquire()
        self.taken += 1

    def __exit__(self, *error: object) -> None:
        self.lock.release()


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Lock]:
    lock = _Lock()
    monkeypatch.setattr(locks, "HDF5_LOCK", lock)
    yield lock
    assert not lock.lock.locked()


VALUES = np.arange(64, dtype="i4")


@pytest.fixture(scope="module")
def data() -> bytes:
    """A file of small variables that take libhdf5 to read."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as f:
        f.create_dataset("szip", data=VALUES, chunks=(16,), compression="szip")
        space = h5py.h5s.create_simple((64,))
        odd = h5py.h5t.IEEE_F64LE.copy()
        odd.set_fields(55, 44, 11, 0, 44)
        odd.set_size(7)
        odd.set_precision(56)
        h5py.h5d.create(f.id, b"odd", odd, space)
        f["odd"][...] = VALUES
        layout = h5py.VirtualLayout((64,), "i4")
        layout[:] = h5py.VirtualSource(f["szip"])
        f.create_virtual_dataset("virtual", layout)
        f.flush()
        return bytes(f.id.get_file_image())


NAMES = ["szip", "odd", "virtual"]


@pytest.mark.parametrize("way", ["read", "many", "async", "loop"])
@pytest.mark.parametrize("name", NAMES)
def test_not_on_the_loop(data: bytes, lock: _Lock, name: str, way: str) -> None:
    source = RemoteMemory(data)
    with open_file(source, EVERYTHING) as opened:
        variable = opened.hierarchy.root.variables[name]
        assert variable.error is None, variable.error
        taken = lock.taken
        if way == "read":
            found: Any = opened.read(variable)
        elif way == "many":
            (found,) = opened.read_many([(variable, None)])
        elif way == "async":
            found = asyncio.run(opened.reader(variable).read_async(None, points=False))
        else:
            found = source.run(opened.reader(variable).read_remote())
    assert not isinstance(found, NCZarrError), found
    np.testing.assert_array_equal(found, VALUES)
    assert lock.taken > taken


class _OneKey(RemoteStore):
    """A store that holds one object."""

    def __init__(self, key: str, data: bytes) -> None:
        self.url = "one"
        self.objects = {key: data}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return RemoteMemory(b"").loop

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        return self.objects.get(key)

    async def list(self, prefix: str) -> frozenset[str] | None:
        return None


def test_not_on_the_loop_of_a_store(lock: _Lock) -> None:
    """The szip of NCZarr, whose chunks are small."""
    codec = {"id": "szip", "mask": 4, "pixels-per-block": 8}
    array = ChunkedArray("v", (64,), (64,), VALUES.dtype, codecs=(codec,))
    chunk = bytes(szip_encoder(codec, array)(VALUES.tobytes()))
    store = _OneKey("v/0", chunk)
    variable = Variable("v", "/", (Dimension("x", 64),), "int", VALUES.dtype, array=array)
    reader = VariableReader(store, variable)
    np.testing.assert_array_equal(asyncio.run(reader.read_async(None, points=False)), VALUES)
    assert lock.taken


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_a_fork_collects_garbage() -> None:
    """Forked while another thread has paused the collector."""
    begun, end = threading.Event(), threading.Event()

    def read() -> None:
        with collection_paused():
            begun.set()
            end.wait()

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    try:
        assert not gc.isenabled()
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        end.set()
        thread.join()
    assert gc.isenabled()
