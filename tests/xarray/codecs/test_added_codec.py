"""A codec of another package, found by its entry point: docs/extending.md has it whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nczarr_xarray.backend.compat import TO_ZARR_IGNORES_COMPRESSOR

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"

USE = """
import os
import numpy as np, xarray as xr
import nczarr_xarray

field = np.arange(600, dtype="f4").reshape(20, 30)
ds = xr.Dataset({"v": (("y", "x"), field)})
asked = {"compression": "toy", "complevel": 5, "chunksizes": (7, 11)}
ds.nczarr.to_nczarr("netcdf.zarr", encoding={"v": asked})
config = {"id": "toy", "level": 2}
pure = f"file://{os.getcwd()}/zarr.zarr#mode=zarr"
ds.nczarr.to_nczarr(pure, encoding={"v": {"compressor": config}})
for name in ("netcdf.zarr", "zarr.zarr"):
    with xr.open_dataset(name, engine="nczarr") as back:
        assert back["v"].encoding["compressor"]["id"] == "toy", back["v"].encoding
        xr.testing.assert_identical(back.load(), ds)
        back.nczarr.to_nczarr(f"again.{name}", mode="w")  # it came with the data
"""


needs_compressor = pytest.mark.skipif(
    not TO_ZARR_IGNORES_COMPRESSOR, reason='an older xarray leaves encoding["compressor"] to zarr'
)


def installed(folder: Path, *, module: str) -> dict[str, str]:
    """The environment in which a package with the codec `toy` is installed."""
    site = folder / "site"
    info = site / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nczarr_xarray.codecs]\ntoy = toy:TOY\n")
    (site / "toy.py").write_text(module)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}


def run(folder: Path, code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def codec_of_the_page() -> str:
    found = re.search(r"```python\n(import zlib.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def stored(path: Path) -> dict[str, object]:
    document = json.loads((path / "v" / ".zarray").read_text())
    return {"filters": document["filters"], "compressor": document["compressor"]}


@needs_compressor
@pytest.mark.slow
def test_it_is_written_and_read(tmp_path: Path) -> None:
    done = run(tmp_path, USE, installed(tmp_path, module=codec_of_the_page()))
    assert done.returncode == 0, done.stderr
    shuffle = [{"id": "shuffle", "elementsize": 4}]
    toy = {"id": "toy", "level": 5}
    assert stored(tmp_path / "netcdf.zarr") == {"filters": shuffle, "compressor": toy}
    assert stored(tmp_path / "zarr.zarr")["compressor"] == {"id": "toy", "level": 2}
    assert stored(tmp_path / "again.zarr.zarr")["compressor"] == {"id": "toy", "level": 2}


@pytest.mark.slow
@needs_compressor
def test_damaged_chunks_are_errors_that_name_them(tmp_path: Path) -> None:
    env = installed(tmp_path, module=codec_of_the_page())
    assert run(tmp_path, USE, env).returncode == 0
    (tmp_path / "netcdf.zarr" / "v" / "1.1").write_bytes(b"something else")
    code = "import xarray; xarray.open_dataset('netcdf.zarr', engine='nczarr').load()"
    done = run(tmp_path, code, env)
    assert "FormatError: v/1.1: the chunk cannot be decoded" in done.stderr


def test_a_filter_of_hdf5_files_is_undone(tmp_path: Path) -> None:
    """What files state of the filter becomes the codec; the bytes are undone by it."""
    code = """
import numpy as np
from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.formats.hdf5.datasets import codecs_of
from nczarr_xarray.formats.hdf5.messages import Filter
from nczarr_xarray.model import FileChunks
import toy
codecs = codecs_of((Filter(31999, "", (3,)),), np.dtype("<i4"), (10,))
assert codecs == ({"id": "toy", "level": 3},), codecs
array = FileChunks("/v", (10,), (10,), np.dtype("<i4"), None, codecs=codecs)
plain = np.arange(10, dtype="<i4").tobytes()
stored = toy.apply(codecs[0], array)(plain)
assert bytes(Decoder(array, 0).decode([stored], lambda _: "")[0]) == plain
"""
    done = run(tmp_path, code, installed(tmp_path, module=codec_of_the_page()))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_hdf5_files_have_of_it_is_kept_and_told(tmp_path: Path) -> None:
    """xarray gets it as an encoding, by which it is written again."""
    code = """
