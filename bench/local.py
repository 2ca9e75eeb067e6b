"""Reading local data: ``engine="nczarr"`` against its peers, in one interleaved run.

Usage: ``python bench/local.py [--repeat N] [--scale F] [--output docs/bench]``

Every case is read by every engine in turn, `repeat` times, after one warm-up
that is not counted; min, median and max are reported, and the ratio of medians
to the fastest peer that gave the right values. Data are made in a temporary
directory and stay in the page cache: this measures us, not a disk. Peers get
their defaults, which are what users get; ``engine="netcdf4"`` reads the same
values from an equivalent netCDF-4 file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

BEGIN, END = "<!-- bench/local.py begin -->", "<!-- bench/local.py end -->"
PACKAGES = ("nczarr-xarray", "xarray", "zarr", "numcodecs", "netCDF4", "deflate", "numpy", "dask")


@dataclass(frozen=True)
class Case:
    """One kind of work: how its data are written, and what is read."""

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    netcdf: dict[str, Any]
    zarr: dict[str, Any]
    select: Callable[[xr.Dataset], Any] = lambda ds: ds["v"].values


def shuffled_zlib(level: int) -> dict[str, Any]:
    import numcodecs

    return {"compressors": numcodecs.Zlib(level), "filters": [numcodecs.Shuffle(4)]}


def cases(scale: float) -> list[Case]:
    import numcodecs

    side = int(6400 * scale) // 64 * 64
    steps = max(4, int(200 * scale))
    zlib1 = {"zlib": True, "complevel": 1, "shuffle": True}
    small = ((side, side), (64, 64))
    big = ((steps, 512, 1024), (1, 512, 1024))
    raw: dict[str, Any] = {"compressors": None, "filters": None}
    zstd: dict[str, Any] = {"compressors": numcodecs.Zstd(3), "filters": None}
    blosc: dict[str, Any] = {"compressors": numcodecs.Blosc("lz4", 5, 1), "filters": None}
    one = (*small, zlib1, shuffled_zlib(1))
    many = (*big, zlib1, shuffled_zlib(1))
    return [
        Case("small chunks, shuffled zlib", *one),
        Case("big chunks, shuffled zlib", *many),
        Case("small chunks, uncompressed", *small, {}, raw),
        Case("big chunks, uncompressed", *big, {}, raw),
        Case("small chunks, zstd", *small, {"compression": "zstd", "complevel": 3}, zstd),
        Case(
            "big chunks, blosc lz4", *big, {"compression": "blosc_lz4", "blosc_shuffle": 1}, blosc
        ),
        Case("point series, big chunks", *many, lambda ds: ds["v"][:, 100, 200].values),
        Case("one row of small chunks", *one, lambda ds: ds["v"][100, :].values),
        Case("every 7th of small chunks", *one, lambda ds: ds["v"][::7, ::7].values),
        Case("1,000 points, small chunks", *one, points),
        Case("one element", *one, lambda ds: ds["v"][17, 33].values),
    ]


def points(ds: xr.Dataset) -> Any:
    generator = np.random.default_rng(1)
    rows, columns = (xr.DataArray(generator.integers(0, n, 1000), dims="p") for n in ds["v"].shape)
    return ds["v"].isel(y=rows, x=columns).values


def field(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Smooth with noise in the last digits, like most geophysical fields."""
    axes = [
        np.linspace(0, 6, n, dtype="f4").reshape([-1 if i == k else 1 for i in range(len(shape))])
        for k, n in enumerate(shape)
    ]
    values = 280 + 20 * sum(np.sin(a + k) for k, a in enumerate(axes))
    noise = np.random.default_rng(0).normal(scale=0.01, size=shape).astype("f4")
    return np.round(values + noise, 3).astype("f4")


def write(case: Case, folder: Path) -> dict[str, str]:
    dims = ("t", "y", "x")[-len(case.shape) :]
    ds = xr.Dataset({"v": (dims, field(case.shape))})
    tree, file = folder / "v.zarr", folder / "v.nc"
    encoding = {"v": {"chunks": case.chunks, **case.zarr}}
    ds.to_zarr(tree, zarr_format=2, encoding=encoding, consolidated=False)
    encoding = {"v": {"chunksizes": case.chunks, "_FillValue": None, **case.netcdf}}
    ds.to_netcdf(file, engine="netcdf4", encoding=encoding)
    return {"nczarr": str(tree), "zarr": str(tree), "netcdf4": str(file)}


def read(engine: str, target: str, select: Callable[[xr.Dataset], Any]) -> Any:
    options = {"consolidated": False} if engine == "zarr" else {}
    with xr.open_dataset(target, engine=engine, cache=False, **options) as ds:
        return select(ds)


def many_variables(folder: Path) -> dict[str, str]:
    """500 variables in 20 groups, as netCDF-C writes them."""
    import netCDF4

    targets = {"nczarr": f"file://{folder}/m.file#mode=nczarr,file", "netcdf4": f"{folder}/m.nc"}
    for target in targets.values():
        with netCDF4.Dataset(target, "w") as root:
            for g in range(20):
                group = root.createGroup(f"g{g:02}")
                group.createDimension("x", 10)
                for v in range(25):
                    variable = group.createVariable(f"v{v:02}", "f4", ("x",))
                    variable.units, variable.long_name = "K", f"variable {v}"
                    variable[:] = np.arange(10)
    return {**targets, "zarr": f"{folder}/m.file"}


