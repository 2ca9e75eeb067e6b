"""Exports that fail, or meet others: what was there stays, and the next attempt succeeds."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.changes.journal import INCOMPLETE, PRIVATE, Incomplete
from nczarr_fsspec.destination import Destination
from nczarr_fsspec.errors import ConflictError, DatasetExistsError, ExportError, StoreError
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.ownership import AT_WORK, Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_fsspec.transport import policy
from nczarr_xarray import recover, to_nczarr
from nczarr_xarray.dataset.open import find_destination
from nczarr_xarray.export import write_target
from nczarr_xarray.export.write_target import begin_new
from tests.support.faults.disks import tiny_disk
from tests.support.faults.killing import CHUNKS, SCENARIOS, Target, in_process, ours, sample
from tests.support.servers.s3proxy import proxy_to
from tests.support.servers.s3server import S3Server


def snapshot(target: Target) -> Any:
    return ours(target)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def private(folder: Path) -> set[str]:
    return {name for name in files(folder) if ".nczarr" in name or ".partial" in name}


def noise(rows: int) -> xr.Dataset:
    """Data that no codec makes smaller."""
    data = np.random.default_rng(1).integers(1, 2**31, (rows, 1000), dtype="i4")
    return xr.Dataset({"a": (("t", "y"), data)}, attrs={"title": "noise"})


# -- disks ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d", "d.zip"])
@pytest.mark.parametrize("mode", ["w", "a"])
def test_full_disk(name: str, mode: str, tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=1M") as disk:
        target = Target(str(disk / name))
        target.write(sample(5), encoding=CHUNKS)
        before = snapshot(target)
        big = noise(400).rename(a="a" if mode == "w" else "c", t="u")
        with pytest.raises(StoreError, match="No space left on device") as caught:
            target.write(big, mode)
        assert str(disk) in caught.value.object
        assert snapshot(target) == before
        assert private(disk) == set()
        target.write(noise(20).rename(a="c", t="u"), mode)
        assert snapshot(target)["/"]["c"][1][1] == (20, 1000)


def test_full_disk_while_nothing_was_there(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=1M") as disk:
        for name in ("d", "d.zip"):
            target = Target(str(disk / name))
            with pytest.raises(StoreError, match="No space left on device"):
                target.write(noise(400))
            assert private(disk) == set()
            assert not (disk / name).exists()
            target.write(noise(20))
            assert isinstance(snapshot(target), dict)


def _unprivileged(target: Target, mode: str, elsewhere: Target) -> None:
    for each in ("w", mode):  # imports what it needs while it may
        elsewhere.write(sample(3, 1), each, encoding=CHUNKS)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    target.write(sample(3, 1), mode, encoding=CHUNKS)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may setuid")
@pytest.mark.parametrize("name", ["d", "d.zip"])
@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.slow
def test_permission_denied(
    name: str, mode: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    target = Target(str(tmp_path / name))
    target.write(sample(5), encoding=CHUNKS)
    before, there = snapshot(target), files(tmp_path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    run = in_process(_unprivileged, target, mode, Target(str(elsewhere / name)))
    assert run.error is not None
    assert run.error.startswith("StoreError: ")
    assert str(tmp_path) in run.error
    assert "Permission denied" in run.error
    assert snapshot(target) == before
    assert files(tmp_path) == there


def test_a_template_that_was_put_into_place_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no dataset that has to stay until another one is complete."""
    target, whole = Target(f"memory://template{tmp_path}/d"), sample(8, 1)
    lazy = whole.assign(a=whole["a"].chunk(t=4, x=-1))

    def fail(*_: Any) -> None:
        raise StoreError("d", "is out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(MappingWriter, "move", fail)  # the root's document is there, as a cover
        with pytest.raises(StoreError, match="is out of reach"):
            target.write(lazy, encoding=CHUNKS, compute=False)
    target.write(lazy, "w", encoding=CHUNKS, compute=False)
    for first in (0, 4):
        part = whole[["a"]].isel(t=slice(first, first + 4)).drop_vars("t")
        target.write(part, region={"t": slice(first, first + 4)})
    np.testing.assert_array_equal(rows_of(target), whole["a"].values)


# -- S3 ------------------------------------------------------------------------


def s3_target(server: S3Server, name: str, endpoint: str | None = None) -> Target:
    options = {
        "key": server.access_key,
        "secret": server.secret_key,
        "client_kwargs": {"endpoint_url": endpoint or server.endpoint},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    return Target(f"s3://{server.private}/faults/{name}", options)


def _impatient(change: Callable[[Target], None], target: Target) -> None:
    policy.FIRST_WAIT = 0.0  # of this process, which ends with it
    change(target)


@pytest.mark.parametrize(
    ("name", "how"),
    [("new", 503), ("new", "cut"), ("smaller", 403), ("smaller", "cut"), ("unaligned region", 503)],
)
def test_s3_fails_from_some_moment_on(
    name: str, how: int | str, s3_server: S3Server, tmp_path: Path
) -> None:
    scenario = SCENARIOS[name]
    with proxy_to(s3_server) as proxy:
        port = proxy.server_address[1]

        def prepared(part: int) -> tuple[Target, Target, Any]:
            path = f"{tmp_path.name}/{part}"
            direct = s3_target(s3_server, path)
            if scenario.before is not None:
                scenario.before(direct)
            return direct, s3_target(s3_server, path, f"http://127.0.0.1:{port}"), snapshot(direct)

        direct, through, _ = prepared(0)
        proxy.number = 0
        assert in_process(_impatient, scenario.change, through).error is None
        total, new = proxy.number, snapshot(direct)
        seen = []
        for part in range(1, 4):
            direct, through, old = prepared(part)
            proxy.number, proxy.first, proxy.how = 0, 1 + part * (total - 1) // 3, how
            run = in_process(_impatient, scenario.change, through)
            proxy.first = 10**9
            now = snapshot(direct)
            assert now in (old, new, "incomplete")
            assert now != "incomplete" or scenario.before is None
            if run.error is None:  # what failed was only tidying up
                assert now == new
            else:
                assert run.error.startswith("StoreError: ")
                assert "faults/" in run.error  # it names the object
                seen.append(now == new)
            assert in_process(scenario.change, direct).error is None or now == new
            assert snapshot(direct) == new
        assert False in seen


# -- two writers ---------------------------------------------------------------


def _region(target: Target, first: int, rows: int, offset: int) -> None:
    values = sample(rows, offset)[["a"]].drop_vars("t").drop_attrs()
    target.write(values, region={"t": slice(first, first + rows)})


def _more(target: Target) -> None:
    target.write(sample(2, 50)[["a", "t"]].drop_attrs(), append_dim="t")


def _another(target: Target) -> None:
    target.write(xr.Dataset({"z": ("zz", [1, 2, 3])}), "a")


def at_once(*work: tuple[Any, ...]) -> list[str | None]:
    """Errors of processes that run together."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [run.error for run in pool.map(lambda args: in_process(*args), work)]


def rows_of(target: Target) -> np.ndarray[Any, Any]:
    with xr.open_dataset(target.url, engine="nczarr", mask_and_scale=False) as found:
        return found["a"].values


@pytest.fixture
def target(tmp_path: Path) -> Target:
    target = Target(str(tmp_path / "d"))
    target.write(sample(8), encoding=CHUNKS, unlimited_dims=["t"])
    return target


@pytest.mark.slow
def test_regions_that_do_not_overlap(target: Target) -> None:
    work = [(_region, target, first, 2, 1000 * (first + 1)) for first in (0, 2, 4, 6)]
    assert at_once(*work) == [None] * 4
    expected = [sample(2, 1000 * (first + 1)).a.values for first in (0, 2, 4, 6)]
    np.testing.assert_array_equal(rows_of(target), np.concatenate(expected))
    assert private(Path(target.url)) == set()


@pytest.mark.slow
def test_regions_that_overlap(target: Target) -> None:
    for _ in range(3):
        errors = at_once((_region, target, 0, 5, 1000), (_region, target, 3, 5, 2000))
        assert all(error is None or "ConflictError" in error for error in errors)
        found = rows_of(target)
        one, other = sample(5, 1000).a.values, sample(5, 2000).a.values
        first = np.array_equal(found[0:5], one)
        second = np.array_equal(found[3:8], other)
        # what they share is of one of them
        assert np.array_equal(found[3:5], one[3:]) or second or errors[1] is not None
        assert errors != [None, None] or first or second
    assert private(Path(target.url)) == set()


@pytest.mark.slow
def test_different_changes_at_once(target: Target) -> None:
    errors = at_once((_region, target, 0, 2, 1000), (_more, target), (_another, target))
    for error in errors:
        assert error is None or "ConflictError" in error or "by another writer just now" in error
    found = rows_of(target)
    assert found.shape[0] == (10 if errors[1] is None else 8)
    assert (found[0, 0] == 1001) == (errors[0] is None)
    with xr.open_dataset(target.url, engine="nczarr") as dataset:
        assert ("z" in dataset) == (errors[2] is None)


@pytest.mark.slow
def test_new_datasets_at_once(tmp_path: Path) -> None:
    for name in ("n", "n.zip"):
        target = Target(str(tmp_path / name))
        change = SCENARIOS["new"].change
        errors = at_once((change, target), (change, target))
        for error in errors:
            assert error is None or error.startswith(("ConflictError", "DatasetExistsError"))
        if None not in errors:  # each gave way to the other
            change(target)
        np.testing.assert_array_equal(rows_of(target), sample(12, 1).a.values)
        assert private(tmp_path) == set()


@pytest.mark.parametrize("name", ["d", "d.zip"])
def test_recovery_while_a_new_dataset_is_written(name: str, tmp_path: Path) -> None:
    """What was written before is gone: what comes after is not made a dataset."""
    target = tmp_path / name
    change, _, _ = begin_new(find_destination(target, None), replace=False)
    change.staged.put("a/.zarray", b"{}")
    assert recover(target)
    change.staged.put(".zgroup", b"{}")
    with pytest.raises(StoreError, match="is over"):
        change.commit()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", range(2))
def test_a_list_that_fails_leaves_no_lock(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    objects: dict[str, bytes] = {}
    to_nczarr(sample(2), objects)
    calls = itertools.count()

    def fails(self: MappingWriter, prefix: str, real: Any = MappingWriter.keys_below) -> list[str]:
        if not prefix and next(calls) == number:
            raise StoreError("mapping", "fails")
        found: list[str] = real(self, prefix)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(MappingWriter, "keys_below", fails)
        with pytest.raises(StoreError, match="fails"):
            to_nczarr(sample(3), objects, "w")
    assert not [key for key in objects if key.startswith(PRIVATE)]


def test_a_change_that_is_half_in_place_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are moved before their metadata: they are not foreign then."""
    objects: dict[str, bytes] = {}
    to_nczarr(sample(2), objects)

    def moves_one(self: MappingWriter, pairs: Any, real: Any = MappingWriter.move) -> None:
        real(self, [*pairs][:1])
        raise StoreError("mapping", "fails")

    with monkeypatch.context() as patched:
        patched.setattr(MappingWriter, "move", moves_one)
        with pytest.raises(StoreError, match="fails"):
            to_nczarr(xr.Dataset({"e": ("x", np.arange(5))}), objects, "a")
    assert "e/0" in objects
    assert "e/.zarray" not in objects
    new = xr.Dataset({"e": ("y", np.arange(3))})
    to_nczarr(new, objects, "w")
    with xr.open_dataset(objects, engine="nczarr") as found:  # type: ignore[arg-type]
        xr.testing.assert_identical(found.load(), new)
    assert not [key for key in objects if key.startswith((PRIVATE, "a/"))]


def test_an_append_that_is_not_in_place_says_that_it_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be repeated, and the rows be there twice."""
    target = Target(str(tmp_path / "d"))
    SCENARIOS["append"].before(target)  # type: ignore[misc]  # it has one

    def fails(self: DirectoryWriter, pairs: Any) -> None:
        raise StoreError("d", "cannot be moved")

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryWriter, "move", fails)
        with pytest.raises(StoreError, match=r"is changed, and can be read.*do not repeat.*moved"):
            SCENARIOS["append"].change(target)
    changed = snapshot(target)
    assert changed["/"]["a"][1][1] == (9, 5)
    target.recover()
    assert snapshot(target) == changed
    assert not private(tmp_path)


@pytest.mark.parametrize("names", [("d", "d.nczarr"), ("気" * 80 + "a", "気" * 80 + "b")])
def test_names_that_begin_alike(names: tuple[str, str], tmp_path: Path) -> None:
    """What is being written beside one dataset is not taken for a part of the other."""
    other, _, _ = begin_new(find_destination(tmp_path / names[1], None), replace=False)
    to_nczarr(sample(2), tmp_path / names[0])
    assert not recover(tmp_path / names[0])
    other.staged.put(".zgroup", b"{}")
    other.commit()
    assert (tmp_path / names[1] / ".zgroup").exists()


@pytest.mark.parametrize("name", ["d", "d.zip"])
def test_an_interrupt_at_the_very_beginning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: str, real: Callable[..., None] = os.makedirs, **options: Any) -> None:
        real(path, **options)
        raise KeyboardInterrupt

    before = set(AT_WORK)  # other tests give up what is in this process
    with monkeypatch.context() as patched:
        patched.setattr(os, "makedirs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            to_nczarr(sample(2), tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert not AT_WORK - before


@pytest.mark.parametrize("change", ["append", "region", "variable"])
def test_an_archive_on_a_server_that_another_one_changes(change: str) -> None:
    """Nothing locks it: whoever is later finds out, and mixes nothing."""
    target = Target(f"memory://{change}/d.zip")
    target.write(sample(5), "w", encoding=CHUNKS, unlimited_dims=["t"])
    if change == "append":
        late = target.write(
            sample(2)[["a", "t"]].drop_attrs().chunk(), None, append_dim="t", compute=False
        )
    elif change == "region":
        part = sample(4, 1)[["a"]].drop_vars("t").drop_attrs().chunk()
        late = target.write(part, region={"t": slice(0, 4)}, compute=False)
    else:
        late = target.write(xr.Dataset({"e": ("x", np.arange(5))}).chunk(), "a", compute=False)
    target.write(sample(3, 2), "w")
    there = snapshot(target)
    with pytest.raises(ExportError, match="was changed by another writer"):
        late.compute(scheduler="synchronous")
    assert snapshot(target) == there


def test_an_archive_on_a_server_that_came_just_now_is_kept() -> None:
    target = Target("memory://new/d.zip")
    late = target.write(sample(2).chunk(), compute=False)
    target.write(sample(3, 2))
    there = snapshot(target)
    with pytest.raises(DatasetExistsError, match="holds a dataset"):
        late.compute(scheduler="synchronous")
    assert snapshot(target) == there


@pytest.mark.parametrize("before", ["nothing", "abandoned"])
@pytest.mark.parametrize("place", ["directory", "zip", "memory"])
def test_a_dataset_that_came_just_now_is_kept(
    place: str, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer begins and ends between the look at what is there and the lock."""
    urls = {"directory": tmp_path / "n", "zip": tmp_path / "n.zip"}
    target = Target(str(urls.get(place, f"memory://just-now{tmp_path}/{before}")))
    if before == "abandoned":
        store = find_destination(target.url, None).store
        if store is not None:
            store.put(INCOMPLETE, Incomplete(Owner.here()).dump())
    keys = Destination.keys
    others = [sample(3, 5)]

    def then_written(self: Destination, below: str = "") -> list[str]:
        found = keys(self, below)
        while others:
            target.write(others.pop(), encoding=CHUNKS)
        return found

    monkeypatch.setattr(Destination, "keys", then_written)
    archive = write_target.new_archive
    monkeypatch.setattr(write_target, "new_archive", _after(then_written, archive))
    with pytest.raises((ConflictError, DatasetExistsError)):
        target.write(sample(8), encoding=CHUNKS)
    assert others == []
    np.testing.assert_array_equal(rows_of(target), sample(3, 5).a.values)


def _after(first: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(self: Any, **arguments: Any) -> Any:
        first(self)
        return then(self, **arguments)

    return both


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_region_is_being_written(target: Target, mode: str) -> None:
    """A dataset is not replaced under a writer's hands."""
    values = sample(2, 7)[["a"]].drop_vars("t").drop_attrs().chunk()
    rest = target.write(values, region={"t": slice(0, 2)}, compute=False)
    for change in (sample(3, 1), noise(3).rename(a="c", t="u")):
        with pytest.raises(ConflictError, match="is at work on the same chunks"):
            target.write(change, mode)
    rest.compute()
    assert rows_of(target)[0, 0] == 8
    target.write(noise(3).rename(a="c", t="u"), mode)


def test_locks_of_other_machines(target: Target) -> None:
    lock = Path(target.url) / PRIVATE / "writers" / "x"
    lock.parent.mkdir(parents=True)
    owner = replace(Owner.here(), host="elsewhere", pid=1)
    lock.write_text(json.dumps({"owner": owner.document, "boxes": {"a": [[0, 1], [0, 2]]}}))
    with pytest.raises(ConflictError, match=r"process 1 on elsewhere.*nczarr_xarray\.recover"):
        _region(target, 0, 2, 3)
    _region(target, 2, 2, 5)  # other chunks
    recover(target.url)
    _region(target, 0, 2, 3)
    assert rows_of(target)[0, 0] == 4
    assert private(Path(target.url)) == set()


# -- what is in the way --------------------------------------------------------


@pytest.mark.parametrize(("mode", "group"), [("w", "/"), ("w-", "/"), ("a", "/"), ("w-", "new")])
def test_a_folder_of_datasets_is_none_itself(tmp_path: Path, mode: Any, group: str) -> None:
    for name in "abcd":
        to_nczarr(sample(3), tmp_path / f"{name}.nczarr")
    (tmp_path / "notes.txt").write_text("mine")
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError, match=r"is no dataset.*\(a\.nczarr, b.*, \.\.\.\)"):
        to_nczarr(noise(3), tmp_path, mode=mode, group=group)
    assert files(tmp_path) == before


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "a").mkdir(parents=True)
    for name in ("notes.txt", "a/0.0~", "a/README", "b.d"):
        (folder / name).write_text("mine")
    before = files(folder)
    with pytest.raises(DatasetExistsError, match=r"is not empty.*mode='w'"):
        to_nczarr(sample(3), folder)
    assert files(folder) == before
    to_nczarr(sample(3), folder, mode="w")
    to_nczarr(sample(2, 1), folder, mode="w")
    assert before < files(folder)
    (folder / "b" / ".b.swp").write_text("mine")
    to_nczarr(noise(3), folder, mode="w")
    assert (folder / "b" / ".b.swp").exists()
    assert files(folder) - before == {
        *(".zgroup", ".zattrs", "a/.zarray", "a/.zattrs", "a/0.0", "b/.b.swp")
    }


def test_chunks_of_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "0.0").write_bytes(b"chunk of an array that does not exist")
    to_nczarr(sample(3), folder, mode="w")
    assert (folder / "old" / "0.0").exists()
    with pytest.raises(ExportError, match=r"in the way do not belong to a dataset: old/0\.0"):
        to_nczarr(noise(3).rename(a="old"), folder, mode="w")
    assert rows_of(Target(str(folder))).shape == (3, 5)


