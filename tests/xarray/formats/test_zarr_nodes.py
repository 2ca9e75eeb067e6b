"""Zarr stores as other writers leave them: nothing opens empty, or in part, without a word.

Every store is a mapping from keys to bytes, written out here.
"""

from __future__ import annotations

import gzip
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from nczarr_xarray import DatasetNotFoundError, FormatError, NCZarrWarning, open_hierarchy, validate
from tests.support.builders.copying import copy
from tests.support.builders.trees import write_tree
from tests.support.builders.zarr2 import ARRAY as ARRAY_2
from tests.support.builders.zarr2 import GROUP
from tests.support.corpora import samples
from tests.support.faults.promises import as_remote
from tests.support.marks import each_once
from tests.support.servers.httpserver import Server

#: xarray says so of every square array.
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")

DATA = np.arange(3, dtype="<i4")
Store = dict[str, bytes]


def text(document: Any) -> bytes:
    return json.dumps(document).encode()


GROUP_2 = text(GROUP)
GROUP_3 = {"zarr_format": 3, "node_type": "group", "attributes": {}}
ARRAY_3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [3],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "attributes": {},
}


def array_2(path: str = "v", **members: Any) -> Store:
    """An array of Zarr 2 with the values 0, 1, 2."""
    return {f"{path}/.zarray": text(ARRAY_2 | members), f"{path}/0": DATA.tobytes()}


def array_3(path: str = "v", **members: Any) -> Store:
    """An array of Zarr 3 with the values 0, 1, 2."""
    return {f"{path}/zarr.json": text(ARRAY_3 | members), f"{path}/c/0": DATA.tobytes()}


def group_3(path: str = "", **members: Any) -> Store:
    return {f"{path}/zarr.json".lstrip("/"): text(GROUP_3 | members)}


def opened(store: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(store, engine="nczarr", **options)


def silently(store: Any, **options: Any) -> xr.Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NCZarrWarning)
        return opened(store, **options)


def warned(store: Any, **options: Any) -> tuple[xr.Dataset, str]:
    with pytest.warns(NCZarrWarning) as caught:
        ds = opened(store, **options)
    return ds, "\n".join(str(w.message) for w in caught)


# -- nothing but consolidated metadata -------------------------------------------------

CHUNKS = {"v/c/0": DATA.tobytes(), "g/w/c/0": DATA.tobytes()}


def inline(metadata: dict[str, Any]) -> bytes:
    known = {"kind": "inline", "must_understand": False, "metadata": metadata}
    return text(GROUP_3 | {"consolidated_metadata": known})


NODES_3 = {"v": ARRAY_3, "g": GROUP_3, "g/w": ARRAY_3}
NODES_2 = {
    ".zgroup": {"zarr_format": 2},
    "v/.zarray": ARRAY_2,
    "v/.zattrs": {"units": "K"},
    "g/.zgroup": {"zarr_format": 2},
    "g/w/.zarray": ARRAY_2,
}
ONLY_CONSOLIDATED = {
    "3": {"zarr.json": inline(NODES_3), **CHUNKS},
    "3, keys of objects": {
        "zarr.json": inline({f"/{path}/zarr.json": node for path, node in NODES_3.items()}),
        **CHUNKS,
    },
    "3, no chunks": {"zarr.json": inline(NODES_3)},
    "2": {
        ".zgroup": GROUP_2,
        ".zmetadata": text({"zarr_consolidated_format": 1, "metadata": NODES_2}),
        **{key.replace("c/", ""): data for key, data in CHUNKS.items()},
    },
    "2, nothing else": {
        ".zmetadata": text({"zarr_consolidated_format": 1, "metadata": NODES_2}),
    },
}


@pytest.mark.parametrize("store", ONLY_CONSOLIDATED.values(), ids=ONLY_CONSOLIDATED)
@pytest.mark.parametrize("consolidated", [None, True])
def test_nothing_but_consolidated_metadata(store: Any, consolidated: bool | None) -> None:
    options: dict[str, Any] = {"consolidated": consolidated}
    expected = DATA if len(store) > 2 else DATA * 0
    assert silently(store, **options).v.values.tolist() == expected.tolist()
    assert silently(store, group="g", **options).w.values.tolist() == expected.tolist()
    groups = xr.open_groups(store, engine="nczarr", **options)
    assert {path: list(group) for path, group in groups.items()} == {"/": ["v"], "/g": ["w"]}
    with pytest.raises(DatasetNotFoundError, match="no group"):
        opened(store, group="nope", **options)


