"""A netCDF-4 file with something of everything, and changes of one thing each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

Change = Callable[[netCDF4.Dataset], None]


def write_everything(path: Path, *, lat: int = 5, temperature: str = "f4") -> None:
    """Write dimensions, groups, attributes of all kinds, and variables of all types."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("lat", lat)
        file.setncatts({"title": "é", "one": np.float32(0.1), "many": np.arange(3, dtype="i2")})
        file.setncattr_string("texts", ["a", "b"])
        options: dict[str, Any] = {"chunksizes": (2, 3), "zlib": True, "fill_value": False}
        t = file.createVariable("t", temperature, ("time", "lat"), **options)
        t.set_auto_maskandscale(False)
        t.units = "K"
        t[:] = np.linspace(0, 1, 7 * lat).reshape(7, lat)
        t[6, 1] = np.nan
        names = file.createVariable("names", str, ("lat",))
        for at in range(lat):
            names[at] = "é" * at
        letters = file.createVariable("letters", "S1", ("lat",))
        letters[:] = np.array([b"a"] * lat)
        phase = file.createEnumType("i1", "phase", {"solid": 0, "liquid": 1})
        file.createVariable("state", phase, ("lat",))[:] = np.arange(lat, dtype="i1") % 2
        pair = file.createCompoundType(np.dtype([("x", "f8"), ("n", "i4")]), "pair")
        pairs = file.createVariable("pairs", pair, ("lat",))
        pairs[:] = np.zeros(lat, pair.dtype)
        ragged = file.createVLType("i4", "ragged")
        lists = file.createVariable("lists", ragged, ("lat",))
        for at in range(lat):
            lists[at] = np.arange(at, dtype="i4")
        group = file.createGroup("g")
        group.createDimension("x", 3)
        counts = group.createVariable("counts", "u8", ("x",))
        counts.set_auto_maskandscale(False)
        counts[:] = [0, 1, 2**64 - 1]
        group.createVariable("scalar", "f8")[...] = 0.0


def _put(name: str, key: Any, value: Any) -> Change:
    def change(file: netCDF4.Dataset) -> None:
        file[name].set_auto_maskandscale(False)
        file[name][key] = value

    return change


def _pair(file: netCDF4.Dataset) -> None:
    values = file["pairs"][:]
    values["n"][2] = 1
    file["pairs"][:] = values


#: Changes by the object of the difference, its property, and what `nczarr compare` shows of it.
CHANGES: dict[tuple[str, str, str], Change] = {
    ("variable /t", "value", "[6, 1]: nan | nan (0x7fc00001)"): _put(
        "t", (6, 1), np.array(0x7FC00001, "u4").view("f4")
    ),
    ("variable /t", "value", "[0, 0]: 0.0 | -0.0"): _put("t", (0, 0), np.float32(-0.0)),
    ("variable /g/counts", "value", "[2]: 18446744073709551615 | 18446744073709551614"): _put(
        "g/counts", 2, np.uint64(2**64 - 2)
    ),
    ("variable /g/scalar", "value", "[]: 0.0 | 5e-324"): _put("g/scalar", ..., 5e-324),
    ("variable /names", "value", '[2]: "éé" | "éè"'): _put("names", 2, "éè"),
    ("variable /letters", "value", '[4]: "a" | "b"'): _put("letters", 4, b"b"),
    ("variable /state", "value", "[1]: 1 | 0"): _put("state", 1, np.int8(0)),
    ("variable /pairs", "value", '[2]: {"x": 0.0, "n": 0} | {"x": 0.0, "n": 1}'): _pair,
    ("variable /lists", "value", "[3]: [0, 1, 2] | [0, 1]"): _put(
        "lists", 3, np.arange(2, dtype="i4")
    ),
    ("attribute /:one", "value", "0.1 | 0.10000001"): lambda file: file.setncattr(
        "one", np.nextafter(np.float32(0.1), np.float32(1))
    ),
    ("attribute /:many", "type", "short | int"): lambda file: file.setncattr(
        "many", np.arange(3, dtype="i4")
    ),
    ("attribute /:texts", "value", '"a", "b" | "a", "c"'): lambda file: file.setncattr_string(
        "texts", ["a", "c"]
    ),
    ("attribute /t:units", "type", "char | string"): lambda file: file["t"].setncattr_string(
        "units", "K"
    ),
    ("attribute /:title", "", "only in A"): lambda file: file.delncattr("title"),
    ("attribute /g:new", "", "only in B"): lambda file: file["g"].setncattr("new", 1),
    ("group /h", "", "only in B"): lambda file: file.createGroup("h"),
    ("dimension /g/y", "", "only in B"): lambda file: file["g"].createDimension("y", 2),
    ("variable /v", "", "only in B"): lambda file: file.createVariable("v", "i4"),
    ("type /kind", "", "only in B"): lambda file: file.createEnumType("i1", "kind", {"a": 0}),
}
