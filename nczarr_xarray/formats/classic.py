"""A classic netCDF file as the netCDF-4 data model: its header, and plain elements of one group.

The grammar is that of the "NetCDF Classic Format Specification". Everything that netCDF-C 4.10
reads is read. For a header that is cut off, netCDF-C assumes an empty list or zeros; here it is an
error. Sizes of variables (``vsize``) are skipped: they overflow in large files, and follow from the
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_xarray.formats.rounds import read
from nczarr_xarray.model import (
    NC_DTYPES,
    NC_NUMBERS,
    Attribute,
    Dimension,
    FileStrides,
    Group,
    Hierarchy,
    Variable,
    join,
    text_of,
)

# -- header ----------------------------------------------------------------------------------------


#: Types by their number in the file. Those from 7 on came with CDF-5, but netCDF-C takes
#: them in the older versions, too.
_TYPES = {
    number: (name, NC_DTYPES[name].newbyteorder(">"))
    for number, name in NC_NUMBERS.items()
    if name != "string"
}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
#: Bytes of a header, at most: 100,000 variables with many attributes take less.
_LARGEST = 1 << 26
#: Bytes beyond those read within which the header may end; see `read_header`.
_AHEAD = 16


@dataclass(frozen=True, slots=True)
class VariableEntry:
    """The entry of a variable in the header; `dimensions` are positions in `Header.dimensions`."""

    name: str
    dimensions: tuple[int, ...]
    nc_type: str
    dtype: np.dtype
    attributes: dict[str, Attribute]
    begin: int


@dataclass(frozen=True, slots=True)
class Header:
    """A whole header.

    Parameters
    ----------
    version
        1, 2 or 5.
    records
        Length of the record dimension; None if it follows from the size of the file.
    dimensions
        Names and lengths; the length of the record dimension is 0.
    size
        Size of the header, in bytes.
    problems
        Messages about what was ignored.
    """

    version: int
    records: int | None
    dimensions: tuple[tuple[str, int], ...]
    attributes: dict[str, Attribute]
    variables: tuple[VariableEntry, ...]
    size: int
    problems: tuple[FormatError, ...]


class _IncompleteError(Exception):
    """More of the file is needed.

    Parameters
    ----------
    needed
        Bytes from the beginning that are needed in any case.
    likely
        Where the header probably ends: data begin there. None if not known.
    """

    def __init__(self, needed: int, likely: int | None) -> None:
        super().__init__(needed, likely)
        self.needed = needed
        self.likely = likely


async def read_header(url: str, size: int) -> Header:
    """Read the header of a file of `size` bytes, from the first bytes on in growing pieces.

    The first piece usually has all of it. If not, its first variables tell where
    the data begin, which is where the header ends. As long as no variable has
    been read, each piece is twice as long as the one before.

    Raises
    ------
    FormatError
        If this is no header, or it is cut off.
    """
    data = b""
    stop = min(size, HEAD_BYTES)
    while True:
        data += await read(len(data), stop - len(data))
        if data[:3] != b"CDF" or data[3:4] not in (b"\1", b"\2", b"\5"):
            raise FormatError(url, f"is no classic netCDF file: it begins with {data[:4]!r}")
        try:
            return _Parser(data, url, size).header()
        except _IncompleteError as more:
            if more.needed > _LARGEST:
                raise FormatError(
                    url, f"has a header of more than {_LARGEST >> 20} MiB, which is not credible"
                ) from None
            stop = 2 * len(data)
            if more.likely is not None and len(data) < more.likely <= _AHEAD * len(data):
                stop = more.likely
            stop = min(size, max(stop, more.needed + HEAD_BYTES))


@dataclass(slots=True)
class _Parser:
    """Walks over the fields of a header.

    Parameters
    ----------
    data
        The first bytes of the file, of one of the formats. Methods raise `_IncompleteError` where
        the header is longer.
    size
        Bytes of the file.
    """

    data: bytes
    url: str
    size: int
    position: int = 4
    likely: int | None = None
    problems: list[FormatError] = field(default_factory=list)
    #: bytes of counts and lengths
    wide: int = 4

    def __post_init__(self) -> None:
        if self.version == 5:
            self.wide = 8

    @property
    def version(self) -> int:
        return self.data[3]

    def error(self, reason: str) -> FormatError:
        return FormatError(self.url, f"header, before byte {self.position}: {reason}")

    def truncated(self, stop: int) -> FormatError:
        return FormatError(
            self.url,
            f"its header reaches to byte {stop} at least, but it ends at byte {self.size}: "
            "truncated?",
        )

    # -- fields ----------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start = self.position
        self.skip(count)
        return self.data[start : start + count]

    def skip(self, count: int) -> None:
        """Skip `count` bytes, which must be there."""
        stop = self.position + count
        if stop > len(self.data):
            if stop > self.size:
                raise self.truncated(stop)
            raise _IncompleteError(stop, self.likely)
        self.position = stop

    def uint(self, count: int) -> int:
        """Read an unsigned number of `count` bytes."""
        start = self.position
        stop = self.position = start + count
        if stop > len(self.data):
            self.position = start
            self.skip(count)  # raises the error that says what is missing
        return int.from_bytes(self.data[start:stop], "big")

    def count(self) -> int:
        """Read a number of things, or a length."""
        number = self.uint(self.wide)
        if number >> 63:
            raise self.error(f"{number - (1 << 64)} is no length")
        return number

    def counted(self, itemsize: int = 1) -> bytes:
        """Read a number of elements of `itemsize` bytes each, and then the elements.

        The padding to a multiple of four bytes is skipped, whatever is in it.
        """
        size = self.count() * itemsize
        start = self.position
        self.skip(size + -size % 4)
        return self.data[start : start + size]

    def name(self) -> str:
        """Read a name: UTF-8 up to a NUL if there is one, as in netCDF-C."""
        data = self.counted()
        if b"\0" in data:
            data = data.partition(b"\0")[0]
        if not data:
            raise self.error("a name is empty")
        return text_of(data)

    def nc_type(self, kind: str, name: str, owner: str) -> tuple[str, np.dtype]:
        """Read the type of the object called `name`."""
        number = self.uint(4)
        if number not in _TYPES:
            whose = f"{kind} {name!r}{owner}"
            raise self.error(f"{whose} has type {number}, which is none of netCDF's")
        return _TYPES[number]

    def length(self, tag: int, least: int) -> int:
        """Read the length of the list that begins here; each element has `least` bytes or more."""
        found, count = self.uint(4), self.count()
        if found != tag and (found or count):
            raise self.error(f"a list has tag {found}, not {tag}")
        if count * least > self.size - self.position:
            raise self.truncated(self.position + count * least)
        return count

    # -- the grammar -----------------------------------------------------------

    def header(self) -> Header:
        records: int | None = self.uint(self.wide)
        if records == (1 << 8 * self.wide) - 1:
            records = None  # "streaming": the writer did not know
        elif records is not None and records >> 63:
            raise self.error(f"{records - (1 << 64)} is no number of records")
        return Header(
            version=self.version,
            records=records,
            dimensions=self.dimensions(),
            attributes=self.attributes("the file"),
            variables=self.variables(),
            size=self.position,
            problems=tuple(self.problems),
        )

    def dimensions(self) -> tuple[tuple[str, int], ...]:
        lengths: dict[str, int] = {}
        record = None
        for _ in range(self.length(_DIMENSIONS, 2 * self.wide + 4)):
            name, length = self.name(), self.count()
            if name in lengths:
                raise self.error(f"two dimensions are called {name!r}")
            if not length:
                if record is not None:
                    raise self.error(
                        f"dimensions {record!r} and {name!r} both have length 0, "
                        "which says that they are the record dimension"
                    )
                record = name
            lengths[name] = length
        return tuple(lengths.items())

    def attributes(self, owner: str) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        for _ in range(self.length(_ATTRIBUTES, 2 * self.wide + 8)):
            name = self.name()
            nc_type, dtype = self.nc_type("attribute", name, f" of {owner}")
            data = self.counted(dtype.itemsize)
            if name in found:  # netCDF-C finds the first
                reason = f"{owner} has a second attribute {name!r}, which is ignored"
                self.problems.append(self.error(reason))
            elif nc_type == "char":
                found[name] = Attribute(name, nc_type, text_of(data))
            else:
                value = np.frombuffer(data, dtype).astype(NC_DTYPES[nc_type])
                found[name] = Attribute(name, nc_type, value)
        return found

    def variables(self) -> tuple[VariableEntry, ...]:
        offset = 4 if self.version == 1 else 8
        found: dict[str, VariableEntry] = {}
        for _ in range(self.length(_VARIABLES, 4 * self.wide + 12 + offset)):
            name = self.name()
            if name in found:
                raise self.error(f"two variables are called {name!r}")
            ids = self.take(self.count() * self.wide)
            dimensions = np.frombuffer(ids, f">u{self.wide}").tolist()
            attributes = self.attributes(f"variable {name!r}")
            nc_type, dtype = self.nc_type("variable", name, "")
            self.skip(self.wide)  # vsize
            begin = self.uint(offset)
            self.likely = begin if self.likely is None else min(begin, self.likely)
            found[name] = VariableEntry(name, tuple(dimensions), nc_type, dtype, attributes, begin)
        return tuple(found.values())


# -- layout --------------------------------------------------------------------------------------
# The layout of the data in a classic netCDF file.
#
# A variable without the record dimension is contiguous in the file. Variables
# with it are interleaved: each record of the file has one record of each
# variable, padded to four bytes. If there is only one such variable, its records
# are not padded.


#: The number of dimensions that numpy allows.
_MOST_DIMENSIONS = 64


class Placement(NamedTuple):
    """The extent and strides of the elements of a variable.

    Parameters
    ----------
    shape
        With the number of records.
    strides
        In bytes.
    stop
        Where the last element ends.
    error
        The reason why the data cannot be where the header says; None if they can.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stop: int
    error: FormatError | None


