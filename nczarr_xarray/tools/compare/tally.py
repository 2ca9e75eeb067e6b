"""Collect what is found while two datasets are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_xarray.dataset.opened import Opened
from nczarr_xarray.tools.compare.report import Comparison, Difference
from nczarr_xarray.tools.compare.structure import unreadable

#: Values of a variable that are shown.
SHOWN = 5


class Tally:
    """The differences and troubles so far.

    Parameters
    ----------
    structure
        The differences of the structure.
    """

    def __init__(self, structure: Iterable[Difference]) -> None:
        self._differences = list(structure)
        self._differing: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._troubles: dict[str, NCZarrError] = {}
        self._compared = 0

    def compared(self, values: int) -> None:
        """Count values that were compared."""
        self._compared += values

    def differ(self, path: str, count: int, first: Sequence[Difference]) -> None:
        """Note that values of a variable differ, and keep the first of them."""
        self._differing[path] += count
        kept = first[: SHOWN - self._shown[path]]
        self._shown[path] += len(kept)
        self._differences += kept

    def trouble(self, error: NCZarrError) -> None:
        """Note that something could not be read; the same error counts once."""
        self._troubles.setdefault(str(error), error)

    def finish(self, side: Opened, only: Collection[str] | None) -> None:
        """Note what cannot be read, and whether the dataset was changed meanwhile."""
        for problem in side.hierarchy.left_out(only):
            self.trouble(problem)
        for path, error in unreadable(side).items():
            if only is None or path in only:
                self.trouble(error)
        if not side.holds():
            reason = "was changed while it was compared: compare it again"
            self.trouble(StoreError(side.store.url, reason))

    def result(self, a: str, b: str, notes: Sequence[str] = ()) -> Comparison:
        """Return all as a report on A and B."""
        return Comparison(
            a=a,
            b=b,
            differences=tuple(self._differences),
            differing=dict(self._differing),
            values=self._compared,
            troubles=tuple(self._troubles.values()),
            notes=tuple(notes),
        )
