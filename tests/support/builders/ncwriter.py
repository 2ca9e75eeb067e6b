"""Contents that netCDF-C can write both as netCDF-4 and as NCZarr, and random ones.

Every function of `WRITERS` fills an open, empty `netCDF4.Dataset`, of whichever format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cftime
import netCDF4
import numpy as np

NUMERIC = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
Writer = Callable[[netCDF4.Dataset], None]
WRITERS: dict[str, Writer] = {}
#: Those that the quick tests choose.
FEW = ("attributes", "compression", "groups", "packed", "strings")


def writer(function: Writer) -> Writer:
    WRITERS[function.__name__.replace("_", "-")] = function
    return function


def grid(dataset: netCDF4.Dataset, **sizes: int | None) -> None:
    for name, size in sizes.items():
        dataset.createDimension(name, size)


def ramp(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Values that compress, and are exact in every type of two bytes or more."""
    values = np.arange(np.prod(shape)).reshape(shape) // 8
    return (values % 100 + (0.25 if dtype[0] == "f" else 0)).astype(dtype)


@writer
def all_types(d: netCDF4.Dataset) -> None:
    grid(d, x=3, time=None)
    for kind in NUMERIC:
        d.createVariable(f"fixed_{kind}", kind, ("x",))[:] = [1, 2, 3]
        d.createVariable(f"record_{kind}", kind, ("time", "x"))[:] = ramp((2, 3), kind)
        d.createVariable(f"scalar_{kind}", kind, ())[...] = 5
        limits = np.iinfo(kind) if kind[0] in "iu" else np.finfo(kind)
        extremes = np.array([limits.min, 0, limits.max], kind)
        v = d.createVariable(f"extreme_{kind}", kind, ("x",), fill_value=1)
        v[:] = extremes


@writer
def float_specials(d: netCDF4.Dataset) -> None:
    grid(d, x=5)
    for kind in ("f4", "f8"):
        v = d.createVariable(f"v_{kind}", kind, ("x",), fill_value=np.nan)
        v[:] = [np.nan, np.inf, -np.inf, -0.0, np.finfo(kind).tiny]
        v.setncattr("specials", np.array([np.nan, np.inf, -np.inf], kind))
        v.setncattr("one", np.array(np.nan, kind))


@writer
def attributes(d: netCDF4.Dataset) -> None:
    grid(d, x=2)
    v = d.createVariable("v", "f4", ("x",))
    v[:] = [1, 2]
    for holder in (d, v):
        for kind in NUMERIC:
            limits = np.iinfo(kind) if kind[0] in "iu" else np.finfo("f2")
            holder.setncattr(f"one_{kind}", np.array(7, kind))
            holder.setncattr(f"many_{kind}", np.array([limits.min, 0, limits.max], kind))
        holder.setncattr("third", 1 / 3)
        holder.setncattr("thirds", np.array([1 / 3, 2 / 3], "f4"))
        holder.setncattr("integral", 100.0)
        holder.setncattr("text", "plain text")
        holder.setncattr("lines", "a\nb\tc \"quoted\" back\\slash / 'single'")
        holder.setncattr("unicode", "Größe 温度 🌡")
        holder.setncattr_string("strings", ["a", "", "Größe"])
        holder.setncattr_string("string", "one")
        holder.setncattr_string("list of one", ["one"])
        for name, text in JSON_LIKE.items():
            holder.setncattr(name, text)
            holder.setncattr_string(f"s_{name}", text)


#: Text that netCDF-C takes for JSON and stores without quotes.
JSON_LIKE = {
    "flag": "true",
    "negation": "false",
    "version": "1.10",
    "year": "2020",
    "negative": "-5",
    "exponent": "1e5",
    "nothing": "null",
    "nan": "NaN",
    "array": "[1,2]",
    "object": '{"a": 1}',
}


@writer
def char(d: netCDF4.Dataset) -> None:
    grid(d, x=2, n=4, one=1)
    d.createVariable("names", "S1", ("x", "n"))[:] = np.array([list("abcd"), list("ef\0\0")], "S1")
    d.createVariable("alone", "S1", ("x",))[:] = np.array([b"p", b"q"])
    d.createVariable("single", "S1", ())[...] = b"z"
    d.createVariable("short", "S1", ("x", "one"))[:] = np.array([[b"u"], [b"v"]])
    v = d.createVariable("filled", "S1", ("x", "n"), fill_value="*")
    v[0] = np.array(list("ok**"), "S1")
    for encoding, text in (("utf-8", "äö"), ("latin-1", "éèàç")):
        v = d.createVariable(encoding, "S1", ("x", "n"))
        v.set_auto_chartostring(False)
        v._Encoding = encoding
        v[:] = np.array([text.encode(encoding), b"abcd"], "S4").view("S1").reshape(2, 4)


