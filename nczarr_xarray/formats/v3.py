"""Zarr v3, through zarr-python: its codecs, sharding and data types are zarr's business.

The hierarchy is read by ourselves (one wave per depth, bad arrays reported one
by one); zarr-python parses each array's metadata and reads its chunks.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import KeyStore, is_safe_name
from nczarr_xarray.chunks import plan_outer
from nczarr_xarray.formats.implied import ImpliedDimensions
from nczarr_xarray.formats.nczarr.arrays import MAX_SIZE
from nczarr_xarray.formats.nczarr.attributes import decode_attributes
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, dumps, loads
from nczarr_xarray.formats.nczarr.spellings import MAX_DEPTH
from nczarr_xarray.model import (
    NC_DTYPES,
    CodecConfig,
    Group,
    Hierarchy,
    Variable,
)

FILE = "zarr.json"
#: Zarr-python makes a list of the chunks of a selection: more would fill the memory.
MAX_CHUNKS = 1 << 24
_NC_TYPES = {dtype: name for name, dtype in NC_DTYPES.items() if dtype.kind in "iuf"}


@dataclass(frozen=True, slots=True)
class ZarrArray:
    """A Zarr v3 array.

    Parameters
    ----------
    path
        Key prefix of the array.
    shape, dtype
        As a reader gets them; variable-length text is object.
    chunk_shape
        Smallest unit of reading (inside shards too).
    metadata
        The text of its ``zarr.json``.
    codecs
        As the metadata state them, for display.
    """

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    metadata: str
    codecs: tuple[CodecConfig, ...] = ()


class ZarrReader:
    """Reads selections of a `ZarrArray`."""

    def __init__(self, store: KeyStore, array: ZarrArray) -> None:
        self._path = array.path
        self._grid = array.shape, array.chunk_shape
        self._zarr = _zarr_array(store, array.path, json.loads(array.metadata))

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray[Any, Any]:
        """Read an orthogonal selection, or a pointwise one (as `plan_outer`, `plan_points`)."""
        if not points:
            count = plan_outer(key, *self._grid).count
            if count > MAX_CHUNKS:
                raise FormatError(self._path, f"a selection of {count} chunks is too much at once")
        try:
            data = np.asarray(self._points(key) if points else self._outer(key))
        except (NCZarrError, IndexError):
            raise
        except Exception as error:  # zarr and the codecs raise whatever they like
            raise FormatError(self._path, f"cannot be read ({error})") from error
        return data.astype(object) if data.dtype.kind == "T" else data

    def _outer(self, key: tuple[Any, ...]) -> Any:
        if not key:
            return self._zarr[()]
        # zarr-python takes ascending slices only
        ascending = tuple(
            np.arange(size)[index] if isinstance(index, slice) and (index.step or 1) < 0 else index
            for index, size in zip(key, self._zarr.shape, strict=True)
        )
        return self._zarr.oindex[ascending]

    def _points(self, key: tuple[Any, ...]) -> Any:
        if all(isinstance(index, np.ndarray) for index in key):
            return self._zarr.vindex[key]
        indexed = [axis for axis, index in enumerate(key) if isinstance(index, np.ndarray)]
        sliced = [axis for axis in range(len(key)) if axis not in indexed]
        box: list[Any] = list(key)
        inverse = []
        for axis in indexed:
            box[axis], positions = np.unique(key[axis], return_inverse=True)
            inverse.append(positions.reshape(key[axis].shape))
        data = np.asarray(self._outer(tuple(box)))
        return data.transpose(*indexed, *sliced)[tuple(inverse)]


def read_hierarchy(
    store: KeyStore, group: str, *, tree: bool, consolidated: bool | None = None
) -> Hierarchy:
    """Read the hierarchy at `group` (path without leading slash) and below it for a tree.

    Parameters
    ----------
    consolidated
        Whether to use the consolidated metadata inside the root's
        ``zarr.json``; None uses them only if the store cannot be listed.

    Raises
    ------
    NCZarrError
        If the wanted group cannot be read.
    """
    return _Reading(store, consolidated).run(group, tree)


@dataclass(slots=True)
class _Reading:
    store: KeyStore
    use_consolidated: bool | None
    root: Group = field(default_factory=Group)
    problems: list[NCZarrError] = field(default_factory=list)
    implied: ImpliedDimensions = field(default_factory=ImpliedDimensions)
    known: Mapping[str, JSON] | None = None

    def run(self, wanted: str, tree: bool) -> Hierarchy:
        parts = wanted.split("/") if wanted else []
        paths = ["/".join(parts[:i]) for i in range(len(parts) + 1)]
        groups: dict[str, Group] = {}
        for path, document in zip(paths, self.documents(paths), strict=True):
            if isinstance(document, NCZarrError):
                raise document
            if document is None or document.get("node_type") != "group":
                raise DatasetNotFoundError(self.store.url, f"no group '/{path}'")
            groups[path] = self.group(path, document)
            if path:
                groups[path.rpartition("/")[0]].groups[groups[path].name] = groups[path]
            else:
                self.root = groups[path]
                self.consolidate(document)
        level = [groups[wanted]]
        for _ in range(MAX_DEPTH):
            level = self.descend(level)
            if not (tree and level):
                break
        else:
            self.problems.append(FormatError(level[0].path, "is nested too deeply: left out"))
        self.implied.settle()
        return Hierarchy(self.root, "v3", None, self.known is not None, tuple(self.problems))

    def consolidate(self, root: Mapping[str, JSON]) -> None:
        inline = root.get("consolidated_metadata")
        if self.use_consolidated is False or not isinstance(inline, dict):
            return
        (listing,) = self.store.list_many([""])
        if self.use_consolidated or listing is None:
            metadata = inline.get("metadata")
            if isinstance(metadata, dict):
                self.known = metadata

    def documents(self, paths: list[str]) -> list[dict[str, JSON] | NCZarrError | None]:
        if self.known is not None:
            return [
                _object(self.known[path], f"{path}/{FILE}") if path in self.known else None
                for path in paths
            ]
        keys = [f"{path}/{FILE}" if path else FILE for path in paths]
        return [
            _parsed(key, data) for key, data in zip(keys, self.store.get_many(keys), strict=True)
        ]

    def children(self, paths: list[str]) -> list[list[str]]:
        if self.known is not None:
            below = [path.rpartition("/") for path in self.known]
            return [
                [name for parent, _, name in below if parent == path and is_safe_name(name)]
                for path in paths
            ]
        found = []
        for path, listing in zip(paths, self.store.list_many(paths), strict=True):
            if isinstance(listing, StoreError):
                raise listing
            if listing is None:
                raise StoreError(
                    self.store.url,
                    f"the children of group '/{path}' cannot be found: the store cannot be listed "
                    "and its zarr.json has no consolidated metadata",
                )
            found.append(sorted(n for n in listing if is_safe_name(n) and n != FILE))
        return found

    def descend(self, groups: list[Group]) -> list[Group]:
        """Read the children of `groups`; return the child groups."""
        paths = [group.path.strip("/") for group in groups]
        members = [
            (group, name)
            for group, names in zip(groups, self.children(paths), strict=True)
            for name in names
        ]
        keys = [f"{group.path}/{name}".strip("/") for group, name in members]
        keys = [key.replace("//", "/") for key in keys]
        below = []
        for (group, name), key, document in zip(members, keys, self.documents(keys), strict=True):
            if document is None:
                continue  # not a node: nothing to do with the hierarchy
            if isinstance(document, NCZarrError) or document.get("node_type") != "group":
                group.variables[name] = self.variable(group, name, key, document)
            elif name not in group.groups:
                try:
                    group.groups[name] = self.group(key, document)
                except NCZarrError as error:
                    self.problems.append(error)
                else:
                    below.append(group.groups[name])
        return below

    def group(self, path: str, document: Mapping[str, JSON]) -> Group:
        attributes, problems = decode_attributes(
            _attributes(document, path), {}, f"{path}/{FILE}".lstrip("/"), netcdf=False
        )
        self.problems += problems
        return Group(f"/{path}", attributes=attributes)

    def variable(
        self, group: Group, name: str, path: str, document: dict[str, JSON] | NCZarrError
    ) -> Variable:
        variable = Variable(name, group.path, (), None, np.dtype(object))
        try:
            if isinstance(document, NCZarrError):
                raise document
            plain = _plain(document, f"{path}/{FILE}")
            array = _describe(self.store, path, plain)
            variable.dtype = array.dtype
            text = array.dtype.kind in "OSU" and plain["data_type"] != "variable_length_bytes"
            variable.nc_type = "string" if text else _NC_TYPES.get(array.dtype.newbyteorder("="))
            values = dict(_attributes(document, path))
            if "_FillValue" in values:
                values["_FillValue"] = _fill_value(plain["attributes"]["_FillValue"], array, path)
            variable.attributes, problems = decode_attributes(
                values, {}, f"{path}/{FILE}", netcdf=False, fill_type=variable.nc_type
            )
            self.problems += problems
            self.implied.use(variable, self.dimensions(group, document, array))
            variable.array = array
        except NCZarrError as error:
            variable.error = error
        return variable

    def dimensions(
        self, group: Group, document: Mapping[str, JSON], array: ZarrArray
    ) -> list[tuple[Group, str, int]]:
        names = document.get("dimension_names") or [None] * len(array.shape)
        if (
            not isinstance(names, list)
            or len(names) != len(array.shape)
            or not all(name is None or isinstance(name, str) for name in names)
        ):
            raise FormatError(
                f"{array.path}/{FILE}",
                f"dimension_names {names!r:.80} do not match shape {list(array.shape)}",
            )
        return [
            (group, str(name), size) if name else (self.root, f"_Anonymous_Dim_{size}", size)
            for name, size in zip(names, array.shape, strict=True)
        ]


def _parsed(key: str, data: bytes | StoreError | None) -> dict[str, JSON] | NCZarrError | None:
    if data is None or isinstance(data, StoreError):
        return data
    try:
        return _object(loads(data, key), key)
    except FormatError as error:
        return error


def _object(document: JSON, key: str) -> dict[str, JSON] | FormatError:
    return document if isinstance(document, dict) else FormatError(key, "is not a JSON object")


def _attributes(document: Mapping[str, JSON], path: str) -> Mapping[str, JSON]:
    attributes = document.get("attributes", {})
    if not isinstance(attributes, dict):
        raise FormatError(f"{path}/{FILE}", "'attributes' is not a JSON object")
    return attributes


def _plain(document: JSON, key: str) -> Any:
    """The document with its numbers as numbers, as zarr-python wants it."""
    try:
        return json.loads(dumps(document))
    except ValueError as error:  # netCDF-C's dialect, which Zarr v3 never had
        raise FormatError(key, f"is not valid JSON ({error})") from None


def _zarr_array(store: KeyStore, path: str, metadata: dict[str, Any]) -> Any:
    from zarr import Array, AsyncArray
    from zarr.storage import StorePath

    from nczarr_xarray._zarr import ZarrKeyStore
    from nczarr_xarray._zarr_view import StoreView

    zarr_store = store.store if isinstance(store, ZarrKeyStore) else StoreView(store)
    return Array(AsyncArray.from_dict(StorePath(zarr_store, path), metadata))


def _describe(store: KeyStore, path: str, metadata: dict[str, Any]) -> ZarrArray:
    try:
        array = _zarr_array(store, path, metadata)
        dtype = np.dtype(object) if array.dtype.kind == "T" else np.dtype(array.dtype)
        chunks = tuple(int(n) for n in array.chunks)
        shape = tuple(int(n) for n in array.shape)
        codecs = tuple(
            {"id": codec["name"], **(codec.get("configuration") or {})}
            for codec in array.metadata.to_dict()["codecs"]
        )
    except NCZarrError:
        raise
    except Exception as error:  # metadata errors of zarr-python come in many types
        raise FormatError(
            f"{path}/{FILE}", f"is not understood by zarr-python ({error})"
        ) from error
    if max(shape, default=0) > MAX_SIZE:
        raise FormatError(f"{path}/{FILE}", f"shape {list(shape)} is more than can be indexed")
    if any(size and not chunk for size, chunk in zip(shape, chunks, strict=True)):
        raise FormatError(f"{path}/{FILE}", "a chunk length is 0")
    chunks = tuple(chunk or 1 for chunk in chunks)
    # such as [0s], by which numpy divides: the process would die of SIGFPE
    if dtype.kind in "mM" and "[0" in dtype.str:
        raise FormatError(f"{path}/{FILE}", f"dtype {dtype.str!r} counts from zero")
    return ZarrArray(path, shape, chunks, dtype, json.dumps(metadata), codecs)


def _fill_value(value: Any, array: ZarrArray, path: str) -> JSON:
    """``_FillValue`` as xarray stores it in v3: floats and bytes are base64."""
    try:
        if array.dtype.kind == "f" and isinstance(value, str):
            return Number(repr(struct.unpack("<d", base64.standard_b64decode(value))[0]))
        if array.dtype.kind == "S" and isinstance(value, str):
            return base64.standard_b64decode(value).decode("utf-8", "replace")
    except (ValueError, struct.error) as error:
        raise FormatError(f"{path}/{FILE}", f"_FillValue {value!r} is malformed") from error
    return Number(json.dumps(value)) if isinstance(value, (int, float)) else value
