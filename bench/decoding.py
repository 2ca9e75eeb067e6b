"""Decoding one chunk: every library for each codec, for the shuffle, and for checksums.

A turn decodes the same eight mebibytes of different chunks (one chunk again and again would teach
the branch predictor), once in one thread and once in two, of libraries in turn. All sizes of
chunks are cut from the same field, shuffled as netCDF-C does it. `bench/decoders.py` has the
libraries. Every chunk is compared before the clock runs.

Two threads tell whether the interpreter lock is released only on a quiet machine. Hence the
second question is asked directly, too: how long is another thread silent during one long call?

The tables go between the marks of ``docs/codecs.md``. (A module named ``codecs`` would hide the
one of Python.)
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path
from typing import Any

import data
import numpy as np
from decoders import CODECS
from harness import OURS, Options, Row, Work, document, heading, insert, measure
from libraries import Codec, Make, nbytes

SECTION = "decoding"
PACKAGES = {
    *("backports.zstd", "blosc2", "cramjam", "crc32c", "deflate", "imagecodecs", "isal", "lz4"),
    *("nczarr-xarray", "numcodecs", "numpy", "pyzstd", "zlib-ng", "zstandard"),
}
#: One chunk of this shape is long enough to notice that other threads are silent.
LONG = (4096, 4096)
#: Above this part of the call the interpreter lock is held.
SILENT = 0.5
TWO, LOCK = ", 2 threads", ", longest silence"


def run(options: Options) -> dict[str, Row]:
    """Rows ``zlib, 16 KB`` (one thread), the same in two, and of one long call."""
    found: dict[str, Row] = {}
    wanted = {name: c for name, c in CODECS.items() if _wanted(name, c, options)}
    values = data.field((2048, 1024)) if wanted else np.empty(0)
    long = data.field(LONG) if wanted else values
    with ThreadPoolExecutor(2) as pool:
        for name, codec_ in wanted.items():
            for size, shape in codec_.shapes.items():
                if options.wants(f"{name}, {size}"):
                    work = _work(f"{name}, {size}", codec_, shape, values, options.scale, pool)
                    found |= _divided(work.name, measure(work, options.repeat))
            if codec_.row > 1:
                continue  # the same functions as for one chunk
            names = list(found[next(reversed(found))].times)
            found |= _long(name, codec_, long[: round(len(long) * codec_.part)], names)
    return found


def _wanted(name: str, codec_: Codec, options: Options) -> bool:
    return any(options.wants(f"{name}, {size}") for size in codec_.shapes)


def _work(
    name: str,
    codec_: Codec,
    shape: tuple[int, int],
    values: np.ndarray,
    scale: float,
    pool: ThreadPoolExecutor,
) -> Work:
    chunks = tiles(values, shape)
    least = 2 * codec_.row  # one for each thread
    count = max(least, round(len(chunks) * scale * codec_.part) // least * least)
    pairs = [codec_.encode(chunk) for chunk in chunks[: min(count, len(chunks))]]
    stored, plain = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if codec_.row > 1:
        starts = range(0, len(pairs), codec_.row)
        stored = [stored[i : i + codec_.row] for i in starts]
        plain = [b"".join(plain[i : i + codec_.row]) for i in starts]
    programs: dict[str, Callable[[], Any] | float] = {}
    for library_, make in codec_.libraries.items():
        try:
            decode = make(shape)
            if any(_bytes(decode(s)) != p for s, p in zip(stored, plain, strict=True)):
                raise ValueError("wrong values")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  (whatever a library raises is its result)
            programs[library_] = partial(_raise, error)
            continue
        for label, threads in ((library_, 1), (library_ + TWO, 2)):
            programs[label] = partial(_turn, pool, make, shape, stored, threads)
    return Work(name, programs, megabytes=len(pairs) * nbytes(shape) / 1e6)


def tiles(values: np.ndarray, shape: tuple[int, int]) -> list[np.ndarray]:
    (rows, columns), (height, width) = values.shape, shape
    return [
        np.ascontiguousarray(values[y : y + height, x : x + width])
        for y in range(0, rows, height)
        for x in range(0, columns, width)
    ]


def _bytes(decoded: Any) -> bytes:
    return decoded.tobytes() if isinstance(decoded, np.ndarray) else bytes(memoryview(decoded))


def _raise(error: Exception) -> None:
    raise error


def _turn(
    pool: ThreadPoolExecutor, make: Make, shape: tuple[int, int], stored: list[Any], threads: int
) -> bytes:
    """Decode all chunks; the last one, as bytes. (Both numbers of threads are of the pool.)"""

    def part(stored: list[Any]) -> Any:
        decode, last = make(shape), None
        for chunk in stored:
            last = decode(chunk)
        return last

    share = len(stored) // threads
    parts = [stored[i * share : (i + 1) * share] for i in range(threads)]
    return _bytes(list(pool.map(part, parts))[-1])


def _divided(name: str, row: Row) -> dict[str, Row]:
    """One thread and two were measured in turn; they are rows of their own."""
    rows = {name: Row(megabytes=row.megabytes), name + TWO: Row(megabytes=row.megabytes)}
    rows[name].errors = row.errors
    for label, times in row.times.items():
        rows[name + TWO if label.endswith(TWO) else name].times[label.removesuffix(TWO)] = times
    return rows


def _long(name: str, codec_: Codec, chunk: np.ndarray, names: list[str]) -> dict[str, Row]:
    """Calls that last long, and how long another thread was silent in each at most."""
    shape = (chunk.shape[0], chunk.shape[1])
    stored, _ = codec_.encode(chunk)
    took, silent = Row(megabytes=chunk.nbytes / 1e6), Row(megabytes=chunk.nbytes / 1e6)
    for library_ in names:
        decode = codec_.libraries[library_](shape)
        pairs = [_silence(partial(decode, stored)) for _ in range(5)]
        took.times[library_] = [pair[0] for pair in pairs]
        silent.times[library_] = [pair[1] for pair in pairs]
    return {f"{name}, long": took, f"{name}, long{LOCK}": silent}


def _silence(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call in another thread, and the longest time in which we were not heard."""
    begin = end = 0.0

    def timed() -> None:
        nonlocal begin, end
        begin = time.perf_counter()
        call()
        end = time.perf_counter()

    thread = threading.Thread(target=timed)
    heard = []
    thread.start()
    while not end and thread.is_alive():
        heard.append(time.perf_counter())
        time.sleep(1e-4)
    thread.join()
    moments = [begin, *(moment for moment in heard if begin < moment < end), end]
    return end - begin, max(b - a for a, b in pairwise(moments))


