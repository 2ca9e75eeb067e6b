"""Reading and writing while others write: what is seen is of one moment, and nothing is lost."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xarray as xr

from nczarr_fsspec.changes import recovery
from nczarr_fsspec.changes.consistent_reading import unstamped
from nczarr_fsspec.changes.journal import ROOT
from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_xarray import load_dataset, state, to_nczarr
from tests.support.faults.interleaving import (
    ChangingDirectory,
    ChangingFarAway,
    ChangingMapping,
    steps_of,
)
from tests.support.faults.killing import CHUNKS, sample
from tests.support.marks import slow_but
from tests.support.servers.httpserver import Server

Objects = dict[str, bytes]
Change = Callable[[Any], object]
#: Steps of the writer before each read of the reader: one, some, or all at once.
PACES = (1, 3, math.inf)


def written(rows: int = 8, **options: Any) -> Objects:
    objects: Objects = {}
    to_nczarr(sample(rows), objects, encoding=CHUNKS, unlimited_dims=["t"], **options)
    return objects


def region(first: int, rows: int, offset: int) -> Change:
    """A change: rows of `sample` with `offset`."""
    part = sample(rows, offset)[["a"]].drop_vars("t").drop_attrs()
    return lambda target: to_nczarr(part, target, region={"t": slice(first, first + rows)})


def everywhere(make: Callable[[int, float], Any], work: Callable[[Any], None]) -> None:
    """Do `work` while another writer takes its steps, begun at each place between its reads.

    Parameters
    ----------
    make
        The target, given the first read and the pace (see `Steps`).
    """
    quiet = make(sys.maxsize, 1)
    work(quiet)
    reads = quiet.steps.reads
    for pace in PACES:
        for first in range(0, reads + 1, 1 if pace == math.inf else 2):
            target = make(first, pace)
            try:
                work(target)
            except Exception as error:
                error.add_note(f"{first=} {pace=}")
                raise


def plain_objects(objects: Mapping[str, bytes]) -> Objects:
    """Without the white space by which states of a dataset are told apart."""
    return {key: unstamped(data) if key == ROOT else data for key, data in objects.items()}


@pytest.mark.parametrize("options", slow_but([{}, {"consolidated": True}], {}))
def test_a_region_while_others_become_valid(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers of different regions do not disturb each other, whatever one sees of the others."""
    # the others go on with every look
    instead = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr(recovery, "time", instead)
    objects = written(**options)
    ours = region(0, 2, 1000)
    others = [region(4, 2, 2000), region(2, 2, 3000), region(6, 2, 4000)]
    after = dict(objects)
    for change in (ours, *others):
        change(after)

    def work(target: ChangingMapping) -> None:
        ours(target)
        target.steps.finish()
        assert plain_objects(target.objects) == plain_objects(after)

    everywhere(partial(ChangingMapping, objects, steps_of(objects, *others)), work)


# -- readers -------------------------------------------------------------------


def longer(rows: int, offset: int) -> Change:
    """A change: rows of `sample` at the end."""
    more = sample(rows, offset)[["a", "t"]].drop_attrs()
    return lambda target: to_nczarr(more, target, append_dim="t")


def other_variables(offset: int) -> Change:
    """A change: variables and a coordinate of other types in place of those that are there."""
    new = sample(8, offset)[["a", "t"]]
    new["a"] = new["a"].astype("f8") / 7
    new["t"] = ("t", [f"{offset} {i}" for i in range(8)])
    return lambda target: to_nczarr(new, target, "a", encoding={"a": {"chunks": (3, 5)}})


def other_group(offset: int) -> Change:
    new = xr.Dataset({"v": (("z", "y"), [[offset] * 3] * 4)}, attrs={"offset": offset})
    return lambda target: to_nczarr(new, target, "a", group="g/h")


def anew(rows: int, offset: int) -> Change:
    return lambda target: to_nczarr(sample(rows, offset), target, "w", encoding=CHUNKS)


def metadata(target: Any, **options: Any) -> Any:
    """What opening brings: structure, attributes, and what is loaded for indexes."""
    with xr.open_datatree(target, engine="nczarr", **options) as tree:
        return {
            node.path: (
                {
                    name: (v.dims, v.shape, str(v.dtype), v.attrs, v.encoding.get("chunks"))
                    for name, v in node.to_dataset(inherit=False).variables.items()
                },
                {name: list(index) for name, index in node.to_dataset().indexes.items()},
                node.attrs,
            )
            for node in tree.subtree
        }


CHANGES = {
    "append": (longer(4, 1), longer(3, 2)),
    "variables": (other_variables(1), other_variables(2)),
    "groups": (other_group(1), other_group(2)),
    "anew": (anew(3, 1), anew(9, 2)),
    "regions": (region(0, 2, 5), region(2, 2, 6)),
}


@pytest.fixture(params=CHANGES)
def case(request: pytest.FixtureRequest) -> tuple[Objects, tuple[Change, ...], list[Any]]:
    """What is there, changes of it, and what opening brings before and after each of them."""
    objects = written()
    states, after = [metadata(objects)], dict(objects)
    for change in CHANGES[request.param]:
        change(after)
        states.append(metadata(after))
    return objects, CHANGES[request.param], states


