"""What our own code does not read is read by libhdf5, through h5py, from the same bytes."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_fsspec.ranges.source import ByteSource, Extent, LocalBytes, RemoteBytes
from nczarr_xarray.model import CodecConfig

_log = logging.getLogger("nczarr_xarray.hdf5")
#: What a remote file is read in; libhdf5 asks for a few bytes at a time.
_BLOCK = 1 << 18
_BLOCKS = 64

Index: TypeAlias = "int | slice | np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class H5pyArray:
    """A dataset for libhdf5.

    Parameters
    ----------
    path
        Of the dataset in its file.
    shape
        As of any array.
    dtype
        Of the values. Objects are text; of variable-length sequences it is that
        of their elements, and the values are arrays.
    chunk_shape, chunked, codecs
        Of the storage; `chunk_shape` is the shape if it is not in chunks.
    reason
        Why it is not read by our own code.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    chunked: bool
    codecs: tuple[CodecConfig, ...]
    reason: str


class H5pyReader:
    """Reads selections of one dataset through h5py. Picklable; threads wait for each other.

    Parameters
    ----------
    source
        The file.
    array
        One of its datasets.

    Raises
    ------
    FormatError
        If h5py is not installed.
    """

    def __init__(self, source: ByteSource, array: H5pyArray) -> None:
        self._source = source
        self._array = array
        try:
            import h5py  # noqa: F401
        except ImportError:
            raise FormatError(
                array.path,
                f"{array.reason}, which takes h5py to read: pip install 'nczarr-xarray[szip]'",
            ) from None
        _log.debug("%s: %s is read by h5py, for it %s", source.url, array.path, array.reason)

    def read(self, key: Sequence[Index], *, points: bool = False) -> np.ndarray[Any, Any]:
        """Read a selection: its bounding box is read, and the selection taken from it.

        Parameters
        ----------
        key
            One index per dimension: an integer, a slice or an array of integers.
        points
            Whether arrays select single points together, which then run along
            the first dimensions of the result (numpy's ``vindex``).

        Raises
        ------
        FormatError, StoreError
            If libhdf5 cannot read it.
        """
        shape = self._array.shape
        box, within = zip(*map(_bounds, key, shape), strict=True) if shape else ((), ())
        count = 1
        for part in box:
            count *= part.stop - part.start
        if count:
            values = self._values(self._read_box(box))
        else:
            values = np.empty([part.stop - part.start for part in box], dtype=self._array.dtype)
        if points:
            return _take_points(values, within)
        for axis in reversed(range(len(within))):
            values = values[(*[slice(None)] * axis, within[axis])]
        return values

    def _read_box(self, box: Sequence[slice]) -> Any:
        path = self._array.path
        source = self._source
        try:
            with _opened(source) as file:
                dataset = file[path]
                self._refuse_other_files(dataset)
                if not (self._array.dtype.hasobject or dataset.dtype.hasobject):
                    # by HDF5's own rules; h5py might take an enum for a bool, a pair for a complex
                    dataset = dataset.astype(self._array.dtype)
                values = dataset[tuple(box)]
            if isinstance(source, LocalFileBytes):
                source.read(0, 1)  # which sees to it that this is still the file that was opened
            return values
        except NCZarrError:
            raise
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            cause = error.__cause__ or error.__context__
            if isinstance(cause, NCZarrError):
                raise cause from None
            raise FormatError(path, f"libhdf5 cannot read it: {error}") from error

    def _refuse_other_files(self, dataset: Any) -> None:
        """Data of other files are read for local files only.

        A file from elsewhere must not make us read files of this machine, and
        for files that it does not find libhdf5 makes up fill values.
        """
        path = self._array.path
        folder = None
        if isinstance(self._source, LocalFileBytes):
            folder = Path(self._source.path).parent
        others = [name.decode(errors="replace") if isinstance(name, bytes) else name
                  for name, _, _ in dataset.external or ()]  # fmt: skip
        if dataset.is_virtual:
            others += [source.file_name for source in dataset.virtual_sources()]
        for name in set(others) - {"."}:
            if folder is None:
                raise FormatError(path, f"has its data in the file {name!r}, beside this one")
            if not (folder / name).exists():
                raise StoreError(path, f"has its data in the file {name!r}, which is not there")

    def _values(self, values: Any) -> np.ndarray[Any, Any]:
        """What h5py read, as the variable's dtype says."""
        array = np.asarray(values)
        if self._array.dtype.kind != "O":
            return array
        texts = np.empty(array.size, dtype=object)
        texts[:] = [_text(value, self._array.path) for value in array.ravel().tolist()]
        return texts.reshape(array.shape)


