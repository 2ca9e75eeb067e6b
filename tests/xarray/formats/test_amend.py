"""Existing documents, changed: what is not named stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.nczarr.emit import (
    add_children,
    array_documents,
    documents,
    generation_profile,
    set_attributes,
    set_dimension,
    set_shape,
)
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import Attribute, ChunkedArray, Dimension, Group, Variable, join
from tests.support.corpora.emit_models import (
    NCZARR,
    PROFILES,
    WRITER,
    attributes,
    differences,
    models,
    rewritable,
)
from tests.support.corpora.samples import Objects, vector
from tests.support.examples import examples

#: One dataset of netCDF-C for each spelling, with groups and attributes.
SPELT = {
    "dims-nczarr+file-4.8.1": "G2U",
    "dims-nczarr+file-4.9.2": "G2L",
    "dims-nczarr+file-4.10.1": "G2A",
    "types-nczarr+file-4.8.1": "G2U",
    "types-nczarr+file-4.9.0": "G2U",
    "types-nczarr+file-4.9.2": "G2L",
    "types-nczarr+file-4.9.3": "G2A",
    "types-zarr+file-4.10.1": "v2",
}


def node(objects: Objects, path: str) -> Objects:
    """The documents of one node."""
    return {key: data for key, data in objects.items() if key.rpartition("/")[0] == path}


def root_of(objects: Objects) -> Group:
    hierarchy = open_hierarchy(objects, use_zarr_fill_value_as_mask=False).hierarchy
    assert hierarchy.problems == ()
    return hierarchy.root


@pytest.mark.parametrize("name", rewritable())
def test_generations_are_recognised(name: str) -> None:
    objects = node(vector(name), "")
    generation = open_hierarchy(vector(name)).hierarchy.generation
    if generation == "G1":
        with pytest.raises(FormatError, match=r"^d: is .*nczarr copy"):
            generation_profile(objects, "d")
    else:
        assert generation_profile(objects, "d") == Profile(generation)  # type: ignore[arg-type]


def test_what_cannot_be_changed() -> None:
    with pytest.raises(FormatError, match=r"^d: is Zarr 3.*zarr-python"):
        generation_profile({"zarr.json": b"{}"}, "d")
    latin = {".zattrs": '{"a": "ü"}'.encode("latin-1"), ".zgroup": b'{"zarr_format": 2}'}
    with pytest.raises(FormatError, match=r"\.zattrs: holds bytes that are not UTF-8"):
        set_attributes(latin, "", [], PROFILES["v2"])


@pytest.mark.parametrize("name", SPELT)
def test_no_change_is_no_change(name: str) -> None:
    objects = vector(name)
    root = root_of(objects)
    for group in root.walk():
        path = group.path.strip("/")
        documents = node(objects, path)
        assert add_children(documents, path) == {}
        assert set_attributes(documents, path, [], PROFILES[SPELT[name]]) == {}
        arrays, groups = [*group.variables], [*group.groups]
        assert add_children(documents, path, arrays=arrays, groups=groups) == {}
        for dim in group.dimensions.values() if SPELT[name] != "v2" else ():
            assert add_children(documents, path, dimensions=[dim]) == {}
            assert set_dimension(documents, path, dim.name, dim.size) == {}


@pytest.mark.parametrize("name", SPELT)
def test_attributes_of_what_netcdf_c_wrote(name: str) -> None:
    objects = vector(name)
    profile = PROFILES[SPELT[name]]
    root = root_of(objects)
    holders: list[Any] = [*root.walk()]
    holders += [v for group in root.walk() for v in group.variables.values()]
    new = [
        Attribute("a new one", "double", np.array([0.1, np.nan])),
        Attribute("text", "char", "2020"),
    ]
    for holder in holders:
        path = holder.path.strip("/")
        changed = set_attributes(node(objects, path), path, new, profile)
        assert list(changed) == [f"{path}/.zattrs".lstrip("/")]
        objects |= changed
        holder.attributes |= {attribute.name: attribute for attribute in new}
        # user's first, as netCDF-C orders them
        own = [key.startswith(("_nc", "_NC", "_ARRAY")) for key in json.loads(changed.popitem()[1])]
        assert own == sorted(own)
    assert list(differences(root, root_of(objects))) == []


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
@settings(max_examples=examples(40))
@given(data=st.data())
def test_attributes_are_replaced(profile: Profile, data: st.DataObject) -> None:
    root = data.draw(models(profile))
    objects = documents(root, profile, WRITER)
    before = root_of(objects)
    holders: list[Any] = [*before.walk()]
    holders += [v for group in before.walk() for v in group.variables.values()]
    holder = data.draw(st.sampled_from(holders))
    new = data.draw(attributes(profile))
    if holder.attributes and new:  # one that is there gets another type and value
        name = data.draw(st.sampled_from([*holder.attributes]))
        new[name] = replace(next(iter(new.values())), name=name)
    path = holder.path.strip("/")
    objects |= set_attributes(node(objects, path), path, new.values(), profile)
    if profile.spelling is None:  # types are inferred: compare with what is written at once
        fresh = {".zgroup": objects[".zgroup"]}
        fresh |= set_attributes(fresh, "", (holder.attributes | new).values(), profile)
        assert list(root_of(fresh).attributes) == list(holder.attributes | new)
        new = {name: root_of(fresh).attributes[name] for name in new}
    holder.attributes |= new
    assert list(differences(before, root_of(objects))) == []


@pytest.mark.parametrize("profile", NCZARR, ids=lambda p: p.generation)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_variable_is_added_and_removed(profile: Profile, data: st.DataObject) -> None:
    root = data.draw(models(profile))
    group = data.draw(st.sampled_from([*root.walk()]))
    assume("new" not in {*group.variables, *group.groups, *group.dimensions})
    objects = documents(root, profile, WRITER)
    path = group.path.strip("/")
    dim = Dimension("new", 7, profile.generation == "G2A", group.path)
    key = join(group.path, "new").strip("/")
    array = ChunkedArray(key, (7,), (7,), np.dtype("<i2"), np.int16(-1))
    variable = Variable("new", group.path, (dim,), "short", np.dtype("<i2"), {}, array)

    listed = add_children(node(objects, path), path, dimensions=[dim], arrays=["new"])
    assert len(listed) == 1
    added = objects | array_documents(variable, profile) | listed
    group.dimensions["new"], group.variables["new"] = dim, variable
    assert list(differences(root, root_of(added))) == []
    assert add_children(node(added, path), path, dimensions=[dim], arrays=["new"]) == {}
    with pytest.raises(FormatError, match="exists already and is"):
        add_children(node(added, path), path, dimensions=[replace(dim, size=8)])

    grown = added | set_dimension(node(added, path), path, "new", 9)
    grown[f"{key}/.zarray"] = set_shape(grown[f"{key}/.zarray"], f"{key}/.zarray", (9,))
    longer = replace(dim, size=9)
    group.dimensions["new"] = longer
    group.variables["new"] = replace(
        variable, dimensions=(longer,), array=replace(array, shape=(9,))
    )
    assert list(differences(root, root_of(grown))) == []


def test_groups_are_added() -> None:
    for profile in NCZARR:
        root = Group(groups={"a": Group("/a")})
        objects = documents(root, profile, WRITER)
        listed = add_children(node(objects, ""), "", groups=["b", "a", "b"])
        child = documents(Group(groups={"b": Group("/b")}), profile, WRITER)
        added = objects | {key: child[key] for key in child if key.startswith("b/")} | listed
        assert list(root_of(added).groups) == ["a", "b"]


def test_pure_zarr_has_no_lists() -> None:
    objects = {".zgroup": b'{"zarr_format": 2}', ".zattrs": b"{}"}
    assert add_children(objects, "", dimensions=[Dimension("x", 3)], arrays=["v"]) == {}
    assert set_dimension(objects, "", "x", 5) == {}


def test_a_dimension_that_is_there_may_be_spelt_in_another_way() -> None:
    zattrs = b'{"_nczarr_group": {"dimensions": {"t": 0, "x": {"size": 3}}, "arrays": []}}'
    for there in (Dimension("t", 0), Dimension("t", 0, unlimited=True), Dimension("x", 3)):
        assert (
            b'{"t": 0, "x": {"size": 3}}'
            in add_children({".zattrs": zattrs}, "", dimensions=[there], arrays=["v"])[".zattrs"]
        )
    for other in (Dimension("t", 1), Dimension("x", 4), Dimension("x", 3, unlimited=True)):
        with pytest.raises(FormatError, match="exists already and is"):
            add_children({".zattrs": zattrs}, "", dimensions=[other])


def test_old_datasets_get_no_unlimited_dimensions() -> None:
    objects = node(vector("dims-nczarr+file-4.9.2"), "")
    with pytest.raises(FormatError, match=r"/t: NCZarr before netCDF-C 4.9.3 has no unlimited"):
        add_children(objects, "", dimensions=[Dimension("t", 3, unlimited=True)])
    with pytest.raises(FormatError, match=r"/: has no dimension 'nowhere'"):
        set_dimension(objects, "", "nowhere", 3)


def test_shapes() -> None:
    zarray = b'{"shape": [3,4], "chunks": [1,4], "fill_value": 1.50, "other": {"a": [1.0e0]}}'
    longer = set_shape(zarray, "v/.zarray", (10**12, 4))
    assert longer == zarray.replace(b"[3,4]", b"[1000000000000,4]")
    for damaged in (zarray, b'{"shape": 3}', b"{}"):
        with pytest.raises(FormatError, match=r"^v/\.zarray: has shape"):
            set_shape(damaged, "v/.zarray", (3,))
    with pytest.raises(FormatError, match="not a JSON object"):
        set_shape(b"[]", "v/.zarray", (3,))


def test_foreign_members_and_digits_stay() -> None:
    zattrs = (
        b'{"a": 1.10, "b": 00012, "c": {"_nczarr_x": [1e5,-0]}, "_nczarr_group": '
        b'{"dimensions": {"x": {"size": 3, "unlimited": 1, "note": "\xc3\xa9"}}, '
        b'"arrays": [], "groups": [], "more": null}}'
    )
    changed = set_dimension({".zattrs": zattrs}, "", "x", 4)
    assert changed == {".zattrs": zattrs.replace(b'"size": 3', b'"size": 4')}


def test_structures_that_are_damaged() -> None:
    for structure in ('"x"', '{"dimensions": []}', '{"dims": 3}'):
        zgroup = f'{{"zarr_format": 2, "_nczarr_group": {structure}}}'.encode()
        with pytest.raises(FormatError, match="is not a JSON"):
            add_children({".zgroup": zgroup}, "", dimensions=[Dimension("x", 3)])
    hidden = Attribute("_nczarr_group", "char", "x")
    with pytest.raises(FormatError, match=r"g/\.zattrs: '_nczarr_group' is NCZarr's own"):
        set_attributes({"g/.zattrs": b"{}"}, "g", [hidden], PROFILES["G2A"])


@pytest.mark.parametrize("profile", NCZARR, ids=lambda p: p.generation)
def test_attributes_of_objects_without_any(profile: Profile) -> None:
    # 4.8.1 writes no .zattrs where there are no attributes, and 4.9.0 types without a map
    assert profile.spelling is not None
    new = [Attribute("a", "float", np.array([0.1], "f4"))]
    bare = f'{{"{profile.spelling.attributes}": {{}}}}'.encode()
    for before in ({}, {"v/.zattrs": bare}):
        after = json.loads(set_attributes(before, "v", new, profile)["v/.zattrs"])
        assert after == {"a": 0.1, profile.spelling.attributes: {"types": {"a": "<f4"}}}
