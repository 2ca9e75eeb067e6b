"""Variables of every stored form, in files and stores that other libraries write.

A `Form` is a variable: its type, its kind of ``_FillValue`` and its packing. `SOURCES` write many
of them into one dataset, with attributes of every kind beside them; `Reading` is what a reader that
is not ours gets of it, decoded by the rules of CF. tests/support/oracles/stored_ways.py says what
is done with the datasets in between.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr
from xarray.backends import ZarrStore
from xarray.backends.zarr import FillValueCoder

from tests.support.builders.unchecked_fill import UNCHECKED, name_fill_values

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
FLOATS = ("f4", "f8")
NUMBERS = (*INTEGERS, *FLOATS)
#: Elements of each variable.
SIZE = 6
#: Attributes that are not compared themselves: decoded values show what they do.
STORAGE = frozenset(
    {"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding", "dtype"}
)
PACKINGS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "scale": {"scale_factor": np.float64(0.1)},
    "offset": {"add_offset": np.float64(100)},
    "both": {"scale_factor": np.float32(0.01), "add_offset": np.float32(273.15)},
    "unsigned": {"_Unsigned": "true"},
    "signed": {"_Unsigned": "false"},
}


@dataclass(frozen=True, slots=True)
class Form:
    """A variable as a source stores it.

    Parameters
    ----------
    kind
        Its type, as numpy writes it; ``char``, ``string``, ``bytes``, ``bool`` or ``enum``.
    fill
        The kind of its ``_FillValue``, as in `fill_of`.
    packing
        One of `PACKINGS`.
    """

    kind: str
    fill: str
    packing: str = ""

    @property
    def name(self) -> str:
        """Of the variable."""
        return "_".join(filter(None, (self.kind, self.fill, self.packing)))

    @property
    def values(self) -> np.ndarray:
        """The elements, two of which may be fill values."""
        if self.kind == "bool":
            return np.array([True, False, True, True, False, True])
        if self.kind == "enum":
            return np.array([0, 1, 2, 0, 1, 2], "i1")
        if self.kind in ("char", "bytes"):
            return np.array([b"abc", b"*", b"-", b"", b"d", b"ef"], "S3")
        if self.kind == "string":
            return np.array(["abc", "NA", "-", "", "é", "ef"], object)
        one, other = self.marks
        if self.kind in FLOATS:
            found = [0.5, one, other, -0.0, np.inf, 3.25]
            return np.array(found, self.kind)
        limits = np.iinfo(self.kind)
        return np.array([7, one, other, limits.min, limits.max, 100], self.kind)

    @property
    def marks(self) -> tuple[Any, Any]:
        """The elements that may be fill values."""
        if self.kind == "enum":
            return np.int8(0), np.int8(1)
        if self.kind == "bool":
            return np.False_, np.True_
        if self.kind in ("char", "bytes"):
            return b"*", b"-"
        if self.kind == "string":
            return "NA", "-"
        dtype = np.dtype(self.kind)
        if self.fill == "payload":
            bits = {"f4": (0x7FC12345, "u4"), "f8": (0x7FF8123456789ABC, "u8")}[self.kind]
            return np.array(bits[0], bits[1]).view(dtype)[()], dtype.type(-2)
        if self.fill == "nan" and dtype.kind == "f":
            return dtype.type(np.nan), dtype.type(-2)
        if dtype.kind == "u":
            return dtype.type(201), dtype.type(202)
        return dtype.type(-1), dtype.type(-2)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that decoding needs, but ``_FillValue``."""
        found = dict(PACKINGS[self.packing])
        if self.fill == "missing":
            found["missing_value"] = self.marks[1]
        return found

    @property
    def fill_value(self) -> Any:
        """What ``_FillValue`` is, whatever its type and shape are; None if there is none."""
        one, other = self.marks
        text = isinstance(one, (str, bytes))
        match self.fill:
            case "equal" | "payload" | "hidden" | "one":
                return one
            case "nan":
                return np.float64(np.nan) if self.kind in INTEGERS else one
            case "wider":
                return np.float64(one) if self.kind != "f8" else np.float32(one)
            case "narrower":
                return np.int8(-1) if np.dtype(self.kind).kind != "u" else np.uint8(201)
            case "impossible":
                return np.float64(1e20) if self.kind in INTEGERS else np.float64(1e300)
            case "several":
                return np.array([one, other]) if not text else [one, other]
            case "square":
                return np.array([[one]])
            case "text":
                return "NA"
            case "number":
                return np.int32(32)
            case "byte":
                return np.int8(32)
        return None


