"""Copying datasets: exactly, by the data model, where this package reads the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import ExportError, FormatError
from nczarr_xarray.codecs.registry import encoding_keys
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.export.codecs import kept_codecs
from nczarr_xarray.export.copy_layout import AS_IN_SOURCE, CopyLayout, codecs_for
from nczarr_xarray.export.dataset import Contents, Exporter, Item, Options
from nczarr_xarray.export.lacking import Lacking
from nczarr_xarray.export.new import plan_contents
from nczarr_xarray.export.storage import fill_element, note_text, text_dtype
from nczarr_xarray.export.stored import netcdf_text, packed, stored_as
from nczarr_xarray.export.stored_source import StoredSource
from nczarr_xarray.export.write_options import AS_IT_IS, WriteOptions, decide
from nczarr_xarray.export.write_request import aligned_item
from nczarr_xarray.export.write_task import WriteTask
from nczarr_xarray.formats.nczarr.dtypes import MAX_ITEM
from nczarr_xarray.formats.nczarr.emit import Profile
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.model import ChunkedArray, CodecConfig, Dimension, Group, Variable

if TYPE_CHECKING:
    import xarray as xr

#: Options of xarray to decode nothing; `open_groups` ignores ``decode_cf=False`` (2026.9).
AS_STORED: Mapping[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"),
    False,
)


def plan_copy(
    opened: Opened,
    target: Any,
    options: WriteOptions = AS_IT_IS,
    layout: CopyLayout = AS_IN_SOURCE,
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
    layout
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
    lacking = Lacking(netcdf4=False)
    contents, found = contents_of(opened, lacking, lambda v: _item(opened, v, profile, layout))
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
            item = item_of(variable)
            item = item._replace(variable=lacking.variable(item.variable))
            copied.variables[variable.name] = item.variable
            contents.items.append(item)
    return contents, found


def refuse(url: str, problems: list[str]) -> None:
    """Raise `ExportError` if there are problems."""
    if problems:
        raise ExportError(url, "cannot hold this dataset; nothing was written", problems)


@contextmanager
def open_other(source: Any) -> Iterator[dict[str, xr.Dataset]]:
    """Open a dataset with another of xarray's engines: every group, values as they are stored.

    One by one, because `open_groups` lets dask take variables of one name for the
    same in all groups (xarray 2026.9).

    Raises
    ------
    FormatError
        If no engine reads it.
    """
    import xarray as xr

    chunks: Any = {} if find_spec("dask") else None
    with ExitStack() as opened:
        try:
            try:
                groups = xr.open_groups(source, **AS_STORED)
            except ValueError:  # an engine without groups
                groups = {"/": xr.open_dataset(source, **AS_STORED)}
        except (ValueError, OSError) as error:
            raise FormatError(
                str(source),
                "is read by no engine of xarray that is installed (netCDF needs netCDF4 or "
                f"h5netcdf): {str(error).splitlines()[0]}",
            ) from error
        for dataset in groups.values():
            opened.callback(dataset.close)
        for path in groups:
            group: dict[str, Any] = {} if path == "/" else {"group": path}
            dataset = xr.open_dataset(source, chunks=chunks, **AS_STORED, **group)
            groups[path] = opened.enter_context(dataset)
        yield groups


def plan_import(
    source: Any,
    groups: Mapping[str, xr.Dataset],
    target: Any,
    options: WriteOptions = AS_IT_IS,
    layout: CopyLayout = AS_IN_SOURCE,
    *,
    fixed: bool = False,
) -> WriteTask:
    """Plan the copy of a dataset of `open_other` (parameters as `plan_copy`).

    `fixed` makes unlimited dimensions fixed ones.

    Other engines lose some metadata: a single text becomes char or string by
    its characters, and dimensions that no variable uses are kept only if
    netCDF4 reads `source`.
    """
    write_target, profile, options = decide(target, options)
    root, order = _declared(source, fixed=fixed)
    exporter = Exporter(profile, root, align=True)
    for path, dataset in groups.items():
        known = [name for name in order.get(path, ()) if name in dataset.variables]
        rest = [name for name in dataset.variables if name not in set(known)]
        dataset = dataset[[*known, *rest]]  # xarray has moved the index variables
        unlimited = () if fixed else None
        exporter.add(path, as_stored(dataset, layout), Options({}, unlimited, encoded=True))
    contents = exporter.contents
    contents.items[:] = [aligned_item(i, (0,) * i.source.ndim) for i in contents.items]
    exporter.problems += problems(contents.root, profile)
    exporter.check(write_target.url)
    return plan_contents(contents, write_target, profile, options)


def _declared(source: Any, *, fixed: bool) -> tuple[Group, dict[str, list[str]]]:
    """Return groups with the dimensions that they declare, and the names of variables in order.

    xarray has only dimensions that are used, without their groups. The result
    is empty if netCDF4 cannot read the file.
    """
    contents = Contents()
    order: dict[str, list[str]] = {}
    try:
        import netCDF4

        file = netCDF4.Dataset(source)
    except (ImportError, OSError):
        return contents.root, order
    with file:
        pending = [file]
        while pending:
            group = pending.pop()
            pending.extend(reversed(group.groups.values()))
            declared = contents.group(group.path).dimensions
            for name, dimension in group.dimensions.items():
                grows = dimension.isunlimited() and not fixed
                declared[name] = Dimension(name, len(dimension), grows, group.path)
            order[group.path] = [*group.variables]
    return contents.root, order


def as_stored(dataset: xr.Dataset, layout: CopyLayout = AS_IN_SOURCE) -> xr.Dataset:
    """Return a dataset that was opened `AS_STORED` with what decoding removed, in a new layout."""
    dataset = dataset.copy()
    for name, variable in dataset.variables.items():
        encoding = variable.encoding
        if variable.dtype.kind == "b":  # xarray decodes these whatever its options are
            stored = variable.astype("i1")
            stored.attrs["dtype"] = "bool"
            stored.encoding = encoding
            dataset[name] = stored
        elif getattr(encoding.get("dtype"), "byteorder", "=") == ">":
            encoding["endian"] = "big"
        names = map(str, variable.dims)
        chunks = layout.chunk_shape(names, variable.shape, variable.dtype.itemsize)
        if chunks is not None:
            encoding.pop("contiguous", None)
            encoding["chunksizes"] = chunks
        if layout.codecs is not None:
            _set_codecs(encoding, layout.codecs, variable.dtype)
    return dataset


def _set_codecs(encoding: dict[str, Any], codecs: tuple[CodecConfig, ...], dtype: np.dtype) -> None:
    for key in encoding_keys():
        encoding.pop(key, None)
    encoding["filters"] = codecs_for(codecs, np.dtype("S8") if dtype.kind == "O" else dtype)
    encoding["compressor"] = None


def _item(opened: Opened, variable: Variable, profile: Profile, layout: CopyLayout) -> Item:
    if profile.spelling is not None:
        variable = netcdf_text(variable)
    stored = stored_as(opened, variable)
    source = StoredSource(opened.reader(variable), variable, stored.chunk_shape)
    dtype, codecs, chunks = packed(stored.dtype), stored.codecs, stored.chunk_shape
    array = variable.array
    fill = array.fill if array is not None else None
    if variable.nc_type == "string" and dtype.kind in "OU":
        # the source does not state the length of its texts: they have to be read
        dtype = text_dtype(source.longest_text(), _room(variable), profile)
        codecs = ()
        fill = fill.encode() if isinstance(fill, str) else None
    elif variable.nc_type == "string" and opened.hierarchy.generation != "v2":
        dtype = text_dtype(dtype.itemsize, 0, profile)
    if isinstance(opened.store, DataFile) and profile.generation in ("G2L", "G2U"):
        dtype = dtype.newbyteorder("<")  # these releases ignore the stated byte order
    pure = profile.generation == "v2" and opened.hierarchy.generation.startswith("G")
    if pure or isinstance(opened.store, DataFile):
        # netCDF's default fill value is not always one of Zarr, see `fill_element`
        fill = fill_element(variable.nc_type, fill_value(variable), dtype, profile)
    if layout.codecs is not None:
        codecs = codecs_for(layout.codecs, dtype)
    names = [d.name for d in variable.dimensions]
    chunks = layout.chunk_shape(names, variable.shape, dtype.itemsize) or chunks
    if profile.generation != "G2A":
        # all older releases, and some readers of Zarr, refuse chunks longer than the variable
        chunks = tuple(min(c, max(1, n)) for c, n in zip(chunks, variable.shape, strict=True))
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
    if profile.portable or not (proven or layout.codecs):
        new = replace(new, codecs=kept_codecs(new.codecs, new, profile))
    return Item(replace(variable, array=new), source)


def _room(variable: Variable) -> int:
    """Return the number of bytes that ``_nczarr_maxstrlen`` leaves for text."""
    attribute = variable.attributes.get("_nczarr_maxstrlen")
    value = None if attribute is None else attribute.value
    known = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size == 1
    return min(int(value[0]), MAX_ITEM) if known else 0  # type: ignore[index]


def fill_value(variable: Variable) -> Any:
    """Return ``_FillValue``; None if the variable has none."""
    attribute = variable.attributes.get("_FillValue")
    if attribute is None or isinstance(attribute.value, str):
        return attribute and attribute.value
    return attribute.value[0] if len(attribute.value) else None
