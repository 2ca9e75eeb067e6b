"""Manifests of digests: the same for every form of the same data, and safe to read."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_xarray import FormatError, StoreError, to_nczarr
from nczarr_xarray.tools.compare import check_digests, write_digests

VALUES = np.arange(600, dtype="f4").reshape(20, 30)
DATASET = xr.Dataset({"v": (("x", "y"), VALUES), "name": ("x", np.array(["é"] * 20, object))})


def manifest(target: Path, digests: Path) -> dict[str, Any]:
    write_digests(target, digests)
    return json.loads(digests.read_text())


def test_digests_are_what_the_page_says(tmp_path: Path) -> None:
    to_nczarr(DATASET, tmp_path / "a")
    stated = manifest(tmp_path / "a", tmp_path / "digests.json")
    assert stated["variables"]["/v"] == {
        "shape": [20, 30],
        "block_shape": [20, 30],
        "sha256": [hashlib.sha256(VALUES.astype("<f4").tobytes()).hexdigest()],
    }
    text = (2).to_bytes(8, "little") + "é".encode()
    assert stated["variables"]["/name"]["sha256"] == [hashlib.sha256(text * 20).hexdigest()]
    assert stated["structure"]["variable /v"] == {
        "type": "float",
        "dimensions": "(/x, /y)",
        "shape": "(20, 30)",
    }


@pytest.mark.parametrize(
    "encoding",
    [
        {"chunksizes": (3, 4)},
        {"chunksizes": (20, 30), "zlib": True},
        {"endian": "big", "chunksizes": (1, 30)},
    ],
)
def test_blocks_are_read_well_from_any_grid(
    tmp_path: Path, encoding: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "nczarr_xarray.tools.compare.digests"
    monkeypatch.setattr(f"{module}.DIGEST_BYTES", 300)
    monkeypatch.setattr(f"{module}.READ_BYTES", 1000)
    to_nczarr(DATASET, tmp_path / "a", encoding={"v": {"chunksizes": (4, 9)}})
    stated = manifest(tmp_path / "a", tmp_path / "digests.json")
    assert len(stated["variables"]["/v"]["sha256"]) == 10
    to_nczarr(DATASET, tmp_path / "b", encoding={"v": encoding})
    assert check_digests(tmp_path / "b", tmp_path / "digests.json").equal
    changed = DATASET.copy(deep=True)
    changed["v"][7, 8] = -1
    to_nczarr(changed, tmp_path / "c", encoding={"v": encoding})
    found = check_digests(tmp_path / "c", tmp_path / "digests.json")
    assert found.differing == {"/v": 1}
    assert found.unit == "blocks"


def test_another_type_or_shape_is_a_difference_of_the_structure_alone(tmp_path: Path) -> None:
    to_nczarr(DATASET, tmp_path / "a")
    write_digests(tmp_path / "a", tmp_path / "digests.json")
    other = DATASET.isel(x=slice(10)).assign(v=("x", np.arange(10.0)))
    to_nczarr(other, tmp_path / "b")
    found = check_digests(tmp_path / "b", tmp_path / "digests.json")
    properties = {difference.property for difference in found.differences if difference.property}
    assert properties == {"type", "shape", "length", "dimensions"}
    assert found.differing == {}


def test_there_is_no_manifest_of_what_cannot_be_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset("v", data=VALUES, chunks=(10, 30), compression="gzip")
        offset = data.id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "x.h5").read_bytes())
    content[offset : offset + 9] = b"no chunk!"
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(StoreError, match=r"digests\.json: is not written"):
        write_digests(tmp_path / "x.h5", tmp_path / "digests.json")
    assert not (tmp_path / "digests.json").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    to_nczarr(DATASET, tmp_path / "a")
    with pytest.raises(StoreError, match=r"none/digests\.json: cannot be written"):
        write_digests(tmp_path / "a", tmp_path / "none" / "digests.json")


def damaged(document: Any, choose: random.Random) -> Any:
    """The document with one thing changed, somewhere."""
    if isinstance(document, (dict, list)) and document and choose.random() < 0.9:
        copy: Any = document.copy()
        at = choose.choice(sorted(copy)) if isinstance(copy, dict) else choose.randrange(len(copy))
        if choose.random() < 0.2:
            del copy[at]
        else:
            copy[at] = damaged(copy[at], choose)
        return copy
    return choose.choice([None, 0, -1, 10**30, "", "x", [], {}, [[]], {"a": "b"}, True, 0.5])


@given(st.integers(0, 1 << 30))
def test_a_damaged_manifest_differs_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    if not folder.exists():
        to_nczarr(DATASET, folder / "a")
        write_digests(folder / "a", folder / "digests.json")
    document = json.loads((folder / "digests.json").read_text())
    changed = folder / f"{seed}.json"
    changed.write_text(json.dumps(damaged(document, random.Random(seed))))
    try:
        found = check_digests(folder / "a", changed)
    except FormatError as error:
        assert "is no manifest of digests" in str(error)
    else:
        assert found.status in (0, 1)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', "[" * 10**5, "\udcff"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FormatError, match="is no manifest of digests"):
        check_digests(tmp_path, tmp_path / "x")