@writer
def strings(d: netCDF4.Dataset) -> None:
    d.setncattr("_nczarr_default_maxstrlen", np.int32(16))
    grid(d, x=3, y=2, time=None)
    d.createVariable("s", str, ("x",))[:] = np.array(["a", "Größe", ""], object)
    d.createVariable("t", str, ("time", "y"))[0] = np.array(["first", "second"], object)
    v = d.createVariable("long", str, ("y",))
    v.setncattr("_nczarr_maxstrlen", np.int32(40))
    v[:] = np.array(["x" * 40, "y" * 3], object)
    d.createVariable("alone", str, ())[...] = np.array("the only one", object)
    d.createVariable("unwritten", str, ("x",))
    v = d.createVariable("coordinate", str, ("y",))
    v[:] = np.array(["north", "south"], object)
    grid(d, city=2)
    d.createVariable("city", str, ("city",))[:] = np.array(["Reading", "Exeter"], object)


@writer
def dimensions(d: netCDF4.Dataset) -> None:
    grid(d, x=3, y=2, unused=7, time=None, record=None, empty=None)
    d.createVariable("x", "f8", ("x",))[:] = [0, 0.5, 1]
    d.createVariable("time", "i4", ("time",))[:] = np.arange(5)
    v = d.createVariable("two", "i4", ("time", "record"), chunksizes=(2, 2))
    v[:5, :3] = ramp((5, 3), "i4")
    d.createVariable("inner", "i4", ("x", "time"), chunksizes=(1, 4))[:] = ramp((3, 5), "i4")
    d.createVariable("nothing", "f4", ("empty", "x"))


@writer
def repeated_dimensions(d: netCDF4.Dataset) -> None:
    grid(d, x=3, y=2)
    d.createVariable("square", "i2", ("x", "x"))[:] = ramp((3, 3), "i2")
    d.createVariable("prism", "i2", ("x", "y", "x"), chunksizes=(2, 2, 2))[:] = 1


@writer
def groups(d: netCDF4.Dataset) -> None:
    grid(d, x=3, time=None)
    d.title = "root"
    d.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
    d.createVariable("v", "f4", ("time", "x"))[:] = ramp((2, 3), "f4")
    one = d.createGroup("one")
    one.title = "child"
    grid(one, y=2, level=None)
    one.createVariable("inherits", "f8", ("time", "x", "y"))[:] = ramp((2, 3, 2), "f8")
    one.createVariable("own", "i2", ("level", "y"))[:] = ramp((4, 2), "i2")
    grid(one.createGroup("deep"), z=2)
    one["deep"].createVariable("all", "i4", ("x", "y", "z"))[:] = ramp((3, 2, 2), "i4")
    one["deep"].createGroup("empty")
    d.createGroup("a b")
    d["a b"].createVariable("s", "f8", ())[...] = 2.5


@writer
def shadowed_dimensions(d: netCDF4.Dataset) -> None:
    grid(d, x=3)
    d.createVariable("x", "i4", ("x",))[:] = [1, 2, 3]
    d.createVariable("v", "f4", ("x",))[:] = [1, 2, 3]
    child = d.createGroup("child")
    grid(child, x=5)
    child.createVariable("x", "i4", ("x",))[:] = range(5)
    child.createVariable("v", "f4", ("x",))[:] = range(5)
    child.createGroup("below").createVariable("v", "i2", ("x",))[:] = range(5)


@writer
def big_endian(d: netCDF4.Dataset) -> None:
    grid(d, x=10, y=7)
    for kind in NUMERIC[2:]:
        for zlib in (False, True):
            v = d.createVariable(
                f"v_{kind}_{zlib}",
                f">{kind}",
                ("x", "y"),
                endian="big",
                zlib=zlib,
                chunksizes=(4, 3),
            )
            v[:] = ramp((10, 7), kind)
    d.createVariable("little", "f4", ("x",), endian="little")[:] = range(10)
    # netCDF-C pads big-endian chunks with the fill value in the wrong byte order: whole ones only
    v = d.createVariable("filled", ">i4", ("x",), endian="big", fill_value=-7, chunksizes=(4,))
    v[:4] = range(4)


