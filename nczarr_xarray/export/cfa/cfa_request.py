"""A call of `to_cfa`, in parts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, configuration
from nczarr_fsspec.text import parse_size
from nczarr_xarray.export.cfa.content import MASTER_FORMATS, FileKind, check_classic
from nczarr_xarray.export.cfa.master_place import FragmentFormat, Naming
from nczarr_xarray.export.cfa.parts import SubarrayShape
from nczarr_xarray.export.write_options import Mode, RegionLike, mode_of

#: Bytes of the largest fragment, where neither the caller nor S3netCDF4's configuration says it.
DEFAULT_SIZE = "50MB"

_FRAGMENTS = ("netCDF3", "netCDF4", "NCZarr")
_NAMINGS = ("s3nc2", "seed")


@dataclass(frozen=True, slots=True)
class CfaRequest:
    """What is asked for; the parameters are those of `nczarr_xarray.to_cfa`.

    Parameters
    ----------
    most
        Bytes of the largest fragment.
    encoded
        Whether the dataset has values and attributes as they are to be stored.
    more_along
        Dimension of a new aggregation along which more will come.
    """

    most: int
    version: str | None
    mode: Mode | None
    format: Literal["CFA3", "CFA4"] | None = None
    subarray_shape: SubarrayShape | None = None
    fragment_format: FragmentFormat | None = None
    append_dim: Hashable | None = None
    region: RegionLike | None = None
    encoding: Mapping[Any, Any] | None = None
    unlimited_dims: Iterable[Hashable] | None = None
    naming: Naming = "s3nc2"
    relative: bool | None = None
    encoded: bool = False
    more_along: Hashable | None = None

    @property
    def master_kind(self) -> FileKind:
        """What a new master is that is a file."""
        return MASTER_FORMATS[self.format]

    def check(self, url: str) -> None:
        """Raise `ExportError` for values without a meaning, and for contradictions."""
        known = (
            ("format", self.format, tuple(MASTER_FORMATS)),
            ("fragment_format", self.fragment_format, (None, *_FRAGMENTS)),
            ("naming", self.naming, _NAMINGS),
        )
        for option, value, words in known:
            if value not in words:
                said = ", ".join(word for word in words if word)
                raise ExportError(url, f"{option} is {value!r}; it is one of {said}")
        mode_of(url, self.mode, ("w-", "w"), self.append_dim, self.region)
        check_classic(url, self.format, self.version)
        if self.format == "CFA3" and self.fragment_format == "netCDF4":
            raise ExportError(url, "CFA3 has no netCDF-4 fragments: write format='CFA4'")


def largest_fragment(given: int | str | None, storage_options: Mapping[str, Any] | None) -> int:
    """Return the bytes of the largest fragment."""
    if given is None:
        given = configuration((storage_options or {}).get(CONFIG_OPTION)).max_object_size
    return parse_size(DEFAULT_SIZE if given is None else given, "max_object_size")
