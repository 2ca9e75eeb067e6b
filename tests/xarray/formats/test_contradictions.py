"""Documents of Zarr 2 and NCZarr that contradict themselves: an error that names the document."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nczarr_xarray import FormatError, open_hierarchy
from tests.support.zarr2 import ARRAY, GROUP


def store(documents: dict[str, Any], **members: Any) -> dict[str, bytes]:
    """A group with the array ``v`` of the values 0, 1, 2; some documents are other ones."""
    every = {".zgroup": GROUP, "v/.zarray": ARRAY | members, **documents}
    found = {key: json.dumps(document).encode() for key, document in every.items()}
    return found | {"v/0": np.arange(3, dtype="<i4").tobytes()}


def error_of(keys: dict[str, bytes], **options: Any) -> str:
    """Return why ``v``, or all of it, cannot be read."""
    try:
        with open_hierarchy(keys, **options) as opened:
            return str(opened.hierarchy.root.variables["v"].error)
    except FormatError as error:
        return str(error)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"chunks": [0]}, "a chunk length is 0"),
        ({"order": "A"}, 'order is "A", neither C nor F'),
        ({"dimension_separator": "-"}, 'dimension_separator is "-", neither . nor /'),
        ({"filters": {"id": "shuffle"}}, "'filters' is not an array"),
        ({"fill_value": [1, 2]}, "fill_value [1,2] is not one value"),
        ({"fill_value": 1 << 40}, "out of range"),
        ({"fill_value": -(1 << 31) - 1}, "out of range"),
        ({"fill_value": {}}, "fill_value"),
        ({"dtype": "|S3", "fill_value": 5}, "text was expected"),
    ],
)
def test_arrays(members: dict[str, Any], message: str) -> None:
    found = error_of(store({}, **members))
    assert "v/.zarray" in found
    assert message in found


@pytest.mark.parametrize("chunks", [[0], [1], [5]])
def test_a_chunk_length_of_a_dimension_without_elements_is_any(chunks: list[int]) -> None:
    assert error_of(store({}, shape=[0], chunks=chunks)) == "None"


SUPERBLOCK = {"_nczarr_superblock": {"version": "2.0.0"}}


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({".zattrs": {"_nczarr_superblock": 5}}, "superblock _nczarr_superblock is not a JSON obj"),
        ({".zattrs": SUPERBLOCK | {"_nczarr_group": 5}}, "is not a JSON object"),
        (
            {".zattrs": SUPERBLOCK | {"_nczarr_group": {"dimensions": 5, "arrays": ["v"]}}},
            "'dimensions' is not an object",
        ),
        ({".zattrs": SUPERBLOCK, "v/.zattrs": {"_nczarr_array": 5}}, "is not a JSON object"),
    ],
)
def test_structure_of_nczarr(documents: dict[str, Any], message: str) -> None:
    assert message in error_of(store(documents))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"/".join("g" * 5000) + "/.zgroup": GROUP}, "is nested too deeply"),
        ({"v/.zarray": 5}, ".zmetadata v/.zarray: is not a JSON object"),
        ({".zgroup": 5}, ".zmetadata .zgroup: is not a JSON object"),
    ],
)
def test_consolidated_metadata(metadata: dict[str, Any], message: str) -> None:
    whole = {".zgroup": GROUP, ".zattrs": {}, "v/.zarray": ARRAY} | metadata
    document = {"zarr_consolidated_format": 1, "metadata": whole}
    assert message in error_of(store({".zmetadata": document}), consolidated=True)
