"""Files with the same metadata, byte by byte, as one program writes them in a row.

What a parser returns depends on the bytes that it reads. So a file that has the same bytes where
another one was read has the same variable, at the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

from nczarr_xarray.model import FileChunks, FileStrides, Variable

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
    """

    spans: tuple[tuple[int, bytes], ...]
    stop: int
    end: slice | None

    def fits(self, start: bytes, size: int) -> bool:
        """Tell whether a file has these bytes, and is not cut off.

        Parameters
        ----------
        start
            The first `stop` bytes of the file.
        size
            Of the file, in bytes.
        """
        if len(start) != self.stop:
            return False
        if self.end is not None and int.from_bytes(start[self.end], "little") > size:
            return False
        return all(start[at : at + len(data)] == data for at, data in self.spans)


@dataclass(frozen=True, slots=True)
class MetadataPattern(MetadataBytes):
    """The metadata of one variable, and the bytes that they were read from.

    Parameters
    ----------
    variable
        The variable, which is `movable`.
    """

    variable: Variable


def movable(variable: Variable) -> bool:
    """Tell whether the metadata of a variable are those of other files with the same bytes."""
    array = variable.array
    if variable.error is not None or not isinstance(array, (FileChunks, FileStrides)):
        return False
    return array.conversion is None and array.shape == variable.shape
