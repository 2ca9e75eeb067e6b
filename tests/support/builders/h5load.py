"""Datasets of HDF5 files through our own parser, index and decoder; what h5py says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from nczarr_xarray.chunks.decoder import Decoder
from nczarr_xarray.chunks.plan import ChunkTask
from nczarr_xarray.chunks.scatter import Scatter
from nczarr_xarray.formats.hdf5.binary import Frame
from nczarr_xarray.formats.hdf5.datasets import ChunkedLayout, H5Dataset, codecs_of
from nczarr_xarray.formats.hdf5.header import read_superblock
from nczarr_xarray.formats.hdf5.netcdf_storage import chunk_index
from nczarr_xarray.formats.hdf5.tree import read_tree
from nczarr_xarray.model import ChunkTable, FileChunks
from tests.support.builders.h5drive import drive


class Loaded(NamedTuple):
    """A file's bytes, and one of its datasets as our parser has it."""

    data: bytes
    frame: Frame
    dataset: H5Dataset

    @property
    def index(self) -> Any:
        """A chunk index that remembers nothing yet."""
        return chunk_index(self.frame, self.dataset, self.dataset.name)

    @property
    def layout(self) -> ChunkedLayout:
        assert isinstance(self.dataset.layout, ChunkedLayout)
        return self.dataset.layout

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.dataset.space.shape is not None
        return self.dataset.space.shape

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // c) for n, c in zip(self.shape, self.layout.chunk_shape, strict=True))

    def locate(self, ids: Any = None) -> ChunkTable:
        """Where chunks are; all of them, unless some are named."""
        wanted = np.arange(int(np.prod(self.grid))) if ids is None else np.asarray(ids)
        return drive(self.index.locate(wanted), self.data).result

    @property
    def array(self) -> FileChunks:
        dataset, layout = self.dataset, self.layout
        dtype = dataset.type.numpy
        assert dtype is not None
        return FileChunks(
            path=dataset.name,
            shape=self.shape,
            chunk_shape=layout.chunk_shape,
            dtype=dtype,
            index=self.index,
            fill=None if dataset.fill is None else np.frombuffer(dataset.fill, dtype)[0],
            codecs=codecs_of(dataset.filters, dtype, layout.chunk_shape),
        )

    def read(self) -> np.ndarray[Any, Any]:
        """All values, chunk by chunk."""
        array, table = self.array, self.locate()
        fill = np.zeros((), array.dtype) if array.fill is None else array.fill
        result = np.full(array.shape, fill, array.dtype.newbyteorder("="))
        for number, position in enumerate(np.ndindex(self.grid)):
            start, size = int(table.start[number]), int(table.size[number])
            corners = [(p * c, n) for p, c, n in zip(position, array.chunk_shape, array.shape,
                                                      strict=True)]  # fmt: skip
            target = tuple(
                slice(low, min(low + c, n))
                for (low, n), c in zip(corners, array.chunk_shape, strict=True)
            )
            source = tuple(slice(0, part.stop - part.start) for part in target)
            if start >= 0:
                decoder = Decoder(array, int(table.mask[number]))
                task = ChunkTask(position, source, target)
                stored = self.data[start : start + size]
                (chunk,) = decoder.decode([stored], str)
                Scatter(decoder).one(chunk, task, None, result)
        return result


def load(path: Path | str, name: str = "v") -> Loaded:
    data = Path(path).read_bytes()
    frame, root = drive(read_superblock(str(path), len(data)), data).result
    dataset = drive(read_tree(frame, root), data).result.members[name]
    assert isinstance(dataset, H5Dataset), dataset
    assert not dataset.problems, dataset.problems
    return Loaded(data, frame, dataset)


def stored_chunks(path: Path | str, name: str = "v") -> list[tuple[int, bytes] | None]:
    """Filter mask and stored bytes of every chunk, as h5py reads them; None for what is missing.

    (`chunk_iter` and `get_chunk_info_by_coord` of HDF5 2.0 name wrong positions where an
    extensible array is not unlimited in its first dimension.)
    """
    found: list[tuple[int, bytes] | None] = []
    with h5py.File(path) as file:
        dataset = file[name]
        written = dataset.id.get_storage_size() > 0
        counts = [-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
        for position in np.ndindex(*counts):
            corner = tuple(p * c for p, c in zip(position, dataset.chunks, strict=True))
            if not written:  # h5py gives no reason for a single chunk
                found.append(None)
                continue
            try:
                mask, stored = dataset.id.read_direct_chunk(corner)
            except (OSError, RuntimeError, ValueError) as error:
                assert "not allocated" in str(error), error
                found.append(None)
            else:
                found.append((mask, bytes(stored)))
    return found
