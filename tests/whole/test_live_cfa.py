"""What is written as CF-1.13, as cfdm and cfapyx read it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray

READERS = {
    "cfdm": """
import cfdm
field = cfdm.read(sys.argv[1], verbose=0)[0]
values = field.data.array
""",
    "cfapyx": """
import xarray
with xarray.open_dataset(sys.argv[1], engine="CFA", mask_and_scale=True) as dataset:
    values = dataset["tas"].values
""",
}
PRINT = """
import json, numpy
values = numpy.ma.filled(numpy.ma.asarray(values, float), numpy.nan)
print(json.dumps([values.shape, values.ravel().tolist()]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, READERS)) or shutil.which("udunits2") is None,
        reason="needs cfdm, cfapyx, and the library UDUNITS-2 (on Debian: udunits-bin)",
    ),
]


def read_by(reader: str, master: Path) -> np.ndarray:
    """Read the variable in a process of its own: the readers warn of much."""
    code = f"import sys, warnings\nwarnings.simplefilter('ignore')\n{READERS[reader]}{PRINT}"
    command = [sys.executable, "-c", code, str(master)]
    found = subprocess.run(command, cwd=master.parent, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    shape, values = json.loads(found.stdout.strip().splitlines()[-1])
    return np.array(values).reshape(shape)


@pytest.fixture
def dataset() -> xr.Dataset:
    values = np.arange(480.0).reshape(8, 6, 10)
    values[3, 2, 1] = np.nan
    standard = {"time": "time", "lat": "latitude", "lon": "longitude"}
    units = {"time": "days since 2000-01-01", "lat": "degrees_north", "lon": "degrees_east"}
    return xr.Dataset(
        {"tas": (tuple(units), values, {"units": "K", "standard_name": "air_temperature"})},
        {
            name: (name, np.arange(float(size)), {"units": units[name], "standard_name": title})
            for (name, title), size in zip(standard.items(), values.shape, strict=True)
        },
    )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "encoding",
    [
        {"_FillValue": -9.0},
        {"dtype": "f4", "_FillValue": -9.0, "zlib": True},
        {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -9},
    ],
    ids=str,
)
def test_divided(
    tmp_path: Path, dataset: xr.Dataset, reader: str, encoding: dict[str, Any]
) -> None:
    master = tmp_path / "m.nca"
    shapes = {"time": 3, "lon": 4}
    dataset.nczarr.to_cfa(
        master, cfa_version="1.13", subarray_shape=shapes, encoding={"tas": encoding}
    )
    np.testing.assert_array_equal(read_by(reader, master), dataset["tas"].values)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["netCDF4", "netCDF3"])
def test_templates_and_missing_fragments(
    tmp_path: Path, dataset: xr.Dataset, reader: str, kind: Any
) -> None:
    """In CF-1.13 a fragment cannot be missing: one without elements is read as missing data."""
    master = tmp_path / "m.nca"
    later = dataset.chunk(time=4).nczarr.to_cfa(
        master,
        cfa_version="1.13",
        fragment_format=kind,
        subarray_shape={"time": 3, "lon": 4},
        subarray_path="parts/of",
        compute=False,
    )
    wanted = dataset["tas"].where(False)
    np.testing.assert_array_equal(read_by(reader, master), wanted)
    region = {"time": slice(2, 5), "lon": slice(0, 8)}
    part = dataset[["tas"]].isel(region).drop_vars([*dataset.coords])
    part.nczarr.to_cfa(master, region=region, fragment_format=kind)
    wanted[region] = part["tas"]
    np.testing.assert_array_equal(read_by(reader, master), wanted)
    later.compute()
    np.testing.assert_array_equal(read_by(reader, master), dataset["tas"])


def test_groups(tmp_path: Path, dataset: xr.Dataset) -> None:
    """As cfdm reads them; cfapyx has no groups."""
    master = tmp_path / "m.nca"
    tree = xr.DataTree.from_dict({"/g": dataset})
    tree.nczarr.to_cfa(master, cfa_version="1.13", subarray_shape={"time": 3})
    np.testing.assert_array_equal(read_by("cfdm", master), dataset["tas"].values)


@pytest.mark.parametrize("reader", READERS)
def test_aggregated(tmp_path: Path, dataset: xr.Dataset, reader: str) -> None:
    for number in range(4):
        part = dataset.isel(time=slice(2 * number, 2 * number + 2))
        part.to_netcdf(tmp_path / f"{number}.nc", engine="netcdf4")
    files = [tmp_path / f"{number}.nc" for number in (2, 0, 3, 1)]
    nczarr_xarray.aggregate(files, tmp_path / "m.nca")
    np.testing.assert_array_equal(read_by(reader, tmp_path / "m.nca"), dataset["tas"].values)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("relative", [True, False])
def test_names_that_need_no_escapes(
    tmp_path: Path, dataset: xr.Dataset, reader: str, relative: bool
) -> None:
    """Neither reader undoes escapes, so that there are none that are not needed."""
    names = [f"2000-01-0{number}T00:00:00_(v&1+2,3;a='b')!@.nc" for number in range(2)]
    for number, name in enumerate(names):
        part = dataset.isel(time=slice(4 * number, 4 * number + 4))
        part.to_netcdf(tmp_path / name, engine="netcdf4")
    nczarr_xarray.aggregate(f"{tmp_path}/2000*.nc", tmp_path / "m.nca", relative=relative)
    np.testing.assert_array_equal(read_by(reader, tmp_path / "m.nca"), dataset["tas"].values)
