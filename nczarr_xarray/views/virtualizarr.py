"""Files for VirtualiZarr: where their chunks are, by our readers of classic netCDF and HDF5."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import (
    FormatError,
    LossWarning,
    NCZarrError,
    NCZarrWarning,
    caller_level,
)
from nczarr_fsspec.places.url import parse_url, redact
from nczarr_fsspec.ranges.filesystem import ObspecFileSystem
from nczarr_fsspec.ranges.local import open_local
from nczarr_fsspec.ranges.remote import open_source
from nczarr_xarray.formats.nczarr import emit
from nczarr_xarray.formats.nczarr.attributes import NAMED_NUMBERS
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.formats.rounds import caught, together
from nczarr_xarray.model import ChunkTable, join, position_of
from nczarr_xarray.views.references import inlined, refuse_aggregation
from nczarr_xarray.views.store import FileKeys, keys_of_file
from nczarr_xarray.views.zarr_tree import ArrayView, Tree, lies_apart, view_in_chunks

if TYPE_CHECKING:
    from obspec_utils.registry import ObjectStoreRegistry
    from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore

    from nczarr_fsspec.ranges.source import ByteSource

#: Chunks that exist, and where they are.
_Existing = tuple[np.ndarray, ChunkTable]


@dataclass(frozen=True)
class NCZarrParser:
    """A ``parser`` of classic netCDF and HDF5 files for the functions of VirtualiZarr.

    The index of a remote file is read in few read rounds.

    Parameters
    ----------
    group
        Path of the group that becomes the root.
    drop_variables
        Names of variables of that group to leave out.
    """

    group: str | None = None
    drop_variables: Iterable[str] = ()

    def __call__(self, url: str, registry: ObjectStoreRegistry[Any]) -> ManifestStore:
        """Return where everything in a file is.

        Parameters
        ----------
        url
            Of the file.
        registry
            Has the object store by which the file, if it is no local one, is read.

        Raises
        ------
        NCZarrError
            If the file cannot be read, is of another format, or has no such group.

        Warns
        -----
        NCZarrWarning
            For each variable that is left out, as Zarr or VirtualiZarr cannot have it. From 2.7 on,
            VirtualiZarr holds chunks itself which the file has in a form that Zarr does not know,
            such as text of variable length.
        LossWarning
            For NaN and infinities among attributes, which become texts as in copies to Zarr 3.
        """
        try:
            from virtualizarr.manifests import ManifestStore
            from virtualizarr.manifests.manifest import validate_and_normalize_path_to_uri
        except ImportError as error:
            raise ImportError(
                f"VirtualiZarr is needed ({error}): pip install 'nczarr-xarray[virtualizarr]'"
            ) from error

        uri = validate_and_normalize_path_to_uri(str(url), fs_root=Path.cwd().as_uri())
        source = _source(uri, registry)
        with closing(keys_of_file(source, OpenOptions(group=self.group), scattered=False)) as keys:
            refuse_aggregation(uri, keys.hierarchy)
            tree = keys.tree
            root = (self.group or "").strip("/")
            dropped = {join(root, name).strip("/") for name in self.drop_variables}
            for path, view in [*tree.arrays.items()]:
                if path in dropped or (root and not path.startswith(f"{root}/")):
                    tree.leave_out(path)
                else:
                    tree.arrays[path] = _as_stored(view)
            found = keys.file.parse(
                together(caught(view.existing()) for view in tree.arrays.values())
            )
            arrays = {}
            for path, existing in zip([*tree.arrays], found, strict=True):
                try:
                    arrays[path] = _array(keys, path, existing, uri)
                except NCZarrError as error:
                    tree.problems.append(error)
                    tree.leave_out(path)
        for problem in tree.problems:
            warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=caller_level())
        return ManifestStore(_group(tree, root, arrays), registry=registry)


def _source(uri: str, registry: ObjectStoreRegistry[Any]) -> ByteSource:
    """Return the bytes of a file, read by the object store that the registry has for it."""
    if uri.startswith("file:"):
        return open_local(parse_url(uri).path)
    store, path = registry.resolve(uri)
    base = redact(uri.removesuffix(str(path)))
    return open_source(ObspecFileSystem(store, base, id(store)), str(path), redact(uri))


def _as_stored(view: ArrayView) -> ArrayView:
    """Return a view of plain elements in as few chunks as they lie in one behind the other."""
    array = view.variable.array
    if array is None or array.strides is None or not array.shape:
        return view
    chunks = (1, *array.shape[1:]) if lies_apart(array) else array.shape
    return view_in_chunks(view.variable, tuple(max(1, length) for length in chunks)) or view


def _group(tree: Tree, path: str, made: dict[str, ManifestArray]) -> ManifestGroup:
    from virtualizarr.manifests import ManifestGroup

    arrays, groups = {}, {}
    for name in tree.members(path):
        below = f"{path}/{name}".lstrip("/")
        if below in made:
            arrays[name] = made[below]
        elif below in tree.groups:
            groups[name] = _group(tree, below, made)
    return ManifestGroup(arrays, groups, _json(tree, path, ".zattrs"))


def _array(keys: FileKeys, path: str, found: _Existing | NCZarrError, uri: str) -> ManifestArray:
    """Return an array with the places of its chunks, or these themselves.

    Raises
    ------
    NCZarrError
        If VirtualiZarr cannot have it.
    """
    from virtualizarr.codecs import zarr_codec_config_to_v3
    from virtualizarr.manifests import ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata
    from virtualizarr.parsers.utils import encode_cf_fill_value

    if isinstance(found, NCZarrError):
        raise found
    view, tree = keys.tree.arrays[path], keys.tree
    name, array = view.variable.path, view.array
    numbers, table = found
    if ((table.start + table.size) > keys.file.source.size)[table.mask == 0].any():
        raise FormatError(name, "has chunks beyond the end of the file: truncated?")
    inside: dict[int, bytes] = {}
    is_derived = bool(table.mask.any()) or array.dtype.hasobject
    if is_derived:
        if _inlined_path() is None:
            reason = "the file has it in a form that Zarr does not know, or in pieces; such chunks "
            raise FormatError(name, f"{reason}can be held by VirtualiZarr 2.7 and later")
        inside = inlined(keys, view, numbers, table)
    document, attributes = _json(tree, path, ".zarray"), _json(tree, path, ".zattrs")
    dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
    mask = attributes.pop("_FillValue", array.fill)
    if array.fill is not None and array.dtype.kind in "iuf":
        mask = np.asarray(array.fill, array.dtype)
        attributes["_FillValue"] = encode_cf_fill_value(mask, array.dtype)
    elif mask is not None:  # one that xarray fails at
        reason = "attribute '_FillValue', which xarray reads of numbers only in Zarr 3"
        tree.problems.append(FormatError(name, reason))
    codecs = [*(document["filters"] or ()), *filter(None, [document["compressor"]])]
    text = array.dtype.hasobject  # whose codec the type says
    assert view.variable.array is not None
    try:
        metadata = create_v3_array_metadata(
            shape=array.shape,
            data_type=np.dtypes.StringDType() if text else array.dtype,
            chunk_shape=array.chunk_shape,
            # what chunks that do not exist read as
            fill_value=array.fill if is_derived else view.variable.array.fill,
            codecs=[] if text else [zarr_codec_config_to_v3(config) for config in codecs],
            attributes=attributes,
            dimension_names=dimensions,
        )
    except (KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise FormatError(name, f"cannot be held by VirtualiZarr ({error})") from error
    return ManifestArray(metadata, _manifest(view, found, uri, inside))


def _inlined_path() -> str | None:
    """Return what VirtualiZarr has in place of the path of a chunk that it holds itself."""
    from virtualizarr.manifests import manifest

    return getattr(manifest, "INLINED_CHUNK_PATH", None)


def _manifest(view: ArrayView, found: _Existing, uri: str, inside: dict[int, bytes]) -> Any:
    from virtualizarr.manifests import ChunkManifest

    numbers, table = found
    paths = np.full(view.count, "", np.dtypes.StringDType())
    offsets, lengths = np.zeros(view.count, np.uint64), np.zeros(view.count, np.uint64)
    paths[numbers], offsets[numbers], lengths[numbers] = uri, table.start, table.size
    held = {}
    if inside:
        which = [*inside]
        paths[which], offsets[which] = _inlined_path(), 0
        lengths[which] = [len(data) for data in inside.values()]
        positions = {position_of(number, view.grid): data for number, data in inside.items()}
        held = {"inlined": positions}
    return ChunkManifest.from_arrays(
        paths=paths.reshape(view.grid),
        offsets=offsets.reshape(view.grid),
        lengths=lengths.reshape(view.grid),
        validate_paths=False,  # it is one, and a URI
        **held,
    )


def _json(tree: Tree, path: str, name: str) -> dict[str, Any]:
    """Return a metadata object of the view."""
    key = f"{path}/{name}".lstrip("/")
    document = tree.document(key) or b"{}"
    found: dict[str, Any] = json.loads(emit.standard(document, key))  # Icechunk refuses bare NaN
    before = json.loads(document)
    # (`_array` says what becomes of the fill value)
    lost = [
        f"/{path}:{one}"
        for one in before.keys() - {"_FillValue"}
        if repr(before[one]) != repr(found[one])
    ]
    if lost:
        warning = LossWarning(f"{NAMED_NUMBERS}: {', '.join(sorted(lost))}", lost)
        warnings.warn(warning, stacklevel=caller_level())
    return found
