"""HDF5 files as netCDF-4: everything we say of them is held against netCDF4-python and h5py."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, UnsupportedError
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.dataset.dataset import attribute_value
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy
from nczarr_xarray.model import (
    Attribute,
    FileChunks,
    FileStrides,
    Group,
    Hierarchy,
    Variable,
    element_of,
)
from tests.support.builders.h5drive import Driven, drive
from tests.support.corpora.hdf5_corpus import CASES, FEW, write
from tests.support.examples import examples
from tests.support.marks import slow_but
from tests.support.oracles.readings import RAW
from tests.support.servers.httpserver import Server

#: What libnetcdf 4.10.1 cannot open, and what the file is to us.
REFUSED_BY_NETCDF: dict[str, dict[str, tuple[str, ...]]] = {
    # the second dimension has no scale, or the scale is in another branch
    "h5_scales_partly": {"/first": ("/x", "/phony_dim_1"), "/same_length": ("/x",), "/x": ("/x",)},
    "h5_scale_elsewhere": {
        "/above": ("/g/x",), "/g/x": ("/g/x",), "/g/fine": ("/g/x",), "/h/beside": ("/g/x",)
    },
    # the numbers of its dimensions are not in the file
    "h5_scale_two_dimensional": {"/x": ("/x", "/phony_dim_1"), "/v": ("/x",)},
    # a null dataspace, a link that leads nowhere, a named type that is a number
    "h5_null": {"/empty": (), "/plain": ("/phony_dim_0",)},
    "h5_links_broken": {"/v": ("/phony_dim_0",)},
    "h5_committed_float": {"/times": ("/phony_dim_0",)},
    # an attribute with two dimensions
    "h5_attribute_matrix": {"/v": ("/phony_dim_0",)},
}  # fmt: skip
#: What crashes libnetcdf 4.10.1: floats that are not the machine's, fixed text that has grown.
CRASHES_NETCDF = {"h5_types_odd", "h5_odd_f2", "h5_odd_longdouble", "h5_fixed_text_unlimited"}
#: Files that are reported to have lost something on the way.
WARNS = {
    "h5_null": "null dataspace",
    "h5_links_broken": "/dangling",
    "h5_scale_longer_than_variable": "/v.*has length 3",
    "h5_text_not_utf8": "not UTF-8",
    "h5_attribute_f2": "attribute 'odd' is left out: .*float type of 2 bytes",
    "h5_attribute_longdouble": "attribute 'odd' is left out: .*float type of 16 bytes",
}
#: Variables that we have and netCDF4-python leaves out, for it has no types for them.
MORE = {"h5_odd_opaque": {"odd"}, "h5_types_odd": {"opaque"}}
#: Variables whose values are not compared with netCDF4-python's, and why.
NOT_COMPARED = {
    # it looks dimensions up by name and takes the nearer /a/x for /x
    ("nc_groups", "/a/v"),
    # two dimensions longer than the data: it returns what was in memory before
    ("nc_unlimited", "/both"),
    # neither data nor a fill value: it returns what was in memory before, we return zeros
    ("nc_fill", "/unwritten_none"),
    # it has no lzf
    ("h5_filters", "/lzf"),
    # it raises when they are read, as we do
    ("h5_text_not_utf8", "/fixed"),
    ("h5_text_not_utf8", "/vlen"),
    ("h5_scale_longer_than_variable", "/v"),
}
#: netCDF-C shows the rows that the dimension has, and not the others.
CUT_BY_NETCDF = {"h5_scale_of_other_length"}
SOUND = sorted(set(CASES) - set(REFUSED_BY_NETCDF) - CRASHES_NETCDF - CUT_BY_NETCDF)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture
def corpus(directory: Path, request: pytest.FixtureRequest) -> Path:
    path = directory / f"{request.param}.nc"
    return path if path.exists() else write(request.param, directory)


def _drive(path: Path, group: str = "", tree: bool = True) -> Driven:
    data = path.read_bytes()
    return drive(read_hierarchy(str(path), len(data), group, tree), data, head=1 << 16)


def _read(path: Path, group: str = "", tree: bool = True) -> Hierarchy:
    result: Hierarchy = _drive(path, group, tree).result
    assert result.generation == "hdf5"
    return result


def _variables(hierarchy: Hierarchy) -> dict[str, Variable]:
    return {v.path: v for group in hierarchy.root.walk() for v in group.variables.values()}


# ---- the model, against netCDF4-python -----------------------------------------------------


@pytest.mark.parametrize("corpus", SOUND, indirect=True)
def test_model_is_that_of_netcdf(corpus: Path) -> None:
    hierarchy = _read(corpus)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that it leaves out
        oracle = netCDF4.Dataset(corpus)
    with oracle:
        assert list(_differences(corpus.stem, hierarchy.root, oracle)) == []
    if corpus.stem not in WARNS:
        assert hierarchy.problems == ()


def _differences(case: str, ours: Group, theirs: Any) -> Iterator[str]:
    path = theirs.path
    dimensions = [(d.name, d.size, d.unlimited) for d in ours.dimensions.values()]
    expected = [(n, len(d), d.isunlimited()) for n, d in theirs.dimensions.items()]
    if dimensions != expected:
        yield f"{path}: dimensions {dimensions} / {expected}"
    yield from _attributes(path, ours.attributes, theirs)
    names = [name for name in ours.variables if name not in MORE.get(case, ())]
    if names != list(theirs.variables):
        yield f"{path}: variables {names} / {list(theirs.variables)}"
    for name in names:
        yield from _variable(case, ours.variables[name], theirs.variables[name])
    # netCDF4-python does not look for groups where a file says it is classic at heart
    if theirs.data_model == "NETCDF4" and list(ours.groups) != list(theirs.groups):
        yield f"{path}: groups {list(ours.groups)} / {list(theirs.groups)}"
    for name, group in theirs.groups.items():
        yield from _differences(case, ours.groups[name], group)


def _variable(case: str, ours: Variable, theirs: Any) -> Iterator[str]:
    path = ours.path
    if (case, path) not in NOT_COMPARED:
        if ours.error is not None:
            yield f"{path}: {ours.error}"
        found = [(d.group, d.name, d.size) for d in ours.dimensions]
        expected = [(d.group().path, d.name, len(d)) for d in theirs.get_dims()]
        if found != expected:
            yield f"{path}: dimensions {found} / {expected}"
    dtype = np.dtype(object) if theirs.dtype is str else theirs.dtype
    # of sequences it gives the dtype of their elements
    if (element_of(ours.dtype) or ours.dtype) != dtype:
        yield f"{path}: dtype {ours.dtype} / {dtype}"
    sequence = isinstance(theirs.datatype, netCDF4.VLType) and theirs.dtype is not str
    if sequence != (element_of(ours.dtype) is not None):
        yield f"{path}: {ours.dtype} / {theirs.datatype}"
    enum: Any = theirs.datatype if isinstance(theirs.datatype, netCDF4.EnumType) else None
    if (ours.enum is None) != (enum is None) or (
        ours.enum is not None and (ours.enum.name, ours.enum.members) != (enum.name, enum.enum_dict)
    ):
        yield f"{path}: enum {ours.enum} / {enum}"
    yield from _attributes(path, ours.attributes, theirs)


def _attributes(path: str, ours: dict[str, Attribute], theirs: Any) -> Iterator[str]:
    expected = {}
    for name in theirs.ncattrs():
        try:
            value = theirs.getncattr(name)
        except KeyError:  # an opaque type: it lists what it cannot read
            continue
        expected[name] = value
    if list(ours) != list(expected):
        yield f"{path}: attributes {list(ours)} / {list(expected)}"
    for name in ours.keys() & expected.keys():
        found, value = attribute_value(ours[name]), expected[name]
        if isinstance(value, bytes):
            value = value.decode()
        if type(found) is not type(value) or not _same(found, value):
            yield f"{path}@{name}: {found!r:.80} / {value!r:.80}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize(
    ("corpus", "expected"), REFUSED_BY_NETCDF.items(), indirect=["corpus"], ids=REFUSED_BY_NETCDF
)
def test_what_netcdf_refuses(corpus: Path, expected: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises((OSError, AttributeError, RuntimeError)), netCDF4.Dataset(corpus) as ds:
        _ = ds.ncattrs(), [ds.getncattr(name) for name in ds.ncattrs()]
    variables = _variables(_read(corpus))
    assert {p: tuple(d.path for d in v.dimensions) for p, v in variables.items()} == expected


@pytest.mark.parametrize("corpus", sorted(CUT_BY_NETCDF), indirect=True)
def test_rows_are_never_cut_off_silently(corpus: Path) -> None:
    with netCDF4.Dataset(corpus) as file:
        assert file["v"].shape == (3,)
    variables = _variables(_read(corpus))
    assert "has length 5 along '/x', not 3" in str(variables["/v"].error)
    assert variables["/x"].error is None


# ---- what users see, against engine="netcdf4" -----------------------------------------------


def _open(path: Path, case: str, **options: Any) -> dict[str, xr.Dataset]:
    if case in WARNS:
        with pytest.warns(NCZarrWarning, match=WARNS[case]):
            return xr.open_groups(path, engine="nczarr", **options)
    return xr.open_groups(path, engine="nczarr", **options)


def _oracle(path: Path, **options: Any) -> dict[str, xr.Dataset]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.open_groups(path, engine="netcdf4", **options)


@pytest.mark.parametrize("decode_cf", [True, False])
@pytest.mark.parametrize(
    "corpus",
    slow_but(
        [n for n in SOUND if n not in ("h5_text_not_utf8", "h5_committed_attributes")],
        *FEW,
    ),
    indirect=True,
)
def test_datasets_are_those_of_the_netcdf4_engine(corpus: Path, decode_cf: bool) -> None:
    case = corpus.stem
    options = {} if decode_cf else RAW
    ours = _open(corpus, case, **options)
    theirs = _oracle(corpus, **options)
    if case != "h5_reserved__nc3_strict":
        assert list(ours) == list(theirs)
    try:
        for path in theirs:
            mine, other = ours[path], theirs[path]
            assert set(mine.variables) - MORE.get(case, set()) == set(other.variables)
            assert mine.attrs.keys() == other.attrs.keys()
            assert mine.encoding == other.encoding
            for name in other.variables:
                full = f"{path.rstrip('/')}/{name}"
                if (case, full) not in NOT_COMPARED:
                    _compare(mine.variables[name], other.variables[name], full)
    finally:
        for dataset in (*ours.values(), *theirs.values()):
            dataset.close()


def _compare(ours: Any, theirs: Any, path: str) -> None:
    assert ours.dims == theirs.dims, path
    assert ours.dtype == theirs.dtype, path
    # numpy's == does not look at the metadata, where the names of an enum are
    for encoding in (ours.encoding, theirs.encoding):
        encoding["metadata"] = getattr(encoding.get("dtype"), "metadata", None)
        # what "blosc" stands for xarray cannot write again
        if "blosc" not in ours.encoding:
            encoding.pop("blosc", None)
            encoding.pop("compression_opts", None)  # ours, so that h5netcdf does not refuse it
    np.testing.assert_equal(ours.encoding, theirs.encoding, path)
    if ours.size > 10**7:
        corner = dict.fromkeys(ours.dims, slice(4900, 7100, 7))
        ours, theirs = ours.isel(corner), theirs.isel(corner)
    if (
        theirs.values.dtype == object
        and theirs.size
        and isinstance(theirs.values.flat[0], np.ndarray)
    ):
        for one, other in zip(ours.values.flat, theirs.values.flat, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    else:
        assert ours.values.dtype == theirs.values.dtype, path
        xr.testing.assert_identical(ours, theirs)


def test_values_that_netcdf_gets_wrong(directory: Path) -> None:
    groups = xr.open_groups(write("nc_groups", directory), engine="nczarr")
    np.testing.assert_array_equal(groups["/a"]["v"], np.ones((2, 3)))
    assert groups["/a"]["v"].sizes == {"y": 2, "/x": 3}
    with xr.open_dataset(write("nc_unlimited", directory), engine="nczarr") as ds:
        expected = np.full((8, 5), netCDF4.default_fillvals["i2"])
        expected[:4, :3] = 1
        np.testing.assert_array_equal(ds["both"], expected)
    with xr.open_dataset(write("nc_fill", directory), engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["unwritten_none"], np.zeros(4))
    with xr.open_dataset(write("h5_filters", directory), engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["lzf"], np.arange(200).reshape(10, 20))


def test_values_that_crash_netcdf(directory: Path) -> None:
    path = write("h5_types_odd", directory)
    with xr.open_dataset(path, engine="nczarr") as ds, h5py.File(path) as f:
        for name in ("f2", "opaque", "long double", "enum", "plain"):
            assert ds[name].dtype == f[name].dtype, name
            np.testing.assert_array_equal(ds[name].values, f[name][...], strict=True)
        assert "refs" not in ds
    with xr.open_dataset(write("h5_fixed_text_unlimited", directory), engine="nczarr") as ds:
        assert ds["fixed"].values.tolist() == ["ab", "cd", "", ""]


@pytest.mark.parametrize("case", ["h5_null", "h5_scale_longer_than_variable", "h5_text_not_utf8"])
def test_one_bad_variable_raises_when_it_is_touched(directory: Path, case: str) -> None:
    bad = {"h5_null": "empty", "h5_text_not_utf8": "vlen"}.get(case, "v")
    with pytest.warns(NCZarrWarning, match=WARNS[case]):
        ds = xr.open_dataset(write(case, directory), engine="nczarr")
    with ds, pytest.raises(FormatError, match=f"^/{bad}: "):
        ds[bad].load()


def test_selections_of_what_libhdf5_reads(directory: Path) -> None:
    with (
        xr.open_dataset(write("h5_virtual", directory), engine="nczarr") as ds,
        xr.open_dataset(write("nc_user_types", directory), engine="nczarr") as types,
    ):
        v = ds["virtual"]
        np.testing.assert_array_equal(v[1:4], [1, 2, 3])
        np.testing.assert_array_equal(v[::-2], [4, 2, 0])
        np.testing.assert_array_equal(v[[3, 0, 3]], [3, 0, 3])
        np.testing.assert_array_equal(v[5:], [])
        assert int(v[-1]) == 4
        points = v.isel({v.dims[0]: xr.DataArray([[4, 1], [0, 0]], dims=("p", "q"))})
        np.testing.assert_array_equal(points, [[4, 1], [0, 0]])
        assert types["compound"][1].values.tolist() == (3, 4.0)
        np.testing.assert_array_equal(types["ragged"][1:].values[1], [0, 1, 2])


# ---- what is read, and when ---------------------------------------------------------------


@pytest.mark.parametrize(
    "corpus", ["nc_types", "nc_coordinates", "h5_scales", "h5_layouts"], indirect=True
)
def test_a_small_file_opens_with_its_first_bytes(corpus: Path) -> None:
    assert _drive(corpus).rounds == 0


@pytest.mark.parametrize(
    "corpus", ["h5_phony", "nc_unlimited", "nc_groups", "h5_deep"], indirect=True
)
def test_one_group_is_as_it_is_in_the_whole(corpus: Path) -> None:
    # numbers of phony dimensions and lengths of unlimited ones depend on the other groups
    whole = _read(corpus)
    for group in whole.root.walk():
        alone = _read(corpus, group.path.strip("/"), tree=False).root.find(group.path)
        assert alone is not None
        assert alone.dimensions == group.dimensions
        assert alone.attributes.keys() == group.attributes.keys()
        for name, variable in group.variables.items():
            assert alone.variables[name].dimensions == variable.dimensions


def test_other_groups_are_not_read_for_nothing(directory: Path) -> None:
    hierarchy = _read(write("nc_enum", directory), "", tree=False)
    assert not hierarchy.root.groups


def test_writer(directory: Path) -> None:
    writer = _read(write("nc_types", directory)).writer
    assert writer is not None
    assert writer.startswith("version=2,netcdf=")
    assert _read(write("h5_types", directory)).writer is None


# ---- what scales and lists say ---------------------------------------------------------------


def test_a_list_of_references_that_is_out_of_date(tmp_path: Path) -> None:
    path = tmp_path / "copied.h5"
    with h5py.File(path, "w") as f:
        for name in "xy":
            f[name] = np.arange(3.0)
            f[name].make_scale(name)
        f["v"] = np.zeros(3)
        f["v"].dims[0].attach_scale(f["y"])
        # the copy has the list of its dimensions, but no scale knows of it
        f.copy("v", "copy")
    with netCDF4.Dataset(path) as ds:
        assert ds["copy"].dimensions == ds["v"].dimensions == ("y",)
    variables = _variables(_read(path))
    assert [d.name for d in variables["/copy"].dimensions] == ["y"]
    assert [d.name for d in variables["/v"].dimensions] == ["y"]


def test_scales_of_the_second_dimension_only_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "second.h5"
    with h5py.File(path, "w") as f:
        for name in "ax":
            f[name] = np.arange(4.0)
            f[name].make_scale(name)
        f["v"] = np.zeros((3, 4))
        f["v"].dims[1].attach_scale(f["x"])
    with netCDF4.Dataset(path) as ds:
        expected = ds["v"].dimensions
    assert expected == ("phony_dim_2", "a")
    assert tuple(d.name for d in _variables(_read(path))["/v"].dimensions) == expected


def test_enum_attributes_are_shown_if_netcdf_knows_the_type(tmp_path: Path) -> None:
    path = tmp_path / "enum.h5"
    with h5py.File(path, "w") as f:
        f["flag"] = np.array([True, False])
        f.attrs["known"] = True
        f.attrs.create("unknown", 1, dtype=h5py.enum_dtype({"A": 1}, "i4"))
    with netCDF4.Dataset(path) as ds:
        assert ds.ncattrs() == ["known"]
    assert list(_read(path).root.attributes) == ["known"]


# ---- what libhdf5 must not do ---------------------------------------------------------------


@pytest.mark.parametrize("case", ["h5_external", "h5_virtual"])
def test_a_file_object_does_not_lead_to_other_files(directory: Path, case: str) -> None:
    path = write(case, directory)
    name = "virtual" if case == "h5_virtual" else "outside"
    with path.open("rb") as file, xr.open_dataset(file, engine="nczarr") as ds:
        if case == "h5_virtual":  # its source is in the same file
            np.testing.assert_array_equal(ds[name], np.arange(5))
        else:
            with pytest.raises(NCZarrError, match="beside this one"):
                ds[name].load()


def test_external_data_are_beside_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libhdf5 takes what has the name in the working directory."""
    for name in ("data", "other", "empty"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "data")
    with h5py.File("v.h5", "w") as file:
        for group in ("", "g/"):
            v = file.create_dataset(f"{group}v", (10,), "f8", external=[("raw.bin", 0, 80)])
        v[...] = np.arange(10)
    np.zeros(10).tofile(tmp_path / "other" / "raw.bin")
    for name in ("data", "other", "empty"):
        monkeypatch.chdir(tmp_path / name)
        for group in ("/", "/g"):
            with xr.open_dataset(tmp_path / "data/v.h5", engine="nczarr", group=group) as ds:
                np.testing.assert_array_equal(ds["v"][2:], np.arange(2, 10))


