"""HDF5 files that few programs write, as engine netcdf4 reads them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError, NCZarrWarning


def assert_same(path: Path, group: str | None = None) -> xr.Dataset:
    """The dataset, which has the dimensions, values and types of engine netcdf4's."""
    ours = xr.open_dataset(path, engine="nczarr", group=group, decode_cf=False)
    theirs = xr.open_dataset(path, engine="netcdf4", group=group, decode_cf=False)
    with ours, theirs:
        xr.testing.assert_identical(ours, theirs)
        for name, variable in theirs.variables.items():
            found = ours.variables[name]
            for key in ("dtype", "preferred_chunks", "chunksizes"):
                assert found.encoding.get(key) == variable.encoding.get(key), (name, key)
            assert str(found.encoding.get("dtype")) == str(variable.encoding.get("dtype")), name
    return ours


NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"


@pytest.mark.parametrize("name", ["x", NO_VARIABLE, f"{NO_VARIABLE}.         4"])
def test_a_class_of_variable_length(tmp_path: Path, name: str) -> None:
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["g/v"] = np.arange(4.0), np.arange(4)
        file["x"].make_scale("x")
        file["g/v"].dims[0].attach_scale(file["x"])
        for key, value in {"CLASS": "DIMENSION_SCALE", "NAME": name}.items():
            del file["x"].attrs[key]
            file["x"].attrs[key] = value  # which h5py stores as text of variable length
    assert assert_same(path, "g").v.dims == ("x",)
    assert_same(path)


@pytest.mark.parametrize("name", [NO_VARIABLE, f"{NO_VARIABLE}.", f"{NO_VARIABLE}.         4"])
def test_dimensions_without_a_variable(tmp_path: Path, name: str) -> None:
    """The sentence counts with its full stop."""
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["v"] = np.arange(4.0), np.arange(4)
        file["x"].make_scale(name)
        file["v"].dims[0].attach_scale(file["x"])
    assert_same(path)


def test_two_variables_of_one_name(tmp_path: Path) -> None:
    """A dataset whose name begins as that of a variable that is no coordinate."""
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        file["_nc4_non_coord_x"] = np.int32(3)
        file["x"] = np.arange(4.0)
        file["x"].make_scale("x")
    with pytest.warns(NCZarrWarning, match="/x: is there twice; the last one is taken"):
        assert_same(path)


@pytest.mark.parametrize(
    "fields",
    [
        [("dataset", "i8"), ("dimension", "i4")],
        [("dataset", h5py.ref_dtype), ("dimension", "f8")],
        [("dataset", h5py.ref_dtype)],
    ],
)
def test_a_list_of_references_that_is_none(tmp_path: Path, fields: Any) -> None:
    """Which scales a variable has, its own list says then."""
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["v"] = np.arange(4.0), np.arange(4)
        file["x"].make_scale("x")
        file["v"].dims[0].attach_scale(file["x"])
        del file["x"].attrs["REFERENCE_LIST"]
        rows = np.zeros(1, np.dtype(fields))
        if rows["dataset"].dtype.hasobject:
            rows["dataset"] = file["v"].ref
        file["x"].attrs.create("REFERENCE_LIST", rows)
    with xr.open_dataset(path, engine="nczarr") as found:
        assert found.v.dims == ("x",)
        assert found.x.values.tolist() == [0, 1, 2, 3]


class Reference(ctypes.Structure):
    """``H5R_ref_t``."""

    _fields_ = (("buffer", ctypes.c_int64 * 8),)


class Sequence(ctypes.Structure):
    """``hvl_t``."""

    _fields_ = (("length", ctypes.c_size_t), ("elements", ctypes.c_void_p))


def libhdf5() -> Any:
    """The library that h5py uses."""
    folder = Path(h5py.__file__).parent.parent / "h5py.libs"
    found = sorted(folder.glob("libhdf5-*.so*"))
    if not found:
        pytest.skip("h5py brings no libhdf5 of its own")
    library = ctypes.CDLL(str(found[0]))
    for name in ("H5Tvlen_create", "H5Acreate2", "H5Screate_simple"):
        getattr(library, name).restype = ctypes.c_int64
    return library


