"""What a user asks for when something is written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from nczarr_fsspec.errors import ExportError
from nczarr_fsspec.places.s3netcdf4 import CONFIG_OPTION, configuration
from nczarr_fsspec.text import parse_size
from nczarr_xarray.export.form.chunk_shapes import balanced_chunk_shape, cut_to
from nczarr_xarray.model import CodecConfig, Variable, netcdf_size

if TYPE_CHECKING:
    import xarray as xr

    from nczarr_fsspec.destination import Destination
    from nczarr_xarray.export.form.encode import Options
    from nczarr_xarray.formats.nczarr.spellings import Profile


#: Fragments as they are asked for: lengths by dimension, or for all dimensions of a variable.
SubarrayShape: TypeAlias = "Mapping[Hashable, int] | Sequence[int]"

#: What fragments are: a classic file, a netCDF-4 file, or a tree of NCZarr.
FragmentFormat = Literal["netCDF3", "netCDF4", "NCZarr"]

FileKind: TypeAlias = Literal["netCDF3", "netCDF4"]

#: What S3netCDF4 calls a format of masters -> what such a file is.
MASTER_FORMATS: dict[str | None, FileKind] = {
    None: "netCDF4",
    "CFA3": "netCDF3",
    "CFA4": "netCDF4",
}


#: Regions that a user may give: slices, or "auto" for some dimension or for all.
RegionLike = Mapping[Any, slice | Literal["auto"]] | Literal["auto"]

Mode: TypeAlias = Literal["w-", "w", "a", "r+"]

#: What becomes of appended labels that are there already: see `to_nczarr`.
Labels: TypeAlias = Literal["any", "error", "new"]

_SWITCHES = (
    "compute", "create", "consolidated", "safe_chunks", "align_chunks", "write_empty_chunks",
    "portable",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How to write, apart from what and where; the parameters are those of `to_nczarr`.

    `pure` says whether pure Zarr is written, or NCZarr; None leaves it to the mode words.
    """

    mode: str | None = None
    compute: bool = True
    append_dim: Hashable | None = None
    labels: Labels = "any"
    create: bool = False
    region: RegionLike | None = None
    consolidated: bool = False
    safe_chunks: bool = True
    align_chunks: bool = False
    write_empty_chunks: bool | None = None
    compat: str = "4.9.3"
    portable: bool = False
    pure: bool | None = None
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for option in _SWITCHES:
            value = getattr(self, option)
            # xarray's own default of `consolidated` is None
            if not (value is None or isinstance(value, (bool, np.bool_))):
                raise ExportError(option, f"must be True or False, not {value!r:.80}")
        given = self.storage_options
        if not (given is None or isinstance(given, Mapping)):  # not shown, as it may be a secret
            raise ExportError("storage_options", f"must be a dict, not {type(given).__name__}")


#: What writes a new dataset as it is.
AS_IT_IS = WriteOptions()


def mode_of(
    url: str,
    mode: str | None,
    new: tuple[Mode, ...],
    append_dim: Hashable | None,
    region: RegionLike | None,
    labels: Labels = "any",
) -> Mode:
    """Return the mode that is asked for, or the first that has a meaning here.

    Parameters
    ----------
    new
        Those that have one without `append_dim` and `region`.

    Raises
    ------
    ExportError
        If it has no meaning, or the options contradict each other.
    """
    if append_dim is not None and region is not None:
        raise ExportError(url, "append_dim and region exclude each other: give one of them")
    if labels not in ("any", "error", "new"):
        raise ExportError(url, f"labels is {labels!r}; it is 'any', 'error' or 'new'")
    if labels != "any" and append_dim is None:
        raise ExportError(url, f"labels={labels!r} is of appends: give append_dim, too")
    allowed, given = new, ""
    if append_dim is not None:
        allowed, given = ("a",), "with append_dim "
    elif region is not None:
        allowed, given = ("r+", "a"), "with region "
    found = next((one for one in allowed if mode in (None, one)), None)
    if found is None:
        right = f"one of {', '.join(allowed)}" if allowed[1:] else f"{allowed[0]!r}, or left out"
        raise ExportError(url, f"mode is {mode!r}; {given}it is {right}")
    return found


# -- write request -------------------------------------------------------------------------------
# A call of `to_nczarr`, in parts.


@dataclass(slots=True)
class WriteRequest:
    """One call of `to_nczarr`, in parts.

    Attributes
    ----------
    groups
        Absolute path -> dataset, and what is asked for it.
    path
        The group that is written.
    """

    target: Destination
    profile: Profile
    groups: Mapping[str, tuple[xr.Dataset, Options]]
    path: str
    options: WriteOptions

    @property
    def url(self) -> str:
        """How messages name the target."""
        return self.target.url

    def one_group(self) -> tuple[str, xr.Dataset, Options]:
        """Return the path of the only group, its dataset and what is asked."""
        if len(self.groups) != 1:
            raise ExportError(
                self.url, "a DataTree of several groups is changed group by group (group=...)"
            )
        ((path, (dataset, asked)),) = self.groups.items()
        return path, dataset, asked