@pytest.mark.parametrize("name", ["3", "2"])
def test_nothing_but_consolidated_metadata_in_files_and_over_http(
    tmp_path: Path, name: str
) -> None:
    assert (
        silently(write_tree(tmp_path / "x.zarr", ONLY_CONSOLIDATED[name])).v.values.tolist()
        == DATA.tolist()
    )
    files = {f"/x.zarr/{key}": data for key, data in ONLY_CONSOLIDATED[name].items()}
    with Server(files) as server:
        ds = silently(f"{server.url}/x.zarr", consolidated=True)
        assert ds.v.values.tolist() == DATA.tolist()


@pytest.mark.parametrize("name", ["3", "2"])
def test_consolidated_metadata_that_are_not_to_be_used(name: str) -> None:
    ds, message = warned(ONLY_CONSOLIDATED[name], consolidated=False)
    assert not ds.variables
    assert re.search(r"name '/v'.* without a zarr.json|'/g', '/v' are left out", message)


def test_nodes_that_only_the_consolidated_metadata_name() -> None:
    """It may be stale, or the node's own metadata lost: nobody can tell, so it is said."""
    store = {"zarr.json": inline({"v": ARRAY_3, "lost": ARRAY_3}), **array_3()}
    ds, message = warned(store)
    assert list(ds) == ["v"]
    assert "name '/lost' without a zarr.json: left out; consolidated=True takes" in message
    assert set(silently(store, consolidated=True)) == {"v", "lost"}


def test_consolidated_metadata_of_the_wanted_group() -> None:
    """A server that cannot list: those of any group above, or of the group, lead the way."""
    known = {"kind": "inline", "must_understand": False, "metadata": {"v": ARRAY_3}}
    store = group_3() | group_3("g", consolidated_metadata=known) | array_3("g/v")
    with Server({f"/x.zarr/{key}": data for key, data in store.items()}) as server:
        assert silently(f"{server.url}/x.zarr", group="g").v.values.tolist() == DATA.tolist()


@pytest.mark.parametrize("store", [group_3() | array_3(), {".zgroup": GROUP_2} | array_2()])
def test_the_mode_consolidated_is_a_wish(tmp_path: Path, store: Store) -> None:
    write_tree(tmp_path / "x", store)
    url = f"file://{tmp_path}/x#mode=nczarr,consolidated"
    ds, message = warned(url)
    assert ds.v.values.tolist() == DATA.tolist()
    assert re.search(r"has no (\.zmetadata|consolidated metadata); ", message)
    with pytest.raises(FileNotFoundError, match=r"; open with consolidated=False"):
        opened(tmp_path / "x", consolidated=True)


# -- what is no node ---------------------------------------------------------------------

STRANGERS = {
    "array of 3 in 2": ({".zgroup": GROUP_2} | array_2() | array_3("w"), "'/w' is left out, of Z"),
    "array of 2 in 3": (group_3() | array_3() | array_2("w"), "'/w' is left out, of Zarr 2"),
    "group of 2 in 3": (group_3() | array_3() | {"g/.zgroup": GROUP_2}, "'/g' is left out, of Z"),
    "chunks in 2": ({".zgroup": GROUP_2, "w/0": b""} | array_2(), "'/w' is left out, without .z"),
    "chunks in 3": (group_3() | {"w/c/0": b""} | array_3(), "'/w' is left out, without zarr.json"),
    "in between, 2": ({".zgroup": GROUP_2} | array_2() | array_2("g/w"), "'/g' is left out"),
    "in between, 3": (group_3() | array_3() | array_3("g/h/w"), "'/g' is left out"),
    "in between, consolidated": (
        {"zarr.json": inline({"v": ARRAY_3, "g/h/w": ARRAY_3})} | CHUNKS,
        "'/g/h' is left out",
    ),
    "many": ({".zgroup": GROUP_2} | array_2() | {f"{i}/0": b"" for i in range(9)}, "'/4' and 4 m"),
}


@pytest.mark.parametrize(("store", "message"), STRANGERS.values(), ids=STRANGERS)
def test_what_is_left_out_is_told(store: Store, message: str) -> None:
    ds, told = warned(store)
    assert list(ds) == ["v"]
    assert message in told


def test_a_byte_order_mark() -> None:
    for store in ({".zgroup": GROUP_2} | array_2(), group_3() | array_3()):
        marked = {
            key: b"\xef\xbb\xbf" + data if data.startswith(b"{") else data
            for key, data in store.items()
        }
        assert silently(marked).v.values.tolist() == DATA.tolist()


def test_an_array_that_is_a_group_too() -> None:
    ds, message = warned({".zgroup": GROUP_2, "v/.zgroup": GROUP_2} | array_2() | array_2("v/w"))
    assert list(ds) == ["v"]
    assert "v/.zgroup: belongs to an array: what the group holds is left out" in message


@pytest.mark.parametrize("separator", [None, "."])
def test_a_separator_that_is_not_said(separator: str | None) -> None:
    store = {".zgroup": GROUP_2} | array_2(dimension_separator=separator)
    assert silently(store).v.values.tolist() == DATA.tolist()