class TestMetadataAreOfOneState:
    def test_of_a_mapping(self, case: Any) -> None:
        objects, changes, states = case

        def work(target: Any) -> None:
            assert metadata(target) in states

        everywhere(partial(ChangingMapping, objects, steps_of(objects, *changes)), work)

    @pytest.mark.slow
    def test_of_a_directory(self, case: Any, tmp_path: Path) -> None:
        objects, changes, states = case
        steps = steps_of(objects, *changes, stamps=True)
        numbers = itertools.count()

        def make(first: int, pace: float) -> ChangingDirectory:
            return ChangingDirectory(tmp_path / f"{next(numbers)}", objects, steps, first, pace)

        def work(target: Any) -> None:
            assert metadata(target) in states

        everywhere(make, work)

    @pytest.mark.parametrize("consolidated", [None, False])
    @pytest.mark.parametrize("can_list", [True, False])
    def test_over_a_network(self, case: Any, can_list: bool, consolidated: bool | None) -> None:
        objects, changes, states = case
        if consolidated is None:
            objects = written(consolidated=True)
        steps = steps_of(objects, *changes)

        def work(target: Any) -> None:
            assert metadata(target, consolidated=consolidated) in states

        everywhere(partial(ChangingFarAway, objects, steps, can_list=can_list), work)


# -- data ----------------------------------------------------------------------


@pytest.fixture(params=["directory", "zip", "memory", "mapping"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A dataset that can be opened and changed under one name."""
    names = {"directory": tmp_path / "d", "zip": tmp_path / "d.zip", "mapping": {}}
    target = names.get(request.param, f"memory://concurrent{tmp_path}")
    to_nczarr(sample(8), target, encoding=CHUNKS, unlimited_dims=["t"])
    return target


class TestConsistentLoads:
    def test_a_state_lasts_until_the_next_change(self, target: Any) -> None:
        seen = [state(target)]
        for change in (region(0, 8, 0), region(0, 2, 1), longer(2, 1), anew(8, 0), anew(8, 0)):
            assert state(target) == seen[-1]
            change(target)
            seen.append(state(target))
        # an archive that is packed again from the same objects is the same
        same = 2 if str(target).endswith(".zip") else 0
        assert len(set(seen)) == len(seen) - same

    def test_a_dataset_that_is_overwritten_while_it_is_loaded(self, target: Any) -> None:
        changes = [region(0, 8, 1000), other_variables(3), anew(5, 7)]

        def select(dataset: xr.Dataset) -> xr.Dataset:
            dataset["a"][:2].load()
            if changes:
                changes.pop(0)(target)
            return dataset

        found = load_dataset(target, select)
        assert not changes
        xr.testing.assert_identical(found.load(), sample(5, 7))

    def test_one_that_never_stays_the_same(
        self, target: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nczarr_xarray.backend.data_store.ATTEMPTS", 3)
        numbers = itertools.count(1)

        def select(dataset: xr.Dataset) -> xr.DataArray:
            region(0, 8, next(numbers))(target)
            return dataset["a"]

        with pytest.raises(StoreError, match="was changed by its writers during each of 3"):
            load_dataset(target, select)

    def test_what_does_not_come_of_a_change_is_raised(self, target: Any) -> None:
        with pytest.raises(KeyError, match="nothing"):
            load_dataset(target, lambda dataset: dataset["nothing"])

    def test_errors_name_a_change_of_the_dataset(self, tmp_path: Path) -> None:
        targets: list[Any] = [{}, tmp_path / "d"]
        for target in targets:
            to_nczarr(sample(8), target, encoding=CHUNKS)
            with xr.open_dataset(target, engine="nczarr") as dataset:
                other_variables(3)(target)
                for _ in range(2):
                    with pytest.raises(NCZarrError) as error:
                        dataset["a"].load()
                    told = "the dataset was changed after it was opened: open it again"
                    assert str(error.value).count(told) == 1

    @pytest.mark.usefixtures("no_waiting")
    @pytest.mark.parametrize("status", [403, 500])
    def test_a_server_that_fails_is_no_change(self, tmp_path: Path, status: int) -> None:
        """Neither is a URL that has expired."""
        to_nczarr(sample(8), tmp_path / "d", encoding=CHUNKS)
        objects = {
            f"/d/{path.relative_to(tmp_path / 'd').as_posix()}": path.read_bytes()
            for path in (tmp_path / "d").rglob("*")
            if path.is_file()
        }
        with (
            Server(objects, unavailable_status=status, relent=False) as server,
            xr.open_dataset(f"{server.url}/d?sig=1", engine="nczarr") as dataset,
        ):
            server.unavailable_every = 1
            with pytest.raises(StoreError, match=f"HTTP status {status}") as error:
                dataset["a"].load()
        assert "was changed" not in str(error.value)
        assert ("may have expired" in str(error.value)) == (status == 403)

    def test_errors_that_do_not_come_of_a_change(self, tmp_path: Path) -> None:
        to_nczarr(sample(8), tmp_path / "d", encoding=CHUNKS)
        (tmp_path / "d" / "a" / "0.0").write_bytes(b"damaged")
        with (
            xr.open_dataset(tmp_path / "d", engine="nczarr") as dataset,
            pytest.raises(FormatError) as error,
        ):
            dataset["a"].load()
        assert "was changed" not in str(error.value)
