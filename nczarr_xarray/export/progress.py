"""The progress of a long export, as a bar of tqdm."""

from __future__ import annotations

import sys
from typing import Self, TextIO

from tqdm import tqdm


class _Bar(tqdm):  # type: ignore[misc]  # which has no types
    monitor_interval = 0  # without tqdm's thread, which a fork would not have


class Progress:
    """A progress bar on a terminal; silent unless it is asked for.

    Parameters
    ----------
    label
        The text beside the bar.
    shown
        Whether anything is drawn.
    stream
        The stream to draw on; standard error by default.

    Attributes
    ----------
    total, done : int
        The number of steps that are known so far, and of those that are done.
    """

    def __init__(self, label: str, *, shown: bool, stream: TextIO | None = None) -> None:
        self.total = self.done = 0
        stream = stream or sys.stderr
        hidden = not shown or stream is None  # a program may have no standard error
        self._bar = _Bar(desc=label, total=0, unit=" steps", disable=hidden, file=stream)

    def expect(self, count: int) -> None:
        """Add `count` steps to those that are to be done."""
        self.total += count
        self._bar.total = self.total
        self._bar.refresh()

    def advance(self, count: int = 1) -> None:
        """Count `count` steps as done."""
        self.done += count
        self._bar.update(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
