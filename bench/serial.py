"""What more processors would save: the serial share of our work, from one processor and two.

The same work is done by a process that may use one processor and by one that may use two, in turn,
with the opening of the dataset. If a share s of it is done by one thread at a time,

    t₁ = t,    t₂ = t (s + (1 − s) / 2),    so    s = 2 t₂ / t₁ − 1.

More processors then do it at most 1 / (s + (1 − s) / n) times as fast. The first row is the machine
itself: libdeflate in threads, with no other work, which two processors that share a core's units or
its memory do not do twice as fast either.

Of a read over a network the server runs here, too, and two processors are not ours alone. There the
serial share is what the event loop's only thread has of the processor time of the process.

Who holds the interpreter's lock is asked of py-spy (``--gil``), on two processors: how often anyone
holds it, and in which functions.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from data import Array, field
from harness import Options, heading, insert, machine, seconds

SIDE = 4096
CHUNKS = {"16 kB": 64, "100 kB": 160, "1 MB": 512, "4 MB": 1024}
CUBE, PATCH, PATCHES = (64, 1024, 1024), (4, 64, 64), 256
MACHINE, LOOP = "libdeflate alone", "fsspecIO"
#: Turns of a process, of which the first is not counted; seconds that py-spy watches one.
TURNS, WATCHED, RATE = 6, 4, 200
CORES = (16, 64)

Result = dict[str, Any]


def run(options: Options) -> dict[str, Result]:
    found: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, work, target in cases(Path(folder), options):
            if name.startswith("remote"):
                shares = [alone(work, target, 2)["loop"] for _ in range(options.repeat)]
                found[name] = {"serial": statistics.median(shares)}
            else:
                times: dict[int, list[float]] = {1: [], 2: []}
                for turn in range(2 * options.repeat):
                    count = 1 + (turn + turn // 2) % 2  # 1 2 2 1 1 2 ...
                    times[count].append(alone(work, target, count)["seconds"])
                one, two = min(times[1]), min(times[2])
                found[name] = {"seconds": times, "serial": 2 * two / one - 1}
            if name != MACHINE:
                found[name]["lock"], found[name]["holders"] = holders(work, target)
            print(name, found[name], file=sys.stderr, flush=True)
    return found


def cases(folder: Path, options: Options) -> Iterator[tuple[str, str, str]]:
    """Each with the name of a function of `WORK`, and what that is about; data come and go."""
    side = max(2, round(SIDE * options.scale**0.5 / 1024)) * 1024
    boxes = Array(CUBE, PATCH, "zlib")
    kinds = itertools.product(("file", "tree"), CHUNKS.items())
    wanted = [(f"{kind}, {size}", kind, length) for kind, (size, length) in kinds]
    if options.wants(MACHINE):
        yield MACHINE, "inflate", str(side)
    for name, kind, length in wanted:
        remote = f"remote {name}"
        if not (options.wants(name) or options.wants(remote)):
            continue
        with tempfile.TemporaryDirectory(dir=folder) as own:
            stored = Array((side, side), (length, length)).write(Path(own))
            target = stored.file if kind == "file" else stored.tree
            if options.wants(name):
                yield name, "read", str(target)
            if options.wants(remote) and length in (64, 512):
                import zarr
                from latency import Server

                zarr.consolidate_metadata(stored.tree, zarr_format=2)  # nothing can be listed
                with Server(target.parent) as server:
                    mode = "#mode=bytes" if kind == "file" else "#mode=zarr"
                    yield remote, "read", server.url(target.name) + mode
    if options.wants("load"):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            stored = boxes.write(Path(own))
            yield f"load of {PATCHES} boxes, file", "load", str(stored.file)
            yield f"load of {PATCHES} boxes, tree", "load", str(stored.tree)
    for size in ("16 kB", "1 MB"):
        if options.wants(f"export, {size}"):
            yield f"export, {size}", f"export {CHUNKS[size]}", str(side)


def alone(work: str, target: str, count: int, watch: int = 0) -> Any:
    """What a process that may use `count` processors says of its turns."""
    command = [sys.executable, __file__, work, target, str(count), str(watch)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def holders(work: str, target: str) -> tuple[float | None, list[str]]:
    """How often anyone holds the interpreter's lock, and the functions that do most often."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "samples.txt")
        command = ["py-spy", "record", "--gil", "--nonblocking", "--function", "--rate", str(RATE)]
        command += ["--format", "raw", "--output", str(output), "--"]
        command += [sys.executable, __file__, work, target, "2", str(WATCHED)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            return None, ["py-spy is not installed"]
        lines = output.read_text().splitlines()
    samples: Counter[str] = Counter()
    for line in lines:
        frames, _, count = line.rpartition(" ")
        names = [frame.partition(" (")[0] for frame in frames.split(";")]
        if "watched" in names or names[0] == "_bootstrap":  # not what is imported before
            samples[names[-1]] += int(count)
    most = [f"`{name}`" for name, _ in samples.most_common(3)]
    return samples.total() / (RATE * WATCHED), most


# -- in the process that is measured ---------------------------------------------------------------


def inflate(side: str) -> Callable[[], Any]:
    from deflate import zlib_compress, zlib_decompress

    values = field((1024, 1024))
    nbytes, count = values.nbytes, int(side) ** 2 // 1024**2
    stored = zlib_compress(values.tobytes(), 1)
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    return lambda: list(pool.map(lambda _: len(zlib_decompress(stored, nbytes)), range(count)))


def read(target: str) -> Callable[[], Any]:
    def turn() -> None:
        with xr.open_dataset(target, engine="nczarr", cache=False, mask_and_scale=False) as ds:
            ds["v"].values  # noqa: B018

    return turn


def load(target: str) -> Callable[[], Any]:
    import nczarr_xarray

    starts = np.random.default_rng(1).integers(0, np.subtract(CUBE, PATCH), (PATCHES, 3))
    keys = [tuple(map(slice, at, at + PATCH)) for at in starts]

    def turn() -> None:
        with xr.open_dataset(target, engine="nczarr", cache=False, mask_and_scale=False) as ds:
            nczarr_xarray.load(*(ds["v"][key] for key in keys))

    return turn


def export(length: str, side: str) -> Callable[[], Any]:
    import nczarr_xarray

    ds = xr.Dataset({"v": (("y", "x"), field((int(side), int(side))))})
    chunks = {"chunksizes": (int(length),) * 2}
    encoding = {"v": {**chunks, "zlib": True, "complevel": 4, "shuffle": True}}
    memory = Path("/dev/shm")  # processors are compared, not disks
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)

    def turn(folder: Any = folder) -> None:
        nczarr_xarray.to_nczarr(ds, Path(folder.name, "v"), encoding=encoding, mode="w")

    return turn


