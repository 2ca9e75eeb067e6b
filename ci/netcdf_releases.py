#!/usr/bin/env python3
"""Let releases of netCDF-C read what ``nczarr upgrade`` writes of each other's data.

    python ci/netcdf_releases.py [FOLDER]

The releases are those in wheels of netCDF4 on PyPI. Each gets a virtual environment in FOLDER,
which is kept for the next time; without one they are made in a temporary folder. One is the
netCDF-C of this interpreter, the newest. Each release writes a dataset, which is upgraded for each
other one, and read by it. For each pair the table says whether groups, dimensions, attributes and
values are those that the writer reads itself. 1 is returned if some are not, and should be.
Compression is left out: old wheels have no filters for NCZarr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

from old_readers import environment  # noqa: E402 - the path comes first

from nczarr_xarray import ExportError, upgrade, validate  # noqa: E402

#: Writes or reads a dataset; run by every release. What it prints is what it reads.
_PROGRAM = """
import json, sys
import netCDF4, numpy
what, path, features = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
url = f"file://{path}#mode=nczarr,file"

def write():
    with netCDF4.Dataset(url, "w") as ds:
        ds.title = "written by netCDF-C " + netCDF4.__netcdf4libversion__
        ds.numbers = numpy.array([1, -2, 3], "i2")
        ds.createDimension("x", 5)
        ds.createDimension("y", 3)
        kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
        for kind in kinds:
            v = ds.createVariable("v_" + kind, kind, ("y", "x"), fill_value=7, chunksizes=(2, 3))
            v.units = "m"
            v.valid_range = numpy.array([0, 100], kind)
            v[:] = numpy.arange(15).reshape(3, 5)
        inner = ds.createGroup("g")
        inner.createDimension("z", 2)
        inner.createVariable("w", "f8", ("z", "x"))[0] = numpy.arange(5) / 3
        if "unlimited" in features:
            ds.createDimension("t", None)
            ds.createVariable("series", "f4", ("t",))[:] = numpy.arange(7)
        if "scalar" in features:
            ds.createVariable("one", "f8", ())[...] = 2.5

def plain(value):
    array = numpy.ma.filled(numpy.ma.asarray(value))
    return [array.dtype.str.lstrip("<|>="), list(array.shape), array.ravel().tolist()]

def read(group):
    return {
        "dimensions": {name: [len(d), d.isunlimited()] for name, d in group.dimensions.items()},
        "attributes": {name: plain(group.getncattr(name)) for name in group.ncattrs()},
        "variables": {
            name: [
                list(v.dimensions), plain(v[...]),
                {n: plain(v.getncattr(n)) for n in v.ncattrs()},
            ]
            for name, v in group.variables.items()
        },
        "groups": {name: read(inner) for name, inner in group.groups.items()},
    }

if what == "write":
    write()
with netCDF4.Dataset(url) as ds:
    ds.set_auto_mask(False)
    print(json.dumps(read(ds)))
"""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of netCDF-C.

    Parameters
    ----------
    packages
        With which wheels it comes; none for this interpreter's.
    compat
        What `upgrade` is told to write for it.
    features
        What it can hold, of what not all can.
    """

    packages: tuple[str, ...]
    compat: str
    features: frozenset[str]


_OLD = ("numpy<2", "cftime<1.7")
_SCALAR, _ALL = frozenset({"scalar"}), frozenset({"scalar", "unlimited"})
#: By the version that each tells; the wheels before 1.6 have no NCZarr.
RELEASES = {
    "4.9.0": Release(("netCDF4==1.6.2", *_OLD), "4.8.1", frozenset()),
    "4.9.1": Release(("netCDF4==1.6.3", *_OLD), "4.9.2", _SCALAR),
    "4.9.3-development": Release(("netCDF4==1.6.5", *_OLD), "4.9.2", _SCALAR),
    "4.9.4-development": Release(("netCDF4==1.7.2",), "4.9.3", _ALL),
    "newest": Release((), "4.9.3", _ALL),
}


def main() -> int:
    """Try all pairs; return how the process ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    given: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        return check(Path(temporary) if given is None else given.absolute(), Path(temporary))


def check(folder: Path, work: Path) -> int:
    """Try all pairs, with environments in a folder, and datasets in another."""
    pythons = {
        name: environment(folder / f"netcdf-{name}", one.packages)
        if one.packages
        else Path(sys.executable)
        for name, one in RELEASES.items()
    }
    wrong = 0
    for writer, release in RELEASES.items():
        for features in sorted({frozenset(), release.features}, key=len):
            path = work / f"{writer}-{len(features)}"
            written = run(pythons[writer], "write", path, features)
            for reader, other in RELEASES.items():
                found = converted(path, written, pythons[reader], other)
                expected = features <= other.features
                ok = found == "equal" if expected else found.startswith("refused")
                wrong += not ok
                print(f"{writer:18} {'+'.join(sorted(features)) or 'plain':30} {reader:18} {found}")
    return 1 if wrong else 0


def converted(path: Path, written: Any, python: Path, reader: Release) -> str:
    """Return what a release makes of a dataset that was upgraded for it."""
    copy = path.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    try:
        upgrade(copy, reader.compat)
    except ExportError as error:
        return f"refused: {'; '.join(error.lines[1:])}"
    if any(finding.severity == "error" for finding in validate(copy, data=True)):
        return "not sound"
    found = run(python, "read", copy, frozenset())
    return next(differences(written, found, "/"), "equal")


def differences(a: Any, b: Any, path: str) -> Iterator[str]:
    """Yield where two parsed documents of `_PROGRAM` differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            yield from differences(a.get(name), b.get(name), f"{path}{name}/")
    elif a != b:
        yield f"differs: {path}: {a} | {b}"


def run(python: Path, what: str, path: Path, features: frozenset[str]) -> Any:
    """Write or read a dataset with a release; return what it reads, or why it fails."""
    command = [python, "-c", _PROGRAM, what, path, ",".join(sorted(features))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
