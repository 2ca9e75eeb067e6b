"""How many round trips, requests and bytes a read takes: counted in virtual time.

One request takes one second of a clock that does not wait, bytes take none, and a connection is
always there: so the seconds of a read are the longest chain of requests that depend on each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

import h5py
import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.ranges.source import Limits
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.registry import EVERYTHING, Source, read_hierarchy
from nczarr_xarray.model import Hierarchy, Variable
from tests.support.marks import each_once
from tests.support.servers.virtualnet import Loop, VirtualBytes

#: (time, lat, lon) of the benchmark files, a fifth as fine; 146 x 6 x 12 = 10,512 chunks
SHAPE, CHUNKS = (730, 36, 72), (5, 6, 6)
Read = tuple[slice | int, ...]
STEP: Read = (100, slice(None), slice(None))
POINT: Read = (slice(None), 17, 36)
FULL: Read = (slice(None), slice(None), slice(None))


class Rounds(VirtualBytes):
    """A file one second away, whatever is asked for."""

    def __init__(self, data: bytes, ranges: int) -> None:
        limits = Limits(concurrency=10_000, ranges=ranges, latency=1, bandwidth=1e12)
        super().__init__(data, limits, line=1e15)
        self.idle = 1 << 30

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        raise AssertionError("a blocking read")


class Session:
    """One opened file, and what each operation on it cost."""

    def __init__(self, path: Path, ranges: int = 100) -> None:
        self.source = Rounds(path.read_bytes(), ranges)
        self.loop = Loop()
        self.file = DataFile(self.source)
        self.hierarchy: Hierarchy = self.run(self._open())
        # opening takes the request that brought the head besides
        self.opening = 1 + self.rounds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.close()

    async def _open(self) -> Hierarchy:
        source = Source(self.source.url, self.source)
        parsing = read_hierarchy(source, EVERYTHING)
        hierarchy = await self.file.parse_remote(parsing, around=True)
        # what xarray reads while it opens: coordinates that become indexes
        names = set(hierarchy.root.dimensions)
        wanted = [v for name, v in hierarchy.root.variables.items() if name in names]
        await asyncio.gather(*(VariableReader(self.file, v).read_remote() for v in wanted))
        return hierarchy

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        before = self.loop.now
        self.source.requests.clear()
        result = self.loop.run_until_complete(coroutine)
        self.rounds = round(self.loop.now - before, 3)
        return result

    def read(self, name: str, key: Read) -> np.ndarray[Any, Any]:
        variable: Variable = self.hierarchy.root.variables[name]
        data: np.ndarray[Any, Any] = self.run(VariableReader(self.file, variable).read_remote(key))
        return data


@pytest.fixture(scope="module")
def truth() -> np.ndarray[Any, Any]:
    noise = np.random.default_rng(0).normal(size=SHAPE)
    return np.round(280 + noise, 2).astype("f4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, truth: np.ndarray[Any, Any]) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    dims = ("time", "lat", "lon")

    def netcdf(name: str, chunks: Any, kind: str = "NETCDF4", variables: int = 1) -> None:
        with netCDF4.Dataset(folder / name, "w", format=kind) as ds:
            for dim, n in zip(dims, SHAPE, strict=True):
                ds.createDimension(dim, None if dim == "time" and chunks is not None else n)
                ds.createVariable(dim, "f8", (dim,))[:] = np.arange(n)
            options = {"chunksizes": chunks, "zlib": True} if chunks else {}
            many = [ds.createVariable(f"v{i}", "f4", dims, **options) for i in range(variables)]
            if chunks:
                many[0][:] = truth
                return
            for t in range(SHAPE[0]):  # records one after another
                for variable in many:
                    variable[t] = truth[t]

    def hdf5(name: str, maxshape: Any, libver: str) -> None:
        with h5py.File(folder / name, "w", libver=libver) as file:
            file.create_dataset(
                "v0", data=truth, chunks=CHUNKS, maxshape=maxshape, compression="gzip", shuffle=True
            )

    netcdf("simple.nc", CHUNKS)
    netcdf("big.nc", (1, *SHAPE[1:]))
    netcdf("contiguous.nc", None)
    netcdf("records.nc", (), "NETCDF3_64BIT_OFFSET", 2)
    netcdf("cdf5.nc", None, "NETCDF3_64BIT_DATA", 2)
    hdf5("fixed.h5", None, "latest")
    hdf5("extensible.h5", (None, *SHAPE[1:]), "latest")
    hdf5("btree2.h5", (None, None, SHAPE[2]), "latest")
    return folder


FILES = [
    "simple.nc", "big.nc", "contiguous.nc", "records.nc", "cdf5.nc",
    "fixed.h5", "extensible.h5", "btree2.h5",
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranges"), each_once(FILES, [100, 1]))
def test_rounds(folder: Path, truth: np.ndarray[Any, Any], name: str, ranges: int) -> None:
    """At most so many rounds to open, and for each read, with values that are right."""
    records = name == "records.nc"  # whose time coordinate lies between the records
    lookup = 3 if name == "btree2.h5" else 2
    lookup = {"contiguous.nc": 0, "records.nc": 0, "cdf5.nc": 0, "big.nc": 1}.get(name, lookup)
    for key in (STEP, POINT, FULL):
        with Session(folder / name, ranges) as session:
            assert session.opening == (2 if records else 1)
            np.testing.assert_array_equal(session.read("v0", key), truth[key])
            assert session.rounds <= lookup + 1


@pytest.mark.parametrize("name", ["big.nc", "contiguous.nc", "records.nc", "cdf5.nc"])
def test_a_full_read_moves_little_more_than_the_data(
    folder: Path, truth: np.ndarray[Any, Any], name: str
) -> None:
    with Session(folder / name) as session:
        session.read("v0", FULL)
        # an uncompressed file may have another variable besides
        size = session.source.size if name == "big.nc" else truth.nbytes
        assert session.source.moved <= 1.03 * size


@pytest.mark.parametrize(
    ("maxshape", "libver"),
    each_once([None, (None, 180, 360), (None, None, 360)], ["latest", "earliest"]),
)
def test_a_full_read_of_chunks_moves_little_more_than_the_file(
    tmp_path: Path, libver: str, maxshape: Any
) -> None:
    """1,008 chunks of 10 kB: as they are in the benchmark files, where the index is interleaved."""
    data = np.round(np.random.default_rng(0).normal(280, 1, (70, 180, 360)), 2).astype("f4")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver) as file:
        options = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
        file.create_dataset("v0", data=data, chunks=(5, 30, 30), maxshape=maxshape, **options)
    with Session(path) as session:
        np.testing.assert_array_equal(session.read("v0", FULL), data)
        assert session.source.moved <= 1.03 * session.source.size


@pytest.mark.parametrize("name", ["simple.nc", "btree2.h5", "fixed.h5", "extensible.h5"])
def test_a_lookup_reads_only_what_it_needs(folder: Path, name: str) -> None:
    """One chunk of 10,512: a few nodes of the index, not all of it."""
    with Session(folder / name) as session:
        session.read("v0", (700, 3, 3))
        assert session.rounds <= 4
        assert session.source.moved < 80_000  # all nodes are 300 to 700 kB
        session.read("v0", (701, 3, 4))  # the same chunk: its nodes are known
        assert session.rounds == 1


@pytest.mark.slow
def test_two_hundred_scattered_variables(tmp_path: Path) -> None:
    """Defined and written one after another: headers and attributes lie all over the file."""
    path = tmp_path / "many.nc"
    values = np.random.default_rng(0).normal(size=(12, 30, 60)).astype("f4")
    with netCDF4.Dataset(path, "w") as ds:
        for name, n in (("time", 12), ("lat", 30), ("lon", 60)):
            ds.createDimension(name, n)
            ds.createVariable(name, "f8", (name,))[:] = np.arange(n)
        for i in range(200):
            variable = ds.createVariable(
                f"var{i:03}", "f4", ("time", "lat", "lon"), zlib=True, chunksizes=(1, 30, 60)
            )
            for k in range(10):
                variable.setncattr(f"attr{k}", f"value {i} {k} " * 3)
            variable[:] = values + i
            ds.sync()
    with Session(path) as session:
        assert session.opening <= 8
        assert len(session.source.requests) <= 60
        variables = session.hierarchy.root.variables
        assert len(variables) == 203
        assert variables["var150"].attributes["attr3"].value == "value 150 3 " * 3
        data = session.read("var150", FULL)
        np.testing.assert_array_equal(data, values + np.float32(150))
        assert session.rounds <= 3
