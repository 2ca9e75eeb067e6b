"""Dimensions that no group declares: names and lengths follow from the variables."""

from __future__ import annotations

from collections import Counter

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.model import Dimension, Group, Variable


class ImpliedDimensions:
    """Collects the dimensions that the variables of one dataset imply.

    If variables contradict each other, the most frequent length is
    taken, so that one bad variable does not make the others unreadable.
    """

    def __init__(self) -> None:
        self._votes: dict[int, dict[str, Counter[int]]] = {}
        self._uses: list[tuple[Variable, list[tuple[Group, str, int]]]] = []

    def use(self, variable: Variable, lengths: list[tuple[Group, str, int]]) -> None:
        """Note the dimensions of `variable`, each as (group that it belongs to, name, length)."""
        self._uses.append((variable, lengths))
        for group, name, length in lengths:
            votes = self._votes.setdefault(id(group), {})
            if name in group.dimensions and name not in votes:
                continue  # declared, so that the variables do not decide
            counts = votes.setdefault(name, Counter())
            counts[length] += 3 if name == variable.name else 2  # coordinates break a tie
            size, _ = counts.most_common(1)[0]
            group.dimensions[name] = Dimension(name, size, size == 0, group.path)

    def settle(self) -> None:
        """Give every variable its dimensions; one that contradicts the others gets an error."""
        for variable, lengths in self._uses:
            for group, name, length in lengths:
                dimension = group.dimensions[name]
                if dimension.size != length:
                    variable.array, variable.dimensions = None, ()
                    variable.error = FormatError(
                        variable.path,
                        f"has length {length} along {dimension.path!r}, where other variables "
                        f"have {dimension.size}",
                    )
                    break
                variable.dimensions += (dimension,)
