#!/usr/bin/env python3
"""Who reads collections whose files differ: 20, made like real ones, and read in four ways.

    python ci/ragged.py FOLDER

It prints the table of docs/masters-for-others.md, and writes to standard error why a way fails. It
needs the newest icechunk, zarr and VirtualiZarr, and so Python 3.12 or later. Values are compared
with those that netCDF4 reads from each file; 1 is returned if one of ours differs.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import icechunk
import netCDF4
import numpy as np
import xarray as xr
import zarr

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nczarr_xarray

_LAT, _LON = np.linspace(-70, 70, 8), np.arange(16) * 22.5
_FILL = {"_FillValue": np.float32(1e20)}
_DEFLATED = {"zlib": True, "shuffle": True, "complevel": 4, **_FILL}
_NOLEAP, _YEARS, _MONTHS = [365] * 3, [365, 366, 365], [744, 672, 744]
#: The encoding of the variable in a file, by the number of the file and its steps.
_Encoding = Callable[[int, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Collection:
    """Files that belong together.

    Parameters
    ----------
    parts
        By file, which part of the whole it has.
    ours, theirs
        How `open_many` and VirtualiZarr are told to combine them, where they have to be told.
    """

    parts: Mapping[str, Mapping[str, Any]]
    ours: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)


def _whole(time: Sequence[float], lat: np.ndarray = _LAT, lon: np.ndarray = _LON) -> xr.Dataset:
    steps = np.asarray(time, "f8")
    values = steps[:, None, None] + lat[:, None] / 100 + lon / 1e4
    values[0, 0, 0] = np.nan
    coords = {"time": ("time", steps, {"units": "days since 1999-01-01"}), "lat": lat, "lon": lon}
    return xr.Dataset(
        {"tas": (("time", "lat", "lon"), values.astype("f4"), {"units": "K"})}, coords
    )


def _series(
    folder: Path,
    lengths: Sequence[int],
    how: _Encoding,
    kind: Any = "NETCDF4",
    *,
    unlimited: bool = True,
    dated: bool = False,
) -> Collection:
    parts, first = {}, 0
    for number, length in enumerate(lengths):
        path = str(folder / f"{number}.nc")
        ds = _whole(range(length) if dated else range(first, first + length))
        if dated:
            ds["time"].attrs["units"] = f"days since {1999 + number}-01-01"
        growing = ["time"] if unlimited else []
        ds.to_netcdf(
            path, format=kind, encoding={"tas": how(number, length)}, unlimited_dims=growing
        )
        parts[path] = {"time": slice(first, first + length)}
        first += length
    return Collection(parts)


def _in(steps: int = 1, lat: int = 8, **more: Any) -> _Encoding:
    return lambda _, length: {**_DEFLATED, "chunksizes": (min(steps, length), lat, 16), **more}


def _packed(number: int = 0) -> dict[str, Any]:
    return {"dtype": "i2", "scale_factor": 0.02 * (1 + number), "_FillValue": np.int16(-32767)}


def _goes(folder: Path) -> Collection:
    parts = {}
    for minute in range(6):
        path = str(folder / f"{minute}.nc")
        encoding = {"dtype": "u2", "scale_factor": 0.01, "_FillValue": np.uint16(65535)}
        _whole([minute]).isel(time=0).to_netcdf(path, encoding={"tas": {**_DEFLATED, **encoding}})
        parts[path] = {"time": minute}
    told = {"combine": "nested", "concat_dim": "time"}
    loaded = {"loadable_variables": ["time", "lat", "lon"]}
    return Collection(parts, {"dim": "time"}, told | loaded)


def _argo(folder: Path) -> Collection:
    parts, first = {}, 0
    for length in (3, 5, 2):
        path, numbers = str(folder / f"{first}.nc"), np.arange(first, first + length)
        with netCDF4.Dataset(path, "w") as file:
            for name, size in (("N_PROF", length), ("N_LEVELS", 200), ("STRING8", 8)):
                file.createDimension(name, size)
            made = file.createVariable("tas", "f4", ("N_PROF", "N_LEVELS"), fill_value=99999.0)
            made[:, :150] = np.arange(150) + 1000.0 * numbers[:, None]
            texts = np.array([f"59{number:06}" for number in numbers], "S8")
            file.createVariable("id", "S1", ("N_PROF", "STRING8"))[:] = netCDF4.stringtochar(texts)
        parts[path] = {"N_PROF": slice(first, first + length)}
        first += length
    told = {"combine": "nested", "concat_dim": "N_PROF"}
    return Collection(parts, {"dim": "N_PROF"}, told)


def _tiles(folder: Path, missing: int = 0) -> Collection:
    lat, lon, parts = np.linspace(-70, 70, 40), np.arange(50) * 7.0, {}
    rows, columns = ((0, 16), (16, 32), (32, 40)), ((0, 20), (20, 40), (40, 50))
    for row, column in [*itertools.product(rows, columns)][missing:]:
        path, part = str(folder / f"{row[0]}_{column[0]}.nc"), (slice(*row), slice(*column))
        ds = _whole(range(4), lat[part[0]], lon[part[1]])
        ds.to_netcdf(path, encoding={"tas": {**_DEFLATED, "chunksizes": (1, 8, 10)}})
        parts[path] = {"lat": part[0], "lon": part[1]}
    return Collection(parts)


def _outer(folder: Path, outer: str, inner: str, lengths: Sequence[int], steps: int) -> Collection:
    parts = {}
    ends = [*itertools.accumulate(lengths)]
    for number, (length, end) in itertools.product(range(3), zip(lengths, ends, strict=True)):
        path = str(folder / f"{number}_{end}.nc")
        ds = _whole(range(end - length, end)).rename(time=inner) + number
        encoding = {**_DEFLATED, "chunksizes": (1, min(steps, length), 8, 16)}
        ds.expand_dims({outer: [float(number)]}).to_netcdf(path, encoding={"tas": encoding})
        parts[path] = {outer: [number], inner: slice(end - length, end)}
    return Collection(parts)


_COLLECTIONS: Mapping[str, Callable[[Path], Collection]] = {
    "CMIP, no leap years, chunks of a day": lambda f: _series(f, _NOLEAP, _in()),
    "CMIP, leap years, chunks of a day": lambda f: _series(f, _YEARS, _in()),
    "CMIP, leap years, one chunk for each year": lambda f: _series(f, _YEARS, _in(366)),
    "CMIP, leap years, chunks of 30 days": lambda f: _series(f, _YEARS, _in(30)),
    "CMIP, leap years, contiguous": lambda f: _series(f, _YEARS, lambda *_: _FILL, unlimited=False),
    "CMIP, leap years, classic": lambda f: _series(f, _YEARS, lambda *_: _FILL, "NETCDF3_CLASSIC"),
    "CMIP, a reference date for each year": lambda f: _series(f, _YEARS, _in(), dated=True),
    "ERA5 by month, classic, packed in different ways": lambda f: _series(
        f, _MONTHS, lambda number, _: _packed(number), "NETCDF3_64BIT"
    ),
    "ERA5 by month, packed in one way, chunks of a day": lambda f: _series(
        f, _MONTHS, _in(24, **_packed())
    ),
    "ERA5 by month, two chunks for each": lambda f: _series(
        f, _MONTHS, lambda number, length: _in(length // 2)(number, length)
    ),
    "GOES by minute, without the dimension of time": _goes,
    "Argo profiles, with characters": _argo,
    "tiles, the last ones smaller": _tiles,
    "tiles, one without a file": lambda f: _tiles(f, 1),
    "forecasts: cycles and lead times": lambda f: _outer(f, "cycle", "lead", [5, 3], 5),
    "members and years": lambda f: _outer(f, "member", "time", _YEARS, 1),
    "levels of compression differ": lambda f: _series(
        f, _YEARS, lambda number, length: _in(complevel=1 + number)(number, length)
    ),
    "codecs differ": lambda f: _series(
        f, _YEARS, lambda number, length: _in(zlib=number > 0)(number, length)
    ),
    "chunks along time differ": lambda f: _series(
        f, [360, 360, 365], lambda number, length: _in((1, 10, 30)[number])(number, length)
    ),
    "chunks in space differ": lambda f: _series(
        f, _YEARS, lambda number, length: _in(lat=8 if number else 4)(number, length)
    ),
}


def _store(folder: Path) -> Any:
    url = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(url, files))
    new: Any = icechunk.Repository.create
    repository = new(
        icechunk.in_memory_storage(), config, authorize_virtual_chunk_access={url: None}
    )
    return repository.writable_session("main").store


def _references(folder: Path, found: Collection) -> xr.Dataset:
    target = str(folder / "all.json")
    nczarr_xarray.aggregate([*found.parts], target, **found.ours)
    options: Any = {"fo": target, "remote_protocol": "file"}
    return xr.open_dataset(
        "reference://", engine="zarr", storage_options=options, consolidated=False
    )


def _icechunk(folder: Path, found: Collection) -> xr.Dataset:
    store = _store(folder)
    nczarr_xarray.open_many([*found.parts], **found.ours).nczarr.save(store)
    return xr.open_zarr(store, consolidated=False)


def _virtualizarr(folder: Path, found: Collection) -> xr.Dataset:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser, NetCDF3Parser

    store = _store(folder)
    classic = Path(next(iter(found.parts))).read_bytes()[:3] == b"CDF"
    how: Any = {"combine": "by_coords", "data_vars": "minimal", "coords": "minimal"}
    virtual = open_virtual_mfdataset(
        [Path(file).as_uri() for file in found.parts],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=NetCDF3Parser() if classic else HDFParser(),
        compat="override",
        **how | found.theirs,
    )
    virtual.vz.to_icechunk(store)
    return xr.open_zarr(store, consolidated=False)


def _many(_: Path, found: Collection) -> xr.Dataset:
    return nczarr_xarray.open_many([*found.parts], **found.ours)


_WAYS: Mapping[str, Callable[[Path, Collection], xr.Dataset]] = {
    "engine zarr, our JSON": _references,
    "engine zarr, our Icechunk": _icechunk,
    "VirtualiZarr, Icechunk": _virtualizarr,
    "`open_many`": _many,
}


def _differing(whole: xr.Dataset, found: Collection) -> Iterator[str]:
    """Yield what differs from the values that netCDF4 reads from each file, decoded by xarray."""
    for path, part in found.parts.items():
        with xr.open_dataset(path, engine="netcdf4") as one:
            for name, variable in one.variables.items():
                here = {d: s for d, s in part.items() if d in whole[name].dims}
                values, expected = whole[name].isel(here).values, variable.values
                same = values.shape == expected.shape and (
                    np.allclose(values, expected, rtol=1e-6, equal_nan=True)
                    if expected.dtype.kind == "f"
                    else np.array_equal(values, expected)
                )
                if not same:
                    yield f"{name} of {Path(path).name}"


def _main(folder: Path) -> int:
    zarr.config.set({"array.rectilinear_chunks": True})
    warnings.simplefilter("ignore")
    right, wrong, by_all = dict.fromkeys(_WAYS, 0), 0, []
    print(f"| collection | {' | '.join(_WAYS)} |\n|---|{'---|' * len(_WAYS)}")
    for number, (name, make) in enumerate(_COLLECTIONS.items()):
        where = folder / str(number)
        where.mkdir(parents=True)
        found, row = make(where), []
        for way, read in _WAYS.items():
            try:
                with read(where, found) as whole:
                    reason = ", ".join(_differing(whole, found))
                row.append("**other values**" if reason else "yes")
                wrong += bool(reason) and read is not _virtualizarr
            except Exception as error:  # noqa: BLE001 - each way has its own
                row.append("refused")
                reason = f"{type(error).__name__}: {error}"
            right[way] += not reason
            if reason:
                print(f"{name}: {way}: {reason:.300}", file=sys.stderr)
        if {*row} == {"yes"}:
            by_all.append(name)
        else:
            print(f"| {name} | {' | '.join(row)} |", flush=True)
    print(f"| {'; '.join(by_all)} |{' yes |' * len(_WAYS)}")
    print(f"| **right, of {len(_COLLECTIONS)}** | {' | '.join(map(str, right.values()))} |")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]).resolve()))