@writer
def compression(d: netCDF4.Dataset) -> None:
    grid(d, x=100, y=64)
    methods: dict[str, dict[str, Any]] = {
        "zlib": {"compression": "zlib"},
        "zlib9": {"compression": "zlib", "complevel": 9, "shuffle": False},
        "zstd": {"compression": "zstd"},
        "bzip2": {"compression": "bzip2", "complevel": 9},
        "fletcher32": {"fletcher32": True},
        "checked_zlib": {"compression": "zlib", "fletcher32": True},
        "BitGroom": {"compression": "zlib", "significant_digits": 3, "quantize_mode": "BitGroom"},
        "GranularBitRound": {"significant_digits": 2, "quantize_mode": "GranularBitRound"},
        "BitRound": {"significant_digits": 7, "quantize_mode": "BitRound"},
        "least_significant": {"compression": "zlib", "least_significant_digit": 1},
        "contiguous": {"contiguous": True},
    }
    for name in ("blosc_lz", "blosc_lz4", "blosc_lz4hc", "blosc_zlib", "blosc_zstd"):
        methods[name] = {"compression": name}
    for shuffle in (0, 2):
        methods[f"blosc_shuffle{shuffle}"] = {
            "compression": "blosc_zstd",
            "blosc_shuffle": shuffle,
            "complevel": 7,
        }
    for name, options in methods.items():
        chunks = {} if "contiguous" in options else {"chunksizes": (40, 30)}
        for kind in ("f4", "f8") if "significant_digits" in options else ("i2", "f4", "i8"):
            v = d.createVariable(f"{name}_{kind}", kind, ("x", "y"), **options, **chunks)
            v[:] = ramp((100, 64), kind)


@writer
def szip(d: netCDF4.Dataset) -> None:
    grid(d, x=30, y=64, z=5)
    for kind, coding in (("u1", "nn"), ("i2", "nn"), ("f4", "nn"), ("f4", "ec"), ("f8", "ec")):
        options = {"compression": "szip", "szip_coding": coding, "szip_pixels_per_block": 8}
        for chunks in ((30, 64), (7, 32), (7, 30)):
            name = f"{kind}_{coding}_{chunks[0]}_{chunks[1]}"
            v = d.createVariable(name, kind, ("x", "y"), chunksizes=chunks, **options)
            v[:] = ramp((30, 64), kind)
        chunks = (20, 4 if kind[0] == "f" else 5)  # szip cannot make the others smaller
        v = d.createVariable(f"{kind}_{coding}", kind, ("x", "z"), chunksizes=chunks, **options)
        v[:] = ramp((30, 5), kind)


@writer
def chunk_shapes(d: netCDF4.Dataset) -> None:
    grid(d, x=11, y=7, time=None)
    for chunks in ((1, 1), (4, 3), (11, 7), (3, 7)):
        v = d.createVariable(f"v_{chunks[0]}_{chunks[1]}", "i4", ("x", "y"), chunksizes=chunks)
        v[:] = ramp((11, 7), "i4")
    d.createVariable("record", "f4", ("time", "x"), chunksizes=(5, 4))[:] = ramp((3, 11), "f4")


@writer
def missing_chunks(d: netCDF4.Dataset) -> None:
    grid(d, x=12, y=6)
    for kind in NUMERIC:
        for name, fill in (("default", None), ("set", 9), ("none", False)):
            v = d.createVariable(
                f"{name}_{kind}", kind, ("x", "y"), chunksizes=(4, 3), fill_value=fill
            )
            if name == "none":
                v[:] = ramp((12, 6), kind)
            else:
                v[:4, 3:] = 1
    d.createVariable("never", "f8", ("x",), fill_value=-999.0)
    d.createVariable("rounded", "f8", ("x",), fill_value=-999.123456789)
    d.createVariable("text", "S1", ("x",))


