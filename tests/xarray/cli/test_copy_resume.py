"""``nczarr copy --resume``: a copy that was killed goes on, and what is done is not done again."""

from __future__ import annotations

import errno
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_fsspec.changes import journal, recovery, resumption
from nczarr_fsspec.changes.create import NewObjects
from nczarr_fsspec.changes.leftovers import partial_path
from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.ownership import Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export import contents, steps, write_target, write_task
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.copy.selection import Selection
from nczarr_xarray.export.options import CopyOptions
from nczarr_xarray.formats.nczarr import emit
from tests.support.builders.ncwriter import ramp
from tests.support.faults.killing import Kill, Run, Target, in_process, on_s3, ours
from tests.support.servers.s3server import S3Server

#: Chunks of a part at most, in these tests.
PART = 8
MOVED: list[str] = []
RECHUNKED = ["--chunks", "d0=40,d1=3,d2=4", "--compress", "zlib:1"]
RECHUNKED_CHUNKS = 20
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
        patch.setattr(steps, "WINDOW_BYTES", PART * 960)
        patch.setattr(contents, "SLAB_BYTES", PART * 1920)
        patch.setattr(steps, "PROGRAM_BYTES", 0)
        patch.setattr(steps, "COPIES", 0)
        # (another kind puts a range as it puts anything else)
        for kind, name in (
            (DirectoryWriter, "put"), (DirectoryWriter, "put_range"), (MappingWriter, "put")
        ):  # fmt: skip
            put_of_kind = getattr(kind, name)

            def noted(
                self: Any, key: str, data: Any, there: Any = put_of_kind, **options: Any
            ) -> None:
                there(self, key, data, **options)
                if key.startswith("v/") and key[-1].isdecimal():
                    put.append(key)

            patch.setattr(kind, name, noted)
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
    """All files but the root's document, which has a stamp, and what no reader looks at."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".zgroup")
    files = (path for path in files if journal.PRIVATE not in path.parts)
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
            if resumption.PLAN in begun:
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


class OnS3(NamedTuple):
    """A copy to S3 that was not killed.

    Attributes
    ----------
    way
        Its options.
    fresh
        Returns another target.
    run
        What became of it.
    seen
        What readers find.
    """

    way: list[str]
    fresh: Callable[[], Target]
    run: Run
    seen: Any


@pytest.fixture(scope="module", params=WAYS)
def whole_on_s3(request: pytest.FixtureRequest, source: Path, s3_server: S3Server) -> OnS3:
    signed = s3_server.signed()
    options = {
        "key": signed["key"],
        "secret": signed["secret"],
        "client_kwargs": {"endpoint_url": s3_server.endpoint},
    }
    way, fresh = WAYS[request.param], on_s3(s3_server.private, options)
    whole = fresh()
    run = in_process(copy, source, whole, *way, kill=Kill())
    assert run.error is None, run.error
    return OnS3(way, fresh, run, in_process(ours, whole).result)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("number", range(8))
def test_killed_on_s3(source: Path, whole_on_s3: OnS3, number: int) -> None:
    """Readers see that a dataset is not complete; the next copy finds what is done."""
    way, fresh, run, seen = whole_on_s3
    target = fresh()
    kill = Kill(1 + number * (run.calls - 1) // 7, after=bool(number % 2))
    in_process(copy, source, target, *way, kill=kill)
    there = in_process(ours, target).result
    assert there in ("none", "incomplete", seen)
    if there != seen:
        again = in_process(copy, source, target, *way)
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


def interrupt(source: Path | str, target: Path | str, *arguments: str, note_bytes: int = 1) -> None:
    """Interrupt a copy, as Ctrl-C does, while the third part of a variable is written."""
    with small_parts(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumption, "NOTE_BYTES", note_bytes)
        for kind in (steps.MoveStep, steps.PartsStep, steps.TwoPassStep):
            patch.setattr(kind, "run", _interrupted(kind.run))
        assert main(["copy", str(source), str(target), *arguments]) == 130


def _interrupted(run: Any) -> Any:
    def interrupted(self: steps.Step, part: int, done: Any) -> int:
        if part == 2:
            raise KeyboardInterrupt
        put: int = run(self, part, done)
        return put

    return interrupted


def puts(source: Path | str, target: Path | str, *arguments: str) -> int:
    """How many chunks are put by a copy."""
    with small_parts() as put:
        assert main(["copy", str(source), str(target), *arguments]) == 0
    assert main(["compare", str(source), str(target)]) == 0
    if isinstance(target, Path):
        assert not [p for p in left(target.parent) if p.name.startswith(f".{target.name}.")]
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


# -- whose work it is ----------------------------------------------------------------------


def in_memory(tmp_path: Path) -> str:
    return f"memory://resume{tmp_path}/y"


def keys_of(url: str) -> list[str]:
    return FsspecWriter(fsspec.filesystem("memory"), url.removeprefix("memory:/")).keys_below("")


@pytest.mark.parametrize("way", ["moved", "two passes"])
def test_what_is_removed_takes_its_notes_along(source: Path, tmp_path: Path, way: str) -> None:
    """Where a copy grows in its place, and another one without the option is interrupted."""
    url = in_memory(tmp_path)
    interrupt(source, url, "--resume", *WAYS[way])
    assert resumption.PLAN in keys_of(url)
    interrupt(source, url, *WAYS[way])
    assert keys_of(url) == []
    assert puts(source, url, "--resume", *WAYS[way]) == (40 if way == "moved" else RECHUNKED_CHUNKS)
    assert not [key for key in keys_of(url) if key.startswith(journal.PRIVATE)]


@pytest.mark.parametrize(
    ("way", "rest"),
    [(MOVED, 40 - 2 * PART), (TWO_PASSES, 15), ([*TWO_PASSES, "--format", "Zarr3"], 15)],
)
def test_work_in_an_object_store_goes_on(
    source: Path, tmp_path: Path, way: list[str], rest: int
) -> None:
    url = in_memory(tmp_path)
    interrupt(source, url, "--resume", *way)
    assert puts(source, url, "--resume", *way) == rest
    assert not [key for key in keys_of(url) if key.startswith(journal.PRIVATE)]


def test_work_of_an_owner_that_may_live_is_not_continued(source: Path, tmp_path: Path) -> None:
    """After a start of the machine, say: what was noted need not be there in full."""
    url = in_memory(tmp_path)
    interrupt(source, url, "--resume")
    store = FsspecWriter(fsspec.filesystem("memory"), url.removeprefix("memory:/"))
    mark = recovery.pending_in(store)
    assert mark is not None
    owner = replace(mark.owner, system="another")
    store.put(journal.INCOMPLETE, replace(mark, owner=owner).dump())
    store.put("v/0.0.0", b"")
    assert puts(source, url, "--resume") == 40


def test_what_another_writer_has_begun_is_not_removed(source: Path, tmp_path: Path) -> None:
    store = FsspecWriter(fsspec.filesystem("memory"), f"/begun{tmp_path}")
    ours = NewObjects.begin(store)
    recovery.recover(store)
    theirs = NewObjects.begin(store)
    theirs.staged.put("v/.zarray", b"{}")
    ours.abort()
    assert "v/.zarray" in store.keys_below("")
    theirs.commit()
    theirs.abort()  # it is valid
    assert "v/.zarray" in store.keys_below("")


def test_a_conflict_takes_no_work_away(source: Path, cut_off: Path) -> None:
    owner = replace(Owner.here(), pid=os.getppid(), started="")
    ours = cut_off.with_name(os.path.basename(partial_path(str(cut_off))))
    other = ours.with_name(ours.name.replace(Owner.here().identity, owner.identity))
    other.mkdir()
    assert main(["copy", str(source), str(cut_off), "--resume"]) == 1
    other.rmdir()
    assert puts(source, cut_off, "--resume") == 40 - 2 * PART


def test_an_interrupt_while_it_is_planned_takes_no_work_away(
    source: Path, cut_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for module, name in (
        (write_task, "check_clashes"),
        (write_task, "flows_of"),
        (write_task, "plan_step"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            assert main(["copy", str(source), str(cut_off), "--resume"]) == 130
    assert puts(source, cut_off, "--resume") == 40 - 2 * PART


def test_a_copy_of_which_nothing_is_done_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StoreError("v", "is out of reach")

    monkeypatch.setattr(steps.MoveStep, "run", fails)
    arguments = ["--resume", "--var", "v"]
    assert main(["copy", str(source), str(tmp_path / "y"), *arguments]) == 1
    assert main(["copy", str(source), str(tmp_path / "y.zip"), *arguments]) == 1
    assert [*tmp_path.iterdir()] == []
    assert main(["copy", str(source), in_memory(tmp_path), *arguments]) == 1
    assert keys_of(in_memory(tmp_path)) == []


# -- archives ------------------------------------------------------------------------------


def test_an_archive_that_could_not_be_packed_is_packed_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "y.zip"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, small_parts():
        patch.setattr(write_target, "pack", full)
        assert main(["copy", str(source), str(target), "--resume"]) == 1
    assert puts(source, target, "--resume") == 0
    with zipfile.ZipFile(target) as archive:
        assert not [name for name in archive.namelist() if journal.PRIVATE in name]


def test_an_archive_far_away_leaves_nothing_here(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would find it: the copy begins anew."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = f"{in_memory(tmp_path)}.zip"
    interrupt(source, url, "--resume")
    assert [*tmp_path.iterdir()] == []
    assert puts(source, url, "--resume") == 40


# -- two passes ----------------------------------------------------------------------------


def test_the_first_pass_is_not_done_again(source: Path, tmp_path: Path) -> None:
    between: list[str] = []
    first_pass = steps.TwoPassStep.first_pass

    def counted(self: steps.TwoPassStep) -> None:
        between.append(self.item.variable.path)
        first_pass(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps.TwoPassStep, "first_pass", counted)
        interrupt(source, tmp_path / "y", "--resume", *TWO_PASSES, note_bytes=1 << 26)
        again = puts(source, tmp_path / "y", "--resume", *TWO_PASSES)
    assert again == RECHUNKED_CHUNKS - 5  # those of the second part
    assert between == ["/v"]


def test_of_the_first_pass_all_bytes_are_counted(source: Path, tmp_path: Path) -> None:
    """Though it is one part: what it wrote is noted before the second one begins."""
    noted: list[tuple[int, int]] = []

    def note(_: Any, part: int, nbytes: int) -> None:
        noted.append((part, nbytes))

    with pytest.MonkeyPatch.context() as patch, small_parts():
        patch.setattr(resumption.Notes, "note", note)
        arguments = ["--resume", "--var", "v", *TWO_PASSES]
        assert main(["copy", str(source), str(tmp_path / "y"), *arguments]) == 0
    whole = 40 * 12 * 20 * 4
    assert noted[0] == (0, whole)
    assert 0 < sum(nbytes for _, nbytes in noted[1:]) <= whole


# -- what tells one copy from another --------------------------------------------------------


def state(target: object, **options: Any) -> str | None:
    with open_hierarchy(str(target), **options) as opened:
        return opened.state()


@pytest.mark.parametrize("kind", ["NCZarr", "Zarr2", "Zarr3"])
def test_each_state_of_a_local_tree_is_another(source: Path, tmp_path: Path, kind: str) -> None:
    """Also if another program replaces a chunk, and nothing else."""
    tree = tmp_path / "x"
    assert main(["copy", str(source), str(tree), "--format", kind, "--chunks", "d0=1"]) == 0
    before = state(tree)
    assert before == state(tree)
    interrupt(tree, tmp_path / "y", "--resume", *RECHUNKED)
    array = zarr.open_array(tree, path="v", mode="r+")
    array[0] = 5
    assert before != state(tree)
    assert puts(tree, tmp_path / "y", "--resume", *RECHUNKED) == RECHUNKED_CHUNKS


def test_states_of_a_tree_far_away(source: Path, tmp_path: Path) -> None:
    url = in_memory(tmp_path)
    assert main(["copy", str(source), url]) == 0
    before = state(url)
    assert before is not None
    xr.Dataset({"u": ("d0", np.zeros(1))}).nczarr.to_nczarr(url, region={"d0": slice(0, 1)})
    assert state(url) not in (before, None)
    store = FsspecWriter(fsspec.filesystem("memory"), url.removeprefix("memory:/"))
    document = store.reader().get_many([journal.ROOT])[0]
    assert isinstance(document, bytes)
    store.put(journal.ROOT, document.rstrip() + b"\n")  # of another writer
    assert state(url) is None
    assert main(["copy", str(source), f"{url}3", "--format", "Zarr3"]) == 0
    assert state(f"{url}3") is None


def test_a_source_of_which_nothing_tells_the_state_is_copied_anew(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = in_memory(tmp_path)
    assert main(["copy", str(source), url, "--format", "Zarr3"]) == 0
    interrupt(url, tmp_path / "y", "--resume", *RECHUNKED)
    assert "it cannot be known whether it has changed" in capsys.readouterr().err
    assert left(tmp_path) == []


def test_masters_do_not_tell_the_state_of_what_they_name(source: Path, tmp_path: Path) -> None:
    data = xr.Dataset({"v": ("t", np.arange(400.0))}, {"t": np.arange(400)})
    master, sliced = tmp_path / "m.nca", Selection(slices={"t": slice(0, 7)})
    data.nczarr.to_cfa(str(master), max_object_size=1000)
    assert state(master) is None
    with open_hierarchy(str(master)) as opened:
        assert sliced.of(opened).state() is None
    references = tmp_path / "x.json"
    assert main(["refs", str(source), str(references)]) == 0
    assert state(references) is None
    assert state(source) is not None


def test_how_the_source_is_opened_is_part_of_the_work(source: Path) -> None:
    def work(**opening: Any) -> Resumption | None:
        options = CopyOptions(resume=True)
        request = CopyRequest(
            str(source),
            "y",
            "NCZarr",
            opening,
            Selection(),
            target_options=None,
            overwrite=False,
            shown=False,
            tell=print,
            options=options,
        )
        with open_hierarchy(str(source)) as opened:
            return request.resumption(opened)

    assert work() is not None
    assert work() == work()
    others = [work(storage_options={"endpoint_url": "x"}), work(replace={"a": "b"})]
    assert len({work(), *others}) == 3


def test_what_is_written_is_part_of_the_work(
    source: Path, cut_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codecs, say, that were not installed when the copy was begun."""
    documents = emit.documents

    def others(*arguments: Any) -> Any:
        found = documents(*arguments)
        return {key: data.replace(b'"level": 4', b'"level":  4') for key, data in found.items()}

    monkeypatch.setattr(write_task, "documents", others)
    assert puts(source, cut_off, "--resume") == 40


# -- notes ---------------------------------------------------------------------------------


def test_notes_of_many_parts() -> None:
    store, work = MappingWriter({}), Resumption.of("work")
    notes = resumption.Notes(store, work)
    parts = [*range(3), 5, *range(8, 300, 2), *range(1000, 1100)]
    for part in parts:
        notes.note(part, 1)
    assert not any(notes.is_done(part) for part in parts)  # before
    notes.put()
    again = resumption.Notes(store, work)
    assert [part for part in range(1200) if again.is_done(part)] == parts
    assert not resumption.Notes(store, Resumption.of("other")).is_done(0)
    assert not resumption.Notes(store, None).is_done(0)
