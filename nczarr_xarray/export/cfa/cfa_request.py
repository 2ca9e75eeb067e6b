"""A call of `to_cfa`, in parts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.export.cfa.master_place import FragmentFormat, Naming
from nczarr_xarray.export.cfa.parts import SubarrayShape
from nczarr_xarray.export.update import RegionLike

Mode: TypeAlias = Literal["w-", "w", "a", "r+"]

_FORMATS = ("CFA3", "CFA4")
_FRAGMENTS = ("netCDF3", "netCDF4", "NCZarr")
_NAMINGS = ("s3nc2", "seed")


@dataclass(frozen=True, slots=True)
class CfaRequest:
    """What is asked for; the parameters are those of `nczarr_xarray.to_cfa`."""

    format: Literal["CFA3", "CFA4"] | None
    version: str | None
    most: int
    subarray_shape: SubarrayShape | None
    fragment_format: FragmentFormat | None
    mode: Mode
    append_dim: Hashable | None
    region: RegionLike | None
    encoding: Mapping[Any, Any] | None
    unlimited_dims: Iterable[Hashable] | None
    naming: Naming
    relative: bool | None = None

    @property
    def master_kind(self) -> Literal["netCDF3", "netCDF4"]:
        """What a new master is that is a file."""
        return "netCDF3" if self.format == "CFA3" else "netCDF4"

    def check(self, url: str) -> None:
        """Raise `ExportError` for values without a meaning, and for contradictions."""
        known = (
            ("format", self.format, (None, *_FORMATS)),
            ("fragment_format", self.fragment_format, (None, *_FRAGMENTS)),
            ("naming", self.naming, _NAMINGS),
        )
        for option, value, words in known:
            if value not in words:
                said = ", ".join(word for word in words if word)
                raise ExportError(url, f"{option} is {value!r}; it is one of {said}")
        if self.append_dim is not None and self.region is not None:
            raise ExportError(url, "append_dim and region exclude each other")
        allowed: tuple[str, ...] = ("w-", "w")
        if self.append_dim is not None:
            allowed = ("a",)
        elif self.region is not None:
            allowed = ("r+", "a")
        if self.mode not in allowed:
            raise ExportError(url, f"mode is {self.mode!r}; here it is one of {', '.join(allowed)}")
        if self.format != "CFA3":
            return
        if self.version not in (None, "0.4"):
            raise ExportError(
                url, f"CFA3 is written as cfa_version='0.4' only, not {self.version!r}: use CFA4"
            )
        if self.fragment_format == "netCDF4":
            raise ExportError(url, "CFA3 has no netCDF-4 fragments: write format='CFA4'")
