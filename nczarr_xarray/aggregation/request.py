"""What a user asks of an aggregation of files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from nczarr_fsspec.errors import URLError
from nczarr_xarray.aggregation.aggregated import Aggregated
from nczarr_xarray.aggregation.axes import Overlap
from nczarr_xarray.aggregation.files import Wanted
from nczarr_xarray.aggregation.labels import Label
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.formats.registry import OpenOptions

#: Whether parts of the grid may have no file.
Gaps: TypeAlias = Literal["allow", "raise"]
#: Dimensions along which files follow each other, or what says where along them a file is.
Dim: TypeAlias = str | Sequence[str] | Mapping[str, str] | None
#: What becomes of data whose types differ.
Types: TypeAlias = Literal["error", "promote"]
#: What becomes of variables that a file lacks.
Missing: TypeAlias = Literal["error", "fill"]

_CHOICES = {"gaps": Gaps, "overlap": Overlap, "missing": Missing, "types": Types}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asks of an aggregation of files; parameters as of `nczarr_xarray.aggregate`.

    Raises
    ------
    URLError
        If the value of an option makes no sense.
    """

    dim: Dim = None
    variables: str | Sequence[str] | None = None
    storage_options: Mapping[str, Any] | None = None
    gaps: Gaps = "allow"
    overlap: Overlap = "error"
    tolerance: float | None = None
    missing: Missing = "error"
    types: Types = "error"
    rename: Mapping[str, str] | None = None
    skip_unreadable: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Request:
        """Return what the arguments of a call ask; it may have others."""
        return cls(**{own.name: arguments[own.name] for own in fields(cls)})

    def __post_init__(self) -> None:
        for option, values in _CHOICES.items():
            known, given = get_args(values), getattr(self, option)
            if given not in known:
                raise URLError(option, f"is one of {', '.join(map(repr, known))}, not {given!r}")
        if self.tolerance is not None and not 0 < self.tolerance < math.inf:
            raise URLError("tolerance", f"is a positive number, not {self.tolerance!r}")

    @property
    def asked(self) -> tuple[str, ...]:
        """The paths of the dimensions along which files are to follow each other."""
        if isinstance(self.dim, Mapping):
            return ()
        names = (self.dim,) if isinstance(self.dim, str) else self.dim or ()
        return tuple(f"/{name.strip('/')}" for name in names)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The coordinates that names or attributes of files say."""
        given = self.dim if isinstance(self.dim, Mapping) else {}
        return tuple(Label.of(name, source) for name, source in given.items())

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
            self.labels,
        )
