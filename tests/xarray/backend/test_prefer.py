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
from tests.support.marks import OLD_XARRAY
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
#: What others claim, unless this engine is preferred, and what stays theirs.
OURS = (
    "https://h/x.nc",
    "https://h/x.NC?key=1",
    "simplecache::gs://b/x.h5",
    "https://h/m.nca",
    "s3://b/prefix/",
)
THEIRS = (
    "s3://b/x.zarr",
    "https://h/x.zarr",
    "https://h/x",
    "https://h/thredds/dodsC/x.nc",
    "https://h/x.nc#dap4",
    "dods://h/x.nc",
    "file:///missing/x.nc",
    "missing.nc",
)


def run(program: str, *arguments: str, prefer: str = "") -> str:
    """Run a program with `PROGRAM` before it; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NCZARR_PREFER": prefer},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_until_it_is_undone() -> None:
    program = """
say()
from nczarr_xarray import prefer
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
    alone, *later = run(program, *OURS, *THEIRS).splitlines()
    preferred = " ".join(["nczarr"] * len(OURS) + alone.split()[len(OURS) :])
    assert "nczarr" not in alone or OLD_XARRAY
    assert later == [preferred, alone, preferred, alone, preferred, alone]


@pytest.mark.parametrize(("value", "ours"), [("1", True), ("0", False)])
def test_by_the_environment(value: str, ours: bool) -> None:
    assert (run("say()", *OURS, prefer=value).split() == ["nczarr"] * len(OURS)) is ours


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
