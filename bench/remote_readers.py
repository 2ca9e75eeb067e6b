"""The readers of bench/remote.py, one function each, and the process that runs one of them.

Usage, by bench/remote.py: ``python bench/remote_readers.py READER FILES``. A line of JSON on
standard input, ``{"url": …, "file": …, "operation": …}``, is answered by one on standard output,
``{"seconds": …, "right": …, "error": …}``. Every read starts cold: no file, connection, listing or
index is left of the one before. Peers get the best setting that their documentation names. Wheels
of h5py are without ros3, so that HDF5's own reader of S3 is no row.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
import remote_files
import xarray as xr

from nczarr_fsspec.ranges.index_memory import memory

BLOCKS: dict[str, Any] = {"cache_type": "blockcache", "block_size": 4 << 20}
"""What xarray chooses for HDF5 files on fsspec, since PR 11216."""
IN_FLIGHT = 128
"""`async.concurrency` of zarr-python for stores with latency; its default is 10."""
HEAD = {"Accept-Encoding": "identity"}

Data = Mapping[Any, Any]
Reader = Callable[[str], AbstractContextManager[Data]]


# ---------------------------------------------------------------------------------- readers


def nczarr(url: str) -> xr.Dataset:
    """Ours."""
    return xr.open_dataset(f"{url}#mode=bytes", engine="nczarr", cache=False, chunks=None)


def xarray_h5netcdf(url: str) -> xr.Dataset:
    """xarray and h5netcdf: fsspec with 4 MiB blocks, h5py."""
    return xr.open_dataset(url, engine="h5netcdf", cache=False)


@contextlib.contextmanager
def fsspec_all(url: str) -> Iterator[Data]:
    """The same on fsspec's cache of the whole file."""
    fs, path = fsspec.url_to_fs(url)
    with (
        fs.open(path, cache_type="all") as file,
        xr.open_dataset(file, engine="h5netcdf", cache=False) as ds,
    ):
        yield ds


@contextlib.contextmanager
def obspec_eager(url: str) -> Iterator[Data]:
    """obspec-utils: the whole file by obstore, then h5netcdf."""
    from obspec_utils.readers import EagerStoreReader

    parts = urlsplit(url)
    reader = EagerStoreReader(_object_store(url), parts.path.lstrip("/"))
    with xr.open_dataset(reader, engine="h5netcdf", cache=False) as ds:
        yield ds


def pyfive_h5netcdf(url: str) -> xr.Dataset:
    """xarray, h5netcdf, and pyfive in the place of h5py."""
    os.environ["H5NETCDF_READ_BACKEND"] = "pyfive"  # xarray has no argument for it
    return xr.open_dataset(url, engine="h5netcdf", cache=False)


@contextlib.contextmanager
def pyfive_parallel(url: str) -> Iterator[Data]:
    """pyfive alone, with the parallel B-tree that it recommends for remote files."""
    import pyfive

    fs, path = fsspec.url_to_fs(url)
    with fs.open(path, **BLOCKS) as handle, pyfive.File(handle) as file:
        views: dict[str, Any] = {}
        for name in file:
            view = file.get_lazy_view(name)
            view.id.set_parallelism(btree_parallel=True)
            dict(view.attrs)  # every engine of xarray has read them when a dataset is open
            views[name] = view[:] if name in ("time", "lat", "lon") else view
        yield views


def virtualizarr_blocks(url: str) -> AbstractContextManager[Data]:
    """VirtualiZarr, scanning over blocks of 1 MiB."""
    from virtualizarr.parsers import HDFParser

    return _virtualizarr(url, HDFParser())


def virtualizarr_eager(url: str) -> AbstractContextManager[Data]:
    """VirtualiZarr, scanning the whole file in memory."""
    from obspec_utils.readers import EagerStoreReader
    from virtualizarr.parsers import HDFParser

    return _virtualizarr(url, HDFParser(reader_factory=EagerStoreReader))


def virtualizarr_classic(url: str) -> AbstractContextManager[Data]:
    """VirtualiZarr's reader of classic files."""
    from virtualizarr.parsers import NetCDF3Parser

    return _virtualizarr(url, NetCDF3Parser())


