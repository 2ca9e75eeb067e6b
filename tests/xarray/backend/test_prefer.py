"""Which engine opens a target of which none is named, while this one is preferred and otherwise.

Each case is a process of its own: what is preferred is kept in classes of xarray.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from tests.support.servers.httpserver import Server

#: Prints for each target the engine that xarray would take.
PROGRAM = """
import sys
import xarray as xr

def engine(target):
    engines = xr.backends.list_engines()
    return next((name for name in engines if engines[name].guess_can_open(target)), None)

def say():
    print(*map(engine, sys.argv[1:]))

"""
#: Of these, what xarray takes by itself, and what it takes while this one is preferred.
TARGETS = {
    "https://h/x.nc": ("netcdf4", "nczarr"),
    "https://h/x.NC?key=1": ("netcdf4", "nczarr"),
    "simplecache::gs://b/x.h5": ("netcdf4", "nczarr"),
    "https://h/m.nca": ("netcdf4", "nczarr"),
    "s3://b/prefix/": ("netcdf4", "nczarr"),
    "s3://b/x.zarr": ("zarr", "zarr"),
    "https://h/x.zarr": ("zarr", "zarr"),
    "https://h/x": ("netcdf4", "netcdf4"),
    "https://h/thredds/dodsC/x.nc": ("netcdf4", "netcdf4"),
    "https://h/x.nc#dap4": ("netcdf4", "netcdf4"),
    "dods://h/x.nc": ("netcdf4", "netcdf4"),
    "file:///missing/x.nc": ("netcdf4", "netcdf4"),
    "missing.nc": ("netcdf4", "netcdf4"),
}
ALONE, PREFERRED = (" ".join(engines) + "\n" for engines in zip(*TARGETS.values(), strict=True))


def run(program: str, *arguments: str, prefer: str | None = None) -> str:
    """Run a program with `PROGRAM` before it; return what it prints."""
    environment = {**os.environ, "NCZARR_PREFER": prefer} if prefer is not None else None
    command = [sys.executable, "-c", PROGRAM + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_until_it_is_undone() -> None:
    program = """
from nczarr_xarray import prefer
say()
with prefer():
    say()
    with prefer(False):
        say()
    prefer()
    say()
say()
undo = prefer()
xr.backends.refresh_engines()
say()
undo.close()
say()
"""
    expected = [ALONE, PREFERRED, ALONE, PREFERRED, ALONE, PREFERRED, ALONE]
    assert run(program, *TARGETS) == "".join(expected)


@pytest.mark.parametrize(("value", "expected"), [("1", PREFERRED), ("0", ALONE), ("", ALONE)])
def test_by_the_environment(value: str, expected: str) -> None:
    assert run("say()", *TARGETS, prefer=value) == expected


def test_remote_files_and_masters_open(tmp_path: Path) -> None:
    part, master = tmp_path / "part.nc", tmp_path / "all.nca"
    written = xr.Dataset({"v": ("x", np.arange(4.0))}, {"x": np.arange(4)})
    written.to_netcdf(part, engine="netcdf4")
    nczarr_xarray.aggregate([part], master, dim="x")
    program = """
for target in sys.argv[1:]:
    with xr.open_dataset(target) as ds:
        print(ds["v"].values.tolist())
with xr.open_datatree(sys.argv[1]) as tree:
    print(tree["v"].values.tolist())
print(engine(sys.argv[3]))
"""
    with Server({"/part.nc": part.read_bytes()}) as server:
        printed = run(program, f"{server.url}/part.nc", str(master), str(part), prefer="1")
    assert printed == "[0.0, 1.0, 2.0, 3.0]\n" * 4 + "netcdf4\n"
