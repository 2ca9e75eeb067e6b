"""Compressing chunks: deflate libraries level by level, and what shuffling costs.

Usage: ``python bench/compress.py [--repeat N] [--levels 1 5 9]``

Decides the table of levels in `nczarr_xarray.chunks.compress`: "ours" goes through it, "libdeflate"
takes the level of zlib as its own. Sizes are relative to zlib at the same level, over all fields
of a chunk size (geometric mean, and the worst field); times are sums over the fields, the best of
`repeat` each, of libraries in turn. zlib-ng and isal are compared if installed.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import deflate
import numcodecs
import numpy as np

from nczarr_xarray.chunks.compress import COMPRESSORS
from nczarr_xarray.chunks.encode import Encoder
from nczarr_xarray.chunks.quantize import quantize
from nczarr_xarray.model import ChunkedArray

Compress = Callable[[Any, int], Any]
SIDES = {"16 KB": 64, "64 KB": 128, "256 KB": 256, "2 MiB": 724}  # squares of four-byte elements


def ours(data: Any, level: int) -> Any:
    return COMPRESSORS["zlib"]({"id": "zlib", "level": level}, 1)(data)


def libraries() -> dict[str, Compress]:
    found: dict[str, Compress] = {
        "zlib": zlib.compress,
        "ours": ours,
        "libdeflate": deflate.zlib_compress,
    }
    try:
        from zlib_ng import zlib_ng

        found["zlib-ng"] = zlib_ng.compress
    except ImportError:
        pass
    try:
        from isal import isal_zlib

        found["isal"] = lambda data, level: isal_zlib.compress(
            data, min(level, 3)
        )  # it has no more
    except ImportError:
        pass
    return found


def fields(side: int) -> dict[str, np.ndarray]:
    """Square chunks that look like what is stored, by name."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:side, :side] / 64
    waves = (
        np.sin(x * 1.3 + y) + np.cos(0.7 * y - x / 2) + 0.3 * np.sin(5 * x) * np.cos(4 * y)
    ) * 9
    measured = 280 + waves + rng.normal(0, 0.02, waves.shape)
    return {
        "smooth f4": (280 + waves).astype("f4"),
        "smooth f8": 280 + waves,
        "measured f4": measured.astype("f4"),
        "masked f4": np.where(waves > 2, np.nan, measured).astype("f4"),
        "to hundredths f4": measured.round(2).astype("f4"),
        "to tenths f4": measured.round(1).astype("f4"),
        "to tenths f8": measured.round(1),
        "to halves f4": (np.round(measured * 2) / 2).astype("f4"),
        "8 bits f4": quantize(measured.astype("f4"), "BitRound", 8),
        "rain f4": np.maximum(0, measured - 285).round(1).astype("f4"),
        "packed to hundredths i2": (measured * 100).astype("i2"),
        "packed to tenths i2": (measured * 10).astype("i2"),
        "packed to tenths i4": (measured * 10).astype("i4"),
        "counts i4": rng.poisson(np.abs(waves) * 20).astype("i4"),
        "classes u1": (waves // 3).astype("u1"),
        "ascending i8": np.arange(side * side).reshape(side, side) * 3600,
        "noise f4": rng.normal(size=waves.shape).astype("f4"),
    }


def shuffled(values: np.ndarray) -> np.ndarray:
    array = ChunkedArray("v", values.shape, values.shape, values.dtype, codecs=({"id": "shuffle"},))
    return np.frombuffer(Encoder(array).encode(values), np.uint8)


def best(repeat: int, *calls: Callable[[], Any]) -> list[float]:
    """Milliseconds of each call, interleaved."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, spent in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
    return [1e3 * min(spent) for spent in times]


def _call(compress: Compress, data: Any, level: int) -> Callable[[], Any]:
    return lambda: compress(data, level)


def deflate_levels(levels: Iterable[int], repeat: int) -> None:
    found = libraries()
    print(f"{'shuffled':10}{'level':>6}" + "".join(f"{name:>22}" for name in found))
    print(f"{'':16}" + f"{'mean':>7}{'worst':>6}{'ms':>9}" * len(found))
    for size, side in SIDES.items():
        chunks = [shuffled(values) for values in fields(side).values()]
        for level in levels:
            sizes = np.array(
                [[len(compress(data, level)) for data in chunks] for compress in found.values()]
            )
            times = np.array(
                [best(repeat, *(_call(c, data, level) for c in found.values())) for data in chunks]
            ).sum(axis=0)
            relative = sizes / sizes[0]
            means, worst = np.exp(np.log(relative).mean(axis=1)), relative.max(axis=1)
            cells = zip(means, worst, times, strict=True)
            print(f"{size:10}{level:6}" + "".join(f"{m:7.3f}{w:6.2f}{t:9.1f}" for m, w, t in cells))


def threads(repeat: int) -> None:
    """With two free cores, two threads that hold no lock take the time of one."""
    values = fields(SIDES["2 MiB"])["measured f4"]
    data = shuffled(values)
    calls = {name: _call(compress, data, 5) for name, compress in libraries().items()}
    calls["our shuffle"] = lambda: shuffled(values)
    calls["numcodecs shuffle"] = lambda: numcodecs.Shuffle(4).encode(values)
    print(f"\n{'2 MiB measured f4':24}{'one, ms':>10}{'two threads, ms':>18}")
    with ThreadPoolExecutor(2) as pool:
        for name, call in calls.items():

            def both(call: Callable[[], Any] = call) -> None:
                for future in [pool.submit(call), pool.submit(call)]:
                    future.result()

            one, two = best(repeat, call, both)
            print(f"{name:24}{one:10.2f}{two:18.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--levels", type=int, nargs="+", default=range(1, 10))
    options = parser.parse_args()
    deflate_levels(options.levels, options.repeat)
    threads(3 * options.repeat)


if __name__ == "__main__":
    main()