class _Extent(NamedTuple):
    start: int
    stop: int
    variables: tuple[str, ...]


class _Block(NamedTuple):
    """A variable, or one record of it: contiguous bytes.

    Parameters
    ----------
    size
        In bytes, without padding.
    """

    variable: VariableEntry
    shape: tuple[int, ...]
    repeats: bool
    size: int

    def extent(self, shift: int = 0) -> _Extent:
        start = self.variable.begin + shift
        return _Extent(start, start + self.size, (self.variable.name,))


def lay_out(header: Header, url: str, size: int) -> tuple[int, list[Placement]]:
    """Find the data of all variables in a file of `size` bytes.

    Returns
    -------
    The number of records, and where each variable of the header is.

    Raises
    ------
    FormatError
        If a variable has dimensions that the format does not allow.
    """
    blocks = [_block(variable, header, url) for variable in header.variables]
    turns = [block for block in blocks if block.repeats]
    period = turns[0].size if len(turns) == 1 else sum(-(-turn.size // 4) * 4 for turn in turns)
    first = min((turn.variable.begin for turn in turns), default=0)
    records = header.records
    if records is None:
        records = max(0, size - first) // period if turns else 0

    extents = [_Extent(0, header.size, ())]
    extents += [block.extent() for block in blocks if not block.repeats]
    if turns:
        names = tuple(turn.variable.name for turn in turns)
        extents.append(_Extent(first, first + records * period, names))
    mixed = _overlapping(extents)
    if records:
        mixed |= _overlapping(turn.extent(shift) for turn in turns for shift in (0, period))
    return records, [_placement(block, records, period, mixed) for block in blocks]


def _block(variable: VariableEntry, header: Header, url: str) -> _Block:
    """Return the block that the header states for a variable, checked."""
    where = f"{url}: variable {variable.name!r}"
    if len(variable.dimensions) > _MOST_DIMENSIONS:
        raise FormatError(
            where, f"has {len(variable.dimensions)} dimensions; numpy allows {_MOST_DIMENSIONS}"
        )
    unknown = [number for number in variable.dimensions if number >= len(header.dimensions)]
    if unknown:
        raise FormatError(
            where, f"has dimension number {unknown[0]}, the file has {len(header.dimensions)}"
        )
    shape = tuple([header.dimensions[number][1] for number in variable.dimensions])
    if 0 in shape[1:]:
        raise FormatError(where, "has the record dimension in another place than the first")
    repeats = shape[:1] == (0,)
    if repeats:
        shape = shape[1:]
    return _Block(variable, shape, repeats, math.prod(shape) * variable.dtype.itemsize)


def _placement(block: _Block, records: int, period: int, mixed: set[str]) -> Placement:
    variable = block.variable
    shape = block.shape
    strides: tuple[int, ...] = ()
    stride = variable.dtype.itemsize
    for length in reversed(shape):
        strides = (stride, *strides)
        stride *= length
    stop = variable.begin + block.size
    if block.repeats:
        shape, strides = (records, *shape), (period, *strides)
        stop += max(0, records - 1) * period
    error = None
    if variable.name in mixed:
        # netCDF-C refuses the whole file
        error = FormatError(f"/{variable.name}", "shares bytes with the header or another variable")
    elif stop >> 63:
        error = FormatError(f"/{variable.name}", f"reaches to byte {stop}, which no file has")
    return Placement(shape, strides, stop, error)


def _overlapping(extents: Iterable[_Extent]) -> set[str]:
    """Return the variables whose extents overlap others."""
    found: set[str] = set()
    last = _Extent(0, 0, ())
    for extent in sorted(extent for extent in extents if extent.stop > extent.start):
        if extent.start < last.stop:
            found.update(extent.variables, last.variables)
        if extent.stop > last.stop:
            last = extent
    return found


# -- hierarchy -----------------------------------------------------------------------------------


async def read_hierarchy(url: str, size: int, group: str = "") -> Hierarchy:
    """Read the header of a classic file; a driver of `nczarr_xarray.formats.rounds` runs it.

    Parameters
    ----------
    url
        The file, for messages.
    size
        Size of the file, in bytes.
    group
        Path of the group wanted, without outer slashes; there is none but the root.

    Returns
    -------
    Hierarchy
        Its `generation` is ``"CDF-1"``, ``"CDF-2"`` or ``"CDF-5"``; variables have
        `FileStrides`. If the file is too short for a variable, that is a problem
        but no error of the variable: the part that exists can be read.

    Raises
    ------
    DatasetNotFoundError
        If another group than the root is wanted.
    FormatError
        If the header cannot be understood or is cut off.
    """
    header = await read_header(url, size)
    if group:
        raise DatasetNotFoundError(url, f"no group '/{group}': classic files have none")
    records, placements = lay_out(header, url, size)
    dimensions = [
        Dimension(name, length or records, unlimited=not length)
        for name, length in header.dimensions
    ]
    root = Group(
        dimensions={dimension.name: dimension for dimension in dimensions},
        attributes=header.attributes,
    )
    cut: list[str] = []
    for entry, placement in zip(header.variables, placements, strict=True):
        path = join("/", entry.name)
        if placement.error is None and placement.stop > size and 0 not in placement.shape:
            cut.append(path)
        root.variables[entry.name] = Variable(
            name=entry.name,
            group="/",
            dimensions=tuple(dimensions[number] for number in entry.dimensions),
            nc_type=entry.nc_type,
            dtype=entry.dtype,
            attributes=entry.attributes,
            array=None
            if placement.error
            else FileStrides(path, placement.shape, entry.dtype, entry.begin, placement.strides),
            error=placement.error,
        )
    problems: list[NCZarrError] = list(header.problems)
    if cut:
        names = ", ".join(cut[:3]) + (f" and {len(cut) - 3} more" if len(cut) > 3 else "")
        problems.append(
            FormatError(url, f"ends at byte {size}, before the data of {names} do: truncated?")
        )
    return Hierarchy(root, f"CDF-{header.version}", problems=tuple(problems))