def _text(value: Any, path: str) -> str:
    try:
        return str(value) if isinstance(value, str) else bytes(value).partition(b"\0")[0].decode()
    except UnicodeDecodeError:
        raise FormatError(path, f"{value[:60]!r} is not UTF-8") from None


def _bounds(index: Index, size: int) -> tuple[slice, Index]:
    """The least slice that holds what an index selects, and the index counted from there."""
    if isinstance(index, slice):
        steps = range(*index.indices(size))
        if not steps:
            return slice(0, 0), slice(0, 0)
        first, last = min(steps[0], steps[-1]), max(steps[0], steps[-1])
        stop = steps[-1] - first + (1 if steps.step > 0 else -1)
        return slice(first, last + 1), slice(
            steps[0] - first, None if stop < 0 else stop, steps.step
        )
    positions = np.asarray(index)
    if not positions.size:
        return slice(0, 0), positions.astype(np.intp)
    if positions.min() < -size or positions.max() >= size:
        raise IndexError(f"index out of bounds for a dimension of length {size}")
    positions = np.where(positions < 0, positions + size, positions)
    first = int(positions.min())
    within = positions - first
    return slice(first, int(positions.max()) + 1), within if within.ndim else int(within)


def _take_points(values: np.ndarray[Any, Any], within: Sequence[Index]) -> np.ndarray[Any, Any]:
    pointwise = [axis for axis, index in enumerate(within) if not isinstance(index, slice)]
    sliced = [axis for axis in range(len(within)) if axis not in pointwise]
    moved = values.transpose([*pointwise, *sliced])
    return moved[tuple(within[axis] for axis in (*pointwise, *sliced))]


@contextmanager
def _opened(source: ByteSource) -> Iterator[Any]:
    """The file, in h5py, while nobody else uses libhdf5."""
    import h5py

    # netCDF4 and h5py may share one HDF5 library, which is not thread-safe; xarray's reads of
    # netCDF files hold this lock
    locks = sys.modules.get("xarray.backends.locks")
    lock = getattr(locks, "HDF5_LOCK", None) or nullcontext()
    # data in other files are found from the path of this one
    target = source.path if isinstance(source, LocalFileBytes) else SourceFile(source)
    with lock, h5py.File(target, "r") as file:
        yield file


class SourceFile(io.RawIOBase):
    """A binary file over a byte source, which remembers some blocks of it."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0
        self._blocks: dict[int, bytes | memoryview] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._position, self._source.size)[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        stop = min(start + len(view), self._source.size)
        at = start
        while at < stop:
            number = at // _BLOCK
            block = self._block(number)
            part = block[at - number * _BLOCK : stop - number * _BLOCK]
            view[at - start : at - start + len(part)] = part
            at += len(part)
        self._position = max(start, stop)
        return max(0, stop - start)

    def _block(self, number: int) -> bytes | memoryview:
        block = self._blocks.pop(number, None)
        if block is None:
            start = number * _BLOCK
            stop = min(start + _BLOCK, self._source.size)
            if isinstance(self._source, LocalBytes):
                block = self._source.read(start, stop)
            else:
                assert isinstance(self._source, RemoteBytes)
                (block,) = self._source.run(self._source.fetch([Extent(start, stop)]))
            while len(self._blocks) >= _BLOCKS:
                self._blocks.pop(next(iter(self._blocks)))
        self._blocks[number] = block  # the last used goes to the end
        return block
