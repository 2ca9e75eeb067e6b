"""The signs by which kerchunk references are known, before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nczarr_fsspec.keystore import ZARR_METADATA, KeyStore, LocalStore
from nczarr_fsspec.ranges.source import ByteSource

#: The document at the root of a folder of references in Parquet.
CONSOLIDATED = ".zmetadata"
#: A folder behind a network that may be one of these.
_FOLDER_NAME = re.compile(r"\.(parq|parquet)/?\Z", re.IGNORECASE)


def are_references(data: ByteSource | KeyStore | Mapping[Any, Any]) -> bool:
    """Tell from what is there whether it is a set of references, as far as that costs little.

    A folder behind a network has to be called ``.parq`` or ``.parquet``: else every tree would
    have to be asked first.
    """
    if isinstance(data, ByteSource):
        return _begins_like_references(bytes(data.head))
    if isinstance(data, Mapping):
        return _is_references(data)
    if not isinstance(data, LocalStore) and not _FOLDER_NAME.search(data.url):
        return False
    (metadata,) = data.get_many([CONSOLIDATED])
    return isinstance(metadata, bytes) and b'"record_size"' in metadata


def _begins_like_references(head: bytes) -> bool:
    """Tell whether a file that begins so can be references as JSON, and is none of our formats."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start[:1] == b"{" and start[1:].lstrip()[:1] == b'"'


def is_version_0(document: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping has a root document of Zarr as text."""
    root = ZARR_METADATA.intersection(document)
    return bool(root) and all(isinstance(document.get(key), (str, Mapping)) for key in root)


def _is_references(document: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping that a caller has is a set of references, not of bytes."""
    return isinstance(document.get("refs"), Mapping) or is_version_0(document)