def open_all(engine: str, target: str) -> int:
    options = {"consolidated": False} if engine == "zarr" else {}
    groups = xr.open_groups(target, engine=engine, **options)
    count = sum(len(ds.variables) for ds in groups.values())
    for ds in groups.values():
        ds.close()
    return count


def measure(work: dict[str, Callable[[], Any]], repeat: int) -> dict[str, dict[str, Any]]:
    """Time each engine in turn, A B C A B C ..., after one warm-up that checks the values."""
    reference = work["nczarr"]()
    results: dict[str, dict[str, Any]] = {}
    for engine, function in work.items():
        try:
            right = bool(np.array_equal(function(), reference))
            results[engine] = {"times": [], "right": right}
        except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
            results[engine] = {
                "times": [],
                "right": False,
                "error": f"{type(error).__name__}: {error}"[:200],
            }
    for _ in range(repeat):
        for engine, function in work.items():
            if "error" not in results[engine]:
                start = time.perf_counter()
                function()
                results[engine]["times"].append(time.perf_counter() - start)
    return results


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            ln.split(":")[1].strip() for ln in info.read_text().splitlines() if "model name" in ln
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        "| work | nczarr (min–max) | zarr | netcdf4 | zarr / nczarr | best peer / nczarr |",
        "|---|---|---|---|---|---|",
    ]
    for name, engines in results.items():
        medians = {e: statistics.median(r["times"]) for e, r in engines.items() if r["times"]}
        ours = engines["nczarr"]["times"]
        cells = []
        for peer in ("zarr", "netcdf4"):
            text = f"{medians[peer] * 1e3:.1f} ms" if peer in medians else "fails"
            cells.append(
                text
                if engines[peer].get("right") or peer not in medians
                else f"{text} (wrong values)"
            )
        right = [medians[p] for p in ("zarr", "netcdf4") if p in medians and engines[p]["right"]]
        ratio = f"{medians['zarr'] / medians['nczarr']:.1f}" if "zarr" in medians else "–"
        best = f"{min(right) / medians['nczarr']:.1f}" if right else "–"
        spread = f"{min(ours) * 1e3:.1f}–{max(ours) * 1e3:.1f}"
        own = f"{medians['nczarr'] * 1e3:.1f} ms ({spread})"
        lines.append(f"| {name} | {own} | {cells[0]} | {cells[1]} | {ratio} | {best} |")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = list(results)
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(names) + 1.2), layout="constrained")
    colours = {"nczarr": "#1b7837", "netcdf4": "#a6bddb", "zarr": "#fdae61"}
    for offset, engine in enumerate(("nczarr", "netcdf4", "zarr")):
        for i, name in enumerate(names):
            times = results[name][engine]["times"]
            if times:
                label = engine if i == 0 else None
                axes.barh(
                    i + 0.27 * (offset - 1),
                    statistics.median(times),
                    0.25,
                    color=colours[engine],
                    label=label,
                )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds (median, logarithmic)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _insert(page: Path, text: str) -> None:
    """Put the table between its marks in the page on speed."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data, 1: 164-420 MB a case"
    )
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument(
        "--output", type=Path, help="folder for local.json and local.png (docs/bench)"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        written: dict[Any, dict[str, str]] = {}
        for case in cases(options.scale):
            if options.only not in case.name:
                continue
            key = (case.shape, case.chunks, repr(case.zarr))
            if key not in written:
                folder = Path(name) / str(len(written))
                folder.mkdir()
                written[key] = write(case, folder)
            work = {
                engine: lambda e=engine, t=target, s=case.select: read(e, t, s)
                for engine, target in written[key].items()
            }
            results[case.name] = measure(work, options.repeat)
            print(
                case.name,
                {
                    e: [round(t, 4) for t in r["times"]] or r.get("error")
                    for e, r in results[case.name].items()
                },
                file=sys.stderr,
            )
        if options.only in "open 500 variables in 20 groups":
            targets = many_variables(Path(name))
            work = {e: lambda e=e, t=t: open_all(e, t) for e, t in targets.items()}
            results["open 500 variables in 20 groups"] = measure(work, options.repeat)
    text = table(results)
    print(text)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        where = machine()
        document = {
            "machine": where,
            "repeat": options.repeat,
            "scale": options.scale,
            "results": results,
        }
        (options.output / "local.json").write_text(json.dumps(document, indent=1) + "\n")
        versions = ", ".join(f"{k} {v}" for k, v in where["versions"].items())
        head = f"{where['cores']} cores, {where['cpu']}, Python {where['python']}; {versions}. "
        command = f"python bench/local.py --repeat {options.repeat} --scale {options.scale}"
        head += f"`{command} --output docs/bench`"
        _insert(options.output.parent / "speed.md", f"{head}\n\n{text}\n")
        plot(results, options.output / "local.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
