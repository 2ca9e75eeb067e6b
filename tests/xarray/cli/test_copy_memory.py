"""``nczarr copy --memory``: rechunking within bounds, by a plan that is shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.changes.resumption import BETWEEN
from nczarr_xarray.chunks import cache
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export import chunk_writer, steps
from nczarr_xarray.export.copy import plan_copy
from nczarr_xarray.export.copy_layout import CopyLayout
from nczarr_xarray.export.gate import Gated
from nczarr_xarray.export.workers import run_part
from tests.support.copying import copy
from tests.support.marks import slow_but
from tests.support.memory import little_memory
from tests.support.ncwriter import ramp

MB = 1_000_000


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little enough memory for small data: that of the program, and of coding, is not counted."""
    monkeypatch.setattr(steps, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(steps, "_COPIES", 0)


def file(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> Path:
    """A netCDF-4 file with one variable, and some text."""
    with netCDF4.Dataset(path, "w") as nc:
        names = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        nc.createVariable("v", "f4", names, chunksizes=chunks, **options)[:] = ramp(shape, "f4")
        nc.createVariable("text", str, names[:1])[:] = np.array(["é" * i for i in range(shape[0])])
    return path


@pytest.mark.parametrize("target", ["y", "y.zip", "y#mode=zarr"])
@pytest.mark.usefixtures("little")
def test_maps_become_series_in_two_passes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    source = file(tmp_path / "x.nc", (100, 24, 20), (1, 24, 20), zlib=True)
    decoded = []
    read = ChunkReader.read

    def counted(self: ChunkReader, plan: Any, **options: Any) -> np.ndarray:
        values = read(self, plan, **options)
        decoded.append((self._array.path, values.nbytes))
        return values

    monkeypatch.setattr(ChunkReader, "read", counted)
    place = f"file://{tmp_path}/{target}" if "#" in target else tmp_path / target
    room = 20_000
    copy(source, place, "--chunks", "d0=100,d1=2,d2=2", "--memory", 2 * room)
    said = capsys.readouterr().out
    assert "v: 192 kB, two passes: by " in said
    assert "text: " in said
    of_v = [(path, n) for path, n in decoded if path.endswith("v")]
    assert max(n for _, n in of_v) <= room
    assert sum(n for path, n in of_v if BETWEEN not in path) == 192_000  # each chunk once
    assert sum(n for path, n in of_v if BETWEEN in path) == 192_000
    copy(source, tmp_path / "again", "--chunks", "d0=100,d1=2,d2=2")
    assert main(["compare", str(source), str(place)]) == 0
    with open_hierarchy(str(place)) as opened:
        array = opened.hierarchy.root.variables["v"].array
        assert array is not None
        assert array.chunk_shape == (100, 2, 2)
    if target == "y":  # nothing of what was between is left
        assert {p.name for p in (tmp_path / "y").iterdir()} == {
            p.name for p in (tmp_path / "again").iterdir()
        }


@pytest.mark.usefixtures("little")
def test_one_pass_where_that_is_no_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = file(tmp_path / "x.nc", (30, 24), (7, 24), zlib=True)
    copy(source, tmp_path / "y", "--chunks", "d0=10,d1=24", "--memory", "8kB", "--verify")
    said = capsys.readouterr().out
    assert re.search(r"v: 2.88 kB, one pass by 1 part of \d+ × 24$", said, re.MULTILINE)
    copy(source, tmp_path / "z", "--memory", "8kB")
    assert "v: 2.88 kB, chunks are moved as they are stored" in capsys.readouterr().out


def test_too_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = file(tmp_path / "x.nc", (30, 24), (7, 24), zlib=True)
    copy(source, tmp_path / "y", "--memory", "100MB", status=1)  # the chunks would be moved
    assert "/v: has chunks of 672 B" in capsys.readouterr().err
    copy(source, tmp_path / "y", "--chunks", "d0=10", "--memory", "100MB", status=1)
    said = capsys.readouterr().err
    assert "/v: has chunks of 672 B, and in the copy of 960 B; with 100 MB of memory" in said
    assert [p.name for p in tmp_path.iterdir()] == ["x.nc"]
    with pytest.raises(SystemExit):
        main(["copy", str(source), str(tmp_path / "y"), "--memory", "much"])
    assert "'much' is no size" in capsys.readouterr().err
    copy(source, tmp_path / "y.nc", "--memory", "1GB", status=2)
    assert "--memory" in capsys.readouterr().err


def note_threads(monkeypatch: pytest.MonkeyPatch, threads: list[int]) -> None:
    """Note how many threads write, each time."""
    each = Gated.each

    def counted(self: Gated, *arguments: Any, **options: Any) -> int:
        threads.append(options["threads"])
        return each(self, *arguments, **options)

    monkeypatch.setattr(Gated, "each", counted)


@pytest.mark.parametrize("chunks", [None, {"d0": 5}], ids=["moved", "parts"])
def test_a_worker_has_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: dict[str, int] | None
) -> None:
    """There are as many workers as processors."""
    threads: list[int] = []
    note_threads(monkeypatch, threads)
    monkeypatch.setattr(chunk_writer, "processors", lambda: 4)
    with open_hierarchy(file(tmp_path / "x.nc", (200, 24), (10, 24), zlib=True)) as opened:
        task = plan_copy(opened, tmp_path / "y", layout=CopyLayout(chunks))
        (step,) = (one for one in task.steps() if one.item.variable.name == "v")
        step.run(0, lambda _: None)
        run_part(step, 0)
        task.change.abort()
    assert threads == [4, 1]


@pytest.mark.parametrize("chunks", [[], ["--chunks", "d0=10,d1=24"]], ids=["moved", "parts"])
def test_little_is_sent_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: list[str]
) -> None:
    """An object store gets many chunks at a time, but not more than the memory has room for."""
    source = file(tmp_path / "x.nc", (200, 24), (10, 24), zlib=True)
    threads: list[int] = []
    note_threads(monkeypatch, threads)
    monkeypatch.setattr(steps, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(steps, "processors", lambda: 1)
    codec = ["--compress", "zlib:2"] if chunks else []
    place = f"memory://little{tmp_path}"
    copy(source, f"{place}/y", "--var", "v", *chunks, *codec)
    free = max(threads)
    threads.clear()
    copy(source, f"{place}/z", "--var", "v", *chunks, *codec, "--memory", "20kB")
    assert 1 <= max(threads) * 960 * 3 <= 20_000
    assert max(threads) < free
    copy(source, f"{place}/n", "--var", "v", *chunks, *codec, "--memory", "2kB", status=1)


_MEASURED = """
import pathlib, re, sys
from nczarr_xarray.cli.main import main
assert main(["copy", *sys.argv[1:]]) == 0
print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""  # ru_maxrss would begin with that of the process that started this one


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("old", [(1, 1000, 1000), None])
def test_memory_stays_within_the_limit(tmp_path: Path, old: tuple[int, ...] | None) -> None:
    """Of a file of 1.6 GB, chunked as maps or contiguous, the whole process takes 400 MB."""
    shape, limit = (400, 1000, 1000), 400 * MB
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as nc:
        names = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        options: dict[str, Any] = {"chunksizes": old, "zlib": True, "complevel": 1} if old else {}
        v = nc.createVariable("v", "f4", names, **options)
        plane = np.arange(1000, dtype="f4")[:, np.newaxis] * np.ones(1000, "f4")
        for step in range(shape[0]):
            v[step] = plane + step
    arguments = ["--chunks", "d0=400,d1=50,d2=50", "--compress", "zlib:1", "--memory", "400MB"]
    run = subprocess.run(
        [sys.executable, "-c", _MEASURED, tmp_path / "x.nc", tmp_path / "y", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    plan, peak = run.stdout.splitlines()
    assert ("two passes" in plan) is (old is not None)
    assert int(peak) * 1024 <= limit
    sample = ["--sample", "20"]
    assert main(["compare", str(tmp_path / "x.nc"), str(tmp_path / "y"), *sample]) == 0


@pytest.mark.parametrize(
    "place", slow_but(["", "memory://aggregation"], ""), ids=["directory", "objects"]
)
def test_aggregations_are_written_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shape = (48, 500, 500)  # 48 MB
    monkeypatch.setattr(cache, "MOST_BYTES", 0)
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as nc:
        names = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        nc.Conventions = "CF-1.13"
        v = nc.createVariable("v", "f4", names, chunksizes=(1, 500, 500), zlib=True, complevel=1)
        for step in range(shape[0]):
            v[step] = step
    target = f"{place}{tmp_path}/y.nca"
    with little_memory(20 * MB):
        copy(tmp_path / "x.nc", target, "--max-object-size", "1MB")
    assert main(["compare", str(tmp_path / "x.nc"), target]) == 0
