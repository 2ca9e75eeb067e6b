#!/usr/bin/env python3
"""Set everything up in a virtual environment and run one task. Needs only Python >= 3.11.

    python3 ci/run.py demo              install the package, run `nczarr demo`
    python3 ci/run.py test [ARGUMENT]   install for development, run the quick tests
    python3 ci/run.py oldest [ARGUMENT] the quick tests with the oldest releases that are supported
    python3 ci/run.py newest [ARGUMENT] the quick tests with releases that are not out yet
    python3 ci/run.py filesystems       try filesystems of fsspec with servers, in .venv-filesystems
    python3 ci/run.py programs          try programs for netCDF4-python, in .venv-programs
    python3 ci/run.py release           build wheel and sdist into dist/, check and install them
    python3 ci/run.py lint FILE ...     linters and types of these files only, in seconds
    python3 ci/run.py check             linters and all tests, as continuous integration

The quick tests are those without the marks slow and servers, and hypothesis tries fewer examples.
They say which they skip, because only `check` installs a package. The oldest releases are the lower
bounds in pyproject.toml, the newest ones pre-releases of the same packages. These tasks, and
release, have environments of their own, such as `.venv-oldest`.

With the environment variable CI set, the Debian packages that tests use are
installed first (as root), and whatever a test needs must be there.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - what is imported below fails without a reason
    sys.exit(f"ci/run.py needs Python 3.11 or later, and this is {sys.version.split()[0]}")

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IN_CI = bool(os.environ.get("CI"))
#: Programs that tests use, and the Debian packages that have them.
DEBIAN = {
    "ncdump": "netcdf-bin",
    "nginx": "nginx-light",
    "7z": "p7zip-full",
    "udunits2": "udunits-bin",
    "chromium": "chromium",
}

TASKS = ("demo", "test", "oldest", "newest", "filesystems", "programs", "release", "lint", "check")
LINT = {
    "ruff check": ("-m", "ruff", "check", "."),
    "ruff format": ("-m", "ruff", "format", "--check", "."),
    "mypy": ("-m", "mypy"),
    "imports": ("-c", "from importlinter.cli import lint_imports_command as c; c()"),
    "picture of the imports": ("ci/picture.py", "--check"),
}
# Every worker begins with a part of the files, and takes tests of another when it has done.
PYTEST = ("-m", "pytest", "--dist", "worksteal")
#: Extras of users: `oldest` and `newest` choose the releases of what they require.
EXTRAS = ("cfa", "dask", "demo", "icechunk", "parquet", "remote", "s3")
QUICK = (
    *("--numprocesses", "auto"),
    *("-m", "not slow and not servers", "--hypothesis-profile", "quick"),
)
#: One worker more, as tests of servers and of failing networks wait for a part of their time.
WHOLE = ("--numprocesses", str(1 + (os.cpu_count() or 1)), "--durations", "25")
#: Tests of programs for netCDF4-python, which need not get along with what other tests use.
PROGRAMS = "tests/xarray/netcdf4/test_live_programs.py"
#: Seconds for all tests. If a worker dies, in a C library, the others were seen to wait for ever.
LONGEST = 3000
#: Seconds that they have after that to say which failed.
LAST_WORDS = 60


def main() -> int:
    """Run the task of the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--python", default=sys.executable, help="make the environment from this")
    parser.add_argument("--venv", type=Path, help="where it is (.venv, or .venv-TASK)")
    args, rest = parser.parse_known_args()
    if rest and args.task == "check":
        parser.error(f"check takes no {rest}")

    wanted = releases(args.task)
    own = wanted or args.task in ("filesystems", "programs", "release")
    standard = ROOT / (f".venv-{args.task}" if own else ".venv")
    python = environment(args.venv or standard, args.python)
    if args.task == "demo":
        install(python, "demo")
        return call(python, "-m", "nczarr_xarray", "demo", *rest)
    if args.task == "filesystems":
        install_filesystems(python)
        return call(python, "ci/filesystems.py", *(rest or ("--check",)))
    if args.task == "programs":
        return try_programs(python, *rest)
    if args.task == "release":
        return release(python)
    if args.task == "lint":
        if call(python, "-c", "import mypy, ruff"):
            install_for_development(python)
        commands = (("ruff", "check"), ("ruff", "format", "--check"), ("mypy",))
        return max([call(python, "-m", *command, *rest) for command in commands])
    if IN_CI:
        install_debian()
    if args.task == "check":
        install_for_development(python)
    elif not install(python, "test", pins=wanted):
        sys.exit("The packages above could not be installed together.")
    failed = []
    if args.task == "check":
        failed = [name for name, command in LINT.items() if call(python, *command)]
        if IN_CI:  # apart from the others, which need not get along with these
            apart = environment(ROOT / ".venv-filesystems", args.python)
            if not install_filesystems(apart):
                shutil.rmtree(apart.parents[1])  # tests say that they have none
            if try_programs(environment(ROOT / ".venv-programs", args.python)):
                failed.append("programs for netCDF4-python")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of many programs would compile it all
    chosen = WHOLE if args.task == "check" else QUICK
    status = call(python, *PYTEST, *chosen, *rest, longest=LONGEST)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return status or bool(failed)


