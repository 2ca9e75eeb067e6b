"""Classic files with the same header."""

from __future__ import annotations

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST, HierarchyPattern
from nczarr_xarray.formats.classic.hierarchy import read_header, read_hierarchy
from nczarr_xarray.formats.rounds import read


async def read_pattern(url: str, size: int, group: str) -> HierarchyPattern | None:
    """Read the pattern of a classic file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size, group
        As of `nczarr_xarray.formats.classic.hierarchy.read_hierarchy`.
    """
    try:
        header = await read_header(url, size)
        hierarchy = await read_hierarchy(url, size, group)
    except NCZarrError:
        return None
    # without a number of records, they follow from the size of the file
    if hierarchy.problems or header.records is None or header.size > FARTHEST:
        return None
    data = bytes(await read(0, header.size))
    # shorter files may be cut off: they are parsed, which says so
    return HierarchyPattern(((0, data),), header.size, end=None, least=size, hierarchy=hierarchy)
