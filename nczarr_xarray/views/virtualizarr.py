"""Files for VirtualiZarr: where their chunks are, by our readers of classic netCDF and HDF5."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, caller_level
from nczarr_fsspec.obspec import ObspecFileSystem
from nczarr_fsspec.ranges.open import open_local, open_source
from nczarr_fsspec.url import parse_url, redact
from nczarr_xarray.dataset.open import open_file
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.rounds import caught, together
from nczarr_xarray.model import ChunkTable, join
from nczarr_xarray.views.file_arrays import ArrayView, view_in_chunks
from nczarr_xarray.views.zarr_tree import Tree

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
            For each variable that is left out, as VirtualiZarr can only have bytes of files in
            forms that Zarr knows.
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
        with open_file(source, OpenOptions(group=self.group)) as opened:
            tree = Tree(opened.hierarchy, scattered=False)
            root = (self.group or "").strip("/")
            dropped = {join(root, name).strip("/") for name in self.drop_variables}
            for path, view in [*tree.arrays.items()]:
                if path in dropped or (root and not path.startswith(f"{root}/")):
                    tree.leave_out(path)
                else:
                    tree.arrays[path] = _as_stored(view)
            found = opened.file.parse(
                together(caught(view.existing()) for view in tree.arrays.values())
            )
        existing = dict(zip([*tree.arrays], found, strict=True))
        for path, one in existing.items():
            problem = _problem(tree.arrays[path], one, source.size)
            if problem is not None:
                tree.problems.append(problem)
                tree.leave_out(path)
        for problem in tree.problems:
            warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=caller_level())
        return ManifestStore(_group(tree, root, existing, uri), registry=registry)


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
    inner = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=object))
    apart = array.shape[0] > 1 and array.strides[0] != inner
    chunks = (1, *array.shape[1:]) if apart else array.shape
    return view_in_chunks(view.variable, tuple(max(1, length) for length in chunks)) or view


def _problem(view: ArrayView, found: _Existing | NCZarrError, size: int) -> NCZarrError | None:
    """Return why the bytes of the file are not the chunks of an array; None if they are."""
    if isinstance(found, NCZarrError):
        return found
    _, table = found
    name = view.variable.path
    if table.mask.any() or view.array.dtype.hasobject:
        return FormatError(name, "the file has it in a form that Zarr does not know, or in pieces")
    if ((table.start + table.size) > size).any():
        return FormatError(name, "has chunks beyond the end of the file: truncated?")
    return None


def _group(
    tree: Tree, path: str, existing: dict[str, _Existing | NCZarrError], uri: str
) -> ManifestGroup:
    from virtualizarr.manifests import ManifestGroup

    arrays, groups = {}, {}
    for name in tree.members(path):
        below = f"{path}/{name}".lstrip("/")
        if below in tree.arrays:
            found = existing[below]
            assert not isinstance(found, NCZarrError)
            arrays[name] = _array(tree, below, found, uri)
        elif below in tree.groups:
            groups[name] = _group(tree, below, existing, uri)
    return ManifestGroup(arrays, groups, _json(tree, path, ".zattrs"))


def _array(tree: Tree, path: str, existing: _Existing, uri: str) -> ManifestArray:
    from virtualizarr.codecs import zarr_codec_config_to_v3
    from virtualizarr.manifests import ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata
    from virtualizarr.parsers.utils import encode_cf_fill_value

    view = tree.arrays[path]
    document, attributes = _json(tree, path, ".zarray"), _json(tree, path, ".zattrs")
    dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
    if view.array.fill is not None:
        mask = np.asarray(view.array.fill, view.array.dtype)
        attributes["_FillValue"] = encode_cf_fill_value(mask, view.array.dtype)
    codecs = [*(document["filters"] or ()), *filter(None, [document["compressor"]])]
    assert view.variable.array is not None
    metadata = create_v3_array_metadata(
        shape=view.array.shape,
        data_type=view.array.dtype,
        chunk_shape=view.array.chunk_shape,
        fill_value=view.variable.array.fill,  # what chunks that do not exist read as
        codecs=[zarr_codec_config_to_v3(config) for config in codecs],
        attributes=attributes,
        dimension_names=dimensions,
    )
    return ManifestArray(metadata, _manifest(view, existing, uri))


def _manifest(view: ArrayView, existing: _Existing, uri: str) -> Any:
    from virtualizarr.manifests import ChunkManifest

    numbers, table = existing
    paths = np.full(view.count, "", np.dtypes.StringDType())
    offsets, lengths = np.zeros(view.count, np.uint64), np.zeros(view.count, np.uint64)
    paths[numbers], offsets[numbers], lengths[numbers] = uri, table.start, table.size
    return ChunkManifest.from_arrays(
        paths=paths.reshape(view.grid),
        offsets=offsets.reshape(view.grid),
        lengths=lengths.reshape(view.grid),
        validate_paths=False,  # it is one, and a URI
    )


def _json(tree: Tree, path: str, name: str) -> dict[str, Any]:
    """Return a metadata object of the view."""
    found: dict[str, Any] = json.loads(tree.document(f"{path}/{name}".lstrip("/")) or b"{}")
    return found
