"""Whatever is done to a dataset: an error of ours that names the object, never anything else.

`ci/fuzz.py` runs the same over tens of thousands of damaged datasets.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError, NCZarrError, NCZarrWarning, open_hierarchy
from tests.support.builders.trees import write_tree
from tests.support.corpora import samples
from tests.support.faults import damage, promises
from tests.support.marks import slow_but

pytestmark = pytest.mark.filterwarnings(
    "ignore:h5py is running against:UserWarning",
    "ignore::RuntimeWarning",
    "ignore:.*nc_def_var_chunking_ints",  # a chunk that was cut may be of such a length
)

GOOD = {name: make() for name, make in samples.DATASETS.items()}
EVERY = slow_but(GOOD, "codecs", "dims-zarr+file-4.8.0", "strings-nczarr+file-4.10.1", "v3")
NAMED = samples.vector("dims-nczarr+file-4.10.1")


@pytest.mark.parametrize("name", EVERY)
def test_random_damage(name: str) -> None:
    objects = GOOD[name]
    before = promises.read_all(objects)
    assert not isinstance(before, NCZarrError)
    for number in range(25):
        damaged, touched = damage.mutate(objects, random.Random(f"{name}/{number}"))
        after = promises.read_all(damaged, remote=number % 4 == 3)
        if not isinstance(after, NCZarrError):
            promises.check_untouched(before, after, touched)


DOCUMENTS = [b"", b"{", b"null", b"[]", b"1", b'"text"', b"\xff\xfe", b"[" * 100_000, b"\0" * 50]


@pytest.mark.parametrize("name", EVERY)
def test_every_document_replaced(name: str) -> None:
    objects = GOOD[name]
    metadata = [
        key for key in objects if key.rpartition("/")[2] in (*samples.METADATA, "zarr.json")
    ]
    assert metadata
    for key in metadata[:12]:
        for content in (None, *DOCUMENTS):
            damaged = {k: v for k, v in objects.items() if k != key}
            if content is not None:
                damaged[key] = content
            promises.read_all(damaged)


def test_chunks_that_inflate_to_gigabytes_stop_at_their_size() -> None:
    for label, objects in _bombs():
        found = promises.read_all(objects)
        assert not isinstance(found, NCZarrError), label
        assert all(isinstance(value, NCZarrError) for value in found.values()), label


def _bombs() -> list[tuple[str, dict[str, bytes]]]:
    cases = []
    for codec, chunk in damage.bombs().items():
        metadata = {
            "zarr_format": 2, "shape": [10], "chunks": [10], "dtype": "<i4", "fill_value": 0,
            "order": "C", "filters": None, "compressor": {"id": codec, "level": 1},
        }  # fmt: skip
        objects = {".zgroup": b'{"zarr_format": 2}', "v/0": chunk}
        cases.append((codec, {**objects, "v/.zarray": json.dumps(metadata).encode()}))
    return cases


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "a/b", "a/../..", "nul\0", "x" * 5000])
def test_hostile_names_in_group_lists(tmp_path: Path, name: str) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    secret = tmp_path / ".zattrs"
    secret.write_text('{"secret": "do not read"}')
    structure = json.loads(NAMED[".zattrs"])
    structure["_nczarr_group"]["arrays"].append(name)
    structure["_nczarr_group"]["groups"].append(name)
    inside = tmp_path / "inside"
    write_tree(inside, {**NAMED, ".zattrs": json.dumps(structure).encode()})
    with pytest.warns(NCZarrWarning):
        groups = xr.open_groups(inside, engine="nczarr")
    assert {"/", "/g1", "/g1/sub", "/emptygrp"} == set(groups)
    assert all("secret" not in ds.attrs for ds in groups.values())
    assert groups["/"].tx.shape == (5, 3)


def test_hostile_references_read_nothing_outside() -> None:
    for reference in ("/../x", "..", "/a/../../x", "/\0/x", "//", ""):
        objects = dict(NAMED)
        attributes = json.loads(objects["x/.zattrs"])
        attributes["_nczarr_array"]["dimension_references"] = [reference]
        objects["x/.zattrs"] = json.dumps(attributes).encode()
        found = promises.read_all(objects)
        assert not isinstance(found, NCZarrError)
        assert isinstance(found["/x"], NCZarrError)
        assert isinstance(found["/tx"], np.ndarray)


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("victim", ["x/.zarray", "x/.zattrs", "x/0"])
def test_bad_coordinate_warns_now_and_raises_when_touched(victim: str, chunks: Any) -> None:
    objects: Any = {**NAMED, victim: b"{"}
    with pytest.warns(NCZarrWarning, match="'/x' cannot be read"):
        ds = xr.open_dataset(objects, engine="nczarr", chunks=chunks)
    assert "x" in repr(ds)
    assert ds.tx.isel(time=0).values.shape == (3,)
    with pytest.raises(FormatError, match="x/"):
        ds.x.load()


def test_bad_text_variable_does_not_keep_a_dataset_from_opening() -> None:
    objects: Any = dict(samples.vector("strings-nczarr+file-4.10.1"))
    with open_hierarchy(objects) as opened:
        variables = opened.hierarchy.root.variables.values()
        name = next(v.name for v in variables if v.nc_type == "string" and f"{v.name}/0" in objects)
    objects[f"{name}/0"] = objects[f"{name}/0"][:3]
    with pytest.warns(NCZarrWarning, match=f"'/{name}' cannot be read"):
        ds = xr.open_dataset(objects, engine="nczarr")
    with pytest.raises(FormatError, match="truncated"):
        ds[name].load()


def test_pickle_codec_is_refused() -> None:
    metadata = json.loads(NAMED["x/.zarray"])
    metadata["dtype"], metadata["fill_value"] = "|O", None
    metadata["filters"] = [{"id": "pickle"}]
    objects = {**NAMED, "x/.zarray": json.dumps(metadata).encode()}
    with open_hierarchy(objects) as opened:
        with pytest.raises(FormatError, match="pickle"):
            opened.read(opened.hierarchy.root.variables["x"])


@pytest.mark.parametrize("shape", [[-1], [2**63], [2**62, 2**62], [True], [1.5], {}, None, 3])
def test_impossible_shapes(shape: object) -> None:
    metadata = json.loads(NAMED["x/.zarray"])
    metadata["shape"] = shape
    objects = {**NAMED, "x/.zarray": json.dumps(metadata).encode()}
    found = promises.read_all(objects)
    assert not isinstance(found, NCZarrError)
    assert isinstance(found["/x"], NCZarrError)