def test_a_virtual_dataset_without_its_source_is_no_fill_values(tmp_path: Path) -> None:
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w") as f:
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource("gone.h5", "v", (5,))
        f.create_virtual_dataset("v", layout)
    with h5py.File(path) as f:
        assert not f["v"][...].any()  # that is what libhdf5 makes of it
    with xr.open_dataset(path, engine="nczarr") as ds:
        with pytest.raises(NCZarrError, match=r"gone\.h5.*not there"):
            ds["v"].load()


# ---- types that netCDF does not show --------------------------------------------------------


def test_structures_of_anything(tmp_path: Path) -> None:
    path = tmp_path / "compound.h5"
    text, ragged = h5py.string_dtype(), h5py.vlen_dtype(np.dtype("i4"))
    inner = np.dtype([("text", text), ("grid", "i2", (2, 2)), ("fixed", "S4"), ("blob", "V3")])
    dtype = np.dtype(
        [("flag", "?"), ("z", "c8"), ("name", text), ("n", "i2"), ("in", inner), ("rows", ragged),
         ("long", "g"), ("texts", text, (2,)), ("half", "f2"),
         ("kind", h5py.enum_dtype({"A": 1, "B": 2}, "u1"))]
    )  # fmt: skip
    data = np.zeros(5, dtype)
    for n in range(5):
        data[n] = (
            n % 2, n + 2j, "grüße" * n, n, (f"in {n}", n, b"ab", b"xyz"), np.arange(n), n / 3,
            ("p", "q" * n), n / 2, 1,
        )  # fmt: skip
    with h5py.File(path, "w") as f:
        f["plain"] = data
        f.create_dataset("chunked", data=data, chunks=(2,), compression="gzip")
    for variable in ("/plain", "/chunked"):
        assert isinstance(_variables(_read(path))[variable].array, (FileStrides, FileChunks))
    with xr.open_dataset(path, engine="nczarr") as ds:
        for name in ("plain", "chunked"):
            found = ds[name].values
            assert found.dtype == ds[name].dtype
            for field in ("n", "half", "long"):
                np.testing.assert_array_equal(found[field], data[field], strict=True)
            # h5py writes complex numbers as structures
            np.testing.assert_array_equal(found["z"]["r"] + 1j * found["z"]["i"], data["z"])
            np.testing.assert_array_equal(found["flag"], [0, 1, 0, 1, 0])
            np.testing.assert_array_equal(found["kind"], [1] * 5)
            assert found["name"].tolist() == [value.decode() if isinstance(value, bytes) else value
                                              for value in data["name"].tolist()]  # fmt: skip
            assert found["texts"].tolist() == [["p", "q" * n] for n in range(5)]
            assert found["in"]["text"].tolist() == [f"in {n}" for n in range(5)]
            for field in ("grid", "fixed", "blob"):
                np.testing.assert_array_equal(found["in"][field], data["in"][field], strict=True)
            for n in range(5):
                np.testing.assert_array_equal(found["rows"][n], np.arange(n, dtype="i4"))
            (two,) = ds[name][2:3].values
            assert two["name"] == "grüße" * 2