@pytest.mark.parametrize("root", [{".zgroup": GROUP_2} | array_2(), group_3() | array_3()])
def test_files_beside_the_nodes_are_nobodys_business(root: Store) -> None:
    assert list(silently(root | {"README.md": b"#", ".DS_Store": b"\0", ".git/HEAD": b""})) == ["v"]


def test_a_root_of_zarr_3_without_metadata() -> None:
    """Zarrita and tensorstore make arrays and no groups."""
    store: Any = array_3() | group_3("g") | array_3("g/w")
    assert silently(store).v.values.tolist() == DATA.tolist()
    assert silently(store, group="g").w.values.tolist() == DATA.tolist()
    assert list(xr.open_groups(store, engine="nczarr")) == ["/", "/g"]
    with pytest.raises(DatasetNotFoundError, match="no Zarr metadata found"):
        opened({"g/h/zarr.json": b"{}"})


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["b.nc", "a.HDF5", "README"], r"it holds netCDF files \(a\.HDF5, b\.nc\): name one"),
        ([f"{year}.nc" for year in range(2000, 2007)], r"2004\.nc and 2 more\): name one"),
        (["repo", "snapshots/A", "transactions/B"], "open it with icechunk"),
        (["README"], r"zarr\.json\)$"),
    ],
)
def test_folders_that_are_no_datasets(tmp_path: Path, names: list[str], advice: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(DatasetNotFoundError, match=f"no Zarr metadata found.*{advice}"):
        xr.open_dataset(tmp_path, engine="nczarr")


def test_metadata_of_both_versions() -> None:
    """``zarr migrate v3`` leaves those of version 2; zarr-python then reads version 3."""
    encoding = {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    three = group_3() | {"v/zarr.json": text(ARRAY_3 | encoding)}
    assert silently({".zgroup": GROUP_2} | array_2() | three).v.values.tolist() == DATA.tolist()
    # children of version 3 alone were not found at all
    assert list(silently({".zgroup": GROUP_2} | group_3() | array_3())) == ["v"]
    # of NCZarr, version 2 tells more
    lists = {"dimensions": {"x": 3}, "arrays": ["v"], "groups": []}
    nczarr = {"_nczarr_superblock": {"version": "2.0.0"}, "_nczarr_group": lists}
    array = {"v/.zattrs": text({"_nczarr_array": {"dimension_references": ["/x"]}})}
    store = {".zgroup": GROUP_2, ".zattrs": text(nczarr)} | array_2() | array | three
    assert silently(store).v.dims == ("x",)


SINGLE = {"2": {".zarray": text(ARRAY_2), "0": b""}, "3": {"zarr.json": text(ARRAY_3)}}


@pytest.mark.parametrize("store", SINGLE.values(), ids=SINGLE)
def test_a_single_array_says_so(store: Store) -> None:
    with pytest.raises(FormatError, match="is a single Zarr array, not a group: open the group or"):
        opened(store)
    # as the error says
    assert list(silently({f"a/{key}": data for key, data in store.items()})) == ["a"]


def test_an_array_is_no_group() -> None:
    with pytest.raises(DatasetNotFoundError, match="'/v' is an array, no group"):
        opened(group_3() | array_3(), group="v")


def test_drafts_of_zarr_3_say_so() -> None:
    """As zarr-python 2 wrote with ZARR_V3_EXPERIMENTAL_API."""
    draft = {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json",
        "extensions": [],
    }
    store = {"zarr.json": text(draft), "meta/root/v.array.json": text({"shape": [3]})}
    with pytest.raises(FormatError, match=r"^zarr.json: zarr_format is .*purl.*, not 3 \(a draft"):
        opened(store)
    with pytest.raises(FormatError, match="node_type is null"):
        opened({"zarr.json": text({"zarr_format": 3})})


# -- one bad attribute ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[], "text", 1, [[]]])
def test_attributes_that_are_no_object(bad: Any) -> None:
    two = {".zgroup": GROUP_2, ".zattrs": text(bad), "g/.zgroup": GROUP_2, "g/.zattrs": text(bad)}
    three = group_3(attributes=bad) | group_3("g", attributes=bad) | array_3("w", attributes=bad)
    stores: list[Any] = [two | array_2() | array_2("g/w"), three | array_3() | array_3("g/w")]
    for store in stores:
        with pytest.warns(NCZarrWarning, match="not a JSON object"):
            groups = xr.open_groups(store, engine="nczarr")
        assert groups["/"].v.values.tolist() == groups["/g"].w.values.tolist() == DATA.tolist()
        assert "w" not in groups["/"] or groups["/"].w.values.tolist() == DATA.tolist()


ODD_FILLS: list[Any] = [
    {"a": 1},
    {},
    [[1]],
    [{}],
    [],
    [1, 2],
    [1],
    None,
    True,
    "NaN",
    "no base64",
    "",
    [None],
]
TYPES = {"float32": 0.0, "int32": 0, "bool": False, "complex64": [0, 0], "string": ""}


@pytest.mark.parametrize("data_type", TYPES)
@pytest.mark.parametrize("fill", ODD_FILLS, ids=json.dumps)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
def test_fill_values_that_are_no_element(data_type: str, fill: Any) -> None:
    """The attribute is one of xarray's; Zarr 3 has a fill value besides."""
    members = {
        "data_type": data_type,
        "fill_value": TYPES[data_type],
        "attributes": {"_FillValue": fill, "units": "1"},
    }
    if data_type == "string":
        members["codecs"] = [{"name": "vlen-utf8", "configuration": {}}]
    if data_type == "bool":
        members["codecs"] = [{"name": "bytes"}]
    odd = {"v/zarr.json": text(ARRAY_3 | members)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        ds = opened(group_3() | odd | array_3("w"))
        raw = opened(group_3() | odd | array_3("w"), decode_cf=False)
    assert ds.w.values.tolist() == DATA.tolist()
    assert ds.v.load().shape == (3,)
    assert ds.v.attrs["units"] == "1"
    kind = {"float32": "f", "int32": "i", "bool": "b", "complex64": "c"}.get(data_type, "O")
    assert raw.v.dtype.kind in (kind, "U")


@pytest.mark.parametrize(("fill", "expected"), [("NaN", np.nan), ("-Infinity", -np.inf)])
def test_fill_values_by_name(fill: str, expected: float) -> None:
    members = {"data_type": "float32", "fill_value": fill, "attributes": {"_FillValue": fill}}
    ds = silently(group_3() | {"v/zarr.json": text(ARRAY_3 | members)}, decode_cf=False)
    np.testing.assert_equal(ds.v.attrs["_FillValue"], np.float32(expected))
    np.testing.assert_equal(ds.v.values, np.full(3, expected, "f4"))


# -- dimensions ----------------------------------------------------------------------------


def square(dtype: str) -> tuple[Store, np.ndarray[Any, Any]]:
    """An array of 2 x 2 without names, so with one dimension twice."""
    values = {"|O": np.array([["a", "ß"], ["", "cd"]], object)}.get(dtype)
    members: dict[str, Any] = {"shape": [2, 2], "chunks": [2, 2], "dtype": dtype}
    if values is not None:
        members |= {"filters": [{"id": "vlen-utf8"}], "fill_value": ""}
        chunk = bytes(numcodecs.VLenUTF8().encode(values))
    else:
        numbers = np.arange(4).reshape(2, 2)
        values = numbers.astype(dtype)
        members |= {"fill_value": None}
        chunk = values.tobytes()
    return {"s/.zarray": text(ARRAY_2 | members), "s/0.0": chunk}, values


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("dtype", ["|O", "<U3", "|S3", "<f4", "<i2", "|b1", "<M8[s]", "<c8"])
def test_two_equal_dimensions(dtype: str, chunks: Any) -> None:
    store, values = square(dtype)
    ds = silently({".zgroup": GROUP_2} | array_2() | store, chunks=chunks)
    assert ds.s.dims == ("_Anonymous_Dim_2",) * 2
    assert ds.s.values.tolist() == values.astype(ds.s.dtype).tolist()
    assert ds.v.values.tolist() == DATA.tolist()


def test_names_as_zarr_2_has_them() -> None:
    """GDAL writes ``_ARRAY_DIMENSIONS`` in Zarr 3, too."""
    old = {"_ARRAY_DIMENSIONS": ["x"]}
    ds = silently(group_3() | array_3(attributes=old))
    assert ds.v.dims == ("x",)
    assert not ds.v.attrs
    ds = silently(group_3() | array_3(attributes=old, dimension_names=["y"]))
    assert ds.v.dims == ("y",)
    ds = silently(group_3() | array_3(attributes={"_ARRAY_DIMENSIONS": "x"}))
    assert ds.v.dims == ("_Anonymous_Dim_3",)


def test_unnamed_dimensions_are_called_as_wanted(tmp_path: Path) -> None:
    store = group_3() | array_3(attributes={"_ARRAY_DIMENSIONS": ["x"]}) | array_3("w")
    ds = silently(store, anonymous_dimension_prefix="dim")
    assert (ds.v.dims, ds.w.dims) == (("x",), ("dim3",))
    write_tree(tmp_path, store)
    ds = silently(f"file://{tmp_path}#mode=nczarr,noxarray")
    assert ds.v.dims == ("_Anonymous_Dim_3",)


# -- groups without metadata above what is wanted --------------------------------------------


def nodes(zarr_format: int, groups: list[str]) -> Store:
    """The array ``a/b/v``, and some of the groups above it."""
    if zarr_format == 3:
        store = array_3("a/b/v", dimension_names=["x"])
        return store | {key: data for path in groups for key, data in group_3(path).items()}
    store = array_2("a/b/v") | {"a/b/v/.zattrs": text({"_ARRAY_DIMENSIONS": ["x"]})}
    return store | {f"{path}/.zgroup".lstrip("/"): GROUP_2 for path in groups}


def with_consolidated(store: Store) -> Store:
    metadata = {key: json.loads(data) for key, data in store.items() if "/.z" in f"/{key}"}
    return store | {".zmetadata": text({"zarr_consolidated_format": 1, "metadata": metadata})}


ABOVE = {"root": [""], "root and a": ["", "a"], "a": ["a"], "none": [], "a/b": ["a/b"]}


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("name", ABOVE)
def test_groups_between_need_no_metadata(name: str, remote: bool, consolidated: bool) -> None:
    store = nodes(2, ABOVE[name])
    below = {key.removeprefix("a/b/"): data for key, data in store.items() if "a/b/" in key}
    expected = opened(below | {".zgroup": GROUP_2}).load()
    store = with_consolidated(store) if consolidated else store
    ds = silently(as_remote(store) if remote else store, group="a/b")
    xr.testing.assert_identical(ds, expected)
    for group in ("a/b/v", "nowhere", "nowhere/b", "a/nowhere"):
        with pytest.raises(DatasetNotFoundError, match="no group '/"):
            opened(as_remote(store) if remote else store, group=group)


@pytest.mark.parametrize("groups", [["", "a/b"], ["a/b"]], ids=repr)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_with_metadata_opens_as_engine_zarr_opens_it(
    zarr_format: int, groups: list[str]
) -> None:
    store = nodes(zarr_format, groups)
    options: dict[str, Any] = {"group": "a/b", "mask_and_scale": False}
    theirs = xr.open_dataset(as_remote(store), engine="zarr", consolidated=False, **options)
    xr.testing.assert_equal(silently(store, **options), theirs)
    assert theirs.v.values.tolist() == DATA.tolist()
    with pytest.raises(DatasetNotFoundError, match="no group '/a"):
        opened(store, group="a/nowhere")


def test_groups_of_nczarr_have_metadata() -> None:
    store = samples.vector("dims-nczarr+file-4.10.1")
    with pytest.raises(DatasetNotFoundError, match="no group '/added'"):
        opened(store | {f"added/{key}": data for key, data in array_2().items()}, group="added")


# -- one name for dimensions of different lengths ------------------------------------------------


def lying_along(zarr_format: int, arrays: dict[str, dict[str, int]]) -> Store:
    """Arrays of 0, 1, 2 ... by name, each with the lengths of its dimensions by their names."""
    store = group_3() if zarr_format == 3 else {".zgroup": GROUP_2}
    for path, lengths in arrays.items():
        names, shape = [name.strip() for name in lengths], [*lengths.values()]
        data = np.arange(np.prod(shape), dtype="<i4").tobytes()
        if zarr_format == 3:
            grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
            array = array_3(path, shape=shape, chunk_grid=grid, dimension_names=names)
            store[f"{path}/zarr.json"] = array[f"{path}/zarr.json"]
            store[f"{path}/c/{'/'.join('0' * len(shape))}"] = data
        else:
            store[f"{path}/.zarray"] = array_2(path, shape=shape, chunks=shape)[f"{path}/.zarray"]
            store[f"{path}/.zattrs"] = text({"_ARRAY_DIMENSIONS": names})
            store[f"{path}/{'.'.join('0' * len(shape))}"] = data
    return store


PYRAMID = {str(level): {"y": 12 >> level, "x": 20 >> level} for level in range(3)}

AMBIGUOUS: dict[str, tuple[dict[str, dict[str, int]], dict[str, tuple[str, ...]]]] = {
    "the first": (PYRAMID, {"0": ("y", "x"), "1": ("y_6", "x_10"), "2": ("y_3", "x_5")}),
    "most": (
        {"a": {"x": 4}, "b": {"x": 3}, "c": {"x": 3}},
        {"a": ("x_4",), "b": ("x",), "c": ("x",)},
    ),
    "the coordinate": ({"a": {"x": 4}, "x": {"x": 3}}, {"a": ("x_4",), "x": ("x",)}),
    "names that are taken": (
        {"a": {"x": 4, "x_3": 2}, "b": {"x": 3}, "c": {"x": 5}, "x_5": {"z": 1}},
        {"a": ("x", "x_3"), "b": ("x_3_",), "c": ("x_5_",), "x_5": ("z",)},
    ),
    "one array": ({"a": {"x": 4, "x ": 3}}, {"a": ("x", "x_3")}),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_arrays_whose_dimensions_share_names_are_all_read(name: str, zarr_format: int) -> None:
    arrays, expected = AMBIGUOUS[name]
    store = lying_along(zarr_format, arrays)
    ds, message = warned(store)
    assert {path: ds[path].dims for path in arrays} == expected
    for path in arrays:
        shown = zarr.open_array(as_remote(store), path=path)  # the engine "zarr" refuses the group
        np.testing.assert_array_equal(ds[path], shown[...], err_msg=path)
    others = {str(dim) for dim in ds.dims} - {dim.strip() for one in arrays.values() for dim in one}
    assert all(repr(other) in message for other in others)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_dropped_variables_leave_names_to_the_others(zarr_format: int) -> None:
    store = lying_along(zarr_format, PYRAMID)
    options: dict[str, Any] = {"drop_variables": ["0", "2"], "mask_and_scale": False}
    theirs = xr.open_zarr(as_remote(store), consolidated=False, **options)
    xr.testing.assert_equal(silently(store, **options), theirs)
    ds, message = warned(store, drop_variables="0")
    assert [ds[path].dims for path in "12"] == [("y", "x"), ("y_3", "x_5")]
    assert "6" not in message


def test_an_array_that_contradicts_a_declared_dimension_is_read() -> None:
    store = samples.vector("dims-nczarr+file-4.10.1")
    ds, message = warned({**store, "t/.zattrs": text({"_ARRAY_DIMENSIONS": ["x"]})})
    assert (ds.x.dims, ds.t.dims) == (("x",), ("x_5",))
    assert ds.t.values.tolist() == opened(store).t.values.tolist()
    assert "'x_5'" in message


@pytest.mark.parametrize("kind", ["NCZarr", "Zarr2", "Zarr3", "NETCDF4"])
def test_tools_follow_the_names(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "image.zarr", tmp_path / ("x.nc" if kind == "NETCDF4" else "x")
    write_tree(source, lying_along(3, PYRAMID))
    assert "dimension-names" in {finding.code for finding in validate(source)}
    copy(source, target, "--format", kind, "--verify")
    assert "dimensions keep the names" in capsys.readouterr().err
    xr.testing.assert_equal(silently(target), warned(source)[0])


# -- codecs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_codecs_that_make_no_bytes(compressed: bool, transposed: bool) -> None:
    """GDAL up to 3.10 leaves the codec "bytes" out, or all of them."""
    codecs: list[Any] = []
    values = np.arange(6, dtype="<f8").reshape(2, 3)
    chunk = (values.T if transposed else values).tobytes()
    if transposed:
        codecs.append({"name": "transpose", "configuration": {"order": [1, 0]}})
    if compressed:
        codecs.append({"name": "gzip", "configuration": {"level": 1}})
        chunk = gzip.compress(chunk)
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
    metadata = ARRAY_3 | {"shape": [2, 3], "data_type": "float64", "chunk_grid": grid}
    del metadata["codecs"]
    if codecs:
        metadata["codecs"] = codecs
    ds = silently(group_3() | {"v/zarr.json": text(metadata), "v/c/0/0": chunk})
    assert ds.v.values.tolist() == values.tolist()
    with pytest.warns(NCZarrWarning, match=r"v/zarr\.json: is not understood"):
        opened(group_3() | {"v/zarr.json": text(metadata | {"codecs": [{"name": "lost"}]})})


# -- NCZarr's form for Zarr 3, which was never released --------------------------------------

SHARED = {"dimensions": {"x": {"size": 3, "unlimited": 0}}, "arrays": ["v"], "groups": []}
SUPERBLOCK = {"_nczarr_superblock": {"version": "3.0.0", "format": 3}}
TYPES_OF_GROUP = {"attribute_types": {"title": "char", "_nczarr_group": "json"}}
EXPERIMENTAL: dict[str, Store] = {
    "types by name": group_3(
        attributes={"title": "t", **SUPERBLOCK, "_nczarr_group": SHARED}
        | {"_nczarr_attrs": TYPES_OF_GROUP}
    )
    | array_3(
        dimension_names=["x"],
        attributes={
            "units": "K",
            "_ARRAY_DIMENSIONS": ["x"],
            "_nczarr_array": {"dimension_references": ["/x"], "storage": "chunked"},
            "_nczarr_attrs": {"attribute_types": {"units": "char"}},
        },
    ),
    "types in a list": group_3(
        attributes={
            "title": "t",
            "_nczarr_group": {
                "dimensions": [{"name": "x", "size": 3, "unlimited": 1}],
                "arrays": ["v"],
                "subgroups": [],
            },
            **SUPERBLOCK,
            "_nczarr_attrs": {"attribute_types": [{"name": "title"}]},
        },
        must_understand="false",
    )
    | array_3(
        dimension_names=["x"],
        attributes={
            "units": "K",
            "_nczarr_array": {"dimension_references": ["/x"], "type_alias": "int"},
            "_nczarr_attr": {"attribute_types": [{"name": "units"}]},
        },
    ),
}
_root = json.loads(EXPERIMENTAL["types by name"]["zarr.json"])
_root["consolidated_metadata"] = {
    "kind": "inline",
    "must_understand": "FALSE",
    "metadata": {"v": json.loads(EXPERIMENTAL["types by name"]["v/zarr.json"])},
}
EXPERIMENTAL["inlined in the root, no JSON"] = {
    "zarr.json": text(_root).replace(b'"FALSE"', b"False"),
    "v/c/0": DATA.tobytes(),
}


@pytest.mark.parametrize("store", EXPERIMENTAL.values(), ids=EXPERIMENTAL)
def test_the_unreleased_form_of_nczarr(store: Store) -> None:
    ds, message = warned(store)
    assert "is NCZarr in a form for Zarr 3 that netCDF-C never released" in message
    assert ds.v.dims == ("x",)
    assert ds.v.values.tolist() == DATA.tolist()
    assert (ds.attrs, ds.v.attrs) == ({"title": "t"}, {"units": "K"})


def test_arrays_that_the_unreleased_form_lists_are_never_missed() -> None:
    store = {"zarr.json": EXPERIMENTAL["types by name"]["zarr.json"]}
    ds, message = warned(store)
    assert "v/zarr.json: is missing, though its group lists it" in message
    with pytest.raises(FormatError, match="is missing"):
        ds.v.load()
    assert open_hierarchy(store).hierarchy.root.variables["v"].error is not None


# -- dask ----------------------------------------------------------------------------------

#: Shape, stored chunks, and dask's: those stored, unless there are too many of them.
BLOCKS = [
    ((10, 7), (3, 7), (3, 7)),
    ((1000, 1000), (1, 1), (1, 1)),
    ((1 << 40,), (1,), None),
    ((1 << 40,), (1000,), None),
    ((1 << 40, 3), (1, 1), None),
    ((1 << 31, 1 << 30), (1, 1), None),
    ((1 << 30, 1 << 30), (1, 1), None),  # one dimension, twice
    ((5, 1 << 21), (1, 1), None),
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("shape", "chunks", "blocks"), BLOCKS)
def test_blocks_of_dask(
    shape: tuple[int, ...], chunks: tuple[int, ...], blocks: Any, version: int
) -> None:
    """A graph of a trillion blocks would never be made."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    store = (
        {".zgroup": GROUP_2, "v/.zarray": text(ARRAY_2 | {"shape": shape, "chunks": chunks})}
        if version == 2
        else group_3() | {"v/zarr.json": text(ARRAY_3 | {"shape": shape, "chunk_grid": grid})}
    )
    lazy = silently(store)
    assert lazy.v.encoding["chunksizes"] == chunks
    preferred = [lazy.v.encoding["preferred_chunks"][name] for name in lazy.v.dims]
    ds = silently(store, chunks={})
    assert ds.v.data.chunksize == tuple(preferred)
    assert ds.v.data.npartitions <= (1_000_000 if blocks else 100_000)
    assert all(block % chunk == 0 for block, chunk in zip(preferred, chunks, strict=True))
    if blocks:
        assert preferred == list(blocks)


# -- arrays that nobody can read -------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (
            {
                "data_type": {
                    "name": "numpy.datetime64",
                    "configuration": {"unit": "s", "scale_factor": 0},
                }
            },
            "counts from zero|is not understood by zarr-python",
        ),
        ({"dimension_names": "x"}, "dimension_names 'x' do not match shape"),
        ({"dimension_names": ["x", "y"]}, "`dimension_names` and `shape` need"),
    ],
)
def test_metadata_without_sense(members: dict[str, Any], reason: str) -> None:
    ds, message = warned(group_3() | array_3(**members) | array_3("w"))
    assert re.search(reason, message)
    assert ds.w.values.tolist() == DATA.tolist()


def test_more_chunks_than_can_be_read_at_once() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [1]}}
    array = {"v/zarr.json": text(ARRAY_3 | {"shape": [1 << 33], "chunk_grid": grid})}
    ds = silently(group_3() | array)
    assert ds.v[:2].values.tolist() == [0, 0]
    with pytest.raises(
        FormatError, match=f"v: a selection of {1 << 33} chunks is too much at once"
    ):
        ds.v.load()


@pytest.mark.parametrize(
    ("selection", "values"),
    [
        (slice(2, None, -1), [2, 1, 0]),
        (slice(2, 0, -1), [2, 1]),
    ],
)
def test_a_few_elements_backwards_take_no_memory_of_all(
    selection: slice, values: list[int]
) -> None:
    data = np.arange(1 << 20, dtype="<i4")
    grid = {"name": "regular", "configuration": {"chunk_shape": [len(data)]}}
    array = {"v/zarr.json": text(ARRAY_3 | {"shape": [1 << 40], "chunk_grid": grid})}
    ds = silently(group_3() | array | {"v/c/0": data.tobytes()})
    assert ds.v[selection].values.tolist() == values


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["consolidated", "use_zarr_fill_value_as_mask"])
@pytest.mark.parametrize("value", ["yes", "no", 1, 0, []])
def test_options_that_are_no_choice(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option}: must be True, False or None, not "):
        opened(group_3() | array_3(), **{option: value})
    with pytest.raises(ValueError, match=r"^anonymous_dimension_prefix: must be a string"):
        opened(group_3() | array_3(), anonymous_dimension_prefix=None)
    with pytest.raises(ValueError, match=r"^index_cache: must be the path of a folder, not True"):
        opened(group_3() | array_3(), index_cache=True)
    with pytest.raises(ValueError, match=r"^storage_options: must be a dict, not str"):
        xr.open_dataset("nowhere", engine="nczarr", storage_options="key")
    with pytest.raises(ValueError, match=r"^group: must be a string or None, not 5"):
        opened(group_3() | array_3(), group=5)


# -- attributes by which xarray decodes ------------------------------------------------------

ODD: list[Any] = [None, True, 1, 1.5, [], ["a", "b"], [1, 2], {}, {"a": 1}, [[1]], [None], "text"]


@pytest.mark.parametrize(
    "name",
    [
        "coordinates",
        "scale_factor",
        "add_offset",
        "dtype",
        "_Unsigned",
        "missing_value",
        "calendar",
        "grid_mapping",
        "bounds",
        "valid_range",
        "ancillary_variables",
        "units",
    ],
)
@pytest.mark.parametrize(("value", "dtype"), each_once(ODD, ["<i4", "<f8"]), ids=json.dumps)
@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning", "ignore::UserWarning")
def test_one_odd_attribute_spoils_no_dataset(name: str, value: Any, dtype: str) -> None:
    numbers = {".zgroup": GROUP_2, "v/.zattrs": text({name: value, "long_name": "n"})}
    numbers |= {"v/.zarray": text(ARRAY_2 | {"dtype": dtype, "fill_value": None})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        ds = opened(numbers | array_2("w"))
    assert ds.w.values.tolist() == DATA.tolist()
    assert ds.v.attrs["long_name"] == "n"
    if name == "dtype":  # by which xarray decodes in any case
        return
    raw = silently(numbers | array_2("w"), decode_cf=False)
    assert name in raw.v.attrs
    assert raw.v.values.tolist() == [0, 0, 0]


def test_what_is_made_of_odd_attributes() -> None:
    store = {".zgroup": GROUP_2} | array_2() | array_2("a") | array_2("b")
    # names in a list mean what they mean in CF, one after the other
    ds = silently(store | {"v/.zattrs": text({"coordinates": ["a", "b"]})})
    assert set(ds.coords) == {"a", "b"}
    ds, message = warned(store | {"v/.zattrs": text({"scale_factor": [2, 3]})})
    assert "/v: attribute 'scale_factor' (array([2, 3]" in message
    with pytest.raises(FormatError, match="decode_cf=False reads the stored values"):
        ds.v.load()
    # one of these has no sign that xarray could change
    marks = {"_FillValue": [-1, -2], "_Unsigned": "true"}
    integers = {"v/.zarray": text(ARRAY_2 | {"dtype": "<i2", "fill_value": None})}
    ds, message = warned(store | integers | {"v/.zattrs": text(marks)})
    assert "/v: attribute '_FillValue' (array([-1, -2]" in message
    with pytest.raises(FormatError, match="/v: attribute '_FillValue'"):
        ds.v.load()
    # what xarray itself explains stays as it is
    with pytest.raises(ValueError, match="unable to decode time units"):
        opened(store | {"v/.zattrs": text({"units": "days since"})})


def test_a_fill_of_one_byte_that_is_no_text() -> None:
    """As netCDF-C writes it: the byte itself, between quotes."""
    metadata = text(ARRAY_2 | {"dtype": ">S1", "fill_value": "X"}).replace(b"X", b"\xc2")
    ds = silently({".zgroup": GROUP_2, "v/.zarray": metadata}, decode_cf=False)
    assert ds.v.values.tolist() == [b"\xc2"] * 3
