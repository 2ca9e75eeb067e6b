"""Copies to trees of Zarr 2: NCZarr, and pure Zarr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import ExportError, UsageError
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.export.contents import Contents, Item, StoredSource
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.form.chunk_shapes import cut_to
from nczarr_xarray.export.form.lacking import Lacking
from nczarr_xarray.export.form.storage import (
    kept_codecs,
    netcdf_text,
    note_text,
    stored_as,
    text_dtype,
)
from nczarr_xarray.export.options import AS_IN_SOURCE, AS_IT_IS, CopyOptions, WriteOptions
from nczarr_xarray.export.write_target import decide
from nczarr_xarray.export.write_task import WriteTask, plan_contents
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.formats.nczarr.values import fill_element, stated_fill
from nczarr_xarray.formats.nczarr.zarray import MAX_ITEM, packed
from nczarr_xarray.formats.registry import NCZARR
from nczarr_xarray.model import ChunkedArray, CodecConfig, Variable, bytes_of


def plan_copy(
    opened: Opened,
    target: Any,
    options: WriteOptions = AS_IT_IS,
    copying: CopyOptions = AS_IN_SOURCE,
    resumption: Resumption | None = None,
    memory: int | None = None,
) -> WriteTask:
    """Plan the copy of an open dataset: every dimension, attribute and value stays as it is.

    What NCZarr cannot hold gets the nearest form, with a warning (see `Lacking`).

    Parameters
    ----------
    opened
        The source; it must stay open until the write task has ended.
    target, options
        As for `to_nczarr`; the mode is ``"w-"`` or ``"w"``.
    copying
        The differences between the copy and the source.
    resumption
        The copy, if it can be continued.
    memory
        Bytes that the program may take, if they are limited.

    Raises
    ------
    ExportError
        If something cannot be stored at the target; it lists all of that.

    Warns
    -----
    LossWarning, NCZarrWarning
        For what the copy lacks, and for what it holds in another form.
    """
    write_target, profile, options = decide(target, options)
    opened = replace(opened, exact=True)
    lacking = Lacking(netcdf4=False, json=profile.spelling is None)
    contents, found = contents_of(opened, lacking, lambda v: _item(opened, v, profile, copying))
    for item in contents.items:
        note_text(item.variable, profile)  # (of `lacking`, so not the source's)
    found += problems(contents.root, profile)
    refuse(write_target.url, found)
    before = opened.refuse_changed
    task = plan_contents(contents, write_target, profile, options, resumption, memory, before)
    with task.or_nothing():
        lacking.tell(write_target.url)
    return task


def contents_of(
    opened: Opened, lacking: Lacking, item_of: Callable[[Variable], Item]
) -> tuple[Contents, list[str]]:
    """Return what a copy of an open dataset holds, and what cannot be read.

    Parameters
    ----------
    opened
        The source.
    lacking
        Collects what the copy has in another form.
    item_of
        Decides how a variable is stored in the copy.
    """
    lacking.note_hidden(opened.hierarchy)
    contents = Contents()
    found: list[str] = []
    for group in opened.hierarchy.root.walk():
        copied = contents.group(group.path)
        copied.dimensions.update(group.dimensions)
        copied.attributes.update(lacking.attributes(group.path, group.attributes))
        for variable in group.variables.values():
            if variable.error is not None:
                found.append(f"{variable.path}: cannot be read ({variable.error})")
                continue
            item = item_of(lacking.variable(variable))
            copied.variables[variable.name] = item.variable
            contents.items.append(item)
    return contents, found


def refuse(url: str, problems: list[str]) -> None:
    """Raise `ExportError` if there are problems."""
    if problems:
        raise ExportError(url, "cannot hold this dataset; nothing was written", problems)


def _item(opened: Opened, variable: Variable, profile: Profile, copying: CopyOptions) -> Item:
    if profile.spelling is not None:
        variable = netcdf_text(variable)
    stored = stored_as(opened, variable)
    source = StoredSource(opened.reader(variable), variable)
    dtype, codecs, chunks = packed(stored.dtype), _shuffled_first(stored.codecs), stored.chunk_shape
    array = variable.array
    fill = array.fill if array is not None else None
    if variable.nc_type == "string" and dtype.kind in "OU":
        # the source does not state the length of its texts: they have to be read
        dtype = text_dtype(source.longest_text(stored.chunk_shape), _room(variable))
        codecs = ()
        fill = fill.encode() if isinstance(fill, str) and profile.spelling is not None else None
    elif variable.nc_type == "string" and variable.dtype.kind != "S":  # bytes of Zarr stay
        dtype = text_dtype(dtype.itemsize)
    if isinstance(opened.store, DataFile) and profile.generation in ("G2L", "G2U"):
        dtype = dtype.newbyteorder("<")  # these releases ignore the stated byte order
    pure = profile.generation == "v2" and opened.hierarchy.generation in NCZARR
    if pure or isinstance(opened.store, DataFile):
        # netCDF's default fill value is not always one of Zarr, see `fill_element`
        fill = fill_element(variable.nc_type, stated_fill(variable), dtype, profile)
    asked = copying.codecs(dtype)
    codecs = codecs if asked is None else asked
    chunks = copying.chunk_shape(variable, dtype.itemsize) or chunks
    if profile.generation != "G2A":
        # all older releases, and some readers of Zarr, refuse chunks longer than the variable
        chunks = cut_to(variable.shape, chunks)
    new = ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=chunks,
        dtype=dtype,
        fill=fill,
        codecs=codecs if variable.shape else (),
    )
    # NCZarr's codecs have encoded the same chunks before; with others, szip may fail
    same = (opened.hierarchy.generation, stored.chunk_shape) == (profile.generation, chunks)
    same &= array is not None and not array.reads_itself
    proven = dtype.hasobject or (same and profile.spelling is not None)
    if profile.portable or not (proven or (asked and profile.spelling)):
        new = replace(new, codecs=kept_codecs(new.codecs, new, profile))
    return Item(replace(variable, array=new), source)


def _shuffled_first(codecs: tuple[CodecConfig, ...]) -> tuple[CodecConfig, ...]:
    """Return codecs with a checksum behind the shuffle where it would add half an element.

    HDF5 shuffles the whole elements only, and leaves what remains; numcodecs, and with it
    zarr-python, refuses such chunks. netCDF4 has the checksum first.
    """
    names = [config["id"] for config in codecs]
    if "fletcher32" not in names or "shuffle" not in names:
        return codecs
    checksum, shuffle = names.index("fletcher32"), names.index("shuffle")
    if checksum > shuffle or codecs[shuffle].get("elementsize", 4) in (1, 2, 4):
        return codecs
    moved = list(codecs)
    moved.insert(shuffle, moved.pop(checksum))
    return tuple(moved)


def _room(variable: Variable) -> int:
    """Return the number of bytes for text: of ``_nczarr_maxstrlen``, and of the fill value."""
    attribute = variable.attributes.get("_nczarr_maxstrlen")
    value = None if attribute is None else attribute.value
    stated = 0
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size == 1:
        stated = min(int(value[0]), MAX_ITEM)
    fill = stated_fill(variable)
    return max(stated, len(bytes_of(fill))) if isinstance(fill, str) else stated


def copy(request: CopyRequest) -> None:
    """Copy to NCZarr, or to pure Zarr."""
    given = request.options
    if given.portable and any(c["id"] not in ("shuffle", "zlib") for c in given.compress or ()):
        reason = "not every reader of Zarr 2 has it (--portable): use zlib"
        raise UsageError("--compress", reason)
    options = WriteOptions(
        mode=request.mode,
        portable=given.portable,
        pure=given.portable or request.format == "Zarr2",
        consolidated=given.consolidated,
        storage_options=request.target_options,
        compat=given.compat or AS_IT_IS.compat,
    )
    with request.open() as source, request.cluster():
        resumption = request.resumption(source)
        task = plan_copy(source, request.target, options, given, resumption, request.memory)
        request.run(task)