def test_sequences_of_anything(tmp_path: Path) -> None:
    path = tmp_path / "sequences.h5"
    cases: list[tuple[str, Any, list[Any]]] = [
        ("text", h5py.string_dtype(), [["a", "grün"], [], ["c"]]),
        ("nested", h5py.vlen_dtype("i4"), [[[1, 2], []], [], [[3]]]),
    ]
    with h5py.File(path, "w") as f:
        for name, dtype, rows in cases:
            v = f.create_dataset(name, (3,), h5py.vlen_dtype(dtype))
            for number, row in enumerate(rows):
                objects: Any = np.empty(len(row), dtype=object)
                for position, value in enumerate(row):
                    objects[position] = np.array(value) if name == "nested" else value
                v[number] = objects
    with xr.open_dataset(path, engine="nczarr") as ds:
        assert [row.tolist() for row in ds["text"].values] == [["a", "grün"], [], ["c"]]
        nested = [[one.tolist() for one in row] for row in ds["nested"].values]
        assert nested == [[[1, 2], []], [], [[3]]]


@pytest.mark.parametrize(
    "dtype",
    ["g", ("<i4", 24, 0), (">i4", 17, 3), ("<u8", 60, 4), ("<i4", 24, 8), "vax", "bfloat16"],
    ids=str,
)
def test_numbers_that_numpy_has_not(tmp_path: Path, dtype: Any) -> None:
    path = tmp_path / "numbers.h5"
    if dtype == "g":
        type_ = h5py.h5t.NATIVE_LDOUBLE
    elif dtype == "vax":
        type_ = h5py.h5t.VAX_F32 if hasattr(h5py.h5t, "VAX_F32") else pytest.skip("no VAX floats")
    elif dtype == "bfloat16":
        type_ = h5py.h5t.IEEE_F32LE.copy()
        type_.set_fields(15, 7, 8, 0, 7)
        type_.set_size(2)
        type_.set_ebias(127)
    else:
        type_ = h5py.h5t.py_create(np.dtype(dtype[0])).copy()
        type_.set_precision(dtype[1])
        type_.set_offset(dtype[2])
    values = np.array([0, 1, 2.5, 100, 12]) if type_.get_class() == h5py.h5t.FLOAT else np.arange(5)
    with h5py.File(path, "w") as f:
        for name, chunks in (("plain", None), ("chunked", (2,))):
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if chunks:
                properties.set_chunk(chunks)
            space = h5py.h5s.create_simple((5,))
            h5py.Dataset(h5py.h5d.create(f.id, name.encode(), type_, space, properties))[:] = values
    with h5py.File(path) as f, xr.open_dataset(path, engine="nczarr") as ds:
        for name in ("plain", "chunked"):
            np.testing.assert_array_equal(f[name][:], values)
            np.testing.assert_array_equal(ds[name].values, values)
            np.testing.assert_array_equal(ds[name][3:0:-2].values, values[3:0:-2])
            assert ds[name][:0].values.dtype == ds[name].dtype


