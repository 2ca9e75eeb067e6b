"""One writer of an aggregation at a time, also after others have died or were taken for dead."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from nczarr_fsspec.errors import ConflictError, StoreError
from nczarr_fsspec.stores.ownership import Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray import recover
from nczarr_xarray.export.cfa import task as task_module
from nczarr_xarray.export.cfa.existing_master import referred_keys
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.cfa.task import Claim, claim_key
from tests.xarray.export.cfa.test_to_cfa import by_netcdf, names, read, same, sample


def left_by_a_dead_writer(target: Path, successors: int = 0) -> None:
    """Make a claim of a process that has ended, as have those that took over from it."""
    place = MasterPlace.find(target, None)
    owner, name = replace(Owner.here(), started="before").document, "0" * 32
    told = {"name": name, "owner": owner, "new": ["m/m.count.8.0.nc"], "old": []}
    place.store.put(claim_key(place), json.dumps(told).encode())
    for number in range(successors):
        entry = {"owner": owner, "work": str(number)}
        place.store.put(f"{claim_key(place)}.{name}.{number}", json.dumps(entry).encode())


def test_one_writer_takes_over_from_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second writer comes while the first one finds out what the dead one has left."""
    target, whole = tmp_path / "m.nca", sample(10)[["count"]]
    shape = {"subarray_shape": {"time": 1}}
    whole.isel(time=slice(0, 8)).nczarr.to_cfa(target, **shape)
    left_by_a_dead_writer(target, successors=2)
    others: list[str] = []

    def meanwhile(place: MasterPlace) -> Any:
        found = referred_keys(place)
        if not others:
            others.append("came")
            with pytest.raises(ConflictError, match=f"process {os.getpid()}"):
                whole.isel(time=slice(8, 9)).nczarr.to_cfa(target, append_dim="time", **shape)
        return found

    monkeypatch.setattr(task_module, "referred_keys", meanwhile)
    whole.isel(time=slice(8, 10)).nczarr.to_cfa(target, append_dim="time", **shape)
    assert others
    same(read(target), by_netcdf(whole, tmp_path / "x.nc"))
    assert not [name for name in names(tmp_path / "m") if ".writing" in name]


def test_an_export_that_fails_keeps_others_out_until_it_has_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread could give its fragments the names of those that are removed."""
    target, whole = tmp_path / "m.nca", sample(10)[["count"]]
    shape = {"subarray_shape": {"time": 1}}
    whole.isel(time=slice(0, 8)).nczarr.to_cfa(target, **shape)
    before, delete, others = names(tmp_path / "m"), DirectoryWriter.delete, [0]

    def meanwhile(store: DirectoryWriter, keys: Iterable[str]) -> None:
        others[0] += 1
        with pytest.raises(ConflictError, match=f"process {os.getpid()}"):
            Claim.begin(MasterPlace.find(target, None))
        delete(store, keys)

    def fail(block: np.ndarray) -> np.ndarray:
        raise ValueError("no such data")

    whole["count"] = whole["count"].chunk(time=1).copy()
    whole["count"].data = whole["count"].data.map_blocks(fail, dtype="i4", meta=np.empty((0, 0)))
    monkeypatch.setattr(DirectoryWriter, "delete", meanwhile)
    with pytest.raises(ValueError, match="no such data"):
        whole.isel(time=slice(8, 10)).nczarr.to_cfa(target, append_dim="time", **shape)
    monkeypatch.undo()
    assert others[0] >= 2
    assert names(tmp_path / "m") == before
    Claim.begin(MasterPlace.find(target, None)).release()


@pytest.mark.parametrize("by", ["recover", "the next writer"])
def test_files_that_a_dead_writer_has_not_completed_are_removed(by: str, tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    sample()[["count"]].nczarr.to_cfa(target, subarray_shape={"time": 8})
    left_by_a_dead_writer(target)
    before = names(tmp_path / "m")
    mark = replace(Owner.here(), started="before").identity
    for owner in (mark, Owner.here().identity):
        (tmp_path / "m" / f".nczarr-tmp-{owner}-{'0' * 16}").write_bytes(b"a part")
    if by == "recover":
        assert recover(target)
    else:
        Claim.begin(MasterPlace.find(target, None)).release()
    kept = f".nczarr-tmp-{Owner.here().identity}-{'0' * 16}"  # of a writer of something else
    assert names(tmp_path / "m") == sorted({*before, kept} - {".m.nca.writing"})


def test_taking_over_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every call of the store; then another process takes over."""
    target = tmp_path / "m.nca"
    sample()[["count"]].nczarr.to_cfa(target, subarray_shape={"time": 8})
    # an owner that lives counts, wherever it is
    elsewhere = replace(Owner.here(), pid=os.getppid(), started="")
    for number in range(100):
        left_by_a_dead_writer(target)
        if not _interrupted(target, number, monkeypatch):
            break
        with monkeypatch.context() as patched:
            patched.setattr(Owner, "here", lambda: elsewhere)
            Claim.begin(MasterPlace.find(target, None)).release()
        assert not [name for name in names(tmp_path / "m") if ".writing" in name], number
    assert number > 4