# ---- what is shown ---------------------------------------------------------------------------


def holds_lock(rows: dict[str, Row], name: str, library_: str) -> bool | None:
    """Whether other threads stand still, in most of several calls, as others use the machine."""
    took, silent = rows.get(f"{name}, long"), rows.get(f"{name}, long{LOCK}")
    if not took or not silent or library_ not in took.times:
        return None
    parts = zip(silent.times[library_], took.times[library_], strict=True)
    return statistics.median(quiet / whole for quiet, whole in parts) > SILENT


def table(rows: dict[str, Row]) -> str:
    """Of each codec, what is used and the fastest of the others, for small and large chunks."""
    head = ["codec", "library", "µs, 16 KB", "MB/s, 2 MiB", "2 threads, 2 MiB", "lock"]
    lines = [head, ["---"] * len(head)]
    for name in CODECS:
        small, large = (rows.get(f"{name}, {size}") for size in ("16 KB", "2 MiB"))
        if small is None or large is None or OURS not in large.times:
            continue
        others = [library for library in large.times if library in small.times and library != OURS]
        for library in (OURS, *sorted(others, key=small.median)[:1]):
            micro = 1e6 * small.median(library) * nbytes(CODECS[name].shapes["16 KB"])
            cells = [
                name if library == OURS else "",
                library,
                f"{micro / small.megabytes / 1e6:.1f}",
            ]
            cells.append(f"{large.megabytes / large.median(library):,.0f}")
            held = holds_lock(rows, name, library)
            cells += [_gain(rows, f"{name}, 2 MiB", library), "held" if held else "released"]
            lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gain(rows: dict[str, Row], name: str, library_: str) -> str:
    """How many times as fast two threads are, in pairs of turns that followed each other."""
    one, two = (rows[label].times.get(library_) for label in (name, name + TWO))
    if not one or not two:
        return "–"
    return f"{statistics.median(a / b for a, b in zip(one, two, strict=True)):.2f}"


def lines(rows: dict[str, Row], path: Path) -> None:
    """Throughput over the size of chunks, a panel for each codec."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = [n for n, c in CODECS.items() if all(f"{n}, {size}" in rows for size in c.shapes)]
    if not names:
        return
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(4.4 * columns, 3.4 * height), layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for name, axes in zip(names, panels.flat, strict=False):
        shapes = CODECS[name].shapes
        places = [nbytes(shape) / 1024 for shape in shapes.values()]
        for number, library_ in enumerate(CODECS[name].libraries):
            mine = library_ == OURS
            style = {"color": "#1b7837" if mine else f"C{number}", "linewidth": 2.2 if mine else 1}
            found = [rows[f"{name}, {size}"] for size in shapes]
            if all(library_ in row.times for row in found):
                rates = [row.megabytes / row.median(library_) / 1e3 for row in found]
                axes.plot(places, rates, label=library_, **style)
        axes.set_xscale("log", base=4)
        axes.set_yscale("log")
        for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            which(lambda value, _: f"{value:.2g}")
        axes.set_xticks(places, list(shapes))
        axes.set_title(name, fontsize="medium")
        axes.legend(frameon=False, fontsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("GB/s of decoded bytes in one thread (median)", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def save(found: dict[str, Row], options: Options, command: str, folder: Path) -> None:
    """Write numbers and picture, and the tables on the page on codecs."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = document(found, options, command)
    installed = {d.name: d.version for d in distributions() if d.name in PACKAGES}
    numbers["machine"]["versions"] = dict(sorted(installed.items()))
    (folder / f"{SECTION}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    lines(found, folder / f"{SECTION}.png")
    picture = f"![The same as curves]({SECTION}.png)"
    insert(folder, SECTION, f"{heading(SECTION, numbers)}\n\n{picture}\n\n{table(found)}")


if __name__ == "__main__":  # as `python bench --section decoding`, to look at one codec
    print(table(run(Options(repeat=3, scale=0.5, only=" ".join(sys.argv[1:])))))