def test_files_links_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for mode in ("w-", "w", "a"):
        with pytest.raises(DatasetExistsError, match="is a file"):
            to_nczarr(sample(2), tmp_path / "file", mode=mode)
    monkeypatch.chdir(tmp_path)
    to_nczarr(sample(2), "no/such/parents/d")
    to_nczarr(sample(3), "no/such/parents/d", mode="w")
    (tmp_path / "link").symlink_to("no/such/parents/d")
    to_nczarr(sample(4), "link", mode="w")
    assert (tmp_path / "link").is_symlink()
    assert rows_of(Target("no/such/parents/d")).shape == (4, 5)
    (tmp_path / "z").symlink_to("real.zip")
    to_nczarr(sample(2), "real.zip")
    to_nczarr(sample(5), "z", mode="w")
    assert (tmp_path / "z").is_symlink()
    assert rows_of(Target("real.zip")).shape == (5, 5)
    (tmp_path / "to nothing.zip").symlink_to("new.zip")
    to_nczarr(sample(6), "to nothing.zip")
    assert (tmp_path / "to nothing.zip").is_symlink()
    assert rows_of(Target("new.zip")).shape == (6, 5)


@pytest.mark.parametrize("name", ["d", "d.zip"])
@pytest.mark.parametrize("lazy", [False, True])
def test_what_is_being_read_is_the_target(name: str, lazy: bool, tmp_path: Path) -> None:
    target = Target(str(tmp_path / name))
    target.write(sample(6), encoding=CHUNKS)
    chunks: Any = {"t": 2} if lazy else None
    with xr.open_dataset(target.url, engine="nczarr", chunks=chunks) as found:
        target.write(found.assign(a=found.a + 1).drop_encoding(), "w")
    np.testing.assert_array_equal(rows_of(target), sample(6).a.values + 1)
    with xr.open_dataset(target.url, engine="nczarr", chunks=chunks) as found:
        target.write((found[["a"]] * 2).drop_encoding(), "a")
    np.testing.assert_array_equal(rows_of(target), 2 * (sample(6).a.values + 1))