# ---- what is damaged, or cannot be decoded ------------------------------------------------------


def test_sequences_that_lie_about_their_lengths(tmp_path: Path) -> None:
    path = tmp_path / "ragged.h5"
    with h5py.File(path, "w") as f:
        v = f.create_dataset("v", (100,), h5py.vlen_dtype("i4"))
        v[0] = np.arange(50)
        offset = v.id.get_offset()
    data = bytearray(path.read_bytes())
    data[offset] = 51
    with open_hierarchy(MemoryBytes(bytes(data), "memory")) as opened:
        with pytest.raises(FormatError, match="200 bytes in the heap for 51 elements of 4"):
            opened.read(opened.hierarchy.root.variables["v"])
    data[offset] = 50
    data[offset : offset + 1600] = bytes(data[offset : offset + 16]) * 100
    with open_hierarchy(MemoryBytes(bytes(data), "memory")) as opened:
        variable = opened.hierarchy.root.variables["v"]
        (value,) = opened.read(variable, (slice(7, 8),))
        np.testing.assert_array_equal(value, np.arange(50))
        # the same object may be wanted as often as one likes
        repeated = opened.read(variable, (np.zeros(1000, dtype=np.int64),))
        np.testing.assert_array_equal(repeated[-1], np.arange(50))


def test_errors_of_filters_name_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "filter.h5"
    with h5py.File(path, "w") as f:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((5,))
        properties.set_filter(32019, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((5,))
        h5py.h5d.create(f.id, b"v", h5py.h5t.NATIVE_INT32, space, properties)
        f["v"].id.write_direct_chunk((0,), b"a picture")
    (error,) = _read(path).problems
    assert isinstance(error, UnsupportedError)
    assert str(error).startswith("/v: its filter 32019 (JPEG) cannot be undone")
    with open_hierarchy(path) as opened, pytest.raises(UnsupportedError) as raised:
        opened.read(opened.hierarchy.root.variables["v"])
    assert str(raised.value).startswith("/v chunk (0,): its filter 32019 (JPEG) cannot be undone")


# ---- files of older libraries ---------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["nc_coordinates", "nc_groups", "nc_unlimited", "nc_fill", "nc_enum", "nc_late"]
)
def test_without_the_numbers_of_dimensions(directory: Path, tmp_path: Path, case: str) -> None:
    # netCDF-C 4.1 to 4.6 wrote no _Netcdf4Coordinates for most variables, and others never do
    path = tmp_path / f"{case}.nc"
    path.write_bytes(write(case, directory).read_bytes())
    with h5py.File(path, "r+") as f:

        def strip(_: str, thing: Any) -> None:
            scale = "CLASS" in thing.attrs
            if isinstance(thing, h5py.Dataset) and not (scale and thing.ndim > 1):
                for name in ("_Netcdf4Coordinates", "_Netcdf4Dimid"):
                    if name in thing.attrs:
                        del thing.attrs[name]

        f.visititems(strip)
    hierarchy = _read(path)
    with netCDF4.Dataset(path) as oracle:
        assert list(_differences(case, hierarchy.root, oracle)) == []


