from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.callbacks import Callback
from hypothesis import given, settings
from hypothesis import strategies as st

import nczarr_xarray
from nczarr_fsspec.errors import (
    AccessDeniedError,
    ConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    ExportError,
    LossWarning,
    NCZarrWarning,
    StoreError,
    URLError,
)
from nczarr_xarray import to_cfa
from nczarr_xarray.aggregation import joining
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.aggregation.reading import read_files
from nczarr_xarray.dataset.units import conversion
from nczarr_xarray.export.cfa.master import MasterPlace
from tests.support.builders.manyfiles import TIME, field, forget_versions, step, write

VERSIONS = ("0.4", "0.6.2", "1.13")


def months(folder: Path, *, form: Any = "NETCDF4", count: int = 3) -> list[str]:
    """Write files, the last one first."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [step(folder / f"{n}.nc", [2 * n, 2 * n + 1], form=form) for n in range(count)]
    return files[::-1]


def check_field(master: Any, times: int, **options: Any) -> None:
    with xr.open_dataset(master, engine="nczarr", decode_times=False, **options) as ds:
        assert ds.time.values.tolist() == [*range(times)]
        assert np.array_equal(ds.tas.values, field([*range(times)]))
        assert ds.tas.attrs == {"units": "K"}
        assert ds.x.values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["m.nca", "m.nczarr", "file://{}/m#mode=nczarr"])
def test_every_version_in_every_kind_of_master(tmp_path: Path, version: str, name: str) -> None:
    master = name.format(tmp_path) if "{" in name else str(tmp_path / name)
    aggregate(months(tmp_path), master, cfa_version=version)
    check_field(master, 6)


def test_a_single_file_needs_no_list(tmp_path: Path) -> None:
    (file,) = months(tmp_path, count=1)
    aggregate(file, tmp_path / "m.nca", dim="time")
    aggregate(Path(file), tmp_path / "m.nca", dim="time", overwrite=True)
    check_field(tmp_path / "m.nca", 2)


def test_classic_masters_of_classic_files(tmp_path: Path) -> None:
    files = months(tmp_path, form="NETCDF3_CLASSIC")
    aggregate(files, tmp_path / "m.nca", cfa_version="0.4", format="CFA3")
    assert (tmp_path / "m.nca").read_bytes()[:3] == b"CDF"
    check_field(tmp_path / "m.nca", 6)


def test_classic_masters_have_the_types_of_classic_netcdf(tmp_path: Path) -> None:
    files = [tmp_path / f"{first}.nc" for first in (0, 3)]
    for first, file in zip((0, 3), files, strict=True):
        steps = np.arange(first, first + 3)
        xr.Dataset({"n": ("t", steps)}, {"t": steps}).to_netcdf(file)
    master = tmp_path / "m.nca"
    aggregate(files, master, cfa_version="0.4", format="CFA3")
    with xr.open_dataset(master, engine="nczarr") as ds:
        assert ds["n"].dtype == ds["t"].dtype == "int32"
        assert ds["n"].values.tolist() == ds["t"].values.tolist() == [*range(6)]


def test_classic_masters_are_of_one_version(tmp_path: Path) -> None:
    said = "CFA3 is written as cfa_version='0.4' only, not '1.13'"
    with pytest.raises(ExportError, match=said):  # before files are opened: there are none
        aggregate(["a.nc", "b.nc"], tmp_path / "m.nca", format="CFA3")
    with pytest.raises(ExportError, match=said):
        convert_references("a.nca", tmp_path / "m.nca", format="CFA3")


def test_what_a_classic_master_cannot_hold_is_named(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{name}.nc") for name in "ab"]
    for name, file in zip("ab", files, strict=True):
        xr.Dataset({"v": ("x", [1.0])}, {"x": [name]}).to_netcdf(file)
    with pytest.raises(ExportError, match="/x is text, which classic netCDF lacks"):
        aggregate(files, tmp_path / "m.nca", cfa_version="0.4", format="CFA3")
    assert not (tmp_path / "m.nca").exists()


def test_addresses_are_relative_to_the_folder_of_the_master(tmp_path: Path) -> None:
    inside = months(tmp_path / "here" / "parts", count=2)
    outside = step(tmp_path / "elsewhere.nc", [4, 5])
    aggregate([*inside, outside], tmp_path / "here" / "m.nca")
    check_field(tmp_path / "here" / "m.nca", 6)
    (tmp_path / "here").rename(tmp_path / "there")
    check_field(tmp_path / "there" / "m.nca", 6)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("relative", [True, False])
def test_names_of_files_may_have_any_characters(
    tmp_path: Path, version: str, relative: bool
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    names = ["é.nc", "%41.nc", "x#y.nc", "q?.nc"]
    files = [step(folder / name, [n]) for n, name in enumerate(names)]
    aggregate(files, folder / "m.nca", cfa_version=version, relative=relative)
    check_field(folder / "m.nca", 4)
    folder.rename(tmp_path / "c")
    if relative:
        check_field(tmp_path / "c" / "m.nca", 4)
    else:
        with xr.open_dataset(tmp_path / "c" / "m.nca", engine="nczarr") as ds:
            with pytest.raises(FileNotFoundError, match="a b"):
                ds.tas.load()


def test_a_master_is_not_overwritten_unless_that_is_asked_for(tmp_path: Path) -> None:
    files = months(tmp_path)
    aggregate(files[1:], tmp_path / "m.nca")
    with pytest.raises(
        DatasetExistsError, match=r"; overwrite=True replaces it, append=True adds to it$"
    ):
        aggregate(files, tmp_path / "m.nca")
    check_field(tmp_path / "m.nca", 4)
    aggregate(files, tmp_path / "m.nca", overwrite=True)
    check_field(tmp_path / "m.nca", 6)
    assert sorted(os.listdir(tmp_path)) == ["0.nc", "1.nc", "2.nc", "m.nca"]


@pytest.mark.parametrize("version", VERSIONS)
def test_append_reads_only_the_new_files(tmp_path: Path, version: str) -> None:
    files = months(tmp_path)
    aggregate(files[1:], tmp_path / "m.nca", cfa_version=version)
    for file in files[1:]:
        os.rename(file, f"{file}.away")
    aggregate(files[:1], tmp_path / "m.nca", append=True)
    for file in files[1:]:
        os.rename(f"{file}.away", file)
    check_field(tmp_path / "m.nca", 6)


@pytest.mark.parametrize("name", ["a\nb.nc", "a\tb.nc", "a\x7f.nc"])
def test_names_that_no_reader_takes_are_refused(tmp_path: Path, name: str) -> None:
    ds = xr.Dataset({"v": ("time", np.arange(2.0))}, {"time": [0, 1]})
    ds.to_netcdf(tmp_path / "plain.nc")
    (tmp_path / "plain.nc").rename(tmp_path / name)
    for version in ("0.6.2", "1.13"):
        master = tmp_path / f"{version}.nca"
        aggregate(tmp_path / name, master, dim="time", cfa_version=version)
        with xr.open_dataset(master, engine="nczarr") as found:
            assert found["v"].values.tolist() == [0, 1]
    with pytest.raises(ExportError, match="control characters in its name"):
        aggregate(tmp_path / name, tmp_path / "m.nca", dim="time", cfa_version="0.4")
    assert not (tmp_path / "m.nca").exists()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("said", [None, True, False])
def test_appended_files_are_addressed_as_the_others(
    tmp_path: Path, version: str, relative: bool, said: bool | None
) -> None:
    """A master of which only some files may be moved with it would be found out too late."""
    folder = tmp_path / "a b"
    files = months(folder)
    aggregate(files[:2], folder / "m.nca", cfa_version=version, relative=relative)
    aggregate(files[2:], folder / "m.nca", append=True, relative=said)
    check_field(folder / "m.nca", 6)
    folder.rename(tmp_path / "c")
    with xr.open_dataset(tmp_path / "c" / "m.nca", engine="nczarr") as ds:
        for at, moves in ((-1, relative), (0, relative if said is None else said)):
            with nullcontext() if moves else pytest.raises(FileNotFoundError, match="a b"):
                ds.tas[at].load()


def test_append_puts_files_where_they_belong(tmp_path: Path) -> None:
    late, middle, early = months(tmp_path)
    aggregate([late, early], tmp_path / "m.nca")
    aggregate([middle], tmp_path / "m.nca", append=True)
    check_field(tmp_path / "m.nca", 6)


def test_one_writer_at_a_time_from_before_the_master_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the files of one of two appends would be lost."""
    late, middle, early = months(tmp_path)
    target = tmp_path / "m.nca"
    aggregate([early], target, dim="time")
    refused: list[str] = []

    def meanwhile(*arguments: Any) -> list[int]:
        if not refused:
            refused.append(late)
            with pytest.raises(ConflictError, match="is being written"):
                aggregate(refused, target, append=True)
        return read_files(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(joining, "read_files", meanwhile)
        aggregate([middle], target, append=True)
    assert refused == [late]
    check_field(target, 4)
    aggregate(refused, target, append=True)
    check_field(target, 6)


def test_a_failure_lets_others_write(tmp_path: Path) -> None:
    files, target = months(tmp_path), tmp_path / "m.nca"
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DatasetNotFoundError):
        aggregate([*files, tmp_path / "none.nc"], target)
    assert sorted(os.listdir(tmp_path)) == before
    aggregate(files, target)
    check_field(target, 6)


