"""What is checked, and the findings: what a tool has found out about a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nczarr_xarray.tools import html

Severity: TypeAlias = Literal["error", "warning", "note"]

#: Names that one text has, of many.
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a dataset that its owner should know, and what to do about it.

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
        What was found, as one sentence without a full stop.
    advice
        What to do next, likewise; ``""`` if there is nothing to do.
    """

    severity: Severity
    code: str
    path: str
    text: str
    advice: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether a dataset with this finding is not sound."""
        return self.severity != "note"

    def lines(self) -> Iterator[str]:
        """Yield the finding as text: a line, and one for the advice."""
        yield f"{self.severity:8} {self.code}  {self.path}: {self.text}"
        if self.advice:
            yield f"{'':8} -> {self.advice}"


class Findings(tuple[Finding, ...]):
    """Findings about a dataset; notebooks show them as a table."""

    __slots__ = ()

    def lines(self) -> Iterator[str]:
        """Yield the findings as text, and what they say of the dataset."""
        for finding in self:
            yield from finding.lines()
        unsound = sum(finding.is_fault for finding in self)
        yield f"not sound: errors and warnings: {unsound}" if unsound else "sound"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_html(self) -> str:
        """Return the table; ``""`` if there are none."""
        rows = [
            (html.severity(one.severity), one.code, one.path, one.text, one.advice) for one in self
        ]
        return html.table(("", "code", "of", "finding", "advice"), rows)

    def _repr_html_(self) -> str:
        *_, result = self.lines()
        return html.report(result, self.as_html())


def some(names: Sequence[str]) -> str:
    """Return the first of some names, for the text of a finding."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
