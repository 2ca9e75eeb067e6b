"""Caches of fsspec: what they say and keep of files that they could not reach."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem, SimpleCacheFileSystem


def checked(fs: AbstractFileSystem, method: str, path: str, **options: Any) -> Any:
    """Call `method` of a filesystem, which may be a cache.

    If a cache fails, it forgets what it has of the file: it would keep half of that, or holes, for
    the next read.

    Raises
    ------
    ConnectionError
        If a cache says that there is no such file, and there is.
    """
    try:
        return getattr(fs, method)(path, **options)
    except Exception as error:
        if isinstance(fs, CachingFileSystem):
            with suppress(Exception):
                _forget(fs, path)
            if isinstance(error, FileNotFoundError):
                _ask_below(fs, path)
        raise


def _forget(fs: CachingFileSystem, path: str) -> None:
    if not isinstance(fs, SimpleCacheFileSystem):
        fs.pop_from_cache(path)
        return
    kept = fs._check_file(path)
    if kept and os.path.dirname(kept) == fs.storage[-1]:  # it only reads in the other folders
        os.remove(kept)


def _ask_below(fs: CachingFileSystem, path: str) -> None:
    """Raise what keeps a cache from a file, which it took for absent.

    Most filesystems answer ``exists`` with False if anything fails. Data that are absent would
    read as fill values.
    """
    while isinstance(fs, CachingFileSystem):
        fs = fs.fs
    fs.cat_file(path, start=0, end=1)
    raise ConnectionError("a cache took it for absent") from None
