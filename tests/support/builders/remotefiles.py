"""Classic and HDF5 files for tests of reading them from afar, and how to compare what is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.support.servers.realservers import RangeServer, range_server

#: what each file is written as
FORMATS = {
    "h5.nc": "NETCDF4",
    "c1.nc": "NETCDF3_CLASSIC",
    "c2.nc": "NETCDF3_64BIT_OFFSET",
    "c5.nc": "NETCDF3_64BIT_DATA",
}
STEPS, SIZE = 100, 25


def write_file(path: Path, seed: int = 0) -> Path:
    """Write a file of about 800 kB in the format of `FORMATS` that its name stands for.

    With another `seed` it holds other values. Its variables were defined and written one after
    another, so that metadata and the time coordinate are not only at the beginning. HDF5 also
    gets groups and text.
    """
    kind = FORMATS.get(path.name, "NETCDF4")
    random = np.random.default_rng(seed)
    with netCDF4.Dataset(path, "w", format=kind) as ds:
        ds.title = f"file {seed}"
        ds.createDimension("time", None)
        ds.createDimension("y", SIZE)
        ds.createDimension("x", SIZE + 1)
        hdf5 = kind == "NETCDF4"
        for i in range(4):
            options: dict[str, Any] = {"zlib": True, "complevel": 1, "chunksizes": (10, SIZE, 13)}
            variable = ds.createVariable(
                f"v{i}", "f4" if i % 2 else "i2", ("time", "y", "x"), **(options if hdf5 else {})
            )
            for k in range(5):
                variable.setncattr(f"note{k}", f"variable {i}, note {k} " * 5)
            values = random.normal(size=(STEPS, SIZE, SIZE + 1)) * 1000
            variable[:] = values.astype(variable.dtype)
            ds.sync()
        time = ds.createVariable("time", "f8", ("time",))
        time.units = "hours since 2001-02-03"
        time[:] = np.arange(STEPS) + seed
        x = ds.createVariable("x", "f4", ("x",))
        x[:] = np.linspace(0, 1, SIZE + 1)
        packed = ds.createVariable("packed", "i2", ("y", "x"), fill_value=-1)
        packed.setncatts({"scale_factor": 0.5, "add_offset": np.float64(10)})
        packed[:] = random.integers(0, 1000, (SIZE, SIZE + 1)) / 2 + 10
        letters = ds.createVariable("letters", "S1", ("x",))
        letters[:] = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", "S1")
        ds.createVariable("scalar", "i4").assignValue(seed)
        if hdf5:
            group = ds.createGroup("model/run")
            group.createDimension("z", 3)
            group.createVariable("z", "f8", ("z",))[:] = [1, 2, 3]
            group.createVariable("w", "f8", ("time", "z"))[:] = random.normal(size=(STEPS, 3))
            text = ds.createVariable("text", str, ("y",))
            text[:] = np.array([f"text {n} é" for n in range(SIZE)], dtype=object)
    return path


def write_chunks(path: Path) -> Path:
    """Write a file with 3,000 chunks, whose index is not with the other metadata."""
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("time", None)
        ds.createDimension("x", 200)
        variable = ds.createVariable("v", "f8", ("time", "x"), chunksizes=(1, 100), zlib=True)
        variable[:] = np.random.default_rng(0).normal(size=(1500, 200))
    return path


def write_all(folder: Path) -> Path:
    """All of `FORMATS`, and ``plain``: ``h5.nc`` under a name that does not tell what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FORMATS:
        write_file(folder / name)
    (folder / "plain").write_bytes((folder / "h5.nc").read_bytes())
    return folder


@pytest.fixture(scope="session")
def files_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of `write_all`; tests may add others to it."""
    return write_all(tmp_path_factory.mktemp("files") / "root")


@pytest.fixture(scope="session")
def files_server(files_root: Path) -> Iterator[RangeServer]:
    """The range server of that folder; whoever uses it first sets its knobs."""
    with range_server(files_root) as server:
        yield server


def expected(path: Path, **options: Any) -> xr.Dataset:
    """What ``engine="netcdf4"`` reads, in memory."""
    with xr.open_dataset(path, engine="netcdf4", **options) as ds:
        return ds.load()


def check(target: Any, path: Path, **options: Any) -> None:
    """Compare all of `target`, as our engine reads it, with what `expected` says of `path`."""
    with xr.open_dataset(target, engine="nczarr", **options) as ds:
        xr.testing.assert_identical(ds.load(), expected(path))
