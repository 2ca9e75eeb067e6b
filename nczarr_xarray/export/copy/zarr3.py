"""Copies to Zarr 3, with names of dimensions and, if asked for, shards; zarr-python encodes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nczarr_fsspec.changes.edit import Change
from nczarr_fsspec.changes.journal import ROOT
from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.keystore import WritableStore
from nczarr_xarray.codecs.registry import codec
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.export.chunk_writer import ArrayWriter, Done, Gate
from nczarr_xarray.export.contents import Contents, Item, StoredSource
from nczarr_xarray.export.copy.request import CopyRequest
from nczarr_xarray.export.copy.zarr2 import contents_of, refuse
from nczarr_xarray.export.form.chunk_shapes import cut_to
from nczarr_xarray.export.form.lacking import (
    COMPRESSORS,
    NO_MARKS,
    TEXT_MARKS,
    UNSPECIFIED,
    Lacking,
)
from nczarr_xarray.export.form.storage import kept_codecs, netcdf_text, stored_as
from nczarr_xarray.export.options import CopyOptions, WriteOptions
from nczarr_xarray.export.write_target import decide
from nczarr_xarray.export.write_task import Flow, WriteTask, plan_contents
from nczarr_xarray.formats.nczarr.jsontext import loads
from nczarr_xarray.formats.nczarr.limits import problems
from nczarr_xarray.formats.nczarr.spellings import PURE, Profile
from nczarr_xarray.formats.nczarr.values import fill_element, stated_fill
from nczarr_xarray.formats.nczarr.zarray import packed
from nczarr_xarray.formats.zarr3 import emit
from nczarr_xarray.formats.zarr3.array import FILE, ZarrArray, array_in, plain
from nczarr_xarray.model import ChunkedArray, Variable, grid_of, mapped, readable

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
    target, profile, options = decide(request.target, options)
    opened = replace(opened, exact=True)
    lacking = Lacking(netcdf4=False, json=True)
    contents, found = contents_of(
        opened, lacking, lambda v: _item(opened, v, request.options, lacking)
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

    def flows(change: Change) -> list[Flow]:
        found: list[Flow] = []
        for item in contents.items:
            path, dtype = item.array.path, item.variable.dtype
            document = documents[f"{path}/{FILE}"]
            writer = Zarr3Writer.of_document(path, dtype, document, change.staged)
            found.append((item, writer))
        return found

    before = opened.refuse_changed
    task = plan_contents(
        contents,
        target,
        profile,
        options,
        resumption,
        request.memory,
        before,
        stated=documents,
        flows=flows,
    )
    with task.or_nothing():
        lacking.tell(target.url)
    # the mark that keeps readers of Zarr 2 out is no part of what is written here
    task.removed = [*task.removed, ROOT]
    return task


def _item(opened: Opened, variable: Variable, copying: CopyOptions, lacking: Lacking) -> Item:
    """Decide how a variable is stored: with its chunks and codecs as far as Zarr 3 has them."""
    variable = _with_readable_mark(netcdf_text(variable), lacking)
    stored = stored_as(opened, variable)
    dtype = packed(stored.dtype).newbyteorder("=")
    codecs, text = stored.codecs, variable.nc_type == "string"
    if text:
        dtype = np.dtype(object)
        codecs = ()
    itemsize = 8 if dtype.hasobject else dtype.itemsize
    chunks = copying.chunk_shape(variable, itemsize) or stored.chunk_shape
    array = ChunkedArray(
        path=variable.path.strip("/"),
        shape=variable.shape,
        chunk_shape=cut_to(variable.shape, chunks),
        dtype=dtype,
        fill=_fill(variable, dtype),
    )
    asked = copying.codecs(dtype)
    if asked is not None:
        codecs = asked
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
    stated = stated_fill(variable)
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


class Zarr3Writer(ArrayWriter):
    """Writes blocks of one array, each of whole objects (shards, or chunks). Picklable.

    Parameters
    ----------
    array
        The new array; its chunk shape is that of the objects.
    store
        Where they are put.
    """

    def __init__(self, array: ZarrArray, store: WritableStore) -> None:
        super().__init__()
        self.array: ZarrArray = array
        self.store = store
        self.start = (0,) * len(array.shape)

    @classmethod
    def of_document(
        cls, path: str, dtype: np.dtype, document: bytes, store: WritableStore
    ) -> Zarr3Writer:
        """Return the writer of the array at a path whose ``zarr.json`` is given."""
        key = f"{path}/{FILE}"
        metadata = plain(loads(document, key), key)
        chunks = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        shape = tuple(metadata["shape"])
        return cls(ZarrArray(path, shape, chunks, dtype, json.dumps(metadata)), store)

    def write_block(
        self, values: np.ndarray, first: tuple[int, ...], threads: int | None, done: Done
    ) -> int:
        """Write one block, which begins and ends where objects do (or the array).

        `threads` is not used: zarr-python has its own setting, ``async.concurrency``.
        """
        from nczarr_xarray.zarr.offered import StoreSink

        part = tuple(slice(at, at + size) for at, size in zip(first, values.shape, strict=True))
        ends = zip(part, self.array.chunk_shape, self.array.shape, strict=True)
        if any(p.start % c or (p.stop % c and p.stop != n) for p, c, n in ends):
            reason = f"does not consist of whole objects, which have shape {self.array.chunk_shape}"
            raise ValueError(f"{self.array.path}{_spelled(part)} {reason}")
        with self.gate:
            puts = Gate()
            sink = StoreSink(self.store, puts)
            try:
                metadata = json.loads(self.array.metadata)
                array_in(sink, self.array.path, metadata)[part or ...] = _as_zarr(values)
            except NCZarrError:
                raise
            except Exception as error:  # zarr and the codecs raise whatever they like
                reason = f"cannot be encoded ({error})"
                raise FormatError(f"{self.array.path}{_spelled(part)}", reason) from error
            finally:
                puts.shut()  # none comes to a tree that was given up, and made anew by it
        if done is not None:
            done(math.prod(grid_of(values.shape, self.array.chunk_shape)))
        return sink.put


def _as_zarr(values: np.ndarray) -> np.ndarray:
    """Return values with text as zarr-python takes it: valid, and never bytes."""
    if values.dtype.kind != "O":
        return values
    return mapped(
        lambda t: t.decode("utf-8", "replace") if isinstance(t, bytes) else readable(t), values
    )


def _spelled(part: tuple[slice, ...]) -> str:
    return f"[{', '.join(f'{one.start}:{one.stop}' for one in part)}]" if part else ""
