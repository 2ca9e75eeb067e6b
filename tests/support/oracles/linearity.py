"""Datasets of any size, and what is counted while they are read or written; run by a test.

``python -m tests.support.oracles.linearity SIZE KIND...`` writes JSON: by kind, two dictionaries of
counts by line, for as many parts as SIZE says, and for twice as many.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import xarray as xr

from tests.support.oracles.counted import counted, install

Action = Callable[[], object]
Objects = dict[str, bytes]
GROUP = b'{"zarr_format":2}'


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def _zarray(*shape: int, chunk: int = 0) -> bytes:
    chunks = [chunk or max(1, size) for size in shape]
    rest = {"dtype": "<f4", "compressor": None, "fill_value": 0, "order": "C", "filters": None}
    return _json({"zarr_format": 2, "shape": shape, "chunks": chunks, **rest})


def _open(target: Any) -> Action:
    from nczarr_xarray.dataset.open import open_hierarchy

    def action() -> None:
        from nczarr_fsspec.ranges.index_memory import memory

        memory.clear()
        with open_hierarchy(target) as opened:
            assert sum(1 for _ in opened.hierarchy.root.walk())
            opened.close()

    return action


def _read(target: Any) -> Action:
    def action() -> None:
        with xr.open_dataset(target, engine="nczarr") as ds:
            ds.load()

    return action


# ---- trees


def tree_of_groups(folder: Path, n: int) -> Action:
    objects = {".zgroup": GROUP}
    for i in range(n):
        objects |= {f"g{i}/.zgroup": GROUP, f"g{i}/v/.zarray": _zarray()}
    return _open(objects)


def _own_dimensions(n: int) -> Objects:
    objects = {".zgroup": GROUP}
    for i in range(n):
        objects[f"v{i}/.zarray"] = _zarray(i + 1)
        objects[f"v{i}/.zattrs"] = _json({"_ARRAY_DIMENSIONS": [f"d{i}"]})
    return objects


def tree_of_dimensions(folder: Path, n: int) -> Action:
    return _open(_own_dimensions(n))


def tree_on_disk(folder: Path, n: int) -> Action:
    for key, data in _own_dimensions(n).items():
        (folder / key).parent.mkdir(exist_ok=True, parents=True)
        (folder / key).write_bytes(data)
    return _open(str(folder))


def tree_for_xarray(folder: Path, n: int) -> Action:
    return _read(_own_dimensions(n))


def tree_without_names(folder: Path, n: int) -> Action:
    return _open({".zgroup": GROUP} | {f"v{i}/.zarray": _zarray(i + 1) for i in range(n)})


def consolidated(folder: Path, n: int) -> Action:
    objects = _own_dimensions(n)
    metadata = {key: json.loads(data) for key, data in objects.items()}
    whole = {"zarr_consolidated_format": 1, "metadata": metadata}
    return _open({**objects, ".zmetadata": _json(whole)})


def archive(folder: Path, n: int) -> Action:
    path = str(folder / "a.zip")
    with zipfile.ZipFile(path, "w") as file:
        for key, data in _own_dimensions(n).items():
            file.writestr(key, data)
    return _open(path)


def references(folder: Path, n: int) -> Action:
    objects = _own_dimensions(n)
    refs: dict[str, Any] = {key: data.decode() for key, data in objects.items()}
    path = folder / "refs.json"
    path.write_bytes(_json({"version": 1, "refs": refs}))
    return _open(str(path))


def _zarr3(n: int) -> Objects:
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "dimension_names": ["x"],
    }
    objects = {"zarr.json": _json({"zarr_format": 3, "node_type": "group", "attributes": {}})}
    return objects | {f"v{i}/zarr.json": _json(array) for i in range(n)}


def zarr3(folder: Path, n: int) -> Action:
    return _open(_zarr3(n))


def zarr3_consolidated(folder: Path, n: int) -> Action:
    objects = _zarr3(n)
    metadata = {
        key.rpartition("/")[0]: json.loads(data) for key, data in objects.items() if "/" in key
    }
    root = json.loads(objects["zarr.json"])
    root["consolidated_metadata"] = {
        "kind": "inline",
        "must_understand": False,
        "metadata": metadata,
    }
    return _open({**objects, "zarr.json": _json(root)})


def chunks(folder: Path, n: int) -> Action:
    objects = {".zgroup": GROUP, "v/.zarray": _zarray(n, chunk=1)}
    return _read(objects | {f"v/{i}": bytes(4) for i in range(n)})


def chunks_with_gaps(folder: Path, n: int) -> Action:
    objects = {".zgroup": GROUP, "v/.zarray": _zarray(2 * n, chunk=1)}
    return _read(objects | {f"v/{2 * i}": bytes(4) for i in range(n)})


# ---- files


def _hdf5(folder: Path, fill: Callable[[h5py.File], None]) -> Action:
    path = str(folder / "a.h5")
    with h5py.File(path, "w", track_order=True) as file:
        fill(file)
    return _open(path)


def hdf5_variables(folder: Path, n: int) -> Action:
    def fill(file: h5py.File) -> None:
        for i in range(n):
            file.create_dataset(f"v{i}", data=np.float32(i))

    return _hdf5(folder, fill)


def hdf5_groups(folder: Path, n: int) -> Action:
    def fill(file: h5py.File) -> None:
        for i in range(n):
            file.create_group(f"g{i}")

    return _hdf5(folder, fill)


def hdf5_attributes(folder: Path, n: int) -> Action:
    def fill(file: h5py.File) -> None:
        for i in range(n):
            file.attrs[f"a{i}"] = i

    return _hdf5(folder, fill)


def hdf5_without_names(folder: Path, n: int) -> Action:
    def fill(file: h5py.File) -> None:
        for i in range(n):
            file.create_dataset(f"v{i}", shape=(i + 1,), dtype="f4")

    return _hdf5(folder, fill)


def hdf5_chunks(folder: Path, n: int) -> Action:
    path = str(folder / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=np.arange(n, dtype="f4"), chunks=(1,))
    return _read(path)


def netcdf4_dimensions(folder: Path, n: int) -> Action:
    path = str(folder / "a.nc")
    with netCDF4.Dataset(path, "w") as file:
        for i in range(n):
            file.createDimension(f"d{i}", 2)
            file.createVariable(f"v{i}", "f4", (f"d{i}",))
    return _open(path)


def netcdf4_coordinates(folder: Path, n: int) -> Action:
    path = str(folder / "a.nc")
    with netCDF4.Dataset(path, "w") as file:
        for i in range(n):
            file.createDimension(f"d{i}", 2)
            file.createVariable(f"d{i}", "f4", (f"d{i}",))
    return _open(path)


def classic(folder: Path, n: int) -> Action:
    path = str(folder / "a.nc")
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("x", 2)
        file.createDimension("t", None)
        for i in range(n):
            file.createVariable(f"v{i}", "f4", ("t", "x"))
    return _open(path)


# ---- writing


def _dataset(n: int, *, own: bool = False) -> xr.Dataset:
    dims = [(f"d{i}",) if own else ("x",) for i in range(n)]
    return xr.Dataset({f"v{i}": (dims[i], np.zeros(2, "f4")) for i in range(n)})


def export(folder: Path, n: int) -> Action:
    import nczarr_xarray  # noqa: F401

    ds = _dataset(n)
    return lambda: ds.nczarr.to_nczarr(str(folder / "a.nczarr"), mode="w")


def export_of_dimensions(folder: Path, n: int) -> Action:
    import nczarr_xarray  # noqa: F401

    ds = _dataset(n, own=True)
    return lambda: ds.nczarr.to_nczarr({})


def export_of_chunks(folder: Path, n: int) -> Action:
    import nczarr_xarray  # noqa: F401

    ds = xr.Dataset({"v": ("x", np.zeros(n))})
    return lambda: ds.nczarr.to_nczarr({}, encoding={"v": {"chunksizes": (1,)}})


def added_variable(folder: Path, n: int) -> Action:
    import nczarr_xarray  # noqa: F401

    target = str(folder / "a.nczarr")
    _dataset(n).nczarr.to_nczarr(target)
    new = xr.Dataset({"new": ("x", np.zeros(2))})
    return lambda: new.nczarr.to_nczarr(target, mode="a")


def added_values(folder: Path, n: int) -> Action:
    import nczarr_xarray  # noqa: F401

    target: Objects = {}
    _dataset(n).nczarr.to_nczarr(target)
    new = _dataset(n).isel(x=slice(1))
    return lambda: new.nczarr.to_nczarr(target, region={"x": slice(1)})


def copy_to_netcdf(folder: Path, n: int) -> Action:
    from nczarr_xarray.cli.main import main

    source = str(folder / "a.nczarr")
    import nczarr_xarray  # noqa: F401

    _dataset(n).nczarr.to_nczarr(source)
    target = str(folder / "b.nc")

    def action() -> None:
        Path(target).unlink(missing_ok=True)
        assert not main(["copy", source, target])

    return action


KINDS: dict[str, Callable[[Path, int], Action]] = {
    function.__name__: function
    for function in (
        *(tree_of_groups, tree_of_dimensions, tree_on_disk, tree_for_xarray, tree_without_names),
        *(consolidated, archive, references, zarr3, zarr3_consolidated, chunks),
        chunks_with_gaps,
        *(hdf5_variables, hdf5_groups, hdf5_attributes, hdf5_without_names, hdf5_chunks),
        *(netcdf4_dimensions, netcdf4_coordinates, classic),
        *(export, export_of_dimensions, export_of_chunks, added_variable, added_values),
        copy_to_netcdf,
    )
}


def measured(kind: str, n: int) -> dict[str, int]:
    """Return what is counted for `n` parts of a kind of dataset."""
    with tempfile.TemporaryDirectory() as folder:
        action = KINDS[kind](Path(folder), n)
        # what other files have in common with this one is counted, too
        vars(import_module("nczarr_xarray.formats.hdf5.binary"))["known_structures"].clear()
        return counted(action)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    install()
    # a file that is longer than its head takes another way: all are
    vars(import_module("nczarr_fsspec.ranges.local"))["HEAD_BYTES"] = 1024
    size = int(sys.argv[1])
    found = {kind: [measured(kind, n) for n in (size, 2 * size)] for kind in sys.argv[2:]}
    json.dump(found, sys.stdout)
