"""Exports that are ended by a signal: what is left, and who removes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import recover, to_nczarr
from tests.support.builders.trees import read_tree
from tests.support.faults.killing import sample

#: Runs its arguments as code; a chunk that is written says so and then waits for a signal. A signal
#: that comes before the wait begins ends it, too, which with `signal.pause` it would not.
_WAITING = """
import os, signal, sys
came, noted = os.pipe()
os.set_blocking(noted, False)
signal.set_wakeup_fd(noted)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, which may run these tests, ignores it
from nczarr_xarray.cli.main import main
from nczarr_xarray.export.copy import netcdf
from nczarr_xarray.export.chunk_writer import ChunkWriter
from nczarr_xarray.export.steps import MoveStep

def wait(*args, **options):
    print("writing", flush=True)
    while True:
        os.read(came, 1)

ChunkWriter.write = MoveStep.run = netcdf._write_values = wait
exec(sys.argv[1])
"""


def ended(code: str, number: int) -> int:
    """How a process ends that gets a signal while it writes data."""
    with subprocess.Popen(
        [sys.executable, "-c", _WAITING, code], stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        try:
            return process.wait(timeout=60)
        finally:
            process.kill()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "source"
    to_nczarr(sample(8), source)
    (tmp_path / "out").mkdir()
    return source


@pytest.mark.parametrize("name", ["d", "d.zip", "d.nc"])
@pytest.mark.slow
def test_copy_leaves_nothing(source: Path, name: str) -> None:
    target = source.parent.parent / "out" / name
    code = f"sys.exit(main(['copy', {str(source)!r}, {str(target)!r}]))"
    assert ended(code, signal.SIGTERM) == 128 + signal.SIGTERM
    assert list(target.parent.iterdir()) == []


@pytest.mark.slow
def test_copy_over_something_leaves_what_was_there(source: Path) -> None:
    target = source.parent.parent / "out" / "d"
    to_nczarr(sample(3, 1), target)
    before = read_tree(target)
    code = f"sys.exit(main(['copy', '--overwrite', {str(source)!r}, {str(target)!r}]))"
    assert ended(code, signal.SIGHUP) == 128 + signal.SIGHUP
    assert [target] == list(target.parent.iterdir())
    assert read_tree(target) == before


@pytest.mark.parametrize("name", ["d", "d.zip"])
@pytest.mark.parametrize("by", ["the next writer", "recover"])
@pytest.mark.slow
def test_what_a_program_leaves_is_removed(source: Path, name: str, by: str) -> None:
    """Python itself does nothing when it gets SIGTERM."""
    target = source.parent.parent / "out" / name
    code = (
        "import xarray as xr; from nczarr_xarray import to_nczarr;"
        f"to_nczarr(xr.open_dataset({str(source)!r}, engine='nczarr'), {str(target)!r})"
    )
    assert ended(code, signal.SIGTERM) == -signal.SIGTERM
    assert [path.suffix for path in target.parent.iterdir()] == [".partial"]
    if by == "recover":
        recover(target)
        assert list(target.parent.iterdir()) == []
    else:
        to_nczarr(sample(2), target)
        assert list(target.parent.iterdir()) == [target]
        with xr.open_dataset(target, engine="nczarr") as found:
            np.testing.assert_array_equal(found["a"], sample(2)["a"])


@pytest.mark.slow
def test_what_a_copy_leaves_that_is_killed_is_removed_by_the_next(source: Path) -> None:
    from nczarr_xarray.cli.main import main

    target = source.parent.parent / "out" / "d.nc"
    code = f"sys.exit(main(['copy', {str(source)!r}, {str(target)!r}]))"
    assert ended(code, signal.SIGKILL) == -signal.SIGKILL
    assert [path.suffix for path in target.parent.iterdir()] == [".partial"]
    assert main(["copy", str(source), str(target)]) == 0
    assert list(target.parent.iterdir()) == [target]
