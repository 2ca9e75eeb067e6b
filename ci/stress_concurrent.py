#!/usr/bin/env python3
"""Let processes write to one dataset at once, and others read it meanwhile, on a busy machine.

    python ci/stress_concurrent.py regions --rounds 2000 --kind directory
    python ci/stress_concurrent.py appends --loads 1000
    python ci/stress_concurrent.py appends --appends 1000 --readers 32
    python ci/stress_concurrent.py files --appends 1000 --readers 8 --kind s3
    python ci/stress_concurrent.py overwrites --loads 1000
    python ci/stress_concurrent.py conflicts --rounds 200 --kind s3 --hosts 2

``regions``: in each round 4 to 8 processes write whole-chunk regions of one dataset that do not
overlap, all at once. Every one must succeed and the dataset must hold all of them. ``conflicts``:
they all write the same region. Each must succeed or be refused, and the values must all be of one
that succeeded. With ``--hosts`` the processes take themselves for processes of several machines,
which cannot see whether the others live. ``appends``:
one process appends while others open the dataset and load it; what they get must be one of its
lengths, with the values that belong to it; with ``--appends`` they load until so many were made.
``overwrites``: one process gives new values to a
variable (modes ``r+`` and ``a`` by turns), and the others call `nczarr_xarray.load_dataset`, which
must never bring values of two states. Beside them, as many processes as there are processors do
nothing but compute. The end is a table of what happened.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)

import fsspec  # noqa: E402 - the path comes first
import numpy as np  # noqa: E402
import xarray as xr  # noqa: E402

from nczarr_fsspec.errors import NCZarrError  # noqa: E402
from nczarr_xarray import aggregate, load_dataset  # noqa: E402
from tests.support.builders.manyfiles import field, step  # noqa: E402
from tests.support.faults.killing import Target, local, on_s3, prepared_context  # noqa: E402
from tests.support.servers.s3server import seaweed_s3  # noqa: E402

Counts = collections.Counter[str]
#: Of the variable that is written: rows and columns, and rows and columns of a chunk.
SHAPE, CHUNKS = (24, 40), (3, 20)
#: Rows after which the dataset that grows is written anew.
LONGEST = 1000


def main() -> int:
    """Run as the command line says; 1 if anything was not as promised."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("what", choices=["regions", "conflicts", *_READING])
    options.add_argument("--kind", default="directory", choices=["directory", "zip", "s3"])
    options.add_argument("--rounds", type=int, default=100, help="of regions or conflicts")
    options.add_argument("--hosts", type=int, default=1, help="that writers take for their own")
    options.add_argument("--appends", type=int, default=0, help="instead of a number of loads")
    options.add_argument("--loads", type=int, default=200, help="of all readers together")
    options.add_argument("--readers", type=int, default=4)
    options.add_argument("--plain", action="store_true", help="overwrites: open and load instead")
    options.add_argument("--idle", action="store_true", help="let no others compute beside them")
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nczarr-stress-")))
        fresh = _targets(given.kind, folder, stack)
        if not given.idle:
            stack.enter_context(_load())
        if given.what in ("regions", "conflicts"):
            found = _writing(given, fresh(), random.Random(given.seed))  # noqa: S311
        else:
            found = _reading(given, fresh())
    for what, count in sorted(found.items()):
        print(f"{count:7} {what}")
    return any(what.startswith("BAD") for what in found)


def _targets(kind: str, folder: Path, stack: ExitStack) -> Callable[[], Target]:
    if kind != "s3":
        return local(folder / "data", kind)
    (folder / "weed").mkdir()
    server = stack.enter_context(seaweed_s3(folder / "weed"))
    options = {
        "key": server.access_key,
        "secret": server.secret_key,
        "client_kwargs": {"endpoint_url": server.endpoint},
    }
    return on_s3(server.private, options)


@contextmanager
def _load() -> Iterator[None]:
    """Keep all processors busy."""
    work = [_process(_compute) for _ in range(os.cpu_count() or 1)]
    for process in work:
        process.start()
    try:
        yield
    finally:
        for process in work:
            process.kill()
            process.join()


def _process(function: Callable[..., None], *args: Any) -> Any:
    return prepared_context().Process(target=function, args=args, daemon=True)


def _compute() -> None:
    os.nice(10)
    for n in itertools.count():
        sum(range(n % 1000))


# -- regions -------------------------------------------------------------------


