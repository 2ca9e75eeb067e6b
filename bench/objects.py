"""Reading 2,500 chunks over a network: one object for each, over HTTP and from S3.

Every turn opens the dataset by its .zmetadata and reads it whole: 50 x 50 chunks of 16 KB, shuffled
zlib, each an answer that 50 ms are waited for (bench/latency.py has the network and the limit,
here two read rounds: metadata and chunks). The range server of the tests plays S3 as well: to read
an object anonymously is a plain GET of ``/bucket/key``. Filesystems and clients are made anew in
every turn; connections that a peer's library keeps beyond that are kept, which can only favour it.

Peers: engine zarr as users get it (10 requests at a time), and all others with as many as its guide
recommends for remote stores, `PEERS_IN_FLIGHT`, on fsspec and on obstore. zarrs has a thread wait
for each request, and as many threads as cores unless ``RAYON_NUM_THREADS`` says otherwise when it
is loaded: it gets a process of its own, for that. tensorstore has no shuffle for Zarr 2; it reads
the same values without, in rows of their own.

Rows of a part have such values, too. HTTP does not list, so that each chunk has to be asked for, to
learn that it is not there (one in 25 is). Lists of indices are orthogonal, and what they touch is
asked for once. "One object" is one chunk of 41 MB without a codec: a range of it is enough.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from data import codecs, field
from harness import LIMIT, OURS, Goal, Options, Row, Work, measure
from latency import NETWORK, PEERS_IN_FLIGHT, Server, least

SIDE, CHUNK = 50, 64
BUCKET, SHUFFLED, PLAIN = "bucket", "shuffled.zarr", "plain.zarr"
SPARSE, ONE = "sparse.zarr", "one.zarr"
#: Of the sparse array, the share of chunks that are there; the others are fill values.
STORED = 25
REGION = "us-east-1"
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
ZARRS = "zarrs.ZarrsCodecPipeline"

Program = Callable[[], Any]
#: What is read: nothing, for all, or a number or a list of indices for each dimension.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A dataset on the server, and how each library is told of it."""

    endpoint: str
    name: str
    s3: bool
    key: Key = ()

    @property
    def http_url(self) -> str:
        return f"{self.endpoint}/{BUCKET}/{self.name}"

    @property
    def fsspec_url(self) -> str:
        return f"s3://{BUCKET}/{self.name}" if self.s3 else self.http_url

    def nczarr(self) -> Any:
        url = f"{self.http_url}#mode=s3" if self.s3 else self.http_url
        options: dict[str, Any] = {"storage_options": {"anon": True}} if self.s3 else {}
        return self.read(url, engine="nczarr", **options)

    def fsspec(self, in_flight: int | None = None) -> Any:
        """Engine zarr, which makes a filesystem of fsspec from a URL.

        aiohttp opens 100 connections at most and botocore 10, unless told otherwise: by a session
        of one's own (fsspec's `get_client`), by `max_pool_connections` (s3fs's `config_kwargs`).
        """
        options: dict[str, Any] = {"skip_instance_cache": True}
        if self.s3:
            options |= {"anon": True, "endpoint_url": self.endpoint}
            options |= {"client_kwargs": {"region_name": REGION}}
        if in_flight and self.s3:
            options |= {"config_kwargs": {"max_pool_connections": in_flight}}
        elif in_flight:
            options |= {"get_client": unlimited}
        with settings(in_flight):
            return self.read(self.fsspec_url, engine="zarr", storage_options=options)

    def obstore(self, pipeline: str | None = None) -> Any:
        """Engine zarr on zarr's ObjectStore; obstore itself does not limit its requests."""
        from obstore.store import HTTPStore, S3Store

        client: Any = {"allow_http": True, "pool_max_idle_per_host": str(PEERS_IN_FLIGHT)}
        store: Any
        if self.s3:
            store = S3Store(
                BUCKET,
                prefix=self.name,
                endpoint=self.endpoint,
                region=REGION,
                skip_signature=True,
                client_options=client,
            )
        else:
            store = HTTPStore.from_url(self.http_url, client_options=client)
        with settings(PEERS_IN_FLIGHT, pipeline):
            return self.read(zarr.storage.ObjectStore(store, read_only=True), engine="zarr")

    def zarrs(self) -> Any:
        """The same with zarrs' pipeline; must run where `RAYON_NUM_THREADS` is set."""
        return self.obstore(ZARRS)

    def tensorstore(self) -> Any:
        """Its limits of requests at a time, 32 by default, are resources of its context."""
        import tensorstore

        store: dict[str, Any] = {"driver": "http", "base_url": f"{self.http_url}/"}
        if self.s3:
            store = {
                "driver": "s3",
                "bucket": BUCKET,
                "path": f"{self.name}/",
                "endpoint": self.endpoint,
                "aws_region": REGION,
                "aws_credentials": {"type": "anonymous"},
            }
        limits = {"limit": PEERS_IN_FLIGHT}
        context = {"http_request_concurrency": limits, "s3_request_concurrency": limits}
        spec = {"driver": "zarr", "kvstore": {**store, "path": f"{store.get('path', '')}v/"}}
        array = tensorstore.open(
            spec, context=tensorstore.Context(context), open=True, read=True
        ).result()
        return array.oindex[self.key or ...].read().result()

    def read(self, target: Any, **options: Any) -> Any:
        with xr.open_dataset(target, consolidated=True, cache=False, **options) as ds:
            return ds["v"][self.key].values