def check_classic(url: str, format: str | None, version: str | None) -> None:  # noqa: A002
    """Raise `ExportError` for a classic master of a version that needs netCDF-4."""
    if format == "CFA3" and version not in (None, "0.4"):
        raise ExportError(
            url, f"CFA3 is written as cfa_version='0.4' only, not {version!r}: write format='CFA4'"
        )


#: Bytes of the largest fragment, where neither the caller nor S3netCDF4's configuration says it.
DEFAULT_SIZE = "50MB"

_FRAGMENT_FORMATS = ("netCDF3", "netCDF4", "NCZarr")


@dataclass(frozen=True, slots=True)
class CfaOptions:
    """What is asked for; the parameters are those of `nczarr_xarray.to_cfa`.

    Parameters
    ----------
    most
        Bytes of the largest fragment.
    """

    most: int
    version: str | None
    mode: Mode | None
    format: Literal["CFA3", "CFA4"] | None = None
    subarray_shape: SubarrayShape | None = None
    fragment_format: FragmentFormat | None = None
    append_dim: Hashable | None = None
    labels: Labels = "any"
    region: RegionLike | None = None
    relative: bool | None = None

    @property
    def master_kind(self) -> FileKind:
        """What a new master is that is a file."""
        return MASTER_FORMATS[self.format]

    def check(self, url: str) -> None:
        """Raise `ExportError` for values without a meaning, and for contradictions."""
        known = (
            ("format", self.format, tuple(MASTER_FORMATS)),
            ("fragment_format", self.fragment_format, (None, *_FRAGMENT_FORMATS)),
        )
        for option, value, words in known:
            if value not in words:
                said = ", ".join(word for word in words if word)
                raise ExportError(url, f"{option} is {value!r}; it is one of {said}")
        mode_of(url, self.mode, ("w-", "w"), self.append_dim, self.region, self.labels)
        check_classic(url, self.format, self.version)
        if self.format == "CFA3" and self.fragment_format == "netCDF4":
            raise ExportError(url, "CFA3 has no netCDF-4 fragments: write format='CFA4'")


def largest_fragment(given: int | str | None, storage_options: Mapping[str, Any] | None) -> int:
    """Return the bytes of the largest fragment."""
    if given is None:
        given = configuration((storage_options or {}).get(CONFIG_OPTION)).max_object_size
    return parse_size(DEFAULT_SIZE if given is None else given, "max_object_size")


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options that only some kinds of target have; one that has its default was not given.

    Parameters
    ----------
    chunks
        Chunk lengths by name of a dimension; None keeps those of the source.
    optimize
        Whether all variables get the chunks of `balanced_chunk_shape`, instead of `chunks`.
    cmip7
        Whether chunks become as long as CMIP7 wants them.
    compress
        Codecs in the order of encoding; None keeps those of the source.
    fixed
        As of `Selection`.
    memory
        Bytes that the program, with its workers, may take.
    resume
        Whether the copy continues, and can be continued.
    workers, scheduler
        See `nczarr_xarray.export.parallel.connected`.
    consolidated, portable, compat
        As of `WriteOptions`.
    shards
        Lengths of shards by name of a dimension.
    cfa_version, max_object_size, subarray_shape, subarray_path
        As of `to_cfa`.
    """

    chunks: Mapping[str, int] | None = None
    optimize: bool = False
    cmip7: bool = False
    compress: tuple[CodecConfig, ...] | None = None
    fixed: bool = False
    memory: int | None = None
    resume: bool = False
    workers: int | None = None
    scheduler: str | None = None
    consolidated: bool = False
    portable: bool = False
    compat: str | None = None
    shards: Mapping[str, int] | None = None
    cfa_version: str | None = None
    max_object_size: int | None = None
    subarray_shape: Mapping[Any, int] | None = None
    subarray_path: str | None = None

    @property
    def given(self) -> frozenset[str]:
        """The names of those that were given."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) != f.default)

    def chunk_shape(self, variable: Variable, itemsize: int) -> tuple[int, ...] | None:
        """Return the chunk lengths of a variable; None for those of the source."""
        shape, names = variable.shape, [dimension.name for dimension in variable.dimensions]
        # opening a dataset reads the whole of a coordinate
        if self.optimize or (self.chunks is not None and names == [variable.name]):
            return balanced_chunk_shape(shape, itemsize)
        if self.chunks is None:
            return None
        sizes = zip(names, shape, strict=True)  # a dimension without a length is taken whole
        return cut_to(shape, (self.chunks.get(name, max(1, size)) for name, size in sizes))

    def codecs(self, dtype: np.dtype) -> tuple[CodecConfig, ...] | None:
        """Return the codecs for elements of a dtype; None for those of the source."""
        if self.compress is None:
            return None
        size = netcdf_size(dtype)
        return tuple(
            {**config, "elementsize": size} if config["id"] == "shuffle" else config
            for config in self.compress
        )


#: What makes a copy as its source is.
AS_IN_SOURCE = CopyOptions()
