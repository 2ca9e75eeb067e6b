"""Twice as many variables, groups, dimensions or chunks take twice as much, on every line.

Counted is what each line goes over (`tests.support.oracles.counted`), so the answer is the same on
any machine, and a loop inside of a loop is named by its line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.oracles import counted
from tests.support.oracles.linearity import KINDS

#: What the others do, these do as well.
QUICK = (
    *("tree_of_groups", "tree_for_xarray", "consolidated", "zarr3", "chunks"),
    "chunks_with_gaps",
    *("hdf5_without_names", "hdf5_groups", "netcdf4_dimensions", "classic"),
    *("export_of_dimensions", "added_values"),
)
#: A line may be over so many times its elements as with half of them, ...
RATIO = 2.5
#: ... and over so many for each part besides: a file may become longer than what is read at first.
EACH = 4


def steep(kinds: tuple[str, ...], size: int) -> list[str]:
    """Lines that are over more than twice as much for twice as many parts."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.oracles.linearity", str(size), *kinds],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert not ran.returncode, ran.stderr
    found = []
    for kind, (once, twice) in json.loads(ran.stdout).items():
        assert size <= sum(once.values()) < sum(twice.values()), kind
        for place, count in twice.items():
            if count > RATIO * once.get(place, 0) + EACH * 2 * size:
                found.append(f"{kind}: {place} {once.get(place, 0)} -> {count}")
    return found


def test_twice_as_many() -> None:
    assert not steep(QUICK, 40)


@pytest.mark.slow
def test_twice_as_many_of_all_kinds() -> None:
    assert not steep(tuple(KINDS), 150)


@pytest.mark.parametrize(
    "line",
    [
        "for i in range(n): all(True for j in range(i))",
        "for i in range(n): i in known; known += [i]",
        "for i in range(n): i not in tuple(known); known += [i]",
        "for i in range(n): known.index(i - 1) if i else 0; known += [i]",
        "for i in range(n): known.insert(0, i)",
        "for i in range(n): known = known + [i]",
        "for i in range(n): known = [*known, i]",
        "for i in range(n): known[1:]; known += [i]",
        "for i in range(n): sorted(known); known += [i]",
        "for i in range(n): ','.join(known); known += ['']",
        "for i in range(n): table = {**table, i: i}",
        "for i in range(n): table = table | {i: i}",
        "for i in range(n): set(range(n)) - {i}",
        "for i in range(n): table.copy(); table[i] = i",
    ],
)
def test_what_is_quadratic_is_seen(line: str) -> None:
    totals = []
    for n in (40, 80):
        counted.counts.clear()
        counted.run(f"n, known, table = {n}, [], {{}}\n{line}", "m")
        totals.append(counted.counts["m:2"])
    assert totals[1] > 3 * totals[0]


@pytest.mark.parametrize(
    "line",
    [
        "for i in range(n): i in table; table[i] = i",
        "for i in range(n): known.append(known)",
        "[i for i in range(n) if i % 2]",
        "known.extend(range(n)); sorted(known); known[1:]",
        "while n: n -= 1",
    ],
)
def test_what_is_linear_is_not(line: str) -> None:
    totals = []
    for n in (40, 80):
        counted.counts.clear()
        counted.run(f"n, known, table = {n}, [], {{}}\n{line}", "m")
        totals.append(sum(counted.counts.values()))
    assert totals[1] == 2 * totals[0] > 0 or abs(totals[1] - 2 * totals[0]) <= 2
