"""A classic netCDF file as the netCDF-4 data model: one group, plain elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_xarray.formats.classic.header import Header, VariableEntry, read_header
from nczarr_xarray.model import Dimension, FileStrides, Group, Hierarchy, Variable, join

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
