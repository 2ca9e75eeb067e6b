"""The progress of long work: a bar of tqdm, with rate and time left, and a callback of fsspec."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from nczarr_fsspec.errors import URLError

if TYPE_CHECKING:
    from fsspec.callbacks import Callback


def check_callback(callback: Any) -> None:
    """Raise `URLError` for what is no callback of fsspec, before anything is made."""
    if callback is not None and not hasattr(callback, "relative_update"):
        reason = f"must be a callback of fsspec (fsspec.callbacks), not {callback!r:.80}"
        raise URLError("callback", reason)


class Progress:
    """Counts steps; draws a bar, or tells a callback, if it is asked to.

    Parameters
    ----------
    label
        The text beside the bar.
    shown
        Whether anything is drawn.
    unit
        What is counted; bytes by default.
    callback
        Is told how many units there are, and of those that are done.

    Attributes
    ----------
    total, done : int
        The number of units that are known so far, and of those that are done.
    """

    def __init__(
        self,
        label: str,
        *,
        shown: bool,
        unit: str = "B",
        callback: Callback | None = None,
    ) -> None:
        self.total = self.done = 0
        self._callback = callback
        hidden = not shown or sys.stderr is None  # a program may have none
        self._bar = None if hidden else _bar(label, unit)

    def expect(self, count: int) -> None:
        """Add `count` units to those that are to be done."""
        self.total += count
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.refresh()
        if self._callback is not None:
            self._callback.set_size(self.total)

    def advance(self, count: int = 1) -> None:
        """Count `count` units as done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        if self._callback is not None:
            self._callback.relative_update(count)

    def skip(self, count: int) -> None:
        """Count `count` units as done before, which have no part in the rate."""
        if self._bar is not None:
            self._bar.initial += count
        self.advance(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(label: str, unit: str) -> Any:
    """Return a bar of tqdm on standard error; tqdm takes 16 ms to import."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # which has no types
        monitor_interval = 0  # without tqdm's thread, which a fork would not have

    return Bar(desc=label, total=0, unit=unit, unit_scale=unit == "B")
