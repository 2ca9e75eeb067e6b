#!/usr/bin/env python3
"""Do everything by turns in one process for an hour: right values, and no more memory than before.

    python ci/stress_soak.py --minutes 60

Each turn opens a dataset of some form in some place and reads it (one by one, many with `load`, by
threads, by `nczarr_xarray.netcdf4`), or grows one (an append, an aggregation, a refresh, a variable
of netCDF4's interface), or reads it while a server fails or a file changes. What is read is
compared with what numpy and netCDF4-python have of it; a fault must give an error of ours or the
right values. After each minute, and a collection of garbage, it notes what the process holds, and
how much of that `show_versions` says that it keeps for later reads. In the end it fails if anything
was wrong, or if the second half of the time added more than `BOUNDS` says.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import io
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)

import netCDF4  # noqa: E402 - the path comes first
import numpy as np  # noqa: E402
import s3fs  # noqa: E402
import xarray as xr  # noqa: E402

import nczarr_xarray  # noqa: E402
from nczarr_fsspec.errors import NCZarrError  # noqa: E402
from nczarr_xarray import netcdf4  # noqa: E402
from tests.support.servers.httpserver import Server  # noqa: E402
from tests.support.servers.s3server import S3Server, seaweed_s3  # noqa: E402

#: How much more the last fifth of the second half may hold than its first, by their medians.
BOUNDS = {"MB without caches": 4.0, "blocks of Python": 20000.0, "files": 20.0, "threads": 2.0}
#: Steps of each of the files that are aggregated, and how many there are.
STEPS, FILES = 5, 8
FORMS = ("a.nc", "classic.nc", "a.nczarr", "a.nczarr.zip", "a.zarr", "master.nca")
CHUNKS = (5, 8, 20)
Truth = xr.Dataset


def main() -> int:
    """Run as the command line says; 1 if anything was not as promised."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--only", default="", help="only work whose name contains this")
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nczarr-soak-")))
        (folder / "weed").mkdir()
        s3 = stack.enter_context(seaweed_s3(folder / "weed"))
        servers: Any = stack.enter_context(_Servers(ctx=multiprocessing.get_context("spawn")))
        soak = Soak(folder / "data", s3, servers.Web(), random.Random(given.seed))  # noqa: S311
        return _run(soak, given.minutes, given.only)


