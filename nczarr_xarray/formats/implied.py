"""Dimensions that no group declares: names and lengths follow from the variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from nczarr_xarray.formats.strangers import first
from nczarr_xarray.model import AmbiguousNameError, Dimension, Group, Variable


class ImpliedDimensions:
    """Collects the dimensions that the variables of one dataset imply.

    A name stands for the length that its group declares, or that most variables have; where others
    have another one (sizes of one image, in OME-Zarr), that is part of the name: ``x_512``.

    Parameters
    ----------
    dropped
        Names of variables that do not matter, as nobody will see them.
    """

    def __init__(self, dropped: Collection[str] = ()) -> None:
        self._dropped = dropped
        self._votes: dict[int, dict[str, Counter[int]]] = {}
        self._uses: list[tuple[Variable, list[tuple[Group, str, int]]]] = []

    def use(self, variable: Variable, lengths: list[tuple[Group, str, int]]) -> None:
        """Note the dimensions of `variable`, each as (group that it belongs to, name, length)."""
        self._uses.append((variable, lengths))
        dropped = variable.name in self._dropped
        for group, name, length in lengths:
            votes = self._votes.setdefault(id(group), {})
            if name in group.dimensions and name not in votes:
                continue  # declared, so that the variables do not decide
            counts = votes.setdefault(name, Counter())
            # coordinates break a tie, else the first variable does
            counts[length] += 0 if dropped else 3 if name == variable.name else 2
            size, _ = counts.most_common(1)[0]
            group.dimensions[name] = Dimension(name, size, size == 0, group.path)

    def settle(self) -> list[AmbiguousNameError]:
        """Give every variable its dimensions; return the groups where some are called otherwise."""
        others: dict[tuple[int, str, int], Dimension] = {}
        renamed: dict[str, dict[str, None]] = {}
        for variable, lengths in self._uses:
            for group, name, length in lengths:
                dimension = group.dimensions[name]
                if dimension.size != length:
                    key = id(group), name, length
                    dimension = others[key] = others.get(key) or _renamed(group, name, length)
                    if variable.name not in self._dropped:
                        renamed.setdefault(group.path, {})[repr(dimension.name)] = None
                variable.dimensions += (dimension,)
        return [
            AmbiguousNameError(
                path,
                "variables have one name for dimensions of different lengths: those that fewer "
                f"have are called {first([*names])}; drop_variables= leaves a name to the others",
            )
            for path, names in renamed.items()
        ]


def _renamed(group: Group, name: str, length: int) -> Dimension:
    """Declare the dimension of variables that have another length than `name` stands for."""
    other = f"{name}_{length}"
    while other in group.dimensions or other in group.variables:
        other += "_"
    group.dimensions[other] = Dimension(other, length, length == 0, group.path)
    return group.dimensions[other]