@writer
def packed(d: netCDF4.Dataset) -> None:
    grid(d, x=6)
    v = d.createVariable("packed", "i2", ("x",), fill_value=-32767)
    v.set_auto_maskandscale(False)
    v.scale_factor, v.add_offset, v.units = 0.25, 273.5, "K"
    v.missing_value = np.int16(-32767)
    v[:] = [1, 2, 3, 4, 5, -32767]
    v = d.createVariable("floats", "i4", ("x",))
    v.set_auto_maskandscale(False)
    v.scale_factor = np.float32(0.5)
    v[:] = range(6)
    v = d.createVariable("unsigned", "i1", ("x",), fill_value=-1)
    v.set_auto_maskandscale(False)
    v._Unsigned = "true"
    v[:] = [0, 1, 127, -128, -2, -1]
    v = d.createVariable("signed", "u1", ("x",), fill_value=255)
    v.set_auto_maskandscale(False)
    v._Unsigned = "false"
    v[:] = [0, 1, 127, 128, 254, 255]
    v = d.createVariable("ranged", "f4", ("x",))
    v.valid_range = np.array([0, 1], "f4")
    v.flag_values = np.array([1, 2], "i1")
    v.flag_meanings = "low high"
    v[:] = range(6)
    v = d.createVariable("missing", "f4", ("x",))
    v.missing_value = np.array([1e20], "f4")
    v.set_auto_maskandscale(False)
    v[:] = [1, 2, 1e20, 4, 5, 6]
    v = d.createVariable("logical", "i1", ("x",))
    v.dtype_ = "not bool"
    v.setncattr("dtype", "bool")
    v[:] = [0, 1, 1, 0, 1, 0]


@writer
def times(d: netCDF4.Dataset) -> None:
    grid(d, time=None, bnds=2)
    time = d.createVariable("time", "f8", ("time",))
    time.units, time.calendar, time.bounds = "days since 2000-01-01", "standard", "time_bnds"
    time[:] = [0, 1.5, 31]
    d.createVariable("time_bnds", "f8", ("time", "bnds"))[:] = [[0, 1], [1, 2], [31, 32]]
    for calendar in ("noleap", "360_day", "julian", "proleptic_gregorian", "all_leap"):
        v = d.createVariable(calendar, "i8", ("time",))
        v.units, v.calendar = "hours since 1900-02-28 06:00:00", calendar
        v[:] = cftime.date2num(
            [cftime.datetime(1900, 3, n, calendar=calendar) for n in (1, 2, 3)], v.units, calendar
        )
    v = d.createVariable("delta", "i4", ("time",), fill_value=-1)
    v.set_auto_maskandscale(False)
    v.units = "seconds"
    v[:] = [1, 60, -1]
    v = d.createVariable("integers", "i8", ("time",))
    v.units = "seconds since 1970-01-01T00:00:00Z"
    v[:] = [0, 86400, 10**9]
    v = d.createVariable("far", "i4", ("time",))
    v.units, v.calendar = "days since 0001-01-01", "noleap"
    v[:] = [0, 365, 3650000]


@writer
def cf_roles(d: netCDF4.Dataset) -> None:
    grid(d, lat=2, lon=3, bnds=2)
    d.Conventions, d.coordinates = "CF-1.11", "station"
    for name, size in (("lat", 2), ("lon", 3)):
        v = d.createVariable(name, "f8", (name,))
        v.bounds, v.units = f"{name}_bnds", "degrees"
        v[:] = range(size)
        d.createVariable(f"{name}_bnds", "f8", (name, "bnds"))[:] = ramp((size, 2), "f8")
    d.createVariable("station", "i4", ())[...] = 4
    d.createVariable("crs", "i4", ())[...] = 0
    d["crs"].grid_mapping_name = "latitude_longitude"
    d.createVariable("area", "f8", ("lat", "lon"))[:] = 1
    d.createVariable("height", "f8", ())[...] = 2
    v = d.createVariable("t2m", "f4", ("lat", "lon"))
    v.coordinates, v.grid_mapping, v.cell_measures = "height", "crs", "area: area"
    v.ancillary_variables = "quality"
    v[:] = ramp((2, 3), "f4")
    d.createVariable("quality", "i1", ("lat", "lon"))[:] = 1


@writer
def odd_names(d: netCDF4.Dataset) -> None:
    names = ["0", "0num", "a b", "a.b", "a-b", "a+b@c", "größe", "温度", "_under", "CON", "x#y"]
    names.append("50%")
    for name in names:
        grid(d, **{name: 2})
        v = d.createVariable(name, "i4", (name,))
        v[:] = [1, 2]
        v.setncattr(name, name)
        d.setncattr(f"{name}_", np.int16(1))
    d.createVariable("all", "i1", names[:5])[:] = 1
    d.createGroup("0.0").createVariable("0", "f4", ())[...] = 1


@writer
def nothing(d: netCDF4.Dataset) -> None:
    """An empty dataset."""


@writer
def only_attributes(d: netCDF4.Dataset) -> None:
    d.title = "only this"
    grid(d, x=3)
