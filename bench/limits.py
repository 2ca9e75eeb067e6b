"""The limit of reading a tree: the fastest codec library and one copy into place, and nothing else.

A loop in threads over paths, sizes and places that were found beforehand: open, pread, close,
decode, and copy byte planes or elements into the result, or decode there. Which library, how many
threads, and how many chunks are copied together is tried for each case, and the fastest wins.
Chunks that nothing is wanted of are not read, and none is decoded twice. No metadata are read and
no xarray object is made: where little is read, those are most of what the others do.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from data import DTYPE, Array, Stored, codecs
from programs import Key, boxed, listed, pointwise

Numbers: TypeAlias = np.ndarray[Any, Any]
#: Takes what is stored, room for the chunk, and how many bytes from its begin are wanted.
Decode: TypeAlias = Callable[[bytes, Numbers, int], None]

#: Chunks that are decoded before they are copied together, and the bytes they may have.
BATCHES, BATCH_BYTES = (1, 4, 16, 64), 1 << 22
#: Bytes of a large page of memory.
_PAGE = 1 << 21


def limit(stored: Stored, keys: tuple[Key, ...]) -> Callable[[], Any]:
    """What reads `keys` as fast as can be; several keys are read as the whole they make up."""
    array = stored.array
    if array.contiguous:
        path = stored.chunk((0,) * len(array.shape))
        if all(index == slice(None) for key in keys for index in key):
            return partial(_load_all, path, array.shape)
        return lambda: [_mapped(np.memmap(path, DTYPE, "r", shape=array.shape), k) for k in keys]
    if any(map(listed, keys)):
        (key,) = keys
        shape = tuple(len(index) for index in key)
        few = limit(stored, (tuple(n.ravel() for n in np.meshgrid(*key, indexing="ij")),))
        return lambda: [few()[0].reshape(shape)]
    if len(keys) > 1:
        whole = limit(stored, ((slice(None),) * len(array.shape),))
        if boxed(keys):
            return lambda: [values[key] for values in whole() for key in keys]
        return lambda: whole()[0]
    [key] = keys
    nbytes = math.prod(array.chunks) * DTYPE.itemsize
    alone = pointwise(key) or array.every > 1
    batches = [b for b in BATCHES if b == 1 or (b * nbytes <= BATCH_BYTES and not alone)]
    threads = sorted({1, len(os.sched_getaffinity(0))})
    choices = itertools.product(batches, decoders(array.codec), threads)
    arrangements = [Arrangement(stored, key, *choice) for choice in choices]
    few = sorted(arrangements, key=_seconds)[:4]
    return min(few, key=lambda one: min(_seconds(one) for _ in range(2)))


def _mapped(stored: Numbers, key: Key) -> Numbers:
    axes = [index if isinstance(index, list) else [index] for index in key]
    numbers = tuple(i for i, index in enumerate(key) if not isinstance(index, list))
    return stored[np.ix_(*axes)].squeeze(numbers)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def decoders(codec: str) -> list[Decode | None]:
    """The libraries that may be fastest; None: nothing is to be decoded."""
    found: list[Decode | None] = []
    if codec == "none":
        return [None]
    if codec == "blosc lz4":
        from numcodecs import blosc

        found.append(lambda data, room, _: blosc.decompress(data, room))
    if codec == "zstd":
        from numcodecs import zstd

        found.append(lambda data, room, _: zstd.decompress(data, room))
    if codec.endswith("zlib"):
        with contextlib.suppress(ImportError):
            from deflate import zlib_decompress

            def inflate(data: bytes, room: Numbers, _: int) -> None:
                room[:] = np.frombuffer(zlib_decompress(data, len(room)), np.uint8)

            found.append(inflate)
        with contextlib.suppress(ImportError):
            from isal.isal_zlib import decompressobj

            def inflate_begin(data: bytes, room: Numbers, wanted: int) -> None:
                begin = decompressobj().decompress(data, wanted)
                room[:wanted] = np.frombuffer(begin, np.uint8)

            found.append(inflate_begin)
    with contextlib.suppress(ImportError):
        import imagecodecs

        function = {
            "zlib": imagecodecs.deflate_decode,  # libdeflate, into a buffer that is there
            "zstd": imagecodecs.zstd_decode,
            "lz4": partial(imagecodecs.blosc_decode, numthreads=1),
        }[codec.rpartition(" ")[2]]
        found.append(lambda data, room, _: function(data, out=room))
    return found


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring chunks: the files and their sizes, and where their elements go.

    Attributes
    ----------
    wanted
        Elements of each chunk, from its begin, that matter.
    place
        Copies what is wanted of the chunks into the result, or one byte plane into the other.
    straight
        Where the elements of a single chunk go one after the other as they are.
    """

    files: list[tuple[str, int]]
    wanted: int
    place: Callable[[Numbers, Numbers], None]
    straight: tuple[slice, ...] | None = None


