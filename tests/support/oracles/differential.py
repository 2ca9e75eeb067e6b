"""Random datasets, read by us in all ways and by those who wrote them: nothing may differ.

`run` is one case; ``ci/fuzz_differential.py`` runs as many as one likes, the tests a few.
"""

from __future__ import annotations

import atexit
import io
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import xarray as xr
from zarr.storage import LocalStore

from tests.support.builders.selections import indexers
from tests.support.corpora import random_hdf5, random_netcdf, random_zarr
from tests.support.corpora.random_hdf5 import Made
from tests.support.oracles.readings import (
    RAW,
    Difference,
    Failed,
    Reading,
    as_objects,
    by_h5py,
    by_xarray,
    by_zarr,
    differences,
    fit,
    native,
    same,
    short,
)
from tests.support.servers.httpserver import Server

#: Kinds of datasets, by how often.
MAKERS: dict[str, tuple[int, Callable[[random.Random, Path], Made]]] = {
    "hdf5": (9, random_hdf5.write),
    "netcdf": (7, random_netcdf.write),
    "zarr": (4, random_zarr.write),
}
FILE_WAYS = ("path", "object", "memory", "http")
TREE_WAYS = ("path", "store", "mapper", "http")
CHUNKS: tuple[Any, ...] = (None, None, {}, -1)
#: Selections of a case.
SELECTIONS = 3
#: What a case counts as.
Labels = list[tuple[str, str]]


class DifferentError(AssertionError):
    """Two readers say different things."""


def make(seed: int, number: int, folder: Path) -> tuple[str, Made, random.Random]:
    """Write the dataset of a case; what kind it is, and the randomness that is left."""
    choose = random.Random(f"{seed}/{number}")
    kinds = list(MAKERS)
    kind = choose.choices(kinds, [MAKERS[name][0] for name in kinds])[0]
    return kind, MAKERS[kind][1](choose, folder / f"case{number}"), choose


def run(seed: int, number: int) -> Labels:
    """Run one case: make, read, compare, select.

    Raises
    ------
    DifferentError
        If anything differs.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind, made, choose = make(seed, number, Path(folder))
        labels = _check(kind, made, choose)
    return [("kind", kind), *labels]


def _check(kind: str, made: Made, choose: random.Random) -> Labels:
    labels: Labels = []
    way, chunks = _way(kind, made, choose)
    labels.append(("way", f"{kind}: {way}"))
    with opened(made, way) as target:
        ours = by_xarray(target, "nczarr", chunks=chunks, **RAW)
    found: list[Difference] = []
    if kind == "zarr":
        truth = by_zarr(made.path)
        found += _of_zarr(ours, truth)
    else:
        hdf5 = made.path.read_bytes()[:3] != b"CDF"
        truth = by_h5py(made.path, attributes=True, **made.h5py_options) if hdf5 else {}
        grown = fit(truth, ours)
        if hdf5:
            found += _of_h5py(ours, truth)
        theirs = _by_netcdf(made, labels)
        if theirs:
            wrong = _values_that_are_wrong(theirs, ours, truth) | grown
            labels += [("netCDF-C", "other values than h5py")] * bool(wrong)
            found += [d for d in differences(ours, theirs) if d.where not in wrong]
            found += [d for d in _decoded(made, way) if d.where not in wrong]
    if found:
        raise DifferentError(f"{way}, chunks={chunks}:\n" + "\n".join(map(str, found[:20])))
    for _ in range(SELECTIONS):
        labels.append(("selection", _select(kind, made, choose, ours)))
    return labels


def _by_netcdf(made: Made, labels: Labels) -> Reading:
    """What netCDF-C says; nothing if it does not open the file."""
    if not made.netcdf:
        return {}
    try:
        return by_xarray(made.path, "netcdf4", **RAW)
    except (OSError, ValueError, RuntimeError, AttributeError) as error:
        labels.append(("netCDF-C", f"does not open it: {type(error).__name__}"))
        return {}


def _way(kind: str, made: Made, choose: random.Random) -> tuple[str, Any]:
    ways = TREE_WAYS if kind == "zarr" else FILE_WAYS
    way = choose.choice(ways)
    if not made.alone:
        way = "path" if kind != "zarr" or way == "http" else way
    return way, choose.choice(CHUNKS)


@cache
def _server() -> Server:
    server = Server({})
    server.__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server


@contextmanager
def opened(made: Made, way: str) -> Iterator[Any]:
    """Something to open: a path, an open file, an address, a store."""
    path = made.path
    if way == "path":
        yield os.fspath(path)
    elif way == "object":
        with path.open("rb") as file:
            yield file
    elif way == "memory":
        yield io.BytesIO(path.read_bytes())
    elif way == "store":
        yield LocalStore(path, read_only=True)
    elif way == "mapper":
        yield fsspec.get_mapper(os.fspath(path))
    else:
        server = _server()
        files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
        root = f"/{path.parent.name}"
        server.requests.clear()
        server.files = {
            f"{root}/{file.relative_to(path.parent).as_posix()}": file.read_bytes()
            for file in files
        }
        mode = "bytes" if path.is_file() else "zarr"
        yield f"{server.url}{root}/{path.name}#mode={mode}"


# -- comparing ----------------------------------------------------------------------------------


def _of_h5py(ours: Reading, theirs: Reading) -> Iterator[Difference]:
    theirs = {
        path: replace(
            group, variables={n: replace(v, encoding=None) for n, v in group.variables.items()}
        )
        for path, group in theirs.items()
    }
    yield from differences(as_objects(ours), theirs, exact=False)


def _values_that_are_wrong(theirs: Reading, ours: Reading, truth: Reading) -> set[str]:
    """Variables of which netCDF-C says other values than h5py, and we the same."""
    wrong = set()
    for path, group in theirs.items():
        for name, variable in group.variables.items():
            judge = truth.get(path)
            said = judge.variables.get(name) if judge is not None else None
            mine = ours[path].variables.get(name) if path in ours else None
            if said is None or mine is None or isinstance(said.values, Failed):
                continue
            longer = said.encoding is not None  # netCDF-C alone knows the rest
            if longer or said.values is None or isinstance(mine.values, Failed):
                continue
            agree = same(native(mine.values), said.values)
            if agree and not same(variable.values, mine.values):
                wrong.add(f"{path.rstrip('/')}/{name}")
    return wrong


def _decoded(made: Made, way: str) -> Iterator[Difference]:
    """What differs after xarray's decoding."""
    try:
        theirs = by_xarray(made.path, "netcdf4")
    except (ValueError, TypeError, OverflowError) as error:
        theirs, why = {}, type(error)
    with opened(made, way) as target:
        if theirs:
            yield from differences(by_xarray(target, "nczarr"), theirs)
            return
        try:
            by_xarray(target, "nczarr")
        except why:
            return
        yield Difference("/", "decoding", "decoded", str(why))


