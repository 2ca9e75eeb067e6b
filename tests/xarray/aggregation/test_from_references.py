from __future__ import annotations

import base64
import json
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from kerchunk.combine import MultiZarrToZarr
from kerchunk.hdf import SingleHdf5ToZarr
from kerchunk.netCDF3 import NetCDF3ToZarr

from nczarr_fsspec.errors import AccessDeniedError, ExportError, NCZarrWarning
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.aggregation.masters import Replaced, read_master
from nczarr_xarray.export.cfa.master import MasterPlace
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.views.references import references
from tests.support.builders.manyfiles import TIME, write
from tests.support.servers.httpserver import Server

VERSIONS = ("0.4", "0.6.2", "1.13")
NOISE = np.random.default_rng(7).normal(size=(3, 40, 50)).astype("f4")


def one(path: Path, n: int, form: Any = "NETCDF4", **more: Any) -> str:
    options = {} if form.startswith("NETCDF3") else {"chunksizes": (1, 20, 50), "zlib": True}
    variables: dict[str, Any] = {
        "time": (("time",), np.arange(3.0) + 3 * n, TIME),
        "y": (("y",), np.arange(40.0), {}),
        "tas": (("time", "y", "x"), NOISE + n, {"units": "K", **options, **more}),
        "plain": (("time", "y", "x"), NOISE - n, {}),
    }
    return write(path, variables, form)


def made(tmp_path: Path, count: int = 3, form: Any = "NETCDF4", **more: Any) -> Path:
    files = [one(tmp_path / f"{n}.nc", n, form, **more) for n in range(count)]
    aggregate(files, tmp_path / "all.json")
    return tmp_path / "all.json"


def check(master: Path, count: int = 3) -> None:
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        assert np.array_equal(ds.tas.values, np.concatenate([NOISE + n for n in range(count)]))
        assert np.array_equal(ds.plain.values, np.concatenate([NOISE - n for n in range(count)]))
        assert ds.time.values.tolist() == [*range(3 * count)]
        assert ds.tas.attrs == {"units": "K"}
        assert ds.tas.dims == ("time", "y", "x")


def aggregated(master: Path) -> Aggregated:
    options = OpenOptions()
    replaced = Replaced(MasterPlace.find(master.with_name("new.nca"), None))
    return read_master(str(master), options, options.policy(master), replaced, None)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(path.read_text())
    change(document["refs"])
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_references_become_masters(tmp_path: Path, version: str, form: str) -> None:
    convert_references(made(tmp_path, form=form), tmp_path / "all.nca", cfa_version=version)
    check(tmp_path / "all.nca")


def test_a_classic_master(tmp_path: Path) -> None:
    convert_references(made(tmp_path), tmp_path / "all.nca", cfa_version="0.4", format="CFA3")
    check(tmp_path / "all.nca")


def test_tables_name_files_and_variables(tmp_path: Path) -> None:
    def rename(refs: dict[str, Any]) -> None:
        for key in [key for key in refs if key.startswith("plain/")]:
            refs[key.replace("plain", "other")] = refs.pop(key)
        del refs[".zmetadata"]

    convert_references(changed(made(tmp_path), rename), tmp_path / "all.nca")
    found = aggregated(tmp_path / "all.nca")
    assert "Conventions" not in found.hierarchy.root.attributes  # of the data, which have none
    with netCDF4.Dataset(tmp_path / "all.nca") as file:
        assert file.Conventions == "CF-1.13"
    assert {*found.tables} == {"/tas", "/other"}
    assert {*found.values} == {"/time", "/y"}
    table = found.tables["/other"]
    assert table.addresses.tolist() == ["0.nc", "1.nc", "2.nc"]
    assert table.names.tolist() == ["plain"] * 3
    assert [bounds.tolist() for bounds in table.stops] == [[3, 6, 9], [40], [50]]