WORK: dict[str, Callable[..., Callable[[], Any]]] = {
    "inflate": inflate,
    "read": read,
    "load": load,
    "export": export,
}


def main(work: str, target: str, count: str, watch: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(count)])
    warnings.simplefilter("ignore")
    name, *more = work.split()
    turn = WORK[name](*more, target)
    turn()
    if int(watch):
        watched(turn, int(watch))
        return
    taken = []
    begun, loop = time.process_time(), loop_time()
    for _ in range(TURNS - 1):
        start = time.perf_counter()
        turn()
        taken.append(time.perf_counter() - start)
    share = (loop_time() - loop) / (time.process_time() - begun)
    print(json.dumps({"seconds": min(taken), "loop": share}))


def watched(turn: Callable[[], Any], during: int) -> None:
    end = time.monotonic() + during
    while time.monotonic() < end:
        turn()


def loop_time() -> float:
    """Processor time of the event loop's thread so far."""
    every = (thread for thread in threading.enumerate() if thread.name == LOOP)
    return sum(time.clock_gettime(time.pthread_getcpuclockid(one.ident or 0)) for one in every)


# -- the page --------------------------------------------------------------------------------------


def table(found: dict[str, Result]) -> str:
    """Seconds, the serial share, what it means for more processors, and who holds the lock."""
    head = ["work", "1 processor", "2", "serial share", *(f"{n} processors" for n in CORES)]
    lines = [[*head, "lock held", "most by"]]
    for name, one in found.items():
        times = one.get("seconds")
        taken = [seconds(min(each)) for each in times.values()] if times else ["–", "–"]
        serial = one["serial"]
        faster = [f"× {1 / (max(serial, 0) + (1 - max(serial, 0)) / n):.0f}" for n in CORES]
        lock = one.get("lock")
        held = "–" if lock is None else f"{100 * lock:.0f} %"
        who = ", ".join(one.get("holders", ())) or "–"
        lines.append([name, *taken, f"{serial:.2f}", *faster, held, who])
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def save(found: dict[str, Result], options: Options, command: str, folder: Path) -> None:
    """Write the numbers, and the table on the page on scale."""
    folder.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"machine": machine(), "command": command, "scale": options.scale}
    text = json.dumps({**document, "results": found}, indent=1)
    (folder / "serial.json").write_text(text + "\n")
    insert(folder, "serial", f"{heading('serial', document)}\n\n{table(found)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
