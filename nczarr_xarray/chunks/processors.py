"""The number of processors that this process may use, and so of threads that are useful."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath


def processors(root: str = "/") -> int:
    """Return how many processors this process may use.

    These are the processors of its affinity (from Python 3.13 on, ``PYTHON_CPU_COUNT`` comes
    first), but no more than the quota of its control groups. A container may have the time of two
    processors on a machine of 64: there, 64 threads would use that time up at once and then stop.
    The files of the system are below `root`.
    """
    count: int | None
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return min(count or 1, quota(root))


@cache
def quota(root: str) -> int:
    """Return the processor limit of the control groups, rounded up as joblib and dask do."""
    least = sys.maxsize
    try:
        lines = Path(root, "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):  # not Linux, say
        return least
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if not controllers:  # version 2
            folder, names = "", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            folder, names = "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # each group has a quota; a container sees its own as the root, whatever the path says
        path = PurePosixPath(group.lstrip("/"))
        for place in (path, *path.parents):
            files = [Path(root, "sys/fs/cgroup", folder, place, name) for name in names]
            with suppress(OSError, ValueError):  # no such file, or "max"
                quota, period = map(
                    int, " ".join(file.read_text("utf-8") for file in files).split()
                )
                if quota > 0 and period > 0:
                    least = min(least, -(-quota // period))
    return least