def install_filesystems(python: Path) -> bool:
    """Install filesystems of fsspec with servers for them; False if nothing can be tried."""
    if shutil.which("npm"):
        packages = ("--silent", "--prefix", python.parents[1], "azurite")
        call("npm", "install", *packages, longest=300)
    return install(python, "filesystems")


def try_programs(python: Path, *arguments: str) -> int:
    """Install programs for netCDF4-python, test them; return the exit status.

    pytest says which are not installed: wrf-python has no wheel, and its source needs Fortran.
    """
    if not install(python, "programs"):
        return 1
    return call(python, "-m", "pytest", "-rs", "-p", "no:xdist", "-m", "", PROGRAMS, *arguments)


def release(python: Path) -> int:
    """Build what is uploaded into ``dist/``, check it and try it; return the exit status."""
    if not install(python, "test", "release"):
        return 1
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    return (
        call(python, "-m", "hatchling", "build")
        or call(python, "-m", "twine", "check", "--strict", *(ROOT / "dist").iterdir())
        or call(python, "-m", "check_wheel_contents", "dist")
        or call(
            python, "-m", "pytest", "-p", "no:xdist", "-m", "", "tests/whole/test_distribution.py"
        )
    )


def environment(path: Path, base: str) -> Path:
    """Make the virtual environment at `path` if there is none; return its Python."""
    python = path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists() and call(base, "-m", "venv", path):
        sys.exit("There is no venv in this Python (on Debian: apt-get install python3-venv).")
    return python


def install(python: Path, *extras: str, pins: Sequence[str] = ()) -> bool:
    """Install the package in place, with `extras` and releases; True if that went well."""
    return not call(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade",
        "--editable", f".[{','.join(extras)}]", *pins,
    )  # fmt: skip


def releases(task: str) -> list[str]:
    """Return what `task` wants of the packages of users, as pip has it; nothing if any will do.

    The oldest are the lower bounds (``numpy==2.2``). The newest may be pre-releases, because the
    bound is one (``numpy>=2.2.dev0``). h5py is among neither. Tests write files with it that only
    a new HDF5 can write.
    """
    form = {"oldest": "{}=={}", "newest": "{}>={}.dev0"}.get(task)
    if form is None:
        return []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in EXTRAS for one in extras[name])]
    bounds = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", one) for one in wanted)
    return sorted({form.format(bound[1], bound[2]) for bound in bounds if bound})


def install_for_development(python: Path) -> None:
    """Install all that tests, linters and docs use, or end the program."""
    if install(python, "check", "deflate64"):
        return
    if IN_CI or not install(python, "check"):
        sys.exit("The packages above could not be installed.")
    # It comes as source only.
    print("Without a C compiler there is no zipfile-deflate64: its tests will be skipped.")


def install_debian() -> None:
    """Install the Debian packages of programs that are missing, where we may."""
    missing = [package for program, package in DEBIAN.items() if not shutil.which(program)]
    if missing and shutil.which("apt-get") and os.geteuid() == 0:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        call("apt-get", "update", "--quiet")
        for package in missing:  # each by itself: one that cannot be had stops no other
            call("apt-get", "install", "-qq", "--yes", "--no-install-recommends", package)


def call(*command: str | Path, longest: float | None = None) -> int:
    """Run a command in the repository, showing it and how long it took (`longest` at most)."""
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    start = time.monotonic()
    with subprocess.Popen(words, cwd=ROOT) as process:
        try:
            status = process.wait(longest)
        except subprocess.TimeoutExpired:
            print(f"  ended after {longest} s", flush=True)
            # as Ctrl-C does: pytest says which tests have failed until now
            process.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
            try:
                process.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                process.kill()
            status = 1
    print(f"  ({time.monotonic() - start:.0f} s, status {status})", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
