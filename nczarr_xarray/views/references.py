"""A file as kerchunk references: the keys of a Zarr 2 tree, with their extents in the file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import (
    FormatError,
    LossWarning,
    NCZarrError,
    NCZarrWarning,
    StoreError,
    URLError,
    caller_level,
)
from nczarr_fsspec.places.names import from_home, names_url
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, located
from nczarr_fsspec.places.url import parse_url, redact
from nczarr_fsspec.stores.referenceformat import inline_text
from nczarr_xarray.chunks.encoder import Encoder
from nczarr_xarray.dataset.open import closed_on_error
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.model import ChunkTable, FragmentArray, Hierarchy, Variable
from nczarr_xarray.views.store import FileKeys, open_view
from nczarr_xarray.views.zarr_tree import ArrayView, lies_apart, view_in_chunks

#: Bytes of a chunk that may be part of the references, at most.
INLINE_BYTES = 500
#: Bytes of one variable's chunks that may be part of them because the file has no such bytes, ...
MOST_INLINE = 1 << 26
#: ... and the number of its chunks that are not in the file.
MOST_UNWRITTEN = 1 << 20


#: Paths of the arrays that are wanted, with the chunks in which plain elements are wanted, or None.
#: There may be more dimensions than the array has: its own are the last ones.
Wanted = dict[str, tuple[int, ...] | None]


class Cut(NamedTuple):
    """A part of an array that is wanted as a chunk of its own.

    Attributes
    ----------
    key
        Of the new chunk.
    array
        Path of the array in the view of the file.
    box
        Which part of it.
    shape
        Of the new chunk.
    nbytes
        Of its elements.
    """

    key: str
    array: str
    box: tuple[slice, ...]
    shape: tuple[int, ...]
    nbytes: int


class FileReferences(NamedTuple):
    """The references of one file.

    Attributes
    ----------
    references
        As `references` returns them.
    problems
        Why variables were left out.
    """

    references: dict[str, Any]
    problems: list[NCZarrError]


def references(target: Any, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return references to the parts of a Zarr 2 view of a classic or HDF5 file.

    Parameters
    ----------
    target
        Path or URL of a file that other programs can open. The references have the absolute
        path of a local file.
    storage_options
        Options of the target's filesystem (fsspec). They are not part of the references: give
        them again to read these (``remote_options``).

    Returns
    -------
    dict
        References of kerchunk's version 1, for fsspec's "reference" filesystem: ``{"version":
        1, "refs": {key: text | "base64:..." | [url, offset, size]}}``. Tiny chunks, and
        those that Zarr 2 cannot hold as they are stored, are decoded and put into the references.

    Raises
    ------
    URLError
        If other programs cannot open `target`, or its URL holds secrets.
    FormatError, StoreError
        If `target` is neither a classic nor an HDF5 file, or cannot be read.

    Warns
    -----
    NCZarrWarning
        For each variable that is left out, because Zarr cannot hold it, or because too many
        of its bytes would have to be in the references.
    LossWarning
        For char with a number as ``_FillValue``, by which readers of Zarr mask nothing.
    """
    found = find_references(target, storage_options)
    for problem in found.problems:
        warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=caller_level())
    return found.references


def find_references(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    wanted: Wanted | None = None,
) -> FileReferences:
    """Return `references`, and the reasons why variables were left out.

    Parameters
    ----------
    wanted
        Which arrays are wanted; None for all.
    """
    url = _url(target, storage_options)
    with closing(_open(target, storage_options)) as keys:
        if wanted is not None:
            for path, view in [*keys.tree.arrays.items()]:
                if path in wanted:
                    keys.tree.arrays[path] = _fitted(view, wanted[path])
                else:
                    keys.tree.leave_out(path)
        problems = [*keys.tree.problems]
        _tell_of_marks(url, [view.variable for view in keys.tree.arrays.values()])
        chunks: dict[str, str | list[Any]] = {}
        for path in list(keys.tree.arrays):
            try:
                chunks |= _chunks(keys, keys.tree.arrays[path], url)
            except NCZarrError as error:
                problems.append(error)
                keys.tree.leave_out(path)
        documents = {**keys.tree.documents(), ".zmetadata": keys.tree.document(".zmetadata")}
    texts = {key: (data or b"").decode() for key, data in documents.items()}
    return FileReferences({"version": 1, "refs": texts | chunks}, problems)


def cut_chunks(
    target: Any, storage_options: Mapping[str, Any] | None, cuts: Iterable[Cut]
) -> dict[str, str]:
    """Return parts of arrays as chunks: read, and encoded as they were.

    Raises
    ------
    NCZarrError
        If one cannot be read or encoded.
    """
    found = {}
    with closing(_open(target, storage_options)) as keys:
        for cut in cuts:
            view = keys.tree.arrays[cut.array]
            values = keys.reader(view).read(cut.box)
            array = replace(view.array, shape=cut.shape, chunk_shape=cut.shape)
            found[cut.key] = inline_text(bytes(Encoder(array).encode(values)))
    return found


def refuse_aggregation(url: str, hierarchy: Hierarchy) -> None:
    """Raise `FormatError` if a file has its data in others."""
    for variable in hierarchy.root.all_variables():
        if isinstance(variable.array, FragmentArray):
            reason = f"is an aggregation, with {variable.path} in other files: write references to "
            raise FormatError(url, f"{reason}these with nczarr convert-refs, or convert_references")


