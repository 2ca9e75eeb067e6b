"""Copying datasets: exactly, in our own data model, where we read the source ourselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.export.api import make_profile, plan_groups
from nczarr_xarray.export.dataset import Contents, Item
from nczarr_xarray.export.grid import default_chunk_shape
from nczarr_xarray.export.job import Job
from nczarr_xarray.export.new import plan_contents
from nczarr_xarray.export.place import Place
from nczarr_xarray.export.source import StoredSource
from nczarr_xarray.formats.nczarr.emit import Profile
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.model import ChunkedArray, CodecConfig, Variable
from nczarr_xarray.reader import Opened
from nczarr_xarray.targets import find_destination


@dataclass(frozen=True, slots=True)
class Layout:
    """How variables of the copy are stored; None leaves a thing as it is.

    Parameters
    ----------
    chunks
        Chunk lengths by name of a dimension.
    codecs
        In the order of encoding; ``elementsize`` of shuffle is filled in.
    """

    chunks: Mapping[str, int] | None = None
    codecs: tuple[CodecConfig, ...] | None = None


def plan_copy(
    opened: Opened,
    target: Any,
    *,
    mode: str = "w-",
    compat: str = "4.9.3",
    layout: Layout = Layout(),
    consolidated: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Job:
    """What copies an open dataset: every dimension, attribute and value exactly as it is.

    Parameters
    ----------
    opened
        The source; it must stay open until the job is done.
    target, mode, compat, consolidated, storage_options
        As for `to_nczarr`; mode is ``"w-"`` or ``"w"``.
    layout
        What is to be different.

    Raises
    ------
    ExportError
        If something cannot be stored at the target; it lists all of that.
    """
    destination = find_destination(target, storage_options)
    place = Place(destination)
    profile = make_profile(compat, destination.mode, place.url)
    contents = Contents()
    found: list[str] = []
    for group in opened.hierarchy.root.walk():
        copied = contents.group(group.path)
        copied.dimensions.update(group.dimensions)
        copied.attributes.update(group.attributes)
        for variable in group.variables.values():
            if variable.error is not None:
                found.append(f"{variable.path}: cannot be read ({variable.error})")
                continue
            item = _item(opened, variable, profile, layout)
            copied.variables[variable.name] = item.variable
            contents.items.append(item)
    found += problems(contents.root, profile)
    if found:
        lines = "".join(f"\n  {line}" for line in found)
        raise ExportError(place.url, f"cannot hold this dataset; nothing was written:{lines}")
    wanted = consolidated or "consolidated" in destination.mode
    return plan_contents(contents, place, profile, replace_old=mode == "w", consolidated=wanted)


def plan_import(
    source: Any,
    target: Any,
    *,
    mode: str = "w-",
    compat: str = "4.9.3",
    layout: Layout = Layout(),
    consolidated: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Job:
    """What copies a dataset that another of xarray's engines reads (parameters as `plan_copy`).

    The engine tells what it tells: dimensions that no variable uses are not
    among it, and a single text is char or string by its characters.
    """
    import xarray as xr

    chunks: Any = {} if _has_dask() else None
    groups = xr.open_groups(source, decode_cf=False, concat_characters=False, chunks=chunks)
    for dataset in groups.values():
        for variable in dataset.variables.values():
            if "_FillValue" not in variable.attrs:
                variable.encoding["_FillValue"] = None
            if layout.chunks is not None:
                variable.encoding.pop("contiguous", None)
                variable.encoding["chunksizes"] = _chunk_shape(
                    map(str, variable.dims), variable.shape, layout.chunks
                )
            if layout.codecs is not None:
                _set_codecs(variable.encoding, layout.codecs, variable.dtype)
    return plan_groups(
        groups,
        target,
        mode=mode,
        compat=compat,
        consolidated=consolidated,
        storage_options=storage_options,
        align_chunks=True,
    )


def _has_dask() -> bool:
    from importlib.util import find_spec

    return find_spec("dask") is not None


def _set_codecs(
    encoding: dict[str, Any], codecs: tuple[CodecConfig, ...], dtype: np.dtype[Any]
) -> None:
    for key in ("zlib", "szip", "zstd", "bzip2", "blosc", "shuffle", "fletcher32", "compression"):
        encoding.pop(key, None)
    encoding["filters"] = _fitted(codecs, np.dtype("S8") if dtype.kind == "O" else dtype)
    encoding["compressor"] = None


def _item(opened: Opened, variable: Variable, profile: Profile, layout: Layout) -> Item:
    source = StoredSource(opened.reader(variable), variable)
    array = variable.array
    dtype = variable.dtype
    codecs: tuple[CodecConfig, ...] = ()
    fill: Any = None
    if isinstance(array, ChunkedArray):
        dtype, codecs, fill = array.dtype, array.codecs, array.fill
    if variable.nc_type == "string" and dtype.kind in "OU":
        # of any length in the source: only the texts themselves tell how long they are
        dtype = np.dtype(f"S{max(1, source.longest_text())}")
        codecs = ()
        fill = fill.encode() if isinstance(fill, str) else None
    if layout.codecs is not None:
        codecs = _fitted(layout.codecs, dtype)
    chunks = () if array is None else array.chunk_shape
    names = [d.name for d in variable.dimensions]
    if layout.chunks is not None:
        chunks = _chunk_shape(names, variable.shape, layout.chunks)
    if len(chunks) != len(names):
        unlimited = [d.unlimited for d in variable.dimensions]
        chunks = default_chunk_shape(variable.shape, unlimited, dtype.itemsize)
    if profile.generation in ("G2L", "G2U"):
        # these releases refuse chunks that are longer than the variable
        chunks = tuple(min(c, max(1, n)) for c, n in zip(chunks, variable.shape, strict=True))
    new = ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=fill,
        codecs=codecs if variable.shape else (),
    )
    return Item(replace(variable, array=new), source)


def _chunk_shape(
    names: Iterable[str], shape: tuple[int, ...], wanted: Mapping[str, int]
) -> tuple[int, ...]:
    """Lengths by name; dimensions that are not named are whole."""
    return tuple(
        max(1, min(size, wanted.get(name, size))) for name, size in zip(names, shape, strict=True)
    )


def _fitted(codecs: tuple[CodecConfig, ...], dtype: np.dtype[Any]) -> tuple[CodecConfig, ...]:
    size = 8 if dtype.kind == "S" and dtype.itemsize > 1 else dtype.itemsize
    return tuple(
        {**config, "elementsize": size} if config["id"] == "shuffle" else config
        for config in codecs
    )
