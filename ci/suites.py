#!/usr/bin/env python3
"""Run the test suites of other projects over this package, and make the table of docs/suites.md.

    python ci/suites.py          run all (ten to 30 minutes), write the table
    python ci/suites.py NAME...  run these suites only, print what failed, write nothing

The sources of netCDF4-python, which has its tests there only, are fetched into a temporary folder
with pip. The checkers of CF are those of the extra ``suites``. Exit status 1 if a test fails that
the table below has no reason for.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "suites.md"
BEGIN, END = "<!-- suites begin -->\n", "<!-- suites end -->"
#: Seconds for one suite, on a machine that others keep busy, too.
LONGEST = 3000
#: Seconds for one test, as in pyproject.toml.
ONE = 400


class Suite(NamedTuple):
    """Tests that pytest runs.

    Attributes
    ----------
    name
        Of the row.
    package
        Whose tests they are.
    paths
        For pytest; ``{netcdf4}`` is the folder of netCDF4-python's tests, and ``{interface}`` one
        in which they import `nczarr_xarray.netcdf4`, as those of h5netcdf do in ``{legacy}``.
    how
        What `suite_plugin` puts between the tests and the files; "all" for nothing.
    """

    name: str
    package: str
    paths: tuple[str, ...]
    how: str = "all"


BACKEND = "tests/xarray/backend/test_xarray_suite"
ZARR = "tests/xarray/zarr"
NO_STRUCTURES = "`nczarr copy` refuses structures and sequences"
NO_CLASSIC = "`nczarr copy` has no format NETCDF4_CLASSIC"
TOO_LARGE = "copying 4 GiB takes longer than a test may"
NO_COMPLEX = "`auto_complex=True` is not there"
PRIVATE = "`netCDF4.utils` has commands of its own; ours are `nczarr`'s"
MIXED_TYPES = (
    "of files with other scales, netCDF4-python's `MFDataset` casts values of a list of positions "
    "to the type of the last; here they are kept"
)
SIZE = "the size of a directory is not that of its files"
NOT_COLLECTED = "what is not closed is stored when Python ends, not when it is collected"
SUITES = (
    Suite("xarray: NCZarr and Zarr in directories", "xarray", (f"{BACKEND}.py",)),
    Suite("xarray: zip, memory, S3, netCDF files", "xarray", (f"{BACKEND}_places.py",)),
    Suite("zarr-python: files as stores (`StoreTests`)", "zarr",
          (f"{ZARR}/test_file_view.py::TestStore",)),
    Suite("zarr-python: stores (`StoreTests`, stateful)", "zarr",
          (f"{ZARR}/test_store_suite.py",)),
    Suite("fsspec: abstract `get` of `bytes::`", "fsspec",
          ("tests/fsspec/ranges/test_bytes_filesystem.py::TestGetFromMemory",
           "tests/fsspec/ranges/test_bytes_filesystem.py::TestGetFromDisk")),
    Suite("netCDF4-python: our reading", "netCDF4", ("{netcdf4}",), "read"),
    Suite("netCDF4-python: reading our copies", "netCDF4", ("{netcdf4}",), "write"),
    Suite("h5netcdf: our reading instead of netCDF4-python's", "h5netcdf",
          ("--pyargs", "h5netcdf.tests.test_h5netcdf"), "read"),
    Suite("netCDF4-python: `nczarr_xarray.netcdf4` instead", "netCDF4", ("{interface}",),
          "interface"),
    Suite("netCDF4-python: `nczarr_xarray.netcdf4`, making NCZarr", "netCDF4", ("{interface}",),
          "nczarr"),
    Suite("h5netcdf: `nczarr_xarray.netcdf4` instead of netCDF4-python", "h5netcdf",
          ("{legacy}",), "interface"),
    Suite("compliance-checker, xrlint: our copies", "compliance-checker",
          ("ci/suite_checkers.py",)),
)  # fmt: skip
#: Failures that are meant: suite, part of the test's id or of its message, and the reason.
STATED = (
    ("write", "holds structures", NO_STRUCTURES),
    ("write", "holds sequences", NO_STRUCTURES),
    (
        "write",
        "netCDF has no type for sequences",
        "`nczarr copy` leaves out sequences, and says so",
    ),
    ("write", "test_filepath", "the copy is another file"),
    ("write", "must be in NETCDF4_CLASSIC format", NO_CLASSIC),
    ("write", "test_cdf5", TOO_LARGE),
    ("interface", "auto_complex is not there", NO_COMPLEX),
    ("interface", "cannot import name 'utils'", PRIVATE),
    ("interface", "test_multifile_selected_", MIXED_TYPES),
    ("nczarr", "auto_complex is not there", NO_COMPLEX),
    ("nczarr", "cannot import name 'utils'", PRIVATE),
    ("nczarr", "NCZarr has no user-defined types", "NCZarr has no user-defined types"),
    ("nczarr", " < (0.9", SIZE),
    ("nczarr", "test_diskless", "a directory is no file"),
    ("nczarr", "test_filepath", "the path is the URL of the directory"),
    ("nczarr", "test_refcount", NOT_COLLECTED),
    ("nczarr", "groups of Zarr are not renamed", "groups of Zarr are not renamed"),
    ("nczarr", "test_types.py", "NUL as `_FillValue` of characters is not kept: netCDF-C cuts it"),
    ("nczarr", "test_unicodeatt", "attributes of NCZarr are UTF-8"),
)
NOT_OURS = "opens nothing that we read"


class Result(NamedTuple):
    """What came of a suite: tests by outcome, and by reason within each."""

    counts: dict[str, collections.Counter[str]]
    failures: list[str]


def run(folder: Path, suite: Suite) -> Result:
    """Run one suite; classify its tests."""
    log = folder / f"{suite.name.replace('/', ' ')}.jsonl"
    netcdf4 = folder / ("netcdf4" if suite.how in ("read", "write") else "interface")
    folders = {name: folder / name for name in ("netcdf4", "interface", "legacy")}
    paths = [path.format(**folders) for path in suite.paths]
    foreign = suite.how != "all"
    temporary = folder / "tmp"  # the plugin leaves copies there
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "suite_plugin",
               "-p", "no:cacheprovider", "-p", "no:xdist",
               "--timeout", str(ONE), *paths]  # fmt: skip
    if foreign:
        # they were written for settings of their own, and one needs a server in the network
        command += ["-c", os.devnull, "-W", "ignore", "--rootdir", str(folder)]
        command += ["--ignore", str(netcdf4 / "test_dap.py"), "--continue-on-collection-errors"]
    environment = os.environ | {
        "NCZARR_SUITES": suite.how,
        "NCZARR_SUITES_LOG": str(log),
        "TMPDIR": str(temporary),
        # netCDF4-python's tests import a module that is beside them
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ci"), str(netcdf4)]),
    }
    work = tempfile.mkdtemp(dir=folder)  # where tests of several suites make files of one name
    cut = []
    with (folder / "output.txt").open("ab") as output:
        try:
            subprocess.run(
                command,
                cwd=work if foreign else ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                check=False,
                timeout=LONGEST,
            )
        except subprocess.TimeoutExpired:
            cut = [f"{suite.name}: ended after {LONGEST} s, before its last test"]
    if not log.exists():
        sys.exit(f"{suite.name}: no test ran\n{(folder / 'output.txt').read_text()[-2000:]}")
    result = classify(suite, [json.loads(line) for line in log.read_text().splitlines()])
    return result._replace(failures=result.failures + cut)


def classify(suite: Suite, lines: list[dict[str, str]]) -> Result:
    """Count outcomes; a test that did not come to this package counts as skipped."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    failures = []
    # the report of a test comes behind those of its parts (`subTest`), of which one may fail
    tests = {line["test"]: line for line in lines}
    tests |= {line["test"]: line for line in lines if line["outcome"] == "failed"}
    for line in tests.values():
        outcome, reason = line["outcome"], line["reason"].removeprefix("Skipped: ").strip()
        if outcome == "failed":
            stated = [
                why
                for how, what, why in STATED
                if how == suite.how and what in line["test"] + line["reason"]
            ]
            if stated:
                outcome, reason = "expected", stated[0]
            else:
                failures.append(f"{line['test']}: {reason}")
        if outcome == "passed" and suite.how != "all" and not line["ours"]:
            outcome, reason = "skipped", NOT_OURS
        counts[outcome][" ".join(reason.split())] += 1
    return Result(counts, failures)