class Arrangement:
    """One way to do it; called, it reads."""

    def __init__(
        self, stored: Stored, key: Key, batch: int, decode: Decode | None, threads: int
    ) -> None:
        self.array, self.key = stored.array, key
        self.batch, self.decode, self.threads = batch, decode, threads
        self.shuffled = codecs()[self.array.codec].shuffled
        self.nbytes = math.prod(self.array.chunks) * DTYPE.itemsize
        self.parts = list(_points(stored, key) if pointwise(key) else _rows(stored, key, batch))
        self.allocate = np.empty if stored.array.every == 1 else np.zeros
        if pointwise(key):
            self.shape: tuple[int, ...] = key[0].shape
        else:
            self.shape = tuple(len(steps) for steps in _steps(self.array, key))
        # numbers take their dimension away
        self.squeezed = tuple(i for i, index in enumerate(key) if isinstance(index, int))

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads - 1)

    def __call__(self) -> Any:
        result = self.allocate(self.shape, DTYPE)
        todo = iter(self.parts)  # threads may share the iterator of a list
        helpers = [self.pool.submit(self._work, todo, result) for _ in range(self.threads - 1)]
        self._work(todo, result)
        for helper in helpers:
            helper.result()
        return [result.squeeze(self.squeezed)]

    def _work(self, todo: Iterator[Part], result: Numbers) -> None:
        room = np.empty((self.batch, self.nbytes), np.uint8)
        chunks, planes = room.view(DTYPE)[None], result[None]
        if self.shuffled:
            chunks = room.reshape(self.batch, DTYPE.itemsize, -1).swapaxes(0, 1)
            planes = result.view(np.uint8).reshape(*self.shape, DTYPE.itemsize)
            planes = np.moveaxis(planes, -1, 0)
        chunks = chunks.reshape(len(planes), self.batch, *self.array.chunks)
        before = self.nbytes * (len(planes) - 1) // len(planes)  # of the last plane
        width = DTYPE.itemsize // len(planes)
        decode = self.decode
        for part in todo:
            wanted = before + part.wanted * width
            if part.straight is not None and len(planes) == 1:
                path, size = part.files[0]
                into = result[part.straight].reshape(-1).view(np.uint8)
                if decode is None:
                    _load(path, into)
                else:
                    decode(_read(path, size), into, wanted)
                continue
            for (path, size), into in zip(part.files, room, strict=False):
                if decode is None:
                    _load(path, into)
                else:
                    decode(_read(path, size), into, wanted)
            number = len(part.files)
            for plane, chunk in zip(planes, chunks, strict=True):
                part.place(plane, chunk[:number])


def _read(path: str, size: int) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, size, 0)
    finally:
        os.close(file)


def _load(path: str, into: Numbers) -> None:
    """Read a file; memory that is new is not written to for the first time amid the copy."""
    room = memoryview(into.reshape(-1).view(np.uint8))
    _load_pages(path, room, iter(range(0, len(room), _PAGE)))


def _load_pages(path: str, room: memoryview, starts: Iterator[int]) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        for start in starts:
            piece = room[start : start + _PAGE]
            piece[-1] = 0
            os.preadv(file, [piece], start)
    finally:
        os.close(file)


def _load_all(path: str, shape: tuple[int, ...]) -> list[Numbers]:
    """Read one large file with all processors."""
    result = np.empty(shape, DTYPE)
    room = memoryview(result.reshape(-1).view(np.uint8))
    starts = iter(range(0, len(room), _PAGE))
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(_load_pages, path, room, starts) for _ in range(threads)]:
            one.result()
    return [result]


@dataclass(frozen=True, slots=True)
class Span:
    """What is wanted of one chunk along one dimension."""

    number: int
    source: slice
    target: slice


def _steps(array: Array, key: Key) -> list[range]:
    """Which elements are wanted, by dimension."""
    pairs = zip(key, array.shape, strict=True)
    return [range(i, i + 1) if isinstance(i, int) else range(n)[i] for i, n in pairs]


