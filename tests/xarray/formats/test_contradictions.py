"""Documents of Zarr 2 and NCZarr that contradict themselves: an error that names the document."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nczarr_xarray import FormatError, open_hierarchy
from nczarr_xarray.model import EnumType
from tests.support.builders.zarr2 import ARRAY, GROUP


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


# -- marks of enums that do not go with what is stored ---------------------------------------------

MARKED = {
    "_ARRAY_DIMENSIONS": ["x"],
    "_nczarr_enum": "/t",
    "flag_values": [0, 1, 2],
    "flag_meanings": "a b c",
}


def enum_of(attributes: dict[str, Any], **members: Any) -> EnumType | None:
    with open_hierarchy(store({"v/.zattrs": attributes}, **members)) as opened:
        variable = opened.hierarchy.root.variables["v"]
        assert variable.error is None
        assert ("_nczarr_enum" in variable.attributes) == (variable.enum is None)
        return variable.enum


def test_flags_that_were_an_enum() -> None:
    found = enum_of(MARKED)
    assert found is not None
    assert (found.name, found.members) == ("t", {"a": 0, "b": 1, "c": 2})


@pytest.mark.parametrize(
    ("attributes", "members"),
    [
        ({"_nczarr_enum": 5}, {}),
        ({"_nczarr_enum": "/nowhere/t"}, {}),
        ({"flag_values": [0.5, 1.5, 2.5]}, {}),
        ({"flag_values": "0 1 2"}, {}),
        ({"flag_values": [0, 1]}, {}),
        ({}, {"dtype": "<f4"}),
    ],
)
def test_flags_that_are_no_enum_any_more(
    attributes: dict[str, Any], members: dict[str, Any]
) -> None:
    assert enum_of(MARKED | attributes, **members) is None


def test_two_enums_of_one_name() -> None:
    keys = store(
        {"v/.zattrs": MARKED, "w/.zarray": ARRAY, "w/.zattrs": MARKED | {"flag_meanings": "d e f"}}
    )
    with open_hierarchy(keys) as opened:
        variables = opened.hierarchy.root.variables.values()
        enums = [one.enum for one in variables if one.enum is not None]
    assert len(enums) == 1
    assert enums[0].members in ({"a": 0, "b": 1, "c": 2}, {"d": 0, "e": 1, "f": 2})


# -- what old snapshots wrote ------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "doubtful"), [(">i4", True), ("<i4", False)])
def test_a_byte_order_that_is_doubtful(dtype: str, doubtful: bool) -> None:
    writer = {"_NCProperties": "version=2,netcdf=4.9.3-development,nczarr=2.0.0"}
    documents = {".zattrs": SUPERBLOCK | writer | {"_nczarr_group": {"arrays": ["v"]}}}
    with open_hierarchy(store(documents, dtype=dtype)) as opened:
        problems = [str(one) for one in opened.hierarchy.problems]
    assert any("v: is declared big-endian by" in one for one in problems) == doubtful


def test_an_object_whose_fill_value_is_bytes() -> None:
    members = {"dtype": "|O", "filters": [{"id": "vlen-bytes"}], "fill_value": "YWI="}
    keys = store({}, **members)
    del keys["v/0"]
    with open_hierarchy(keys) as opened:
        variable = opened.hierarchy.root.variables["v"]
        assert opened.read(variable).tolist() == [b"ab"] * 3
    assert "fill_value" in error_of(store({}, **members | {"fill_value": "no base64"}))
