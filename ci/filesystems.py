#!/usr/bin/env python3
"""Make the table of filesystems in docs/compatibility.md: what can be done in which one.

    python ci/filesystems.py [NAME ...]          try all, or these, and write their rows
    python ci/filesystems.py --check [NAME ...]  say whether the page says what comes out

Every row is tried with a server on this machine. `python3 ci/run.py filesystems` installs them
(``pip install '.[filesystems]'``, ``npm install azurite``) and runs this with ``--check``. The row
of a server that is not installed stays as it is. Tests run some rows, with the environment of that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import numpy as np  # noqa: E402 - the path comes first
import page_tables  # noqa: E402 - the path comes first
import xarray as xr  # noqa: E402

import nczarr_xarray  # noqa: E402
from nczarr_fsspec.errors import StoreError, URLError  # noqa: E402
from tests.support.servers.fileservers import SERVERS, Files, Missing  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
#: where `ci/run.py` puts programs
_PROGRAMS = Path(sys.executable).parent, Path(sys.prefix) / "node_modules" / ".bin"
#: seconds for a row
LONGEST = 300
#: by URL: the package that reads it, and what it was tried with
TRIED = {
    "http": ("fsspec", "nginx"),
    "s3": ("s3fs", "SeaweedFS"),
    "gs": ("gcsfs", "gcp-storage-emulator"),
    "abfs": ("adlfs", "Azurite"),
    "webdav": ("webdav4", "WsgiDAV"),
    "ssh": ("sshfs", "asyncssh"),
    "sftp": ("paramiko", "asyncssh"),
    "ftp": ("fsspec", "pyftpdlib"),
}


def dataset(first: float = 0.0) -> xr.Dataset:
    """Return data of which not all come with the beginning of a file."""
    values = first + np.arange(120_000.0).reshape(6, 20_000)
    return xr.Dataset({"v": (("t", "x"), values)}, {"t": np.arange(6.0)})


def netcdf(contents: xr.Dataset) -> bytes:
    """Return a netCDF-4 file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.nc"
        chunks = {"v": {"chunksizes": (1, contents.sizes["x"])}}
        contents.to_netcdf(path, engine="netcdf4", encoding=chunks)
        return path.read_bytes()


def holds(files: Files, name: str, contents: xr.Dataset) -> None:
    """Raise unless exactly this can be read."""
    options = dict(files.options)
    with xr.open_dataset(f"{files.root}{name}", engine="nczarr", storage_options=options) as found:
        xr.testing.assert_equal(found.load(), contents)


def read(files: Files) -> None:
    """Read a file."""
    files.put("r/x.nc", netcdf(dataset()))
    holds(files, "r/x.nc", dataset())


def notice(files: Files) -> None:
    """Raise unless a file that is replaced while it is open is noticed."""
    files.put("n/x.nc", netcdf(dataset()))
    options = dict(files.options)
    with xr.open_dataset(f"{files.root}n/x.nc", engine="nczarr", storage_options=options) as found:
        found["v"][0].load()
        files.put("n/x.nc", netcdf(dataset(1.0)))
        try:
            found["v"][5].load()
        except StoreError as error:
            if "has changed" in str(error):
                return
            raise
    raise AssertionError("values of two versions")


def write(files: Files) -> None:
    """Write a tree and an archive, into folders that are not there yet."""
    for name in ("w/a/t.nczarr", "w/b/t.zip"):
        options = dict(files.options)
        dataset().nczarr.to_nczarr(f"{files.root}{name}", storage_options=options)
        holds(files, name, dataset())


def replace(files: Files) -> None:
    """Replace a tree and an archive."""
    for name in ("p/t.nczarr", "p/t.zip"):
        for first in (0.0, 1.0):
            to, options = f"{files.root}{name}", dict(files.options)
            dataset(first).nczarr.to_nczarr(to, mode="w", storage_options=options)
            holds(files, name, dataset(first))