@pytest.mark.parametrize("what", ["attribute", "reference", "variable's"])
def test_nothing_that_is_stored_is_dropped(what: str, tmp_path: Path) -> None:
    files, target = months(tmp_path), tmp_path / "m.nca"
    aggregate(files[1:], target)
    with h5py.File(target, "a") as file:
        owner = file["x"] if what == "variable's" else file
        pair = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
        owner.attrs["strange"] = file["x"].ref if what == "reference" else pair
    before = target.read_bytes()
    with xr.open_dataset(target, engine="nczarr", decode_times=False) as ds:
        part = ds.isel(time=slice(0, 1)).drop_vars(["time", "x"]).load()
    for change in (
        lambda: aggregate(files[:1], target, append=True),
        lambda: to_cfa(part, target, region={"time": slice(0, 1)}),
    ):
        with pytest.raises(ExportError, match=r"holds what a change would lose.*\n.*strange"):
            change()
        assert target.read_bytes() == before


def test_text_that_is_not_utf8_stays(tmp_path: Path) -> None:
    files, target = months(tmp_path), tmp_path / "m.nca"
    for file in files:
        with netCDF4.Dataset(file, "a") as dataset:
            dataset.createVariable("word", str, ())[...] = "garcon"
    aggregate(files[1:], target)
    data = target.read_bytes()
    assert data.count(b"garcon") == 1
    target.write_bytes(data.replace(b"garcon", b"gar\xe7on"))
    aggregate(files[:1], target, append=True)
    assert target.read_bytes().count(b"gar\xe7on") == 1


def test_a_master_of_several_versions_is_not_changed(tmp_path: Path) -> None:
    files, target = months(tmp_path), tmp_path / "m.nca"
    aggregate(files[1:], target, cfa_version="0.6.2")
    aggregate(files[1:], tmp_path / "other.nca")
    with netCDF4.Dataset(tmp_path / "other.nca") as one, netCDF4.Dataset(target, "a") as both:
        for name, dimension in one.dimensions.items():
            if name not in both.dimensions:
                both.createDimension(name, len(dimension))
        copied = [name for name in one.variables if name == "tas" or name not in both.variables]
        for name in copied:
            new = "later" if name == "tas" else name
            made = both.createVariable(new, one[name].dtype, one[name].dimensions)
            made.setncatts({key: one[name].getncattr(key) for key in one[name].ncattrs()})
            if name != "tas":
                made[...] = one[name][...]
    before = target.read_bytes()
    with xr.open_dataset(target, engine="nczarr", decode_times=False) as ds:
        np.testing.assert_array_equal(ds["later"], ds["tas"])
        whole = ds.load()
    for change in (
        lambda: aggregate(files[:1], target, append=True),
        lambda: to_cfa(whole, target, append_dim="time"),
    ):
        with pytest.raises(ExportError, match=r"mixes versions 0\.6\.2 and 1\.13"):
            change()
        assert target.read_bytes() == before


