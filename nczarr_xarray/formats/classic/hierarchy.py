"""A classic netCDF file as the netCDF-4 data model: one group, plain elements."""

from __future__ import annotations

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_xarray.formats.classic.header import read_header
from nczarr_xarray.formats.classic.layout import lay_out
from nczarr_xarray.model import Dimension, FileStrides, Group, Hierarchy, Variable, join


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