def _interrupted(target: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Take over with a Ctrl-C at one of the calls; tell whether there were so many."""
    place, calls = MasterPlace.find(target, None), itertools.count()
    with monkeypatch.context() as patched:
        for name in ("create", "put", "delete", "reader", "keys_below"):
            real = getattr(DirectoryWriter, name)

            def call(self: Any, *args: Any, real: Any = real) -> Any:
                if self is place.store and next(calls) == number:
                    raise KeyboardInterrupt
                return real(self, *args)

            patched.setattr(DirectoryWriter, name, call)
        try:
            Claim.begin(place)
        except KeyboardInterrupt:
            return True
    return False


def test_a_writer_whose_claim_was_removed_gives_up(tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()[["count"]]
    shape = {"subarray_shape": {"time": 1}}
    whole.isel(time=slice(0, 4)).nczarr.to_cfa(target, **shape)

    def meanwhile(block: np.ndarray) -> np.ndarray:
        assert recover(target)
        whole.isel(time=slice(4, 8)).nczarr.to_cfa(target, append_dim="time", **shape)
        return block

    late = whole.isel(time=slice(4, 5)).chunk()
    late["count"] = late["count"].copy(data=late["count"].data.map_blocks(meanwhile, dtype="i4"))
    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match="is over"):
        late.nczarr.to_cfa(target, append_dim="time", **shape)
    same(read(target), by_netcdf(whole, tmp_path / "x.nc"))


def test_another_thread_that_begins_while_a_claim_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take over, or its own claim would be removed."""
    place = MasterPlace.find(tmp_path / "m.nca", None)
    claim = Claim.begin(place)
    is_there = Claim.is_there

    def meanwhile(self: Claim) -> bool:
        monkeypatch.setattr(Claim, "is_there", is_there)
        found = self.is_there()
        with pytest.raises(ConflictError, match=f"process {os.getpid()}"):
            Claim.begin(place)
        return found

    monkeypatch.setattr(Claim, "is_there", meanwhile)
    claim.release()
    Claim.begin(place).release()


def test_another_thread_that_begins_while_a_writer_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fragments may have the same names as those that are removed."""
    target, whole = tmp_path / "m.nca", sample(10)[["count"]]
    is_there, others = Claim.is_there, list[str]()

    def meanwhile(self: Claim) -> bool:
        found = is_there(self)
        if failures and not others:
            others.append("came")
            with pytest.raises(ConflictError, match=f"process {os.getpid()}"):
                whole.nczarr.to_cfa(target)
        return found

    def fail(block: np.ndarray) -> np.ndarray:
        failures.append("failed")
        raise ValueError("no block")

    failures: list[str] = []
    monkeypatch.setattr(Claim, "is_there", meanwhile)
    lazy = whole.chunk(time=5)
    lazy["count"] = lazy["count"].copy(data=lazy["count"].data.map_blocks(fail, dtype="i4"))
    with pytest.raises(ValueError, match="no block"):
        lazy.nczarr.to_cfa(target)
    assert others
    whole.nczarr.to_cfa(target)
    same(read(target), by_netcdf(whole, tmp_path / "x.nc"))


def test_masters_that_share_a_folder_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Neither writes fragments of the other, nor removes them when it takes over."""
    ours, theirs = sample()[["count"]], sample()[["count"]] * 2
    shape = {"subarray_shape": {"time": 4}}

    def meanwhile(block: np.ndarray) -> np.ndarray:
        claim = tmp_path / "m" / ".m.nca.writing"
        chosen = claim.exists() and json.loads(claim.read_text())["new"]
        if chosen and not (tmp_path / "m.nczarr").exists():
            theirs.nczarr.to_cfa(tmp_path / "m.nczarr", **shape)
        return block

    late = ours.chunk(time=4)
    late["count"] = late["count"].copy(data=late["count"].data.map_blocks(meanwhile, dtype="i4"))
    with dask.config.set(scheduler="synchronous"):
        late.nczarr.to_cfa(tmp_path / "m.nca", **shape)
    same(read(tmp_path / "m.nca"), by_netcdf(ours, tmp_path / "x.nc"))
    same(read(tmp_path / "m.nczarr"), by_netcdf(theirs, tmp_path / "y.nc"))
