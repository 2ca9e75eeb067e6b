"""HDF5 files with the same metadata: see `nczarr_xarray.formats.alike`."""

from __future__ import annotations

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST, HierarchyPattern
from nczarr_xarray.formats.hdf5.header import SIGNATURE
from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy
from nczarr_xarray.formats.rounds import all_of, read

#: A superblock of version 2 or 3 at the beginning of the file: behind what comes first are where
#: the file ends and a checksum, which differ from file to file.
_BEFORE_END, _END, _ROOT = slice(0, 28), slice(28, 36), slice(36, 44)
_EXTENSION = slice(20, 28)


async def read_pattern(
    url: str, size: int, group: str, only: str | None, *, tree: bool
) -> HierarchyPattern | None:
    """Read the pattern of an HDF5 file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size, group, only, tree
        As of `nczarr_xarray.formats.hdf5.netcdf.read_hierarchy`.
    """
    notes: list[tuple[int, int]] = []
    try:
        hierarchy = await read_hierarchy(url, size, group, tree=tree, only=only, notes=notes)
        superblock = bytes(await read(0, _ROOT.stop))
    except NCZarrError:
        return None
    plain = (
        superblock[:8] == SIGNATURE and superblock[8] in (2, 3) and superblock[9:11] == b"\x08\x08"
    )
    # what an extension says is read before anything is noted
    extended = superblock[_EXTENSION] != b"\xff" * 8
    if not plain or extended or hierarchy.problems or hierarchy.hidden:
        return None
    stop = max((at + length for at, length in notes), default=0)
    if not 0 < stop <= min(size, FARTHEST):
        return None
    spans = [(part.start, superblock[part]) for part in (_BEFORE_END, _ROOT)]
    merged = _merged(notes)
    found = await all_of(read(at, length) for at, length in merged)
    spans += [(at, bytes(data)) for (at, _), data in zip(merged, found, strict=True)]
    return HierarchyPattern(tuple(spans), max(stop, _ROOT.stop), _END, 0, hierarchy)


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return extents without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(extents):
        if merged and start <= sum(merged[-1]):
            at = merged[-1][0]
            merged[-1] = (at, max(sum(merged[-1]), start + length) - at)
        else:
            merged.append((start, length))
    return merged
