#!/usr/bin/env python3
"""Print how many modules and functions of both packages data pass through on their ways.

    python ci/way_of_data.py             print a table: per way modules, functions, hand-overs
    python ci/way_of_data.py --names     print the functions that were entered, too

The ways are: a remote HDF5 file, opened, and one chunk read (`remote`); two variables written to
memory:// (`export`); an aggregation, opened, and one value read (`aggregation`). Everything is
imported before, so that what runs at imports does not count, and each way has a process of its
own. Lambdas, and comprehensions until Python 3.12, count as functions. *Hand-overs* are the
functions that wait for each other, from `xarray.open_dataset` to what asks the transport for the
first request.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import netCDF4  # noqa: E402 - the path comes first
import numpy as np  # noqa: E402
import xarray as xr  # noqa: E402

from tests.support.servers.realservers import range_server  # noqa: E402

PACKAGES = ("nczarr_fsspec", "nczarr_xarray")
#: what sends a request
_TRANSPORT = "nczarr_fsspec.transport.base", "Transport.fetch"


def remote(folder: Path) -> Iterator[None]:
    """Open an HDF5 file of a server, and read one chunk."""
    _write(folder / "one.nc", 0)
    with range_server(folder) as server:
        yield
        with xr.open_dataset(f"{server.url}/one.nc", engine="nczarr") as ds:
            ds["v"][:10].load()
        yield


def export(_: Path) -> Iterator[None]:
    """Write two variables to memory://."""
    ds = xr.Dataset({"v": ("x", np.arange(4.0)), "w": ("x", np.arange(4))})
    yield
    ds.nczarr.to_nczarr("memory://way")
    yield


def aggregation(folder: Path) -> Iterator[None]:
    """Open an aggregation of local files, and read one value."""
    from nczarr_xarray import aggregate

    files = [_write(folder / f"{n}.nc", n * 20) for n in range(3)]
    aggregate(files, folder / "master.nca")
    yield
    with xr.open_dataset(folder / "master.nca", engine="nczarr") as ds:
        ds["v"][25, 3].load()
    yield


WAYS = {way.__name__: way for way in (remote, export, aggregation)}


class Profile:
    """Which functions of the packages are entered, in all threads."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.hand_overs: list[str] = []
        self._main = threading.get_ident()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch what is called meanwhile."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def functions(self) -> set[tuple[str, str]]:
        """Return module and name of each function that was entered."""
        named = ((_module(code), code.co_qualname) for code in self.codes)
        return {(module, name) for module, name in named if module.startswith(PACKAGES)}

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:
            self.codes.add(code)
        if not self.hand_overs and (_module(code), code.co_qualname) == _TRANSPORT:
            chain = [*_chain(self._waiting()), *_chain(frame)]
            self.hand_overs = [n for n in chain if not n.startswith("nczarr_fsspec.transport.")]

    def _waiting(self) -> FrameType:
        """Return what the thread that asked does, as soon as it waits."""
        while True:
            top = sys._current_frames()[self._main]  # noqa: SLF001
            if top.f_globals.get("__name__") == "threading":
                return top
            time.sleep(0.001)


def _chain(frame: FrameType | None) -> list[str]:
    """Return the functions of the packages that wait for a frame, the outermost first."""
    found: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGES):
            found.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def _module(code: CodeType) -> str:
    with suppress(ValueError):
        return ".".join(Path(code.co_filename).relative_to(ROOT).with_suffix("").parts)
    return ""


def _write(path: Path, start: int) -> Path:
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("time", 20)
        ds.createDimension("x", 10)
        time_ = ds.createVariable("time", "f8", ("time",))
        time_.units = "days since 2000-01-01"
        time_[:] = np.arange(start, start + 20)
        variable = ds.createVariable(
            "v", "f4", ("time", "x"), zlib=True, shuffle=True, chunksizes=(10, 10)
        )
        variable[:] = np.arange(200).reshape(20, 10)
    return path


def _import_all() -> None:
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith(("__main__", "_version")):
                with suppress(ImportError):
                    importlib.import_module(module.name)


def _run(way: Callable[[Path], Iterator[None]], *, names: bool) -> None:
    _import_all()
    profile = Profile()
    with tempfile.TemporaryDirectory() as folder:
        steps = way(Path(folder))
        next(steps)
        with profile.running():
            next(steps)
        next(steps, None)
    functions = profile.functions()
    modules = {module for module, _ in functions}
    hand_overs = len(profile.hand_overs) or "-"
    print(f"{way.__name__:<12} {len(modules):>8} {len(functions):>10} {hand_overs:>11}")
    for hand_over in profile.hand_overs:
        print(f"    {hand_over}")
    for module, name in sorted(functions) if names else ():
        print(f"        {module}.{name}")


def main() -> int:
    """Run what the command line asks for; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", action="store_true", help="print the functions, too")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    if args.way:
        _run(WAYS[args.way], names=args.names)
        return 0
    print(f"{'way':<12} {'modules':>8} {'functions':>10} {'hand-overs':>11}", flush=True)
    more = ["--names"] if args.names else []
    status = 0
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, *more]
        status |= subprocess.run(command, check=False, timeout=300).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
