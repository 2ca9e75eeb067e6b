"""Chunks of cubed: what the engine opens, and regions that its workers write."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError
from tests.support.servers.realservers import RangeServer
from tests.support.zarrsettings import kept_settings

if find_spec("cubed") is None or find_spec("cubed_xarray") is None:
    pytest.skip("cubed and cubed-xarray are not installed", allow_module_level=True)
pytestmark = pytest.mark.slow  # importing cubed takes seconds


@pytest.fixture(scope="module", autouse=True)
def settings() -> Iterator[None]:
    """Keep from other tests what cubed sets when it is imported."""
    with kept_settings():
        yield


def spec_of(tmp_path: Path, executor: str) -> Any:
    import cubed

    work = str(tmp_path / "work")
    return cubed.Spec(work_dir=work, allowed_mem="200MB", executor_name=executor)


@pytest.fixture(params=["single-threaded", "threads"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return spec_of(tmp_path, request.param)


@pytest.fixture
def table() -> xr.Dataset:
    values = np.arange(12 * 20 * 30, dtype="f4").reshape(12, 20, 30)
    values[0, 0, :3] = np.nan
    return xr.Dataset({"t": (("time", "y", "x"), values)}, {"time": np.arange(12), "y": range(20)})


ENCODING: Any = {"t": {"zlib": True, "chunksizes": (5, 10, 30), "_FillValue": np.float32(-1)}}


def open_with_cubed(target: Any, spec: Any) -> xr.Dataset:
    return xr.open_dataset(
        target,
        engine="nczarr",
        chunks={},
        chunked_array_type="cubed",
        from_array_kwargs={"spec": spec},
    )


@pytest.mark.parametrize("suffix", ["nczarr", "zip", "nc"])
def test_datasets_are_opened_with_its_chunks(
    tmp_path: Path, table: xr.Dataset, spec: Any, suffix: str
) -> None:
    path = tmp_path / f"t.{suffix}"
    if suffix == "nc":
        table.to_netcdf(path, engine="netcdf4", encoding=ENCODING)
    else:
        table.nczarr.to_nczarr(path, encoding=ENCODING)
    with open_with_cubed(path, spec) as found:
        assert type(found["t"].data).__module__.startswith("cubed.")
        assert found["t"].chunks == ((5, 5, 2), (10, 10), (30,))
        mean = (found["t"].isel(x=slice(3, None)) * 2).mean("time")
        expected = (table["t"].isel(x=slice(3, None)) * 2).mean("time")
        xr.testing.assert_allclose(mean.compute(), expected)
        xr.testing.assert_identical(found.load(), table)


def test_remote_files(files_server: RangeServer, files_root: Path, spec: Any) -> None:
    files_server.set()
    with (
        open_with_cubed(f"{files_server.url}/h5.nc", spec) as found,
        xr.open_dataset(files_root / "h5.nc", engine="netcdf4") as expected,
    ):
        name = max(expected, key=lambda name: expected[name].nbytes)
        xr.testing.assert_allclose(found[name].sum().compute(), expected[name].sum())


def write_block(target: str, block: np.ndarray, block_id: tuple[int, ...]) -> np.ndarray:
    """Write a block of the chunks of `ENCODING` where it belongs."""
    corner = [n * length for n, length in zip(block_id, (5, 10, 30), strict=True)]
    region = {
        name: slice(start, start + size)
        for name, start, size in zip(("time", "y", "x"), corner, block.shape, strict=True)
    }
    xr.Dataset({"t": (tuple(region), block)}).nczarr.to_nczarr(target, region=region)
    return np.ones((1, 1, 1), bool)


def test_its_workers_write_regions(tmp_path: Path, table: xr.Dataset, spec: Any) -> None:
    import cubed

    source, target = str(tmp_path / "a.nczarr"), str(tmp_path / "b.nczarr")
    table.nczarr.to_nczarr(source, encoding=ENCODING)
    with open_with_cubed(source, spec) as found:
        template = table.chunk(time=5, y=10)
        template.nczarr.to_nczarr(target, compute=False, encoding=ENCODING)
        write = partial(write_block, target)
        done = cubed.map_blocks(write, (found["t"] + 1).data, dtype=bool, chunks=(1, 1, 1))
        assert done.compute().all()
    with xr.open_dataset(target, engine="nczarr") as written:
        xr.testing.assert_identical(written.load(), table.assign(t=table["t"] + 1))


def test_its_processes_read_and_write(tmp_path: Path, table: xr.Dataset) -> None:
    test_its_workers_write_regions(tmp_path, table, spec_of(tmp_path, "processes"))


@pytest.mark.parametrize("method", ["to_nczarr", "to_cfa"])
def test_its_arrays_are_not_written_as_if_they_were_those_of_dask(
    tmp_path: Path, table: xr.Dataset, method: str
) -> None:
    table.nczarr.to_nczarr(tmp_path / "a.nczarr", encoding=ENCODING)
    spec = spec_of(tmp_path, "single-threaded")
    with open_with_cubed(tmp_path / "a.nczarr", spec) as found:
        with pytest.raises(ExportError, match=r"t is a lazy array of cubed.*template"):
            getattr(found.nczarr, method)(tmp_path / "b.nczarr")
    assert not (tmp_path / "b.nczarr").exists()