def _of_zarr(ours: Reading, theirs: Reading) -> Iterator[Difference]:
    """What differs from zarr-python, whose attributes have the types of JSON."""
    for path, group in theirs.items():
        for name, variable in group.variables.items():
            mine = ours[path].variables.get(name) if path in ours else None
            if mine is None or isinstance(variable.values, Failed):
                continue
            mine.attrs = {k: v for k, v in (mine.attrs or {}).items() if k != "_FillValue"}
            if not isinstance(mine.values, Failed):
                mine.values = native(mine.values)
                if mine.values.dtype.kind == "S" and not mine.shape:  # dask cuts single ones
                    mine.values = mine.values.astype(variable.values.dtype)
            variable.values = native(variable.values)
    yield from differences(ours, theirs, exact=False)


# -- selecting ----------------------------------------------------------------------------------


def _select(kind: str, made: Made, choose: random.Random, ours: Reading) -> str:
    """Compare a random selection with the same of the values that were compared already."""
    way, chunks = _way(kind, made, choose)
    path = choose.choice(sorted(ours))
    readable = {
        name: variable
        for name, variable in ours[path].variables.items()
        if not isinstance(variable.values, Failed)
        and len(set(variable.dims or ())) == len(variable.shape)  # xarray selects no others
    }
    readable = {name: variable for name, variable in readable.items() if variable.shape}
    if not readable:
        return "nothing to select"
    name = choose.choice(sorted(readable))
    whole = readable[name]
    assert whole.dims is not None
    sizes = dict(zip(whole.dims, whole.shape, strict=True))
    chosen = {
        dim: index.variable if isinstance(index, xr.DataArray) else index
        for dim, index in indexers(choose, sizes).items()
    }
    if any(_is_empty(index) for index in chosen.values()):
        chunks = None  # dask fails to select no points
    with opened(made, way) as target:
        group = None if path == "/" else path
        with xr.open_dataset(
            target, engine="nczarr", chunks=chunks, group=group, cache=False, **RAW
        ) as dataset:
            found = dataset.variables[name].isel(chosen)
            values = native(found.values)
    expected = xr.Variable(whole.dims, native(whole.values)).isel(chosen)
    if whole.values.dtype == object and not values.size:  # dask makes it of another type
        values = values.astype(object)
    if found.dims != expected.dims or not same(values, expected.values):
        raise DifferentError(
            f"{way}, chunks={chunks}: {path} {name} {chosen}:\n"
            f"{found.dims} {short(values)} / {expected.dims} {short(expected.values)}"
        )
    return "dask" if chunks is not None else "lazy"


def _is_empty(index: Any) -> bool:
    if isinstance(index, np.ndarray) and index.dtype == bool:
        return not index.any()
    return 0 in np.shape(index)
