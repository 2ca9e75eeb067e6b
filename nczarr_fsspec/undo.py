"""Undoing what was begun when the rest of it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises anything, an interrupt too."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def whole_file(path: str, new: str) -> Iterator[str]:
    """Let a file become visible as a whole: the block makes it at `new`, then it is renamed.

    Parameters
    ----------
    path
        Where it is to be, and where an old one stays until then.
    new
        A path in the same folder. After an error nothing is left there.
    """

    def remove() -> None:
        with suppress(OSError, UnicodeEncodeError):
            os.unlink(new)

    with on_error(remove):
        yield new
        os.replace(new, path)
        remove()  # of two links to one file, both are still there
