"""How cost grows: 10^3 to 10^6 chunks, 10 to 10^4 variables, each case in a process of its own.

*Chunks* hold four float32, so that what is seen is the cost of a chunk and not of its bytes: time
to open the dataset, to read its last element, to read everything, and the peak of memory beyond the
result (bench/memory.py says how). One dimension and two of them, in

- a tree with four chunks stored (the fill value elsewhere), and one with all of them (to 10^5),
- HDF5 files with each index that libhdf5 has for chunks: the B-tree of netCDF-C's files, full and
  with one chunk stored; and, as the newest format has it, none at all ("implicit"), the fixed
  array, and for unlimited dimensions the extensible array (one) or the second B-tree (two).

Beside ours, netCDF-C reads the files and zarr the trees, as far as they do it in seconds.

*Variables* have one dimension of length 10 and two attributes, in one group or in groups of 25, as
netCDF-C writes them to a tree or a file: time and memory to open all with ``xr.open_groups``.

Linear is what takes at most `TWICE` as long for each chunk or variable as with a tenth of them,
from `SMALLEST` chunks on: below that the fixed cost of a read is divided by too few. Opening must
not depend on the number of chunks at all, nor must reading one element. The least of a few turns
counts: what is asked for is the cost of our own work, not what else the machine did.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from harness import COLOURS, OURS, Options, heading, insert, machine
from memory import apart, growth

LENGTH = 4  # elements of a chunk
TWICE = 2.0
SMALLEST = 10_000
PATIENCE = {"zarr": 10_000, "netcdf4": 100_000}
"""So many chunks, or ten times fewer variables, take a peer some seconds."""

Writer = Callable[[Path, tuple[int, ...], tuple[int, ...]], None]


@dataclass(frozen=True, slots=True)
class Found:
    """One program on so many chunks (or variables): seconds, and bytes beyond the result."""

    what: str
    program: str
    count: int
    opening: float
    everything: float
    memory: int
    one: float = 0.0

    @property
    def series(self) -> str:
        return f"{self.what}: {self.program}"


@dataclass(frozen=True, slots=True)
class Kind:
    """How chunks are stored, by which engines they are read, and how many are written at most."""

    name: str
    write: Writer
    peer: str
    most: int = 10**6


def tree(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], *, full: bool) -> None:
    array = path / "v"
    array.mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    stored = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4", "order": "C"}
    stored |= {"compressor": None, "filters": None, "fill_value": 1.0}
    (array / ".zarray").write_text(json.dumps(stored))
    (array / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["y", "x"][-len(shape) :]}))
    grid = tuple(n // c for n, c in zip(shape, chunks, strict=True))
    chunk = np.full(LENGTH, 2, "<f4").tobytes()
    corners = [np.unravel_index(n, grid) for n in (0, 1, grid[-1] - 1, np.prod(grid) - 1)]
    for position in np.ndindex(grid) if full else corners:
        (array / ".".join(map(str, position))).write_bytes(chunk)


def hdf5(
    path: Path,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    *,
    newest: bool = False,
    early: bool = False,
    sparse: bool = False,
    unlimited: bool = False,
) -> None:
    import h5py

    with h5py.File(path, "w", libver="v114" if newest else ("earliest", "v108")) as file:
        most = (h5py.h5s.UNLIMITED,) * len(shape) if unlimited else shape
        space = h5py.h5s.create_simple(shape, most)
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk(chunks)
        when = h5py.h5d.ALLOC_TIME_EARLY if early else h5py.h5d.ALLOC_TIME_INCR
        layout.set_alloc_time(when)
        created = h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, layout)
        if sparse:
            h5py.Dataset(created)[(0,) * len(shape)] = 1
        elif not early:
            h5py.Dataset(created)[...] = np.ones(shape, "f4")


KINDS = (
    Kind("tree, 4 stored", partial(tree, full=False), "zarr"),
    Kind("tree, all stored", partial(tree, full=True), "zarr", 10**5),
    Kind("HDF5, B-tree", partial(hdf5, early=True), "netcdf4"),
    Kind("HDF5, B-tree, 1 stored", partial(hdf5, sparse=True), "netcdf4"),
    Kind("HDF5, implicit", partial(hdf5, newest=True, early=True), "netcdf4"),
    Kind("HDF5, fixed array", partial(hdf5, newest=True), "netcdf4", 10**5),
    Kind("HDF5, unlimited", partial(hdf5, newest=True, unlimited=True), "netcdf4", 10**5),
)


def run(options: Options) -> list[Found]:
    return [*chunks(options), *variables(options)]


def chunks(options: Options) -> list[Found]:
    found = []
    for kind in KINDS:
        for dimensions in (1, 2):
            what = f"{kind.name}, {dimensions}-D"
            if not options.wants(what):
                continue
            for shape in shapes(dimensions, min(kind.most, 10**6 * options.scale)):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "v"
                    kind.write(path, shape, (1,) * (dimensions - 1) + (LENGTH,))
                    count = int(np.prod(shape)) // LENGTH
                    for program in (OURS, kind.peer):
                        if count > 1.1 * PATIENCE.get(program, kind.most):
                            continue
                        turns = partial(read, program, path, turns_of(options, count))
                        opening, one, everything, memory = apart(turns)
                        found.append(Found(what, program, count, opening, everything, memory, one))
                        tell(found[-1])
    return found


def shapes(dimensions: int, most: float) -> Iterator[tuple[int, ...]]:
    """Of 10^3 chunks, 10^4, and so on; nearly as many where a square has not that number."""
    for power in range(3, 7):
        if 10**power <= most:
            side = round(10 ** (power / dimensions))
            yield (*(side,) * (dimensions - 1), side * LENGTH)


def variables(options: Options) -> list[Found]:
    found = []
    for size in (25, 10**6):
        for form in ("tree", "file"):
            what = f"variables, {form}, {'one group' if size > 25 else 'groups of 25'}"
            if not options.wants(what):
                continue
            for count in (10, 100, 1000, 10_000):
                if count > 10**4 * options.scale:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / "v.nc"
                    url = f"file://{path}#mode=nczarr,file" if form == "tree" else str(path)
                    write_variables(url, count, size)
                    for program in (OURS, "zarr" if form == "tree" else "netcdf4"):
                        if count * 10 > PATIENCE.get(program, 10**6):
                            continue
                        turns = partial(open_all, program, path, turns_of(options, 10 * count))
                        seconds, memory = apart(turns)
                        found.append(Found(what, program, count, seconds, seconds, memory))
                        tell(found[-1])
    return found


def write_variables(url: str, count: int, size: int) -> None:
    import netCDF4

    with netCDF4.Dataset(url, "w") as root:
        for first in range(0, count, size):
            group = root.createGroup(f"g{first:05}")
            group.createDimension("x", 10)
            for n in range(first, min(first + size, count)):
                variable = group.createVariable(f"v{n:05}", "f4", ("x",))
                variable.units, variable.long_name = "K", f"variable {n}"


def turns_of(options: Options, count: int) -> int:
    return min(options.repeat, 3) if count <= 10**5 else 1


def arguments(program: str) -> dict[str, Any]:
    return {"engine": program, **({"consolidated": False} if program == "zarr" else {})}


def read(program: str, path: Path, turns: int) -> tuple[float, float, float, int]:
    """Seconds to open, to read the last element, to read all; and bytes beyond the result."""
    warnings.simplefilter("ignore")
    times, memory = [], 0
    for turn in range(turns + 1):  # the first one imports
        gc.collect()
        start = time.perf_counter()
        with xr.open_dataset(path, cache=False, mask_and_scale=False, **arguments(program)) as ds:
            opening = time.perf_counter() - start
            variable = ds["v"]
            start = time.perf_counter()
            variable[(-1,) * variable.ndim].values  # noqa: B018
            one = time.perf_counter() - start
            if not turn:
                continue
            start = time.perf_counter()
            values, used = growth(partial(getattr, variable, "values"))
            times.append((opening, one, time.perf_counter() - start))
            # of the first: what is free afterwards would be used again
            memory = memory or max(1, used - values.nbytes)
    opening, one, everything = (min(column) for column in zip(*times, strict=True))
    return opening, one, everything, memory


def open_all(program: str, path: Path, turns: int) -> tuple[float, int]:
    """Seconds, and the bytes that an open dataset and the way to it need."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "v.nc"
        write_variables(f"file://{small}#mode=nczarr,file" if path.is_dir() else str(small), 2, 1)
        xr.open_groups(small, **arguments(program))  # imports
    times, memory = [], 0
    for _ in range(turns):
        gc.collect()
        start = time.perf_counter()
        groups, used = growth(lambda: xr.open_groups(path, **arguments(program)))
        times.append(time.perf_counter() - start)
        memory = memory or max(1, used)
        for ds in groups.values():
            ds.close()
        del groups, ds
    return min(times), memory