@pytest.mark.parametrize("libver", ["v112", "latest"])
def test_scales_by_revised_references(tmp_path: Path, libver: str) -> None:
    path, library, number = tmp_path / "v.h5", libhdf5(), ctypes.c_int64
    with h5py.File(path, "w", libver=libver) as file:
        file["g/x"], file["g/y"] = np.arange(4.0), np.arange(3.0)
        file["g/v"] = np.zeros((4, 3))
        references = (Reference * 2)()
        for axis, name in enumerate("xy"):
            file["g"][name].make_scale(name)
            where = ctypes.byref(references[axis])
            scale = f"/g/{name}".encode()
            assert library.H5Rcreate_object(number(file.id.id), scale, number(0), where) >= 0
        rows = [Sequence(1, ctypes.addressof(one)) for one in references]
        base = number.in_dll(library, "H5T_STD_REF_g")
        kind = number(library.H5Tvlen_create(base))
        space = number(library.H5Screate_simple(1, (ctypes.c_uint64 * 1)(2), None))
        dataset, default = file["g/v"], number(0)
        attribute = number(
            library.H5Acreate2(
                number(dataset.id.id), b"DIMENSION_LIST", kind, space, default, default
            )
        )
        assert library.H5Awrite(attribute, kind, (Sequence * 2)(*rows)) >= 0
        library.H5Aclose(attribute)
    assert assert_same(path, "g").v.dims == ("x", "y")