def test_a_mount_point_is_filled_in_place(tmp_path: Path) -> None:
    """It cannot be renamed, and neither can what is in it be replaced by a rename."""
    with tiny_disk(tmp_path / "disk") as disk:
        target = Target(str(disk))
        target.write(sample(3), encoding=CHUNKS)
        target.write(sample(5, 1), "w", encoding=CHUNKS)
        np.testing.assert_array_equal(rows_of(target), sample(5, 1).a.values)
        assert private(disk) == set()
        assert private(tmp_path) == set()


def test_trees_that_cannot_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, for example: then the journal does it."""
    monkeypatch.setattr("nczarr_fsspec.changes.create.exchange", lambda *_: False)
    target = Target(str(tmp_path / "d"))
    target.write(sample(5), encoding=CHUNKS)
    target.write(sample(3, 1), "w", encoding=CHUNKS)
    np.testing.assert_array_equal(rows_of(target), sample(3, 1).a.values)
    assert "a/2.0" not in files(tmp_path / "d")
    assert private(tmp_path) == set()


@pytest.mark.filterwarnings("ignore:variable .* cannot be read")
def test_a_template_in_the_place_of_one_that_cannot_change_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dask")
    monkeypatch.setattr("nczarr_fsspec.changes.create.exchange", lambda *_: False)
    target = Target(str(tmp_path / "d"))
    for number in (1, 2):
        lazy = sample(5, number).chunk(t=2, x=-1)
        later = target.write(lazy, "w", encoding=CHUNKS, compute=False)
    assert set(xr.open_dataset(target.url, engine="nczarr").data_vars) == {"a", "b"}
    later.compute()
    np.testing.assert_array_equal(rows_of(target), sample(5, 2).a.values)
    assert private(tmp_path) == set()


@pytest.mark.filterwarnings("ignore:variable .* cannot be read")
def test_a_template_in_the_place_of_one_is_never_without_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even between the move of its root and the end of the journal."""
    pytest.importorskip("dask")
    target = Target(str(tmp_path / "d"))
    target.write(sample(5).chunk(t=2, x=-1), "w", encoding=CHUNKS, compute=False)
    (tmp_path / "d" / "README").touch()  # so the journal does it
    delete, titles = DirectoryWriter.delete, []

    def look(store: DirectoryWriter, keys: Any) -> None:
        titles.append(xr.open_dataset(target.url, engine="nczarr").title)
        delete(store, keys)

    monkeypatch.setattr(DirectoryWriter, "delete", look)
    target.write(sample(5, 1).chunk(t=2, x=-1), "w", encoding=CHUNKS, compute=False)
    monkeypatch.undo()
    assert set(titles) == {"dataset 1"}