def run(options: Options) -> dict[str, Row]:
    side = max(2, round(SIDE * options.scale**0.5))
    rows: dict[str, Row] = {}
    # filesystems of fsspec that are forgotten leave their sessions open, which aiohttp tells of
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory() as name,
        Server(Path(name)) as server,
        many_threads() as process,
    ):
        for row, (dataset, s3, key) in cases(side).items():
            if not options.wants(row):
                continue
            tree = write(Path(name), dataset, side)
            server.control("set", **NETWORK.settings())
            found = programs(Place(server.url("").rstrip("/"), dataset, s3, key), process)
            work = Work(
                row,
                {**{k: counted(server, k, v) for k, v in found.items()}, LIMIT: limit(tree, key)},
                (Goal(LIMIT, 1 / 1.4), Goal("best peer", 1.5)) if dataset == SHUFFLED else (),
                side * side * CHUNK * CHUNK * 4 / 1e6,
                right=lambda found, expected: np.array_equal(found, expected, equal_nan=True),
            )
            rows[row] = measure(work, options.repeat)
    return rows


def cases(side: int) -> dict[str, tuple[str, bool, Key]]:
    """The rows: what is read, whether from S3, and which part."""
    found: dict[str, tuple[str, bool, Key]] = {}
    for s3 in (False, True):
        row = f"{side * side:,} chunks over {'S3' if s3 else 'HTTP'}"
        found |= {row: (SHUFFLED, s3, ()), f"{row}, no shuffle": (PLAIN, s3, ())}
    generator = np.random.default_rng(2)
    rows, columns = (generator.choice(side * CHUNK, 20, replace=False).tolist() for _ in range(2))
    return {
        **found,
        f"{side * side:,} chunks over HTTP, 1 in {STORED} stored": (SPARSE, False, ()),
        "20 x 20 elements by lists, HTTP": (PLAIN, False, (rows, columns)),
        "20 x 20 elements by lists of one object, HTTP": (ONE, False, (rows, columns)),
        "one element of one object, HTTP": (ONE, False, (17, 33)),
    }


