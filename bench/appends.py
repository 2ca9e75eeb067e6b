"""One step appended to datasets of ever more steps, each of them a chunk.

Every writer makes a dataset of its own of each size, and appends one step to it `repeat` times,
after one that is not counted; the result is read back. What is reported is the least processor time
of this process: how long a disk takes for a few small files is another matter.
netCDF4-python writes a value into a variable that is there, without xarray, which checks little.

A tree of 10^6 steps has no chunk of the values yet, only its labels and a length, so that it is
made in a minute. The file has all of its chunks.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr
from harness import OURS, Options, heading, insert, machine

from nczarr_xarray import to_nczarr

SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: Trees of more steps have none of the values.
MOST_CHUNKS = 100_000
COORDINATE = 512  # chunk of the labels
Found = dict[int, dict[str, float | str]]


def steps(first: int, count: int) -> xr.Dataset:
    hours = np.arange(first, first + count)
    values = hours.astype("f4")[:, None] * np.ones(4, "f4")
    time_ = np.datetime64("2000-01-01", "ns") + hours * np.timedelta64(1, "h")
    return xr.Dataset({"v": (("time", "x"), values)}, {"time": time_})


def tree(count: int) -> xr.Dataset:
    """What a tree is made of."""
    ds = steps(0, count)
    return ds if count <= MOST_CHUNKS else ds.where(False)


def encoding(name: str) -> dict[str, dict[str, object]]:
    times = {name: (COORDINATE,), "units": "hours since 1999-12-31", "dtype": "i4"}
    return {"v": {name: (1, 4)}, "time": times}


def make_ours(target: Path, count: int) -> None:
    to_nczarr(tree(count), target, encoding=encoding("chunks"), unlimited_dims=["time"])


def append_ours(target: Path, count: int) -> None:
    to_nczarr(steps(count, 1), target, append_dim="time")


def make_zarr(target: Path, count: int) -> None:
    ds, stored = tree(count), count <= MOST_CHUNKS
    options = {"zarr_format": 2, "consolidated": False, "encoding": encoding("chunks")}
    (ds if stored else ds.chunk()).to_zarr(target, compute=stored, **options)


def append_zarr(target: Path, count: int) -> None:
    steps(count, 1).to_zarr(target, append_dim="time", zarr_format=2, consolidated=False)


def make_netcdf(target: Path, count: int) -> None:
    steps(0, count).to_netcdf(
        target, engine="netcdf4", encoding=encoding("chunksizes"), unlimited_dims=["time"]
    )


def append_netcdf(target: Path, count: int) -> None:
    with netCDF4.Dataset(target, "a") as root:
        root["v"][count] = np.full(4, count, "f4")
        root["time"][count] = 24 + count


Write = Callable[[Path, int], None]
WRITERS: dict[str, tuple[Write, Write, str]] = {
    OURS: (make_ours, append_ours, "nczarr"),
    "to_zarr": (make_zarr, append_zarr, "zarr"),
    "netCDF4 alone, one file": (make_netcdf, append_netcdf, "netcdf4"),
}


def seconds(target: Path, writer: str, size: int, repeat: int) -> float:
    make, append, engine = WRITERS[writer]
    make(target, size)
    times = []
    for count in range(size, size + repeat + 1):
        start = time.process_time()
        append(target, count)
        times.append(time.process_time() - start)
    options = {"consolidated": False} if engine == "zarr" else {}
    with xr.open_dataset(target, engine=engine, **options) as ds:
        xr.testing.assert_equal(ds.isel(time=slice(size, None)).load(), steps(size, repeat + 1))
    return min(times[1:])


def run(options: Options) -> Found:
    found: Found = {}
    for size in (int(size * options.scale) for size in SIZES):
        found[size] = {}
        for number, writer in enumerate(WRITERS):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found[size][writer] = seconds(
                        Path(folder) / f"v{number}", writer, size, options.repeat
                    )
                except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
                    found[size][writer] = f"{type(error).__name__}: {error}"[:80]
    return found


def table(found: Found) -> str:
    lines = [f"| steps there | {' | '.join(WRITERS)} | to_zarr / {OURS} |"]
    lines.append("|---" * (len(WRITERS) + 2) + "|")
    for size, times in found.items():
        cells = [t if isinstance(t, str) else f"{t * 1e3:.1f} ms" for t in times.values()]
        ours, peer = times[OURS], times["to_zarr"]
        both = isinstance(ours, float) and isinstance(peer, float)
        ratio = f"{float(peer) / float(ours):.1f}" if both else "–"
        lines.append(f"| {size:,} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def save(found: Found, options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the table on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "command": command, "repeat": options.repeat}
    text = json.dumps({**document, "seconds": found}, indent=1)
    (folder / "appends.json").write_text(text + "\n")
    insert(folder, "appends", f"{heading('appends', document)}\n\n{table(found)}")