def forms(kinds: Collection[str], fills: Collection[str]) -> list[Form]:
    """Return the forms that a source can hold: every type with every fill, some of them packed."""
    plain = [Form(kind, fill) for kind in kinds for fill in fills if fill in _fills_of(kind)]
    packed = [
        Form(kind, fill, packing)
        for kind in ("i2", "u1", "i4", "f4")
        for packing in filter(None, PACKINGS)
        for fill in ("absent", "equal", "wider", "several", "missing", "hidden")
        if kind in kinds and fill in fills
        if kind[0] == {"unsigned": "i", "signed": "u"}.get(packing, kind[0])
    ]
    return plain + packed


def _fills_of(kind: str) -> Collection[str]:
    plain = {"absent", "equal", "hidden"}
    if kind in ("char", "string"):
        return plain | {"number", "byte"}
    if kind not in NUMBERS:
        return plain
    odd = {"missing", "several", "square", "wider", "narrower", "impossible", "nan", "text"}
    if kind in FLOATS:
        return plain | odd | {"payload"}
    return plain | odd - ({"narrower"} if kind in ("i1", "u1") else set())


# -- attributes ---------------------------------------------------------------------------------

#: Attributes of netCDF, by name; a list of texts is one of strings.
NETCDF_ATTRIBUTES: dict[str, Any] = {
    "text": "plain",
    "unicode": "Größe 温度",
    "empty": "",
    "json_object": '{"a": 1}',
    "json_number": "5",
    "json_true": "true",
    "specials": np.array([np.nan, np.inf, -np.inf]),
    "tenth": np.float64(0.1),
    "single": np.float32(0.1),
    **{f"one_{kind}": np.array(7, kind)[()] for kind in NUMBERS},
    **{
        f"many_{kind}": np.array(
            [np.iinfo(kind).min, 0, np.iinfo(kind).max] if kind in INTEGERS else [0.1, -2, 1e30],
            kind,
        )
        for kind in NUMBERS
    },
}
#: Those with strings, which classic files do not have.
STRING_ATTRIBUTES: dict[str, Any] = {"texts": ["a", "", "é"], "one_text": ["a"]}
#: Attributes of Zarr: any JSON.
JSON_ATTRIBUTES: dict[str, Any] = {
    "text": "plain",
    "unicode": "Größe 温度",
    "empty": "",
    "json_object": '{"a": 1}',
    "json_number": "5",
    "json_true": "true",
    "number": 5,
    "float": 0.1,
    "whole_float": 5.0,
    "nan": math.nan,
    "big": 2**70,
    "long": 2**64 - 1,
    "one": [5],
    "list": [1, 2, 3],
    "floats": [1.5, 2.0],
    "mixed_numbers": [1, 2.5],
    "mixed": [1, "a"],
    "texts": ["a", "", "é"],
    "one_text": ["a"],
    "none": [],
    "null": None,
    "true": True,
    "bools": [True, False],
    "nested": [[1, 2], [3, 4]],
    "ragged": [[1, 2], [3]],
    "object": {"a": [1, {"b": None}], "c": "d"},
    "objects": [{"axes": ["y", "x"], "scale": 0.5}],
    "empty_object": {},
    "bigs": [1, 2**70],
}


# -- sources ------------------------------------------------------------------------------------


class Writer(Protocol):
    """Writes a dataset of forms and of the attributes that are named."""

    def __call__(
        self, path: Path, chosen: Sequence[Form], attributes: Collection[str], start: int = 0
    ) -> None: ...


