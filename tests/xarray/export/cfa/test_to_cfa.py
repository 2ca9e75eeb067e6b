"""Aggregations that are written, and what our reader and netCDF4 find in them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.callbacks import Callback
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import (
    ConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    FormatError,
    URLError,
)
from nczarr_xarray import aggregate, recover, to_cfa
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.export.cfa.task import Claim
from tests.support.examples import examples
from tests.support.marks import each_once, slow_but

VERSIONS = ("0.4", "0.6.2", "1.13")
KINDS = ("netCDF4", "netCDF3", "NCZarr")


def sample(steps: int = 8, offset: float = 0) -> xr.Dataset:
    """Data of all kinds, with missing values where there can be any."""
    rng = np.random.default_rng(1)
    shape = steps, 6, 10
    tas = (rng.normal(280, 10, shape) + offset).astype("f4")
    tas[0, 0, 0] = np.nan
    packed = np.round(rng.uniform(0, 30, shape), 2)
    packed[1, 2, 3] = np.nan
    texts = np.array([["é" * (i % 4) + str(j) for i in range(10)] for j in range(steps)], object)
    when = (np.arange(steps * 10).reshape(steps, 10) * 86400 * 10**9).astype("M8[ns]")
    dataset = xr.Dataset(
        {
            "tas": (("time", "lat", "lon"), tas, {"units": "K"}),
            "pr": (("time", "lat", "lon"), packed, {"units": "mm", "grid_mapping": "crs"}),
            "count": (("time", "lon"), np.arange(steps * 10, dtype="i4").reshape(steps, 10)),
            "words": (("time", "lon"), texts),
            "when": (("time", "lon"), when),
            "small": (("lat",), np.arange(6, dtype="i2")),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude"}),
        },
        {
            "time": ("time", np.arange(steps) * 0.5, {"long_name": "step"}),
            "lat": ("lat", np.linspace(-50, 50, 6), {"bounds": "lat_bnds"}),
            "lon": np.arange(10) * 36.0,
            "height": 2.0,
        },
        {"title": "a sample", "Conventions": "CF-1.8"},
    )
    dataset["lat_bnds"] = (("lat", "two"), np.linspace(-60, 60, 12).reshape(6, 2))
    dataset["pr"].encoding = {
        "dtype": "i2",
        "scale_factor": 0.01,
        "add_offset": 10.0,
        "_FillValue": -32768,
    }
    dataset["when"].encoding = {"units": "days since 1970-01-01", "dtype": "f8"}
    return dataset


def by_netcdf(dataset: xr.Dataset, path: Path, **options: Any) -> xr.Dataset:
    """The dataset as it comes back from one netCDF-4 file."""
    dataset.to_netcdf(path, engine="netcdf4", **options)
    with xr.open_dataset(path, engine="netcdf4") as found:
        return found.load()


def read(target: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(target, engine="nczarr", **options) as found:
        return found.load()


def same(found: xr.Dataset, wanted: xr.Dataset) -> None:
    xr.testing.assert_identical(found, wanted)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(("version", "kind", "lazy"), each_once(VERSIONS, KINDS, [False, True]))
def test_round_trip(version: Any, kind: Any, lazy: bool, tmp_path: Path) -> None:
    dataset = sample()
    given = dataset.chunk(time=3, lat=4) if lazy else dataset
    target = tmp_path / "m.nca"
    given.nczarr.to_cfa(target, cfa_version=version, fragment_format=kind, max_object_size="300 B")
    found = read(target)
    if kind == "netCDF3":
        found["words"] = found["words"].astype(object)
        found["words"].encoding = {}
    same(found, by_netcdf(dataset, tmp_path / "x.nc"))
    assert names(tmp_path) == ["m", "m.nca", "x.nc"]
    suffix = "zarr" if kind == "NCZarr" else "nc"
    inside = names(tmp_path / "m")
    assert f"m.tas.0.0.0.{suffix}" in inside
    assert {name.split(".")[1] for name in inside} == {"tas", "pr", "count", "words", "when"}


@pytest.mark.parametrize("version", VERSIONS)
def test_master_that_is_a_tree(version: Any, tmp_path: Path) -> None:
    for name in ("m.nczarr", "z.zarr"):
        sample().nczarr.to_cfa(tmp_path / name, cfa_version=version, max_object_size=300)
        same(read(tmp_path / name), by_netcdf(sample(), tmp_path / f"{name}.nc"))


@pytest.mark.parametrize("name", ["m.json", "m.PARQ", "m.icechunk"])
def test_names_of_references(name: str, tmp_path: Path) -> None:
    """`aggregate` would write references there, and readers expect them."""
    with pytest.raises(ExportError, match="is the name of references"):
        sample().nczarr.to_cfa(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_classic_master(tmp_path: Path) -> None:
    dataset = sample()
    dataset["large"] = (("lat", "lon"), np.arange(60).reshape(6, 10))
    to_cfa(dataset, tmp_path / "m.nca", "CFA3", max_object_size=300)
    for path in (tmp_path / "m.nca", tmp_path / "m" / "m.tas.0.0.0.nc"):
        assert path.read_bytes()[:4] == b"CDF\x01"
    found = read(tmp_path / "m.nca")
    assert found["large"].dtype == "i4"
    for name in ("tas", "count", "small", "when", "large"):
        np.testing.assert_array_equal(found[name].values, dataset[name].values)
    np.testing.assert_allclose(found["pr"].values, dataset["pr"].values)
    np.testing.assert_array_equal(found["words"].values.astype(object), dataset["words"].values)


def test_fragments_are_datasets_of_their_own(tmp_path: Path) -> None:
    sample().nczarr.to_cfa(tmp_path / "m.nca", cfa_version="0.4", max_object_size=300)
    with xr.open_dataset(tmp_path / "m" / "m.pr.1.1.0.nc", engine="netcdf4") as fragment:
        part = sample().isel(time=slice(4, 8), lat=slice(3, 6))
        told = {"title": "a sample", "Conventions": "CF-1.8", "aggregation_master": "m.nca"}
        assert fragment.attrs == told
        assert {*fragment.variables} == {"pr", "time", "lat", "lon", "height", "crs", "lat_bnds"}
        np.testing.assert_allclose(fragment["pr"], part["pr"], atol=1e-9)
        np.testing.assert_array_equal(fragment["lat_bnds"], part["lat_bnds"])
    # they can be changed with other programs
    with netCDF4.Dataset(tmp_path / "m" / "m.pr.1.1.0.nc", "a") as file:
        file.note = "changed"
        assert [*file.variables][-1] == "pr"


def test_where_packing_is_stated(tmp_path: Path) -> None:
    """With CFA-0.4 fragments are not unpacked, with the others they are."""
    for version, stated in (("0.4", True), ("0.6.2", False), ("1.13", False)):
        target = tmp_path / f"{version}.nca"
        sample().nczarr.to_cfa(target, cfa_version=version, max_object_size=300)
        raw = read(target, mask_and_scale=False)["pr"]
        assert raw.dtype == "i2"
        assert raw.attrs["scale_factor"] == 0.01
        folder = MasterPlace.find(target, None).stem
        with netCDF4.Dataset(tmp_path / folder / f"{folder}.pr.0.0.0.nc") as file:
            assert ("scale_factor" in file["pr"].ncattrs()) == stated
            if not stated:
                note = "scale_factor: 0.01 add_offset: 10.0"
                assert file["pr"].aggregation_packing == note


def test_unsigned_and_masked(tmp_path: Path) -> None:
    values = np.arange(256, dtype="f8").reshape(16, 16)
    values[3, 4] = np.nan
    dataset = xr.Dataset({"v": (("y", "x"), values)})
    encoding = {"v": {"dtype": "i1", "_Unsigned": "true", "_FillValue": np.int8(-1)}}
    values[15, 15] = np.nan  # which is the fill value
    for version in VERSIONS:
        target = tmp_path / f"v{version[-1]}.nca"
        dataset.nczarr.to_cfa(target, cfa_version=version, max_object_size=50, encoding=encoding)
        np.testing.assert_array_equal(read(target)["v"].values, values)


def test_addresses(tmp_path: Path) -> None:
    for version, relative, start in (
        ("0.4", None, f"{tmp_path}/m/"),
        ("0.4", True, "m/"),
        ("0.6.2", None, "m/"),
        ("1.13", None, "m/"),
        ("1.13", False, f"file://{tmp_path}/m/"),
    ):
        options = {"cfa_version": version, "relative": relative, "mode": "w"}
        sample().nczarr.to_cfa(tmp_path / "m.nca", max_object_size=900, **options)
        with netCDF4.Dataset(tmp_path / "m.nca") as file:
            if version == "0.4":
                table = json.loads(file["tas"].cfa_array)
                assert file["tas"].cf_dimensions == file["tas"].cfa_dimensions == "time lat lon"
                found = [one["subarray"]["file"] for one in table["Partitions"]]
            else:
                term = "file" if version == "0.6.2" else "uris"
                found = file[f"cfa_{term}_tas"][...].ravel().tolist()
        assert all(address.startswith(f"{start}m.tas.") for address in found)
        assert not read(tmp_path / "m.nca")["tas"].isnull().all()


def test_conventions(tmp_path: Path) -> None:
    for version, present, wanted in (
        ("0.4", None, "CF-1.8 CFA-0.4"),
        ("0.4", "CF-1.6, ACDD-1.3", "CF-1.6 ACDD-1.3 CFA-0.4"),
        ("0.6.2", "CFA-0.4", "CF-1.8 CFA-0.6.2"),
        ("1.13", "ACDD-1.3 CF-1.6", "CF-1.13 ACDD-1.3"),
        ("1.13", None, "CF-1.13"),
        ("1.13", "CF-1.13", "CF-1.13"),
    ):
        dataset = sample()
        dataset.attrs = {} if present is None else {"Conventions": present}
        options: dict[str, Any] = {"cfa_version": version, "mode": "w", "max_object_size": 900}
        dataset.nczarr.to_cfa(tmp_path / "m.nca", **options)
        with netCDF4.Dataset(tmp_path / "m.nca") as file:
            assert file.Conventions == wanted
        assert read(tmp_path / "m.nca").attrs == dataset.attrs


def test_relative_addresses_move_with_the_master(tmp_path: Path) -> None:
    sample().nczarr.to_cfa(tmp_path / "m.nca", cfa_version="1.13", max_object_size=300)
    before = read(tmp_path / "m.nca")
    (tmp_path / "new").mkdir()
    for name in ("m", "m.nca"):
        shutil.move(tmp_path / name, tmp_path / "new" / name)
    xr.testing.assert_identical(read(tmp_path / "new" / "m.nca"), before)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("m.nca", "m"),
        ("a.b.nca", "a.b"),
        ("m", "m_fragments"),
        ("ärger mit, Namen#.nca", "_rger_mit__Namen_"),
        (".nca", ".nca_fragments"),
    ],
)
def test_names_are_safe_in_addresses(name: str, folder: str, tmp_path: Path) -> None:
    dataset = sample().rename(tas="t+a")
    dataset.nczarr.to_cfa(tmp_path / name, cfa_version="1.13", max_object_size=900)
    place = MasterPlace.find(tmp_path / name, None)
    assert names(tmp_path) == sorted([name, place.stem])
    assert any("t_a" in one for one in names(tmp_path / place.stem))
    same(read(tmp_path / name), by_netcdf(dataset, tmp_path / "x.nc"))
    assert place.stem == folder


def test_shapes_that_are_asked_for(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    sample().nczarr.to_cfa(target, subarray_shape={"time": 3, "lon": 100})
    inside = names(tmp_path / "m")
    assert [name for name in inside if ".tas." in name] == [
        "m.tas.0.0.0.nc",
        "m.tas.1.0.0.nc",
        "m.tas.2.0.0.nc",
    ]
    assert not any(".small." in name or ".lat_bnds." in name for name in inside)
    sample().nczarr.to_cfa(target, mode="w", subarray_shape=(4, 6, 5))
    assert len([name for name in names(tmp_path / "m") if ".tas." in name]) == 4
    assert not any(".count." in name for name in names(tmp_path / "m"))
    same(read(target), by_netcdf(sample(), tmp_path / "x.nc"))


def test_size_bounds_the_largest_fragment(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("time", "lat", "lon"), np.ones((7, 11, 13)))})
    dataset.nczarr.to_cfa(tmp_path / "m.nca", max_object_size="1kB")
    sizes = []
    for path in (tmp_path / "m").iterdir():
        with netCDF4.Dataset(path) as file:
            sizes.append(file["v"].size * 8)
    assert max(sizes) <= 1000
    assert sum(sizes) == 7 * 11 * 13 * 8


def test_the_size_in_the_configuration_of_s3netcdf4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.json").write_text('{"version": "9", "hosts": {}, "max_object_size": "64B"}')
    monkeypatch.setenv("S3_NC_CONFIG", str(tmp_path / "c.json"))
    xr.Dataset({"v": ("x", np.arange(32.0))}).nczarr.to_cfa(tmp_path / "m.nca")
    assert len(list((tmp_path / "m").iterdir())) == 4


def test_what_is_small_is_no_aggregation(tmp_path: Path) -> None:
    sample().nczarr.to_cfa(tmp_path / "m.nca")
    assert names(tmp_path) == ["m.nca"]
    found = read(tmp_path / "m.nca")
    assert found.attrs["Conventions"] == "CF-1.8"
    same(found, by_netcdf(sample(), tmp_path / "x.nc"))


def test_empty_and_unlimited_dimensions(tmp_path: Path) -> None:
    dataset = sample().assign(nothing=(("time", "none"), np.ones((8, 0))))
    dataset.nczarr.to_cfa(
        tmp_path / "m.nca", subarray_shape={"time": 2}, unlimited_dims=["time"], cfa_version="1.13"
    )
    found = read(tmp_path / "m.nca")
    assert "time" in found.encoding["unlimited_dims"]
    assert found["nothing"].shape == (8, 0)
    np.testing.assert_array_equal(found["tas"], dataset["tas"])


@pytest.mark.parametrize("name", ["m.nca", "m.nczarr"])
def test_unlimited_dimension_with_a_variable_of_no_data_keeps_its_length(
    tmp_path: Path, name: str
) -> None:
    nothing = xr.Variable(("t", "x"), np.zeros((4, 0)))
    dataset = xr.Dataset({"v": ("t", np.arange(4.0)), "nothing": nothing})
    dataset.nczarr.to_cfa(tmp_path / name, subarray_shape={"t": 2}, unlimited_dims=["t"])
    xr.testing.assert_equal(read(tmp_path / name), dataset)


def test_unlimited_dimension_without_a_coordinate_keeps_its_length(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("t", "x"), np.arange(40.0).reshape(8, 5))})
    dataset.nczarr.to_cfa(tmp_path / "m.nca", max_object_size=100, unlimited_dims=["t"])
    xr.testing.assert_equal(read(tmp_path / "m.nca"), dataset)


def test_data_array(tmp_path: Path) -> None:
    array = sample()["tas"]
    array.nczarr.to_cfa(tmp_path / "m.nca", max_object_size=500)
    with xr.open_dataarray(tmp_path / "m.nca", engine="nczarr") as found:
        xr.testing.assert_equal(found, array)


def test_compression_is_that_of_the_encoding(tmp_path: Path) -> None:
    encoding = {"tas": {"zlib": True, "complevel": 3, "chunksizes": (2, 3, 5)}}
    sample().nczarr.to_cfa(tmp_path / "m.nca", max_object_size=700, encoding=encoding)
    with netCDF4.Dataset(tmp_path / "m" / "m.tas.0.0.0.nc") as file:
        assert file["tas"].filters()["zlib"]
        assert file["tas"].chunking() == [2, 3, 5]
        assert file["lat"].chunking() == "contiguous"


@pytest.mark.parametrize(
    ("asked", "filters"),
    [
        ({"compression": "zstd", "complevel": 9}, [(32015, (9,))]),
        ({"compression": "bzip2"}, [(307, (4,))]),
        ({"zlib": True, "shuffle": False, "fletcher32": True}, [(3, ()), (1, (4,))]),
        ({"zlib": True}, [(2, (4,)), (1, (4,))]),
    ],
)
def test_compression_that_was_asked_for_is_in_files(
    asked: dict[str, Any], filters: list[Any], tmp_path: Path
) -> None:
    to_cfa(
        sample()[["tas"]], tmp_path / "m.nca", encoding={"tas": asked}, subarray_shape=(4, 6, 10)
    )
    with h5py.File(next((tmp_path / "m").iterdir())) as file:
        found = file["tas"].id.get_create_plist()
        stored = [found.get_filter(n) for n in range(found.get_nfilters())]
    assert [(number, tuple(values)) for number, _, values, _ in stored] == filters


@pytest.mark.parametrize("form", ["CFA4", "CFA3"])
def test_values_are_rounded_in_the_master_and_in_fragments(form: Any, tmp_path: Path) -> None:
    values = np.linspace(1, 2, 24, dtype="f4").reshape(4, 6)
    ds = xr.Dataset({"v": (("t", "x"), values), "kept": ("x", values[1])})
    rounded = {"quantize_mode": "BitRound", "significant_digits": 3}
    options = {"subarray_shape": {"t": 2}, "encoding": {"v": rounded, "kept": rounded}}
    ds.nczarr.to_cfa(tmp_path / "m.nca", form, **options)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        name = "_QuantizeBitRoundNumberOfSignificantBits"
        assert found.v.attrs[name] == found.kept.attrs[name] == 3
        assert np.array_equal(found.v, np.round(values * 8) / 8)
        assert np.array_equal(found.kept, found.v[1])
    assert len(names(tmp_path / "m")) == 2


def test_texts_with_an_encoding_in_classic_netcdf(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("t", np.array(["a", "bcd"]))})
    options: Any = {"subarray_shape": {"t": 1}, "encoding": {"v": {"dtype": str}}}
    ds.nczarr.to_cfa(tmp_path / "m.nca", "CFA3", **options)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found.v.values.tolist() == ["a", "bcd"]


def test_in_memory(tmp_path: Path) -> None:
    target = f"memory://{tmp_path}/m.nca"
    for version in VERSIONS:
        sample().nczarr.to_cfa(target, cfa_version=version, max_object_size=300, mode="w")
        same(read(target), by_netcdf(sample(), tmp_path / f"{version}.nc"))


# -- what is refused -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"format": "CFA5"}, "format is 'CFA5'; it is one of CFA3, CFA4"),
        ({"format": "CFA3", "cfa_version": "1.13"}, "CFA3 is written as cfa_version='0.4' only"),
        ({"format": "CFA3", "fragment_format": "netCDF4"}, "CFA3 has no netCDF-4 fragments"),
        ({"cfa_version": "0.5"}, "as CFA version '0.5'; write one of 0.4, 0.6.2, 1.13"),
        ({"fragment_format": "PP"}, "fragment_format is 'PP'"),
        ({"mode": "a"}, "mode is 'a'; it is one of w-, w"),
        ({"append_dim": "time", "region": "auto"}, "exclude each other"),
        (
            {"append_dim": "time", "mode": "w"},
            "mode is 'w'; with append_dim it is 'a', or left out",
        ),
        ({"subarray_shape": {"t": 3}}, "subarray_shape names 't': no such dimension"),
        ({"subarray_shape": {"time": 0}}, "subarray_shape: 0 is no length"),
        ({"subarray_shape": {"time": 1.5}}, "subarray_shape: 1.5 is no length"),
        ({"subarray_shape": (1, 2, 3, 4)}, "no data variable has 4 dimensions"),
        ({"encoding": {"x": {}}}, "no such variable"),
        ({"encoding": {"tas": {"zilb": True}}}, "unexpected encoding parameters"),
        ({"format": "CFA3", "encoding": {"tas": {"zlib": True}}}, "no compression"),
        ({"encoding": {"tas": {"compression": "blosc_lz4"}}}, "/tas: .*blosc.*ask for zlib"),
        ({"encoding": {"lat": {"compression": "blosc_lz4"}}}, "/lat: .*blosc.*ask for zlib"),
        ({"encoding": {"tas": {"zstd": True, "shuffle": True}}}, "/tas: .*shuffle.*ask for zlib"),
    ],
)
def test_refused(options: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=match):
        sample().nczarr.to_cfa(tmp_path / "m.nca", max_object_size=300, **options)
    assert names(tmp_path) == []


def test_a_version_that_is_not_written_is_refused_where_nothing_is_divided(tmp_path: Path) -> None:
    version: Any = "0.5"
    with pytest.raises(ExportError, match=r"as CFA version '0\.5'"):
        sample().nczarr.to_cfa(tmp_path / "m.nca", cfa_version=version)
    assert names(tmp_path) == []


def test_what_is_no_dataset(tmp_path: Path) -> None:
    value: Any = {"v": [1]}
    with pytest.raises(TypeError, match="dict is no Dataset, DataArray or DataTree"):
        to_cfa(value, tmp_path / "m.nca")
    assert names(tmp_path) == []


def test_names_that_tables_cannot_hold(tmp_path: Path) -> None:
    for renamed in ({"tas": "t as"}, {"lat": "l at"}):
        with pytest.raises(ExportError, match="has a blank, by which tables of fragments separate"):
            sample().rename(renamed).nczarr.to_cfa(tmp_path / "m.nca", max_object_size=300)
    sample().rename(tas="t as").nczarr.to_cfa(tmp_path / "m.nca")
    assert names(tmp_path) == ["m.nca"]


@pytest.mark.parametrize("version", ["0.6.2", "1.13"])
@pytest.mark.parametrize("name", ["m.nca", "m.nczarr"])
@pytest.mark.parametrize("dimension", ["cfa_0_a", "cfa_most_a", "cfa_dimensions_a"])
def test_a_dimension_that_a_table_needs(
    dimension: str, name: str, version: Any, tmp_path: Path
) -> None:
    data = xr.Dataset({"a": ((dimension, "x"), np.zeros((4, 3)))})
    with pytest.raises(ExportError, match=f"would hold the dimension /{dimension} with two length"):
        data.nczarr.to_cfa(tmp_path / name, cfa_version=version, subarray_shape={dimension: 2})
    assert names(tmp_path) == []


@pytest.mark.parametrize(("version", "term"), [("0.6.2", "cfa_file_a"), ("1.13", "cfa_map_a")])
@pytest.mark.parametrize("name", ["m.nca", "m.nczarr"])
def test_a_name_that_a_table_needs(name: str, version: Any, term: str, tmp_path: Path) -> None:
    data = xr.Dataset({"a": ("t", np.arange(4.0)), term: ("x", np.arange(3))})
    with pytest.raises(ExportError, match=f"would hold /{term} twice"):
        data.nczarr.to_cfa(tmp_path / name, subarray_shape={"t": 2}, cfa_version=version)
    assert list(tmp_path.iterdir()) == []


def test_refused_sizes_and_places(tmp_path: Path) -> None:
    with pytest.raises(URLError, match="max_object_size: '5 apples' is no size"):
        sample().nczarr.to_cfa(tmp_path / "m.nca", max_object_size="5 apples")
    with pytest.raises(URLError, match="has no place beside it"):
        sample().nczarr.to_cfa({})
    with pytest.raises(URLError, match="plain HTTP is for reading"):
        sample().nczarr.to_cfa("http://localhost/m.nca")


def test_classic_netcdf_has_no_trees(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="a CFA3 master is one file"):
        sample().nczarr.to_cfa(tmp_path / "m.nczarr", "CFA3")
    tree = xr.DataTree.from_dict({"/": sample(), "/g": sample()})
    with pytest.raises(ExportError, match="/g: classic netCDF has no groups"):
        tree.nczarr.to_cfa(tmp_path / "m.nca", "CFA3")
    assert names(tmp_path) == []


def test_values_that_classic_netcdf_cannot_hold(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("x",), np.array([1, 2, 2**40]))})
    with pytest.raises(FormatError, match="/v: holds the value 1099511627776"):
        dataset.nczarr.to_cfa(tmp_path / "m.nca", "CFA3", subarray_shape={"x": 1})
    assert names(tmp_path) == []
    lists = xr.Dataset(attrs={"words": ["a", "b"]})
    with pytest.raises(ExportError, match="'words' is a list of texts"):
        lists.nczarr.to_cfa(tmp_path / "m.nca", "CFA3")
    empty = xr.Dataset({"v": (("x", "y"), np.ones((3, 0)))})
    with pytest.raises(ExportError, match="only a first dimension"):
        empty.nczarr.to_cfa(tmp_path / "m.nca", "CFA3")


# -- replacing -----------------------------------------------------------------


def test_existing_is_kept_or_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    sample().nczarr.to_cfa(target, max_object_size=300)
    before = names(tmp_path / "m")
    with pytest.raises(DatasetExistsError, match=r"; mode='w' replaces it, append_dim adds to it$"):
        sample(offset=1).nczarr.to_cfa(target, max_object_size=300)
    assert names(tmp_path / "m") == before
    sample(offset=1).nczarr.to_cfa(target, max_object_size=900, mode="w")
    after = names(tmp_path / "m")
    assert not {*before} & {*after}
    same(read(target), by_netcdf(sample(offset=1), tmp_path / "x.nc"))
    sample(offset=2).nczarr.to_cfa(target, mode="w")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("change", ["replace", "other variables", "shorter", "region"])
def test_names_of_fragments_do_not_come_back(change: str, tmp_path: Path) -> None:
    """Readers who opened an aggregation before it was changed twice must not read new values."""
    target = tmp_path / "a.nca"
    how: Any = {"subarray_shape": {"t": 2}}

    def steps(value: float, count: int = 4, name: str = "v") -> xr.Dataset:
        return xr.Dataset({name: (("t", "x"), np.full((count, 5), value))})

    to_cfa(steps(1), target, **how)
    with xr.open_dataset(target, engine="nczarr") as before:
        if change == "region":
            to_cfa(steps(2, 2), target, region={"t": slice(2, 4)})
            to_cfa(steps(3, 2), target, region={"t": slice(2, 4)})
        elif change == "shorter":
            to_cfa(steps(2, 2), target, mode="w", **how)
            to_cfa(steps(3, 2), target, mode="a", append_dim="t")
        else:
            name = "v" if change == "replace" else "other"
            to_cfa(steps(2, name=name), target, mode="w", **how)
            to_cfa(steps(3), target, mode="w", **how)
        with pytest.raises(DatasetNotFoundError):
            before["v"][2:].load()
    with xr.open_dataset(target, engine="nczarr") as after:
        assert (after["v"][2:] == 3).all()


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    kept = ["m.tas.0.0.0.nc", "mine.nc", "m.notes"]
    for name in kept:
        (tmp_path / "m" / name).write_text("mine")
    for mode in ("w-", "w"):
        sample().nczarr.to_cfa(tmp_path / "m.nca", max_object_size=300, mode=mode)
        same(read(tmp_path / "m.nca"), by_netcdf(sample(), tmp_path / f"{mode}.nc"))
        assert all((tmp_path / "m" / name).read_text() == "mine" for name in kept)


def test_two_masters_may_share_a_folder(tmp_path: Path) -> None:
    for name, offset in (("m.nca", 0), ("m.nczarr", 5), ("m.nca", 7)):
        sample(offset=offset).nczarr.to_cfa(tmp_path / name, max_object_size=300, mode="w")
    same(read(tmp_path / "m.nca"), by_netcdf(sample(offset=7), tmp_path / "x.nc"))
    same(read(tmp_path / "m.nczarr"), by_netcdf(sample(offset=5), tmp_path / "y.nc"))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    place = MasterPlace.find(target, None)
    claim = Claim.begin(place)
    with pytest.raises(ConflictError, match=f"process {os.getpid()}"):
        sample().nczarr.to_cfa(target, max_object_size=300)
    claim.forget()  # as if it had failed, and had not been able to clean up
    sample().nczarr.to_cfa(target, max_object_size=300)
    Claim.begin(place).note(["m/m.tas.0.0.0.nc", "m/m.tas.7.nc", "../other"], [])
    (tmp_path / "m" / "m.tas.7.nc").write_text("left over")
    assert recover(target)
    assert not recover(target)
    assert "m.tas.7.nc" not in names(tmp_path / "m")
    assert not any(".writing" in name for name in names(tmp_path / "m"))
    same(read(target), by_netcdf(sample(), tmp_path / "x.nc"))


# -- appending and regions -----------------------------------------------------


@pytest.mark.parametrize(("version", "kind"), each_once(VERSIONS, KINDS))
def test_append(version: Any, kind: Any, tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()
    options = {"cfa_version": version, "fragment_format": kind, "max_object_size": 300}
    whole.isel(time=slice(0, 3)).nczarr.to_cfa(target, unlimited_dims=["time"], **options)
    first = names(tmp_path / "m")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "m").iterdir()}
    rest = whole.isel(time=slice(3, 8)).drop_vars(["small", "crs", "lat_bnds", "height"])
    rest.attrs = {"history": "appended"}
    rest.chunk(time=2).nczarr.to_cfa(target, append_dim="time", max_object_size=300)
    found = read(target)
    assert found.attrs.pop("history") == "appended"
    if kind == "netCDF3":
        found["words"] = found["words"].astype(object)
    same(found, by_netcdf(whole, tmp_path / "x.nc"))
    assert {*first} < {*names(tmp_path / "m")}
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    with netCDF4.Dataset(target) as file:
        assert file.dimensions["time"].isunlimited()


def test_append_keeps_what_is_there_without_reading_it(tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()[["tas"]]
    whole.isel(time=slice(0, 4)).nczarr.to_cfa(target, subarray_shape={"time": 2})
    for path in (tmp_path / "m").iterdir():
        path.write_bytes(b"what nothing can read")
    whole.isel(time=slice(4, 8)).nczarr.to_cfa(
        target, append_dim="time", subarray_shape={"time": 1}
    )
    assert len(names(tmp_path / "m")) == 6
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found.sizes["time"] == 8
        np.testing.assert_array_equal(found["tas"][4:], whole["tas"][4:])
        with pytest.raises(FormatError, match=r"m\.tas\.0\.0\.0\.nc"):
            found["tas"][0].load()


@pytest.mark.parametrize("kind", ["netCDF4", "NCZarr"])
def test_new_fragments_are_stored_as_the_first_one(kind: Any, tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()[["tas"]].drop_vars(["height", "lat", "lon"])
    encoding = {"tas": {"zlib": True, "complevel": 2, "chunksizes": (1, 6, 10)}}
    options = {"fragment_format": kind, "encoding": encoding}
    whole.nczarr.to_cfa(target, subarray_shape={"time": 4}, **options)
    whole.assign_coords(time=whole["time"] + 9).nczarr.to_cfa(target, append_dim="time")
    whole.isel(time=slice(2, 4)).nczarr.to_cfa(target, region={"time": slice(2, 4)})
    inside = [path for path in (tmp_path / "m").iterdir() if ".tas." in path.name]
    assert len(inside) == 3
    for path in inside:
        with xr.open_dataset(path, engine="nczarr") as found:
            assert found["tas"].encoding["zlib"]
            assert found["tas"].encoding["complevel"] == 2
            assert found["tas"].encoding["chunksizes"] == (1, 6, 10)


@pytest.mark.parametrize(("version", "chunks"), each_once(VERSIONS, [None, {}]))
def test_written_in_the_place_of_what_is_read(version: Any, chunks: Any, tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    sample().nczarr.to_cfa(target, cfa_version=version, max_object_size=300)
    with xr.open_dataset(target, engine="nczarr", chunks=chunks) as found:
        found.nczarr.to_cfa(target, mode="w", cfa_version=version, max_object_size=900)
    same(read(target), by_netcdf(sample(), tmp_path / "x.nc"))


@pytest.mark.parametrize("append", [True, False], ids=["append", "region"])
def test_enums_that_a_master_holds_become_flags(append: bool, tmp_path: Path) -> None:
    target, data = tmp_path / "m.nca", xr.Dataset({"a": ("t", np.arange(4.0))}, {"t": np.arange(4)})
    data.nczarr.to_cfa(target, subarray_shape={"t": 2})
    with netCDF4.Dataset(target, "a") as file:
        kind = file.createEnumType("i1", "sky", {"clear": 0, "cloudy": 1})
        file.createVariable("now", kind, ())[...] = 1
    if append:
        data.assign_coords(t=np.arange(4, 8)).nczarr.to_cfa(target, append_dim="t")
    else:
        (data + 1).nczarr.to_cfa(target, region="auto")
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found["now"].item() == 1
        assert found["now"].attrs["flag_meanings"] == "clear cloudy"


def test_append_to_a_classic_master(tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    dataset = xr.Dataset({"v": (("t", "x"), np.arange(40).reshape(8, 5))}, {"t": np.arange(8)})
    dataset.isel(t=slice(0, 5)).nczarr.to_cfa(target, "CFA3", max_object_size=50)
    dataset.isel(t=slice(5, 8)).nczarr.to_cfa(target, append_dim="t")
    xr.testing.assert_equal(read(target), dataset)
    assert {path.read_bytes()[:4] for path in (tmp_path / "m").iterdir()} == {b"CDF\x01"}


@pytest.mark.parametrize("version", VERSIONS)
def test_changes_of_classic_fragments_of_another_master(version: Any, tmp_path: Path) -> None:
    """As when they were written, integers get the types that classic netCDF has."""
    target = tmp_path / "m.nca"
    options: Any = {"fragment_format": "netCDF3", "max_object_size": 50}
    dataset = xr.Dataset({"v": (("t", "x"), np.arange(40).reshape(8, 5))}, {"t": np.arange(8)})
    dataset.isel(t=slice(0, 5)).nczarr.to_cfa(target, cfa_version=version, **options)
    dataset.isel(t=slice(5, 8)).nczarr.to_cfa(target, append_dim="t", **options)
    xr.testing.assert_equal(read(target), dataset)
    (dataset + 1).isel(t=slice(3, 7)).nczarr.to_cfa(target, region="auto", **options)
    dataset["v"][3:7] += 1
    xr.testing.assert_equal(read(target), dataset)
    assert {path.read_bytes()[:4] for path in (tmp_path / "m").iterdir()} == {b"CDF\x01"}
    with pytest.raises(FormatError, match="int32 cannot hold"):
        (dataset + 10**10).nczarr.to_cfa(target, region="auto", **options)


@pytest.mark.parametrize(
    ("lazy", "version", "kind"), each_once([False, True], VERSIONS, ["NCZarr", "netCDF4"])
)
def test_region(lazy: bool, version: Any, kind: Any, tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()
    whole.nczarr.to_cfa(target, cfa_version=version, fragment_format=kind, max_object_size=300)
    before = names(tmp_path / "m")
    part = {"time": slice(2, 6), "lat": slice(1, 5), "lon": slice(3, 8)}
    new = whole[["tas", "pr", "count", "words"]].isel(part).drop_vars("height")
    new = new.copy(deep=True)
    new["tas"] += 1
    new["pr"] = new["pr"].copy(data=np.round(new["pr"].values / 2, 2))
    new["count"] += 1000
    given = new.chunk(time=3, lon=2) if lazy else new
    given.nczarr.to_cfa(target, region="auto")
    for name in ("tas", "pr", "count"):
        where = {dim: span for dim, span in part.items() if dim in whole[name].dims}
        whole[name][where] = new[name]
    same(read(target), by_netcdf(whole, tmp_path / "x.nc"))
    after = names(tmp_path / "m")
    assert len(after) == len(before)
    assert {name for name in before if ".when." in name} < {*after}


@pytest.mark.parametrize("name", ["m.nczarr", "m.zarr", "m.zip"])
def test_changes_of_a_master_that_is_a_tree(name: str, tmp_path: Path) -> None:
    target, whole = tmp_path / name, sample()
    options: dict[str, Any] = {"cfa_version": "1.13", "fragment_format": "NCZarr"}
    sample(offset=3).nczarr.to_cfa(target, max_object_size=300, **options)
    first = whole.isel(time=slice(0, 5))
    first.nczarr.to_cfa(target, max_object_size=300, mode="w", **options)
    rest = whole.isel(time=slice(5, 8)).drop_vars(["small", "crs", "lat_bnds", "height"])
    rest.nczarr.to_cfa(target, append_dim="time")
    same(read(target), by_netcdf(whole, tmp_path / "x.nc"))
    part = whole[["tas"]].isel(time=slice(1, 7), lat=slice(2, 3)).drop_vars("height")
    (part + 1).nczarr.to_cfa(target, region="auto")
    whole["tas"][{"time": slice(1, 7), "lat": slice(2, 3)}] += 1
    same(read(target), by_netcdf(whole, tmp_path / "y.nc"))
    referred = {address.partition("/")[0] for address in names(tmp_path / "m")}
    assert all(address.startswith("m.") for address in referred)


def test_region_of_whole_fragments_reads_none(tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()[["tas"]].drop_vars(["height", "lat", "lon"])
    whole.nczarr.to_cfa(target, subarray_shape={"time": 2})
    (tmp_path / "m" / "m.tas.1.0.0.nc").write_bytes(b"damaged")
    part = whole.isel(time=slice(2, 4))
    part.nczarr.to_cfa(target, region={"time": slice(2, 4)})
    xr.testing.assert_equal(read(target), whole)


def test_other_peoples_fragments_are_not_removed(tmp_path: Path) -> None:
    target, whole = tmp_path / "m.nca", sample()[["tas"]].drop_vars(["height", "lat", "lon"])
    whole.nczarr.to_cfa(target, subarray_shape={"time": 4})
    for number in (0, 1):  # as if a file of a user had been aggregated
        os.rename(tmp_path / "m" / f"m.tas.{number}.0.0.nc", tmp_path / "m" / f"mine{number}.nc")
    with netCDF4.Dataset(target, "a") as file:
        table = file["tas"].cfa_array
        for number in (0, 1):
            table = table.replace(f"m.tas.{number}.0.0.nc", f"mine{number}.nc")
        file["tas"].cfa_array = table
    whole.isel(time=slice(0, 4)).nczarr.to_cfa(target, region={"time": slice(0, 4)})
    xr.testing.assert_equal(read(target), whole)
    assert {"mine0.nc", "mine1.nc"} < {*names(tmp_path / "m")}
    whole.nczarr.to_cfa(target, mode="w")
    assert names(tmp_path / "m") == ["mine0.nc", "mine1.nc"]


def _region(target: Path) -> None:
    part = read(target).isel(t=slice(0, 1)).drop_vars("t", errors="ignore")
    part.nczarr.to_cfa(target, region={"t": slice(0, 1)})


def _replaced(target: Path) -> None:
    read(target).nczarr.to_cfa(target, mode="w")


@pytest.mark.parametrize("change", [_region, _replaced])
@pytest.mark.parametrize(
    "files",
    [
        ("e.mon.2001.nc", "e.mon.2002.nc"),
        ("e.a.2001.nc", "e.a.2002.nc"),  # as many numbers as fragments have
        ("e.a.0.nc", "e.a.1.nc"),
        ("e_a_[0].nc", "e_a_[1].nc"),
    ],
)
def test_files_that_were_aggregated_stay(change: Any, files: Any, tmp_path: Path) -> None:
    """Whatever they are called: one that ends in a year looks like a fragment."""
    (tmp_path / "e").mkdir()
    paths = [tmp_path / "e" / name for name in files]
    for number, path in enumerate(paths):
        values, steps = np.arange(30000.0) + number, np.arange(30000) + 30000 * number
        xr.Dataset({"a": ("t", values)}, {"t": steps}).to_netcdf(path)
    target = tmp_path / "e.nca"
    aggregate(paths, target)
    before = read(target)
    change(target)
    assert {*files} <= {*names(tmp_path / "e")}
    xr.testing.assert_equal(read(target), before)
    for path in paths:
        with xr.open_dataset(path) as found:
            assert found.sizes["t"] == 30000


@pytest.mark.parametrize(
    ("name", "kind"),
    each_once(["m.nca", "ü#1 %.nca", "m.nczarr"], KINDS),
)
def test_fragments_that_are_not_needed_go(name: str, kind: Any, tmp_path: Path) -> None:
    target, data = tmp_path / name, sample()[["tas", "words", "lat"]]
    options: Any = {"max_object_size": 300, "fragment_format": kind}
    data.nczarr.to_cfa(target, **options)
    (folder,) = (path for path in tmp_path.iterdir() if path != target)
    before = names(folder)
    part = data.isel(time=slice(0, 2)).drop_vars(
        ["lat", "lon", "height", "lat_bnds"], errors="ignore"
    )
    part.nczarr.to_cfa(target, region={"time": slice(0, 2)}, fragment_format=kind)
    assert len(names(folder)) == len(before)
    assert {*names(folder)} != {*before}
    data.nczarr.to_cfa(target, mode="w")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (lambda ds: ds, {"append_dim": "none"}, "is not a dimension of the new values"),
        (lambda ds: ds[["tas"]], {"append_dim": "time"}, "/pr: lies along /time as well"),
        (lambda ds: ds, {"append_dim": "time", "cfa_version": "0.4"}, "stays one"),
        (lambda ds: ds, {"append_dim": "time", "format": "CFA3"}, "is CFA4, and stays so"),
        (lambda ds: ds, {"append_dim": "time", "encoding": {"tas": {}}}, "leave it out"),
        (
            lambda ds: ds.assign(tas=ds["tas"].astype("f8")),
            {"append_dim": "time"},
            "is of type float64",
        ),
        (
            lambda ds: ds[["tas"]].isel(time=slice(0, 2)).drop_vars("height"),
            {"region": {"time": slice(7, 9)}},
            "is not inside 'time'",
        ),
    ],
)
def test_changes_that_are_refused(change: Any, options: Any, match: str, tmp_path: Path) -> None:
    target = tmp_path / "m.nca"
    sample().nczarr.to_cfa(target, cfa_version="1.13", max_object_size=300)
    before = names(tmp_path / "m"), target.read_bytes()
    with pytest.raises(ExportError, match=match):
        change(sample()).nczarr.to_cfa(target, **options)
    assert (names(tmp_path / "m"), target.read_bytes()) == before


def test_no_values_change_nothing(tmp_path: Path) -> None:
    ds = xr.Dataset({"v": ("t", np.arange(4)), "w": ("t", np.arange(4.0))})
    ds.nczarr.to_cfa(tmp_path / "m.nca", subarray_shape={"t": 2}, unlimited_dims=["t"])
    before = names(tmp_path / "m")
    none = ds.isel(t=slice(0, 0))
    none.nczarr.to_cfa(tmp_path / "m.nca", append_dim="t")
    none.nczarr.to_cfa(tmp_path / "m.nca", region={"t": slice(1, 1)})
    assert names(tmp_path / "m") == before
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        xr.testing.assert_equal(found.load(), ds)


@pytest.mark.parametrize("version", ["0.4", "0.6.2"])
@pytest.mark.filterwarnings("ignore:.*(no fragment holds|these data are missing)")
def test_a_region_where_fragments_are_missing(version: Any, tmp_path: Path) -> None:
    """Tiles of a grid without some, of which others have no file: a region fills what it covers."""
    for t, x in ((0, 0), (2, 0), (0, 3)):
        place = {"t": [float(t), t + 1.0], "x": [float(x)]}
        tile = xr.Dataset({"v": (("t", "x"), np.full((2, 1), 10.0 * t + x))}, place)
        tile.to_netcdf(tmp_path / f"{t}{x}.nc")
    target = tmp_path / "m.nca"
    with pytest.warns(match="no file"):
        aggregate(sorted(tmp_path.glob("*.nc")), target, cfa_version=version)
    wanted = read(target)
    assert wanted["v"].isnull().sum() == 2
    for region in ({"t": slice(1, 4), "x": slice(0, 2)}, {"t": slice(2, 3), "x": slice(1, 2)}):
        new = wanted[["v"]].isel(region).drop_vars(["t", "x"]) * 0 + 7.0
        new["v"][:] = np.arange(new["v"].size).reshape(new["v"].shape)
        new.nczarr.to_cfa(target, region=region)
        wanted["v"][region] = new["v"]
        xr.testing.assert_equal(read(target), wanted)
    more = wanted.isel(t=slice(0, 1)).assign_coords(t=[9.0])
    more.nczarr.to_cfa(target, append_dim="t")
    xr.testing.assert_equal(read(target), xr.concat([wanted, more], "t"))


def test_gaps_that_a_table_has(tmp_path: Path) -> None:
    """As S3netCDF4 leaves them: what is written there becomes a fragment, the rest stays a gap."""
    for n in (0, 1, 3):
        xr.Dataset({"v": ("t", [float(n)])}).to_netcdf(tmp_path / f"{n}.nc")
    document = {
        "pmdimensions": ["t"],
        "pmshape": [3],
        "Partitions": [
            {"index": [i], "location": [[n, n]], "subarray": {"file": f"{n}.nc", "ncvar": "v"}}
            for i, n in enumerate((0, 1, 3))
        ],
    }
    with netCDF4.Dataset(tmp_path / "m.nca", "w") as file:
        file.createDimension("t", 6)
        file.Conventions = "CFA-0.4"
        made = file.createVariable("v", "f8", fill_value=-1.0)
        made.setncatts({"cf_role": "cfa_variable", "cfa_dimensions": "t"})
        made.cfa_array = json.dumps(document)
    wanted = np.array([0.0, 1, np.nan, 3, np.nan, np.nan])
    for part in (slice(5, 6), slice(1, 4)):
        values = 10.0 * np.arange(part.start, part.stop)
        xr.Dataset({"v": ("t", values)}).nczarr.to_cfa(tmp_path / "m.nca", region={"t": part})
        wanted[part] = values
        np.testing.assert_array_equal(read(tmp_path / "m.nca")["v"], wanted)


def test_nothing_to_change(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="write it first"):
        sample().nczarr.to_cfa(tmp_path / "m.nca", append_dim="time")
    assert names(tmp_path) == []


@settings(max_examples=examples(25))
@given(st.data())
def test_any_series_of_changes(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Whatever is appended and replaced, in whatever fragments: it is what numpy has."""
    version = data.draw(st.sampled_from(VERSIONS))
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    target = tmp_path_factory.mktemp("any") / "m.nca"
    values = np.arange(rows * columns, dtype="i4").reshape(rows, columns)
    shapes = st.one_of(
        st.builds(lambda n: {"max_object_size": 4 * n}, st.integers(1, 40)),
        st.builds(lambda n: {"subarray_shape": {"t": n}}, st.integers(1, 4)),
    )
    first = data.draw(shapes)
    xr.Dataset({"v": (("t", "x"), values)}).nczarr.to_cfa(target, cfa_version=version, **first)
    for number in range(1, data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            more = np.full((data.draw(st.integers(1, 4)), columns), -number, "i4")
            new = xr.Dataset({"v": (("t", "x"), more)})
            new.nczarr.to_cfa(target, append_dim="t", **data.draw(shapes))
            values = np.concatenate([values, more])
            continue
        region = {}
        for dim, size in zip("tx", values.shape, strict=True):
            start = data.draw(st.integers(0, size - 1))
            region[dim] = slice(start, data.draw(st.integers(start + 1, size)))
        shape = [part.stop - part.start for part in region.values()]
        new = xr.Dataset({"v": (("t", "x"), np.full(shape, 1000 * number, "i4"))})
        new.nczarr.to_cfa(target, region=region)
        values[tuple(region.values())] = 1000 * number
    np.testing.assert_array_equal(read(target)["v"].values, values)


# -- schedulers of dask --------------------------------------------------------


@pytest.mark.parametrize(
    "scheduler", slow_but(["synchronous", "threads", "processes"], "synchronous", "threads")
)
def test_schedulers(scheduler: str, tmp_path: Path) -> None:
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler=scheduler):
        sample().chunk(time=3).nczarr.to_cfa(tmp_path / "m.nca", max_object_size=900)
    same(read(tmp_path / "m.nca"), by_netcdf(sample(), tmp_path / "x.nc"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*unmanaged memory.*")
def test_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(
        n_workers=1, threads_per_worker=2, dashboard_address=None, processes=False
    ):
        sample().chunk(time=3).nczarr.to_cfa(tmp_path / "m.nca", max_object_size=900)
    same(read(tmp_path / "m.nca"), by_netcdf(sample(), tmp_path / "x.nc"))


def test_each_block_is_computed_once_and_where_it_is_written(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    seen = []

    def noted(block: Any, block_id: Any = None) -> Any:
        seen.append(block_id)
        return block

    data = da.ones((8, 6), chunks=(2, 6)).map_blocks(noted, dtype="f8", meta=np.empty((0, 0)))
    xr.Dataset({"v": (("t", "x"), data)}).nczarr.to_cfa(tmp_path / "m.nca", subarray_shape={"t": 4})
    assert sorted(seen) == [(number, 0) for number in range(4)]
    assert len(names(tmp_path / "m")) == 2


def test_a_callback_counts_the_fragments(tmp_path: Path) -> None:
    callback = Callback()
    table = xr.Dataset({"t": (("time", "x"), np.zeros((6, 100)))})
    table.nczarr.to_cfa(tmp_path / "m.nca", subarray_shape={"time": 2}, callback=callback)
    assert callback.size == callback.value > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_object", [False, True])
def test_a_coordinate_that_is_one_text(tmp_path: Path, kind: Any, as_object: bool) -> None:
    name = ((), np.array("ä b", object if as_object else "U"))
    ds = xr.Dataset(
        {"v": (("t", "x"), np.arange(8.0).reshape(4, 2))}, {"t": np.arange(4.0), "name": name}
    )
    target = tmp_path / "m.nca"
    to_cfa(ds, target, subarray_shape={"t": 2}, fragment_format=kind)
    to_cfa(ds.assign_coords(t=np.arange(4.0, 8.0)), target, append_dim="t")
    to_cfa(ds[["v"]].drop_vars("name") * 2, target, region="auto")
    with xr.open_dataset(target, engine="nczarr") as found:
        assert found["name"].item() == "ä b"
        np.testing.assert_array_equal(found["v"][:4], ds["v"] * 2)
        np.testing.assert_array_equal(found["v"][4:], ds["v"])
