#!/usr/bin/env python3
"""Make the tables of docs/compatibility.md: which release of netCDF-C reads what which one wrote.

    python ci/compatibility.py           write them
    python ci/compatibility.py --check   say whether they are as they would be written

The datasets in tests/data/vectors were written by releases of netCDF-C that were built for this,
and read again by other releases and ours; what each reader returned is kept beside them. Here
they are counted. What is read is right if it is what the release that wrote it reads, in pure
Zarr what the newest release reads. Ours reads them now.
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci")]

import page_tables  # noqa: E402 - the path comes first

from tests.support.corpora import vectors  # noqa: E402 - the path comes first
from tests.support.oracles.oracle import differences  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
OURS, ITSELF = "nczarr-xarray", "the same release"
READERS = (ITSELF, "4.9.2", "4.10.1", OURS)
#: What a reader made of a dataset, from best to worst, and how a cell of the table calls it.
OUTCOMES = ("right", "values", "opened", "wrong", "fails", "crashes")


def outcome(answer: dict[str, Any], right: dict[str, Any] | None) -> str:
    """Judge what a release returned of one dataset."""
    if "crash" in answer:
        return "crashes"
    if "root" not in answer:
        return "fails"
    if right is None:
        return "opened"
    if answer["root"] == right:
        return "right"
    return "values" if values(answer["root"]) == values(right) else "wrong"


def values(group: dict[str, Any]) -> dict[str, Any]:
    """Return type, shape and data of the variables by path, without other metadata."""
    found = {
        f"{group['path']}/{variable['name']}": (
            variable["type"],
            variable["shape"],
            variable.get("data"),
        )
        for variable in group["vars"]
    }
    for inner in group["groups"]:
        found |= values(inner)
    return found


def our_outcome(case: str) -> str:
    """Judge what we return of one dataset, now."""
    oracle = vectors.expected(case)
    release, right = oracle or ("4.10.1", None)
    with vectors.open_case(case, release) as opened:
        variables = [v for group in opened.hierarchy.root.walk() for v in group.variables.values()]
        if right is None:
            for variable in variables:
                if variable.error is None:
                    opened.read(variable)
            return "fails" if any(v.error for v in variables) else "opened"
        return "wrong" if vectors.surprising(case, differences(opened, right)) else "right"


def answers(case: str) -> Iterator[tuple[str, str]]:
    """Yield each reader of a dataset, and its outcome."""
    known = vectors.document(case)
    given = known["readers"]
    oracle = vectors.expected(case)
    # the way in which the dataset was written comes last, and stays
    order = sorted(given, key=lambda reader: reader.endswith(known["write_fragment"]))
    by_release = {reader.split()[0]: given[reader] for reader in order}
    for release, answer in by_release.items():
        told = given[answer["same_as"]] if "same_as" in answer else answer
        found = outcome(told, oracle and oracle[1])
        if release in READERS:
            yield release, found
        if release == known["writer"]:
            yield ITSELF, found
    yield OURS, our_outcome(case)


def table(wanted: Callable[[str], bool]) -> list[str]:
    """Count outcomes: a row for each writer, a column for each reader."""
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    writers: dict[str, int] = collections.Counter()
    for case in filter(wanted, vectors.CASES):
        if case in vectors.ABORTED:
            continue
        writer = vectors.document(case)["writer"]
        writers[writer] += 1
        for reader, found in answers(case):
            counts[writer, reader][found] += 1
    lines = [
        "| written by | datasets | " + " | ".join(READERS) + " |",
        "|---|---:|" + "---|" * len(READERS),
    ]
    for writer in sorted(writers, key=release_number):
        cells = [cell(counts[writer, reader], writers[writer]) for reader in READERS]
        lines.append(f"| {writer} | {writers[writer]} | " + " | ".join(cells) + " |")
    return lines


def release_number(release: str) -> tuple[int, ...]:
    """Return a release as numbers, which sort."""
    return tuple(map(int, re.findall(r"\d+", release)))


def cell(found: collections.Counter[str], datasets: int) -> str:
    """Say how many datasets were read how; all of them right is **all**."""
    if found["right"] == datasets:
        return "**all**"
    missing = datasets - found.total()
    parts = [f"{found[name]} {name}" for name in OUTCOMES if found[name]]
    return ", ".join(parts + ([f"{missing} not tried"] if missing else []))


def tables() -> dict[str, list[str]]:
    """Return the lines of the tables, by their names."""
    return {
        "nczarr": table(lambda case: not vectors.is_pure(case)),
        "pure": table(vectors.is_pure),
    }


if __name__ == "__main__":
    sys.exit(page_tables.main(PAGE, __doc__, tables))
