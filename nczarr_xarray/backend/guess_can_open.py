"""Whether a target is NCZarr beyond doubt, without opening it for real."""

from __future__ import annotations

import re
from pathlib import Path

from nczarr_fsspec.errors import NCZarrError


def is_ours(target: str) -> bool:
    """Tell whether a path or URL is one that only this engine reads right.

    True for a URL whose fragment names the mode ``nczarr``, ``zarr`` or ``bytes``, for the
    suffixes ``.nczarr`` and ``.nca``, and for a local tree or zip whose root carries NCZarr
    keys. Everything else is left to other engines. No network is touched.
    """
    if "://" in target:
        from nczarr_fsspec.places.url import parse_url

        path, _, fragment = target.partition("#")
        try:
            if fragment and parse_url(target).mode & {"nczarr", "zarr", "bytes"}:
                return True
        except NCZarrError:
            return False
        return bool(re.search(r"\.(nczarr|nca)/?$", path.partition("?")[0]))
    if not Path(target).exists():
        return False
    return target.rstrip("/").endswith((".nczarr", ".nca")) or _has_keys(target)


def _has_keys(path: str) -> bool:
    """Tell whether the root of a local tree or zip carries an NCZarr superblock."""
    if not Path(path).is_dir():
        with Path(path).open("rb") as file:
            if file.read(2) != b"PK":
                return False
    from nczarr_fsspec.place import open_keystore
    from nczarr_xarray.formats.nczarr import spellings
    from nczarr_xarray.formats.nczarr.jsontext import loads

    try:
        store = open_keystore(path)
        try:
            files = {file for file, _ in spellings.SUPERBLOCK.values()}
            objects = zip(files, store.get_many(list(files)), strict=True)
            root = {file: loads(data, file) for file, data in objects if isinstance(data, bytes)}
            return spellings.detect(root) is not None
        finally:
            store.close()
    except NCZarrError:
        return False
