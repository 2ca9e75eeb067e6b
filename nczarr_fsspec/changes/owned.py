"""Which objects below a prefix belong to a dataset, and which do not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nczarr_fsspec.changes.journal import HELD, INCOMPLETE, PRIVATE
from nczarr_fsspec.keystore import OLD_METADATA, ZARR_METADATA

#: Metadata objects of Zarr 2 and 3, and of netCDF-C 4.8.0.
METADATA = ZARR_METADATA | OLD_METADATA
_CHUNK = re.compile(r"(?:c|(?:c[./])?[0-9]+(?:[./][0-9]+)*)")


def dataset_keys(keys: Iterable[str], below: str = "") -> list[str]:
    """Return those of `keys` that are metadata or chunks of a dataset, or remains of an export.

    Parameters
    ----------
    keys
        All keys that exist.
    below
        Only those of the group or array at this path.
    """
    keys = list(keys)
    arrays = {
        path
        for path, _, name in (key.rpartition("/") for key in keys)
        if name in (".zarray", ".nczvar", "zarr.json")
    }
    start = f"{below}/" if below else ""
    return [key for key in keys if key.startswith(start) and _belongs(key, arrays)]


def _belongs(key: str, arrays: set[str]) -> bool:
    path, _, name = key.rpartition("/")
    if name in METADATA or key.startswith(f"{PRIVATE}/"):
        return True
    while True:
        rest = key[len(path) + 1 :] if path else key
        if path in arrays and _CHUNK.fullmatch(rest):
            return True
        if not path:
            return False
        path = path.rpartition("/")[0]


def removable(keys: Iterable[str]) -> list[str]:
    """Return those of `dataset_keys` to remove with the dataset: all but the private ones."""
    return [key for key in keys if not key.startswith(f"{PRIVATE}/") or key in (HELD, INCOMPLETE)]


def is_chunk_of(key: str, array: str) -> bool:
    """Tell whether `key` is named like a chunk of the array at a path."""
    return key.startswith(f"{array}/") and _CHUNK.fullmatch(key[len(array) + 1 :]) is not None