def append(files: Files) -> None:
    """Append to a tree, and change a region of it."""
    to, options = f"{files.root}a/t.nczarr", dict(files.options)
    chunks = {"v": {"chunks": (4, 20_000)}}
    start, end, other = dataset().isel(t=slice(3)), dataset().isel(t=slice(3, 6)), dataset(7.0)
    start.nczarr.to_nczarr(to, encoding=chunks, storage_options=options)
    end.nczarr.to_nczarr(to, append_dim="t", storage_options=options)
    holds(files, "a/t.nczarr", dataset())
    other.nczarr.to_nczarr(to, region={"t": slice(None)}, storage_options=options)
    holds(files, "a/t.nczarr", other)


def aggregate(files: Files) -> None:
    """Write fragments beside a master, and a master for files, in a folder and at the root."""
    for folder in ("g/", ""):
        options = dict(files.options)
        written = f"{files.root}{folder}m.nca"
        dataset().nczarr.to_cfa(written, subarray_shape={"t": 3}, storage_options=options)
        holds(files, f"{folder}m.nca", dataset())
        for part in range(2):
            content = netcdf(dataset().isel(t=slice(3 * part, 3 * part + 3)))
            files.put(f"{folder}f{part}.nc", content)
        names = [f"{files.root}{folder}f{part}.nc" for part in range(2)]
        nczarr_xarray.aggregate(names, f"{files.root}{folder}all.nca", storage_options=options)
        holds(files, f"{folder}all.nca", dataset())


TRIALS: dict[str, Callable[[Files], None]] = {
    "read": read,
    "notice a change": notice,
    "write": write,
    "replace": replace,
    "append, change": append,
    "aggregate": aggregate,
}


def row(name: str) -> list[str]:
    """Try everything with one server, in this process."""
    warnings.simplefilter("ignore")
    cells = []
    with tempfile.TemporaryDirectory() as folder, SERVERS[name](Path(folder)) as files:
        for what, trial in TRIALS.items():
            try:
                trial(files)
            except Exception as error:  # noqa: BLE001 - which is the answer
                level = "" if isinstance(error, URLError) else f"{type(error).__name__}: "
                print(f"{name}, {what}: {level}{error}", file=sys.stderr)
                cells.append("no")
            else:
                cells.append("yes")
    return cells


def tried(name: str) -> list[str] | None:
    """Try it in a process of its own; None if the server is not there."""
    command = [sys.executable, __file__, "--row", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LONGEST, check=False)
    lines = done.stdout.decode().splitlines() or ["null"]
    if done.returncode:
        sys.exit(f"{name}: the process ended with status {done.returncode}")
    cells: list[str] | None = json.loads(lines[-1])
    return cells


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of the page's table, by the beginning of a URL."""
    table = page_tables.between(text, "filesystems")
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if "`" in line]
    return {cells[0].strip("`").removesuffix("://"): cells for cells in lines}


def page(text: str, table: dict[str, list[str]]) -> str:
    """Return the page with this table."""
    heads = ["URL", "package", "tried with", *TRIALS]
    lines = [heads, ["---"] * len(heads), *(table[name] for name in SERVERS if name in table)]
    shown = [f"| {' | '.join(cells)} |" for cells in lines]
    return page_tables.replaced(text, {"filesystems": shown})


def main() -> int:
    """Write the rows, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*SERVERS, []], metavar="NAME")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if it differs")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["PATH"] = os.pathsep.join((*map(str, _PROGRAMS), os.environ["PATH"]))
    if args.row:
        cells = None
        try:
            cells = row(args.row)
        except Missing as missing:
            print(f"{args.row}: not tried: {missing}", file=sys.stderr)
        print(json.dumps(cells))
        return 0
    old = PAGE.read_text(encoding="utf-8")
    table, status = rows(old), 0
    for name in args.names or SERVERS:
        if (cells := tried(name)) is None:
            continue
        package, server = TRIED[name]
        with suppress(Exception):
            package = f"{package} {version(package)}"
        if args.check and table.get(name, [])[3:] != cells:
            print(f"{name}: {PAGE.name} has {table.get(name)}, and what came out is {cells}")
            status = 1
        table[name] = [f"`{name}://`", package, server, *cells]
    if not args.check:
        PAGE.write_text(page(old, table), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