def tell(found: Found) -> None:
    each = 1e6 * found.everything / found.count
    print(
        f"{found.series} {found.count:,}: open {1e3 * found.opening:.1f} ms,"
        f" one {1e3 * found.one:.2f} ms, all {each:.1f} us each,"
        f" {found.memory / found.count:.0f} bytes each",
        file=sys.stderr,
        flush=True,
    )


def series(found: list[Found]) -> dict[str, list[Found]]:
    """By what is read and by whom, the counts ascending."""
    grouped: dict[str, list[Found]] = {}
    for each in found:
        grouped.setdefault(each.series, []).append(each)
    return grouped


def growing(found: list[Found]) -> list[str]:
    """What of ours is not linear."""
    told = []
    for name, points in series(found).items():
        large = [p for p in points if p.count >= 0.9 * SMALLEST or (not p.one and p.count >= 100)]
        for less, more in pairwise(large if points[0].program == OURS else []):
            times = more.count / less.count * TWICE
            if more.everything > times * less.everything:
                told.append(f"{name}: time of {more.count:,}")
            # within what a read of any size may need
            if more.memory > max(times * less.memory, 64 << 20):
                told.append(f"{name}: memory of {more.count:,}")
            if more.one and more.opening + more.one > TWICE * (less.opening + less.one) + 5e-3:
                told.append(f"{name}: opening and one element of {more.count:,}")
    return told


