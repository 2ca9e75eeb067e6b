"""``nczarr copy --resume``: a copy that was killed goes on, and what is done is not done again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

from nczarr_fsspec.changes import resumption
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_fsspec.stores.writers import DirectoryWriter
from nczarr_xarray.cli.main import main
from nczarr_xarray.export import moving, steps, stored_source
from tests.support.killing import Kill, Target, in_process, on_s3, ours
from tests.support.ncwriter import ramp
from tests.support.s3server import S3Server

#: Chunks of a part at most, in these tests.
PART = 8
MOVED: list[str] = []
RECHUNKED = ["--chunks", "d0=40,d1=3,d2=4", "--compress", "zlib:1"]
TWO_PASSES = [*RECHUNKED, "--memory", "20kB"]
WAYS = {"moved": MOVED, "rechunked": RECHUNKED, "two passes": TWO_PASSES}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A netCDF-4 file of 40 chunks in one variable, one of them all fill values, and more."""
    path = tmp_path_factory.mktemp("resume") / "x.nc"
    shape = (40, 12, 20)
    with netCDF4.Dataset(path, "w") as nc:
        names = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(shape)]
        v = nc.createVariable("v", "f4", names, chunksizes=(1, 12, 20), zlib=True, fill_value=-1)
        v[:] = ramp(shape, "f4")
        v[7] = -1
        nc.createVariable("u", "f8", names[:1])[:] = np.arange(40)
        nc.createVariable("text", str, names[:1])[:] = np.array([f"é{i}" for i in range(40)])
        nc.title = "resumed"
    return path


@contextmanager
def small_parts() -> Iterator[list[str]]:
    """Make parts small, and note each; give the keys of chunks that are put."""
    put: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumption, "NOTE_BYTES", 1)
        patch.setattr(moving, "WINDOW_BYTES", PART * 960)
        patch.setattr(stored_source, "SLAB_BYTES", PART * 1920)
        patch.setattr(steps, "PROGRAM_BYTES", 0)
        patch.setattr(steps, "_COPIES", 0)
        for kind in (DirectoryWriter, FsspecWriter):
            put_of_kind = kind.put

            def noted(self: Any, key: str, data: Any, there: Any = put_of_kind) -> None:
                there(self, key, data)
                if key.startswith("v/") and key[-1].isdecimal():
                    put.append(key)

            patch.setattr(kind, "put", noted)
        yield put


def copy(source: Path, target: Target, *arguments: str) -> list[str]:
    """Copy with ``--resume``; return the chunks of the largest variable that were put."""
    options = [f"-O{key}={_spelled(value)}" for key, value in (target.options or {}).items()]
    with small_parts() as put:
        assert main(["copy", str(source), target.url, "--resume", *options, *arguments]) == 0
    return put


def _spelled(value: Any) -> str:
    return str(value).replace("'", '"') if isinstance(value, dict) else str(value)