def async_hdf5(url: str) -> xr.Dataset:
    """async-hdf5 (Rust) on obstore, below zarr-python."""
    import zarr

    zarr.config.set({"async.concurrency": IN_FLIGHT})
    path = urlsplit(url).path.lstrip("/")
    options: dict[str, Any] = {"store": _object_store(url)}
    return xr.open_dataset(path, engine="async_hdf5", cache=False, **options)


@contextlib.contextmanager
def h5coro_threads(url: str) -> Iterator[Data]:
    """h5coro alone: selections of variables, with its threads."""
    from h5coro import h5coro, webdriver

    file = h5coro.H5Coro(url, webdriver.HTTPDriver)
    found = file.list("/", w_attr=True)[0]  # every engine of xarray has read the attributes, too
    views: dict[str, Any] = {
        name: _H5CoroView(file, name, tuple(what["__metadata__"]["dims"]))
        for name, what in found.items()
        if "__metadata__" in what
    }
    yield views
    file.close()


class _H5CoroView:
    """A variable of h5coro's, with the selections that are asked for here."""

    def __init__(self, file: Any, name: str, shape: tuple[int, ...]) -> None:
        self._file, self._name, self.shape = file, name, shape

    def __getitem__(self, key: Any) -> np.ndarray:
        given = key if isinstance(key, tuple) else (key,)
        every = (*given, *[slice(None)] * (len(self.shape) - len(given)))
        bounds = [
            index.indices(length)[:2] if isinstance(index, slice) else (index, index + 1)
            for index, length in zip(every, self.shape, strict=True)
        ]
        asked = [{"dataset": self._name, "hyperslice": bounds}]
        values = self._file.readDatasets(asked)[self._name].reshape([b - a for a, b in bounds])
        return values[tuple(slice(None) if isinstance(i, slice) else 0 for i in every)]

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self[:]


def kerchunk_hdf5(url: str) -> xr.Dataset:
    """kerchunk: references scanned over 4 MiB blocks, then zarr-python."""
    from kerchunk.hdf import SingleHdf5ToZarr

    fs, path = fsspec.url_to_fs(url)
    with fs.open(path, **BLOCKS) as file:
        return _references(SingleHdf5ToZarr(file, url).translate())


def kerchunk_classic(url: str) -> xr.Dataset:
    """kerchunk's reader of classic files."""
    from kerchunk.netCDF3 import NetCDF3ToZarr

    return _references(NetCDF3ToZarr(url).translate())


def netcdf_c(url: str) -> xr.Dataset:
    """netCDF-C's byte ranges."""
    return xr.open_dataset(f"{url}#mode=bytes", engine="netcdf4", cache=False)


def whole_hdf5(url: str) -> xr.Dataset:
    """No package: the whole file in 4 MiB parts, 16 at a time, then h5netcdf."""
    return xr.open_dataset(_whole(url), engine="h5netcdf", cache=False)


def whole_classic(url: str) -> xr.Dataset:
    """No package: the same and scipy."""
    return xr.open_dataset(_whole(url), engine="scipy", cache=False)


HDF5: dict[str, Reader] = {
    "xarray + h5netcdf": xarray_h5netcdf,
    "fsspec 'all' + h5netcdf": fsspec_all,
    "obspec-utils eager + h5netcdf": obspec_eager,
    "pyfive + h5netcdf": pyfive_h5netcdf,
    "pyfive, parallel index": pyfive_parallel,
    "VirtualiZarr": virtualizarr_blocks,
    "VirtualiZarr eager": virtualizarr_eager,
    "async-hdf5": async_hdf5,
    "h5coro": h5coro_threads,
    "kerchunk": kerchunk_hdf5,
    "netCDF-C": netcdf_c,
    "whole file (no package)": whole_hdf5,
}
CLASSIC: dict[str, Reader] = {
    "VirtualiZarr NetCDF3": virtualizarr_classic,
    "kerchunk NetCDF3": kerchunk_classic,
    "netCDF-C": netcdf_c,
    "whole file, scipy (no package)": whole_classic,
}
READERS: dict[str, Reader] = {"nczarr": nczarr, **HDF5, **CLASSIC}
"""Name as in the tables to function."""


