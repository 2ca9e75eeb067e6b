#!/usr/bin/env python3
"""Let netCDF-C, and releases of it, contradict what we read and write.

    python ci/fuzz_adversary.py --cases 5000 --seed 1 [--releases FOLDER]

Every case is a content that hypothesis makes, written for one of the releases that `to_nczarr`
knows (`compat`). netCDF-C writes it as a netCDF-4 file and as NCZarr, and we read it; our CDL of it
is compared with ncdump's, and ncgen reads it. We write it as NCZarr, append to it and overwrite
regions, as netCDF-C does with the file; then netCDF-C, our own reader, and releases
that know this form must read what is in the file: for 4.8.1 Debian's ncdump of 4.9.0, and with
``--releases`` those of wheels of netCDF4 (`ci/netcdf_releases.py`, whose environments are kept in
FOLDER). A case fails if anything differs that is not in `tests.support.oracles.described.ALLOWED`.

Cases are made by hundreds, each from a seed of its own; ``--batch N`` repeats one hundred
in this process and shrinks what fails.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import workers  # noqa: E402 - the path comes first
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from netcdf_releases import RELEASES  # noqa: E402
from old_readers import environment  # noqa: E402

from tests.support.faults import adversary  # noqa: E402
from tests.support.oracles.nc_adapter import find_ncdump  # noqa: E402

#: Cases of a batch, and what a batch may use.
EACH = 100
LIMITS = workers.Limits(seconds=1800)
#: By what is written: the releases that read it (docs/write.md).
READERS = {
    "4.8.1": ("4.9.0",),
    "4.9.2": ("4.9.1", "4.9.3-development"),
    "4.9.3": ("4.9.4-development",),
}

#: Prints what is in the datasets whose places come by standard input.
_PROGRAM = """
import sys
import netCDF4, numpy

def lines(group, path):
    for name, d in group.dimensions.items():
        yield f"{path} dimension {name} {len(d)} {d.isunlimited()}"
    for name in group.ncattrs():
        yield f"{path} @{name} {plain(group.getncattr(name))}"
    for name, v in group.variables.items():
        yield f"{path} {name} {v.dimensions} {plain(v[...])}"
        for n in v.ncattrs():
            yield f"{path} {name} @{n} {plain(v.getncattr(n))}"
    for name, inner in group.groups.items():
        yield f"{path} group {name}"
        yield from lines(inner, f"{path}/{name}")

def plain(value):
    array = numpy.asarray(value)
    return array.dtype.str.lstrip("<|>="), array.shape, array.ravel().tolist()

for line in sys.stdin:
    try:
        with netCDF4.Dataset(line.rstrip("\\n")) as ds:
            ds.set_auto_maskandscale(False)
            ds.set_auto_chartostring(False)
            found = list(lines(ds, ""))
    except Exception as error:
        found = [f"ERROR {error}"]
    print(len(found) + 1, "dataset", *map(ascii, found), sep="\\n", flush=True)
"""


class Release:
    """A process with a release of netCDF-C, which is started anew if it crashes."""

    def __init__(self, python: Path) -> None:
        self._command = [str(python), "-W", "ignore", "-c", _PROGRAM]
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, place: str) -> str:
        """Print what it reads of a dataset."""
        fresh = self._process is None
        text = self._ask(place)
        if fresh or "ERROR" not in text:
            return text
        # it may fail because of what it has read before
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        return self._ask(place)

    def _ask(self, place: str) -> str:
        process = self._process or subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        print(place, file=process.stdin, flush=True)
        count = process.stdout.readline()
        if not count:
            self._process = None
            return f"dataset\nERROR the process ended ({process.wait()})"
        return "".join([process.stdout.readline() for _ in range(int(count))])


@functools.cache
def readers(compat: str, folder: Path | None) -> dict[str, adversary.Printer]:
    """Return programs that read what is written for a release, by name."""
    found: dict[str, adversary.Printer] = {}
    if compat == "4.8.1" and find_ncdump()[0] is not None:
        found["ncdump 4.9.0"] = functools.partial(adversary.by_ncdump, "-p", "9,17")
    for name in READERS[compat]:
        if folder is None:
            break
        python = environment(folder / f"netcdf-{name}", RELEASES[name].packages)
        found[f"netCDF-C {name}"] = Release(python)
    return found


def batch(first: int, folder: Path | None, number: int, *, shrinks: bool = False) -> workers.Labels:
    """Run a hundred cases; return what they count as."""
    labels: workers.Labels = []

    @seed(first * 10**6 + number)
    @settings(
        max_examples=EACH,
        database=None,
        deadline=None,
        phases=[Phase.generate, *([Phase.shrink] if shrinks else [])],
        suppress_health_check=[*HealthCheck],
    )
    @given(adversary.cases())
    def run(case: adversary.Case) -> None:
        labels.extend(adversary.check(case, readers(case.compat, folder)))
        labels.append(("cases", "all"))

    run()
    return labels


def main() -> int:
    """Run the command line; 1 if a case failed."""
    parser = workers.command_line(__doc__, cases=5000)
    parser.add_argument("--releases", type=Path, help="folder for their environments")
    parser.add_argument("--batch", type=int, help="repeat this one, here")
    args = parser.parse_args()
    if args.batch is not None:
        batch(args.seed, args.releases, args.batch, shrinks=True)
        return 0
    for compat in READERS:  # makes the environments
        readers(compat, args.releases)
    begin = time.monotonic()
    run = functools.partial(batch, args.seed, args.releases)
    summary = workers.run_all(run, range(-(-args.cases // EACH)), args.jobs, LIMITS)
    failed = len(summary.failed)
    print(f"seed {args.seed}, {time.monotonic() - begin:.0f} s, {failed} hundreds with a failure")
    for (table, label), count in sorted(summary.counts.items()):
        print(f"  {table:14} {label:55} {count:7}")
    for number in sorted(summary.failed):
        print(f"python ci/fuzz_adversary.py --seed {args.seed} --batch {number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
