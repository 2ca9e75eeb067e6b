"""Copying datasets that another engine of xarray reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.registry import encoding_keys
from nczarr_xarray.export.contents import Contents
from nczarr_xarray.export.copy_layout import AS_IN_SOURCE, CopyLayout, codecs_for
from nczarr_xarray.export.dataset import Exporter
from nczarr_xarray.export.form.new import Options
from nczarr_xarray.export.new_dataset import plan_contents
from nczarr_xarray.export.write_options import WriteOptions, decide
from nczarr_xarray.export.write_request import aligned_item
from nczarr_xarray.export.write_task import WriteTask
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.model import CodecConfig, Dimension, Group

#: Options of xarray to decode nothing; `open_groups` ignores ``decode_cf=False`` (2026.9).
AS_STORED: Mapping[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"),
    False,
)


@contextmanager
def open_other(
    source: Any, refused: str = "is not read by this package"
) -> Iterator[dict[str, xr.Dataset]]:
    """Open a dataset with another of xarray's engines: every group, values as they are stored.

    One by one, because `open_groups` lets dask take variables of one name for the
    same in all groups (xarray 2026.9).

    Parameters
    ----------
    refused
        Why this package does not read it.

    Raises
    ------
    FormatError
        If no engine reads it.
    """
    chunks: Any = {} if find_spec("dask") else None
    with ExitStack() as opened:
        try:
            try:
                groups = xr.open_groups(source, **AS_STORED)
            except ValueError:  # an engine without groups
                groups = {"/": xr.open_dataset(source, **AS_STORED)}
        except (ValueError, OSError) as error:
            said = str(error).splitlines()[0].partition(". Consider")[0]
            raise FormatError(
                str(source),
                f"{refused}; no other engine of xarray that is installed reads it (netCDF needs "
                f"netCDF4 or h5netcdf): {said}",
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
    options: WriteOptions,
    layout: CopyLayout,
    *,
    fixed: bool,
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
        exporter.add(path, undecoded(dataset, layout), Options({}, unlimited, encoded=True))
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


def undecoded(dataset: xr.Dataset, layout: CopyLayout = AS_IN_SOURCE) -> xr.Dataset:
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
