"""What NCZarr and netCDF-4 cannot hold: told, in the nearest form, and restored where it can be."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import LossWarning, NCZarrWarning, to_nczarr
from nczarr_xarray.cli.dump import write_cdl
from nczarr_xarray.cli.main import main
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.copy.zarr2 import plan_copy
from nczarr_xarray.formats.nczarr.attributes import MARK, as_flags, restored
from nczarr_xarray.model import Attribute, EnumType, Variable, bytes_of
from tests.support.examples import examples
from tests.support.oracles.nc_adapter import ncdump

CLOUDS = {"Clear": 0, "Cumulo nimbus": 1, "Über": 2, "Missing": 255}
SIGNS = {"minus": -1, "plus": 1}


def copied(*arguments: object, status: int = 0) -> None:
    assert main(["copy", *map(str, arguments)]) == status


@pytest.fixture
def clouds(tmp_path: Path) -> Path:
    """A netCDF-4 file with enums in two groups, some values of which have no name."""
    path = tmp_path / "clouds.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        group = file.createGroup("g")
        kind = file.createEnumType("u1", "cloud t", CLOUDS)
        sign = group.createEnumType("i2", "sign_t", SIGNS)
        filled = file.createVariable("filled", kind, ("x",), fill_value=255)
        filled[:3] = [0, 1, 2]
        bare = file.createVariable("bare", kind, ("x",), fill_value=False)
        bare[:] = [0, 1, 2, 255]
        own = group.createVariable("own", sign, ("x",), chunksizes=(2,))
        own[:2] = [1, -1]  # the rest is netCDF's default fill value, which has no name
        own.flag_values = np.array([-1, 1], "i2")
        own.flag_meanings = "minus plus"
        group.createVariable("plain", sign, ("x",), zlib=True)[:] = [1, -1, 1, 1]
    return path


# -- enums ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["x.nczarr", "x.zip", "file://{}/x#mode=zarr", "old"])
def test_enums_are_flags_and_come_back(
    clouds: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = form.format(tmp_path) if "://" in form else str(tmp_path / form)
    options = ["--compat", "4.9.2"] if form == "old" else []
    copied(clouds, target, *options)
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "flag_values" in message
    for name in ("/filled", "/bare", "/g/own", "/g/plain"):
        assert name in message
    copied(target, tmp_path / "back.nc")
    assert capsys.readouterr().err == ""
    found, expected = dumps(tmp_path / "back.nc"), dumps(clouds)
    if "mode=zarr" in form:  # which loses other things as well
        assert [*map(enums_in, found)] == [*map(enums_in, expected)]
    else:
        assert found == expected


def enums_in(text: str) -> list[str]:
    return sorted(re.findall(r".*(?:enum|cloud|sign|minus =|= Clear|= plus).*", text))


def dumps(path: Path) -> tuple[str, str]:
    """The header by ncdump, and all of it by us: ncdump fails at values without a name."""
    pieces: list[str] = []
    with open_hierarchy(str(path)) as opened:
        assert write_cdl("x", opened.hierarchy.root, pieces.append, opened.read) == []
    return ncdump("-h", "-n", "x", str(path)), "".join(pieces)


def test_everybody_sees_flags(clouds: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    copied(clouds, url)
    with netCDF4.Dataset(url) as file:
        bare = file["bare"]
        assert bare.flag_values.tolist() == [0, 1, 2, 255]
        assert bare.flag_values.dtype == "u1"
        assert bare.flag_meanings == "Clear Cumulo_nimbus _ber Missing"
        assert bare.getncattr(MARK) == "/cloud%20t Clear Cumulo%20nimbus %C3%9Cber Missing"
        assert file["g/plain"].getncattr(MARK) == "/g/sign_t"
        np.testing.assert_array_equal(np.ma.getdata(file["filled"][:]), [0, 1, 2, 255])


def test_a_copy_of_a_copy_is_the_same(clouds: Path, tmp_path: Path) -> None:
    copied(clouds, tmp_path / "one")
    copied(tmp_path / "one", tmp_path / "two")
    for name in ("bare", "g/own"):
        first, second = (tmp_path / one / name / ".zattrs" for one in ("one", "two"))
        assert json.loads(first.read_text()) == json.loads(second.read_text())


def test_flags_that_somebody_changed_stay_flags(clouds: Path, tmp_path: Path) -> None:
    copied(clouds, tmp_path / "x")
    path = tmp_path / "x/bare/.zattrs"
    attributes = json.loads(path.read_text())
    attributes["flag_values"] = [0, 1]
    path.write_text(json.dumps(attributes))
    with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
        assert back["bare"].attrs["flag_values"].tolist() == [0, 1]
        assert back["bare"].encoding["dtype"].metadata is None
        assert back["filled"].encoding["dtype"].metadata["enum"] == CLOUDS


NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(NAMES, st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
    NAMES,
    st.sampled_from(["/", "/g", "/g 1/h"]),
    st.booleans(),
)
def test_any_enum_comes_back(members: dict[str, int], name: str, group: str, own: bool) -> None:
    enum = EnumType(name, members, "int", group)
    flags = {"flag_meanings": Attribute("flag_meanings", "char", "mine")} if own else {}
    fill = Attribute("_FillValue", "int", np.array([1], "i4"), enum)
    before = {"_FillValue": fill, "units": Attribute("units", "char", "1"), **flags}
    variable = Variable("v", group, (), "int", np.dtype("i4"), before, enum=enum)
    stored = Variable("v", group, (), "int", np.dtype("i4"), as_flags(variable))
    back = restored(stored)
    assert back is not None
    assert (back.enum, back.attributes) == (enum, before)
    assert back.enum is not None
    assert [*back.enum.members] == [*members]


@pytest.mark.parametrize(
    "mark", ["", " ", "/", "/t a", "/t a b c", "/t a=1 b=x", "/t a=999", "%", "/t %zz=1 =2"]
)
def test_a_damaged_mark_is_an_attribute(mark: str) -> None:
    numbers = np.array([1, 2], "u1")
    attributes = {
        MARK: Attribute(MARK, "char", mark),
        "flag_values": Attribute("flag_values", "ubyte", numbers),
    }
    variable = Variable("v", "/", (), "ubyte", np.dtype("u1"), attributes)
    assert restored(variable) is None


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "nczarr"])
@pytest.mark.parametrize("options", [{}, {"chunks": {}}, {"mask_and_scale": False}])
def test_enums_of_xarray_are_flags_and_come_back(
    clouds: Path, tmp_path: Path, engine: Any, options: dict[str, Any]
) -> None:
    with xr.open_dataset(clouds, engine=engine, **options) as dataset:
        with pytest.warns(NCZarrWarning, match="enums become integers.*: /filled, /bare$"):
            to_nczarr(dataset, tmp_path / "x")
        decoding = {"mask_and_scale": options.get("mask_and_scale", True)}
        with xr.open_dataset(tmp_path / "x", engine="nczarr", **decoding) as back:
            xr.testing.assert_identical(back.load(), dataset.load())
            for name in ("filled", "bare"):
                assert back[name].encoding["dtype"].metadata == {
                    "enum": CLOUDS,
                    "enum_name": "cloud t",
                }
            back.to_netcdf(tmp_path / "back.nc", engine="netcdf4")
    for text, expected in zip(dumps(tmp_path / "back.nc"), dumps(clouds), strict=True):
        assert text == expected.partition("\ngroup: g")[0] + "}\n"


def test_an_enum_that_users_give_up_is_none(clouds: Path, tmp_path: Path) -> None:
    with xr.open_dataset(clouds, engine="netcdf4", mask_and_scale=False) as dataset:
        encoding = {name: {"dtype": "i2"} for name in ("filled", "bare")}
        to_nczarr(dataset, tmp_path / "x", encoding=encoding)
    assert MARK not in json.loads((tmp_path / "x/bare/.zattrs").read_text())


def test_values_are_added_to_an_enum(clouds: Path, tmp_path: Path) -> None:
    with xr.open_dataset(clouds, engine="netcdf4", chunks={"x": 2}) as dataset:
        with pytest.warns(NCZarrWarning, match="enums"):
            to_nczarr(dataset, tmp_path / "x", unlimited_dims=["x"])
        to_nczarr(dataset, tmp_path / "x", append_dim="x")
        with xr.open_dataset(tmp_path / "x", engine="nczarr") as back:
            expected = xr.concat([dataset, dataset], "x", data_vars="all")
            xr.testing.assert_equal(back.load(), expected.load())
            assert back["bare"].encoding["dtype"].metadata["enum"] == CLOUDS


@pytest.mark.filterwarnings("ignore:.*enums become:nczarr_xarray.NCZarrWarning")
@pytest.mark.parametrize("engine", ["netcdf4", "nczarr"])
@pytest.mark.parametrize("source", ["netcdf", "nczarr"])
def test_values_of_an_enum_that_any_engine_opened(
    clouds: Path, tmp_path: Path, source: str, engine: str
) -> None:
    """Engine netcdf4 shows flags and mark of NCZarr as attributes: they are no change."""
    with xr.open_dataset(clouds, engine="nczarr") as dataset:  # the root only: x will grow
        to_nczarr(dataset, tmp_path / "x", unlimited_dims=["x"])
    copied(clouds, tmp_path / "z")
    path = clouds if source == "netcdf" else f"file://{tmp_path}/z#mode=nczarr,file"
    with xr.open_dataset(path, engine=engine) as dataset:
        dataset.load()
    encodings = {name: dict(v.encoding) for name, v in dataset.variables.items()}
    changes: list[dict[str, Any]] = [
        {"mode": "a"},
        {"mode": "r+"},
        {"append_dim": "x"},
        {"region": {"x": slice(4, 8)}},
    ]
    for options in changes:
        to_nczarr(dataset, tmp_path / "x", **options)
        assert {name: v.encoding for name, v in dataset.variables.items()} == encodings
    copied(tmp_path / "x", tmp_path / "back.nc")
    with netCDF4.Dataset(tmp_path / "back.nc") as file:
        file.set_auto_mask(False)
        for name in ("filled", "bare"):
            assert file[name].datatype.enum_dict == CLOUDS
            assert file[name][:].tolist() == [0, 1, 2, 255] * 2
            assert not {"flag_values", "flag_meanings", MARK} & {*file[name].ncattrs()}


# -- what is left out -------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["y", "y.nc"])
def test_attributes_of_other_types_are_told(
    tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = np.dtype([("a", "i4"), ("b", "f8")])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["types/pair"] = pair
        file["v"] = np.arange(3)
        file.attrs.create("pair", np.array([(1, 2.5)], pair), dtype=file["types/pair"])
        file["v"].attrs["flag"] = True
        file["v"].attrs["opaque"] = np.void(b"ab")
        file["v"].attrs["reference"] = file["v"].ref
        file["hidden"] = np.array([file["v"].ref], h5py.ref_dtype)
        file["b"] = np.array([True, False])  # an enum, which knows that of the attribute
    copied(tmp_path / "x.h5", tmp_path / target, status=1)
    message = capsys.readouterr().err
    for name in ("/:pair", "/v:flag", "/v:opaque", "/v:reference", "/hidden"):
        assert name in message, name
    assert all(line.startswith("nczarr: warning: ") for line in message.splitlines())
    assert str(tmp_path / target) in message
    with xr.open_dataset(tmp_path / target, engine="nczarr") as back:
        assert back["v"].values.tolist() == [0, 1, 2]


def test_many_names_are_told_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number in range(9):
            file.attrs[f"a{number}"] = np.void(b"ab")
    copied(tmp_path / "x.h5", tmp_path / "y", status=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("/:a3, /:a4 and 4 more")


@pytest.mark.parametrize("target", ["y", "y.nc"])
@pytest.mark.parametrize("name", ["structures", "sequences", "opaque"])
def test_variables_of_other_types_are_an_error(
    tmp_path: Path, target: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if name == "structures":
            file["bad"] = np.zeros(2, [("a", "i4"), ("b", "f8")])
        elif name == "sequences":
            file.create_dataset("bad", (2,), h5py.vlen_dtype("i4"))
        else:
            file["bad"] = np.array([b"ab", b"cd"], "V2")
    copied(tmp_path / "x.h5", tmp_path / target, status=1)
    message = capsys.readouterr().err
    assert "/bad: " in message
    assert {"structures": "structures of a, b", "sequences": "sequences of int32"}.get(
        name, "V2"
    ) in message
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


@pytest.mark.parametrize("target", [["y.nca"], ["y.nc", "--format", "NETCDF3_CLASSIC"]])
def test_enums_that_no_variable_uses_are_told(
    tmp_path: Path, target: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 2)
        used = file.createEnumType("u1", "used_t", {"a": 0, "b": 1})
        file.createEnumType("u1", "lost_t", {"c": 0})
        file.createVariable("v", used, ("x",))[:] = [0, 1]
    name, *options = target
    copied(tmp_path / "x.nc", tmp_path / name, *options, status=1)
    lost = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    (line,) = lost
    assert line.endswith(f"{name}: enums that no variable uses are left out: /lost_t")


def test_a_loss_can_be_made_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["opaque"] = np.void(b"ab")
    with warnings.catch_warnings(), open_hierarchy(str(tmp_path / "x.h5")) as opened:
        warnings.simplefilter("error", LossWarning)
        with pytest.raises(LossWarning, match="/:opaque"):
            plan_copy(opened, str(tmp_path / "y"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


# -- text -------------------------------------------------------------------------------------

TEXTS = {
    "latin": b"5 \xb0C",
    "first": b"\xb0C",
    "inside": b"a\0b",
    "end": b"m\0",
    "one": b"\0",
    "utf8": "°C".encode(),
    "empty": b"",
}


@pytest.fixture(params=["NETCDF4", "NETCDF3_CLASSIC"])
def texts(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with text of all kinds, as nccopy and ncdump handle it."""
    path = tmp_path / "texts.nc"
    with netCDF4.Dataset(path, "w", format=request.param) as file:
        file.createDimension("x", 2)
        file.createVariable("v", "i4", ("x",))[:] = [1, 2]
        for name, data in TEXTS.items():
            file.setncattr(name, data)
        if request.param == "NETCDF4":
            file.setncattr_string("words", np.array([b"a\xb0", b"b"]))
            values = np.array([b"\xb0C and more", "ü".encode()], object)
            file.createVariable("s", str, ("x",))[:] = values
        else:
            chars = file.createVariable("c", "S1", ("x",))
            chars.set_auto_chartostring(False)
            chars[:] = np.array([b"\xb0", b"C"])
    return path