def _spans(steps: range, length: int) -> list[Span]:
    found = []
    for number in range(steps[0] // length, steps[-1] // length + 1):
        begin = number * length
        first, after = (
            max(0, -((steps.start - edge) // steps.step)) for edge in (begin, begin + length)
        )
        after = min(after, len(steps))
        if first < after:
            source = slice(steps[first] - begin, steps[after - 1] - begin + 1, steps.step)
            found.append(Span(number, source, slice(first, after)))
    return found


def _rows(stored: Stored, key: Key, batch: int) -> Iterator[Part]:
    """Slices: neighbours along the last dimension that has several chunks, so many at a time."""
    array = stored.array
    spans = [_spans(*pair) for pair in zip(_steps(array, key), array.chunks, strict=True)]
    along = max([i for i, several in enumerate(spans) if len(several) > 1], default=0)
    row = spans[along]
    batches = [row[i : i + batch] for i in range(0, len(row), batch)]
    for choice in itertools.product(*spans[:along], batches, *spans[along + 1 :]):
        several = choice[along]
        ones = [*choice[:along], several[0], *choice[along + 1 :]]
        if sum(span.number for span in ones) % array.every:
            continue  # it is not stored, and alone
        files = []
        for span in several:
            position = [one.number for one in ones]
            position[along] = span.number
            path = stored.chunk(tuple(position))
            files.append((path, Path(path).stat().st_size))
        source, target = [one.source for one in ones], [one.target for one in ones]
        last = [s.stop - 1 for s in source]
        last[along] = max(span.source.stop - 1 for span in several)
        wanted = int(np.ravel_multi_index(last, array.chunks)) + 1
        if len(several) == 1:
            place = partial(_place_one, tuple(target), (0, *source))
            yield Part(files, wanted, place, _straight(array, ones))
            continue
        target[along] = slice(several[0].target.start, several[-1].target.stop)
        source[along] = slice(None)
        length = array.chunks[along]
        if all(span.source == slice(0, length, 1) for span in several):
            place = partial(_place_whole, along, tuple(target), (slice(None), *source))
        else:
            stop = (len(several) - 1) * length + several[-1].source.stop
            wished = slice(several[0].source.start, stop, several[0].source.step)
            of_row = (*(slice(None),) * along, wished)
            place = partial(_place_row, along, tuple(target), (slice(None), *source), of_row)
        yield Part(files, wanted, place)


def _straight(array: Array, spans: list[Span]) -> tuple[slice, ...] | None:
    """Where a whole chunk goes, if that is in one piece."""
    pairs = list(zip(spans, array.chunks, array.shape, strict=True))
    if any(span.source != slice(0, chunk, 1) for span, chunk, _ in pairs):
        return None
    while pairs and pairs[0][1] == 1:
        del pairs[0]
    if any(chunk != size for _, chunk, size in pairs[1:]):
        return None
    return tuple(span.target for span in spans)


def _place_one(target: Any, source: Any, result: Numbers, chunks: Numbers) -> None:
    result[target] = chunks[source]


def _place_whole(along: int, target: Any, source: Any, result: Numbers, chunks: Numbers) -> None:
    """Whole chunks of a row: the result is divided, which is a view."""
    out, count = result[target], len(chunks)
    out = out.reshape(*out.shape[:along], count, -1, *out.shape[along + 1 :], copy=False)
    np.moveaxis(out, along, 0)[...] = chunks[source]


def _place_row(
    along: int, target: Any, source: Any, of_row: Any, result: Numbers, chunks: Numbers
) -> None:
    """Every n-th of a row of chunks: they are joined, which is a copy, but of little."""
    joined = np.moveaxis(chunks[source], 0, along)
    shape = joined.shape
    joined = joined.reshape(*shape[:along], -1, *shape[along + 2 :])
    result[target] = joined[of_row]


def _points(stored: Stored, key: Key) -> Iterator[Part]:
    """Points by the chunk they are in."""
    array = stored.array
    grid = [-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True)]
    pairs = list(zip(key, array.chunks, strict=True))
    number = np.ravel_multi_index([index // chunk for index, chunk in pairs], grid)
    order = np.argsort(number, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    for group in groups:
        path = stored.chunk(tuple(int(index[group[0]]) // chunk for index, chunk in pairs))
        source = tuple(index[group] % chunk for index, chunk in pairs)
        wanted = int(np.ravel_multi_index(source, array.chunks).max()) + 1
        place = partial(_place_one, group, (0, *source))
        yield Part([(path, Path(path).stat().st_size)], wanted, place)
