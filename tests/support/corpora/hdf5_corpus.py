"""Small HDF5 and netCDF-4 files of many kinds; oracles say what is in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np

CASES: dict[str, Callable[[Path], None]] = {}
#: Those that the quick tests choose.
FEW = (
    "h5_layouts",
    "h5_links",
    "h5_scales",
    "nc_coordinates",
    "nc_fill",
    "nc_filters",
    "nc_groups",
    "nc_types",
)
LIBVERS = ("earliest", "v108", "v110", "v112", "v114", "latest")
INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
NUMBERS = (*INTEGERS, "f4", "f8")


def case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    CASES[function.__name__] = function
    return function


def write(name: str, directory: Path) -> Path:
    """Write one file of the corpus."""
    path = directory / f"{name}.nc"
    CASES[name](path)
    return path


def nc(path: Path, **options: Any) -> netCDF4.Dataset:
    return netCDF4.Dataset(path, "w", **options)


def _swapped(function: Callable[[Path, Any], None], value: Any, path: Path) -> None:
    function(path, value)


def _each(prefix: str, values: Any) -> Callable[[Callable[[Path, Any], None]], None]:
    def register(function: Callable[[Path, Any], None]) -> None:
        for value in values:
            CASES[f"{prefix}_{value}"] = partial(_swapped, function, value)

    return register


# ---- netCDF4: types -------------------------------------------------------------------------


@case
def nc_types(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 3)
        ds.createDimension("n", 5)
        for dtype in NUMBERS:
            info = np.iinfo(dtype) if dtype[0] in "iu" else np.finfo(dtype)
            v = ds.createVariable(f"v_{dtype}", dtype, ("x",))
            v[:] = np.array([info.min, 1, info.max], dtype)
            v.setncattr("one", np.array([7], dtype)[0])
            v.setncattr("many", np.array([info.max, info.min], dtype))
        c = ds.createVariable("chars", "S1", ("x", "n"))
        c[:] = np.array([list("hello"), list("wor\0d"), list("\0\0\0\0\0")], "S1")
        s = ds.createVariable("strings", str, ("x",))
        s[:] = np.array(["", "grüße", "a" * 300], object)
        t = ds.createVariable("scalar_text", str, ())
        t[...] = "alone"


@case
def nc_coordinates(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("time", None)
        ds.createDimension("lat", 4)
        ds.createDimension("lon", 5)
        ds.createDimension("unused", 9)
        for name, size in (("lat", 4), ("lon", 5)):
            ds.createVariable(name, "f4", (name,))[:] = np.arange(size)
        time = ds.createVariable("time", "f8", ("time",))
        time.units = "days since 2001-01-01"
        time.calendar = "noleap"
        time[:] = [0, 1, 2]
        t = ds.createVariable("t", "f4", ("time", "lat", "lon"), fill_value=-9.5)
        t.units, t.long_name = "K", "temperature"
        t[:] = np.arange(60).reshape(3, 4, 5)
        p = ds.createVariable("packed", "i2", ("time", "lat"), fill_value=-1)
        p.scale_factor, p.add_offset = 0.5, 10.0
        p.set_auto_maskandscale(False)
        p[:] = np.arange(12).reshape(3, 4)
        ds.title = "corpus"
        ds.Conventions = "CF-1.8"


@case
def nc_groups(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 3)
        ds.createDimension("y", 2)
        ds.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
        a = ds.createGroup("a")
        a.createVariable("v", "f4", ("y", "x"))[:] = np.ones((2, 3))
        a.createDimension("x", 4)
        a.createVariable("own", "i2", ("x",))[:] = range(4)
        a.note = "in a"
        b = a.createGroup("b")
        b.createDimension("t", None)
        b.createVariable("w", "f8", ("t", "y", "x"))[0:2] = np.full((2, 2, 4), 2.5)
        ds.createGroup("empty")
        ds.createGroup("z/y/w").createVariable("deep", "u1", ())[...] = 7


@case
def nc_unlimited(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("a", None)
        ds.createDimension("b", None)
        ds.createDimension("c", 2)
        ds.createDimension("never", None)
        ds.createVariable("a", "i4", ("a",))[:] = [1, 2]
        ds.createVariable("long", "i4", ("a",), fill_value=-5)[:] = range(6)
        ds.createVariable("short", "f8", ("a", "c"))[:3] = np.ones((3, 2))
        ds.createVariable("both", "i2", ("a", "b"))[:4, :3] = np.ones((4, 3))
        ds.createVariable("inner", "i2", ("c", "b"))[:, :5] = np.ones((2, 5))
        ds.createVariable("nothing", "f4", ("a", "b"))
        ds.createVariable("text", str, ("a",))[:2] = np.array(["p", "q"], object)
        ds.createVariable("char", "S1", ("a", "c"))[:1] = np.array([[b"x", b"y"]])
        ds.createVariable("n", "f4", ("never",))
        g = ds.createGroup("g")
        g.createVariable("longest", "i4", ("a",))[:] = range(8)
        h = ds.createGroup("h")
        h.createVariable("shorter", "u2", ("a",))[:] = range(3)


@case
def nc_fill(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 4)
        ds.createDimension("t", None)
        ds.createVariable("t", "i4", ("t",))[:] = range(5)
        for kind, fill in (("default", None), ("none", False), ("custom", True)):
            for dtype in NUMBERS:
                value = np.array([99], dtype)[0] if fill else fill
                v = ds.createVariable(f"{kind}_{dtype}", dtype, ("t", "x"), fill_value=value)
                if kind != "none":
                    v[1, 2] = 3
        ds.createVariable("unwritten", "f4", ("x",))
        ds.createVariable("unwritten_none", "f4", ("x",), fill_value=False)
        ds.createVariable("char_fill", "S1", ("x",), fill_value="#")[1] = b"a"
        ds.createVariable("text_fill", str, ("x",), fill_value="missing")[1] = "here"
        ds.createVariable("text_unwritten", str, ("x",))
        ds.createVariable("scalar_unwritten", "i4", ())


@case
def nc_endian(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 3)
        orders: dict[str, Any] = {"big": ">", "little": "<", "native": "="}
        for endian, order in orders.items():
            for dtype in ("i2", "i4", "u8", "f4", "f8", "i1"):
                for chunked in (True, False):
                    name, stored = (
                        f"{endian}_{dtype}_{chunked}",
                        np.dtype(dtype).newbyteorder(order),
                    )
                    v = ds.createVariable(
                        name, stored, ("x",), endian=endian, contiguous=not chunked
                    )
                    v[:] = [1, 2, 3]
        ds.createVariable("fill", ">i4", ("x",), endian="big", fill_value=77)[0] = 5


@case
def nc_filters(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 32)
        ds.createDimension("y", 64)
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "zlib": {"compression": "zlib", "complevel": 4},
            "zlib_no_shuffle": {"compression": "zlib", "complevel": 9, "shuffle": False},
            "fletcher": {"fletcher32": True},
            "zlib_fletcher": {"compression": "zlib", "fletcher32": True},
            "zstd": {"compression": "zstd", "complevel": 3},
            "bzip2": {"compression": "bzip2", "complevel": 5},
            "blosc_lz4": {"compression": "blosc_lz4", "blosc_shuffle": 1},
            "blosc_zstd": {"compression": "blosc_zstd", "blosc_shuffle": 2, "complevel": 2},
            "blosc_zlib": {"compression": "blosc_zlib", "blosc_shuffle": 0},
            "szip_ec": {"compression": "szip", "szip_coding": "ec"},
            "szip_nn": {"compression": "szip", "szip_coding": "nn", "szip_pixels_per_block": 16},
            "quantized": {
                "compression": "zlib", "significant_digits": 3, "quantize_mode": "GranularBitRound",
            },
            "least": {"compression": "zlib", "least_significant_digit": 2},
        }  # fmt: skip
        for name, filters in options.items():
            v = ds.createVariable(name, "f4", ("x", "y"), chunksizes=(7, 32), **filters)
            v[:] = np.repeat(np.arange(64), 32).reshape(32, 64) / 3


@case
def nc_storage(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 10)
        ds.createDimension("y", 20)
        ds.createVariable("contiguous", "f8", ("x", "y"), contiguous=True)[:] = 1.5
        ds.createVariable("chunked", "f8", ("x", "y"), chunksizes=(3, 7))[:] = 2.5
        ds.createVariable("scalar", "f8", ())[...] = 3.5
        ds.createVariable("text", str, ("x", "y"), chunksizes=(4, 6))[:] = np.array(
            [[f"{i}-{j}" for j in range(20)] for i in range(10)], object
        )


@case
def nc_zero_length(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("none", None)
        ds.createDimension("x", 3)
        ds.createVariable("none", "f4", ("none",))
        ds.createVariable("v", "i4", ("none", "x"))
        ds.createVariable("s", str, ("none",))
        ds.createVariable("c", "S1", ("none", "x"))


@case
def nc_names(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 2)
        ds.createDimension("y", 3)
        ds.createVariable("y", "f4", ("x",))[:] = [1, 2]  # stored as _nc4_non_coord_y
        ds.createVariable("x", "f4", ("x", "y"))[:] = np.ones((2, 3))  # multi-dimensional
        ds.createVariable("größe", "i4", ("x",)).setncattr("ß", "ü")
        ds.createVariable("with space", "i4", ("x",))
        ds.createVariable("a.b-c@d", "i4", ("x",))


@case
def nc_multidimensional_coordinate(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("station", 2)
        ds.createDimension("time", None)
        ds.createDimension("strlen", 4)
        ds.createVariable("time", "f8", ("time", "station"))[:3] = np.arange(6).reshape(3, 2)
        ds.createVariable("station", "S1", ("station", "strlen"))[:] = np.array(
            [list("abcd"), list("ef\0\0")], "S1"
        )
        ds.createVariable("v", "f4", ("time", "station"))[:] = np.ones((3, 2))


@case
def nc_late(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 2)
        ds.createVariable("v", "i4", ("x",))[:] = [1, 2]
        ds.createDimension("y", 3)
        ds.createVariable("w", "i4", ("x", "y"))[:] = 5
        ds.createVariable("y", "i4", ("y",))[:] = [7, 8, 9]
    with netCDF4.Dataset(path, "a") as ds:
        ds.renameDimension("x", "renamed")
        ds.renameVariable("v", "was_v")
        ds.createVariable("renamed", "f4", ("renamed",))[:] = [0.5, 1.5]


@case
def nc_renamed_coordinate(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 2)
        ds.createVariable("x", "i4", ("x",))[:] = [1, 2]
        ds.createVariable("v", "i4", ("x",))[:] = [3, 4]
    with netCDF4.Dataset(path, "a") as ds:
        ds.renameVariable("x", "other")


@case
def nc_attributes(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 1)
        v = ds.createVariable("v", "f4", ("x",))
        for where in (ds, v):
            for dtype in NUMBERS:
                where.setncattr(f"a_{dtype}", np.array([1, 2], dtype))
                where.setncattr(f"s_{dtype}", np.array([3], dtype)[0])
            where.setncattr("text", "plain")
            where.setncattr("empty", "")
            where.setncattr("unicode", "Ünïcödé ☃")
            where.setncattr("newlines", "a\nb\n")
            where.setncattr_string("string", "one")
            where.setncattr_string("empty_string", "")
            where.setncattr_string("strings", ["a", "", "ünï", "d" * 500])
            where.setncattr("list", ["x", "y"])
            where.setncattr("no_numbers", np.array([], "f4"))
            where.setncattr("big_endian", np.array([1, 2], ">i4"))
            where.setncattr("long", "z" * 70000)


@case
def nc_attributes_many(path: Path) -> None:
    with nc(path) as ds:
        for number in range(40):
            ds.setncattr(f"z{40 - number:02d}", np.int32(number))
        v = ds.createVariable("v", "i4", ())
        for number in range(12):
            v.setncattr(f"b{12 - number:02d}", f"text {number}")


@case
def nc_enum(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 4)
        kinds = ds.createEnumType("u1", "cloud_t", {"clear": 0, "cumulus": 2, "missing": 255})
        v = ds.createVariable("cloud", kinds, ("x",), fill_value=255)
        v[:3] = [0, 2, 255]
        signs = ds.createEnumType(np.int32, "sign_t", {"negative": -1, "positive": 1})
        ds.createVariable("sign", signs, ("x",), zlib=True)[:] = [1, -1, 1, 1]
        g = ds.createGroup("g")
        g.createVariable("inherited", kinds, ("x",))[:] = [0, 0, 2, 2]


@case
def nc_enum_unlimited(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("t", None)
        ds.createVariable("t", "f8", ("t",))[:] = range(4)
        kinds = ds.createEnumType("i2", "kind_t", {"none": 0, "some": 7})
        ds.createVariable("filled", kinds, ("t",), fill_value=7)[:2] = [0, 0]
        ds.createVariable("plain", kinds, ("t",))[:2] = [7, 7]
        pair = ds.createCompoundType(np.dtype([("a", "i4"), ("b", "f8")]), "pair_t")
        v = ds.createVariable("pairs", pair, ("t",))
        v[:2] = np.array([(1, 2), (3, 4)], [("a", "i4"), ("b", "f8")])


@case
def nc_user_types(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 3)
        ds.createVariable("plain", "i4", ("x",))[:] = [1, 2, 3]
        pair = np.dtype([("a", "i4"), ("b", "f8")])
        compound = ds.createCompoundType(pair, "pair_t")
        v = ds.createVariable("compound", compound, ("x",))
        v[:] = np.array([(1, 2.0), (3, 4.0), (5, 6.0)], pair)
        ds.createVariable("zlib", compound, ("x",), zlib=True)[:] = v[:]
        vlen = ds.createVLType("i2", "ragged_t")
        ds.createVariable("zlib_ragged", vlen, ("x",), zlib=True, fletcher32=True)
        w = ds.createVariable("ragged", vlen, ("x",))
        for row in range(3):
            w[row] = np.arange(row + 1, dtype="i2")


@case
def nc_compounds(path: Path) -> None:
    inner = np.dtype([("p", "i2"), ("q", "f4")], align=True)
    outer = np.dtype(
        [("n", "i4"), ("in", inner), ("grid", "f8", (2, 3)), ("c", "S1", (5,)), ("z", "u1")],
        align=True,
    )
    with nc(path) as ds:
        ds.createDimension("x", 7)
        ds.createDimension("t", None)
        inner_t = ds.createCompoundType(inner, "inner_t")
        outer_t = ds.createCompoundType(outer, "outer_t")
        data = np.zeros(7, outer)
        data["n"], data["z"] = range(7), 200
        data["in"]["p"], data["in"]["q"] = range(7), 0.5
        data["grid"] = np.arange(42).reshape(7, 2, 3)
        data["c"] = np.array(list("hello"), "S1")
        ds.createVariable("t", "f8", ("t",))[:] = range(4)
        ds.createVariable("outer", outer_t, ("x",))[:] = data
        ds.createVariable("zlib", outer_t, ("x",), zlib=True, chunksizes=(3,))[:] = data
        ds.createVariable("matrix", inner_t, ("t", "x"), shuffle=True, zlib=True)[:3] = np.zeros(
            (3, 7), inner
        )
        ds.createVariable("short", inner_t, ("t",))[:2] = np.array([(1, 2), (3, 4)], inner)
        ds.createVariable("unwritten", inner_t, ("x",))
        ds.createVariable("scalar", inner_t, ())[...] = np.array((5, 6), inner)
        for where in (ds, ds["outer"]):
            where.before = 1
            where.setncattr("one", np.array([(1, 2.5)], inner))
            where.setncattr("two", np.array([(1, 2.5), (3, 4.5)], inner))
            where.setncattr("nested", data[2:4])
            where.after = "text"


@case
def nc_ragged(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 5)
        ds.createDimension("t", None)
        ds.createVariable("t", "f8", ("t",))[:] = range(6)
        for dtype in ("i1", "u2", "i4", "i8", "f4", "f8"):
            ragged = ds.createVLType(dtype, f"ragged_{dtype}")
            v = ds.createVariable(f"fixed_{dtype}", ragged, ("x",))
            for row in (0, 1, 3):
                v[row] = np.arange(4 * row, dtype=dtype)
            w = ds.createVariable(f"grows_{dtype}", ragged, ("t", "x"), chunksizes=(2, 2))
            for row in range(3):
                w[row, row] = np.full(100 * row + 1, row, dtype)
        ds.createVariable("unwritten", ragged, ("x",))
        ds.createVariable("zlib", ragged, ("x",), zlib=True)[2] = np.array([2.5])


@case
def nc_complex(path: Path) -> None:
    with nc(path, auto_complex=True) as ds:
        ds.createDimension("x", 3)
        ds.createVariable("z", "c16", ("x",))[:] = [1 + 2j, 3 - 4j, 0]


@case
def nc_classic_model(path: Path) -> None:
    with nc(path, format="NETCDF4_CLASSIC") as ds:
        ds.createDimension("t", None)
        ds.createDimension("x", 2)
        ds.createVariable("t", "f8", ("t",))[:] = [0, 1, 2]
        ds.createVariable("v", "f4", ("t", "x"))[:2] = np.ones((2, 2))
        ds.title = "classic"
        ds.numbers = np.array([1.5, 2.5], "f4")


@case
def nc_empty(path: Path) -> None:
    nc(path).close()


@case
def nc_only_dimensions(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 5)
        ds.createDimension("t", None)


@case
def nc_many_variables(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 3)
        for number in range(60):
            v = ds.createVariable(f"v{60 - number}", "i2", ("x",))
            v[:] = number
            for attribute in range(number % 12):
                v.setncattr(f"a{attribute}", attribute * 0.5)


@case
def nc_text_edges(path: Path) -> None:
    with nc(path) as ds:
        ds.createDimension("x", 5)
        ds.createDimension("t", None)
        ds.createVariable("plain", str, ("x",))[:] = np.array(list("abcde"), object)
        ds.createVariable("zlib", str, ("x",), zlib=True)[:] = np.array(list("abcde"), object)
        ds.createVariable("holes", str, ("t", "x"), chunksizes=(1, 2))[2, 3] = "only"
        ds.createVariable("same", str, ("x",))[:] = np.array(["x" * 5000] * 5, object)


# ---- h5py -----------------------------------------------------------------------------------


@_each("h5_libver", LIBVERS)
def _libver(path: Path, libver: str) -> None:
    with h5py.File(path, "w", libver=libver) as f:
        f["x"] = np.arange(4.0)
        f["x"].make_scale("x")
        f["v"] = np.arange(12, dtype="i4").reshape(3, 4)
        f["v"].dims[1].attach_scale(f["x"])
        f.create_dataset("chunked", (30, 40), "f4", chunks=(7, 9), compression="gzip", shuffle=True)
        f["chunked"][...] = np.arange(1200).reshape(30, 40)
        f.create_dataset("growing", (5, 4), "i2", maxshape=(None, 4), chunks=(2, 4))
        f["growing"][:3] = 1
        f["text"] = ["a", "bc", "déf"]
        f["fixed"] = np.array([b"ab", b"c", b"def"])
        f["scalar"] = 5
        f.attrs["title"] = "made by h5py"
        f["v"].attrs["units"] = np.bytes_("m")
        f["v"].attrs["list"] = ["p", "q"]
        g = f.create_group("g")
        g["w"] = np.ones((3, 4))
        g["w"].dims[1].attach_scale(f["x"])


@case
def h5_phony(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["a"] = np.zeros((3, 4))
        f["b"] = np.zeros((4, 3))
        f["square"] = np.zeros((3, 3))
        f["cube"] = np.zeros((3, 3, 3))
        f["new"] = np.zeros((3, 7))
        f.create_dataset("unlimited", (3, 4), "f4", maxshape=(None, 4))
        f.create_dataset("both", (4, 4), "f4", maxshape=(None, None))
        g = f.create_group("g")
        g["a"] = np.zeros((3, 4))
        g["other"] = np.zeros((9,))
        g.create_group("h")["deep"] = np.zeros((9, 3))
        f.create_group("e")["first"] = np.zeros((2, 3))


@case
def h5_phony_order(path: Path) -> None:
    with h5py.File(path, "w", track_order=True) as f:
        f["z"] = np.zeros((3, 4))
        f["a"] = np.zeros((5, 3))
        f.create_group("y")["q"] = np.zeros((3,))
        f.create_group("b")["q"] = np.zeros((3,))


@case
def h5_scales(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.arange(3.0)
        f["x"].make_scale("a title that is not the name")
        f["y"] = np.arange(4.0)
        f["y"].make_scale()
        f["alt"] = np.arange(4.0) * 2
        f["alt"].make_scale("alternative")
        f["grid"] = np.zeros((2, 3))
        f["v"] = np.zeros((3, 4))
        f["v"].dims[0].attach_scale(f["x"])
        f["v"].dims[1].attach_scale(f["y"])
        f["v"].dims[0].label = "labelled"
        f["two"] = np.zeros((4,))
        f["two"].dims[0].attach_scale(f["y"])
        f["two"].dims[0].attach_scale(f["alt"])
        f["alone"] = np.arange(4.0)
        f["alone"].make_scale("alone")


@case
def h5_scales_partly(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.arange(3.0)
        f["x"].make_scale("x")
        f["first"] = np.zeros((3, 4))
        f["first"].dims[0].attach_scale(f["x"])
        f["same_length"] = np.zeros((3,))


@case
def h5_scales_second(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.arange(4.0)
        f["x"].make_scale("x")
        f["second"] = np.zeros((3, 4))
        f["second"].dims[1].attach_scale(f["x"])


@case
def h5_scale_elsewhere(path: Path) -> None:
    with h5py.File(path, "w") as f:
        g = f.create_group("g")
        g["x"] = np.arange(3.0)
        g["x"].make_scale("x")
        f["above"] = np.zeros((3,))
        f["above"].dims[0].attach_scale(g["x"])
        h = f.create_group("h")
        h["beside"] = np.zeros((3,))
        h["beside"].dims[0].attach_scale(g["x"])
        g["fine"] = np.zeros((3,))
        g["fine"].dims[0].attach_scale(g["x"])


@case
def h5_scale_two_dimensional(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.zeros((3, 4))
        f["x"].make_scale("x")
        f["v"] = np.zeros((3,))
        f["v"].dims[0].attach_scale(f["x"])


@case
def h5_scale_of_other_length(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.arange(3.0)
        f["x"].make_scale("x")
        f["v"] = np.arange(5)
        f["v"].dims[0].attach_scale(f["x"])


@case
def h5_scale_unlimited(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("t", data=np.arange(3.0), maxshape=(None,), chunks=(2,))
        f["t"].make_scale("t")
        f.create_dataset("v", data=np.ones((5,)), maxshape=(None,), chunks=(2,))
        f["v"].dims[0].attach_scale(f["t"])
        f.create_dataset("w", data=np.ones((2,)), maxshape=(None,), fillvalue=-3)
        f["w"].dims[0].attach_scale(f["t"])


@case
def h5_scale_grown(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("t", data=np.arange(3.0), maxshape=(None,), chunks=(2,))
        f["t"].make_scale("t")
        f["fixed"] = np.ones(2)
        f["fixed"].dims[0].attach_scale(f["t"])


@case
def h5_types(path: Path) -> None:
    with h5py.File(path, "w") as f:
        for dtype in NUMBERS:
            f[dtype] = np.array([1, 2, 3], dtype)
            f[f"be_{dtype}"] = np.array([1, 2, 3], np.dtype(dtype).newbyteorder(">"))
        f["bool"] = np.array([True, False, True])
        f["s1"] = np.array([b"a", b"", b"c"], "S1")
        f["s5"] = np.array([b"hello", b"ab", b""], "S5")
        f["s5_scalar"] = np.bytes_("hello")
        f["utf8"] = np.array(["grüße".encode(), b"ab", b""], h5py.string_dtype("utf-8", 8))
        f["vlen_ascii"] = np.array([b"x", b"yz", b""], h5py.string_dtype("ascii"))
        f["vlen_utf8"] = np.array(["x", "ÿ☃", ""], h5py.string_dtype())
        f["vlen_scalar"] = "scalar text"
        f.create_dataset("vlen_unwritten", (3,), h5py.string_dtype())
        f.create_dataset("vlen_chunked", (3,), h5py.string_dtype(), chunks=(2,))
        f["vlen_chunked"][0] = "first"
        space = h5py.h5t.C_S1.copy()
        space.set_size(4)
        space.set_strpad(h5py.h5t.STR_SPACEPAD)
        dataset = h5py.h5d.create(f.id, b"padded", space, h5py.h5s.create_simple((2,)))
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([b"ab  ", b"    "], "S4"), space)


@case
def h5_types_odd(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["plain"] = np.arange(3)
        f["f2"] = np.array([1, 2.5, 3], "f2")
        f["c16"] = np.array([1 + 2j, 3, 4])
        f["opaque"] = np.array([b"abc", b"def"], "V3")
        f["refs"] = np.array([f["plain"].ref], h5py.ref_dtype)
        f["regions"] = np.array([f["plain"].regionref[:2]], h5py.regionref_dtype)
        f["compound"] = np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")])
        f["vlen"] = np.array([np.arange(2), np.arange(3)], h5py.vlen_dtype("i4"))
        f.create_dataset("array", (2,), np.dtype(("i4", (3,))))
        f["enum"] = np.array([0, 1], h5py.enum_dtype({"RED": 0, "GREEN": 1}, "i2"))
        f["long double"] = np.array([1, 2], "g")


def _type_of_its_own(path: Path, data: Any) -> None:
    with h5py.File(path, "w") as f:
        f["plain"] = np.arange(3)
        f["odd"] = data


@case
def h5_odd_references(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["a"] = np.arange(7)
        f["refs"] = np.array([f["a"].ref] * 2, h5py.ref_dtype)
        f["regions"] = np.array([f["a"].regionref[:2]] * 3, h5py.regionref_dtype)
        f["zplain"] = np.arange(4)


@case
def h5_odd_array(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("array", (2,), np.dtype(("i4", (3,))))
        f["plain"] = np.arange(4)
        f["zbool"] = np.array([True, False])


@case
def h5_enum_big_endian(path: Path) -> None:
    with h5py.File(path, "w") as f:
        for name in (">i4", "<u2", ">u8"):
            kind = h5py.enum_dtype({"RED": 0, "GREEN": 100}, name)
            f[f"enum {name}"] = np.array([0, 100, 0], kind)
            f.create_dataset(f"chunked {name}", (3,), kind, chunks=(2,), fillvalue=100)


@case
def h5_odd_bitfield(path: Path) -> None:
    with h5py.File(path, "w") as f:
        space = h5py.h5s.create_simple((3,))
        dataset = h5py.h5d.create(f.id, b"bits", h5py.h5t.STD_B16LE, space)
        dataset.write(space, space, np.array([1, 2, 3], "u2"), h5py.h5t.STD_B16LE)
        f["plain"] = np.arange(4)


for _name, _data in {
    "f2": np.array([1, 2.5], "f2"),
    "c16": np.array([1 + 2j, 3]),
    "opaque": np.array([b"abc", b"def"], "V3"),
    "compound": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    "vlen": np.array([np.arange(2), np.arange(3)], h5py.vlen_dtype("i4")),
    "enum": np.array([0, 1], h5py.enum_dtype({"RED": 0, "GREEN": 1}, "i2")),
    "bool": np.array([True, False]),
    "longdouble": np.array([1, 2], "g"),
}.items():
    CASES[f"h5_odd_{_name}"] = partial(_swapped, _type_of_its_own, _data)


@case
def h5_compounds(path: Path) -> None:
    # netCDF must know the types of fields before it meets them
    data = np.ones(50, [("a", ">i4"), ("b", "<f8"), ("c", ">u2", (3,)), ("d", "i1")])
    data["a"], data["b"] = np.arange(50), np.arange(50) / 2
    data["c"] = np.arange(150).reshape(50, 3)
    gaps = np.dtype({"names": ["a", "b"], "formats": ["i1", ">f8"], "offsets": [3, 16],
                     "itemsize": 32})  # fmt: skip
    with h5py.File(path, "w") as f:
        f["contiguous"] = data
        options = {"chunks": (7,), "compression": "gzip", "shuffle": True}
        f.create_dataset("chunked", data=data, **options)
        fill = np.array((7, 2.5, (1, 2, 3), 4), data.dtype)
        f.create_dataset("filled", (50,), data.dtype, fillvalue=fill, **options)[3:20] = data[:17]
        f.create_dataset("unwritten", (3,), data.dtype, fillvalue=fill)
        f["gaps"] = np.array([(1, 2), (3, 4)], gaps)
        f["contiguous"].attrs["big"] = data[1:3]
        f["contiguous"].attrs["scalar"] = data[1]
        f["contiguous"].attrs["none"] = data[:0]


@case
def h5_ragged(path: Path) -> None:
    rows = [np.arange(n) for n in (0, 3, 1, 9)]
    with h5py.File(path, "w") as f:
        for dtype in ("<i2", ">i4", "u1", ">f8", "<f4"):
            v = f.create_dataset(f"v{dtype[-2:]}", (2, 4), h5py.vlen_dtype(dtype), chunks=(1, 3))
            for number, row in enumerate(rows):
                v[0, number] = row


@case
def h5_short_lengths(path: Path) -> None:
    properties = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    properties.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, properties)) as f:
        f["text"] = ["abc", "", "grüße", "d" * 300]
        f.attrs["list"] = ["x", "yy"]
        f["ragged"] = np.array([np.arange(2), np.arange(3)], h5py.vlen_dtype("i4"))
        f.create_dataset("chunked", data=np.arange(50), chunks=(7,), compression="gzip")


@case
def h5_committed(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["point_t"] = np.dtype([("a", "i4"), ("b", "f8")])
        f["colour_t"] = h5py.enum_dtype({"RED": 0, "GREEN": 1}, "i2")
        f.create_dataset("points", (2,), f["point_t"])
        f.create_dataset("colours", (2,), f["colour_t"])[...] = [1, 0]
        f.attrs.create("colour", 1, dtype=f["colour_t"])
        f.attrs["after"] = 5


@case
def h5_shapes(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["scalar"] = 1.5
        f["zero"] = np.zeros((0, 3))
        f["one"] = np.ones((1, 1, 1))
        f.create_dataset("sparse", (10**6, 10**6), "f4", chunks=(1000, 1000), fillvalue=4)
        f["sparse"][5000:5002, 7000:7003] = 1
        f.create_dataset("unwritten", (3,), "i4", fillvalue=7)
        f.create_dataset("unwritten_zero", (3,), "i4")
        f.create_dataset("early", (3,), "i4", fillvalue=8, chunks=(2,))
        f["rank8"] = np.arange(256).reshape((2,) * 8)


@case
def h5_null(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["empty"] = h5py.Empty("f4")
        f["plain"] = np.arange(2)


@case
def h5_attributes(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(2)
        for where in (f, f["v"]):
            a = where.attrs
            a["int"] = 5
            a["float"] = 2.5
            a["array"] = np.arange(3, dtype="i2")
            a["big"] = np.arange(3, dtype=">i8")
            a["str"] = "variable length"
            a["strs"] = ["a", "b"]
            a["bytes"] = np.bytes_("fixed")
            a["bytes1"] = np.bytes_("f")
            a["bytes_list"] = np.array([b"ab", b"c"])
            a["bytes_list_of_one"] = np.array([b"ab"])
            a["one_in_list"] = np.array([4], "u1")
            a["vlen_one_in_list"] = ["z"]
            a["bytes_matrix"] = np.array([[b"ab", b"c"], [b"d", b"ef"]])
            a.create("fixed utf8", "ü".encode(), dtype=h5py.string_dtype("utf-8", 4))
            a["none"] = np.zeros(0, "f4")
            a["no_strings"] = np.zeros(0, h5py.string_dtype())
            a["ünï"] = "ü"


def _reserved_attribute(path: Path, name: str) -> None:
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(2)
        f.attrs[name] = "of the root"
        f["v"].attrs[name] = "of the variable"
        f.create_group("g").attrs[name] = "of a group"


for _name in (
    "CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties", "_Format",
    "_IsNetcdf4", "_SuperblockVersion", "_nc3_strict", "_NCCOPY", "_ARRAY_DIMENSIONS",
    "_nczarr_attr", "_Codecs", "_Storage", "_ChunkSizes", "_Endianness", "_Filter", "_NoFill",
    "TITLE", "_NCZARR_ATTR", "_nczarr_superblock", "_Netcdf4Coordinates_",
    "_NCZARR_DEFAULT_MAXSTRLEN",
):  # fmt: skip
    CASES[f"h5_reserved_{_name}"] = partial(_swapped, _reserved_attribute, _name)


def _odd_attribute(path: Path, value: Any) -> None:
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(2)
        for where in (f, f["v"]):
            where.attrs["before"] = 1
            where.attrs["odd"] = f["v"].ref if isinstance(value, str) else value
            where.attrs["zafter"] = 2


for _name, _data in {
    "empty": h5py.Empty("f4"),
    "empty_text": h5py.Empty(h5py.string_dtype()),
    "bool": True,
    "bools": np.array([True, False]),
    "matrix": np.arange(4).reshape(2, 2),
    "text_matrix": np.array([["a", "b"], ["c", "d"]], dtype=h5py.string_dtype()),
    "complex": 1 + 2j,
    "f2": np.float16(1.5),
    "longdouble": np.longdouble(1.5),
    "compound": np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
    "opaque": np.void(b"abc"),
    "reference": "reference",
    "not_utf8": np.bytes_(b"caf\xe9"),
    "nul_inside": np.bytes_(b"a\0b"),
}.items():
    CASES[f"h5_attribute_{_name}"] = partial(_swapped, _odd_attribute, _data)


@case
def h5_user_block(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=1024) as f:
        f["v"] = np.arange(5)
        f.create_dataset("c", data=np.arange(50), chunks=(7,), compression="gzip")
        f["t"] = ["a", "b"]


@case
def h5_layouts(path: Path) -> None:
    with h5py.File(path, "w") as f:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3, 2))
        dataset = h5py.h5d.create(f.id, b"compact", h5py.h5t.STD_I32BE, space, plist)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(6, dtype="i4").reshape(3, 2))
        text = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
        dataset = h5py.h5d.create(f.id, b"compact_text", text, h5py.h5s.create_simple((2,)), plist)
        h5py.Dataset(dataset)[:] = ["in", "header"]
        f["contiguous"] = np.arange(6).reshape(3, 2)
        f.create_dataset("chunked", data=np.arange(6).reshape(3, 2), chunks=(2, 2))
        f.create_dataset(
            "bigger_chunk", data=np.arange(6).reshape(3, 2), chunks=(3, 2), maxshape=(9, None)
        )


@case
def h5_links(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(5)
        f["again"] = f["v"]
        f["soft"] = h5py.SoftLink("/v")
        g = f.create_group("g")
        g["w"] = np.arange(4)
        f["h"] = f["g"]


@case
def h5_links_to_scales(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["lat"] = np.arange(5.0)
        f["lat"].make_scale("lat")
        f["lon"] = np.arange(4.0)
        f["lon"].make_scale("lon")
        f["v"] = np.arange(20).reshape(5, 4)
        for axis, name in enumerate(("lat", "lon")):
            f["v"].dims[axis].attach_scale(f[name])
        f["after"] = f["a"] = f["lat"]
        f["south"] = h5py.SoftLink("/lon")
        f["g/far"] = h5py.SoftLink("/lat")
        f["g/w"] = np.arange(5)
        f["g/w"].dims[0].attach_scale(f["lat"])


@case
def h5_links_broken(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(5)
        f["dangling"] = h5py.SoftLink("/nowhere")


@case
def h5_filters(path: Path) -> None:
    data = np.arange(200, dtype="i4").reshape(10, 20)
    with h5py.File(path, "w") as f:
        f.create_dataset("lzf", data=data, chunks=(4, 9), compression="lzf")
        f.create_dataset("gzip9", data=data, chunks=(4, 9), compression="gzip", compression_opts=9)
        f.create_dataset("shuffle", data=data, chunks=(4, 9), shuffle=True)
        f.create_dataset("fletcher", data=data, chunks=(4, 9), fletcher32=True)
        f.create_dataset("scaleoffset", data=data, chunks=(4, 9), scaleoffset=10)
        f.create_dataset("szip", data=data, chunks=(4, 8), compression="szip")
        f.create_dataset(
            "all", data=data, chunks=(4, 9), compression="gzip", shuffle=True, fletcher32=True
        )


@case
def h5_external(path: Path) -> None:
    data = path.with_suffix(".bin")
    data.write_bytes(np.arange(5, dtype="i4").tobytes())
    with h5py.File(path, "w") as f:
        f["plain"] = np.arange(5)
        f.create_dataset("outside", (5,), "i4", external=[(str(data), 0, 20)])


@case
def h5_virtual(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["source"] = np.arange(5)
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource(f["source"])
        f.create_virtual_dataset("virtual", layout)


@case
def h5_text_unlimited(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("t", data=np.arange(4.0), maxshape=(None,), chunks=(2,))
        f["t"].make_scale("t")
        f.create_dataset(
            "vlen", data=["ab", "cd"], maxshape=(None,), chunks=(1,), dtype=h5py.string_dtype()
        )
        f["vlen"].dims[0].attach_scale(f["t"])


@case
def h5_fixed_text_unlimited(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f.create_dataset("t", data=np.arange(4.0), maxshape=(None,), chunks=(2,))
        f["t"].make_scale("t")
        f.create_dataset("fixed", data=np.array([b"ab", b"cd"]), maxshape=(None,), chunks=(2,))
        f["fixed"].dims[0].attach_scale(f["t"])


@case
def h5_text_not_utf8(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["fixed"] = np.array([b"caf\xe9", b"a"])
        f["vlen"] = np.array([b"caf\xe9", b"a"], h5py.string_dtype("ascii"))
        f.attrs["strings"] = np.array([b"caf\xe9", b"a"], h5py.string_dtype("ascii"))


@case
def h5_committed_attributes(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["a_pair"] = np.dtype([("a", "i4"), ("b", "f8")])
        f["a_ragged"] = h5py.vlen_dtype("i4")
        f["a_blob"] = np.dtype("V3")
        f["v"] = np.arange(2)
        for where in (f, f["v"]):
            where.attrs["before"] = 1
            where.attrs.create("pair", np.array((1, 2.5), f["a_pair"].dtype), dtype=f["a_pair"])
            where.attrs.create("blob", np.void(b"abc"), dtype=f["a_blob"])
            where.attrs["zafter"] = 1


@case
def h5_committed_vlen(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["a_ragged"] = h5py.vlen_dtype("i4")
        f.create_dataset("v", (2,), f["a_ragged"])
        f["v"][0] = [1, 2]


@case
def h5_scale_longer_than_variable(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["x"] = np.arange(5.0)
        f["x"].make_scale("x")
        f["v"] = np.arange(3)
        f["v"].dims[0].attach_scale(f["x"])


@case
def h5_committed_float(path: Path) -> None:
    with h5py.File(path, "w") as f:
        f["time_t"] = np.dtype("f8")
        f.create_dataset("times", (2,), f["time_t"])[...] = [0.5, 1.5]


@case
def h5_deep(path: Path) -> None:
    with h5py.File(path, "w") as f:
        group = f
        for level in range(20):
            group = group.create_group(f"g{level}")
            group.attrs["level"] = level
        group["v"] = np.arange(2)
