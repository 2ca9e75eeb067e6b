"""The datasets of which doctor predicts reads; made once, for two modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr

from nczarr_xarray.cli.main import main
from tests.xarray.tools.doctor.test_prediction import FILES, SHAPE, write

#: Of the aggregations, in each fragment.
STEPS = 12


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `FILES`, and one of them as a tree, which no test changes."""
    folder = tmp_path_factory.mktemp("predicted")
    for name, options in FILES.items():
        write(folder / name, **options)
    assert main(["copy", f"{folder}/small.nc", f"{folder}/tree.nczarr"]) == 0
    return folder


@pytest.fixture(scope="session")
def aggregations(folder: Path) -> None:
    """Masters of one kind and another beside them, and the folder of the parts."""
    parts = folder / "parts"
    parts.mkdir()
    with xr.open_dataset(folder / "plain.nc", engine="nczarr") as ds:
        for start in range(0, SHAPE[0], STEPS):
            part = ds.isel(time=slice(start, start + STEPS))
            path = parts / f"{start:03}.nc"
            part.to_netcdf(path, encoding={"v": {"chunksizes": (2, 60, 90)}})
    files = sorted(map(str, parts.iterdir()))
    for kind in ("nczarr", "zarr"):
        trees = folder / f"parts.{kind}"
        trees.mkdir()
        options = ["--format", "ZARR3", "--consolidated"] if kind == "zarr" else []
        for file in files:
            target = f"{trees}/{Path(file).stem}.{kind}"
            assert main(["copy", file, target, *options]) == 0
        found = sorted(map(str, trees.iterdir()))
        assert main(["aggregate", "-o", f"{folder}/of_{kind}.nc", *found]) == 0
    for master in ("all.nc", "all.nczarr", "all.json", "all.parq"):
        assert main(["aggregate", "-o", f"{folder}/{master}", *files]) == 0


@pytest.fixture(scope="session")
def zarr3(folder: Path) -> None:
    """Trees of Zarr 3: each chunk an object, and shards of many."""
    steps, lat, lon = SHAPE
    shards = (f"time={steps // 2},lat={lat},lon={lon}",)
    for name, options in {"plain3": (), "shards": ("--shards", *shards)}.items():
        target = f"{folder}/{name}.zarr"
        chunks = "time=9,lat=20,lon=30"
        command = ["copy", f"{folder}/small.nc", target, "--format", "ZARR3", "--consolidated"]
        assert main([*command, "--chunks", chunks, *options]) == 0
