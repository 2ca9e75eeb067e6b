"""Whatever a server answers: the right bytes, or an error of ours, before long."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import fsspec
import netCDF4
import numpy as np
import pytest

from nczarr_fsspec import FormatError, StoreError
from nczarr_fsspec.ranges.remote import open_source
from nczarr_fsspec.ranges.source import RemoteBytes
from nczarr_fsspec.transport.request import Extent
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.marks import slow_but
from tests.support.servers.liar import Case, Liar
from tests.support.servers.lies import SILENCE

T = TypeVar("T")

SEEDS = range(12)
CASES = 25
#: seconds until a case counts as one that never ends
PATIENCE = 60
#: requests for one case: each of a few dozen ranges may be tried and redirected some times
MOST_REQUESTS = 5000
RATES = (0.02, 0.1, 0.3, 0.6, 1.0)
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE / 2)
OPTIONS: dict[str, Any] = {"client_kwargs": {"timeout": TIMEOUT}}
MAX_WHOLE = 4 << 20

pytestmark = [
    pytest.mark.usefixtures("no_waiting"),
    pytest.mark.filterwarnings("ignore::nczarr_fsspec.errors.NCZarrWarning"),
]


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar() as liar:
        yield liar


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, ...]]:
    """Two versions each of a classic and a netCDF-4 file."""
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for format_ in ("NETCDF3_64BIT_OFFSET", "NETCDF4"):
        for version in range(2):
            _write(folder / f"{format_}{version}.nc", format_, version)
        found[format_] = tuple((folder / f"{format_}{n}.nc").read_bytes() for n in range(2))
    return found


def _values(version: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(version)
    grids = {f"grid{n}": rng.integers(0, 1 << 30, (30, 40, 25 + version)) for n in range(3)}
    return {"line": np.arange(500.0) + version, **grids}


def _write(path: Path, format_: Any, version: int) -> None:
    with netCDF4.Dataset(path, "w", format=format_) as ds:
        for name, values in _values(version).items():
            names = [f"{name}_{axis}" for axis in range(values.ndim)]
            for dimension, length in zip(names, values.shape, strict=True):
                ds.createDimension(dimension, length)
            dtype = "f8" if values.dtype.kind == "f" else "i4"
            chunks = [-(-length // 5) for length in values.shape] if format_ == "NETCDF4" else None
            variable = ds.createVariable(name, dtype, names, chunksizes=chunks, shuffle=False)
            variable.long_name = f"the {name} of version {version}"
            variable[...] = values


def in_time(function: Callable[[], T]) -> T:
    """What a function returns or raises; fail if it does neither."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function).result(PATIENCE)
    finally:
        pool.shutdown(wait=False)


def checked(function: Callable[[], T], case: Case) -> T | None:
    """What comes out of a case, None for an error that may."""
    try:
        result = in_time(function)
    except (StoreError, FormatError) as error:
        assert error.object
        assert error.reason
        result = None
    assert case.requests < MOST_REQUESTS, case.told
    assert not case.swallowed, case.told
    return result


@pytest.mark.parametrize("seed", slow_but(SEEDS, *SEEDS[:4]))
def test_byte_ranges(liar: Liar, seed: int) -> None:
    rng = random.Random(f"ranges/{seed}")
    fs = fsspec.filesystem("http", **OPTIONS)
    read = 0
    for number in range(CASES):
        size = rng.choice((3, 70_000, 1_000_000))
        versions = tuple(rng.randbytes(size + n) for n in range(rng.choice((1, 1, 2))))
        case = Case(versions, f"ranges/{seed}/{number}", rng.choice(RATES))
        url = liar.added(f"{seed}/{number}.bin", case)

        def run(url: str = url, size: int = size) -> tuple[RemoteBytes, list[Extent], list[bytes]]:
            source = open_source(fs, url, max_whole=MAX_WHOLE)
            assert isinstance(source, RemoteBytes)
            assert source.size >= 0
            cuts = sorted(rng.sample(range(size), min(size, 40)))
            extents = [Extent(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
            extents = [Extent(a, min(b, source.size)) for a, b in extents if a < source.size]
            try:
                return source, extents, [bytes(data) for data in source.run(source.fetch(extents))]
            finally:
                source.close()

        found = checked(run, case)
        if found is not None:
            source, extents, data = found
            read += 1
            truths = [[v[a:b] for a, b in extents] for v in versions]
            assert data in truths, case.told
            assert any(v.startswith(source.head) for v in versions), case.told
    assert read, "nothing came through"


@pytest.mark.parametrize("seed", slow_but(SEEDS, *SEEDS[:3]))
@pytest.mark.parametrize("format_", ["NETCDF3_64BIT_OFFSET", "NETCDF4"])
def test_files(liar: Liar, files: dict[str, tuple[bytes, ...]], seed: int, format_: str) -> None:
    rng = random.Random(f"files/{seed}/{format_}")
    read = 0
    for number in range(CASES // 2):
        versions = files[format_][: rng.choice((1, 1, 2))]
        case = Case(versions, f"files/{seed}/{number}", rng.choice(RATES))
        url = liar.added(f"{format_}/{seed}/{number}.nc", case)

        def run(url: str = url) -> dict[str, np.ndarray[Any, Any] | Exception]:
            options = {**OPTIONS, "max_whole": MAX_WHOLE}
            with open_hierarchy(url, storage_options=options) as opened:
                variables = opened.hierarchy.root.variables
                names = list(variables)
                wanted = [(variables[name], None) for name in names]
                return dict(zip(names, opened.read_many(wanted), strict=True))

        found = checked(run, case)
        for name, values in (found or {}).items():
            if isinstance(values, np.ndarray):
                read += 1
                truths = [_values(version)[name] for version in range(2)]
                assert any(np.array_equal(values, truth) for truth in truths), case.told
            else:
                assert isinstance(values, (StoreError, FormatError))
    assert read, "nothing came through"