def _object_store(url: str) -> Any:
    from obstore.store import HTTPStore

    parts = urlsplit(url)
    return HTTPStore.from_url(
        f"{parts.scheme}://{parts.netloc}", client_options={"allow_http": True}
    )


@contextlib.contextmanager
def _virtualizarr(url: str, parser: Any) -> Iterator[Data]:
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry

    parts = urlsplit(url)
    registry = ObjectStoreRegistry({f"{parts.scheme}://{parts.netloc}": _object_store(url)})
    with zarr.config.set({"async.concurrency": IN_FLIGHT}):
        manifests = parser(url=url, registry=registry)
        options: dict[str, Any] = {"consolidated": False, "zarr_format": 3, "chunks": None}
        with xr.open_dataset(manifests, engine="zarr", cache=False, **options) as ds:
            yield ds


def _references(references: dict[str, Any]) -> xr.Dataset:
    import zarr

    zarr.config.set({"async.concurrency": IN_FLIGHT})
    options: dict[str, Any] = {
        "storage_options": {"remote_protocol": "http", "skip_instance_cache": True},
        "open_dataset_options": {"chunks": None},
    }
    target: Any = references
    return xr.open_dataset(target, engine="kerchunk", **options)


def _whole(url: str, part: int = 4 << 20) -> io.BytesIO:
    def get(start: int) -> tuple[bytes, int]:
        asked = {**HEAD, "Range": f"bytes={start}-{start + part - 1}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=asked)) as answer:
            return answer.read(), int(answer.headers["Content-Range"].rpartition("/")[2])

    first, size = get(0)
    with ThreadPoolExecutor(16) as pool:
        rest = pool.map(lambda start: get(start)[0], range(part, size, part))
        return io.BytesIO(b"".join([first, *rest]))


# ------------------------------------------------------------------------------- operations

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "open": lambda _: None,
    "step": lambda data: np.asarray(data["tas"][100]),
    "point": lambda data: np.asarray(data["tas"][:, 90, 180]),
    "full": lambda data: np.asarray(data["tas"][:]),
}


def right(name: str, operation: str, data: Any, got: Any, truth: Any) -> bool:
    """Whether the dataset is complete, and the values that were read are those of the field."""
    file = remote_files.FILES[name]
    many = name == "n4_many.nc"
    every = 2 if many else 1
    for axis, values in (("lat", remote_files.LAT), ("lon", remote_files.LON)):
        if not np.array_equal(np.asarray(data[axis]), values[::every]):
            return False
    expected = truth[: file.steps, ::every, ::every]
    names = [f"var{i:03}" for i in range(remote_files.MANY)] if many else ["tas"]
    if any(name not in data or data[name].shape != expected.shape for name in names):
        return False
    return got is None or np.array_equal(got, OPERATIONS[operation]({"tas": expected}))


# ---------------------------------------------------------------------------------- process


def cold() -> None:
    """Forget whatever the last read has left in this process."""
    from fsspec.implementations.http import HTTPFileSystem

    HTTPFileSystem.clear_instance_cache()
    memory.clear()
    gc.collect()


def answer(read: Reader, request: dict[str, str], truth: Any) -> dict[str, Any]:
    """Time one read, from the URL to the values."""
    name, operation = request["file"], request["operation"]
    cold()
    start = time.perf_counter()
    try:
        with read(request["url"]) as data:
            got = OPERATIONS[operation](data)
            seconds = time.perf_counter() - start
            return {"seconds": seconds, "right": right(name, operation, data, got, truth)}
    except Exception as error:  # noqa: BLE001  (whatever a reader raises is its result)
        seconds = time.perf_counter() - start
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"seconds": seconds, "right": False, "error": text[:200]}


def main() -> None:
    """Answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    warnings.simplefilter("ignore")
    read, folder = READERS[sys.argv[1]], Path(sys.argv[2])
    truth = np.load(folder / remote_files.TRUTH, mmap_mode="r")
    for line in sys.stdin:
        print(json.dumps(answer(read, json.loads(line), truth)), file=replies, flush=True)


if __name__ == "__main__":
    main()
