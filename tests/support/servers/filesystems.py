"""Filesystems of fsspec that tests have for themselves."""

from __future__ import annotations

from fsspec.implementations.memory import MemoryFileSystem


def own_memory() -> MemoryFileSystem:
    """A filesystem in memory that shares nothing; releases before 2026 have no option for it."""
    fs = MemoryFileSystem(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = {}, [""]
    return fs
