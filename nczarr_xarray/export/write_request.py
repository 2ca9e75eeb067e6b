"""A call of `to_nczarr`, in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.export.contents import Item
from nczarr_xarray.export.form.chunk_shapes import aligned, shared_chunk
from nczarr_xarray.export.stored_source import StoredSource
from nczarr_xarray.export.write_options import WriteOptions
from nczarr_xarray.export.write_target import WriteTarget
from nczarr_xarray.formats.nczarr.profiles import Profile
from nczarr_xarray.model import ChunkedArray

if TYPE_CHECKING:
    import xarray as xr

    from nczarr_xarray.export.form.new import Options


@dataclass(slots=True)
class WriteRequest:
    """One call of `to_nczarr`, in parts.

    Attributes
    ----------
    groups
        Absolute path -> dataset.
    path
        The group that is written.
    asked
        Returns what is asked for the dataset at a path.
    """

    target: WriteTarget
    profile: Profile
    groups: Mapping[str, xr.Dataset]
    path: str
    asked: Callable[[str], Options]
    options: WriteOptions

    @property
    def url(self) -> str:
        """How messages name the target."""
        return self.target.url

    def one_group(self) -> tuple[str, xr.Dataset]:
        """Return the path of the group and its dataset; raise if there are several."""
        if len(self.groups) != 1:
            raise ExportError(
                self.url, "a DataTree of several groups is changed group by group (group=...)"
            )
        return next(iter(self.groups.items()))


def array_of(item: Item) -> ChunkedArray:
    """Return the chunk grid to which an item is written."""
    assert isinstance(item.variable.array, ChunkedArray)
    return item.variable.array


def shares_chunks(item: Item, start: tuple[int, ...]) -> bool:
    """Tell whether two of dask's blocks share a chunk, if the data begin at `start`."""
    blocks = item.source.chunks
    return (
        blocks is not None and shared_chunk(blocks, array_of(item).chunk_shape, start) is not None
    )


def chunk_conflicts(item: Item, options: WriteOptions, start: tuple[int, ...]) -> list[str]:
    """Say why dask's blocks cannot be written in parallel, unless the caller allows it."""
    if item.source.chunks is None or not options.safe_chunks:
        return []
    found = shared_chunk(item.source.chunks, array_of(item).chunk_shape, start)
    if found is None:
        return []
    dimension = item.variable.dimensions[found.axis].name
    where = (
        f"dask's blocks {found.block} and {found.block + 1} along {dimension!r} meet at "
        f"{found.position}, inside a chunk (chunks have length {found.chunk})"
    )
    advice = "use align_chunks=True, rechunk the data, or choose other chunks"
    return [f"{item.variable.path}: {where}; they cannot be written in parallel: {advice}"]


def aligned_item(item: Item, start: tuple[int, ...]) -> Item:
    """Return the item with the borders of dask's blocks moved to borders of chunks."""
    if item.source.chunks is None:
        return item
    assert not isinstance(item.source, StoredSource)
    blocks = aligned(item.source.chunks, array_of(item).chunk_shape, start)
    return item._replace(source=item.source.chunk(dict(zip(item.source.dims, blocks, strict=True))))
