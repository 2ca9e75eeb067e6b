"""Exports that are killed, on every kind of target: old, new or an error, and the next one works.

`ci/stress_export.py` does this at random, often.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults.killing import Bench, Kill, local, on_s3
from tests.support.servers.s3server import S3Server

pytestmark = pytest.mark.slow  # each kill is an export in a process of its own


def check(bench: Bench, kills: list[Kill]) -> set[str]:
    """Kill, and return what our reader saw."""
    found = set()
    for kill in kills:
        where, seen, complaints = bench.run_case(kill)
        assert not complaints, (bench.kind, bench.name, kill, where, seen)
        if where != "not killed":
            found.add(seen["ours"])
    return found


def spread(bench: Bench, number: int) -> list[Kill]:
    """Calls from the first to the last."""
    calls = bench.whole.calls
    return [
        Kill(1 + i * (calls - 1) // max(1, number - 1), after=bool(i % 2)) for i in range(number)
    ]


@pytest.mark.parametrize(
    ("kind", "name", "seen"),
    [
        ("directory", "new", {"none", "new"}),
        ("directory", "template and regions", {"none", "incomplete", "new"}),
        ("directory", "over with dask", {"old", "new"}),
        ("directory", "append consolidated", {"old", "new"}),
        ("foreign", "different tree", {"old", "new"}),
        ("zip", "variable replaced", {"old", "new"}),
    ],
)
def test_killed_at_a_call(kind: str, name: str, seen: set[str], tmp_path: Path) -> None:
    bench = Bench(name, kind, local(tmp_path, kind))
    assert check(bench, spread(bench, 5)) == seen


def test_killed_while_objects_are_moved(tmp_path: Path) -> None:
    """From the journal on the change is valid; others than our readers find it or an error."""
    bench = Bench("unaligned region", "directory", local(tmp_path, "directory"))
    seen = []
    for call in range(18, 40, 4):
        where, looks, complaints = bench.run_case(Kill(call))
        assert not complaints, (where, looks)
        seen.append((looks["ours"], looks["netCDF-C"], looks["zarr consolidated"]))
    assert ("new", "error", "error") in seen
    assert {ours for ours, *_ in seen} <= {"old", "new"}


@pytest.mark.parametrize("kind", ["directory", "foreign", "zip"])
def test_killed_at_a_random_time(kind: str, tmp_path: Path) -> None:
    bench = Bench("bigger", kind, local(tmp_path, kind), peers=False)
    chance = random.Random(1)
    kills = [Kill(seconds=chance.uniform(0, bench.whole.seconds)) for _ in range(3)]
    assert check(bench, kills) <= {"old", "new"}


@pytest.mark.parametrize("name", ["new", "smaller"])
def test_killed_on_s3(name: str, s3_server: S3Server) -> None:
    signed = s3_server.signed()
    options = {
        "key": signed["key"],
        "secret": signed["secret"],
        "client_kwargs": {"endpoint_url": s3_server.endpoint},
    }
    bench = Bench(name, "s3", on_s3(s3_server.private, options))
    expected = {"none", "incomplete", "new"} if name == "new" else {"old", "new"}
    assert check(bench, spread(bench, 3)) <= expected
