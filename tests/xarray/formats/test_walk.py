"""Which objects an open reads, in how many rounds, and when ``.zmetadata`` is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import netCDF4
import pytest

from nczarr_xarray import DatasetNotFoundError, FormatError, StoreError
from nczarr_xarray.formats.nczarr.build import Naming, build
from nczarr_xarray.formats.nczarr.documents import Nodes, WalkOptions
from nczarr_xarray.formats.nczarr.walk import walk
from nczarr_xarray.formats.rounds import Answer, ReadRound
from nczarr_xarray.model import Hierarchy
from tests.support.builders.trees import read_tree
from tests.support.corpora.samples import CONSOLIDATED, NCZARR, vector

ASKED = WalkOptions(
    group="", tree=False, pure=False, consolidated=None, required=True, remote=False
)


def drive(
    objects: dict[str, bytes], *, listable: bool = True, **options: Any
) -> tuple[Nodes, list[ReadRound]]:
    """Run a walk over `objects`; return what it found and the read rounds it asked for."""
    walking = walk(replace(ASKED, **options), "test")
    rounds: list[ReadRound] = []
    try:
        asked = walking.send(None)
        while True:
            rounds.append(asked)
            listings = [children(objects, p) if listable else None for p in asked.prefixes]
            asked = walking.send(Answer([objects.get(key) for key in asked.keys], listings))
    except StopIteration as stop:
        return stop.value, rounds


def children(objects: dict[str, bytes], prefix: str) -> frozenset[str]:
    start = f"{prefix}/" if prefix else ""
    return frozenset(key[len(start) :].split("/")[0] for key in objects if key.startswith(start))


def hierarchy(objects: dict[str, bytes], **options: Any) -> Hierarchy:
    nodes, _ = drive(objects, **options)
    return build(nodes, Naming(), pure=options.get("pure", False))


def variables(tree: Hierarchy) -> set[str]:
    return {v.path for group in tree.root.walk() for v in group.variables.values()}


PURE = vector("dims-zarr+file-4.9.0")


@pytest.mark.parametrize("remote", [True, False])
def test_group_lists_need_one_round_per_depth(remote: bool) -> None:
    nodes, rounds = drive(NCZARR, tree=True, remote=remote)
    assert len(rounds) == 4  # root; its arrays and groups; those of /g1; those of /g1/sub
    assert set(nodes.groups) == {"", "g1", "g1/sub", "emptygrp"}


@pytest.mark.parametrize(("mode", "most"), [("nczarr", 3), ("nczarr,consolidated", 1)])
def test_500_variables_in_20_groups_need_no_more_rounds(
    tmp_path: Path, mode: str, most: int
) -> None:
    with netCDF4.Dataset(f"file://{tmp_path}/x.file#mode={mode},file", "w") as root:
        for g in range(20):
            group = root.createGroup(f"g{g:02}")
            group.createDimension("x", 10)
            for v in range(25):
                group.createVariable(f"v{v:02}", "f4", ("x",)).units = "K"
    objects = read_tree(tmp_path / "x.file")
    for listable in (True, False):
        nodes, rounds = drive(objects, listable=listable, tree=True, remote=True)
        assert len(rounds) <= most
        assert len(variables(build(nodes, Naming(), pure=False))) == 500


def test_one_group_needs_two_rounds_at_any_depth() -> None:
    nodes, rounds = drive(NCZARR, group="g1/sub", remote=True)
    assert len(rounds) == 2
    assert set(nodes.arrays) == {"g1/sub/deep", "g1/sub/tsub"}


def test_chunks_are_never_read() -> None:
    for objects in (NCZARR, PURE, CONSOLIDATED):
        _, rounds = drive(objects, tree=True, remote=True)
        files = {key.rpartition("/")[2] for one in rounds for key in one.keys}
        assert all(file.startswith(".") or file == "zarr.json" for file in files)


def test_lists_make_listing_unnecessary() -> None:
    whole = variables(hierarchy(NCZARR, tree=True))
    assert variables(hierarchy(NCZARR, tree=True, listable=False)) == whole
    _, rounds = drive(NCZARR, tree=True)
    assert all(not one.prefixes for one in rounds)


def test_trusted_metadata_make_listing_unnecessary() -> None:
    for consolidated, listed in ((True, ()), (None, ("",))):
        _, rounds = drive(CONSOLIDATED, tree=True, remote=True, consolidated=consolidated)
        assert [one.prefixes for one in rounds] == [listed]


def test_pure_zarr_is_listed() -> None:
    assert variables(hierarchy(PURE, tree=True)) == {
        "/x",
        "/g1/mixed",
        "/g1/shadow",
        "/g1/sub/deep",
    }


def test_pure_zarr_that_cannot_be_listed_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"cannot be listed.*\.zmetadata"):
        drive(PURE, listable=False, remote=True)


def test_nothing_there_is_an_error() -> None:
    for listable in (True, False):
        with pytest.raises(DatasetNotFoundError, match="no Zarr metadata"):
            drive({}, listable=listable, remote=True)
    with pytest.raises(DatasetNotFoundError, match="no Zarr metadata"):
        drive({"readme.txt": b"hello"})


def test_missing_group() -> None:
    for group in ("nope", "g1/nope", "..", "g1/../..", "x"):
        with pytest.raises(DatasetNotFoundError, match="no group"):
            drive(NCZARR, group=group)


def test_missing_root_zgroup_is_tolerated() -> None:
    objects = {key: data for key, data in PURE.items() if key not in (".zgroup", ".zattrs")}
    assert "/x" in variables(hierarchy(objects))


NO_GROUP = [b"{}", b"[]", b'"x"', b"null", b"2", b'{"zarr_format": 3}', b"words that are bare"]


@pytest.mark.parametrize("text", NO_GROUP, ids=repr)
def test_what_is_no_group_is_not_an_empty_one(text: bytes) -> None:
    for objects in ({}, PURE, NCZARR):
        with pytest.raises(FormatError, match=r"^\.zgroup: .*zarr_format is not 2"):
            drive({**objects, ".zgroup": text})
    objects = {**PURE, "g1/.zgroup": text}
    with pytest.raises(FormatError, match=r"^g1/\.zgroup: "):
        drive(objects, group="g1")
    problems = hierarchy(objects, tree=True).problems
    assert [error.object for error in problems] == ["g1/.zgroup"]


@pytest.mark.parametrize("version", [b"2", b'"2"', b"2.0"], ids=repr)
def test_spellings_of_the_version_that_netcdf_c_takes(version: bytes) -> None:
    drive({**PURE, ".zgroup": b'{"zarr_format": %s}' % version})


def test_pure_mode_ignores_structure_but_hides_it() -> None:
    tree = hierarchy(NCZARR, tree=True, pure=True)
    x = tree.root.variables["x"]
    assert [d.path for d in x.dimensions] == ["/x"]
    assert not tree.root.dimensions.keys() & {"unused", "time_empty"} - {"time_empty"}
    assert "_nczarr_group" not in tree.root.attributes


def test_array_dimensions_can_be_ignored() -> None:
    nodes, _ = drive(NCZARR, pure=True)
    x = build(nodes, Naming(array_dimensions=False), pure=True).root.variables["x"]
    assert [d.name for d in x.dimensions] == ["_Anonymous_Dim_3"]
    x = build(nodes, Naming("_zdim_", array_dimensions=False), pure=True).root.variables["x"]
    assert [d.name for d in x.dimensions] == ["_zdim_3"]


def test_dimension_of_a_group_elsewhere_is_found() -> None:
    objects = dict(NCZARR)
    attributes = json.loads(objects["g1/shadow/.zattrs"])
    attributes["_nczarr_array"]["dimension_references"] = ["/other/far"]
    objects["g1/shadow/.zattrs"] = json.dumps(attributes).encode()
    objects["other/.zgroup"] = b'{"zarr_format": 2}'
    objects["other/.zattrs"] = b'{"_nczarr_group": {"dimensions": {"far": 5}}}'
    shadow = hierarchy(objects, group="g1").root.find("g1").variables["shadow"]  # type: ignore[union-attr]
    assert [d.path for d in shadow.dimensions] == ["/other/far"]


def test_undeclared_dimension_is_an_error_of_its_variable() -> None:
    objects = dict(NCZARR)
    objects["x/.zattrs"] = objects["x/.zattrs"].replace(b'["/x"]', b'["/nope"]')
    tree = hierarchy(objects)
    assert "'/nope': there is none" in str(tree.root.variables["x"].error)
    assert tree.root.variables["tx"].error is None


def test_stale_backup_files_are_ignored() -> None:
    objects = dict(PURE)
    for extra in (".zattrs.~1~", ".zgroup.bak", "x/.zarray.~1~", ".DS_Store", "notes/readme.txt"):
        objects[extra] = b"not json"
    assert variables(hierarchy(objects, tree=True)) == variables(hierarchy(PURE, tree=True))


# -- consolidated metadata -------------------------------------------------------


def test_consolidated_saves_rounds() -> None:
    nodes, rounds = drive(CONSOLIDATED, tree=True, remote=True)
    assert len(rounds) == 1
    assert nodes.consolidated is not None
    assert variables(hierarchy(CONSOLIDATED, tree=True, remote=True)) == variables(
        hierarchy(CONSOLIDATED, tree=True, consolidated=False)
    )


def test_consolidated_is_not_read_where_it_saves_nothing() -> None:
    for options in ({"remote": False}, {"remote": True, "consolidated": False}):
        nodes, rounds = drive(CONSOLIDATED, tree=True, **options)
        assert nodes.consolidated is None
        assert all(".zmetadata" not in one.keys for one in rounds)


def test_consolidated_alone_is_enough() -> None:
    only = {".zmetadata": CONSOLIDATED[".zmetadata"]}
    nodes, _ = drive(only, tree=True, remote=True, listable=False)
    assert set(nodes.groups) == {"", "g1", "g1/sub", "emptygrp"}


def stale(change: str) -> dict[str, bytes]:
    objects = dict(CONSOLIDATED)
    if change == "root attribute":
        objects[".zattrs"] = objects[".zattrs"].replace(b"{", b'{"title": "new", ', 1)
    elif change == "dimension":
        objects[".zattrs"] = objects[".zattrs"].replace(b'"unused": 7', b'"unused": 8')
    elif change == "new child":
        objects["fresh/.zarray"] = objects["x/.zarray"]
    elif change == "lost child":
        objects = {key: data for key, data in objects.items() if not key.startswith("never/")}
    elif change == "not json":
        objects[".zmetadata"] = b"{"
    elif change == "empty":
        objects[".zmetadata"] = b'{"metadata": {}, "zarr_consolidated_format": 1}'
    elif change == "format":
        objects[".zmetadata"] = objects[".zmetadata"].replace(
            b'"zarr_consolidated_format": 1', b'"zarr_consolidated_format": 2'
        )
    return objects


CHANGES = ["root attribute", "dimension", "new child", "lost child", "not json", "empty", "format"]


@pytest.mark.parametrize("change", CHANGES)
def test_stale_consolidated_is_seen_and_left_aside(change: str) -> None:
    objects = stale(change)
    assert objects != CONSOLIDATED
    nodes, _ = drive(objects, tree=True, remote=True)
    assert nodes.consolidated is None
    assert "the single objects are read instead" in str(nodes.problems[0])
    by_hand, _ = drive(objects, tree=True, consolidated=False)
    assert nodes.arrays.keys() == by_hand.arrays.keys()
    assert nodes.groups == by_hand.groups


def test_consolidated_true_trusts_it() -> None:
    nodes, _ = drive(stale("dimension"), tree=True, consolidated=True)
    assert nodes.consolidated is not None
    assert not nodes.problems


@pytest.mark.parametrize("change", ["not json", "empty", "format"])
def test_consolidated_true_demands_it(change: str) -> None:
    with pytest.raises(FormatError, match=r"^\.zmetadata: "):
        drive(stale(change), consolidated=True)
    with pytest.raises(DatasetNotFoundError, match=r"has no \.zmetadata"):
        drive(NCZARR, consolidated=True)


def test_consolidated_that_lost_the_nczarr_keys_is_refused() -> None:
    """zarr-python drops unknown keys of ``.zgroup``, where G2U and G2L keep their structure."""
    objects = vector("dims-nczarr+file-4.9.2")
    metadata = {key: json.loads(data) for key, data in objects.items() if "/.z" in f"/{key}"}
    metadata[".zgroup"] = {"zarr_format": 2}
    document = {"zarr_consolidated_format": 1, "metadata": metadata}
    objects[".zmetadata"] = json.dumps(document).encode()
    with pytest.raises(FormatError, match="lacks the NCZarr keys"):
        drive(objects, consolidated=True)
    nodes, _ = drive(objects, remote=True)
    assert nodes.generation == "G2L"
    assert nodes.consolidated is None


def test_a_group_that_cannot_be_listed_is_named_as_part_of_a_dataset() -> None:
    part = {key.removeprefix("g1/"): data for key, data in NCZARR.items() if key.startswith("g1/")}
    with pytest.raises(StoreError, match=r"is a group of an NCZarr dataset: .* with group=$"):
        drive(part, listable=False, remote=True)