def fetch_netcdf4(target: Path) -> None:
    """Put the tests of netCDF4-python's sources at `target`.

    pip can download no sources without beginning to build them, which needs HDF5's headers. What
    it unpacked stays if it is told so.
    """
    unpacked = target.parent / "unpacked"
    unpacked.mkdir()
    release = version("netCDF4").split(".post")[0]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-clean", "--no-deps",
         "--no-binary", "netCDF4", "--dest", str(unpacked), f"netCDF4=={release}"],
        env=os.environ | {"TMPDIR": str(unpacked)},
        check=False,
        capture_output=True,
    )  # fmt: skip
    found = next(unpacked.glob("**/test/test_masked.py"), None)
    if found is None:
        sys.exit(f"The sources of netCDF4 {release} could not be fetched.")
    found.parent.rename(target)


#: What imports netCDF4-python, but for its private modules.
IMPORTS = re.compile(
    r"^(?P<before>\s*(from |import (.*, ?)?))netCDF4(?P<after>(?!\.).*)$", re.MULTILINE
)


def with_the_interface(source: Path, target: Path) -> None:
    """Copy tests; what imports netCDF4-python, or names it, means `nczarr_xarray.netcdf4` there."""

    def replaced(found: re.Match[str]) -> str:
        before, after = found["before"], found["after"]
        name = "" if before.strip().startswith("from") else " as netCDF4"
        return f"{before}nczarr_xarray.netcdf4{name}{after}"

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.rglob("*.py"):
        text = IMPORTS.sub(replaced, path.read_text(encoding="utf-8"))
        path.write_text(text.replace('"netCDF4"', '"nczarr_xarray.netcdf4"'), encoding="utf-8")