def test_attributes_that_classic_netcdf_lacks(tmp_path: Path) -> None:
    """As h5netcdf writes text; and numbers without a sign."""
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    for number, file in enumerate(files):
        steps = 2 * number + np.arange(2, dtype="i4")
        data = xr.Dataset(
            {"a": ("t", steps * 1.5, {"units": "K", "flag": np.uint8(3)})},
            {"t": ("t", steps, {"long_name": "step"})},
            {"title": "x", "level": np.uint32(7)},
        )
        data.to_netcdf(file, engine="h5netcdf")
    target = tmp_path / "m.nca"
    aggregate(files[:1], target, dim="t", cfa_version="0.4", format="CFA3")
    with pytest.raises(ExportError, match="is CFA3, and stays so"):
        aggregate(files[1:], target, append=True, format="CFA4")
    aggregate(files[1:], target, append=True)
    later = xr.Dataset(
        {"a": ("t", [6.0, 7.5])}, {"t": np.array([4, 5], "i4")}, {"number": np.uint16(5)}
    )
    later.nczarr.to_cfa(target, append_dim="t")
    with netCDF4.Dataset(target) as file:
        assert file.data_model == "NETCDF3_CLASSIC"
        assert (file.title, file.level, file.number, file["a"].flag) == ("x", 7, 5, 3)
    with xr.open_dataset(target, engine="nczarr") as ds:
        assert ds["a"].values.tolist() == [0, 1.5, 3, 4.5, 6, 7.5]