import h5py, numpy as np, xarray as xr
import nczarr_xarray, toy
plain = np.arange(20, dtype="<f4")
with h5py.File("v.nc", "w") as file:
    stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk((20,))
    stored.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, (5,))
    space = h5py.h5s.create_simple((20,))
    v = h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, stored)
    v.write_direct_chunk((0,), toy.apply({"level": 5}, None)(plain.tobytes()))
with open("v.nc", "r+b") as file:  # h5py makes no dataset with a filter that it lacks
    old, new = ((number).to_bytes(2, "little") for number in (32004, 31999))
    data = file.read()
    assert data.count(old) == 1
    file.seek(data.index(old))
    file.write(new)
with xr.open_dataset("v.nc", engine="nczarr") as ds:
    assert (ds["v"].encoding["toy"], ds["v"].encoding["complevel"]) == (True, 5), ds["v"].encoding
    assert "toy 5" in repr(ds.nczarr), ds.nczarr
    ds.nczarr.to_nczarr("again.zarr")
    ds.to_netcdf("netcdf4.nc", engine="netcdf4")  # which knows nothing of it
    ds.to_netcdf("h5netcdf.nc", engine="h5netcdf")
"""
    done = run(tmp_path, code, installed(tmp_path, module=codec_of_the_page()))
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path / "again.zarr")["compressor"] == {"id": "toy", "level": 5}


@pytest.mark.slow
def test_a_copy_may_ask_for_it(tmp_path: Path) -> None:
    code = """
import numpy as np, xarray as xr
from nczarr_xarray.cli.main import main
xr.Dataset({"v": ("x", np.arange(9.0))}).to_netcdf("x.nc")
assert main(["copy", "x.nc", "x.zarr", "--compress", "toy:7", "--verify"]) == 0
"""
    done = run(tmp_path, code, installed(tmp_path, module=codec_of_the_page()))
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path / "x.zarr")["compressor"] == {"id": "toy", "level": 7}


@pytest.mark.slow
@pytest.mark.parametrize("has", [True, False])
def test_a_copy_to_zarr_3_has_it_if_its_row_says_so(tmp_path: Path, has: bool) -> None:
    code = """
import numpy as np, xarray as xr
from nczarr_xarray.cli.main import main
import nczarr_xarray
ds = xr.Dataset({"v": ("x", np.arange(9.0))})
ds.nczarr.to_nczarr("x.zarr", encoding={"v": {"compression": "toy", "shuffle": False}})
assert main(["copy", "x.zarr", "y.zarr", "--format", "zarr3", "--verify"]) == 0
"""
    module = codec_of_the_page()
    if has:
        zarr3 = 'zarr3=lambda config, shuffled: {"id": "gzip", "level": config["level"]}'
        module = module.replace('    id="toy",', f'    id="toy",\n    {zarr3},')
    done = run(tmp_path, code, installed(tmp_path, module=module))
    assert done.returncode == 0, done.stderr
    codecs = json.loads((tmp_path / "y.zarr" / "v" / "zarr.json").read_text())["codecs"][1:]
    assert codecs == ([{"name": "gzip", "configuration": {"level": 4}}] if has else [])
    assert ("stored without the compressor of the source" in done.stderr) is not has


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import a_package_that_is_not_there", "cannot be loaded (No module named"),
        ("TOY = 'zlib'", "is no `Codec`"),
    ],
)
def test_a_broken_package_is_told_and_left_out(tmp_path: Path, module: str, reason: str) -> None:
    code = """
import warnings, xarray as xr, numpy as np, nczarr_xarray
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ds = xr.Dataset({"v": ("x", np.arange(9))})
    ds.nczarr.to_nczarr("x.zarr", encoding={"v": {"zlib": True}})
    xr.testing.assert_identical(xr.open_dataset("x.zarr", engine="nczarr").load(), ds)
print(*(warning.message for warning in told))
"""
    done = run(tmp_path, code, installed(tmp_path, module=module))
    assert done.returncode == 0, done.stderr
    assert "codec 'toy' of 'toy:TOY'" in done.stdout
    assert reason in done.stdout