def programs(place: Place, process: Executor) -> dict[str, Program]:
    found: dict[str, Program] = {
        OURS: place.nczarr,
        "zarr, 128": lambda: place.fsspec(PEERS_IN_FLIGHT),
        "zarr, obstore": place.obstore,
        "zarr, fused": lambda: place.obstore(FUSED),
        "zarr, zarrs": elsewhere(process, place.zarrs),
    }
    if place.name == SHUFFLED:
        return {**found, "zarr": place.fsspec}
    return {**found, "tensorstore": place.tensorstore}


@contextlib.contextmanager
def many_threads() -> Iterator[Executor]:
    """A process in which zarrs may have so many requests in flight."""
    before = dict(os.environ)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        os.environ["RAYON_NUM_THREADS"] = str(PEERS_IN_FLIGHT)
        try:
            process.submit(os.getpid).result()  # it starts now
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield process


def elsewhere(process: Executor, program: Program) -> Program:
    """`program` in that process; only the result that is checked is sent back."""
    checked: list[bool] = []

    def call() -> Any:
        result = process.submit(done, program, not checked).result()
        checked.append(True)
        return result

    return call


def done(program: Program, wanted: bool) -> Any:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    result = program()
    return result if wanted else None


def write(folder: Path, name: str, side: int) -> Path:
    tree = folder / BUCKET / name
    if not tree.exists():
        values = field((side * CHUNK, side * CHUNK))
        if name == SPARSE:
            chunk = np.add.outer(*[np.arange(side * CHUNK) // CHUNK] * 2)
            values[chunk % STORED != 0] = np.nan
        ds = xr.Dataset({"v": (("y", "x"), values)})
        codec = codecs()[{SHUFFLED: "shuffled zlib", ONE: "none"}.get(name, "zlib")]
        chunks = values.shape if name == ONE else (CHUNK, CHUNK)
        encoding = {"chunks": chunks, **codec.zarr}
        ds.to_zarr(tree, zarr_format=2, encoding={"v": encoding}, consolidated=True)
    return tree


def limit(tree: Path, key: Key) -> float:
    metadata = (tree / ".zmetadata").stat().st_size
    if tree.name == ONE:  # four bytes of each element, or of each row from the first to the last
        rows, columns = key
        lists = isinstance(rows, list)
        count, span = (len(rows), max(columns) - min(columns) + 1) if lists else (1, 1)
        return least((1, count), metadata + 4 * count * span)
    numbers = [sorted({i // CHUNK for i in index}) for index in key]
    grid = json.loads((tree / "v" / ".zarray").read_text())["shape"]
    axes = numbers or [range(length // CHUNK) for length in grid]
    asked = [tree / "v" / f"{i}.{j}" for i, j in itertools.product(*axes)]
    return least((1, len(asked)), metadata + sum(f.stat().st_size for f in asked if f.exists()))


def counted(server: Server, name: str, program: Program) -> Program:
    """`program`; the first time it is told how many requests that were, and how many at once."""
    told: list[str] = []

    def call() -> Any:
        if told:
            return program()
        told.append(name)
        server.control("reset")
        result = program()
        stats = server.control("stats")
        at_once = f"{stats['max_inflight']} at once, {stats['conns']} connections"
        print(f"{name}: {stats['requests']} requests, {at_once}", file=sys.stderr, flush=True)
        return result

    return call


@contextlib.contextmanager
def settings(in_flight: int | None, pipeline: str | None = None) -> Iterator[None]:
    """zarr-python's, as its guide on performance and zarrs' readme have them."""
    found: dict[str, Any] = {}
    if in_flight:
        found["async.concurrency"] = in_flight
    if pipeline:
        found["codec_pipeline.path"] = pipeline
    if pipeline == ZARRS:
        found |= {"codec_pipeline.chunk_concurrent_maximum": in_flight}
        found |= {"threading.max_workers": in_flight, "codec_pipeline.strict": True}
    with zarr.config.set(found):
        yield


async def unlimited(**options: Any) -> Any:
    """A session with as many connections as there are requests."""
    import aiohttp

    loop = options.pop("loop", None)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, loop=loop), **options)
