"""The chunks of a netCDF-4 file that netCDF4 has declared, written through h5py.

netCDF-C puts the index of chunks among the data. h5py tells HDF5 how large a block to take for
metadata, so that the indexes are together behind the other metadata, and the data follow.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_xarray.codecs.registry import as_zarr
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.export.chunk_writer import ArrayWriter, ChunkWriter
from nczarr_xarray.export.netcdf_file import refused
from nczarr_xarray.formats.hdf5.netcdf import NON_COORDINATE
from nczarr_xarray.model import Array, ChunkedArray, Group, Variable, grid_of

#: A variable, and what writes its values.
Written: TypeAlias = tuple[Variable, ArrayWriter]
#: Children of a node of an index, at least, apart from the nodes at its ends.
_FEWEST = 32


def need_h5py(url: str) -> None:
    """Raise `ImportError` if h5py is not installed."""
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise ImportError(
            f"{url}: a netCDF-4 file needs h5py: pip install 'nczarr-xarray[netcdf4]'"
        ) from None


@contextmanager
def chunk_writers(path: str, url: str, root: Group) -> Iterator[dict[str, Written]]:
    """Open a file without values; yield what writes chunks of its variables, by path.

    Other variables have none: texts, data in one piece, those with codecs that only HDF5 has, or
    with szip, which makes some chunks no smaller: HDF5 stores these without it.

    Parameters
    ----------
    path, url
        The file, and how messages name it.
    root
        What it was declared with.
    """
    arrays = []
    with open_hierarchy(path) as opened:
        declared = {v.path: v.array for v in opened.hierarchy.root.all_variables()}
    for variable in sorted(root.all_variables(), key=_nbytes):  # coordinates first
        made = declared[variable.path]
        if made is None or not made.is_chunked or made.conversion is not None:
            continue
        array = _array(variable, made)
        if all(config["id"] != "szip" for config in array.codecs):
            arrays.append((variable, array))
    with _file(path, url, _index_bytes(array for _, array in arrays)) as file:
        _lengthen(file, root)
        writers: dict[str, Written] = {}
        for variable, array in arrays:
            with suppress(FormatError):  # of a codec that only HDF5 has
                store = MappingWriter(_Chunks(_dataset(file, variable)), url)
                # without a fill value, what a missing chunk reads as is not known
                writer = ChunkWriter(array, store, skip_fill=array.fill is not None)
                writers[variable.path] = variable, writer
        yield writers


def _nbytes(variable: Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.itemsize


def _array(variable: Variable, made: Array) -> ChunkedArray:
    """Return the grid of chunks that a variable has in the file, once it has its length."""
    return ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=made.chunk_shape,
        dtype=made.dtype,
        fill=made.fill,
        codecs=tuple(map(as_zarr, made.codecs)),
    )


def _index_bytes(arrays: Iterable[ChunkedArray]) -> int:
    """Return the bytes that the indexes of all chunks take at most: B-trees of version 1."""
    total = 1 << 11
    for array in arrays:
        level, nodes = math.prod(grid_of(array.shape, array.chunk_shape)), 0
        while nodes == 0 or level > 1:
            level = 1 if level <= 2 * _FEWEST else -(-level // _FEWEST) + 1
            nodes += level
        total += nodes * (1576 + 520 * len(array.shape))
    return total


@contextmanager
def _file(path: str, url: str, block: int) -> Iterator[Any]:
    """Open the file; `block` is how many bytes of metadata are taken at a time."""
    import h5py

    try:
        _reserve(path, block)
        with h5py.File(os.fsencode(path), "r+", meta_block_size=block) as file:
            yield file
    except StoreError as error:  # of a chunk: the library's own is its cause
        if not isinstance(error.__cause__, (OSError, RuntimeError)):
            raise
        raise refused(path, url, error.__cause__) from error
    except (OSError, RuntimeError) as error:
        raise refused(path, url, error) from error


def _reserve(path: str, block: int) -> None:
    """Give a file room for more bytes: HDF5 crashes later if it cannot write its metadata."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END) + block)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # others: the filesystem cannot do it
            raise


def _lengthen(file: Any, root: Group) -> None:
    """Give datasets along unlimited dimensions their lengths."""
    for group in root.walk():
        for dimension in group.dimensions.values():
            scale = file[dimension.path]
            if dimension.unlimited and scale.ndim == 1 and scale.shape != (dimension.size,):
                scale.resize((dimension.size,))
        for variable in group.variables.values():
            dataset = _dataset(file, variable)
            if dataset.shape != variable.shape:
                dataset.resize(variable.shape)


def _dataset(file: Any, variable: Variable) -> Any:
    group = file[variable.group]
    other = f"{NON_COORDINATE}{variable.name}"
    return group[other if other in group else variable.name]


class _Chunks(dict[str, Any]):
    """The chunks of a dataset of h5py, by their keys: what is put is written as it is."""

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self._dataset = dataset

    def __setitem__(self, key: str, data: bytes) -> None:
        numbers = map(int, key.rpartition("/")[2].split("."))
        offset = tuple(n * c for n, c in zip(numbers, self._dataset.chunks, strict=True))
        self._dataset.id.write_direct_chunk(offset, data)