def test_parquet_and_back(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    convert_references(made(tmp_path), tmp_path / "all.parq")
    convert_references(tmp_path / "all.parq", tmp_path / "all.nca")
    check(tmp_path / "all.nca")


def test_references_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(references(one(tmp_path / "0.nc", 0))))
    convert_references(tmp_path / "one.json", tmp_path / "one.nca")
    check(tmp_path / "one.nca", 1)


def test_remote_files(tmp_path: Path) -> None:
    files = {f"/{n}.nc": Path(one(tmp_path / f"{n}.nc", n)).read_bytes() for n in range(3)}
    with Server(files) as server:
        aggregate([f"{server.url}/{n}.nc" for n in range(3)], tmp_path / "all.json")
        convert_references(tmp_path / "all.json", tmp_path / "all.nca")
        check(tmp_path / "all.nca")


def test_what_kerchunk_combines(tmp_path: Path) -> None:
    files = [one(tmp_path / f"{n}.nc", n) for n in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kerchunk's own
        single = [SingleHdf5ToZarr(file, inline_threshold=0).translate() for file in files]
        many = MultiZarrToZarr(single, concat_dims=["time"], identical_dims=["y"]).translate()
    (tmp_path / "all.json").write_text(json.dumps(many))
    convert_references(tmp_path / "all.json", tmp_path / "all.nca", allow=[str(tmp_path)])
    check(tmp_path / "all.nca")


def test_records_of_a_classic_file(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("time", None)
        file.createDimension("x", 50)
        for name in ("tas", "other"):
            file.createVariable(name, "f4", ("time", "x"))[:] = NOISE[0] + len(name)
    (tmp_path / "a.json").write_text(json.dumps(NetCDF3ToZarr(str(tmp_path / "a.nc")).translate()))
    convert_references(tmp_path / "a.json", tmp_path / "a.nca")
    with xr.open_dataset(tmp_path / "a.nca", engine="nczarr") as ds:
        assert np.array_equal(ds.tas.values, NOISE[0] + 3)
        assert np.array_equal(ds.other.values, NOISE[0] + 5)
    assert aggregated(tmp_path / "a.nca").tables.keys() == {"/tas", "/other"}


def test_a_new_dimension_and_two_variables_of_one_file(tmp_path: Path) -> None:
    file = one(tmp_path / "0.nc", 0)
    refs = references(file)["refs"]

    def stacked(name: str, *names: str) -> dict[str, Any]:
        array = json.loads(refs[f"{names[0]}/.zarray"])
        array |= {"shape": [len(names), *array["shape"]], "chunks": [1, *array["chunks"]]}
        found = {f"{name}/.zarray": json.dumps(array)}
        found[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["run", "time", "y", "x"]})
        for at, other in enumerate(names):
            for key, value in refs.items():
                if key.startswith(f"{other}/") and "/.z" not in key:
                    found[f"{name}/{at}.{key.partition('/')[2]}"] = value
        return found

    made = {".zgroup": refs[".zgroup"], **stacked("all", "plain", "plain")}
    (tmp_path / "new.json").write_text(json.dumps(made))
    convert_references(tmp_path / "new.json", tmp_path / "new.nca")
    with xr.open_dataset(tmp_path / "new.nca", engine="nczarr") as ds:
        assert ds["all"].dims == ("run", "time", "y", "x")
        assert np.array_equal(ds["all"].values, np.stack([NOISE, NOISE]))


def test_a_new_dimension_whatever_the_others_are_called(tmp_path: Path) -> None:
    array = {"shape": [2, 2, 500], "chunks": [1, 1, 500]}
    made: dict[str, Any] = {}
    for n in range(2):
        values = np.arange(1000.0).reshape(2, 500) + n
        path = write(tmp_path / f"{n}.nc", {"v": (("a", "b"), values, {"chunksizes": (1, 500)})})
        refs = references(path)["refs"]
        for at in range(2):
            made[f"v/{n}.{at}.0"] = refs[f"v/{at}.0"]
    made[".zgroup"] = refs[".zgroup"]
    made["v/.zarray"] = json.dumps(json.loads(refs["v/.zarray"]) | array)
    made["v/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["run", "time", "x"]})
    (tmp_path / "new.json").write_text(json.dumps(made))
    convert_references(tmp_path / "new.json", tmp_path / "new.nca")
    with xr.open_dataset(tmp_path / "new.nca", engine="nczarr") as ds:
        assert ds.v[1, 1].values.tolist() == [*range(501, 1001)]


def test_chunks_that_were_never_written(tmp_path: Path) -> None:
    for n in range(2):
        with netCDF4.Dataset(tmp_path / f"{n}.nc", "w") as file:
            file.createDimension("time", 4)
            file.createDimension("x", 500)
            made = file.createVariable("v", "f4", ("time", "x"), fill_value=-9, chunksizes=(1, 500))
            made[n + 1] = np.arange(500) + n
            file.createVariable("time", "f8", ("time",))[:] = np.arange(4) + 4 * n
    aggregate([tmp_path / "0.nc", tmp_path / "1.nc"], tmp_path / "all.json")
    convert_references(tmp_path / "all.json", tmp_path / "all.nca")
    with xr.open_dataset(tmp_path / "all.nca", engine="nczarr") as ds:
        assert np.flatnonzero(ds.v.notnull().all("x")).tolist() == [1, 6]
        assert ds.v[6].values.tolist() == [*range(1, 501)]


def test_a_gap_between_files(tmp_path: Path) -> None:
    def without_1(refs: dict[str, Any]) -> None:
        for key, value in [*refs.items()]:
            if isinstance(value, list) and value[0].endswith("1.nc"):
                del refs[key]

    refs = changed(made(tmp_path, _FillValue=np.float32(-9)), without_1)
    with pytest.raises(ExportError, match=r"'plain/1.0.0': is not there, and reads as 0.0; in"):
        convert_references(changed(refs, _document("plain/.zarray", fill_value=0)), "all.nca")
    changed(refs, lambda refs: [refs.pop(key) for key in [*refs] if key.startswith("plain/")])
    convert_references(refs, tmp_path / "all.nca", cfa_version="0.4")
    with xr.open_dataset(tmp_path / "all.nca", engine="nczarr", decode_times=False) as ds:
        with pytest.warns(NCZarrWarning, match="missing"):
            values = ds.tas.values
        assert np.array_equal(values[:3], NOISE)
        assert np.isnan(values[3:6]).all()
        assert np.array_equal(values[6:], NOISE + 2)


@pytest.mark.parametrize(("stored", "said"), [(0.5, 0.5), (None, 0.5)])
@pytest.mark.parametrize("version", VERSIONS)
def test_packing(tmp_path: Path, stored: float | None, said: float, version: str) -> None:
    numbers = np.arange(400, dtype="i2")
    attributes = {} if stored is None else {"scale_factor": stored}
    write(tmp_path / "a.nc", {"v": (("x",), numbers, {"_FillValue": -1, **attributes})})
    refs = references(tmp_path / "a.nc")
    said_of = json.loads(refs["refs"]["v/.zattrs"]) | {"scale_factor": said}
    refs["refs"]["v/.zattrs"] = json.dumps(said_of)
    (tmp_path / "a.json").write_text(json.dumps(refs))
    convert_references(tmp_path / "a.json", tmp_path / "a.nca", cfa_version=version)
    with xr.open_dataset(tmp_path / "a.nca", engine="nczarr") as ds:
        assert ds.v.values.tolist() == (numbers * said).tolist()


def test_packing_that_differs_is_refused(tmp_path: Path) -> None:
    numbers = np.arange(400, dtype="i2")
    write(tmp_path / "a.nc", {n: (("x",), numbers, {"scale_factor": 0.5}) for n in "vw"})
    (tmp_path / "a.json").write_text(json.dumps(references(tmp_path / "a.nc")))
    refs = changed(tmp_path / "a.json", _document("v/.zattrs", scale_factor=2))
    with pytest.raises(ExportError, match="'v/0': is in the array v, which has the packing"):
        convert_references(refs, tmp_path / "a.nca")


def _document(key: str, **entries: Any) -> Callable[[dict[str, Any]], None]:
    def change(refs: dict[str, Any]) -> None:
        refs[key] = json.dumps(json.loads(refs[key]) | entries)
        refs.pop(".zmetadata", None)

    return change


def _shifted(refs: dict[str, Any]) -> None:
    url, start, size = refs["tas/4.1.0"]
    refs["tas/4.1.0"] = [url, start + 1, size]


def _swapped(refs: dict[str, Any]) -> None:
    refs["tas/0.0.0"], refs["tas/0.1.0"] = refs["tas/0.1.0"], refs["tas/0.0.0"]


def _from_elsewhere(refs: dict[str, Any]) -> None:
    refs["tas/4.1.0"] = refs["tas/7.1.0"]


def _inside(refs: dict[str, Any]) -> None:
    refs["plain/1.0.0"] = "base64:" + base64.b64encode(bytes(NOISE.nbytes)).decode()


def _one_inside(refs: dict[str, Any]) -> None:
    data = zlib.compress(np.zeros((1, 20, 50), "f4").tobytes())
    refs["tas/4.1.0"] = "base64:" + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_shifted, r"reference 'tas/4.1.0': is the bytes \d+ to \d+ of .*1.nc; its neighbours "),
        (_swapped, "reference 'tas/0.0.0': is the bytes .*, where /tas has a chunk: with its "),
        (_from_elsewhere, "reference 'tas/4.1.0': is the bytes .*2.nc; its neighbours make it "),
        (lambda refs: refs.pop("tas/4.1.0"), "'tas/4.1.0': is not there, and reads as other "),
        (_inside, "reference 'plain/1.0.0': holds its bytes, and no other reference says in"),
        (
            lambda refs: refs.update({"plain/2.0.0": [refs["plain/2.0.0"][0]]}),
            "reference 'plain/2.0.0': is all bytes of .*2.nc, and no variable there has such a",
        ),
        (
            lambda refs: refs.update({"plain/2.0.0": ["gone.nc", 0, 24000]}),
            "reference 'plain/2.0.0': is in a file that cannot be opened as a dataset",
        ),
        (
            _document("tas/.zattrs", units="degC"),
            "array tas, which has the units degC; /tas of .* has K",
        ),
        (_document("tas/.zarray", dtype="<i4"), "array tas, which has the type int32; /tas of"),
        (_document("tas/.zarray", filters=None, compressor=None), r"the codecs \[\]; /tas of"),
        (_document("tas/.zarray", fill_value=-1), "which has the missing values "),
    ],
)
def test_what_is_no_whole_variable_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    refs = changed(made(tmp_path), change)
    with pytest.raises(ExportError, match=message):
        convert_references(refs, tmp_path / "all.nca")
    assert not (tmp_path / "all.nca").exists()


def test_files_that_may_not_be_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    refs = made(tmp_path).rename(tmp_path / "sub" / "all.json")
    with pytest.raises(ExportError, match=r"reference '.*/0.0.0'.*allow") as caught:
        convert_references(refs, tmp_path / "all.nca", allow=[])
    assert isinstance(caught.value.__cause__, AccessDeniedError)


def test_characters(tmp_path: Path) -> None:
    letters = np.array([[b"a", b"b", b""]] * 600, "S1")
    write(tmp_path / "a.nc", {"long": (("y", "n"), letters, {}), "short": (("n",), letters[0], {})})
    (tmp_path / "a.json").write_text(json.dumps(references(tmp_path / "a.nc")))
    convert_references(tmp_path / "a.json", tmp_path / "a.nca")
    with netCDF4.Dataset(tmp_path / "a.nca") as file:
        assert file["short"].dtype == file["long"].dtype == np.dtype("S1")
    with xr.open_dataset(tmp_path / "a.nca", engine="nczarr") as ds:
        assert ds.long.values.tolist() == [b"ab"] * 600
        assert ds.short.values.item() == b"ab"