def test_byte_orders(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        for order in "<>":
            for kind in ("i2", "u4", "i8", "f4", "f8"):
                file[f"{kind}{ord(order)}"] = np.arange(3).astype(order + kind)
            enum = h5py.enum_dtype({"a": 0, "b": 1}, f"{order}i4")
            file.create_dataset(f"enum{ord(order)}", data=np.array([0, 1, 1], enum), dtype=enum)
    assert_same(path)


def test_large_variables_keep_their_chunks(tmp_path: Path) -> None:
    path = tmp_path / "v.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("t", 20_000)
        file.createDimension("y", 700)
        file.createDimension("x", 1440)
        file.createVariable("v", "f4", ("t", "y", "x"), chunksizes=(1, 350, 720), zlib=True)
        file.createVariable("plain", "f8", ("t", "y"), chunksizes=(100, 700))
    ours = xr.open_dataset(path, engine="nczarr", chunks={})
    theirs = xr.open_dataset(path, engine="netcdf4", chunks={})
    with ours, theirs:
        assert ours.v.nbytes > 1 << 36
        for name in ("v", "plain"):
            found = ours[name].encoding["preferred_chunks"]
            assert found == theirs[name].encoding["preferred_chunks"]
            assert ours[name].chunks == theirs[name].chunks


def test_attributes_of_numbers_that_numpy_has_not(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    type_ = h5py.h5t.IEEE_F16LE.copy()
    type_.set_fields(15, 7, 8, 0, 7)
    type_.set_ebias(127)
    with h5py.File(path, "w") as file:
        file["v"] = np.arange(3)
        file["v"].attrs["units"] = "m"
        h5py.h5a.create(file["v"].id, b"odd", type_, h5py.h5s.create_simple((2,)))
    with pytest.warns(NCZarrWarning, match="/v: attribute 'odd' is left out: .* of 2 bytes"):
        dataset = xr.open_dataset(path, engine="nczarr")
    with dataset:
        assert dataset.v.attrs == {"units": "m"}


@pytest.mark.parametrize(
    ("base", "bits", "offset"),
    [("i1", 5, 1), ("u1", 7, 0), ("i2", 8, 3), ("i2", 12, 0), ("u2", 15, 1), ("i4", 16, 0),
     ("i4", 21, 2), ("u4", 31, 0), ("i8", 40, 0), ("u8", 63, 1)],
)  # fmt: skip
@pytest.mark.parametrize("order", ["<", ">"])
def test_integers_that_do_not_fill_their_bytes(
    tmp_path: Path, order: str, base: str, bits: int, offset: int
) -> None:
    """Of big-endian ones libhdf5 2.0 loses the sign, and so do netCDF-C and h5py."""
    type_ = h5py.h5t.py_create(np.dtype(order + base)).copy()
    type_.set_precision(bits)
    type_.set_offset(offset)
    signed = base[0] == "i"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    values = np.array([0, 1, low, high, high // 3], f"{base[0]}8")
    path = tmp_path / "v.h5"
    with h5py.File(path, "w") as file:
        scale = file.create_dataset("t", (7,), "f8", maxshape=(None,))
        scale.make_scale("t")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2,))
        properties.set_fill_value(np.array(high // 2, base))
        space = h5py.h5s.create_simple((5,), (h5py.h5s.UNLIMITED,))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"v", type_, space, properties))
        dataset[...] = values
        dataset.dims[0].attach_scale(scale)
        one = h5py.h5s.create_simple((5,))
        h5py.h5a.create(dataset.id, b"odd", type_, one).write(values)
    with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as truth:
        dtype = truth["v"].dtype
    with xr.open_dataset(path, engine="nczarr", decode_cf=False) as ours:
        assert ours["v"].dtype == ours["v"].values.dtype == dtype
        assert ours["v"].values.tolist() == [*values.tolist(), high // 2, high // 2]
        assert ours["v"].attrs["odd"].dtype == dtype
        assert ours["v"].attrs["odd"].tolist() == values.tolist()


FILLS = [b"\0", b"*", b"-9999\0", b"\xff", b"-9999"]


def assert_same_fills(path: Any) -> None:
    ours = xr.open_dataset(path, engine="nczarr", decode_cf=False)
    theirs = xr.open_dataset(path, engine="netcdf4", decode_cf=False)
    with ours, theirs:
        assert list(ours) == list(theirs)
        for name, variable in theirs.variables.items():
            found, wanted = ours[name].attrs.get("_FillValue"), variable.attrs.get("_FillValue")
            assert type(found) is type(wanted), name
            assert np.asarray(found).dtype == np.asarray(wanted).dtype, name
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes(), name


def test_arrays_of_arrays_beside_what_is_converted(tmp_path: Path) -> None:
    """netCDF-C crashes on them: h5py says what is right."""
    path = tmp_path / "v.h5"
    arrays = h5py.h5t.array_create(h5py.h5t.array_create(h5py.h5t.STD_I32BE, (2,)), (3,))
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, 40)
    kind.insert(b"a", 0, arrays)
    kind.insert(b"text", 24, h5py.h5t.py_create(h5py.string_dtype(), logical=True))
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"v", kind, h5py.h5s.create_simple((2,)))
        value = np.zeros(2, file["v"].dtype)
        value["a"] = np.arange(12).reshape(2, 3, 2)
        value["text"] = ["x", "y"]
        file["v"][...] = value
    with xr.open_dataset(path, engine="nczarr") as dataset:
        assert dataset["v"].values["a"].tolist() == value["a"].tolist()
        assert dataset["v"].values["text"].tolist() == ["x", "y"]


def test_text_as_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "v.nc"
    with h5py.File(path, "w") as file:
        for number, fill in enumerate(FILLS):
            for kind in ("S1", "f4", ">i2"):
                dataset = file.create_dataset(f"{kind.strip('>')}_{number}", (3,), kind)
                type_ = h5py.h5t.C_S1.copy()
                type_.set_size(len(fill))
                type_.set_strpad(h5py.h5t.STR_NULLPAD)
                space = h5py.h5s.create(h5py.h5s.SCALAR)
                attribute = h5py.h5a.create(dataset.id, b"_FillValue", type_, space)
                attribute.write(np.array(fill, f"S{len(fill)}"), type_)
    assert_same_fills(path)


@pytest.mark.parametrize("format_", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "nczarr"])
def test_fill_values_of_char(tmp_path: Path, format_: Any) -> None:
    path: Any = tmp_path / "v.nc"
    options = {"format": format_}
    if format_ == "nczarr":
        path, options = f"file://{tmp_path}/v.file#mode=nczarr,file", {}
    fills = [b"*", b" "] + ([b"\0", b"\xff"] if format_ != "nczarr" else [])
    with netCDF4.Dataset(path, "w", **options) as file:
        file.createDimension("x", 3)
        for number, fill in enumerate(fills):
            file.createVariable(f"v{number}", "S1", ("x",), fill_value=fill)[:] = b"a"
    assert_same_fills(path)


