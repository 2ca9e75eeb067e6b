"""Make the files that bench/remote.py reads, 1.4 GB: ``python bench/remote_files.py DIR``.

Each stands for one way of finding a value: every kind of chunk index of HDF5, contiguous data,
metadata scattered over the file, and the two shapes of classic files (records of two variables
that take turns, and variables in one piece). All hold the same field, which `truth.npy` has too,
or its first `steps` steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TIMES, LATS, LONS = 730, 180, 360
LAT = np.linspace(-89.5, 89.5, LATS)
LON = np.arange(LONS) + 0.5
TRUTH = "truth.npy"
MANY = 200
"""Variables of n4_many.nc."""

Field = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BenchFile:
    """One file, how it is written, and the steps of the field that it holds."""

    name: str
    write: Callable[[Path, Field], None]
    steps: int = TIMES


def field() -> Field:
    """Temperatures with two decimals, shape (time, lat, lon): they compress like observed ones."""
    generator = np.random.default_rng(0)
    waves = 3 * np.sin(np.deg2rad(LON) * 3)
    base = (280 + 15 * np.cos(np.deg2rad(LAT))[:, None] + waves).astype("f4")
    data = np.empty((TIMES, LATS, LONS), "f4")
    for t, step in enumerate(data):
        values = base + 5 * np.sin(t / 58) + generator.normal(size=base.shape)
        step[:] = np.round(values * 100) / 100
    return data


def netcdf(
    path: Path,
    data: Field,
    *,
    form: Any = "NETCDF4",
    chunks: tuple[int, ...] | None = None,
    unlimited: bool = True,
    names: tuple[str, ...] = ("tas",),
) -> None:
    """As netCDF-C writes it; record by record where a model would."""
    import netCDF4

    storage: dict[str, Any] = {}
    if chunks is not None:
        storage = {"chunksizes": chunks, "zlib": True, "shuffle": True, "complevel": 4}
    with netCDF4.Dataset(path, "w", format=form) as ds:
        ds.title, ds.Conventions = "bench", "CF-1.8"
        _coordinates(ds, {"time": len(data), "lat": LATS, "lon": LONS}, unlimited=unlimited)
        variables = [
            ds.createVariable(name, "f4", ("time", "lat", "lon"), **storage) for name in names
        ]
        for variable in variables:
            variable.units, variable.long_name = "K", "air temperature"
        if unlimited and (chunks is None or chunks[0] == 1):
            for t, step in enumerate(data):
                for variable in variables:
                    variable[t] = step
        else:
            for variable in variables:
                variable[:] = data


def many_variables(path: Path, data: Field) -> None:
    """Variables defined and written one after another: their metadata are all over the file."""
    import netCDF4

    with netCDF4.Dataset(path, "w") as ds:
        _coordinates(ds, {"time": 12, "lat": LATS // 2, "lon": LONS // 2}, unlimited=False)
        for i in range(MANY):
            variable = ds.createVariable(
                f"var{i:03}",
                "f4",
                ("time", "lat", "lon"),
                zlib=True,
                shuffle=True,
                chunksizes=(1, LATS // 2, LONS // 2),
                fill_value=1e20,
            )
            for k in range(10):
                variable.setncattr(f"attr{k}", f"value {i} {k} " * 3)
            variable.units, variable.standard_name = "K", "x"
            variable.valid_range = np.array([0, 400], "f4")
            variable[:] = data[i : i + 12, ::2, ::2]
            ds.sync()


def hdf5(
    path: Path, data: Field, *, maxshape: tuple[int | None, ...] | None = None, **options: Any
) -> None:
    """As h5py writes it, with dimension scales; `maxshape` and libver decide about the index."""
    import h5py

    with h5py.File(path, "w", **options) as file:
        units = ("days since 2000-01-01", "degrees_north", "degrees_east")
        axes = (np.arange(float(TIMES)), LAT, LON)
        for name, values, unit in zip(("time", "lat", "lon"), axes, units, strict=True):
            scale = file.create_dataset(name, data=values)
            scale.make_scale(name)
            scale.attrs["units"] = unit
        variable = file.create_dataset(
            "tas",
            shape=data.shape,
            dtype="f4",
            chunks=(5, 30, 30),
            maxshape=maxshape,
            compression="gzip",
            compression_opts=4,
            shuffle=True,
        )
        for i, name in enumerate(("time", "lat", "lon")):
            variable.dims[i].attach_scale(file[name])
        variable.attrs["units"] = "K"
        variable[:] = data


def _coordinates(ds: Any, sizes: dict[str, int], *, unlimited: bool) -> None:
    every = LATS // sizes["lat"]
    axes = (np.arange(float(sizes["time"])), LAT[::every], LON[::every])
    units = ("days since 2000-01-01", "degrees_north", "degrees_east")
    for name, size in sizes.items():
        ds.createDimension(name, None if unlimited and name == "time" else size)
    for name, values, unit in zip(sizes, axes, units, strict=True):
        variable = ds.createVariable(name, "f8", (name,))
        variable.units = unit
        variable[:] = values


TWO = ("tas", "v1")
FILES = {
    file.name: file
    for file in (
        BenchFile("n4_big.nc", partial(netcdf, chunks=(1, LATS, LONS))),
        BenchFile("n4_small.nc", partial(netcdf, chunks=(10, 30, 60))),
        BenchFile("n4_tiny.nc", partial(netcdf, chunks=(5, 30, 30))),
        BenchFile("n4_contig.nc", partial(netcdf, unlimited=False), steps=365),
        BenchFile("n4_many.nc", many_variables, steps=12),
        BenchFile("c2.nc", partial(netcdf, form="NETCDF3_64BIT_OFFSET", names=TWO), steps=365),
        BenchFile(
            "c5.nc",
            partial(netcdf, form="NETCDF3_64BIT_DATA", names=TWO, unlimited=False),
            steps=365,
        ),
        BenchFile("h5_fa.h5", partial(hdf5, libver="latest")),
        BenchFile("h5_ea.h5", partial(hdf5, libver="latest", maxshape=(None, LATS, LONS))),
        BenchFile("h5_bt2.h5", partial(hdf5, libver="latest", maxshape=(None, None, LONS))),
        BenchFile(
            "h5_paged.h5", partial(hdf5, libver="latest", fs_strategy="page", fs_page_size=4 << 20)
        ),
        # Read once by every reader before anything is timed, so that imports are not.
        BenchFile("warm_hdf5.nc", partial(netcdf, chunks=(2, LATS, LONS)), steps=4),
        BenchFile("warm_classic.nc", partial(netcdf, form="NETCDF3_64BIT_OFFSET"), steps=4),
    )
}


def make(folder: Path) -> None:
    """Write the files that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = folder / TRUTH
    if truth.exists():
        data = np.load(truth, mmap_mode="r")
    else:
        data = field()
        np.save(truth, data)
    for file in FILES.values():
        path = folder / file.name
        if path.exists():
            continue
        unfinished = path.with_suffix(".part")
        file.write(unfinished, data if file.name == "n4_many.nc" else data[: file.steps])
        unfinished.rename(path)
        print(f"{file.name}: {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    make(parser.parse_args().folder)