def _open(target: Any, storage_options: Mapping[str, Any] | None) -> FileKeys:
    keys = open_view(target, OpenOptions(storage_options=storage_options), scattered=False)
    with closed_on_error(keys):
        if not isinstance(keys, FileKeys):
            reason = (
                "is a tree of Zarr already; references are for files, aggregations (x.nca) for all"
            )
            raise FormatError(keys.url, reason)
        refuse_aggregation(keys.url, keys.hierarchy)
    return keys


def _fitted(view: ArrayView, chunks: tuple[int, ...] | None) -> ArrayView:
    """Return a view of plain elements in the chunks that are wanted; any other view as it is."""
    array = view.variable.array
    if chunks is None or array is None or array.strides is None:
        return view
    chunks = chunks[len(chunks) - len(array.shape) :]
    chunks = (1, *chunks[1:]) if lies_apart(array) else chunks
    return view_in_chunks(view.variable, chunks) or view


def _tell_of_marks(url: str, variables: Iterable[Variable]) -> None:
    """Warn of numbers as ``_FillValue`` of char, which readers of Zarr do not compare."""
    lost = [
        variable.path
        for variable in variables
        if variable.nc_type == "char" and (mark := variable.attributes.get("_FillValue"))
        if isinstance(mark.value, np.ndarray)
    ]
    if lost:
        reason = "masks nothing for readers of Zarr: a number as the _FillValue of char"
        warning = LossWarning(f"{url}: {reason}: {', '.join(lost)}", lost)
        warnings.warn(warning, stacklevel=caller_level())


def _url(target: Any, storage_options: Mapping[str, Any] | None) -> str:
    """Return the name of the file for other programs."""
    if not isinstance(target, (str, os.PathLike)):
        raise URLError(f"{type(target).__name__} object", "references need a path or a URL")
    text = os.fsdecode(target)
    if not names_url(text):
        return os.path.abspath(from_home(text))
    url = parse_url(text)
    if url.protocol == "file":
        return os.path.abspath(url.path)
    if redact(text) != text:
        reason = "holds secrets, which would be in the references; pass them as storage_options"
        raise URLError(redact(text), reason)
    return located(url, (storage_options or {}).get(CONFIG_OPTION))[0].base


def _chunks(keys: FileKeys, view: ArrayView, url: str) -> dict[str, str | list[Any]]:
    """Return references to the chunks of one array.

    Raises
    ------
    FormatError, StoreError
        If it cannot have any.
    """
    numbers, table = keys.file.parse(view.existing())
    found: dict[str, str | list[Any]] = {
        _key(view, number): inline_text(data)
        for number, data in inlined(keys, view, numbers, table).items()
    }
    tiny = []
    stored = table.mask == 0
    rows = zip(*(a[stored].tolist() for a in (numbers, table.start, table.size)), strict=True)
    for number, start, size in rows:
        if size <= INLINE_BYTES:
            tiny.append(_key(view, number))
        else:
            keys.extent(view, number, (start, size), slice(None))
            found[_key(view, number)] = [url, start, size]
    return found | {key: inline_text(data) for key, data in _read(keys, tiny).items()}


def inlined(
    keys: FileKeys, view: ArrayView, numbers: np.ndarray, table: ChunkTable
) -> dict[int, bytes]:
    """Return chunks of an array, by number, that the file has not as Zarr can have them.

    Parameters
    ----------
    numbers, table
        The chunks that exist.

    Raises
    ------
    FormatError, StoreError
        If they are too many, or cannot be read.
    """
    derived = numbers[table.mask > 0].tolist()
    if len(derived) * view.encoder.nbytes > MOST_INLINE:
        reason = "the file has them in a form that Zarr does not know"
        raise _too_much(view, len(derived), view.encoder.nbytes, reason)
    found = dict(zip(derived, _read(keys, [_key(view, n) for n in derived]).values(), strict=True))
    return found | _unwritten(keys, view, numbers) if view.hides_fill else found


def _unwritten(keys: FileKeys, view: ArrayView, numbers: np.ndarray) -> dict[int, bytes]:
    """Return chunks that are not stored but must not be missing: they are all equal."""
    count = view.count - len(numbers)
    reason = "they have never been written, and no _FillValue says what they read as"
    if not count:
        return {}
    if count > MOST_UNWRITTEN:
        raise _too_much(view, count, view.encoder.nbytes, reason)
    missing = np.setdiff1d(np.arange(view.count), numbers, assume_unique=True).tolist()
    values = keys.reader(view).read(view.selection(missing[0]))
    # a whole chunk: one at an edge has padding where others have elements
    whole = np.full(view.array.chunk_shape, values.flat[0], values.dtype)
    chunk = bytes(view.encoder.encode(whole))
    if count * len(chunk) > MOST_INLINE:
        raise _too_much(view, count, len(chunk), reason)
    return dict.fromkeys(missing, chunk)


def _key(view: ArrayView, number: int) -> str:
    return f"{view.array.path}/{view.name(number)}"


def _read(keys: FileKeys, names: list[str]) -> dict[str, bytes]:
    """Return the chunks of some keys."""
    found = {}
    for name, data in zip(names, keys.get_many(names), strict=True):
        if not isinstance(data, bytes):
            raise data or StoreError(name, "has gone")
        found[name] = data
    return found


def _too_much(view: ArrayView, count: int, nbytes: int, reason: str) -> FormatError:
    return FormatError(
        view.variable.path,
        f"{count} chunks of {nbytes} bytes would have to be inside of the references: {reason}",
    )
