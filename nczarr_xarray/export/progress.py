"""A line that shows how far a long export has got."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 30
#: The line is not drawn more often than this, in seconds.
_INTERVAL = 0.1


class Progress:
    """A progress bar on a terminal; silent unless it is asked for.

    Parameters
    ----------
    label
        What is going on.
    shown
        Whether anything is drawn.
    stream
        Where; standard error by default.
    """

    def __init__(self, label: str, *, shown: bool, stream: TextIO | None = None) -> None:
        self.label = label
        self.shown = shown
        self.total = 0
        self.done = 0
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._drawn = 0.0

    def expect(self, count: int) -> None:
        """There are `count` more steps to do."""
        self.total += count
        self._draw()

    def advance(self, count: int = 1) -> None:
        """`count` steps have been done."""
        self.done += count
        self._draw()

    def _draw(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not self.shown or (now - self._drawn < _INTERVAL and not last):
            return
        self._drawn = now
        share = self.done / self.total if self.total else 1.0
        filled = int(share * _WIDTH)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        seconds = now - self._start
        self._stream.write(
            f"\r{self.label} [{bar}] {share:4.0%} of {self.total} steps, {seconds:.1f} s"
        )
        if last:
            self._stream.write("\n")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._draw(last=True)