def row(suite: Suite, result: Result) -> str:
    """Return one row of the table."""
    counts = (result.counts[outcome].total() for outcome in ("passed", "expected", "skipped"))
    passed, expected, skipped = map(str, counts)
    cells = [version(suite.package), passed, str(len(result.failures)), expected, skipped]
    return f"| {suite.name} | {' | '.join(cells)} |"


def reasons(result: Result) -> Iterator[str]:
    """Yield why tests are expected to fail or skipped, and how many."""
    for outcome in ("expected", "skipped"):
        for why, count in result.counts[outcome].most_common():
            yield f"    {outcome}, {count} × {why or 'no reason given'}"


def main() -> int:
    """Run the suites, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of names of suites")
    args = parser.parse_args()
    wanted = [s for s in SUITES if not args.names or any(n in s.name for n in args.names)]
    rows, failures = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        if any(suite.package == "netCDF4" for suite in wanted):
            fetch_netcdf4(Path(temporary) / "netcdf4")
            with_the_interface(Path(temporary) / "netcdf4", Path(temporary) / "interface")
        if any("{legacy}" in suite.paths for suite in wanted):
            tests = importlib.util.find_spec("h5netcdf.tests")
            assert tests is not None
            assert tests.submodule_search_locations
            (source,) = tests.submodule_search_locations
            with_the_interface(Path(source), Path(temporary) / "legacy")
        with ThreadPoolExecutor(2) as pool:
            for suite, result in zip(
                wanted, pool.map(partial(run, Path(temporary)), wanted), strict=True
            ):
                failures += result.failures
                rows.append(row(suite, result))
                print(rows[-1], *reasons(result), sep="\n", flush=True)
    print(*failures, sep="\n")
    if not args.names:
        head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        table = [
            "| suite | release | passed | failed | expected to fail | skipped |",
            "|---|---|---:|---:|---:|---:|",
            *rows,
        ]
        text = f"{head}{BEGIN}\n" + "\n".join(table) + f"\n\n{END}{rest.split(END)[1]}"
        PAGE.write_text(text, encoding="utf-8")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
