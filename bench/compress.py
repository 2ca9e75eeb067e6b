"""Compressing chunks: deflate libraries level by level, and what shuffling costs.

Usage: ``python bench/compress.py [--repeat N] [--levels 1 5 9] [--random 8]``

Every number in the comments of `nczarr_xarray.codecs.compress` is from here: "ours" is what that
module does, "libdeflate" takes the level of zlib as its own, "mapped" that of the module's table.
Sizes are relative to zlib at the same level, over all fields of a chunk size (geometric mean, and
the worst field); times are sums over the fields, the best of `repeat` each, of libraries in turn.
zlib-ng and isal are compared if installed.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import deflate
import numcodecs
import numpy as np
from numcodecs import lz4

from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.codecs.compress import _LEVELS, _noise, _sampled, _small_bends
from nczarr_xarray.codecs.compress import deflate as our_deflate
from nczarr_xarray.codecs.quantize import quantize
from nczarr_xarray.model import ChunkedArray

#: Of bytes, a level of zlib, and the size of a number.
Compress = Callable[[Any, int, int], Any]
SIDES = {"16 KB": 64, "64 KB": 128, "256 KB": 256, "2 MiB": 724}  # squares of four-byte elements


def ours(data: Any, level: int, itemsize: int) -> Any:
    return our_deflate({"id": "zlib", "level": level}, itemsize)(data)


def of_library(function: Callable[[Any, int], Any], most: int = 9) -> Compress:
    return lambda data, level, _: function(data, min(level, most))


def libraries() -> dict[str, Compress]:
    found = {
        "zlib": of_library(zlib.compress),
        "ours": ours,
        "libdeflate": of_library(deflate.zlib_compress),
        "mapped": lambda data, level, _: deflate.zlib_compress(data, _LEVELS[level]),
    }
    try:
        from zlib_ng import zlib_ng

        found["zlib-ng"] = of_library(zlib_ng.compress)
    except ImportError:
        pass
    try:
        from isal import isal_zlib

        found["isal"] = of_library(isal_zlib.compress, most=3)
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
        "8 bits f4": quantize(measured.astype("f4"), "BitRound", 8, None),
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


def _call(compress: Compress, *arguments: Any) -> Callable[[], Any]:
    return lambda: compress(*arguments)


def deflate_levels(levels: Iterable[int], repeat: int) -> None:
    found = libraries()
    print(f"{'shuffled':10}{'level':>6}" + "".join(f"{name:>22}" for name in found))
    print(f"{'':16}" + f"{'mean':>7}{'worst':>6}{'ms':>9}" * len(found))
    for size, side in SIDES.items():
        chunks = [(shuffled(values), values.itemsize) for values in fields(side).values()]
        for level in levels:
            sizes = np.array(
                [[len(c(data, level, width)) for data, width in chunks] for c in found.values()]
            )
            times = np.array(
                [
                    best(repeat, *(_call(c, data, level, width) for c in found.values()))
                    for data, width in chunks
                ]
            ).sum(axis=0)
            relative = sizes / sizes[0]
            means, worst = np.exp(np.log(relative).mean(axis=1)), relative.max(axis=1)
            cells = zip(means, worst, times, strict=True)
            print(f"{size:10}{level:6}" + "".join(f"{m:7.3f}{w:6.2f}{t:9.1f}" for m, w, t in cells))


def each_field(repeat: int, level: int = 4) -> None:
    """What is stored as noise, and what that saves."""
    for size in ("16 KB", "2 MiB"):
        print(
            f"\n{f'{size}, level {level}':26}{'planes':>8}{'size':>7}{'zlib, us':>12}{'ours':>10}"
        )
        for name, values in fields(SIDES[size]).items():
            data, width = shuffled(values), values.itemsize
            planes = _noise(data, width, lz4.compress) * width // data.size
            relative = len(ours(data, level, width)) / len(zlib.compress(data, level))
            times = best(repeat, *(_call(c, data, level, width) for c in (zlib_of, ours)))
            cells = "".join(f"{1e3 * ms:{n}.0f}" for ms, n in zip(times, (12, 10), strict=True))
            print(f"{name:26}{f'{planes} of {width}':>8}{relative:7.3f}{cells}")


def zlib_of(data: Any, level: int, _: int) -> Any:
    return zlib.compress(data, level)


def few_bytes() -> None:
    """Why libdeflate loses on short input that begins with few different bytes."""
    data = shuffled(fields(SIDES["16 KB"])["to tenths f4"]).tobytes()
    base = len(zlib.compress(data, 4))
    print("\n16 KB to tenths f4, libdeflate 1 to 9, relative to zlib 4, after bytes in front:")
    for count in (0, 20, 60, 80, 256):
        front = bytes(range(count))
        sizes = [len(deflate.zlib_compress(front + data, level)) for level in range(1, 10)]
        own_size = [len(deflate.zlib_compress(front, level)) for level in range(1, 10)]
        cells = ((a - b) / base for a, b in zip(sizes, own_size, strict=True))
        print(f"{count:6}" + "".join(f"{cell:7.3f}" for cell in cells))


def noise_on_slopes() -> None:
    """What tells noise from smooth values, and what deflate gains where it is in between."""
    print("\nplanes of slopes with noise: second differences of -1, 0 or 1; size by libdeflate 5")
    for side in (64, 128, 256):
        y, x = np.mgrid[:side, :side] / 64
        slopes = 300 * np.sin(x * 1.3 + y) + 200 * y
        cells = []
        for deviation in (0, 1, 2, 3, 6, 100):
            noise = np.random.default_rng(0).normal(0, deviation, slopes.shape)
            plane = (slopes + noise).round().astype("i8").astype("u1").ravel()
            found, size = _small_bends(_sampled(plane)), len(deflate.deflate_compress(plane, 5))
            cells.append(f"{deviation}: {found:4} {size / plane.size:.3f}")
        print(f"{f'{side} x {side}':12}" + "   ".join(cells))


def random_fields(rng: np.random.Generator, side: int) -> Iterator[tuple[str, np.ndarray]]:
    """Fields of random roughness, amplitude and noise, stored in many ways, by name."""
    y, x = np.mgrid[:side, :side] / rng.choice([16, 64, 256, 1000])
    waves = np.sin(x * 1.3 + y) + np.cos(0.7 * y - x / 2) + 0.3 * np.sin(5 * x) * np.cos(4 * y)
    amplitude, dtype = 10 ** rng.uniform(-2, 3), rng.choice(["f4", "f8"])
    smooth = rng.choice([0, 1, 280, 1e5]) + amplitude * waves
    field = smooth + rng.normal(0, amplitude * 10 ** rng.uniform(-6, 0), waves.shape)
    step, share = rng.choice([0.05, 0.2, 0.25, 0.5]), rng.uniform(0, 0.3)
    packed = np.clip((field - field.mean()) * 10 ** rng.uniform(0, 4) / amplitude, -3e4, 3e4)
    palette = rng.normal(size=rng.choice([20, 200, 2000, 20000]))
    halves = np.arange(side * side).reshape(side, side) * 2 < side * side
    yield "smooth", smooth.astype(dtype)
    yield "measured", field.astype(dtype)
    yield "decimals", field.round(rng.integers(-1, 4)).astype(dtype)
    yield "steps", (np.round(field / step) * step).astype(dtype)
    yield "masked", np.where(waves > rng.uniform(-1, 1), np.nan, field).astype(dtype)
    yield "sparse", np.where(rng.random(waves.shape) < share, field, 0).astype(dtype)
    yield "finer in x", np.repeat(field[:, : side // 3 + 1], 3, 1)[:, :side].astype(dtype)
    yield "finer in y", np.repeat(field[: side // 4 + 1], 4, 0)[:side].astype(dtype)
    yield "repeated", np.resize(field[: rng.integers(1, side)], field.shape).astype(dtype)
    yield "packed i2", packed.astype("i2")
    yield "packed i4", (packed * rng.choice([1, 1000])).astype("i4")
    yield "palette", palette[rng.integers(0, palette.size, waves.shape)].astype(dtype)
    yield "of 255", (rng.integers(0, 256, waves.shape) / 255).astype(dtype)
    yield "bits", quantize(field.astype("f4"), "BitRound", int(rng.integers(2, 22)), None)
    yield "half rounded", np.where(halves, field, field.round(1)).astype(dtype)
    yield "times", np.cumsum(rng.integers(1, rng.choice([2, 10, 1000]), waves.size), dtype="i8")


def larger_by_three_percent(rounds: int) -> None:
    """How often the promise on sizes is missed by random data, and by how much."""
    print(f"\n{'random, larger by 3 %':26}{'chunks':>8}{'ours':>8}{'mapped':>8}  worst")
    for side in (32, 45, 64, 90, 128, 200, 362):
        rows = []
        for seed in range(rounds):
            for name, values in random_fields(np.random.default_rng(seed), side):
                data, width = shuffled(values), values.itemsize
                for level in (1, 4, 6):
                    base = len(zlib.compress(data, level))
                    if base > data.size / 10:
                        mapped = len(deflate.zlib_compress(data, _LEVELS[level])) / base
                        row = (len(ours(data, level, width)) / base, mapped, name, level)
                        rows.append(row)
        missed = [sum(row[i] > 1.03 for row in rows) for i in range(2)]
        cells = f"{len(rows):8}{missed[0]:8}{missed[1]:8}"
        print(f"{f'{side} x {side}':26}{cells}  {max(rows)[0]:.3f} of {max(rows)[2:]}")


def threads(repeat: int) -> None:
    """With two free cores, two threads that hold no lock take the time of one."""
    values = fields(SIDES["2 MiB"])["measured f4"]
    data = shuffled(values)
    calls = {name: _call(compress, data, 5, 4) for name, compress in libraries().items()}
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
    parser.add_argument("--random", type=int, default=8, help="rounds of random fields")
    options = parser.parse_args()
    few_bytes()
    noise_on_slopes()
    each_field(options.repeat)
    larger_by_three_percent(options.random)
    deflate_levels(options.levels, options.repeat)
    threads(3 * options.repeat)


if __name__ == "__main__":
    main()
