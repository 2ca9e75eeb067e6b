"""Classic netCDF files for tests: a small writer of our own, and a corpus that netCDF-C wrote.

The writer follows the grammar of the "NetCDF Classic Format Specification" and can
lie where the specification says that a reader must not trust, or where a damaged
file might.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np

#: netCDF type name -> (number in files, type of elements).
TYPES = {
    "byte": (1, ">i1"),
    "char": (2, "S1"),
    "short": (3, ">i2"),
    "int": (4, ">i4"),
    "float": (5, ">f4"),
    "double": (6, ">f8"),
    "ubyte": (7, ">u1"),
    "ushort": (8, ">u2"),
    "uint": (9, ">u4"),
    "int64": (10, ">i8"),
    "uint64": (11, ">u8"),
}
CLASSIC_TYPES = tuple(TYPES)[:6]
ALL_TYPES = tuple(TYPES)
MODELS: dict[int, Any] = {1: "NETCDF3_CLASSIC", 2: "NETCDF3_64BIT_OFFSET", 5: "NETCDF3_64BIT_DATA"}


def types_of(version: int) -> tuple[str, ...]:
    """The types that a version of the format has."""
    return ALL_TYPES if version == 5 else CLASSIC_TYPES


@dataclass(frozen=True)
class Att:
    """An attribute; `value` has one dimension, char attributes are bytes."""

    name: str
    type: str
    value: Any


@dataclass(frozen=True)
class Var:
    """A variable; `data` has the shape of `dims`, None leaves all zero."""

    name: str
    type: str
    dims: tuple[int, ...] = ()
    data: Any = None
    attributes: tuple[Att, ...] = ()


@dataclass(frozen=True)
class Classic:
    """A file; the length of the record dimension in `dims` is None, `records` says it."""

    version: int = 1
    dims: tuple[tuple[str, int | None], ...] = ()
    attributes: tuple[Att, ...] = ()
    variables: tuple[Var, ...] = ()
    records: int = 0

    def shape(self, var: Var) -> tuple[int, ...]:
        """The lengths of a variable's dimensions."""
        sizes = (self.dims[i][1] for i in var.dims)
        return tuple(self.records if size is None else size for size in sizes)

    def is_record(self, var: Var) -> bool:
        """Whether a variable has the record dimension."""
        return bool(var.dims) and self.dims[var.dims[0]][1] is None


@dataclass(frozen=True)
class Lies:
    """What a header says instead of the truth, and other liberties.

    Parameters
    ----------
    records
        The number of records; -1 is "look at the size of the file".
    vsize
        From the true size of a variable to what is written.
    absent
        Whether an empty list is written with its tag instead of two zeros.
    gap
        Bytes between header and data.
    begin
        Offsets of variables, by name.
    types
        Numbers of types, by name of variable.
    tail
        Whether the padding behind the last element is written.
    """

    records: int | None = None
    vsize: Callable[[int], int] = field(default=lambda size: size)
    absent: bool = False
    gap: int = 0
    begin: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    tail: bool = True


TRUTH = Lies()


def padded(data: bytes, with_: bytes = b"\0") -> bytes:
    """`data` filled up to a multiple of four bytes."""
    return data + with_ * (-len(data) % 4)