def _writing(given: argparse.Namespace, target: Target, chance: random.Random) -> Counts:
    found: Counts = collections.Counter()
    pools: dict[int, list[_Writer]] = {}
    same = given.what == "conflicts"
    target.write(_values(0), "w", encoding={"v": {"chunks": CHUNKS}})
    expected = _values(0)["v"].values
    for number in range(1, given.rounds + 1):
        count = chance.choice([4, 6, 8])
        if count not in pools:
            pools[count] = [_Writer(f"host{i % given.hosts}") for i in range(count)]
        writers = pools[count]
        rows = SHAPE[0] // count
        rows -= rows % CHUNKS[0]
        firsts = [0 if same else i * rows for i in range(count)]
        for i, writer in enumerate(writers):
            writer.ask((target, firsts[i], rows, number * 100 + i))
        answers = [writer.answer() for writer in writers]
        written = [i for i, error in enumerate(answers) if error is None]
        for error in answers:
            conflict = error is not None and error.startswith("ConflictError")
            good = error is None or (conflict and (same or given.kind == "zip"))
            found[f"{'' if good else 'BAD '}{error or 'written'}"[:200]] += 1
        found["rounds"] += 1
        if same and not written:
            found["rounds in which all were refused"] += 1
        with xr.open_dataset(
            target.url, engine="nczarr", backend_kwargs={"storage_options": target.options}
        ) as dataset:
            values = dataset["v"].values
        last = int(values[0, 0]) - number * 100  # of those that wrote the same, the last stays
        for i in [last] if same and last in written else written:
            expected[firsts[i] : firsts[i] + rows] = number * 100 + i
        if not np.array_equal(values, expected):
            found["BAD rounds with other values than those written"] += 1
            expected = values
        if number % 100 == 0:
            print(f"{number} rounds: {dict(found)}", flush=True)
    return found


class _Writer:
    """A process that writes regions, and takes a name for that of its machine."""

    def __init__(self, host: str) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        _process(_serve, theirs, host).start()

    def ask(self, work: tuple[Target, int, int, int]) -> None:
        self._ours.send(work)

    def answer(self) -> str | None:
        found: str | None = self._ours.recv()
        return found


def _serve(pipe: Any, host: str) -> None:
    warnings.simplefilter("ignore")
    socket.gethostname = lambda: host
    while True:
        try:
            target, first, rows, value = pipe.recv()
        except EOFError:
            return
        part = xr.Dataset({"v": (("t", "x"), np.full((rows, SHAPE[1]), value))})
        try:
            target.write(part, region={"t": slice(first, first + rows), "x": slice(None)})
            pipe.send(None)
        except Exception as error:  # noqa: BLE001 - it is counted
            text = str(error).replace(target.url, "")
            pipe.send(f"{type(error).__name__}: {text.partition('process')[0]}")


# -- readers -------------------------------------------------------------------


def _values(number: int, rows: int = SHAPE[0], first: int = 0) -> xr.Dataset:
    """Values that are all `number`, of which a coordinate and a text tell, too."""
    coordinates = {"t": ("t", np.arange(first, first + rows)), "name": ("x", [f"{number}"] * 40)}
    return xr.Dataset(
        {
            "v": (("t", "x"), np.full((rows, SHAPE[1]), number)),
            "w": (("t", "x"), np.full((rows, SHAPE[1]), number, "f4")),
        },
        coordinates,
        {"number": number},
    )