def _run(soak: Soak, minutes: float, only: str) -> int:
    found: collections.Counter[str] = collections.Counter()
    work = [one for one in soak.work if only in one.__name__]
    held: list[dict[str, float]] = []
    begin = time.monotonic()
    while len(held) < minutes:
        one = soak.chance.choice(work)
        try:
            found[f"{one.__name__}: {one() or 'right'}"] += 1
        except Exception as error:  # noqa: BLE001 - it is counted
            found[f"BAD {one.__name__}: {type(error).__name__}"] += 1
            print(f"BAD {one.__name__}, after {found.total()} turns", flush=True)
            traceback.print_exc()
        if time.monotonic() - begin > 60 * (len(held) + 1):
            held.append(_held())
            told = ", ".join(f"{what} {value:.6g}" for what, value in held[-1].items())
            print(f"{len(held)} minutes, {found.total()} turns: {told}", flush=True)
    for what, count in sorted(found.items()):
        print(f"{count:7} {what}")
    late = held[len(held) // 2 :]
    few = max(1, len(late) // 5)
    bad = any(what.startswith("BAD") for what in found)
    for what, bound in BOUNDS.items():
        first, last = (statistics.median(h[what] for h in h) for h in (late[:few], late[-few:]))
        bad |= last - first > bound
        print(f"{what}: {last - first:+.6g} from {first:.6g}, of {bound:g} at most")
    return bad


def _held() -> dict[str, float]:
    """Count what this process holds."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
    told = io.StringIO()
    nczarr_xarray.show_versions(told)
    kept = re.findall(
        r"^(?:decoded chunks|metadata of remote files): (?:.* files, )?(\d+) of",
        told.getvalue(),
        re.MULTILINE,
    )
    caches = sum(map(int, kept)) / 2**20
    return {
        "resident MB": resident,
        "MB of caches": caches,
        "MB without caches": resident - caches,
        "blocks of Python": sys.getallocatedblocks(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


# -- a server of HTTP in a process of its own, whose memory is not ours ---------------------------


class Web:
    """What serves files, and fails on request."""

    def __init__(self) -> None:
        self._server = Server({}, etag="md5", relent=False).__enter__()

    def url(self) -> str:
        """Return where it is."""
        return self._server.url

    def put(self, name: str, content: bytes) -> None:
        """Have a file."""
        self._server.files[f"/{name}"] = content

    def fail(self, fault: str, every: int) -> None:
        """Strike each so manieth request from now on, or none."""
        self._server.requests.clear()
        setattr(self._server, fault, every)


class _Servers(BaseManager):
    """The process of the server."""


_Servers.register("Web", Web)


# -- the work -------------------------------------------------------------------------------------


def _truth(seed: int, first: int = 0, steps: int = STEPS * FILES) -> Truth:
    draw = np.random.default_rng(seed)
    v = draw.random((steps, 24, 40), "f4")
    n = draw.integers(-1000, 1000, (steps, 24, 40), "i4")
    p = draw.integers(0, 1000, (steps, 24)) * 0.5
    times = np.arange(first, first + steps, dtype="i4")
    dims = ("time", "y", "x")
    return xr.Dataset(
        {"v": (dims, v), "n": (dims, n), "p": (dims[:2], p)},
        {"time": ("time", times), "x": ("x", np.arange(40.0))},
        {"seed": seed},
    )


def _encoding(key: str) -> dict[str, Any]:
    packed: dict[str, Any] = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -32768}
    own: dict[str, Any] = {} if key == "" else {key: CHUNKS}
    if key == "chunksizes":
        own |= {"zlib": True, "shuffle": True}
    return {"v": {**own}, "n": {**own}, "p": packed}


def _write_nc(truth: Truth, path: Path, form: Any = "NETCDF4") -> Path:
    encoding = _encoding("chunksizes" if form == "NETCDF4" else "")
    truth.to_netcdf(path, format=form, engine="netcdf4", encoding=encoding)
    return path


class Soak:
    """The datasets, what is known of them, and what is done with them."""

    def __init__(self, folder: Path, s3: S3Server, web: Web, chance: random.Random) -> None:
        self.folder, self.web, self.chance = folder, web, chance
        self.url = web.url()
        self.signed, self.bucket = s3.signed(), f"s3://{s3.private}/soak"
        self.fs = s3fs.S3FileSystem(**self.signed)
        self.number = 0
        self.truth = _truth(1)
        #: what datasets that grow have
        self.grown: dict[str, Truth] = {}
        self.work: list[Callable[[], str | None]] = [
            *[self.read] * 6,
            *[self.load_many] * 4,
            *[self.append] * 3,
            *[self.faults] * 2,
            self.threads,
            self.iterate,
            self.interface,
            self.interface_write,
            self.aggregate,
            self.refresh,
            self.changed_file,
            self.open_many,
        ]
        folder.mkdir()
        self._build()

    def _build(self) -> None:
        folder, truth = self.folder, self.truth
        _write_nc(truth, folder / "a.nc")
        _write_nc(truth, folder / "classic.nc", "NETCDF3_64BIT")
        for name in ("a.nczarr", "a.nczarr.zip"):
            nczarr_xarray.to_nczarr(truth, folder / name, encoding=_encoding("chunks"))
        truth.to_zarr(
            folder / "a.zarr", zarr_format=3, consolidated=True, encoding=_encoding("chunks")
        )
        for n in range(FILES):
            part = truth.isel(time=slice(n * STEPS, (n + 1) * STEPS))
            _write_nc(part, folder / f"part{n}.nc")
        self.parts = [folder / f"part{n}.nc" for n in range(FILES)]
        nczarr_xarray.aggregate(self.parts, folder / "master.nca")
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            name = path.relative_to(folder).as_posix()
            self.web.put(name, path.read_bytes())
            self.fs.put_file(str(path), f"{self.bucket}/{name}")
        others = [_truth(2), _truth(3)]
        self.others = [(t, _write_nc(t, folder / "other.nc").read_bytes()) for t in others]

    def next(self) -> int:
        """Return a number that nothing has."""
        self.number += 1
        return self.number

    def place(self, name: str = "", where: str = "") -> tuple[str, dict[str, Any]]:
        """Return where a dataset is, and the options of its filesystem."""
        name = name or self.chance.choice(FORMS)
        where = where or self.chance.choice(["here", "web", "s3"])
        if where == "here":
            return str(self.folder / name), {}
        if where == "s3":
            return f"{self.bucket}/{name}", self.signed
        new = name.endswith(".nc") and self.chance.random() < 0.3
        return f"{self.url}/{name}" + (f"?n={self.next()}" if new else ""), {}

    def open(self, place: tuple[str, dict[str, Any]]) -> xr.Dataset:
        """Open a dataset; xarray keeps nothing of it."""
        url, options = place
        return xr.open_dataset(url, engine="nczarr", cache=False, storage_options=options)

    def selection(self, truth: Truth) -> tuple[str, dict[str, Any]]:
        """Return a variable and what of it to take: a box, lists, an element, or points."""
        chance = self.chance
        name = chance.choice(["v", "v", "n", "p"])
        sizes = {str(dim): size for dim, size in truth[name].sizes.items()}
        kind = chance.choice(["box", "box", "lists", "points", "whole"])
        if kind == "whole":
            return name, {}
        if kind == "points":
            count = chance.randrange(1, 30)
            drawn = {d: [chance.randrange(size) for _ in range(count)] for d, size in sizes.items()}
            return name, {d: xr.DataArray(np.array(own), dims="p") for d, own in drawn.items()}
        taken: dict[str, Any] = {}
        for dim, size in sizes.items():
            start, stop = sorted(chance.sample(range(size + 1), 2))
            own: Any = slice(start, stop, chance.choice([1, 1, 3]))
            if kind == "lists":
                own = [chance.randrange(size) for _ in range(chance.randrange(1, 6))]
            taken[dim] = chance.choice([own, own, own, chance.randrange(size)])
        return name, taken

    def same(self, ours: xr.DataArray, theirs: xr.DataArray) -> None:
        """Raise an error if values differ."""
        if ours.dims != theirs.dims or not np.array_equal(ours.values, theirs.values):
            raise AssertionError(f"{ours.name} {ours.shape} is not what it is: {theirs.shape}")

    def look(self, ds: xr.Dataset, truth: Truth, times: int = 3) -> None:
        """Read some selections of a dataset."""
        for _ in range(times):
            name, taken = self.selection(truth)
            self.same(ds[name].isel(taken), truth[name].isel(taken))

    def whole(self, ds: xr.Dataset, truth: Truth) -> None:
        """Read all of a dataset."""
        for name in truth.variables:
            if name in ds.variables:
                self.same(ds[name], truth[name])

    def read(self) -> None:
        """Open a dataset, read it, close it."""
        with self.open(self.place()) as ds:
            self.look(ds, self.truth)

    def together(self, opened: list[xr.Dataset]) -> None:
        """Load many selections of some datasets together."""
        count = self.chance.randrange(2, 60)
        chosen = [(self.chance.choice(opened), *self.selection(self.truth)) for _ in range(count)]
        arrays = [ds[name].isel(taken) for ds, name, taken in chosen]
        if self.chance.random() < 0.3:
            asyncio.run(nczarr_xarray.load_async(*arrays))
        else:
            nczarr_xarray.load(*arrays)
        for array, (_, name, taken) in zip(arrays, chosen, strict=True):
            self.same(array, self.truth[name].isel(taken))

    def load_many(self) -> None:
        """Load many selections of up to three datasets."""
        with ExitStack() as stack:
            count = self.chance.randrange(1, 4)
            self.together([stack.enter_context(self.open(self.place())) for _ in range(count)])

    def iterate(self) -> None:
        """Load many selections in parts."""
        with self.open(self.place()) as ds:
            chosen = [self.selection(self.truth) for _ in range(30)]
            arrays = (ds[name].isel(taken) for name, taken in chosen)
            found = nczarr_xarray.iterate(arrays, max_bytes=1 << 18)
            for array, (name, taken) in zip(found, chosen, strict=True):
                self.same(array, self.truth[name].isel(taken))

    def threads(self) -> None:
        """Read a dataset with threads."""
        with self.open(self.place()) as ds, ThreadPoolExecutor(4) as pool:
            chosen = [self.selection(self.truth) for _ in range(20)]
            for array, (name, taken) in zip(
                pool.map(lambda one: ds[one[0]].isel(one[1]).load(), chosen), chosen, strict=True
            ):
                self.same(array, self.truth[name].isel(taken))

    def append(self) -> None:
        """Append to a dataset that grows, here or in S3, and read it."""
        name = self.chance.choice(["grows.nczarr", "grows.nczarr.zip", "grows.nczarr"])
        place, options = self.place(name, self.chance.choice(["here", "here", "s3"]))
        known = self.grown.get(place)
        length = 0 if known is None else known.sizes["time"]
        if length > 60:
            known, length = None, 0
        steps = self.chance.randrange(1, 8)
        more = _truth(length, length, steps)
        if known is None:
            known = more
            nczarr_xarray.to_nczarr(
                more,
                place,
                "w",
                storage_options=options,
                encoding=_encoding("chunks"),
                unlimited_dims=["time"],
            )
        else:
            known = xr.concat([known, more], "time", data_vars="minimal")
            nczarr_xarray.to_nczarr(more, place, storage_options=options, append_dim="time")
        self.grown[place] = known
        with self.open((place, options)) as ds:
            self.whole(ds, known)

    def interface(self) -> None:
        """Read as netCDF4-python does."""
        place, options = self.place()
        with netcdf4.Dataset(place, storage_options=options) as nc:
            start = self.chance.randrange(20)
            box = slice(start, start + self.chance.randrange(1, 20)), slice(None), slice(2, 30, 3)
            for name, key in (("v", box), ("p", start)):
                if not np.array_equal(nc[name][key], self.truth[name].values[key]):
                    raise AssertionError(place)

    def interface_write(self) -> None:
        """Write and grow a dataset as netCDF4-python does, and read it back."""
        path = self.folder / "interface.nczarr"
        rows = self.chance.randrange(2, 20)
        with netcdf4.Dataset(path, "w") as nc:
            nc.createDimension("t")
            nc.createDimension("x", 10)
            made = nc.createVariable("v", "f8", ("t", "x"), zlib=True, chunksizes=(3, 5))
            for row in range(rows):
                made[row] = np.arange(10) + row
        with netcdf4.Dataset(path, "a") as nc:
            nc["v"][rows : rows + 3] = -1
            nc["v"].units = "m"
        expected = np.arange(10) + np.arange(rows + 3.0)[:, None]
        expected[rows:] = -1
        with self.open((str(path), {})) as ds:
            self.same(ds.v, xr.DataArray(expected, dims=("t", "x")))

    def aggregate(self) -> None:
        """Aggregate some files, then append the others, here or in S3."""
        where = self.chance.choice(["here", "s3"])
        parts = [self.place(part.name, where)[0] for part in self.parts]
        master, options = self.place("made.nca", where)
        cut = self.chance.randrange(1, FILES)
        nczarr_xarray.aggregate(
            parts[:cut], master, dim="time", storage_options=options, overwrite=True
        )
        with self.open((master, options)) as ds:
            self.look(ds, self.truth.isel(time=slice(cut * STEPS)))
            nczarr_xarray.aggregate(parts, master, append=True, storage_options=options)
        with self.open((master, options)) as ds:
            self.look(ds, self.truth)

    def open_many(self) -> None:
        """Open files as one dataset, without a master."""
        where = self.chance.choice(["here", "s3", "web"])
        places = [self.place(part.name, where) for part in self.parts]
        self.chance.shuffle(places)
        with nczarr_xarray.open_many([p for p, _ in places], storage_options=places[0][1]) as ds:
            self.look(ds, self.truth)

    # -- faults -------------------------------------------------------------------------------

    def faults(self) -> str:
        """Read while the server fails."""
        fault = self.chance.choice(["unavailable_every", "cut_every", "reset_every"])
        every = self.chance.choice([1, 2, 3, 5, 5])
        early = self.chance.random() < 0.5
        place = self.place(where="web")
        try:
            with ExitStack() as stack:
                stack.callback(self.web.fail, fault, 0)
                if early:
                    self.web.fail(fault, every)
                ds = stack.enter_context(self.open(place))
                self.web.fail(fault, every)
                if self.chance.random() < 0.5:
                    self.look(ds, self.truth)
                else:
                    self.together([ds])
        except (NCZarrError, OSError) as error:
            return f"{fault}: {type(error).__name__}"
        return f"{fault}: right"

    def changed_file(self) -> str:
        """Read a file that is replaced after it was opened."""
        (old, content), (_, other) = self.chance.sample(self.others, 2)
        self.web.put("changes.nc", content)
        with self.open((f"{self.url}/changes.nc", {})) as ds:
            if self.chance.random() < 0.5:
                self.look(ds, old)
            self.web.put("changes.nc", other)
            try:
                self.look(ds, old)
            except NCZarrError as error:
                return type(error).__name__
        return "right"

    def refresh(self) -> str:
        """Read an aggregation of which a file changes, then refresh it."""
        master = self.folder / "refreshed.nca"
        parts = [self.folder / f"own{n}.nc" for n in range(3)]
        seeds = [self.next() for _ in parts]
        known = [_truth(seed, n * STEPS, STEPS) for n, seed in enumerate(seeds)]
        for truth, path in zip(known, parts, strict=True):
            _write_nc(truth, path.with_suffix(".new")).rename(path)
        nczarr_xarray.aggregate(parts, master, overwrite=True)
        told = "nothing"
        with self.open((str(master), {})) as ds:
            whole = xr.concat(known, "time", data_vars="minimal")
            self.look(ds, whole)
            known[1] = _truth(self.next(), STEPS, STEPS)
            _write_nc(known[1], parts[1].with_suffix(".new")).rename(parts[1])
            try:
                self.whole(ds, whole)
            except NCZarrError as error:
                told = type(error).__name__
        nczarr_xarray.aggregate(None, master, refresh=True)
        with self.open((str(master), {})) as ds:
            self.whole(ds, xr.concat(known, "time", data_vars="minimal"))
        with netCDF4.Dataset(parts[1]) as nc:
            if not np.array_equal(nc["v"][...], known[1].v):
                raise AssertionError("the file")
        return told


if __name__ == "__main__":
    sys.exit(main())
