"""Our own HTTP and S3 clients against obstore's, on the same requests: time and CPU time.

``python bench/transport.py`` reads 2,500 objects of 16 KB with one request each, and all 10,512
chunks of 1 to 16 KB of one file, over 50 ms (bench/latency.py), by HTTP and by signed requests to
S3. The requests are the same for both: of objects one for each key, as many in flight; of the file
those that `RangeReader` plans, each with the condition that the entity tag is that of the first
answer. ``get_ranges`` is obstore's own way to read many ranges, without such a condition.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fsspec.asyn import get_loop
from latency import NETWORK, Server
from obstore.store import HTTPStore, S3Store

from nczarr_fsspec.keystore import RemoteStore
from nczarr_fsspec.place import open_filesystem, open_keystore
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.ranges.reader import RangeReader
from nczarr_fsspec.ranges.remote import open_source
from nczarr_fsspec.ranges.source import HEAD_BYTES, Limits, RemoteBytes
from nczarr_fsspec.transport.request import Extent

OBJECTS, OBJECT_BYTES, CHUNKS = 2500, 16_000, 10_512
BUCKET = "bucket"
KEYS = {"key": "someone", "secret": "something"}

Program = Callable[[], None]


class Obstore(RemoteBytes):
    """A file by obstore, with the promises of ours: all bytes of one version."""

    def __init__(self, store: Any, path: str) -> None:
        self.store, self.path, self.url = store, path, path
        options: Any = {"range": (0, HEAD_BYTES)}
        answer = store.get(path, options=options)
        self.size, self.validator = answer.meta["size"], answer.meta["e_tag"]
        self.head = bytes(answer.bytes())
        self._limits = Limits(concurrency=64)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()

    @property
    def limits(self) -> Limits:
        return self._limits

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        return list(await asyncio.gather(*map(self.one, extents)))

    async def one(self, extent: Extent) -> memoryview:
        options: Any = {"range": tuple(extent), "if_match": self.validator}
        answer = await self.store.get_async(self.path, options=options)
        body = memoryview(await answer.bytes_async())
        assert len(body) == extent.stop - extent.start
        return body


def stores(server: Server, s3: bool) -> tuple[Any, dict[str, Any], str]:
    """Obstore's store of the bucket; options and URL of ours."""
    client: Any = {"allow_http": True, "pool_max_idle_per_host": "192", "timeout": "600s"}
    endpoint = server.url("").rstrip("/")
    if not s3:
        return HTTPStore.from_url(f"{endpoint}/{BUCKET}", client_options=client), {}, endpoint
    store = S3Store(
        BUCKET, endpoint=endpoint, region="us-east-1", client_options=client,
        access_key_id=KEYS["key"], secret_access_key=KEYS["secret"],
    )  # fmt: skip
    options = {**KEYS, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    return store, {**options, "skip_instance_cache": True}, "s3:/"


def objects_by_us(options: dict[str, Any], root: str) -> None:
    store = open_keystore(f"{root}/{BUCKET}/tree#mode=zarr", options)
    assert isinstance(store, RemoteStore)
    found = store.get_many([f"c{n}" for n in range(OBJECTS)])
    assert sum(len(data) for data in found if isinstance(data, bytes)) == OBJECTS * OBJECT_BYTES
    store.close()


def objects_by_obstore(store: Any) -> None:
    async def all_of_them() -> int:
        gate = asyncio.Semaphore(RemoteStore.concurrency)

        async def one(number: int) -> int:
            async with gate:
                answer = await store.get_async(f"tree/c{number}")
                return len(await answer.bytes_async())

        return sum(await asyncio.gather(*map(one, range(OBJECTS))))

    assert on_loop(all_of_them()) == OBJECTS * OBJECT_BYTES


def file_by(source: RemoteBytes, starts: Any, stops: Any) -> None:
    reader, total = RangeReader(source), 0

    async def receive(_: Any, data: list[memoryview]) -> None:
        nonlocal total
        total += sum(map(len, data))

    on_loop(reader.read_data(starts, stops, receive))
    assert total == int((stops - starts).sum())


def file_by_us(options: dict[str, Any], root: str, starts: Any, stops: Any) -> None:
    fs, path = open_filesystem(parse_url(f"{root}/{BUCKET}/file"), options)
    source = open_source(fs, path, None)
    assert isinstance(source, RemoteBytes)
    file_by(source, starts, stops)
    source.close()


def file_by_ranges(store: Any, starts: Any, stops: Any) -> None:
    reading = store.get_ranges_async("file", starts=starts.tolist(), ends=stops.tolist())
    assert sum(map(len, on_loop(waited(reading)))) == int((stops - starts).sum())


async def waited(awaitable: Any) -> Any:
    return await awaitable


def on_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, get_loop()).result()


def timed(program: Program) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    program()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name, Server(Path(name)) as server:
        tree = Path(name) / BUCKET / "tree"
        tree.mkdir(parents=True)
        for number in range(OBJECTS):
            (tree / f"c{number}").write_bytes(rng.bytes(OBJECT_BYTES))
        sizes = rng.integers(1000, 16_000, CHUNKS)
        stops = np.cumsum(sizes)
        starts = stops - sizes
        (tree.parent / "file").write_bytes(rng.bytes(int(stops[-1])))
        (tree / ".zgroup").write_text('{"zarr_format": 2}')
        # one place at all times: every 72nd chunk, one request each
        every = slice(0, None, 72)
        server.control("set", **NETWORK.settings())
        print("| work | program | seconds | CPU seconds |", "|---|---|---|---|", sep="\n")
        for s3 in (False, True):
            at = "S3" if s3 else "HTTP"

            def fresh(s3: bool = s3) -> Any:
                return stores(server, s3)

            def ours(work: Callable[..., None], *given: Any, fresh: Any = fresh) -> None:
                _, options, root = fresh()
                work(options, root, *given)

            def theirs(work: Callable[..., None], *given: Any, fresh: Any = fresh) -> None:
                work(fresh()[0], *given)

            def adapted(starts: Any, stops: Any, fresh: Any = fresh) -> None:
                file_by(Obstore(fresh()[0], "file"), starts, stops)

            works: dict[str, dict[str, Program]] = {
                f"{OBJECTS:,} objects, {at}": {
                    "ours": partial(ours, objects_by_us),
                    "obstore": partial(theirs, objects_by_obstore),
                }
            }
            for label, part in (("all", slice(None)), ("every 72nd", every)):
                a, b = starts[part], stops[part]
                works[f"{label} of {CHUNKS:,} chunks, {at}"] = {
                    "ours": partial(ours, file_by_us, a, b),
                    "obstore, our requests": partial(adapted, a, b),
                    "obstore, get_ranges": partial(theirs, file_by_ranges, a, b),
                }
            for work, programs in works.items():
                found: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
                for _ in range(given.repeat + 1):
                    for program, call in programs.items():
                        found[program].append(timed(call))
                for program, times in found.items():
                    wall, cpu = (statistics.median(v) for v in zip(*times[1:], strict=True))
                    print(f"| {work} | {program} | {wall:.3f} | {cpu:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    sys.exit(main())