def _netcdf(
    file: netCDF4.Dataset, chosen: Sequence[Form], attributes: Collection[str], start: int
) -> None:
    """Fill an open file of netCDF4-python, whatever its format is."""
    strings = file.data_model == "NETCDF4"
    known = {**NETCDF_ATTRIBUTES, **(STRING_ATTRIBUTES if strings else {})}
    if file.data_model in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET"):
        has = ("i1", "i2", "i4", "f4", "f8")
        known = {
            name: value
            for name, value in known.items()
            if not isinstance(value, np.generic | np.ndarray) or value.dtype.str[1:] in has
        }
    file.createDimension("x", None)
    file.createDimension("letters", 3)
    made: list[tuple[netCDF4.Variable[Any], Any]] = []
    index = file.createVariable("x", "i4", ("x",))
    enum = None
    for form in chosen:
        dims: tuple[str, ...] = ("x",)
        values, kind = form.values, cast("Any", form.kind)
        if kind == "char":
            dims, values, kind = ("x", "letters"), netCDF4.stringtochar(form.values), "S1"
        elif kind == "string":
            kind = str
        elif kind == "enum":
            enum = enum or file.createEnumType("i1", "phase", {"solid": 0, "liquid": 1, "gas": 2})
            kind = enum
        variable = file.createVariable(form.name, kind, dims)
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        variable.setncatts(form.attributes)
        fill = form.fill_value
        if form.fill != "square" and fill is not None:
            if form.kind == "string" and isinstance(fill, str):
                variable.setncattr_string(UNCHECKED, fill)
            else:
                variable.setncattr(UNCHECKED, fill)
        made.append((variable, values))
    if attributes:
        holder = file.createVariable("attributes", "f4", ("x",))
        made.append((holder, np.arange(SIZE, dtype="f4")))
        for name in attributes:
            for owner in (file, holder):
                if name in STRING_ATTRIBUTES:
                    owner.setncattr_string(name, known[name])
                elif name in known:
                    owner.setncattr(name, known[name])
    index[:] = np.arange(start, start + SIZE)
    for variable, values in made:
        variable[:] = values


def netcdf(data_model: str) -> Writer:
    """Return what writes a file, or a tree, by netCDF-C."""

    def write(
        path: Path, chosen: Sequence[Form], attributes: Collection[str], start: int = 0
    ) -> None:
        if data_model == "NCZarr":
            with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
                _netcdf(file, chosen, attributes, start)
        else:
            with netCDF4.Dataset(path, "w", format=data_model) as file:
                _netcdf(file, chosen, attributes, start)
        name_fill_values(path)
        if data_model == "NETCDF4":
            with h5py.File(path, "r+") as file:
                for form in chosen:
                    if form.fill == "square":
                        file[form.name].attrs.create("_FillValue", form.fill_value)

    return write


def _zarr(version: Literal[2, 3]) -> Writer:
    """Return what writes a tree by zarr-python."""

    def write(
        path: Path, chosen: Sequence[Form], attributes: Collection[str], start: int = 0
    ) -> None:
        known = {name: JSON_ATTRIBUTES[name] for name in attributes}
        root = zarr.create_group(path, zarr_format=version, attributes=known)
        _array(root, "x", np.arange(start, start + SIZE, dtype="i4"))
        for form in chosen:
            dtype: Any = {"string": "string", "char": "S3", "enum": "i1"}.get(form.kind)
            stated = form.fill_value
            fill = stated if form.fill == "hidden" else None
            attrs = {key: _json(value) for key, value in form.attributes.items()}
            if stated is not None and form.fill != "hidden":
                attrs["_FillValue"] = _json(stated)
                if version == 3 and form.kind in FLOATS:  # as xarray writes it
                    attrs["_FillValue"] = FillValueCoder.encode(stated, np.dtype(form.kind))
            if form.fill == "equal" and version == 2:  # as xarray writes it
                attrs.pop("_FillValue")
                fill = stated
            _array(root, form.name, form.values, attrs, fill, dtype)
        if attributes:
            _array(root, "attributes", np.arange(SIZE, dtype="f4"), known)

    def _array(
        root: zarr.Group,
        name: str,
        values: np.ndarray,
        attributes: Mapping[str, Any] = {},
        fill: Any = None,
        dtype: Any = None,
    ) -> None:
        names: Any = {"dimension_names": ("x",)} if version == 3 else {}
        more = {"_ARRAY_DIMENSIONS": ["x"]} if version == 2 else {}
        array = root.create_array(
            name,
            shape=values.shape,
            dtype=dtype or values.dtype,
            chunks=values.shape,
            fill_value=fill,
            attributes={**attributes, **more},
            **names,
        )
        array[:] = values.astype(object) if dtype == "string" else values

    return write