def _reading(given: argparse.Namespace, target: Target) -> Counts:
    encoding: dict[str, Any] = {name: {"chunks": CHUNKS} for name in ("v", "w")}
    encoding["name"] = {"_nczarr_maxstrlen": 12}
    if given.what == "files":
        _add_file(target, 0)
    else:
        target.write(_values(0), "w", encoding=encoding, unlimited_dims=["t"])
    stop, queue = prepared_context().Event(), prepared_context().Queue()
    write, load = _READING[given.what]
    share = sys.maxsize if given.appends else -(-given.loads // given.readers)
    last = given.plain if given.what == "overwrites" else stop
    writer = _process(write, target, stop, queue, given.appends)
    others = [_process(load, target, share, queue, last) for _ in range(given.readers)]
    for process in (writer, *others):
        process.start()
    found: Counts = collections.Counter()
    for left in range(len(others) + 1, 0, -1):
        if left == 1:
            stop.set()
        found.update(queue.get())
    for process in (writer, *others):
        process.join()
    return found


def _append(target: Target, stop: Event, queue: Any, appends: int) -> None:
    found: Counts = collections.Counter()
    rows = SHAPE[0]
    for number in itertools.count(1):
        if stop.is_set():
            break
        more = _values(0, 5, rows).drop_vars("name").assign_attrs(number=number)
        target.write(more, append_dim="t")
        rows += 5
        found["appends"] += 1
        if number == appends:
            stop.set()
        elif rows > LONGEST:
            target.write(_values(0), "w", encoding={"v": {"chunks": CHUNKS}}, unlimited_dims=["t"])
            rows = SHAPE[0]
            found["datasets written anew"] += 1
    queue.put(found)


def _load_appended(target: Target, loads: int, queue: Any, stop: Event) -> None:
    warnings.simplefilter("error")
    found: Counts = collections.Counter()
    lengths = set()
    while found.total() < loads and not stop.is_set():
        try:
            with xr.open_dataset(
                target.url, engine="nczarr", backend_kwargs={"storage_options": target.options}
            ) as dataset:
                sizes = {v.shape[0] for v in dataset.variables.values() if "t" in v.dims}
                rows = dataset.sizes["t"]
                good = len(sizes) == 1 and list(dataset["t"].values) == list(range(rows))
                dataset.load()
            good &= int(dataset["v"].min()) == int(dataset["v"].max()) == 0
            lengths.add(rows)
            if len(sizes) == 1 and rows > LONGEST and not good:
                # its values were read when a shorter one had replaced it
                found["loads of two states of a dataset that was written anew"] += 1
            else:
                found["loads" if good else f"BAD sizes {sizes} {dict(dataset.sizes)}"] += 1
        except Exception as error:  # noqa: BLE001 - it is counted
            told = "was changed after it was opened" in str(error)
            text = "loads that say that the dataset was changed" if told else f"BAD {error}"
            found[text[:200]] += 1
    found["lengths that readers saw, each counted by each"] = len(lengths)
    queue.put(found)


def _add_file(target: Target, number: int) -> None:
    """Have one more file, and an aggregation of all."""
    fs, folder = fsspec.url_to_fs(target.url, **(target.options or {}))
    name = f"{number}.nc"
    with tempfile.TemporaryDirectory() as own:
        fs.makedirs(folder, exist_ok=True)
        fs.put_file(step(Path(own) / name, [number]), f"{folder}/{name}")
    aggregate(
        [f"{target.url}/{name}"],
        f"{target.url}/m.nca",
        dim="time",
        append=number > 0,
        storage_options=target.options,
    )


def _add_files(target: Target, stop: Event, queue: Any, appends: int) -> None:
    begin, number = time.monotonic(), 0
    while not stop.is_set():
        number += 1
        _add_file(target, number)
        if number % 50 == 0:
            print(f"{number} appends in {time.monotonic() - begin:.0f} s", flush=True)
        if number == appends:
            stop.set()
    queue.put(collections.Counter(appends=number))


def _load_files(target: Target, loads: int, queue: Any, stop: Event) -> None:
    """Load the coordinates of all files, and the values of the last file and of some others."""
    warnings.simplefilter("error")
    os.nice(10)  # the more is written
    found: Counts = collections.Counter()
    lengths: list[int] = []
    chance = random.Random()  # noqa: S311
    options: dict[str, Any] = {
        "storage_options": target.options,
        "cache": False,
        "decode_times": False,
    }
    ending = False
    while found.total() < loads and not ending:
        ending = stop.is_set()  # what is opened now has all
        try:
            with xr.open_dataset(f"{target.url}/m.nca", engine="nczarr", **options) as dataset:
                rows = dataset.sizes["time"]
                wanted = sorted({rows - 1, *(chance.randrange(rows) for _ in range(4))})
                good = dataset["time"].values.tolist() == [*range(rows)]
                good &= np.array_equal(dataset["tas"][wanted].values, field(wanted))
            good &= not lengths or rows >= lengths[-1]
            lengths.append(rows)
            found["loads" if good else f"BAD load of {rows}"] += 1
        except Exception as error:  # noqa: BLE001 - it is counted
            found[f"BAD {error}"[:200]] += 1
            print(f"BAD {error}", flush=True)
    found["lengths that readers saw, each counted by each"] = len(set(lengths))
    found[f"readers whose last of all lengths was {lengths[-1]}"] += 1
    queue.put(found)


def _overwrite(target: Target, stop: Event, queue: Any, _: int) -> None:
    found: Counts = collections.Counter()
    encoding = {"name": {"_nczarr_maxstrlen": 12}}
    for number in itertools.count(1):
        if stop.is_set():
            break
        if number % 3:
            target.write(_values(number).drop_attrs(), "r+")
        else:
            target.write(_values(number), "a", encoding=encoding)
        found["overwrites"] += 1
        time.sleep(0.02)
    queue.put(found)


def _load_overwritten(target: Target, loads: int, queue: Any, plain: bool) -> None:
    warnings.simplefilter("error")
    found: Counts = collections.Counter()
    for _ in range(loads):
        try:
            if plain:
                with xr.open_dataset(target.url, engine="nczarr") as dataset:
                    dataset.load()
            else:
                dataset = load_dataset(target.url)
            seen = {int(n) for name in ("v", "w", "name") for n in np.unique(dataset[name])}
            mixed = "mixed loads" if plain else f"BAD mixed {seen}"
            found["loads" if len(seen) == 1 else mixed] += 1
        except NCZarrError as error:
            told = "was changed" in str(error)
            text = "loads that say that the dataset was changed" if told else f"BAD {error}"
            found[text[:200]] += 1
    queue.put(found)


#: Who writes, and who reads meanwhile.
_READING: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "appends": (_append, _load_appended),
    "files": (_add_files, _load_files),
    "overwrites": (_overwrite, _load_overwritten),
}

if __name__ == "__main__":
    sys.exit(main())