def test_text_is_dumped_as_ncdump_dumps_it(
    texts: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["dump", str(texts)]) == 0
    ours = capfdbinary.readouterr().out.decode("utf-8", "surrogateescape")
    assert ours == ncdump(str(texts))


def test_text_is_copied_to_netcdf_as_it_is(texts: Path, tmp_path: Path) -> None:
    copied(texts, tmp_path / "y.nc")
    subprocess.run(["nccopy", "-k", "nc4", texts, tmp_path / "theirs.nc"], check=True)
    ours, theirs = (ncdump("-n", "x", str(tmp_path / n)) for n in ("y.nc", "theirs.nc"))
    assert ours == theirs
    with open_hierarchy(str(tmp_path / "y.nc")) as opened:
        found = opened.hierarchy.root.attributes
    for name, data in TEXTS.items():  # netCDF4 cannot write NULs at the end
        assert bytes_of(str(found[name].value)).rstrip(b"\0") == data.rstrip(b"\0"), name


def test_text_that_nczarr_cannot_hold_is_told(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(texts, tmp_path / "y", status=1)
    lines = capsys.readouterr().err.splitlines()
    (told,) = [line for line in lines if "U+FFFD" in line]
    assert "/:latin" in told
    assert "/:first" in told
    assert ":utf8" not in told
    (inside,) = [line for line in lines if "NULs inside" in line]
    assert inside.endswith(" /:inside")
    with (
        xr.open_dataset(texts, engine="netcdf4", drop_variables="s") as theirs,
        xr.open_dataset(tmp_path / "y", engine="nczarr", drop_variables="s") as ours,
    ):
        assert ours.attrs == theirs.attrs
        xr.testing.assert_identical(ours.load(), theirs.load())
    # text of variables is bytes in NCZarr: nothing is lost
    with open_hierarchy(str(texts)) as opened:
        has_strings = "s" in opened.hierarchy.root.variables
    if has_strings:
        assert b"\xb0C and more" in (tmp_path / "y/s/0").read_bytes()
        copied(tmp_path / "y", tmp_path / "z.nc")
        assert ' s = "\udcb0C and more", "ü" ;' in ncdump(str(tmp_path / "z.nc")).split("\n")


def test_text_in_json_that_is_not_utf_8(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """netCDF-C writes text of type string into JSON as it is."""
    url = f"file://{tmp_path}/x#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.setncattr_string("words", np.array([b"a\xb0", b"b"]))
    assert main(["dump", "-h", url]) == 0
    assert b'string :words = "a\xb0", "b" ;' in capfdbinary.readouterr().out
    with xr.open_dataset(url, engine="nczarr") as back:
        assert back.attrs["words"] == ["a\ufffd", "b"]
    copied(url, tmp_path / "y.nc")
    assert 'string :words = "a\udcb0", "b" ;' in ncdump(str(tmp_path / "y.nc"))


def test_names_that_are_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in (b"v\xb0", b"ok"):
            space = h5py.h5s.create_simple((2,))
            h5py.h5d.create(file.id, name, h5py.h5t.NATIVE_INT32, space)
    with xr.open_dataset(tmp_path / "x.h5", engine="nczarr") as dataset:
        f"{dataset}".encode()  # it can be printed
        assert set(dataset.variables) == {"v\\xb0", "ok"}
        assert dataset["v\\xb0"].values.tolist() == [0, 0]
    assert main(["info", str(tmp_path / "x.h5")]) == 0
    assert main(["refs", str(tmp_path / "x.h5"), str(tmp_path / "x.json")]) == 1
    json.loads((tmp_path / "x.json").read_text())
    capsys.readouterr()
    for target in ("y", "y.nc"):
        copied(tmp_path / "x.h5", tmp_path / target, status=1)
        assert "v\\udcb0" in capsys.readouterr().err
        assert not (tmp_path / target).exists()


# -- the length of text -------------------------------------------------------------------------


@pytest.mark.parametrize("said", [None, 1, 4, 10, 64])
@pytest.mark.parametrize("compat", ["4.9.3", "4.9.2"])
def test_the_length_of_text_is_that_of_the_dtype(
    tmp_path: Path, said: int | None, compat: str
) -> None:
    values = np.array(["0123456789", "", "neighbour"], object)
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        made = file.createVariable("s", str, ("x",))
        made[:] = values
        if said is not None:
            made.setncattr("_nczarr_maxstrlen", np.int16(said))
        file.createVariable("plain", "i4", ("x",)).setncattr("_nczarr_maxstrlen", np.int32(3))
    url = f"file://{tmp_path}/y#mode=nczarr,file"
    copied(tmp_path / "x.nc", url, "--compat", compat)
    dtype = json.loads((tmp_path / "y/s/.zarray").read_text())["dtype"]
    assert dtype == f"|S{max(10, said or 0)}"
    if compat == "4.9.3":
        with netCDF4.Dataset(url) as file:
            assert file["s"][:].tolist() == values.tolist()
            assert file["plain"].getncattr("_nczarr_maxstrlen") == 3
    if said is not None:
        attributes = json.loads((tmp_path / "y/s/.zattrs").read_text())
        assert attributes["_nczarr_maxstrlen"] == max(10, said)
        assert attributes["_nczarr_attr"]["types"]["_nczarr_maxstrlen"] == "<i4"
    # and once more, from NCZarr, which has a length already
    copied(url, tmp_path / "z")
    assert json.loads((tmp_path / "z/s/.zarray").read_text())["dtype"] == dtype


# -- fill values of another type -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("copy.nczarr", ()),
        ("copy.zarr", ("--format", "Zarr2")),
        ("copy3.zarr", ("--format", "Zarr3")),
        ("copy.nc", ()),
        ("copy.nc", ("--format", "NETCDF3_CLASSIC")),
        ("copy.nca", ()),
    ],
)
def test_a_fill_value_that_no_element_can_have(
    tmp_path: Path, name: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """NCO packs floats, and leaves their mark: as an integer it would be 0, which is valid."""
    path, target = tmp_path / "packed.nc", tmp_path / name
    fills: dict[str, Any] = {
        "nan": np.float32("nan"),
        "large": np.float64(1e20),
        "fraction": np.float64(0.5),
        "text": np.bytes_(b"NaN"),
        "possible": np.float32(-999),
    }
    with h5py.File(path, "w") as file:
        for key, fill in fills.items():
            file[key] = np.array([0, 1, -999], "i2")
            file[key].attrs["_FillValue"] = fill
    copied(path, target, *options, status=1)
    said = "left out: a _FillValue that no element can have: /fraction, /large, /nan, /text\n"
    assert capsys.readouterr().err.endswith(said)
    readers: list[dict[str, Any]] = [{"engine": "nczarr"}]
    if target.is_dir():
        readers.append({"engine": "zarr", "consolidated": False})
    elif not name.endswith("nca"):
        readers.append({"engine": "netcdf4"})
    for reader in readers:
        with xr.open_dataset(target, **reader) as dataset:
            for key in fills:
                expected = [0, 1, np.nan if key == "possible" else -999]
                np.testing.assert_array_equal(dataset[key], expected)


MARKED: dict[str, tuple[Any, Any]] = {
    "two_of_floats": (np.array([1.5, -1, -2, 3], "f4"), np.array([-1, -2], "f4")),
    "two_of_integers": (np.array([1, -1, -2, 3], "i2"), np.array([-1, -2], "i2")),
    "two_doubles": (np.array([1, -1, -2, 3], "i2"), np.array([-1, -2.5])),
    "text_on_floats": (np.array([1.5, -1, -2, 3], "f4"), np.bytes_("NA")),
    "a_double_on_floats": (np.array([0.1, -1, -2, 3], "f4"), np.array([0.1])),
    "a_byte_on_char": (np.array([*"a bc"], "S1"), np.array([32], "i1")),
    "a_long_text_on_char": (np.array([*"aNbc"], "S1"), np.bytes_("NA")),
    "of_a_wider_type": (np.array([1, -1, -2, 3], "i2"), np.array([-1], "i8")),
}


@pytest.mark.parametrize(
    ("name", "options", "engine"),
    [
        ("copy.nczarr", (), "nczarr"),
        ("copy.zarr", ("--format", "Zarr2"), "zarr"),
        ("copy3.zarr", ("--format", "Zarr3"), "zarr"),
        ("copy.nc", (), "netcdf4"),
        ("copy5.nc", ("--format", "NETCDF3_64BIT_DATA"), "netcdf4"),
        ("copy.nca", (), "nczarr"),
    ],
)
@pytest.mark.filterwarnings("ignore:variable .* has multiple fill values")
def test_fill_values_of_any_number_and_type(
    tmp_path: Path,
    name: str,
    options: tuple[str, ...],
    engine: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """HDF5 has them, and readers mask them all; netCDF has one, of the variable's type."""
    path, target = tmp_path / "marked.nc", tmp_path / name
    with h5py.File(path, "w") as file:
        for key, (values, fill) in MARKED.items():
            file[key] = values
            file[key].attrs["_FillValue"] = fill
    copied(path, target, *options, status=1)
    told = capsys.readouterr().err
    assert "missing_value has them all: /two_of_floats, /two_of_integers\n" in told
    left_out = "a_byte_on_char, /a_double_on_floats, /a_long_text_on_char, /text_on_floats"
    assert f"left out: a _FillValue that no element can have: /{left_out}\n" in told
    how: dict[str, Any] = {"consolidated": False} if engine == "zarr" else {}
    with (
        xr.open_dataset(path, engine="h5netcdf", phony_dims="sort") as source,
        xr.open_dataset(target, engine=engine, **how) as found,
    ):
        assert found.keys() == MARKED.keys()
        for key, (values, _) in MARKED.items():
            if values.dtype.kind != "S":
                np.testing.assert_array_equal(found[key], source[key], key)
            else:
                assert found[key].values.tolist() == values.tolist()
    if engine == "netcdf4":
        with netCDF4.Dataset(target) as file:
            assert file["two_of_integers"].getncattr("missing_value").tolist() == [-1, -2]