@pytest.mark.parametrize("options", [{"append_dim": "x"}, {"region": {"x": slice(0, 4)}}])
def test_chunks_that_the_disk_has_lost(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged is counted before it becomes valid."""
    target = Target(str(tmp_path / "d"))
    values = xr.Dataset({"v": ("x", np.arange(1, 5))})
    target.write(values, encoding={"v": {"chunks": (2,)}})
    before = snapshot(target)
    put = DirectoryWriter.put

    def lose(store: DirectoryWriter, key: str, data: Any) -> None:
        if key not in ("v/1", "v/3"):
            put(store, key, data)

    monkeypatch.setattr(DirectoryWriter, "put", lose)
    with pytest.raises(StoreError, match=r"objects were staged, \d+ expected; nothing was changed"):
        target.write(-values, **options)
    assert snapshot(target) == before
    assert private(tmp_path) == set()


def test_a_chunk_that_cannot_be_read_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of blocks that share a chunk, a later one adds to what an earlier one has put."""
    pytest.importorskip("dask")
    target = Target(str(tmp_path / "d"))
    values = xr.Dataset({"v": ("x", np.arange(1, 5))})
    target.write(values, encoding={"v": {"chunks": (4,)}})
    before = snapshot(target)
    get = DirectoryStore.get_many

    def fail(store: DirectoryStore, keys: Any, *most: int) -> Any:
        if [*keys] == ["v/0"]:
            return [StoreError(f"{store.url}/v/0", "cannot be read")]
        return get(store, keys, *most)

    monkeypatch.setattr(DirectoryStore, "get_many", fail)
    with pytest.raises(StoreError, match="v/0: cannot be read"):
        target.write((-values).chunk(x=2), "r+", safe_chunks=False)
    monkeypatch.undo()
    assert snapshot(target) == before


def test_what_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    target = Target(str(tmp_path / "d"))
    target.write(sample(3), encoding=CHUNKS)
    (tmp_path / "d").chmod(0o700)
    target.write(sample(3, 1), "w", encoding=CHUNKS)
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
