"""What a tool has found out about a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a dataset that its owner should know, and what to do about it.

    Parameters
    ----------
    severity
        "error": data cannot be read, or are not what they should be. "warning": they can, but
        at a cost, or not by every program. "note": all is well, and could be better.
    code
        What kind of finding it is, in a word that stays the same: ``small-chunks``.
    path
        The object that it is about: a variable, a group or a key; ``"/"`` for the dataset.
    text
        The fact, as one sentence without a full stop.
    advice
        What to do next, likewise; ``""`` if there is nothing to do.
    """

    severity: Severity
    code: str
    path: str
    text: str
    advice: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the finding as text: a line, and one for the advice."""
        yield f"{self.severity:8} {self.code}  {self.path}: {self.text}"
        if self.advice:
            yield f"{'':8} -> {self.advice}"
