"""A file as kerchunk references: the keys of a Zarr 2 tree, and where in the file each one is."""

from __future__ import annotations

import base64
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, StoreError, URLError
from nczarr_fsspec.url import is_url, parse_url, redact
from nczarr_xarray.views.arrays import ArrayView
from nczarr_xarray.views.keys import FileKeys
from nczarr_xarray.views.store import open_view

#: Bytes of a chunk up to which it is part of the references.
INLINE_BYTES = 500
#: Bytes of chunks of one variable that may have to be, because the file has them in another form.
MOST_INLINE = 1 << 26


def references(target: Any, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Find where in a classic or HDF5 file the parts of its Zarr 2 view are.

    Parameters
    ----------
    target
        Path or URL of a file. Others must be able to open it: a local one goes by its
        absolute path.
    storage_options
        For fsspec. They are not part of the references, and whoever reads these has to give
        them again (``remote_options``).

    Returns
    -------
    dict
        References of kerchunk's version 1, for fsspec's "reference" filesystem: ``{"version":
        1, "refs": {key: text | "base64:..." | [url, offset, size]}}``. Chunks that Zarr 2 has
        other codecs or no form for are decoded and inside, as are tiny ones.

    Raises
    ------
    URLError
        If `target` is none that others can open, or its URL holds secrets.
    FormatError, StoreError
        If it is no such file, or cannot be read.

    Warns
    -----
    NCZarrWarning
        For each variable that is left out, because too much of it would have to be inside, or
        as Zarr cannot have it.
    """
    found, problems = find_references(target, storage_options)
    for problem in problems:
        warnings.warn(f"left out: {problem}", NCZarrWarning, stacklevel=2)
    return found


def find_references(
    target: Any, storage_options: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[NCZarrError]]:
    """`references`, and why variables were left out."""
    url = _url(target)
    keys = open_view(target, storage_options, scattered=False)
    try:
        if not isinstance(keys, FileKeys):
            raise FormatError(keys.url, "is a tree of Zarr already; references are for files")
        problems = [*keys.tree.problems]
        chunks: dict[str, str | list[Any]] = {}
        for path in list(keys.tree.arrays):
            try:
                chunks |= _chunks(keys, keys.tree.arrays[path], url)
            except NCZarrError as error:
                problems.append(error)
                keys.tree.leave_out(path)
        documents = {**keys.tree.documents(), ".zmetadata": keys.tree.document(".zmetadata")}
    finally:
        keys.close()
    texts = {key: (data or b"").decode() for key, data in documents.items()}
    return {"version": 1, "refs": texts | chunks}, problems


def _url(target: Any) -> str:
    """How others name the file."""
    if not isinstance(target, (str, os.PathLike)):
        raise URLError(f"{type(target).__name__} object", "references need a path or a URL")
    text = os.fsdecode(target)
    if not is_url(text) or os.path.exists(text):  # noqa: PTH110 - a URL may be too long for a path
        return os.path.abspath(os.path.expanduser(text))  # noqa: PTH111 - as files are opened
    url = parse_url(text)
    if url.protocol == "file":
        return os.path.abspath(url.path)
    if redact(url.base) != url.base:
        raise URLError(redact(text), "holds secrets, which would be in the references; "
                       "pass them as storage_options")  # fmt: skip
    return url.base


def _chunks(keys: FileKeys, view: ArrayView, url: str) -> dict[str, str | list[Any]]:
    """References to the chunks of one array.

    Raises
    ------
    FormatError, StoreError
        If it cannot have any.
    """
    numbers, table = keys.file.parse(view.existing(shown=True))
    path = view.array.path
    derived = table.mask > 0
    nbytes = view.encoder.nbytes
    if int(derived.sum()) * nbytes > MOST_INLINE:
        raise FormatError(
            view.variable.path,
            f"{int(derived.sum())} chunks of {nbytes} bytes would have to be inside of the "
            "references: the file has them in a form that Zarr 2 does not know",
        )
    found: dict[str, str | list[Any]] = {}
    inside = []
    rows = zip(numbers.tolist(), table.start.tolist(), table.size.tolist(), derived, strict=True)
    for number, start, size, decoded in rows:
        key = f"{path}/{view.name(number)}"
        if decoded or size <= INLINE_BYTES:
            inside.append(key)
        else:
            keys.extent(view, number, (start, size), slice(None))
        found[key] = [url, start, size]
    return found | dict(_inside(keys, inside))


def _inside(keys: FileKeys, wanted: list[str]) -> Iterator[tuple[str, str]]:
    """Chunks as part of the references."""
    for key, data in zip(wanted, keys.get_many(wanted), strict=True):
        if isinstance(data, (StoreError, type(None))):
            raise data or StoreError(key, "has gone")
        yield key, "base64:" + base64.b64encode(data).decode("ascii")