class _Writer:
    def __init__(self, file: Classic, lies: Lies) -> None:
        self.file = file
        self.lies = lies
        self.wide = file.version == 5

    def count(self, number: int) -> bytes:
        size = 8 if self.wide else 4
        return (number % (1 << 8 * size)).to_bytes(size, "big")

    def offset(self, number: int) -> bytes:
        size = 4 if self.file.version == 1 else 8
        return number.to_bytes(size, "big")

    def name(self, name: str) -> bytes:
        data = name.encode(errors="surrogateescape")
        return self.count(len(data)) + padded(data)

    def list(self, tag: int, items: list[bytes]) -> bytes:
        shown = tag if items or self.lies.absent else 0
        return struct.pack(">I", shown) + self.count(len(items)) + b"".join(items)

    def attributes(self, attributes: tuple[Att, ...]) -> bytes:
        items = []
        for att in attributes:
            number, dtype = TYPES[att.type]
            data = att.value if att.type == "char" else np.asarray(att.value, dtype).tobytes()
            length = len(data) // np.dtype(dtype).itemsize
            head = self.name(att.name) + struct.pack(">I", number) + self.count(length)
            items.append(head + padded(data))
        return self.list(12, items)

    def header(self, begins: Mapping[str, int]) -> bytes:
        file = self.file
        records = file.records if self.lies.records is None else self.lies.records
        dims = [self.name(name) + self.count(size or 0) for name, size in file.dims]
        variables = [
            self.name(var.name)
            + self.count(len(var.dims))
            + b"".join(map(self.count, var.dims))
            + self.attributes(var.attributes)
            + struct.pack(">I", self.lies.types.get(var.name, TYPES[var.type][0]))
            + self.count(self.lies.vsize(-(-self.bytes_of(var) // 4) * 4))
            + self.offset(begins[var.name])
            for var in file.variables
        ]
        return (
            b"CDF"
            + bytes([file.version])
            + self.count(records)
            + self.list(10, dims)
            + self.attributes(file.attributes)
            + self.list(11, variables)
        )

    def bytes_of(self, var: Var) -> int:
        """Of the variable, or of one of its records, without padding."""
        shape = self.file.shape(var)[1 if self.file.is_record(var) else 0 :]
        return prod(shape) * np.dtype(TYPES[var.type][1]).itemsize

    def elements(self, var: Var) -> np.ndarray[Any, Any]:
        shape = self.file.shape(var)
        dtype = TYPES[var.type][1]
        return np.zeros(shape, dtype) if var.data is None else np.asarray(var.data, dtype)

    def layout(self) -> dict[str, int]:
        fixed = [var for var in self.file.variables if not self.file.is_record(var)]
        records = [var for var in self.file.variables if self.file.is_record(var)]
        at = len(self.header({var.name: 0 for var in self.file.variables})) + self.lies.gap
        begins = {}
        for var in fixed + records:
            begins[var.name] = at
            at += -(-self.bytes_of(var) // 4) * 4
        return {**begins, **self.lies.begin}

    def write(self) -> bytes:
        file = self.file
        begins = self.layout()
        parts = [self.header(begins), b"\0" * self.lies.gap]
        last = 0
        for var in file.variables:
            if not file.is_record(var):
                parts.append(padded(self.elements(var).tobytes()))
                last = -self.bytes_of(var) % 4
        records = [var for var in file.variables if file.is_record(var)]
        for number in range(file.records if records else 0):
            for var in records:
                data = self.elements(var)[number : number + 1].tobytes()
                # the only one of its kind is not padded
                parts.append(data if len(records) == 1 else padded(data))
                last = 0 if len(records) == 1 else -len(data) % 4
        data = b"".join(parts)
        return data if self.lies.tail or not last else data[:-last]


def write(file: Classic, lies: Lies = TRUTH) -> bytes:
    """The bytes of a file."""
    return _Writer(file, lies).write()


def header(file: Classic, begins: Mapping[str, int]) -> bytes:
    """The header alone, with the variables where `begins` says."""
    return _Writer(file, TRUTH).header(begins)


# -- files by netCDF-C -----------------------------------------------------------------------


def sample(nc_type: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Elements of a type, all bit patterns; characters are letters."""
    rng = np.random.default_rng([seed, *map(ord, nc_type)])
    dtype = np.dtype(TYPES[nc_type][1])
    if nc_type == "char":
        return rng.choice(np.frombuffer(b"abcdefg xyz", "S1"), shape)
    raw = rng.integers(0, 256, prod(shape) * dtype.itemsize, "u1")
    return raw.view(dtype).reshape(shape).astype(dtype.newbyteorder("="))


def attribute_values(nc_type: str) -> dict[str, Any]:
    """Attributes of a type: none, one, two and nine elements."""
    if nc_type == "char":
        return {"text0": "", "text1": "x", "text3": "abc", "text5": "äöü €", "text9": "123456789"}
    dtype = np.dtype(TYPES[nc_type][1]).newbyteorder("=")
    return {
        f"{nc_type}{count}": sample(nc_type, (count,), 7).astype(dtype) for count in (0, 1, 2, 9)
    }


def _everything(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    """Every type: scalar, fixed, with records; attributes everywhere."""
    dataset.createDimension("y", 3)
    dataset.createDimension("time", None)
    dataset.createDimension("x", 5)
    dataset.createDimension("unused", 7)
    for nc_type in types:
        dataset.setncatts(attribute_values(nc_type))
        for label, dims, shape in (
            ("scalar", (), ()),
            ("line", ("y",), (3,)),
            ("plane", ("y", "x"), (3, 5)),
            ("square", ("x", "x"), (5, 5)),
            ("series", ("time",), (4,)),
            ("cube", ("time", "y", "x"), (4, 3, 5)),
        ):
            _add(dataset, f"{nc_type}_{label}", nc_type, dims, shape)


def _add(
    dataset: netCDF4.Dataset,
    name: str,
    nc_type: str,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
) -> None:
    variable = dataset.createVariable(name, TYPES[nc_type][1].replace(">", ""), dims)
    variable.setncatts(attribute_values(nc_type))
    variable.set_auto_maskandscale(False)
    if prod(shape):
        variable[...] = sample(nc_type, shape)


def _scalars(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    for nc_type in types:
        dataset.createVariable(nc_type, TYPES[nc_type][1][-2:], ())[...] = sample(nc_type, ())


def _unwritten(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    """Records and elements that netCDF-C filled."""
    dataset.createDimension("time", None)
    dataset.createDimension("x", 3)
    for nc_type in types:
        dataset.createVariable(f"fixed_{nc_type}", TYPES[nc_type][1][-2:], ("x",))
        dataset.createVariable(f"record_{nc_type}", TYPES[nc_type][1][-2:], ("time", "x"))
    dataset["record_int"][5] = 1


def _zero_records(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    dataset.createDimension("time", None)
    dataset.createDimension("x", 3)
    for nc_type in types:
        _add(dataset, f"series_{nc_type}", nc_type, ("time", "x"), (0, 3))
    _add(dataset, "x", "double", ("x",), (3,))


def _nothing(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    pass


def _dimensions(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    dataset.createDimension("x", 2**31 - 4)
    dataset.createDimension("time", None)


def _attributes(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    for nc_type in types:
        dataset.setncatts(attribute_values(nc_type))


def _names(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    for name in ("größe", "数据", "a b", "x-1.2@+", "9lives", "_x", "é" * 127, "🌍"):
        dataset.createDimension(name, 2)
        _add(dataset, name, "short", (name,), (2,))
        dataset.setncattr(name, name)


def _huge_header(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
    """1,000 variables with attributes: about 1 MiB."""
    dataset.createDimension("time", None)
    dataset.createDimension("x", 3)
    for number in range(1000):
        dims = ("time", "x") if number % 7 == 5 else ("x",)
        variable = dataset.createVariable(f"variable_{number}", "f4", dims)
        variable.long_name = f"variable {number} " * 50
        variable.units = "m s-1"
        variable[:] = np.full((2, 3)[-len(dims) :], number)


def _single(nc_type: str, length: int) -> Callable[[netCDF4.Dataset, tuple[str, ...]], None]:
    """One record variable: no padding, not even where it would be."""

    def fill(dataset: netCDF4.Dataset, types: tuple[str, ...]) -> None:
        dataset.createDimension("time", None)
        dataset.createDimension("x", length)
        _add(dataset, "fixed", nc_type, ("x",), (length,))
        _add(dataset, "v", nc_type, ("time", "x"), (4, length))

    return fill


_CONTENTS: dict[str, Callable[[netCDF4.Dataset, tuple[str, ...]], None]] = {
    "everything": _everything,
    "scalars": _scalars,
    "unwritten": _unwritten,
    "zero records": _zero_records,
    "nothing": _nothing,
    "dimensions": _dimensions,
    "attributes": _attributes,
    "names": _names,
    "huge header": _huge_header,
    **{f"single {t} {n}": _single(t, n) for t in ALL_TYPES for n in (1, 3)},
}
#: What `make` makes: (content, version) pairs.
CORPUS = [
    (content, version)
    for version in MODELS
    for content in _CONTENTS
    if not content.startswith("single") or content.split()[1] in types_of(version)
]


def make(content: str, version: int, path: Path) -> None:
    """Let netCDF-C write a file of the corpus."""
    with netCDF4.Dataset(path, "w", format=MODELS[version]) as dataset:
        _CONTENTS[content](dataset, types_of(version))