# ---- files that nobody thought of ---------------------------------------------------------------

_NAMES = ("p", "q", "r", "s")


@st.composite
def _plans(draw: Any) -> dict[str, Any]:
    """Groups with dimensions of their own and variables along those and their parents'."""
    dimensions: list[tuple[str, str, int | None]] = []
    variables = []
    groups = draw(st.sampled_from([["/"], ["/", "/g"], ["/", "/g", "/g/h", "/k"]]))
    for group in groups:
        for name in draw(st.lists(st.sampled_from(_NAMES), unique=True, max_size=3)):
            # a name in two groups is a trap of netCDF4-python's
            full = f"{name}{groups.index(group)}"
            dimensions.append((group, full, draw(st.sampled_from([None, 1, 2, 5]))))
    for number in range(draw(st.integers(1, 5))):
        group = draw(st.sampled_from(groups))
        within = f"{group.rstrip('/')}/"
        above = [d for d in dimensions if within.startswith(f"{d[0].rstrip('/')}/")]
        fixed = [d[1] for d in above if d[2] is not None]
        growing = [d[1] for d in above if d[2] is None]
        chosen = draw(st.lists(st.sampled_from(fixed), max_size=2, unique=True)) if fixed else []
        if growing and draw(st.booleans()):
            # a second one that is too short has garbage in it, says netCDF-C
            chosen = [draw(st.sampled_from(growing)), *chosen]
        own = [d[1] for d in dimensions if d[0] == group and chosen[:1] == [d[1]]]
        dtype = draw(st.sampled_from(["i1", "u2", "i4", "i8", "f4", "f8", "S1", str]))
        variables.append(
            {
                "group": group,
                "name": own[0] if own and draw(st.booleans()) else f"v{number}",
                "dims": tuple(chosen),
                "dtype": dtype,
                "rows": draw(st.integers(0, 4)),
                "options": draw(
                    st.sampled_from(
                        [{}, {"zlib": True}, {"fletcher32": True}, {"contiguous": True}]
                        if dtype is not str
                        else [{}, {"zlib": True}]
                    )
                ),
                "fill": None if dtype in ("S1", str) else draw(st.sampled_from([None, 7, False])),
                "units": draw(st.sampled_from([None, "m", np.float32(1.5), ["a", "b"]])),
            }
        )
    return {"groups": groups, "dimensions": dimensions, "variables": variables}