@pytest.mark.parametrize("fill", [b"\0", b"*"])
def test_fill_values_of_char_are_written_again(tmp_path: Path, fill: bytes) -> None:
    path, copy = tmp_path / "v.nc", tmp_path / "copy.nc"
    target = f"file://{tmp_path}/v.file#mode=nczarr,file"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "S1", ("x",), fill_value=fill)[:] = b"a"
    with xr.open_dataset(path, engine="nczarr") as dataset:
        dataset.nczarr.to_nczarr(target)
        dataset.to_netcdf(copy, engine="netcdf4")
    with netCDF4.Dataset(copy) as file:
        assert file["v"]._FillValue == fill
    for one in (path, copy, target):
        with xr.open_dataset(one, engine="nczarr", decode_cf=False) as dataset:
            assert dataset.v.attrs["_FillValue"].rstrip(b"\0") == fill.rstrip(b"\0")
            assert dataset.v.values.tolist() == [b"a"] * 3


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize(("first", "then"), [(8, 2), (3, 9), (6, 5), (10, 2), (0, 12)])
def test_attributes_that_moved_into_a_heap(
    tmp_path: Path, libver: str, first: int, then: int
) -> None:
    """They keep their order, though the file tracks none; those added later have none."""
    path = tmp_path / "v.h5"
    names = [f"{'badcfexyzabc'[number]}{number}" for number in range(12)]
    with h5py.File(path, "w", libver=libver) as file:
        file["v"] = np.zeros(3)
        file["v"].attrs.update(dict.fromkeys(names[:first], 1))
    with h5py.File(path, "a", libver=libver) as file:
        file["v"].attrs.update(dict.fromkeys(names[first : first + then], 1))
    with netCDF4.Dataset(path) as file:
        expected = file["v"].ncattrs()
    assert list(assert_same(path).v.attrs) == expected


@pytest.mark.filterwarnings("ignore:The 'phony_dims' kwarg:UserWarning")
def test_numbers_of_dimensions_that_contradict_the_extents(tmp_path: Path) -> None:
    """netCDF-C follows the numbers: it cuts rows off, or cannot read."""
    path = tmp_path / "x.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, length in (("t", None), ("a", 3), ("b", 5)):
            file.createDimension(name, length)
        file.createVariable("v", "i4", ("a", "b"))[:] = np.arange(15).reshape(3, 5)
        file.createVariable("w", "i4", ("t", "b"))[:] = np.arange(20).reshape(4, 5)
        file.createVariable("u", "i4", ("t", "b"))[:] = np.arange(20).reshape(4, 5)
    with h5py.File(path, "r+") as file:
        file["v"].attrs.modify("_Netcdf4Coordinates", np.array([2, 1], "i4"))
        file["w"].attrs.modify("_Netcdf4Coordinates", np.array([1, 2], "i4"))
        file["u"].attrs.modify("_Netcdf4Coordinates", np.array([1, 2], "i4"))
        del file["u"].attrs["DIMENSION_LIST"]
    with pytest.warns(NCZarrWarning, match="/u: has length 4 along '/a', not 3"):
        ours = xr.open_dataset(path, engine="nczarr")
    with ours, xr.open_dataset(path, engine="h5netcdf", drop_variables="u") as theirs:
        xr.testing.assert_identical(ours.drop_vars("u").load(), theirs.load())
        with pytest.raises(FormatError, match="/u: has length 4"):
            ours["u"].load()
