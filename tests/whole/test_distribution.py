"""What is built of the project can be installed alone, and has one version."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

import nczarr_xarray

ROOT = Path(nczarr_xarray.__file__).resolve().parent.parent
#: Reads a dataset that comes with the package, with nothing but what it requires.
_USE = """
import importlib.util, pathlib
import xarray as xr
import nczarr_xarray

for name in ("aiohttp", "netCDF4", "h5py", "dask"):
    assert importlib.util.find_spec(name) is None, name
folder = pathlib.Path(nczarr_xarray.__file__).parent / "demo_data"
ds = xr.open_dataset(folder / "ocean_climate.nczarr", engine="nczarr")
assert ds.load().sizes
print(nczarr_xarray.__version__)
"""


def test_the_citation_has_the_version_of_the_package() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {nczarr_xarray.__version__}" in lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"nczarr_xarray", "nczarr_fsspec", "tests", "docs", "LICENSE", "README.md"} <= tops

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-m", "pip", "install", "-q", wheel], check=True, env=clean)
    done = subprocess.run(
        [python, "-c", _USE], cwd=tmp_path, env=clean, check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.strip() == nczarr_xarray.__version__
