"""What a user asks of an aggregation of files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from nczarr_fsspec.errors import URLError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.grid import Overlap
from nczarr_xarray.aggregation.reading import Wanted
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.formats.registry import OpenOptions

#: Whether parts of the grid may have no file.
Gaps: TypeAlias = Literal["allow", "raise"]
#: What becomes of variables that a file lacks.
Missing: TypeAlias = Literal["error", "fill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks of an aggregation of files; parameters as of `nczarr_xarray.aggregate`.

    Raises
    ------
    URLError
        If the value of an option makes no sense.
    """

    dim: str | Sequence[str] | None = None
    variables: str | Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    gaps: Gaps = "allow"
    overlap: Overlap = "error"
    tolerance: float | None = None
    missing: Missing = "error"
    rename: Mapping[str, str] | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        for option, values in (("gaps", Gaps), ("overlap", Overlap), ("missing", Missing)):
            known, given = get_args(values), getattr(self, option)
            if given not in known:
                raise URLError(option, f"is one of {', '.join(map(repr, known))}, not {given!r}")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise URLError("tolerance", f"is a positive number, not {self.tolerance!r}")

    @property
    def asked(self) -> tuple[str, ...]:
        """The paths of the dimensions along which files are to follow each other."""
        names = (self.dim,) if isinstance(self.dim, str) else self.dim or ()
        return tuple(f"/{name.strip('/')}" for name in names)

    def wanted(
        self, refuse: Callable[[str, Opened, OpenOptions], None], before: Aggregated | None = None
    ) -> Wanted:
        """Return what is wanted of each file.

        Parameters
        ----------
        refuse
            As of `Wanted`.
        before
            The aggregation that the files are added to, if so.
        """
        given = self.variables
        names = frozenset([given] if isinstance(given, str) else given or ())
        scalars = {path.strip("/") for path in self.asked}
        if before is not None:
            names = names or frozenset(variable.path for variable in before.variables())
            scalars |= {d.path.strip("/") for v in before.variables() for d in v.dimensions}
        return Wanted(
            names,
            frozenset(scalars),
            self.storage_options,
            refuse,
            self.skip_unreadable,
            self.rename or {},
            self.missing == "fill",
        )
