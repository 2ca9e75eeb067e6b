"""Read fragments in files that are alike: metadata are compared, byte by byte, and not parsed."""

from __future__ import annotations

import os
import stat
from contextlib import closing

import numpy as np

from nczarr_fsspec.descriptors import OPEN_FLAGS, read_at
from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_opener import Opening
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.hdf5.alike import Layout, read_layout
from nczarr_xarray.formats.rounds import Parsing
from nczarr_xarray.model import FileChunks, FileStrides, Variable

#: Bytes of data of a file that is read in this way; of more, opening it is a small part.
_MOST_BYTES = 1 << 20
#: How far behind the metadata data may lie to be read together with them.
_TOGETHER = 1 << 18
#: Files whose layout is learned, at most: in a folder of many kinds there is nothing to be gained.
_MOST_LAYOUTS = 8


class AlikeFiles:
    """Reads files that have the layout of one that was opened before. Safe in threads."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._name = ""
        self._learned = 0

    def layout(self, name: str) -> Layout | None:
        """Return the layout that a file may have which has a variable of this name."""
        return self._layout if name == self._name else None

    def learn(self, name: str, found: Opening) -> None:
        """Learn the layout of a file that has been opened, if it is local HDF5."""
        file, reading = found.reader.store, self._reading(name, found)
        if reading is not None and isinstance(file, DataFile):
            self._layout, self._name = file.parse(reading), name
            file.source.close()

    async def learn_remote(self, name: str, found: Opening) -> None:
        """Do as `learn` does, of a remote file, on its loop."""
        file, reading = found.reader.store, self._reading(name, found)
        if reading is not None and isinstance(file, DataFile):
            self._layout, self._name = await file.parse_remote(reading), name

    def _reading(self, name: str, found: Opening) -> Parsing[Layout | None] | None:
        """Return what reads the layout of a file; None if that is not worth while."""
        file, array = found.reader.store, found.variable.array
        if self._learned >= _MOST_LAYOUTS or not isinstance(file, DataFile):
            return None
        if not isinstance(array, (FileChunks, FileStrides)):
            return None
        self._learned += 1
        if bytes(file.source.head[:4]) != b"\x89HDF":
            return None
        group, _, short = name.strip("/").rpartition("/")
        return read_layout(file.url, file.source.size, group, short)

    def open(self, path: str, name: str) -> Opening | None:
        """Open a variable of a file; None if the file has another layout."""
        layout = self.layout(name)
        if layout is None:
            return None
        try:
            source = LocalFileBytes(path)
        except NCZarrError:
            return None
        with closing(source):  # what is read opens it again
            fits = layout.fits(bytes(source.head[: layout.stop]), source.size)
            return alike(DataFile(source), layout) if fits else None

    def read(self, path: str, name: str) -> tuple[Variable, np.ndarray] | None:
        """Read a variable of a file, all of it; None if the file has another layout.

        Returns
        -------
        The metadata of the variable, which it has in common with others, and its data.
        """
        layout = self.layout(name)
        array = None if layout is None else layout.variable.array
        if layout is None or not isinstance(array, FileStrides) or array.start is None:
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
            start = read_at(descriptor, 0, layout.stop if far else max(layout.stop, end))
            if not layout.fits(start[: layout.stop], before.st_size):
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
        return layout.variable, values.astype(array.dtype.newbyteorder("="), copy=False)


def alike(file: DataFile, layout: Layout) -> Opening:
    """Open the variable of a file that has a layout."""
    variable = layout.variable_in(file.url, file.source.size)
    return Opening(VariableReader(file, variable), variable, alike=True)


def _nbytes(array: FileStrides) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape, dtype=np.int64))
