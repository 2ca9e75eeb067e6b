"""The settings of zarr-python, of which a process has one set."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import zarr


@contextmanager
def kept_settings() -> Iterator[None]:
    """Undo what the block changes: importing cubed lets all stores get empty chunks."""
    settings = copy.deepcopy(zarr.config.config)
    try:
        yield
    finally:
        zarr.config.config.clear()
        zarr.config.config.update(settings)
