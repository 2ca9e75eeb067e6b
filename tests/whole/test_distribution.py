"""What is built of the project can be installed alone, and has one version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import netCDF4
import numpy as np
import pytest

import nczarr_xarray

ROOT = Path(nczarr_xarray.__file__).resolve().parent.parent
#: Uses the package as it is without extras; its arguments are the program `nczarr`, and a folder
#: in which there are netCDF files.
_USE = """
import importlib.util, pathlib, subprocess, sys
import nczarr_xarray
import xarray as xr

for name in ("aiohttp", "dask", "h5py", "netCDF4", "pytest"):
    assert importlib.util.find_spec(name) is None, name
program, here = sys.argv[1:]
demo = pathlib.Path(nczarr_xarray.__file__).parent / "demo_data" / "ocean_climate.nczarr"
assert "site-packages" in str(demo), demo
with xr.open_dataset(demo, engine="nczarr") as ds:
    ds.load().nczarr.to_nczarr(f"{here}/again.nczarr")
with xr.open_dataset(f"{here}/again.nczarr") as again:
    xr.testing.assert_identical(ds, again)
for name in ("four.nc", "classic.nc"):
    with xr.open_dataset(f"{here}/{name}", engine="nczarr") as ds:
        assert ds["t"].values.tolist() == [[0.0, 1.5], [3.0, 4.5], [6.0, 7.5]], name
        assert ds["time"].values[2].astype("M8[D]").item().isoformat() == "2000-01-03", name
        assert ds["t"].attrs == {"units": "K", "note": "für"}, name

def said(*words):
    done = subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return done.stdout

assert "NCZarr, generation" in said("info", demo)
assert said("dump", "-h", demo).startswith("netcdf ")
assert said("validate", demo).strip().endswith("sound")
assert said("--version") == f"nczarr {nczarr_xarray.__version__}\\n"
print(nczarr_xarray.__version__)
"""


def build(folder: Path) -> dict[str, Path]:
    """Build the wheel and the sdist of this checkout into `folder`."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of this checkout."""
    return build(tmp_path_factory.mktemp("built"))


def test_the_citation_has_the_version_of_the_package() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {nczarr_xarray.__version__}" in lines


def test_the_changelog_begins_with_the_version() -> None:
    found = re.search(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    assert found[1] == nczarr_xarray.__version__


def test_extras_that_messages_and_pages_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    texts = [
        *(
            path
            for name in ("nczarr_xarray", "nczarr_fsspec")
            for path in (ROOT / name).rglob("*.py")
        ),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "pyproject.toml",
    ]
    named = {
        (extra, path.name)
        for path in texts
        for group in re.findall(
            r"(?:nczarr-xarray|install '\.)\[([a-z0-9_,]+)\]", path.read_text(encoding="utf-8")
        )
        for extra in group.split(",")
    }
    assert {"remote", "s3"} <= {extra for extra, _ in named}
    assert {(extra, where) for extra, where in named if extra not in extras} == set()


@pytest.mark.slow
def test_a_second_build_is_the_same_to_the_byte(built: dict[str, Path], tmp_path: Path) -> None:
    again = build(tmp_path)
    for kind, path in built.items():
        assert again[kind].read_bytes() == path.read_bytes(), kind


@pytest.mark.slow
def test_the_sdist_is_complete(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"nczarr_xarray", "nczarr_fsspec", "tests", "docs", "LICENSE", "README.md"} <= tops
    assert {"ci", "bench", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md"} <= tops
    assert {"CODE_OF_CONDUCT.md", "SECURITY.md"} <= tops


@pytest.mark.slow
def test_the_wheel_has_the_packages_and_says_what_it_is(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = archive.namelist()
        (path,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(path).decode())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"nczarr_xarray", "nczarr_fsspec", path.split("/")[0]}
    assert {"nczarr_xarray/py.typed", "nczarr_fsspec/py.typed"} <= set(names)
    assert metadata["Version"] == nczarr_xarray.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Project-URL")
    assert str(metadata.get_payload()).startswith("# ")


def write_files(folder: Path) -> None:
    """Write the netCDF files that `_USE` reads."""
    for name, kind in (("four.nc", "NETCDF4"), ("classic.nc", "NETCDF3_CLASSIC")):
        with netCDF4.Dataset(folder / name, "w", format=kind) as nc:
            nc.createDimension("time", None)
            nc.createDimension("x", 2)
            nc.createVariable("time", "f8", ("time",)).units = "days since 2000-01-01"
            field = nc.createVariable("t", "i2", ("time", "x"), zlib=kind == "NETCDF4")
            field.setncatts({"units": "K", "note": "für", "scale_factor": 0.5})
            nc["time"][:] = np.arange(3)
            field[:] = 1.5 * np.arange(6).reshape(3, 2)


@pytest.fixture(scope="module")
def programs(
    built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, str]]:
    """Those of a new environment of this Python, with nothing but what the wheel requires.

    And the variables in which they run.
    """
    folder = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(folder, with_pip=True)
    found = folder / ("Scripts" if os.name == "nt" else "bin")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [found / "python", "-m", "pip", "install", "-q", built["wheel"]], check=True, env=clean
    )
    return found, clean


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_alone(
    kind: str, built: dict[str, Path], programs: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    write_files(tmp_path)
    folder, clean = programs
    python = folder / "python"
    again: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--force-reinstall",
        "--no-deps",
        built[kind],
    ]
    subprocess.run(again, check=True, env=clean)
    done = subprocess.run(
        [python, "-c", _USE, folder / "nczarr", tmp_path],
        cwd=tmp_path,
        env=clean,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.strip() == nczarr_xarray.__version__
