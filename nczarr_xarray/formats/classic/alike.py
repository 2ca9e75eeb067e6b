"""Classic files with the same header."""

from __future__ import annotations

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST, MetadataPattern, movable
from nczarr_xarray.formats.classic.header import read_header
from nczarr_xarray.formats.classic.hierarchy import read_hierarchy
from nczarr_xarray.formats.rounds import read


async def read_pattern(url: str, size: int, group: str, name: str) -> MetadataPattern | None:
    """Read the pattern of one variable of a classic file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size
        URL of the file for messages, and its size in bytes.
    group, name
        Path of the group, and name of the variable in it.
    """
    try:
        header = await read_header(url, size)
        hierarchy = await read_hierarchy(url, size, group)
    except NCZarrError:
        return None
    variable = hierarchy.root.variables.get(name)
    # without a number of records, they follow from the size of the file
    if variable is None or not movable(variable) or hierarchy.problems or header.records is None:
        return None
    if header.size > FARTHEST:
        return None
    return MetadataPattern(
        ((0, bytes(await read(0, header.size))),), header.size, end=None, variable=variable
    )
