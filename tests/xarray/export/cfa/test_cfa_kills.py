"""Writers of aggregations that are killed or fail: readers find the old one, the new or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray import to_cfa
from tests.support.faults.disks import tiny_disk
from tests.support.faults.killing import Kill, in_process
from tests.support.servers.s3server import S3Server

OPTIONS: dict[str, Any] = {"cfa_version": "1.13", "subarray_shape": {"t": 2}}


def sample(rows: int, offset: int) -> xr.Dataset:
    cells = (offset + np.arange(rows * 5)).reshape(rows, 5)
    return xr.Dataset({"a": (("t", "x"), cells)}, {"t": np.arange(rows)}, {"number": offset})


def _old(target: str) -> None:
    to_cfa(sample(5, 0), target, mode="w", **OPTIONS)


def _new(target: str) -> None:
    to_cfa(sample(6, 100), target, **OPTIONS)


def _over(target: str) -> None:
    to_cfa(sample(4, 100), target, mode="w", **OPTIONS)


def _over_dask(target: str) -> None:
    to_cfa(sample(7, 100).chunk(t=2), target, mode="w", **OPTIONS)


def _append(target: str) -> None:
    more = sample(3, 100).assign_coords(t=np.arange(5, 8))
    to_cfa(more, target, append_dim="t", subarray_shape={"t": 1})


def _region(target: str) -> None:
    to_cfa(sample(3, 100).drop_vars("t"), target, region={"t": slice(1, 4)})


def _group(target: str) -> None:
    to_cfa(sample(4, 100), target, group="g", subarray_shape={"t": 2})


def _tree(target: str) -> None:
    tree = xr.DataTree.from_dict({"/": sample(6, 100), "/g": sample(6, 200)})
    to_cfa(tree, target, **OPTIONS)


def _template(target: str) -> None:
    data = sample(6, 100).astype("f8").chunk(t=2)
    shape: Any = {"t": 4}
    to_cfa(data, target, mode="w", compute=False, cfa_version="1.13", subarray_shape=shape)


def _missing(target: str) -> None:
    region = {"t": slice(2, 6)}
    to_cfa(sample(6, 100).astype("f8")[["a"]].isel(region).drop_vars("t"), target, region=region)


def look(target: str) -> Any:
    """What a reader sees; -1 where data are missing."""
    try:
        found = xr.open_groups(target, engine="nczarr")
    except DatasetNotFoundError:
        return None
    seen = [
        (path, one["a"].fillna(-1).values.tolist(), one["t"].values.tolist(), one.attrs["number"])
        for path, one in found.items()
    ]
    for one in found.values():
        one.close()
    return seen


@dataclass
class Scenario:
    change: Callable[[str], None]
    before: Callable[[str], None] | None = _old


SCENARIOS = {
    "new": Scenario(_new, None),
    "over": Scenario(_over),
    "over with dask": Scenario(_over_dask),
    "append": Scenario(_append),
    "region": Scenario(_region),
    "group": Scenario(_group),
    "tree": Scenario(_tree, None),
    "template": Scenario(_template, None),
    "region of a template": Scenario(_missing, _template),
}


def prepared(scenario: Scenario, target: str) -> str:
    Path(target).parent.mkdir()
    if scenario.before is not None:
        scenario.before(target)
    return target


def left_over(target: str) -> set[str]:
    """Files that neither the master nor a fragment is."""
    folder = Path(target).parent
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert look(target)  # all of it can be read
    return {name for name in names if ".nczarr-tmp-" not in name and name != Path(target).name}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["nca", "nczarr"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_a_call(name: str, suffix: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    target = prepared(scenario, str(tmp_path / "whole" / f"m.{suffix}"))
    before = look(target)
    whole = in_process(scenario.change, target, kill=Kill())
    assert whole.error is None
    after = look(target)
    wanted = left_over(target) if suffix == "nca" else set()
    seen = []
    calls = np.unique(np.linspace(1, whole.calls, 6).astype(int)).tolist()
    for call in calls:
        target = prepared(scenario, str(tmp_path / str(call) / f"m.{suffix}"))
        run = in_process(scenario.change, target, kill=Kill(call, after=bool(call % 2)))
        assert run.error is None, run.error
        found = look(target)
        assert found in (before, after), (run.killed, found)
        seen.append(found)
        if found == before:  # the next writer does it, and cleans up
            assert in_process(scenario.change, target).error is None
        else:  # or one that changes nothing
            _region_of_nothing(target)
        assert look(target) == after
        if suffix == "nca":
            ours = {str(name).partition(".")[0] for name in left_over(target)}
            assert ours == {"m/m"}
            assert len(left_over(target)) == len(wanted), (call, run.killed)
    assert before in seen
    assert after in seen


def _region_of_nothing(target: str) -> None:
    with xr.open_dataset(target, engine="nczarr") as found:
        one = found[["a"]].isel(t=slice(0, 1)).drop_vars("t").load()
    to_cfa(one, target, region={"t": slice(0, 1)})


@pytest.mark.parametrize("name", SCENARIOS)
def test_failing_fragments(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[name]
    target = prepared(scenario, str(tmp_path / "d" / "m.nca"))
    before, files = look(target), sorted(Path(target).parent.rglob("*"))
    puts: list[str] = []

    def fail(self: DirectoryWriter, key: str, fill: Any) -> None:
        puts.append(key)
        if len(puts) == 2:
            raise StoreError(key, "is not to be written")
        original(self, key, fill)

    original = DirectoryWriter.put_file
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryWriter, "put_file", fail)
        with pytest.raises(StoreError, match="is not to be written"):
            scenario.change(target)
    assert look(target) == before
    assert sorted(Path(target).parent.rglob("*")) == files
    scenario.change(target)
    assert look(target) != before


@pytest.mark.parametrize("done", [False, True])
def test_master_that_cannot_be_put(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may put it, and fail all the same: then the new fragments are needed."""
    target = prepared(SCENARIOS["over"], str(tmp_path / "d" / "m.nca"))
    before = look(target)
    original = DirectoryWriter.put

    def fail(self: DirectoryWriter, key: str, data: Any) -> None:
        if key == "m.nca":
            if done:
                original(self, key, data)
            raise StoreError(key, "did not answer")
        original(self, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryWriter, "put", fail)
        with pytest.raises(StoreError, match="did not answer"):
            _over(target)
    assert (look(target) == before) != done
    assert len(os.listdir(tmp_path / "d" / "m")) == (2 if done else 3)
    _over(target)
    assert len(os.listdir(tmp_path / "d" / "m")) == 2


