"""Read fragments in files that are alike: metadata are compared, byte by byte, and not parsed."""

from __future__ import annotations

import os
import stat

import numpy as np

from nczarr_fsspec.descriptors import OPEN_FLAGS, read_at
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_opener import Opening
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.hdf5.alike import MetadataPattern, read_pattern
from nczarr_xarray.formats.rounds import Parsing
from nczarr_xarray.model import FileChunks, FileStrides, Variable

#: Bytes of data of a file that is read in this way; of more, opening it is a small part.
_MOST_BYTES = 1 << 20
#: How far behind the metadata data may lie to be read together with them.
_TOGETHER = 1 << 18
#: Files whose pattern is learned, at most: in a folder of many kinds there is nothing to be gained.
_MOST_PATTERNS = 8


class AlikeFiles:
    """Reads files that have the pattern of one that was opened before. Safe in threads."""

    def __init__(self) -> None:
        self._pattern: MetadataPattern | None = None
        self._name = ""
        self._learned = 0

    def pattern(self, name: str) -> MetadataPattern | None:
        """Return the pattern that a file may have which has a variable of this name."""
        return self._pattern if name == self._name else None

    def learn(self, name: str, found: Opening) -> None:
        """Learn the pattern of a file that has been opened, if it is local HDF5."""
        file, reading = found.reader.store, self._reading(name, found)
        if reading is not None and isinstance(file, DataFile):
            self._pattern, self._name = file.parse(reading), name
            file.source.close()

    async def learn_remote(self, name: str, found: Opening) -> None:
        """Do as `learn` does, of a remote file, on its loop."""
        file, reading = found.reader.store, self._reading(name, found)
        if reading is not None and isinstance(file, DataFile):
            self._pattern, self._name = await file.parse_remote(reading), name

    def _reading(self, name: str, found: Opening) -> Parsing[MetadataPattern | None] | None:
        """Return what reads the pattern of a file; None if that is not worth while."""
        file, array = found.reader.store, found.variable.array
        if self._learned >= _MOST_PATTERNS or not isinstance(file, DataFile):
            return None
        if not isinstance(array, (FileChunks, FileStrides)):
            return None
        self._learned += 1
        if bytes(file.source.head[:4]) != b"\x89HDF":
            return None
        group, _, short = name.strip("/").rpartition("/")
        return read_pattern(file.url, file.source.size, group, short)

    def open(self, path: str, name: str) -> Opening | None:
        """Open a variable of a file, which stays open; None if the file has another pattern."""
        pattern = self.pattern(name)
        if pattern is None:
            return None
        try:
            source = LocalFileBytes(path)
        except NCZarrError:
            return None
        if pattern.fits(bytes(source.head[: pattern.stop]), source.size):
            return alike(DataFile(source), pattern)
        source.close()
        return None

    def read(self, path: str, name: str) -> tuple[Variable, np.ndarray] | None:
        """Read a variable of a file, all of it; None if the file has another pattern.

        Returns
        -------
        The metadata of the variable, which it has in common with others, and its data.
        """
        pattern = self.pattern(name)
        array = None if pattern is None else pattern.variable.array
        if pattern is None or not isinstance(array, FileStrides) or array.start is None:
            return None
        if array.inline is not None or _nbytes(array) > _MOST_BYTES:
            return None
        begin, end = array.start, array.start + _nbytes(array)
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except (OSError, ValueError):
            return None
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return None
            far = end > _TOGETHER
            start = read_at(descriptor, 0, pattern.stop if far else max(pattern.stop, end))
            if not pattern.fits(start[: pattern.stop], before.st_size):
                return None
            data = read_at(descriptor, begin, end) if far else start[begin:end]
            after = os.fstat(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        now, then = ((s.st_mtime_ns, s.st_size) for s in (after, before))
        if now != then or len(data) != end - begin:
            return None
        values = np.frombuffer(data, array.dtype).reshape(array.shape)
        return pattern.variable, values.astype(array.dtype.newbyteorder("="), copy=False)


def alike(file: DataFile, pattern: MetadataPattern) -> Opening:
    """Open the variable of a file that has a pattern."""
    variable = pattern.variable_in(file.url, file.source.size)
    return Opening(VariableReader(file, variable), variable, alike=True)


def _nbytes(array: FileStrides) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape, dtype=np.int64))
