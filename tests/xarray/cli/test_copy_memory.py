"""``nczarr copy --memory``: rechunking within bounds, by a plan that is shown."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.changes.resumption import BETWEEN
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_xarray.chunks import cache
from nczarr_xarray.chunks.engine import ChunkReader
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.fragments import PartsRead
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export import chunk_writer, steps
from nczarr_xarray.export.chunk_writer import Gated
from nczarr_xarray.export.copy.zarr2 import plan_copy
from nczarr_xarray.export.options import CopyOptions
from nczarr_xarray.export.parallel import run_part
from nczarr_xarray.formats.zarr3.array import ZarrReader
from tests.support.builders.copying import copy
from tests.support.builders.ncwriter import ramp
from tests.support.faults.memory import little_memory
from tests.support.marks import each_once, slow_but
from tests.support.servers.realservers import range_server

MB = 1_000_000


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little enough memory for small data: that of the program, and of coding, is not counted."""
    monkeypatch.setattr(steps, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(steps, "COPIES", 0)


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
        decoded.append((self.array.path, values.nbytes))
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
    assert "/v: cannot be copied with" in capsys.readouterr().err
    copy(source, tmp_path / "y", "--chunks", "d0=10", "--memory", "100MB", status=1)
    said = capsys.readouterr().err
    assert "/v: cannot be copied with 100 MB of memory" in said
    assert [p.name for p in tmp_path.iterdir()] == ["x.nc"]
    with pytest.raises(SystemExit):
        main(["copy", str(source), str(tmp_path / "y"), "--memory", "much"])
    assert "'much' is no size" in capsys.readouterr().err


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
        task = plan_copy(opened, tmp_path / "y", copying=CopyOptions(chunks))
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
    monkeypatch.setattr(
        MappingWriter, "parallel", 64
    )  # as object stores, which do not answer at once
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
import os, pathlib, re, sys
from nczarr_xarray.cli.main import main
from nczarr_xarray.export import parallel

def tell():
    status = pathlib.Path("/proc/self/status").read_text()
    with open(sys.argv[1], "a") as out:
        print(os.getpid(), re.search(r"VmHWM:\\s*(\\d+) kB", status)[1], file=out)

def measured(step, part, out=sys.argv[1], run=parallel.run_part, tell=tell):
    put = run(step, part)
    sys.argv[1:] = [out]  # which those of a worker are not
    tell()
    return put

if __name__ == "__main__":
    parallel.run_part = measured
    assert main(["copy", *sys.argv[2:]]) == 0
    tell()
"""  # ru_maxrss would begin with that of the process that started this one


def peaks(tmp_path: Path, *arguments: object) -> tuple[list[int], str]:
    """Copy; return the most memory that each process has had, in bytes, and what was printed."""
    script, told = tmp_path / "measured.py", tmp_path / "told"
    script.write_text(_MEASURED)
    run = subprocess.run(
        [sys.executable, script, told, *map(str, arguments)],
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, int] = {}
    for line in told.read_text().splitlines():
        process, peak = line.split()
        found[process] = max(found.get(process, 0), int(peak) * 1024)
    return [*found.values()], run.stdout


def large_file(path: Path, steps: int, old: tuple[int, ...] | None, *, noise: bool = False) -> Path:
    """A netCDF-4 file of 4 MB for each step; codecs cannot make noise smaller."""
    shape = (steps, 1000, 1000)
    with netCDF4.Dataset(path, "w") as nc:
        names = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        options: dict[str, Any] = {"chunksizes": old, "zlib": True, "complevel": 1} if old else {}
        v = nc.createVariable("v", "f4", names, **options)
        plane = np.arange(1000, dtype="f4")[:, np.newaxis] * np.ones(1000, "f4")
        if noise:
            plane = np.random.default_rng(0).random((1000, 1000), "f4")
        for step in range(shape[0]):
            v[step] = plane + step
    return path


SERIES = ["--chunks", "d0=400,d1=50,d2=50", "--compress", "zlib:1"]
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("old", [(1, 1000, 1000), None])
def test_memory_stays_within_the_limit(tmp_path: Path, old: tuple[int, ...] | None) -> None:
    """Of a file of 1.6 GB, chunked as maps or contiguous, the whole process takes 400 MB."""
    source = large_file(tmp_path / "x.nc", 400, old)
    (peak,), plan = peaks(tmp_path, source, tmp_path / "y", *SERIES, "--memory", "400MB")
    assert ("two passes" in plan) is (old is not None)
    assert peak <= 400 * MB
    assert main(["compare", str(source), str(tmp_path / "y"), "--sample", "20"]) == 0


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("chunks", [SERIES, ["--compress", "zlib:2"]], ids=["parts", "steps"])
def test_workers_share_the_memory(tmp_path: Path, chunks: list[str]) -> None:
    pytest.importorskip("distributed")
    source = large_file(tmp_path / "x.nc", 200, (1, 1000, 1000))
    target = tmp_path / "y"
    found, _ = peaks(tmp_path, source, target, *chunks, "--memory", "900MB", "--workers", 2)
    assert len(found) == 3
    assert sum(found) <= 900 * MB
    assert main(["compare", str(source), str(target), "--sample", "20"]) == 0


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("kind", ["x.nc", "x.nczarr"])
def test_what_comes_from_far_is_counted(tmp_path: Path, kind: str) -> None:
    """Of chunks that a server sends, too."""
    file = large_file(tmp_path / "x.nc", 100, (1, 1000, 1000), noise=True)
    if kind != file.name:
        copy(file, tmp_path / kind)
    with range_server(tmp_path) as server:
        chunks = ["--chunks", "d0=100,d1=50,d2=100", "--compress", "none"]
        url, target = f"{server.url}/{kind}", tmp_path / "y"
        (peak,), _ = peaks(tmp_path, url, target, *chunks, "--memory", "450MB")
    assert peak <= 450 * MB
    assert main(["compare", str(file), str(target), "--sample", "20"]) == 0


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("model", ["NETCDF4", "NETCDF3_64BIT_DATA"])
def test_netcdf_files_are_written_within_the_limit(tmp_path: Path, model: str) -> None:
    source = large_file(tmp_path / "x.nc", 150, (1, 1000, 1000))
    target = tmp_path / "y.nc"
    codecs = ["--compress", "zlib:2"] if model == "NETCDF4" else []  # or they are moved
    options = ["--format", model, "--memory", "380MB", *codecs]
    (peak,), plan = peaks(tmp_path, source, target, *options)
    assert "v: 600 MB, one pass by" in plan
    assert peak <= 380 * MB
    assert main(["compare", str(source), str(target), "--sample", "20"]) == 0


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_shards_are_read_a_few_chunks_at_a_time(tmp_path: Path, far: bool) -> None:
    """Zarr-python would have ten of them in memory, each twice."""
    file = large_file(tmp_path / "x.nc", 100, (1, 1000, 1000), noise=True)
    shards = ["--format", "Zarr3", "--shards", "d0=10", "--consolidated"]
    copy(file, tmp_path / "x.zarr", *shards)
    chunks = ["--chunks", "d0=100,d1=50,d2=100", "--compress", "none"]
    with range_server(tmp_path) as server:
        source = f"{server.url}/x.zarr" if far else tmp_path / "x.zarr"
        (peak,), _ = peaks(tmp_path, source, tmp_path / "y", *chunks, "--memory", "400MB")
    assert peak <= 400 * MB
    assert main(["compare", str(file), str(tmp_path / "y"), "--sample", "20"]) == 0


@pytest.mark.slow
@needs_proc
def test_fragments_that_come_from_far_are_counted(tmp_path: Path) -> None:
    file = large_file(tmp_path / "x.nc", 100, (1, 1000, 1000), noise=True)
    copy(file, tmp_path / "m.nca", "--max-object-size", "5MB")
    with range_server(tmp_path) as server:
        chunks = ["--chunks", "d0=100,d1=50,d2=100", "--compress", "none"]
        url, target = f"{server.url}/m.nca", tmp_path / "y"
        (peak,), plan = peaks(tmp_path, url, target, *chunks, "--memory", "450MB")
    assert "v: 400 MB" in plan
    assert peak <= 450 * MB
    assert main(["compare", str(tmp_path / "m.nca"), str(target), "--sample", "20"]) == 0


@pytest.mark.parametrize(
    ("derived", "shards"), each_once((False, True), ([], ["--shards", "d0=20"]))
)
@pytest.mark.usefixtures("little")
def test_zarr_3_is_read_in_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: list[str], derived: bool
) -> None:
    """Without a limit a part is one read of zarr-python, whatever it holds in memory for it."""
    source = file(tmp_path / "x.nc", (200, 24), (10, 24), zlib=True)
    copy(source, tmp_path / "z.zarr", "--var", "v", "--format", "Zarr3", *shards)
    read = ZarrReader.read
    sizes: list[int] = []

    def counted(self: ZarrReader, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        values = read(self, key, points=points)
        sizes.append(values.nbytes)
        return values

    monkeypatch.setattr(ZarrReader, "read", counted)
    options = ["--chunks", "d0=200", *(["--slice", "d0=5:195"] if derived else [])]
    copy(tmp_path / "z.zarr", tmp_path / "all", *options)
    whole, least = max(sizes), 4 * (4 if derived else 1) * 960
    for limit in (80_000, 160_000):
        sizes.clear()
        target = tmp_path / f"y{limit}"
        copy(tmp_path / "z.zarr", target, *options, "--memory", limit)
        assert max(sizes) < whole
        assert max(sizes) * least <= max(limit // 4, least) * 960
        assert main(["compare", str(tmp_path / "all"), str(target)]) == 0


@pytest.mark.parametrize("kind", slow_but(["files", "trees"], "files"))
@pytest.mark.usefixtures("little")
def test_few_fragments_come_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of a remote aggregation, as many as the memory has room for, whatever they are."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for step in range(20):
        path = folder / f"{step:02}.nc"
        with netCDF4.Dataset(path, "w") as nc:
            nc.createDimension("t", 1)
            nc.createDimension("x", 30_000)
            nc.createVariable("t", "f8", ["t"])[:] = step
            v = nc.createVariable("v", "f4", ["t", "x"], chunksizes=(1, 30_000), zlib=True)
            v[:] = np.random.default_rng(step).random((1, 30_000), "f4")
        if kind == "trees":
            copy(path, folder / f"{step:02}.nczarr", "--consolidated")
            path.unlink()
    parts = sorted(map(str, folder.iterdir()))
    assert main(["aggregate", "-o", str(tmp_path / "m.nca"), "--relative", *parts]) == 0
    under_way, most = [0], [0]

    def begin() -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])

    of_file, of_tree = PartsRead.read_remote, PartsRead.read_part

    async def on_loop(self: PartsRead, *arguments: Any, **options: Any) -> bool:
        begin()
        try:
            await asyncio.sleep(0)  # others begin
            return await of_file(self, *arguments, **options)
        finally:
            under_way[0] -= 1

    def in_thread(self: PartsRead, *arguments: Any, **options: Any) -> None:
        begin()
        try:
            of_tree(self, *arguments, **options)
        finally:
            under_way[0] -= 1

    monkeypatch.setattr(PartsRead, "read_remote", on_loop)
    monkeypatch.setattr(PartsRead, "read_part", in_thread)
    chunks = ["--chunks", "t=20,x=10000", "--var", "v"]
    with range_server(tmp_path) as server:
        copy(f"{server.url}/m.nca", tmp_path / "all", *chunks)
        free, most[0] = most[0], 0
        copy(f"{server.url}/m.nca", tmp_path / "y", *chunks, "--memory", "7MB")
    assert free > most[0]
    assert 1 <= most[0] <= 7_000_000 // 4 // 120_000
    assert main(["compare", str(tmp_path / "all"), str(tmp_path / "y")]) == 0


def test_little_comes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remote store is asked for fewer chunks at a time where there is little memory."""
    source = file(tmp_path / "x.nc", (200, 24), (10, 24), zlib=True)
    copy(source, tmp_path / "y", "--var", "v")
    monkeypatch.setattr(steps, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(steps, "COPIES", 0)
    asked = [0]
    most: list[int] = []
    get = FsspecStore.get

    async def counted(self: FsspecStore, key: str, *args: Any, **options: Any) -> bytes | None:
        asked[0] += 1
        most.append(asked[0])
        try:
            await asyncio.sleep(0)  # others begin
            return await get(self, key, *args, **options)
        finally:
            asked[0] -= 1

    monkeypatch.setattr(FsspecStore, "get", counted)
    with range_server(tmp_path) as server:
        for options, wanted in (([], 20), (["--memory", "60kB"], 60_000 // 4 // 960)):
            most.clear()
            copy(f"{server.url}/y", tmp_path / f"z{wanted}", "--chunks", "d0=200", *options)
            assert max(most) == wanted + 1  # with the root, which tells of changes


def test_netcdf_files_by_small_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = file(tmp_path / "x.nc", (200, 24), (10, 24), zlib=True)
    copy(source, tmp_path / "y.nc", "--memory", "100MB", status=1)
    assert "its chunks of 960 B, and chunks of" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "PROGRAM_BYTES", 0)
        patch.setattr(steps, "COPIES", 0)
        options = "--var", "v", "--memory", "8kB", "--compress", "zlib:5", "--verify"
        copy(source, tmp_path / "y.nc", *options)
    assert "v: 19.2 kB, one pass by 5 parts of 40 × 24" in capsys.readouterr().out
    copy(source, tmp_path / "z.nc", "--resume", status=2)
    assert "--resume: not for netCDF-4: a netCDF file is of no use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "place", slow_but(["", "memory://aggregation"], ""), ids=["directory", "objects"]
)
@pytest.mark.slow
def test_aggregations_are_written_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shape = (48, 500, 500)  # 48 MB
    monkeypatch.setattr(cache.CACHE, "most", 0)
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