def test_groups_and_classic_netcdf(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        file = tmp_path / f"{number}.nc"
        data = xr.Dataset({"a": ("t", np.arange(2.0))}, {"t": [2 * number, 2 * number + 1]})
        xr.DataTree.from_dict({"/": data, "/g": data}).to_netcdf(file)
        files.append(file)
    with pytest.raises(ExportError, match="/g: classic netCDF has no groups"):
        aggregate(files, tmp_path / "m.nca", cfa_version="0.4", format="CFA3")
    assert sorted(os.listdir(tmp_path)) == ["0.nc", "1.nc"]


def test_append_compares_with_the_master(tmp_path: Path) -> None:
    aggregate(months(tmp_path), tmp_path / "m.nca")
    other = step(tmp_path / "o.nc", [9], more={"tas": (("time", "x"), field([9]), {"units": "m"})})
    with pytest.raises(ExportError, match=r"o.nc: /tas has the units 'm', which cannot .*m.nca"):
        aggregate([other], tmp_path / "m.nca", append=True)
    overlapping = step(tmp_path / "p.nc", [1.5, 2.5])
    with pytest.raises(ExportError, match=r"overlaps with .* along /time"):
        aggregate([overlapping], tmp_path / "m.nca", append=True)
    with pytest.raises(
        ExportError, match=r"m.nca: .*of version 1.13, and stays one: leave cfa_version out"
    ):
        aggregate([other], tmp_path / "m.nca", append=True, cfa_version="0.4")
    check_field(tmp_path / "m.nca", 6)


def test_append_takes_the_variables_that_are_there(tmp_path: Path) -> None:
    more: dict[str, Any] = {"pr": (("time",), [1.0], {})}
    files = [step(tmp_path / f"{n}.nc", [n], more=more) for n in range(3)]
    aggregate(files[:2], tmp_path / "m.nca", variables=["tas"])
    aggregate(files[2:], tmp_path / "m.nca", append=True)
    check_field(tmp_path / "m.nca", 3)
    other = write(tmp_path / "o.nc", {"time": (("time",), [9.0], TIME)})
    with pytest.raises(ExportError, match=r"o.nc: has no variable 'tas'; there are"):
        aggregate([other], tmp_path / "m.nca", append=True)


def test_append_compares_coordinates_that_no_table_has(tmp_path: Path) -> None:
    def one(n: int, height: float) -> str:
        more: dict[str, Any] = {
            "height": (("height",), [height, 9.0], {"units": "m"}),
            "weight": (("height",), [1.0, 2.0], {}),
        }
        return step(tmp_path / f"{n}.nc", [n], more=more)

    files = [one(0, 2.0), one(1, 2.0), one(2, 2.0), one(3, 2.5), one(4, 3.0)]
    aggregate(files[:2], tmp_path / "m.nca")
    aggregate(files[2:3], tmp_path / "m.nca", append=True)
    for added in (files[3:4], files[3:]):
        with pytest.raises(ExportError, match=r"[34].nc: (overlaps with|has other values of)"):
            aggregate(added, tmp_path / "m.nca", append=True)
    check_field(tmp_path / "m.nca", 3)


def test_append_along_a_new_dimension(tmp_path: Path) -> None:
    def one(n: int) -> str:
        variables: dict[str, Any] = {
            "run": ((), n, {}),
            "v": (("x",), np.full(2, n, "f8"), {}),
        }
        return write(tmp_path / f"{n}.nc", variables)

    files = [one(n) for n in range(4)]
    aggregate([files[3], files[0]], tmp_path / "m.nca", "run")
    aggregate([files[2], files[1]], tmp_path / "m.nca", append=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds.run.values.tolist() == [0, 1, 2, 3]
        assert ds.v.dims == ("run", "x")
        assert ds.v.values[:, 0].tolist() == [0, 1, 2, 3]


def packed(path: Path, times: list[float], scale: float, add: float) -> str:
    variables: dict[str, Any] = {
        "time": (("time",), np.array(times), TIME),
        "v": (
            ("time", "x"),
            np.array([[10, -1, 30]] * len(times), "i2"),
            {
                "scale_factor": scale,
                "add_offset": add,
                "_FillValue": np.int16(-1),
                "valid_range": np.array([0, 100], "i2"),
            },
        ),
    }
    return write(path, variables)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_packed_files(tmp_path: Path, version: str, scale: float) -> None:
    files = [packed(tmp_path / "a.nc", [0], 0.5, 1.0), packed(tmp_path / "b.nc", [1], scale, 1.0)]
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        expected = [[6, np.nan, 16], [10 * scale + 1, np.nan, 30 * scale + 1]]
        assert np.array_equal(ds.v.values, np.array(expected), equal_nan=True)
        stays = version == "0.4" and scale == 0.5
        assert (ds.v.encoding.get("scale_factor") == 0.5) == stays
        assert ("valid_range" in ds.v.attrs) == stays


def test_packed_otherwise_is_not_added_to_what_is_packed(tmp_path: Path) -> None:
    files = [packed(tmp_path / f"{n}.nc", [n], 0.5, 1.0) for n in range(2)]
    aggregate(files, tmp_path / "m.nca", cfa_version="0.4")
    other = packed(tmp_path / "o.nc", [5], 0.25, 1.0)
    with pytest.raises(ExportError, match=r"o.nc: /v is packed otherwise than in .*m.nca"):
        aggregate([other], tmp_path / "m.nca", append=True)
    same = packed(tmp_path / "s.nc", [5], 0.5, 1.0)
    aggregate([same], tmp_path / "m.nca", append=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds.v[:, 2].values.tolist() == [16, 16, 16]


@pytest.mark.parametrize("version", VERSIONS)
def test_packed_values_of_other_units_are_not_rounded(tmp_path: Path, version: str) -> None:
    def write_packed(name: str, time: float, units: str) -> str:
        attributes = {"scale_factor": np.float64(0.5), "units": units}
        values = np.array([[3, 5]], "i2")
        variables: dict[str, Any] = {
            "time": (("time",), np.array([time]), {}),
            "v": (("time", "x"), values, attributes),
        }
        return write(tmp_path / f"{name}.nc", variables)

    files = [write_packed("a", 0, "km"), write_packed("b", 1, "m")]
    aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        np.testing.assert_allclose(ds.v, [[1.5, 2.5], [0.0015, 0.0025]], rtol=1e-6)
    if version == "0.4":
        aggregate(files[:1], tmp_path / "n.nca", "time", cfa_version=version)
        with pytest.raises(ExportError, match=r"b.nc: /v .* or has other units"):
            aggregate(files[1:], tmp_path / "n.nca", append=True)


def test_units_of_data_are_converted_when_they_are_read(tmp_path: Path) -> None:
    a = step(tmp_path / "a.nc", [0])
    more: dict[str, Any] = {"tas": (("time", "x"), field([1]), {"units": "mK"})}
    b = step(tmp_path / "b.nc", [1], more=more)
    aggregate([a, b], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert np.allclose(ds.tas.values, [field([0])[0], field([1])[0] / 1000])


def test_units_without_the_package_that_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = step(tmp_path / "a.nc", [0])
    more: dict[str, Any] = {"tas": (("time", "x"), field([1]), {"units": "mK"})}
    b = step(tmp_path / "b.nc", [1], more=more)
    conversion.cache_clear()
    monkeypatch.setitem(sys.modules, "cf_units", None)
    with pytest.raises(ExportError, match=r"b\.nc: /tas: units 'mK'.*pip install .*cfa"):
        aggregate([a, b], tmp_path / "m.nca")
    assert not (tmp_path / "m.nca").exists()


def test_what_xarray_makes_of_the_same_files(tmp_path: Path) -> None:
    files = months(tmp_path)
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ours:
        with xr.open_mfdataset(sorted(files), engine="netcdf4") as theirs:
            xr.testing.assert_identical(ours.load(), theirs.load())


def test_an_aggregation_of_aggregations(tmp_path: Path) -> None:
    files = months(tmp_path, count=4)
    aggregate(files[:2], tmp_path / "late.nca")
    aggregate(files[2:], tmp_path / "early.nca", cfa_version="0.4")
    aggregate([tmp_path / "late.nca", tmp_path / "early.nca"], tmp_path / "m.nca")
    check_field(tmp_path / "m.nca", 8)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("group", ["g", "g/h"])
def test_an_aggregation_of_aggregations_in_groups(tmp_path: Path, version: str, group: str) -> None:
    for n in range(2):
        part = xr.Dataset({"v": ("time", [n * 2.0, n * 2.0 + 1])}, {"time": [n * 2, n * 2 + 1]})
        part.to_netcdf(tmp_path / f"{n}.nc", group=group)
    aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.nca", cfa_version=version)
    aggregate(tmp_path / "m.nca", tmp_path / "again.nca", dim=f"{group}/time", cfa_version=version)
    with xr.open_dataset(tmp_path / "again.nca", engine="nczarr", group=group) as found:
        assert found["v"].values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_aggregation_of_an_aggregation_of_one_value(tmp_path: Path, version: str) -> None:
    """Its variable is stored without dimensions, which is the shape of one value, too."""
    ds = xr.Dataset({"v": (("time", "x"), np.array([[7]], "i2"))}, {"time": [0], "x": [0.0]})
    ds.to_netcdf(tmp_path / "one.nc")
    aggregate(tmp_path / "one.nc", tmp_path / "m.nca", dim="time", cfa_version=version)
    aggregate(tmp_path / "m.nca", tmp_path / "again.nca", dim="time", cfa_version=version)
    with xr.open_dataset(tmp_path / "again.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [[7]]


def test_a_master_is_none_of_its_files(tmp_path: Path) -> None:
    files = months(tmp_path)
    aggregate(files, tmp_path / "all.nc")
    with pytest.raises(ExportError, match=r"all.nc: is the master itself"):
        aggregate([*files, tmp_path / "all.nc"], tmp_path / "all.nc", overwrite=True)
    check_field(tmp_path / "all.nc", 6)


@pytest.mark.parametrize("name", ["0.nc", "0.nczarr"])
def test_a_file_that_is_called_otherwise_is_not_replaced_by_its_master(
    tmp_path: Path, name: str
) -> None:
    wanted = xr.Dataset({"v": ("t", [1.0, 2.0])}, {"t": [0, 1]})
    first, second = tmp_path / name, tmp_path / "1.nc"
    wanted.nczarr.to_nczarr(first) if name == "0.nczarr" else wanted.to_netcdf(first)
    wanted.assign_coords(t=[2, 3]).to_netcdf(second)
    (tmp_path / f"link.{name}").symlink_to(name)
    (tmp_path / "folder").symlink_to(".")
    for file in (tmp_path / f"link.{name}", tmp_path / "folder" / name, first.as_uri()):
        with pytest.raises(ExportError, match="is the master itself"):
            aggregate([file, second], first, overwrite=True)
    aggregate([first, second], tmp_path / "m.nca")
    with pytest.raises(ExportError, match="is the master itself"):
        convert_references(tmp_path / "m.nca", first, overwrite=True)
    with xr.open_dataset(first, engine="nczarr") as found:
        xr.testing.assert_equal(found, wanted)


@pytest.mark.parametrize("name", ["m.nca", "m.nczarr", "m.json", "deep.nca"])
def test_what_a_file_names_is_not_replaced_by_its_master(tmp_path: Path, name: str) -> None:
    wanted = xr.Dataset({"v": (("t", "x"), np.ones((2, 500)))}, {"t": [0, 1]})
    first = tmp_path / "0.nc"
    wanted.to_netcdf(first)
    wanted.assign_coords(t=[2, 3]).to_netcdf(tmp_path / "1.nc")
    inner = tmp_path / ("m.nca" if name == "deep.nca" else name)
    aggregate([first, tmp_path / "1.nc"], inner)
    master = tmp_path / name
    if master != inner:
        aggregate(inner, master, dim="t")
    (tmp_path / "link.nc").symlink_to("0.nc")
    for output in (first, tmp_path / "link.nc"):
        with pytest.raises(ExportError, match=rf"holds data of .*{name}, .*another name"):
            aggregate(master, output, dim="t", overwrite=True)
        with pytest.raises(ExportError, match="is the master itself"):
            convert_references(master, output, overwrite=True)
    with xr.open_dataset(first, engine="nczarr") as found:
        xr.testing.assert_equal(found, wanted)


def test_a_tree_is_not_replaced_by_the_master_of_its_groups(tmp_path: Path) -> None:
    tree = tmp_path / "all.nczarr"
    for n in range(2):
        part = xr.Dataset({"v": ("t", [n])}, {"t": [n]})
        part.nczarr.to_nczarr(tree, group=f"g{n}", mode="a")
    (tmp_path / "link").symlink_to("all.nczarr")
    aggregate([tree / "g0", tree / "g1"], tmp_path / "m.nca")
    for files in ([tree / "g0", tree / "g1"], [tmp_path / "link" / "g1"], [tmp_path / "m.nca"]):
        with pytest.raises(ExportError, match="is the master itself"):
            aggregate(files, tree, dim="t", overwrite=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, 1]


def test_a_master_is_no_part_of_what_is_added_to_it(tmp_path: Path) -> None:
    files = months(tmp_path)
    aggregate(files[1:], tmp_path / "m.nca")
    aggregate([tmp_path / "m.nca", files[0]], tmp_path / "whole.nca")
    with pytest.raises(ExportError, match=r"m.nca: is the .* holds data of .*whole.nca"):
        aggregate(tmp_path / "whole.nca", tmp_path / "m.nca", append=True, dim="time")
    check_field(tmp_path / "m.nca", 4)
    check_field(tmp_path / "whole.nca", 6)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", ["a#b.nc", "a b.nc", "a%b.nc", "a?b.nc", "file:a.nc"])
def test_files_one_of_which_is_called_as_the_other_is_encoded(
    tmp_path: Path, version: str, relative: bool, name: str
) -> None:
    files = [tmp_path / name, tmp_path / quote(name)]
    for number, file in enumerate(files):
        xr.Dataset({"v": ("t", [number])}, {"t": [number]}).to_netcdf(file)
    aggregate(files, tmp_path / "m.nca", cfa_version=version, relative=relative)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, 1]


@given(st.text("!&'()+,:;=@ %#?[]*$~é.-_a", min_size=1, max_size=6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_files_of_any_name(
    tmp_path_factory: pytest.TempPathFactory, name: str, relative: bool
) -> None:
    folder = tmp_path_factory.mktemp("names")
    xr.Dataset({"v": ("t", [7])}, {"t": [0]}).to_netcdf(folder / "0")
    (folder / "0").rename(folder / f"{name}.nc")
    (file,) = (str(path) for path in folder.iterdir())
    for version in VERSIONS:
        aggregate([file], folder / "m", dim="t", cfa_version=version, relative=relative)
        with xr.open_dataset(folder / "m", engine="nczarr") as found:
            assert found["v"].values.tolist() == [7]
        (folder / "m").unlink()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("as_strings", [False, True])
def test_conventions_stay_when_files_are_added(
    tmp_path: Path, version: str, as_strings: bool
) -> None:
    for n in range(3):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            said = "CF-1.6, ACDD-1.3"
            file.setncattr_string("Conventions", said) if as_strings else file.setncatts(
                {"Conventions": said}
            )
            file.createDimension("t", 1)
            for name in ("t", "v"):
                file.createVariable(name, "i4", ("t",))[:] = n
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "m.nca", cfa_version=version)
    aggregate(tmp_path / "2.nc", tmp_path / "m.nca", append=True)
    later = xr.Dataset({"v": ("t", [3])}, {"t": [3]}).astype("i4")
    later.assign_coords(t=later["t"].astype("i4")).nczarr.to_cfa(tmp_path / "m.nca", append_dim="t")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, 1, 2, 3]
        assert found.attrs["Conventions"] == said
    with netCDF4.Dataset(tmp_path / "m.nca") as file:
        own = f"CF-1.6 ACDD-1.3 CFA-{version}"
        assert file.Conventions == ("CF-1.13 ACDD-1.3" if version == "1.13" else own)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("attributes", "values"),
    [
        ({"_Unsigned": ["true"]}, [0, 255]),
        ({"units": ["m", "s"]}, [0, -1]),
        ({"units": []}, [0, -1]),
    ],
    ids=str,
)
def test_attributes_that_are_odd_mean_what_they_do_in_the_files(
    tmp_path: Path, version: str, attributes: dict[str, Any], values: list[int]
) -> None:
    for n in range(2):
        with h5py.File(tmp_path / f"{n}.nc", "w") as file:
            file["t"] = np.array([n], "i4")
            file["t"].make_scale("t")
            file["v"] = np.array([-n], "i1")
            file["v"].dims[0].attach_scale(file["t"])
            for name, value in attributes.items():
                texts = h5py.string_dtype() if isinstance(value, list) else None
                file["v"].attrs.create(name, np.array(value, texts), dtype=texts)
    aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "1.nc", engine="nczarr") as one:
        assert one["v"].values.tolist() == values[1:]
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == values


@pytest.mark.parametrize("kind", ["i1", "u2", "i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize(
    "packing",
    [
        {"scale_factor": np.float32(0.01)},
        {"add_offset": np.float32(273.15)},
        {"scale_factor": np.float32(0.01), "add_offset": np.float32(273.15)},
        {"scale_factor": np.float32(0.01), "add_offset": np.float64(273.15)},
        {"scale_factor": np.float64(0.01), "add_offset": np.float64(273.15)},
        {"scale_factor": np.int16(300), "add_offset": np.int16(5)},
    ],
    ids=str,
)
def test_fragments_are_unpacked_to_the_bit_as_xarray_does(
    tmp_path: Path, kind: str, packing: dict[str, Any]
) -> None:
    values = np.arange(100, 120).astype(kind)
    for n in range(2):
        file = xr.Dataset({"v": ("t", values, packing)}, {"t": np.arange(20) + 20 * n})
        file.to_netcdf(tmp_path / f"{n}.nc", encoding={"v": {"_FillValue": None}})
    aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "0.nc", engine="netcdf4") as one:
        expected = one["v"].values.astype("f8").tolist()
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.astype("f8").tolist() == 2 * expected


def test_a_mark_that_no_element_can_have_is_left_out(tmp_path: Path) -> None:
    for n in range(2):
        with h5py.File(tmp_path / f"{n}.nc", "w") as file:
            file["t"] = np.array([2 * n, 2 * n + 1], "i4")
            file["t"].make_scale("t")
            file["v"] = np.array([0, -(2**31)], "i4")
            file["v"].dims[0].attach_scale(file["t"])
            file["v"].attrs["_FillValue"] = 1e20
    with pytest.warns(LossWarning, match=r"m.nca: left out: a _FillValue that no .* have: /v$"):
        aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, -(2**31)] * 2
    aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.json")
    references = json.loads((tmp_path / "m.json").read_text())["refs"]
    assert json.loads(references["v/.zattrs"])["_FillValue"] == 1e20  # JSON can have it


def test_no_variable_is_lost_when_files_are_added(tmp_path: Path) -> None:
    for n in range(2):
        part = xr.Dataset({"v": ("t", [n]), "w": ("t", [n])}, {"t": [n], "h": ("t", [n])})
        part.to_netcdf(tmp_path / f"{n}.nc")
    aggregate(tmp_path / "0.nc", tmp_path / "m.nca", dim="t")
    with pytest.raises(ExportError, match=r"m.nca: has w, too, which would be lost: leave variabl"):
        aggregate(tmp_path / "1.nc", tmp_path / "m.nca", append=True, variables=["v"])
    aggregate(tmp_path / "1.nc", tmp_path / "m.nca", append=True, variables=["v", "w"])
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["w"].values.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["link.nca", "elsewhere/link.nca"])
@pytest.mark.parametrize("as_url", [False, True])
def test_a_master_is_changed_where_a_link_leads_to(tmp_path: Path, name: str, as_url: bool) -> None:
    last, *files = months(tmp_path / "own")
    master, link = tmp_path / "own" / "m.nca", tmp_path / name
    aggregate(files, master)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(master)
    target = link.as_uri() if as_url else link
    aggregate(last, target, append=True)
    check_field(master, 6)
    with xr.open_dataset(master, engine="nczarr") as found:
        later = (
            found.isel(time=[0]).load().assign_coords(time=found.time[-1:] + np.timedelta64(1, "D"))
        )
    later.drop_vars("x").nczarr.to_cfa(target, append_dim="time")
    assert link.is_symlink()
    with xr.open_dataset(master, engine="nczarr") as found:
        assert found["tas"].shape[0] == 7
        assert np.array_equal(found["tas"][-1:], later["tas"])
    assert (tmp_path / "own" / "m").is_dir()


