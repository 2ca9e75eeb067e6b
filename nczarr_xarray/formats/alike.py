"""Files with the same metadata, byte by byte, as one program writes them in a row.

What a parser returns depends on the bytes that it reads. So a file that has the same bytes where
another one was read has the same variable, at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self, cast, runtime_checkable

import numpy as np

from nczarr_xarray.model import ChunkTable, FileChunks, FileStrides, Hierarchy, Variable

#: Metadata that lie farther back are not compared.
FARTHEST = 1 << 16


@dataclass(frozen=True, slots=True)
class MetadataBytes:
    """The bytes of a file that metadata were read from.

    Parameters
    ----------
    spans
        Positions and bytes.
    stop
        Where the last of these end.
    end
        Which bytes are the end of the file, where it says that itself.
    least
        Bytes that a file has at least.
    """

    spans: tuple[tuple[int, bytes], ...]
    stop: int
    end: slice | None
    least: int

    def fits(self, start: bytes, size: int) -> bool:
        """Tell whether a file has these bytes, and is not cut off.

        Parameters
        ----------
        start
            The first bytes of the file, `stop` or more.
        size
            Of the file, in bytes.
        """
        if len(start) < self.stop or size < self.least:
            return False
        if self.end is not None and int.from_bytes(start[self.end], "little") > size:
            return False
        for at, data in self.spans:  # noqa: SIM110 - a generator takes as long as the comparison
            if not start.startswith(data, at):
                return False
        return True


@dataclass(frozen=True, slots=True)
class MetadataPattern(MetadataBytes):
    """The metadata of one variable, and the bytes that they were read from.

    Parameters
    ----------
    variable
        The variable, which is `movable`.
    """

    variable: Variable


@dataclass(frozen=True, slots=True)
class HierarchyPattern(MetadataBytes):
    """Metadata of a file, and the bytes that they were read from.

    Parameters
    ----------
    hierarchy
        The metadata. Those of its variables that are `movable` can be `moved` to other files.
    """

    hierarchy: Hierarchy

    def of_variable(self, group: str, name: str) -> MetadataPattern | None:
        """Return the pattern of one variable; None if it is not `movable`."""
        holder = self.hierarchy.root.find(group)
        variable = None if holder is None else holder.variables.get(name)
        if variable is None or not movable(variable):
            return None
        return MetadataPattern(self.spans, self.stop, self.end, self.least, variable)


@runtime_checkable
class MovableIndex(Protocol):
    """A `nczarr_xarray.model.ChunkIndex` that other files with the same metadata have, too."""

    async def locate(self, ids: np.ndarray) -> ChunkTable:
        """Find chunks: see `nczarr_xarray.model.Array.locate`."""

    def moved(self, url: str, end: int) -> Self:
        """Return the index of a file with the same metadata, and another end."""


def movable(variable: Variable) -> bool:
    """Tell whether the metadata of a variable are those of other files with the same bytes."""
    array = variable.array
    if variable.error is not None or not isinstance(array, (FileChunks, FileStrides)):
        return False
    if isinstance(array, FileChunks) and not isinstance(array.index, MovableIndex):
        return False
    return array.conversion is None and array.shape == variable.shape


def moved(variable: Variable, url: str, size: int) -> Variable:
    """Return a variable that is `movable` as another file with the same bytes has it."""
    array = variable.array
    if not isinstance(array, FileChunks):
        return variable
    index = cast("MovableIndex", array.index)  # to look takes longer than the move
    return replace(variable, array=replace(array, index=index.moved(url, size)))
