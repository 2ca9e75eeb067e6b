"""Zarr 3 as a kind of target, with names of dimensions and, if asked for, shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nczarr_fsspec.changes.journal import ROOT
from nczarr_fsspec.errors import on_error
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.contents import Contents, Item, StoredSource
from nczarr_xarray.export.copy import contents_of, refuse
from nczarr_xarray.export.copy_layout import CopyLayout, codecs_for
from nczarr_xarray.export.form.chunk_shapes import cut_to
from nczarr_xarray.export.form.codecs import kept_codecs
from nczarr_xarray.export.form.fills import fill_element, fill_value
from nczarr_xarray.export.form.lacking import (
    COMPRESSORS,
    NO_MARKS,
    TEXT_MARKS,
    UNSPECIFIED,
    Lacking,
)
from nczarr_xarray.export.form.stored import netcdf_text, stored_as
from nczarr_xarray.export.kinds.kind import CopyRequest
from nczarr_xarray.export.steps import planned
from nczarr_xarray.export.write_options import WriteOptions, decide
from nczarr_xarray.export.write_target import check_clashes
from nczarr_xarray.export.write_task import WriteTask
from nczarr_xarray.export.zarr3_writer import Zarr3Writer
from nczarr_xarray.formats.nczarr.dtypes import packed
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.profiles import PURE, Profile
from nczarr_xarray.formats.zarr3 import emit
from nczarr_xarray.formats.zarr3.array import FILE
from nczarr_xarray.model import ChunkedArray, Variable

#: Gives elements that do not exist netCDF's default, because in Zarr 3 these are no mask.
_NETCDF = Profile("G2A")


def copy(request: CopyRequest) -> None:
    """Copy to Zarr 3."""
    with request.open() as source, request.cluster():
        request.run(plan_zarr3(source, request))


def plan_zarr3(opened: Opened, request: CopyRequest) -> WriteTask:
    """Plan the copy of an open dataset, which must stay open until the task has ended.

    Raises
    ------
    ExportError
        If something cannot be stored in Zarr 3; it lists all of that.
    """
    resumption = request.resumption(opened)
    options = WriteOptions(mode=request.mode, pure=True, storage_options=request.target_options)
    target, _, _ = decide(request.target, options)
    opened = replace(opened, exact=True)
    lacking = Lacking(netcdf4=False, json=True)
    contents, found = contents_of(
        opened, lacking, lambda v: _item(opened, v, request.layout, lacking)
    )
    found += [*problems(contents.root, PURE), *emit.problems(contents.root)]
    refuse(target.url, found)
    for item in contents.items:
        if item.variable.nc_type == "char":
            lacking.note(UNSPECIFIED, item.variable.path)
    lengths = request.options.shards
    shards = _shards(contents, lengths) if lengths else {}
    documents = emit.documents(contents.root, shards)
    if request.options.consolidated:
        documents[FILE] = emit.consolidate(documents)
    resumption = resumption and planned(resumption, documents, contents.items)
    change, removed, foreign = target.create(replace=request.overwrite, resumption=resumption)
    with on_error(change.abort):
        arrays = [item.variable.path.strip("/") for item in contents.items]
        check_clashes(
            target.url, foreign, arrays, (g.path.strip("/") for g in contents.root.walk())
        )
        flows = []
        for item, path in zip(contents.items, arrays, strict=True):
            document = documents[f"{path}/{FILE}"]
            dtype = item.variable.dtype
            flows.append((item, Zarr3Writer.of_document(path, dtype, document, change.staged)))
        lacking.tell(target.url)
        # the mark that keeps readers of Zarr 2 out is no part of what is written here
        removed = [*removed, ROOT]
        before, memory = opened.refuse_changed, request.memory
        return WriteTask(change, flows, documents, removed, before=before, memory=memory)


def _item(opened: Opened, variable: Variable, layout: CopyLayout, lacking: Lacking) -> Item:
    """Decide how a variable is stored: with its chunks and codecs as far as Zarr 3 has them."""
    variable = _with_readable_mark(netcdf_text(variable), lacking)
    stored = stored_as(opened, variable)
    dtype = packed(stored.dtype).newbyteorder("=")
    codecs, text = stored.codecs, variable.nc_type == "string"
    if text:
        dtype = np.dtype(object)
        codecs = ()
    names = [dimension.name for dimension in variable.dimensions]
    itemsize = 8 if dtype.hasobject else dtype.itemsize
    chunks = layout.chunk_shape(names, variable.shape, itemsize) or stored.chunk_shape
    array = ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=cut_to(variable.shape, chunks),
        dtype=dtype,
        fill=_fill(variable, dtype),
    )
    if layout.codecs is not None:
        codecs = codecs_for(layout.codecs, dtype)
    else:
        codecs = kept_codecs(codecs, array, PURE)
        for config in codecs:
            if codec(config["id"]).compressor and not emit.is_known(config):
                lacking.note(COMPRESSORS, f"{variable.path} ({config['id']})")
        codecs = tuple(filter(emit.is_known, codecs))
    text_codec = ({"id": "vlen-utf8"},) if text else ()
    array = replace(array, codecs=(*text_codec, *codecs) if variable.shape else text_codec)
    source = StoredSource(opened.reader(variable), variable)
    return Item(replace(variable, array=array), source)


def _with_readable_mark(variable: Variable, lacking: Lacking) -> Variable:
    """Return a variable without a ``_FillValue`` with which xarray opens nothing of Zarr 3."""
    attributes = dict(variable.attributes)
    signed = variable.dtype.kind == "u" and "_Unsigned" in attributes  # it fits no signed type
    if not (signed or variable.dtype.kind in "SUObV") or "_FillValue" not in attributes:
        return variable
    mark = attributes.pop("_FillValue")
    if variable.nc_type == "string" and "missing_value" not in attributes:
        attributes["missing_value"] = replace(mark, name="missing_value")
        lacking.note(TEXT_MARKS, variable.path)
    else:
        lacking.note(NO_MARKS, variable.path)
    return replace(variable, attributes=attributes)


def _fill(variable: Variable, dtype: np.dtype) -> object:
    stated = fill_value(variable)
    if dtype.hasobject:
        return stated if isinstance(stated, str) else ""
    if variable.nc_type is None and stated is None:
        return np.zeros((), dtype)[()]
    return fill_element(variable.nc_type, stated, dtype, _NETCDF)


def _shards(contents: Contents, lengths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of the shards of each variable that has a dimension.

    A dimension without a length is in one shard; other lengths are rounded up to whole chunks.
    """
    found = {}
    for item in contents.items:
        array = item.variable.array
        assert isinstance(array, ChunkedArray)
        shape = []
        for dimension, chunk in zip(item.variable.dimensions, array.chunk_shape, strict=True):
            size = max(1, dimension.size)
            length = min(size, lengths.get(dimension.name, size))
            shape.append(-(-length // chunk) * chunk)
        if shape:
            found[item.variable.path] = tuple(shape)
    return found