def _json(value: Any) -> Any:
    """Return an attribute as a program writes it into JSON that knows only JSON's types."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_json(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


_ALL = ("absent", "equal", "missing", "wider", "narrower", "impossible", "several", "nan")
_NETCDF = (*_ALL, "payload", "text", "number", "byte")


@dataclass(frozen=True, slots=True)
class Source:
    """A format, who writes it, and what it can hold.

    Parameters
    ----------
    write
        Writes a dataset of forms, and of the attributes that are named.
    suffix
        Of the path.
    kinds, fills
        Of its forms.
    attributes
        Names of its attributes.
    lost
        Names of forms that its writer does not write as they are.
    """

    write: Writer
    suffix: str
    kinds: Collection[str]
    fills: Collection[str]
    attributes: Collection[str]
    lost: Collection[str] = ()

    @property
    def forms(self) -> list[Form]:
        """All forms that it can hold."""
        return [form for form in forms(self.kinds, self.fills) if form.name not in self.lost]


_STRINGS = (*NETCDF_ATTRIBUTES, *STRING_ATTRIBUTES)
_CLASSIC = ("i1", "i2", "i4", *FLOATS, "char")
SOURCES: dict[str, Source] = {
    "netCDF-4": Source(
        netcdf("NETCDF4"),
        ".nc",
        (*NUMBERS, "char", "string", "enum"),
        _NETCDF,
        _STRINGS,
    ),
    # netCDF-C opens no file in which a _FillValue has two dimensions
    "HDF5": Source(netcdf("NETCDF4"), ".h5", NUMBERS, ("square",), _STRINGS),
    "CDF-1": Source(netcdf("NETCDF3_CLASSIC"), ".nc", _CLASSIC, _NETCDF, tuple(NETCDF_ATTRIBUTES)),
    "CDF-2": Source(
        netcdf("NETCDF3_64BIT_OFFSET"), ".nc", _CLASSIC, _NETCDF, tuple(NETCDF_ATTRIBUTES)
    ),
    "CDF-5": Source(
        netcdf("NETCDF3_64BIT_DATA"), ".nc", (*NUMBERS, "char"), _NETCDF, tuple(NETCDF_ATTRIBUTES)
    ),
    "NCZarr": Source(
        netcdf("NCZarr"),
        ".nczarr",
        (*NUMBERS, "char", "string"),
        _NETCDF,
        _STRINGS,
        ("u4_wider", "u8_wider"),  # netCDF-C writes doubles with six digits
    ),
    "Zarr 2": Source(
        _zarr(2),
        ".zarr",
        (*NUMBERS, "bytes", "string", "bool"),
        (*_NETCDF, "square", "hidden"),
        tuple(JSON_ATTRIBUTES),
    ),
    "Zarr 3": Source(
        _zarr(3),
        ".zarr",
        (*NUMBERS, "string", "bool"),
        # xarray opens no other _FillValue of Zarr 3
        ("absent", "equal", "missing", "hidden", "nan", "payload"),
        tuple(JSON_ATTRIBUTES),
    ),
}


# -- reading ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Reading:
    """What a reader gets of a dataset.

    Parameters
    ----------
    values
        Decoded values by variable; an error where it cannot decode them.
    stored
        Values that are not decoded.
    decoding
        The attributes that decode them.
    attributes
        By name, and of variables by ``variable:name``.
    """

    values: dict[str, np.ndarray | Exception] = field(default_factory=dict)
    stored: dict[str, np.ndarray] = field(default_factory=dict)
    decoding: dict[str, dict[str, Any]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def read(target: Any, engine: str, **options: Any) -> Reading:
    """Read a dataset with one of xarray's engines, and nothing of ours but for ``"nczarr"``.

    One variable of Zarr that xarray refuses is one that it cannot decode; it would not open the
    others either.
    """
    found = Reading()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if engine == "zarr":
            store = ZarrStore.open_group(target, mode="r", consolidated=False, **options)
            found.attributes |= {str(name): value for name, value in store.get_attrs().items()}
            for key in store.array_keys():
                try:
                    _add(found, key, store.open_store_variable(key))
                except Exception as problem:  # noqa: BLE001 - whatever xarray raises
                    found.values[key] = problem
                    found.stored[key] = np.asarray(store.zarr_group[key][...])
            return found
        with xr.open_dataset(target, engine=engine, decode_cf=False, **options) as dataset:
            found.attributes |= {str(name): value for name, value in dataset.attrs.items()}
            for name, variable in dataset.variables.items():
                _add(found, str(name), variable)
    return found


def _add(found: Reading, name: str, variable: xr.Variable) -> None:
    """Add a variable that is not decoded."""
    decoding = found.decoding[name] = {}
    for attribute, value in variable.attrs.items():
        if attribute in STORAGE:
            decoding[attribute] = value
        else:
            found.attributes[f"{name}:{attribute}"] = value
    try:
        found.stored[name] = np.asarray(variable.values)
        decoded = xr.conventions.decode_cf_variable(name, variable, decode_times=False)
        found.values[name] = np.asarray(decoded.values)
    except Exception as problem:  # noqa: BLE001 - whatever xarray raises
        found.values[name] = problem