def test_times_are_added_whose_units_are_a_string(tmp_path: Path) -> None:
    """Attributes of netCDF-4 are characters or strings; cfdm writes strings."""
    with netCDF4.Dataset(tmp_path / "0.nc", "w") as file:
        file.createDimension("t", 2)
        file.createVariable("t", "i4", ("t",))[:] = [0, 1]
        file["t"].setncattr_string("units", "days since 2000-01-01")
        file.createVariable("v", "f8", ("t",))[:] = [0, 1]
    aggregate(tmp_path / "0.nc", tmp_path / "m.nca", dim="t")
    days = np.array(["2000-01-03"], "M8[ns]")
    xr.Dataset({"v": ("t", [2.0])}, {"t": days}).nczarr.to_cfa(tmp_path / "m.nca", append_dim="t")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == [0, 1, 2]
        assert found["t"].values[2] == days[0]


@pytest.mark.parametrize("name", ["scale_factor", "add_offset"])
def test_a_factor_that_is_text_is_none(tmp_path: Path, name: str) -> None:
    for n in range(2):
        part = xr.Dataset({"v": ("t", [n], {name: "0.5"})}, {"t": [n]})
        part.to_netcdf(tmp_path / f"{n}.nc")
    aggregate([tmp_path / f"{n}.nc" for n in range(2)], tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", mask_and_scale=False) as found:
        assert found["v"].values.tolist() == [0, 1]
        assert found["v"].attrs[name] == "0.5"


def test_a_master_elsewhere(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    files = months(tmp_path)
    try:
        with pytest.warns(NCZarrWarning, match=r"m.nca is to name .*2.nc, a local file: .*allow="):
            aggregate(files, "memory://aggregated/m.nca")
        check_field("memory://aggregated/m.nca", 6, allow=[tmp_path])
        with xr.open_dataset("memory://aggregated/m.nca", engine="nczarr") as ds:
            with pytest.raises(AccessDeniedError):
                ds.tas.load()
    finally:
        fs.rm("/aggregated", recursive=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["m.nca", "m.nczarr"])
def test_groups(tmp_path: Path, version: str, name: str) -> None:
    for n in range(3):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("time", 1)
            file.createVariable("time", "f8", ("time",))[:] = n
            for path in ("a", "a/b"):
                group = file.createGroup(path)
                group.note = f"group {path}"
                group.createVariable("v", "f4", ("time",))[:] = n + len(path)
                group.createVariable("c", "i2", ())[...] = 7
    aggregate([tmp_path / f"{n}.nc" for n in range(3)], tmp_path / name, cfa_version=version)
    with xr.open_datatree(tmp_path / name, engine="nczarr") as tree:
        assert np.asarray(tree["a/v"]).tolist() == [1, 2, 3]
        assert np.asarray(tree["a/b/v"]).tolist() == [3, 4, 5]
        assert tree["a/b/c"].item() == 7
        assert tree["a/b"].attrs == {"note": "group a/b"}
        assert np.asarray(tree["time"]).tolist() == [0, 1, 2]


def test_enums_become_flags(tmp_path: Path) -> None:
    files = []
    for n in range(2):
        files.append(tmp_path / f"{n}.nc")
        with netCDF4.Dataset(files[-1], "w") as file:
            kind = file.createEnumType("i1", "sky", {"clear": 0, "cloudy": 1})
            file.createDimension("t", 1)
            file.createVariable("t", "f8", ("t",))[:] = n
            file.createVariable("now", kind, ("t",))[:] = n
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert ds.now.values.tolist() == [0, 1]
        assert ds.now.attrs["flag_meanings"] == "clear cloudy"


@pytest.mark.parametrize("master", ["m.nca", "m.nczarr"])
def test_names_of_numbers_that_differ_are_left_out(tmp_path: Path, master: str) -> None:
    files = []
    for n, members in enumerate(({"a": 0, "b": 1}, {"a": 0, "b": 1}, {"b": 0, "a": 1})):
        files.append(tmp_path / f"{n}.nc")
        with netCDF4.Dataset(files[-1], "w") as file:
            kind = file.createEnumType("i1", "sky", members)
            file.createDimension("t", 1)
            file.createVariable("t", "f8", ("t",))[:] = n
            file.createVariable("now", kind, ("t",))[:] = 0
    aggregate(files, tmp_path / master)
    with xr.open_dataset(tmp_path / master, engine="nczarr") as ds:
        assert "flag_meanings" not in ds["now"].attrs
    aggregate(files[:2], tmp_path / master, overwrite=True)
    aggregate(files[2:], tmp_path / master, append=True)
    with xr.open_dataset(tmp_path / master, engine="nczarr") as ds:
        assert "flag_meanings" not in ds["now"].attrs
        assert ds["now"].dtype == "i1"


def test_fragments_that_are_trees(tmp_path: Path) -> None:
    folders = []
    for n in range(2):
        with xr.open_dataset(step(tmp_path / f"{n}.nc", [n]), decode_times=False) as ds:
            folders.append(tmp_path / f"{n}.zarr")
            ds.nczarr.to_nczarr(folders[-1])
    aggregate(folders, tmp_path / "m.nca")
    check_field(tmp_path / "m.nca", 2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mark", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("append", [False, True])
def test_missing_data_in_later_files_only(
    tmp_path: Path, version: Any, mark: str, append: bool
) -> None:
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, (file, encoding) in enumerate(zip(files, ({}, {mark: -9}), strict=True)):
        ds = xr.Dataset({"v": ("x", np.array([1, -9], "i2"))}, {"x": np.arange(2) + 2 * number})
        ds.to_netcdf(file, encoding={"v": encoding})
    if append:
        aggregate(files[:1], tmp_path / "m.nca", dim="x", cfa_version=version)
        aggregate(files[1:], tmp_path / "m.nca", append=True)
    else:
        aggregate(files, tmp_path / "m.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        np.testing.assert_array_equal(found["v"], [1, -9, 1, np.nan])


def test_bytes_have_no_value_to_spare(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.nc") for number in range(2)]
    for number, (file, encoding) in enumerate(zip(files, ({}, {"_FillValue": -9}), strict=True)):
        ds = xr.Dataset({"v": ("x", np.array([1, -9], "i1"))}, {"x": np.arange(2) + 2 * number})
        ds.to_netcdf(file, encoding={"v": encoding})
    with pytest.raises(ExportError, match="_FillValue in some files and none in others"):
        aggregate(files, tmp_path / "m.nca")


@pytest.mark.parametrize("text", [np.array([b"a", b"bcd"]), np.array(["ä", "bcd"])])
def test_text_of_zarr_that_has_a_length(tmp_path: Path, text: np.ndarray) -> None:
    files = []
    for number in (0, 2):
        ds = xr.Dataset({"v": ("x", text)}, {"x": [number, number + 1]})
        files.append(str(tmp_path / f"{number}.zarr"))
        ds.to_zarr(files[-1], zarr_format=2, consolidated=False)
    aggregate(files, tmp_path / "m.nca")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert found["v"].values.tolist() == text.astype("U").tolist() * 2


@pytest.mark.parametrize("master", ["m.nca", "m.nczarr"])
@pytest.mark.parametrize("text", [["a", "bcd"], ["ä", ""], ["a", "b"]])
def test_text_that_zarr_marks_as_such(tmp_path: Path, text: list[str], master: str) -> None:
    """``_Encoding`` is for bytes: xarray cannot decode a string that has it."""
    files = []
    for number in (0, 2):
        values = np.array([one.encode() for one in text])
        marked = ("x", values, {"_Encoding": "utf-8"})
        ds = xr.Dataset({"v": marked}, {"x": [number, number + 1], "name": marked})
        files.append(str(tmp_path / f"{number}.zarr"))
        ds.to_zarr(files[-1], zarr_format=2, consolidated=False)
    aggregate(files[:1], tmp_path / master, dim="x")
    aggregate(files[1:], tmp_path / master, append=True)
    with xr.open_dataset(tmp_path / master, engine="nczarr") as found:
        assert found["v"].values.tolist() == text * 2
        assert found["name"].values.tolist() == text * 2


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("packing", [{}, {"scale_factor": 0.5}])
def test_the_fill_value_of_zarr_2(tmp_path: Path, version: Any, packing: dict[str, float]) -> None:
    files = []
    for number in (0, 2):
        ds = xr.Dataset({"v": ("x", [number, np.nan])}, {"x": [number, number + 1]})
        encoding = {"v": {"dtype": "i2", "_FillValue": -99, **packing}}
        files.append(str(tmp_path / f"{number}.zarr"))
        ds.to_zarr(files[-1], zarr_format=2, consolidated=False, encoding=encoding)
    master = tmp_path / "m.nca"
    aggregate(files, master, cfa_version=version)
    with xr.open_dataset(master, engine="nczarr") as found:
        np.testing.assert_array_equal(found["v"], [0, np.nan, 2, np.nan])


@pytest.mark.parametrize("step_of", ["reading", "writing"])
def test_the_old_master_stays_if_anything_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_of: str
) -> None:
    files = months(tmp_path)
    master = tmp_path / "m.nca"
    aggregate(files[1:], master)
    before = master.read_bytes()
    if step_of == "reading":
        Path(files[0]).write_bytes(Path(files[0]).read_bytes()[:200])
    else:

        def fail(*_: Any, **__: Any) -> None:
            raise StoreError("disk", "is full")

        monkeypatch.setattr(MasterPlace, "put", fail)
    with pytest.raises((StoreError, ExportError, nczarr_xarray.FormatError)):
        aggregate(files[:1], master, append=True)
    assert master.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["0.nc", "1.nc", "2.nc", "m.nca"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": []}, "sources: there is no file"),
        ({"targets": [None]}, "has no address; name paths and URLs"),
        ({"targets": ["https://a:b@h/x.nc"]}, "holds secrets"),
        ({"append": True, "overwrite": True}, "overwrite: replaces the master, append adds"),
        ({"gaps": "no"}, "gaps: is one of 'allow', 'raise'"),
        ({"cfa_version": "0.5"}, "cannot be written as CFA version '0.5'"),
        ({"format": "CFA5"}, "format is 'CFA5'"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"targets": months(tmp_path), "output": tmp_path / "m.nca"}
    with pytest.raises((URLError, ExportError), match=message):
        aggregate(**{**given, **options})
    assert not (tmp_path / "m.nca").exists()


def test_a_variable_may_be_named_without_a_list(tmp_path: Path) -> None:
    aggregate(step(tmp_path / "a.nc", [0]), tmp_path / "m.nca", dim="time", variables="tas")
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as found:
        assert "tas" in found


def test_a_thousand_files_of_one_kind_are_described_once(tmp_path: Path) -> None:
    path = step(tmp_path / "a.nc", [0])
    data = Path(path).read_bytes()
    with netCDF4.Dataset(path, "a") as file:
        file["time"][0] = 1
    (tmp_path / "b.nc").write_bytes(data)
    from nczarr_xarray.aggregation.files import Wanted
    from nczarr_xarray.aggregation.reading import Summaries, read_files

    found = Summaries()
    wanted = Wanted(frozenset(), frozenset(), None, lambda *_: None)
    refused: list[str] = []
    paths = [path, str(tmp_path / "b.nc")] * 3
    read_files(paths, wanted, lambda: None, found, lambda target, _: refused.append(target))
    assert not refused
    assert len({id(file.layout) for file in found.files}) == 1
    assert len({id(file.value("/x")) for file in found.files}) == 1
    assert len({id(file.value("/time")) for file in found.files}) == 2


def test_a_callback_counts_the_files(tmp_path: Path) -> None:
    callback = Callback()
    aggregate(months(tmp_path), tmp_path / "m.nca", callback=callback)
    assert (callback.size, callback.value) == (3, 3)


@pytest.mark.parametrize("name", ["m.nca", "m.zarr", "m.json"])
@pytest.mark.parametrize("hides", ["x", "y"])
def test_a_dimension_that_another_hides_is_refused(tmp_path: Path, name: str, hides: str) -> None:
    files = []
    for start in (0, 3):
        files.append(f"{tmp_path}/{start}.nc")
        with netCDF4.Dataset(files[-1], "w") as file:
            file.createDimension("time", 3)
            far = file.createDimension("x", 2)
            times = file.createVariable("time", "i4", ("time",))
            times.units, times[:] = "days since 2000-01-01", np.arange(start, start + 3)
            group = file.createGroup("g")
            group.createDimension(hides, 5)
            group.createVariable("v", "f8", ("time", far))
            group.createVariable("w", "f8", ("time", hides))
    if hides == "x":
        with pytest.raises(ExportError, match="/g/v: has the dimension /x, which is hidden in /g"):
            aggregate(files, tmp_path / name)
        assert not (tmp_path / name).exists()
    else:
        aggregate(files, tmp_path / name)
        with xr.open_dataset(tmp_path / name, engine="nczarr", group="g") as master:
            assert master.load().v.shape == (6, 2)


def test_files_are_added_to_times_that_became_double(tmp_path: Path) -> None:
    files = []
    for number, (units, times) in enumerate(
        (("days", [0, 1]), ("hours", [54, 60]), ("days", [4, 5]), ("hours", [6 * 24 + 6, 7 * 24]))
    ):
        files.append(tmp_path / f"{number}.nc")
        with netCDF4.Dataset(files[-1], "w") as file:
            file.createDimension("t", 2)
            file.createVariable("t", "i4", ("t",)).units = f"{units} since 2000-01-01"
            file["t"][:] = times
            file.createVariable("v", "f4", ("t",))[:] = times
    aggregate(files[:2], tmp_path / "m.nca")
    for file in files[2:]:
        aggregate(file, tmp_path / "m.nca", append=True)
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr", decode_times=False) as ds:
        assert ds["t"].values.tolist() == [0, 1, 2.25, 2.5, 4, 5, 6.25, 7]
        assert ds["v"].values.tolist() == [0, 1, 54, 60, 4, 5, 150, 168]


@pytest.mark.parametrize(("version", "other"), [("1.13", "0.4"), ("0.6.2", "0.4"), ("0.4", "1.13")])
def test_packed_values_do_not_become_others_in_another_version(
    tmp_path: Path, version: str, other: str
) -> None:
    """CFA-0.4 packs what it unpacks; other versions apply the packing of both."""
    packing = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    ds = xr.Dataset({"v": ("x", np.arange(4.0))}, {"x": np.arange(4)})
    ds.nczarr.to_cfa(
        tmp_path / "m.nca", cfa_version=version, encoding={"v": packing}, subarray_shape={"x": 2}
    )
    convert_references(tmp_path / "m.nca", tmp_path / "n.nca", cfa_version=other)
    with xr.open_dataset(tmp_path / "n.nca", engine="nczarr") as back:
        np.testing.assert_array_equal(back["v"], ds["v"])
    with netCDF4.Dataset(tmp_path / "m" / "m.v.1.nc", "r+") as fragment:
        if version == "0.4":
            del fragment["v"].scale_factor
        else:
            fragment["v"].scale_factor = 0.5
    forget_versions(tmp_path / "m.nca")
    with pytest.raises(ExportError, match=r"packs /v, and fragment \(1,\) is (not )?packed"):
        convert_references(tmp_path / "m.nca", tmp_path / "o.nca", cfa_version=other)
