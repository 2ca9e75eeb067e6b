"""What a user asks for when something is written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.dataset.destinations import find_destination
from nczarr_xarray.export.contents import Item, StoredSource
from nczarr_xarray.export.form.chunk_shapes import aligned, shared_chunk
from nczarr_xarray.export.write_target import WriteTarget
from nczarr_xarray.formats.nczarr.profiles import COMPAT, Profile
from nczarr_xarray.model import ChunkedArray

if TYPE_CHECKING:
    import xarray as xr

    from nczarr_xarray.export.form.new import Options


#: Regions that a user may give: slices, or "auto" for some dimension or for all.
RegionLike = Mapping[Any, slice | Literal["auto"]] | Literal["auto"]

Mode: TypeAlias = Literal["w-", "w", "a", "r+"]

_SWITCHES = (
    "compute", "create", "consolidated", "safe_chunks", "align_chunks", "write_empty_chunks",
    "portable",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write, apart from what and where; the parameters are those of `to_nczarr`.

    `pure` says whether pure Zarr is written, or NCZarr; None leaves it to the mode words.
    """

    mode: str | None = None
    compute: bool = True
    append_dim: Hashable | None = None
    create: bool = False
    region: RegionLike | None = None
    consolidated: bool = False
    safe_chunks: bool = True
    align_chunks: bool = False
    write_empty_chunks: bool | None = None
    compat: str = "4.9.3"
    portable: bool = False
    pure: bool | None = None
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for option in _SWITCHES:
            value = getattr(self, option)
            # xarray's own default of `consolidated` is None
            if not (value is None or isinstance(value, (bool, np.bool_))):
                raise ExportError(option, f"must be True or False, not {value!r:.80}")
        given = self.storage_options
        if not (given is None or isinstance(given, Mapping)):  # not shown, as it may be a secret
            raise ExportError("storage_options", f"must be a dict, not {type(given).__name__}")


#: What writes a new dataset as it is.
AS_IT_IS = WriteOptions()


def mode_of(
    url: str,
    mode: str | None,
    new: tuple[Mode, ...],
    append_dim: Hashable | None,
    region: RegionLike | None,
) -> Mode:
    """Return the mode that is asked for, or the first that has a meaning here.

    Parameters
    ----------
    new
        Those that have one without `append_dim` and `region`.

    Raises
    ------
    ExportError
        If it has no meaning, or the options contradict each other.
    """
    if append_dim is not None and region is not None:
        raise ExportError(url, "append_dim and region exclude each other: give one of them")
    allowed, given = new, ""
    if append_dim is not None:
        allowed, given = ("a",), "with append_dim "
    elif region is not None:
        allowed, given = ("r+", "a"), "with region "
    found = next((one for one in allowed if mode in (None, one)), None)
    if found is None:
        right = f"one of {', '.join(allowed)}" if allowed[1:] else f"{allowed[0]!r}, or left out"
        raise ExportError(url, f"mode is {mode!r}; {given}it is {right}")
    return found


def decide(target: Any, options: WriteOptions) -> tuple[WriteTarget, Profile, WriteOptions]:
    """Decide where to write, and as what; by the mode words of a URL and the options.

    Raises
    ------
    ExportError
        If options contradict each other, or the target.
    """
    destination = find_destination(target, options.storage_options)
    words, url = destination.mode, destination.url
    if options.portable and "nczarr" in words and "zarr" not in words:
        raise ExportError(url, "portable=True writes pure Zarr, not NCZarr: write #mode=zarr")
    if options.pure and "nczarr" in words and "zarr" not in words:
        raise ExportError(url, "its mode is that of NCZarr, not of Zarr: write #mode=zarr")
    if options.pure is False and "zarr" in words:
        raise ExportError(url, "its mode is that of Zarr, not of NCZarr: write #mode=nczarr")
    if options.portable or options.pure:
        words |= {"zarr"}
    if options.compat not in COMPAT:
        raise ExportError(url, f"compat is {options.compat!r}; it is one of {', '.join(COMPAT)}")
    generation = "v2" if "zarr" in words else COMPAT[options.compat]
    profile = Profile(generation, "noxarray" not in words, options.portable)
    options = replace(
        options,
        consolidated=options.consolidated or "consolidated" in words,
        safe_chunks=options.safe_chunks and not options.align_chunks,
    )
    return WriteTarget(replace(destination, mode=words)), profile, options


# -- write request -------------------------------------------------------------------------------
# A call of `to_nczarr`, in parts.


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
