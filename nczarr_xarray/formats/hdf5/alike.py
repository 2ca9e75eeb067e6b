"""HDF5 files with the same metadata: see `nczarr_xarray.formats.alike`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.alike import FARTHEST, MetadataBytes, MetadataPattern, movable
from nczarr_xarray.formats.hdf5.chunkindex_base import HDF5ChunkIndex
from nczarr_xarray.formats.hdf5.netcdf import read_hierarchy
from nczarr_xarray.formats.hdf5.superblock import SIGNATURE
from nczarr_xarray.formats.rounds import read, together
from nczarr_xarray.model import FileChunks, Hierarchy, Variable

#: A superblock of version 2 or 3 at the beginning of the file: behind what comes first are where
#: the file ends and a checksum, which differ from file to file.
_BEFORE_END, _END, _ROOT = slice(0, 28), slice(28, 36), slice(36, 44)
_EXTENSION = slice(20, 28)


@dataclass(frozen=True, slots=True)
class HierarchyPattern(MetadataBytes):
    """All metadata of a file, and the bytes that they were read from.

    Parameters
    ----------
    hierarchy
        The metadata. Those of its variables that are `movable` can be `moved` to other files.
    """

    hierarchy: Hierarchy


async def read_pattern(url: str, size: int, group: str, name: str) -> MetadataPattern | None:
    """Read the pattern of one variable of an HDF5 file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size
        URL of the file for messages, and its size in bytes.
    group, name
        Path of the group, and name of the variable in it.
    """
    found = await _read_pattern(url, size, group, name)
    holder = None if found is None else found.hierarchy.root.find(group)
    variable = None if holder is None else holder.variables.get(name)
    if found is None or variable is None or not movable(variable):
        return None
    return MetadataPattern(found.spans, found.stop, _END, variable)


async def read_hierarchy_pattern(url: str, size: int) -> HierarchyPattern | None:
    """Read the pattern of an HDF5 file; None if it has to be parsed for each.

    Parameters
    ----------
    url, size
        As of `read_pattern`.
    """
    return await _read_pattern(url, size)


def moved(variable: Variable, url: str, size: int) -> Variable:
    """Return a variable that is `movable` as another file with the same bytes has it."""
    array = variable.array
    if not isinstance(array, FileChunks):
        return variable
    assert isinstance(array.index, HDF5ChunkIndex)
    return replace(variable, array=replace(array, index=array.index.moved(url, size)))


async def _read_pattern(
    url: str, size: int, group: str = "", only: str | None = None
) -> HierarchyPattern | None:
    notes: list[tuple[int, int]] = []
    try:
        hierarchy = await read_hierarchy(
            url, size, group, tree=only is None, only=only, notes=notes
        )
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
    found = await together(_bytes(at, length) for at, length in merged)
    spans += [(at, data) for (at, _), data in zip(merged, found, strict=True)]
    return HierarchyPattern(tuple(spans), max(stop, _ROOT.stop), _END, hierarchy)


async def _bytes(start: int, length: int) -> bytes:
    return bytes(await read(start, length))


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