@pytest.mark.parametrize("which", ["m/m.", "m/.m."], ids=["fragments", "claim"])
def test_rest_that_cannot_be_removed(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new aggregation is valid, and this process may write again."""
    target = prepared(SCENARIOS["over"], str(tmp_path / "d" / "m.nca"))
    before = look(target)
    original = DirectoryWriter.delete

    def fail(self: DirectoryWriter, keys: Any) -> None:
        keys = [*keys]
        if any(key.startswith(which) for key in keys):
            raise StoreError("m", "is not to be removed")
        original(self, keys)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryWriter, "delete", fail)
        with pytest.raises(StoreError, match=r"is written and can be read.*is not to be removed"):
            _over(target)
    assert look(target) not in (None, before)
    _region_of_nothing(target)
    assert len(os.listdir(tmp_path / "d" / "m")) == 2


def test_values_that_cannot_be_computed(tmp_path: Path) -> None:
    import dask.array as da

    def broken(block: Any, block_id: Any = None) -> Any:
        if block_id == (2, 0):
            raise ValueError("no such value")
        return block

    target = prepared(SCENARIOS["over"], str(tmp_path / "d" / "m.nca"))
    before, files = look(target), sorted(Path(target).parent.rglob("*"))
    data = da.ones((8, 5), chunks=(2, 5)).map_blocks(broken, dtype="f8")
    with pytest.raises(ValueError, match="no such value"):
        to_cfa(xr.Dataset({"a": (("t", "x"), data)}), target, mode="w", **OPTIONS)
    assert look(target) == before
    assert sorted(Path(target).parent.rglob("*")) == files


def test_full_disk(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=1M") as disk:
        target = str(disk / "m.nca")
        _old(target)
        before, files = look(target), sorted(disk.rglob("*"))
        noise = np.random.default_rng(1).integers(0, 2**31, (8, 1 << 16), dtype="i4")
        big = xr.Dataset({"a": (("t", "x"), noise)})
        with pytest.raises(StoreError, match=r"m/m\.a\.\d\.0.*cannot be written"):
            to_cfa(big, target, mode="w", **OPTIONS)
        assert look(target) == before
        assert sorted(disk.rglob("*")) == files


def test_in_an_object_store(s3_server: S3Server) -> None:
    signed = s3_server.signed()
    options: dict[str, Any] = {
        "key": signed["key"],
        "secret": signed["secret"],
        "client_kwargs": {"endpoint_url": s3_server.endpoint},
    }
    target = f"s3://{s3_server.private}/cfa-{os.getpid()}/m.nca"
    data = np.arange(240.0).reshape(8, 5, 6)
    dataset = xr.Dataset({"v": (("time", "y", "x"), data)}, {"time": np.arange(8)})
    versions: list[Any] = ["0.4", "0.6.2", "1.13"]
    kinds: list[Any] = ["netCDF4", "NCZarr"]
    for version in versions:
        for kind in kinds:
            first = dataset.isel(time=slice(0, 6))
            first.nczarr.to_cfa(
                target,
                cfa_version=version,
                fragment_format=kind,
                max_object_size=400,
                mode="w",
                storage_options=options,
            )
            rest = dataset.isel(time=slice(6, 8)).chunk(time=1)
            rest.nczarr.to_cfa(target, append_dim="time", storage_options=options)
            arguments: dict[str, Any] = {"engine": "nczarr", "storage_options": options}
            with xr.open_dataset(target, **arguments) as found:
                xr.testing.assert_identical(found.load().drop_attrs(), dataset)