def _write_plan(path: Path, plan: dict[str, Any]) -> None:
    with netCDF4.Dataset(path, "w") as ds:
        groups = {g: ds if g == "/" else ds.createGroup(g) for g in plan["groups"]}
        for group, name, size in plan["dimensions"]:
            groups[group].createDimension(name, size)
        for one in plan["variables"]:
            group, options = groups[one["group"]], dict(one["options"])
            if one["name"] in group.variables:
                continue
            growing = {d[1] for d in plan["dimensions"] if not d[2]}
            if growing & set(one["dims"]):
                options.pop("contiguous", None)
            v = group.createVariable(
                one["name"], one["dtype"], one["dims"], fill_value=one["fill"], **options
            )
            if one["units"] is not None:
                v.units = one["units"]
            shape = (one["rows"], *v.shape[1:]) if v.ndim else ()
            if v.ndim and v.dimensions[0] not in growing:
                shape = (min(one["rows"], v.shape[0]), *v.shape[1:])
            values = np.arange(int(np.prod(shape))).reshape(shape)
            if one["dtype"] is str:
                text = np.array([f"t{n}" * (n % 3) for n in values.flat], object).reshape(shape)
                values = text if v.ndim else text.item()
            elif one["dtype"] == "S1":
                values = values.astype("S1")
            if np.size(values) and v.ndim:
                v[: shape[0]] = values
            elif not v.ndim:
                v[...] = values


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=_plans())
def test_random_files(plan: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("random") / "random.nc"
    _write_plan(path, plan)
    hierarchy = _read(path)
    with netCDF4.Dataset(path) as oracle:
        assert list(_differences("random", hierarchy.root, oracle)) == []
    ours, theirs = xr.open_groups(path, engine="nczarr"), _oracle(path)
    try:
        for group, other in theirs.items():
            assert ours[group].encoding == other.encoding
            for name in other.variables:
                if not _uninitialised(hierarchy, group, str(name)):
                    _compare(ours[group].variables[name], other.variables[name], str(name))
    finally:
        for dataset in (*ours.values(), *theirs.values()):
            dataset.close()


def _uninitialised(hierarchy: Hierarchy, group: str, name: str) -> bool:
    """Whether netCDF-C may return what was in memory before: no fill value, nothing written."""
    variable = _variables(hierarchy)[f"{group.rstrip('/')}/{name}"]
    return getattr(variable.array, "fill", None) is None and variable.dtype.kind != "O"


# ---- over HTTP ------------------------------------------------------------------------------


def test_all_kinds_of_reading_over_http(directory: Path) -> None:
    names = ["nc_types", "nc_user_types", "nc_filters", "nc_unlimited", "h5_layouts", "h5_virtual"]
    files = {f"/{name}.nc": write(name, directory).read_bytes() for name in names}
    with Server(files) as server:
        for name in names:
            local = xr.open_groups(directory / f"{name}.nc", engine="nczarr")
            remote = xr.open_groups(f"{server.url}/{name}.nc#mode=bytes", engine="nczarr")
            for group, dataset in local.items():
                for variable, values in dataset.variables.items():
                    found = remote[group].variables[variable]
                    assert found.attrs.keys() == values.attrs.keys()
                    for one, other in zip(found.values.flat, values.values.flat, strict=True):
                        np.testing.assert_array_equal(one, other)


def test_a_file_on_a_server_does_not_lead_to_files_of_this_machine(directory: Path) -> None:
    files = {"/x.nc": write("h5_external", directory).read_bytes()}
    with Server(files) as server, xr.open_dataset(f"{server.url}/x.nc", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["plain"], np.arange(5))
        with pytest.raises(NCZarrError, match="beside this one"):
            ds["outside"].load()
