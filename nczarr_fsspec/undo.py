"""Undoing what was begun when the rest of it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises anything, an interrupt too."""
    try:
        yield
    except BaseException:
        undo()
        raise
