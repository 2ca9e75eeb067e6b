"""How many processors there are: affinity, what Python is told, quotas of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nczarr_xarray.chunks.threads import processors, quota

NONE = sys.maxsize
SLICE = "sys/fs/cgroup/user.slice"
V1 = "sys/fs/cgroup/cpu"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param(None, {}, NONE, id="no control groups"),
        pytest.param("0::/\n", {}, NONE, id="no file"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, NONE, id="no quota"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2, id="container"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, id="half of one"),
        pytest.param("0::/\n", {"sys/fs/cgroup/cpu.max": "210000 100000\n"}, 3, id="rounded up"),
        pytest.param(
            "0::/user.slice/job.scope\n",
            {f"{SLICE}/cpu.max": "400000 100000\n", f"{SLICE}/job.scope/cpu.max": "max 100000\n"},
            4,
            id="of a group above",
        ),
        pytest.param(
            "0::/user.slice/job.scope\n",
            {f"{SLICE}/cpu.max": "400000 100000\n", f"{SLICE}/job.scope/cpu.max": "30000 10000\n"},
            3,
            id="the least of all",
        ),
        pytest.param(
            "0::/seen/from/outside\n",
            {"sys/fs/cgroup/cpu.max": "200000 100000\n"},
            2,
            id="container, the path of its host",
        ),
        pytest.param(
            "5:memory:/\n4:cpu,cpuacct:/docker/1a2b\n0::/\n",
            {f"{V1}/cpu.cfs_quota_us": "150000\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            2,
            id="version 1",
        ),
        pytest.param(
            "4:cpuacct,cpu:/\n",
            {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            NONE,
            id="version 1, no quota",
        ),
        pytest.param(
            "3:cpuset:/\n",
            {f"{V1}/cpu.cfs_quota_us": "100000\n", f"{V1}/cpu.cfs_period_us": "100000\n"},
            NONE,
            id="version 1, another controller",
        ),
        pytest.param(
            "nonsense\n\n0::/../x\n", {"sys/fs/cgroup/cpu.max": "2 0\n"}, NONE, id="nonsense"
        ),
    ],
)
def test_quota(tmp_path: Path, groups: str | None, files: dict[str, str], expected: int) -> None:
    if groups is not None:
        files = {**files, "proc/self/cgroup": groups}
    write(tmp_path, files)
    assert quota(str(tmp_path)) == expected


def test_quota_bounds_the_affinity(tmp_path: Path) -> None:
    if hasattr(os, "process_cpu_count"):
        assert processors(str(tmp_path)) == os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        assert processors(str(tmp_path)) == len(os.sched_getaffinity(0))
    else:
        assert processors(str(tmp_path)) == os.cpu_count()
    limited = tmp_path / "limited"
    write(limited, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"})
    assert processors(str(limited)) == 1


def test_what_python_is_told() -> None:
    code = "from nczarr_xarray.chunks.threads import processors; print(processors())"
    environment = {**os.environ, "PYTHON_CPU_COUNT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == (1 if sys.version_info >= (3, 13) else processors())


def test_files_are_read_in_an_encoding_that_is_stated() -> None:
    code = "from nczarr_xarray.chunks.threads import quota; assert quota('/') > 0"
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    subprocess.run([*command, "-c", code], check=True)