def content(folder: Path) -> dict[str, bytes]:
    """All files but the root's document, which has a stamp."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".zgroup")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def left(folder: Path) -> list[Path]:
    """What a writer that died has left."""
    return [path for path in folder.iterdir() if path.name.endswith(".partial")]


def check(source: Path, folder: Path, way: list[str], suffix: str, count: int) -> None:
    """Kill copies at calls of all kinds, and let each be continued."""
    whole = Target(str(folder / f"whole{suffix}"))
    run = in_process(copy, source, whole, *way, kill=Kill())
    assert run.error is None, run.error
    seen = ours(whole)
    spared = 0
    for number in range(count):
        place = folder / f"{number}"
        place.mkdir()
        target = Target(str(place / f"y{suffix}"))
        kill = Kill(1 + number * (run.calls - 1) // max(1, count - 1), after=bool(number % 2))
        killed = in_process(copy, source, target, *way, kill=kill)
        assert killed.error is None, killed.error
        there = ours(target)
        assert there in ("none", seen), killed.killed
        if there == "none":
            begun = {str(p.relative_to(one)) for one in left(place) for p in one.rglob("*")}
            again = copy(source, target, *way)
            if resumption.PLAN in begun:  # (notes are removed just before the end)
                # but for the part that was under way, chunks are not put again
                assert len(begun.intersection(again)) <= PART, killed.killed
            spared += len(run.result) - len(again)
            assert [path.name for path in place.iterdir()] == [f"y{suffix}"]
        assert main(["compare", whole.url, target.url]) == 0
        if not suffix:
            assert content(Path(target.url)) == content(Path(whole.url)), killed.killed
    assert spared > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_killed_and_continued(source: Path, tmp_path: Path, way: str) -> None:
    check(source, tmp_path, WAYS[way], "", 16)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["moved", "two passes"])
def test_killed_while_an_archive_is_written(source: Path, tmp_path: Path, way: str) -> None:
    check(source, tmp_path, WAYS[way], ".zip", 8)


@pytest.mark.slow
def test_killed_while_zarr3_is_written(source: Path, tmp_path: Path) -> None:
    check(source, tmp_path, [*TWO_PASSES, "--format", "Zarr3"], "", 8)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("way", WAYS)
def test_killed_on_s3(source: Path, tmp_path: Path, s3_server: S3Server, way: str) -> None:
    """Readers see that a dataset is not complete; the next copy finds what is done."""
    signed = s3_server.signed()
    options = {
        "key": signed["key"],
        "secret": signed["secret"],
        "client_kwargs": {"endpoint_url": s3_server.endpoint},
    }
    fresh = on_s3(s3_server.private, options)
    whole = fresh()
    run = in_process(copy, source, whole, *WAYS[way], kill=Kill())
    assert run.error is None, run.error
    seen = in_process(ours, whole).result
    for number in range(8):
        target = fresh()
        kill = Kill(1 + number * (run.calls - 1) // 7, after=bool(number % 2))
        in_process(copy, source, target, *WAYS[way], kill=kill)
        there = in_process(ours, target).result
        assert there in ("none", "incomplete", seen)
        if there != seen:
            again = in_process(copy, source, target, *WAYS[way])
            assert again.error is None, again.error
            assert len(again.result) <= len(run.result)
        assert in_process(ours, target).result == seen


# -- what is continued, and what is not ---------------------------------------------------


@pytest.fixture
def cut_off(source: Path, tmp_path: Path) -> Path:
    """The place of a copy that was interrupted after some parts."""
    interrupt(source, tmp_path / "y", "--resume")
    assert not (tmp_path / "y").exists()
    return tmp_path / "y"


def interrupt(source: Path, target: Path, *arguments: str) -> None:
    """Interrupt a copy, as Ctrl-C does, while its third part is written."""
    with small_parts(), pytest.MonkeyPatch.context() as patch:
        run = moving.Mover.run

        def interrupted(self: moving.Mover, window: int, done: Any) -> None:
            if window == 2:
                raise KeyboardInterrupt
            run(self, window, done)

        patch.setattr(moving.Mover, "run", interrupted)
        assert main(["copy", str(source), str(target), *arguments]) == 130


def puts(source: Path, target: Path, *arguments: str) -> int:
    """How many chunks are put by a copy."""
    with small_parts() as put:
        assert main(["copy", str(source), str(target), *arguments]) == 0
    assert main(["compare", str(source), str(target)]) == 0
    assert not [path for path in left(target.parent) if path.name.startswith(f".{target.name}.")]
    return len(put)


def test_an_interrupted_copy_goes_on(source: Path, cut_off: Path) -> None:
    assert len(left(cut_off.parent)) == 1
    assert puts(source, cut_off, "--resume") == 40 - 2 * PART


def test_without_the_option_all_is_done_anew(source: Path, cut_off: Path) -> None:
    assert puts(source, cut_off) == 40


def test_without_the_option_nothing_is_left(source: Path, tmp_path: Path) -> None:
    interrupt(source, tmp_path / "y")
    assert left(tmp_path) == []


@pytest.mark.parametrize("other", [["--compress", "zlib:2"], ["--slice", "d1=0:12"]])
def test_another_copy_begins_anew(source: Path, cut_off: Path, other: list[str]) -> None:
    # (encoded again, a chunk of nothing but fill values is left out)
    assert puts(source, cut_off, "--resume", *other) >= 39


def test_another_state_of_the_source_begins_anew(
    source: Path, tmp_path: Path, cut_off: Path
) -> None:
    changed = tmp_path / "x.nc"
    changed.write_bytes(source.read_bytes())
    interrupt(changed, tmp_path / "z", "--resume")
    with netCDF4.Dataset(changed, "a") as nc:
        nc["v"][0] = 5
    assert puts(changed, tmp_path / "z", "--resume") == 40
    assert puts(changed, cut_off, "--resume") == 40  # another source


def test_a_dataset_is_replaced_when_the_new_one_is_complete(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "y"
    with small_parts():
        assert main(["copy", str(source), str(target), "--var", "u"]) == 0
    before = content(target)
    interrupt(source, target, "--overwrite", "--resume")
    assert content(target) == before
    assert puts(source, target, "--overwrite", "--resume") == 40 - 2 * PART
