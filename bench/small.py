"""Opening and reading small files of the shapes that archives have, classic and netCDF-4.

A turn is `xarray.open_dataset(...)`, `load` and closing, of one file after the other; what is
compared is the whole dataset. The files have what costs time in small files: many variables,
attributes, records that take turns, characters, text, HDF5's old groups. No file is to take longer
than 1.5 times what engine netcdf4 takes, and the geometric mean of all ratios is to be 0.7 at most.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import xarray as xr
from harness import OURS, Goal, Options, Row, Work, measure

FORMATS = {
    "classic": "NETCDF3_CLASSIC",
    "64-bit": "NETCDF3_64BIT_OFFSET",
    "CDF-5": "NETCDF3_64BIT_DATA",
    "netCDF-4": "NETCDF4",
    "netCDF-4 classic": "NETCDF4_CLASSIC",
}
WORST, MEAN = 1.5, 0.7

CLASSIC = ("classic", "64-bit", "CDF-5")

Make = Callable[[netCDF4.Dataset, np.random.Generator], None]


def run(options: Options) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as name:
        works = [work(path) for path in write(Path(name))]
        rows = {w.name: measure(w, options.repeat) for w in works if options.wants(w.name)}
    ratios = [1 / ratio for row in rows.values() if (ratio := row.ratio("netcdf4"))]
    mean = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios)))
    told = f"geometric mean of nczarr / netcdf4: {mean:.2f} (at most {MEAN})"
    print(f"{told}, worst: {max(ratios, default=0):.2f} (at most {WORST})", file=sys.stderr)
    return rows


def work(path: Path) -> Work:
    programs: dict[str, Callable[[], Any] | float] = {
        OURS: partial(loaded, path, "nczarr"),
        "netcdf4": partial(loaded, path, "netcdf4"),
    }
    return Work(path.stem, programs, (Goal("netcdf4", 1 / WORST),), right=same)


def loaded(path: Path, engine: str) -> xr.Dataset:
    with xr.open_dataset(path, engine=engine) as dataset:
        return dataset.load()


def same(found: xr.Dataset, expected: xr.Dataset) -> bool:
    return bool(expected.identical(found))


def write(folder: Path) -> list[Path]:
    """Make every shape in every format that can hold it."""
    paths = []
    for shape, make in SHAPES.items():
        for short, format_ in FORMATS.items():
            if short not in ONLY.get(shape, FORMATS):
                continue
            path = folder / f"{shape}, {short}.nc"
            with netCDF4.Dataset(path, "w", format=format_) as file:
                make(file, np.random.default_rng(0))
            paths.append(path)
    paths.append(folder / "stations, old HDF5 groups.nc")
    old_groups(paths[-1])
    return paths


def letters(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.integers(65, 91, shape).astype("u1").view("S1")


def stations(file: netCDF4.Dataset, rng: np.random.Generator, records: int = 40) -> None:
    """Hourly reports: 104 values, each with a variable of quality marks; text in characters."""
    file.createDimension("recNum", None)
    for length in (3, 5, 12):
        file.createDimension(f"len{length}", length)
    for number in range(104):
        if number % 3:
            variable = file.createVariable(f"value{number}", "ifd"[number % 3], ("recNum",))
            variable[:] = rng.integers(0, 100, records)
            variable.units = "m"
            variable.missing_value = np.array(-99, variable.dtype)
        else:
            length = (3, 5, 12)[number % 9 // 3]
            variable = file.createVariable(f"text{number}", "S1", ("recNum", f"len{length}"))
            variable[:] = letters(rng, (records, length))
        variable.long_name = f"what instrument {number} says"
        quality = file.createVariable(f"quality{number}", "S1", ("recNum",))
        quality[:] = letters(rng, (records,))
        quality.long_name = "quality mark"


def many_records(file: netCDF4.Dataset, rng: np.random.Generator) -> None:
    """The same with more records than a page of the file holds."""
    stations(file, rng, 1000)


def profiles(file: netCDF4.Dataset, rng: np.random.Generator) -> None:
    """Ocean profiles: levels by profile, with flags and adjusted values, and much text."""
    for name, length in {"N_PROF": 12, "N_LEVELS": 70, "N_PARAM": 3}.items():
        file.createDimension(name, length)
    for length in (2, 4, 8, 16, 32, 64, 256):
        file.createDimension(f"STRING{length}", length)
    file.title = "profile file"
    for length in (2, 4, 8, 16, 32, 64):
        for number in range(4):
            name = f"TEXT_{length}_{number}"
            variable = file.createVariable(name, "S1", ("N_PROF", f"STRING{length}"))
            variable[:] = letters(rng, (12, length))
            variable.long_name, variable.conventions = "a reference", "Table 1"
    date = file.createVariable("JULD", "f8", ("N_PROF",), fill_value=999999.0)
    date.units = "days since 1950-01-01 00:00:00 UTC"
    date[:] = 20000 + rng.random(12)
    for parameter in ("PRES", "TEMP", "PSAL"):
        for suffix in ("", "_ADJUSTED", "_ADJUSTED_ERROR"):
            variable = file.createVariable(
                parameter + suffix, "f4", ("N_PROF", "N_LEVELS"), fill_value=99999.0
            )
            variable.units, variable.valid_min = "degree", np.float32(0)
            variable.C_format, variable.FORTRAN_format = "%9.3f", "F9.3"
            variable[:] = rng.random((12, 70), dtype="f4")
            flags = file.createVariable(f"{parameter}{suffix}_QC", "S1", ("N_PROF", "N_LEVELS"))
            flags[:] = letters(rng, (12, 70))


def converted(file: netCDF4.Dataset, rng: np.random.Generator) -> None:
    """What tools make of GRIB: few variables on a grid, packed, with all keys as attributes."""
    file.createDimension("time", None)
    for name, length in {"level": 4, "latitude": 37, "longitude": 72}.items():
        file.createDimension(name, length)
        axis = file.createVariable(name, "f4", (name,))
        axis[:] = np.arange(length)
        axis.units = "degrees"
    time = file.createVariable("time", "i4", ("time",))
    time.units, time.calendar = "hours since 1900-01-01 00:00:0.0", "gregorian"
    time[:] = np.arange(6)
    for name in ("z", "t", "u", "v"):
        variable = file.createVariable(
            name, "i2", ("time", "level", "latitude", "longitude"), fill_value=-32767
        )
        variable.set_auto_maskandscale(False)
        variable.scale_factor, variable.add_offset = 0.01, 250.0
        for key in range(25):
            variable.setncattr(f"GRIB_key{key}", key if key % 2 else f"value {key}")
        variable[:] = rng.integers(-9999, 9999, (6, 4, 37, 72))


def radar(file: netCDF4.Dataset, rng: np.random.Generator) -> None:
    """One sweep: fields of rays and gates, and many numbers about each ray."""
    file.createDimension("time", 360)
    file.createDimension("range", 200)
    file.createDimension("sweep", 1)
    for number in range(30):
        ray = file.createVariable(f"ray{number}", "f4", ("time",), fill_value=-9999.0)
        ray.units, ray.meta_group = "degrees", "instrument_parameters"
        ray[:] = rng.random(360, dtype="f4")
    for number in range(20):
        single = file.createVariable(f"single{number}", "f8", ())
        single.units = "m"
        single[...] = number
    for name in ("DBZ", "VEL", "WIDTH"):
        field = file.createVariable(name, "i2", ("time", "range"), fill_value=-32768)
        field.set_auto_maskandscale(False)
        field.scale_factor, field.add_offset = np.float32(0.01), np.float32(0)
        field[:] = rng.integers(-3000, 6000, (360, 200))


def attributes(file: netCDF4.Dataset, _: np.random.Generator) -> None:
    """Little data, and forty attributes for everything."""
    file.createDimension("x", 10)
    for owner in [file, *(file.createVariable(f"v{n}", "f4", ("x",)) for n in range(30))]:
        for number in range(40):
            value = (f"text number {number}", number, np.arange(3.0))[number % 3]
            owner.setncattr(f"attribute_{number}", value)


def text(file: netCDF4.Dataset, rng: np.random.Generator) -> None:
    """Variables of strings, as tables have them."""
    file.createDimension("row", 200)
    for number in range(20):
        column = file.createVariable(f"column{number}", str, ("row",))
        column[:] = np.array([f"entry {n}" for n in rng.integers(0, 999, 200)], object)


def old_groups(path: Path) -> None:
    """Variables as old versions of HDF5 keep them, in groups without order of creation."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file["station"] = np.arange(50.0)
        file["station"].make_scale("station")
        for number in range(120):
            name = f"value{number}"
            file.create_dataset(name, data=rng.random(50), chunks=(50,), compression="gzip")
            file[name].dims[0].attach_scale(file["station"])
            file[name].attrs["units"] = np.bytes_("m")


SHAPES: dict[str, Make] = {
    "stations": stations,
    "stations, many records": many_records,
    "profiles": profiles,
    "converted from GRIB": converted,
    "radar": radar,
    "attributes": attributes,
    "text": text,
}
#: Shapes of some formats only: records of netCDF-4 are chunks, and only it has strings.
ONLY = {"stations, many records": CLASSIC, "text": ("netCDF-4",)}