def table(found: list[Found]) -> str:
    """Of each kind in one dimension, with the most that were tried: opening, and one of them."""
    lines = ["| what | how many | open | each | peer, each |", "|---|---|---|---|---|"]
    for most in (points[-1] for points in series(found).values()):
        if most.program != OURS or most.what.endswith("2-D"):
            continue
        theirs = [one for one in found if one.what == most.what and one.program != OURS]
        cells = [most.what, f"{most.count:,}", f"{1e3 * most.opening:.1f} ms", _each(most)]
        cells.append(f"{theirs[-1].program}: {_each(theirs[-1])}" if theirs else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Not linear: {'; '.join(growing(found)) or 'nothing'}."])


def _each(found: Found) -> str:
    """Return the microseconds of one chunk or variable."""
    return f"{1e6 * found.everything / found.count:.1f} µs"


def plot(found: list[Found], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(13, 11), layout="constrained", sharex="col")
    markers = "osv^D*XP<>dp"
    for column, unit in enumerate(("chunk", "variable")):
        kinds: dict[str, str] = {}
        for points in series(found).values():
            if (points[0].one > 0) == column:
                continue
            what, program = points[0].what, points[0].program
            kinds.setdefault(what, markers[len(kinds) % len(markers)])
            style = {
                "color": COLOURS[program],
                "marker": kinds[what],
                "label": f"{what}: {program}",
                "linewidth": 1.2,
                "markersize": 5,
                "markerfacecolor": "none" if "2-D" in what else COLOURS[program],
            }
            counts = [p.count for p in points]
            axes[0, column].loglog(counts, [1e6 * p.everything / p.count for p in points], **style)
            axes[1, column].loglog(counts, [max(1, p.memory / p.count) for p in points], **style)
        axes[0, column].set_ylabel(f"µs for each {unit}")
        axes[1, column].set_ylabel(f"peak bytes for each {unit}")
        axes[1, column].set_xlabel(f"number of {unit}s")
        if kinds:
            below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12)}
            axes[1, column].legend(frameon=False, fontsize="x-small", ncols=2, **below)
    axes[0, 0].set_title("reading all chunks")
    axes[0, 1].set_title("opening all variables")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def save(found: list[Found], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, the plots, and the table on the page on speed."""
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": machine(), "command": command}
    document |= {"repeat": options.repeat, "scale": options.scale, "growing": growing(found)}
    results = [asdict(each) for each in found]
    (folder / "scaling.json").write_text(json.dumps({**document, "results": results}, indent=1))
    plot(found, folder / "scaling.png")
    picture = "![Cost of a chunk and of a variable](scaling.png)"
    text = f"{heading('scaling', document)}\n\n{table(found)}\n\n{picture}"
    insert(folder, "scaling", text)
