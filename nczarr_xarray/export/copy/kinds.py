"""The table of the kinds of target. A new kind is a row here, and a module if it is like none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from nczarr_fsspec.errors import UsageError
from nczarr_fsspec.places.names import TREES, names_url, says_references
from nczarr_fsspec.places.url import parse_url
from nczarr_xarray.export.options import CopyOptions

if TYPE_CHECKING:
    from nczarr_xarray.export.copy.request import CopyRequest


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A row of the table of kinds.

    Parameters
    ----------
    name
        What messages call it.
    formats
        Words of ``--format`` that mean it, the default first.
    module
        Its module, with a function ``copy(request)``; imported when it is used.
    options
        Options that it has besides those of all kinds, by their names in Python.
    suffixes
        Ends of the names of targets that mean it, unless a format is given.
    modes
        Mode words of URLs that mean it.
    lacks
        Why it does not have some options, and what to do, by their names in Python.
    says
        Global attributes that say what kind a dataset is of: a copy has its own.
    """

    name: str
    formats: tuple[str, ...]
    module: str
    options: frozenset[str]
    suffixes: tuple[str, ...] = ()
    modes: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    says: frozenset[str] = frozenset()

    def is_meant(self, path: str, mode: Collection[str]) -> bool:
        """Tell whether a path and the mode words of a URL mean this kind."""
        named = not TREES.intersection(mode) and path.lower().endswith(self.suffixes)
        return bool(self.modes.intersection(mode)) or named

    def copy(self, request: CopyRequest) -> None:
        """Write the copy."""
        import_module(self.module).copy(request)


_HERE = "nczarr_xarray.export.copy"
_PARALLEL = frozenset({"workers", "scheduler"})
_LAYOUT = _PARALLEL | frozenset({"chunks", "optimize", "compress", "fixed", "memory", "resume"})
#: HDF5 writes its indexes when a file is closed, and a remote file appears as a whole.
_FILE_LACKS = {
    "resume": "a netCDF file is of no use before it is complete, so it cannot be continued: copy "
    "to NCZarr with --resume, and from there to a netCDF file"
}

#: In the order in which they are asked whether a name means them; the last one takes what is left.
KINDS: tuple[TargetKind, ...] = (
    TargetKind(
        "an aggregation",
        ("CFA",),
        f"{_HERE}.aggregation",
        _PARALLEL | {"cfa_version", "max_object_size"},
        suffixes=(".nca",),
        says=frozenset({"Conventions"}),
    ),
    TargetKind(
        "netCDF-4",
        ("NETCDF4",),
        f"{_HERE}.netcdf",
        frozenset({"fixed", "memory"}),
        lacks=_FILE_LACKS,
        suffixes=(".nc", ".nc4", ".cdf", ".netcdf"),
    ),
    TargetKind(
        "classic netCDF",
        ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"),
        f"{_HERE}.netcdf",
        frozenset({"fixed", "memory"}),
        lacks=_FILE_LACKS,
    ),
    TargetKind("Zarr 3", ("Zarr3",), f"{_HERE}.zarr3", _LAYOUT | {"consolidated", "shards"}),
    TargetKind(
        "Zarr 2",
        ("Zarr2",),
        f"{_HERE}.zarr2",
        _LAYOUT | {"consolidated", "portable"},
        modes=frozenset({"zarr"}),
    ),
    TargetKind(
        "NCZarr",
        ("NCZarr",),
        f"{_HERE}.zarr2",
        _LAYOUT | {"consolidated", "portable", "compat"},
    ),
)
#: Names of other files, none of which is an archive that can be read.
_OTHERS = (".grib", ".grb", ".grib2", ".grb2", ".csv", ".tif", ".tiff", ".tar", ".tgz", ".gz")
#: All words of ``--format``.
FORMATS: tuple[str, ...] = tuple(word for kind in KINDS for word in kind.formats)


def find_kind(target: str, wanted: str | None) -> tuple[TargetKind, str]:
    """Return the kind of a target, and the word for its format.

    Parameters
    ----------
    target
        A path or URL, whose name decides if no format is wanted.
    wanted
        A word of `FORMATS`.

    Raises
    ------
    UsageError
        If the name means something else.
    URLError
        If the target is a URL that cannot be understood.
    """
    if wanted is not None:
        return next(kind for kind in KINDS if wanted in kind.formats), wanted
    path, mode = target, frozenset[str]()
    if names_url(target):
        mode = parse_url(target).mode
        path = target.partition("#")[0].rstrip("/")
    kind = next((kind for kind in KINDS if kind.is_meant(path, mode)), KINDS[-1])
    if kind is KINDS[-1] and not mode:
        name = path.lower().rstrip("/")
        tree = "with --format NCZarr it becomes a tree of this name"
        if says_references(name):
            writer = "VirtualiZarr" if name.endswith(".icechunk") else "`nczarr aggregate -o`"
            reason = f"is the name of references, which `nczarr copy` does not write: use {writer}"
            raise UsageError(target, f"{reason}; {tree}")
        if name.endswith(_OTHERS):
            raise UsageError(target, f"`nczarr copy` does not write what is named so; {tree}")
    return kind, kind.formats[0]


def refuse_options(kind: TargetKind, options: CopyOptions) -> None:
    """Raise `UsageError` if options were given that other kinds have, but not this one."""
    given = options.given
    wrong = sorted(given - kind.options)
    if not wrong:
        return
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
    for name in wrong:
        if reason := kind.lacks.get(name):
            raise UsageError(f"--{name}", f"not for {kind.name}: {reason}")
    others = [one.name for one in KINDS if given.intersection(wrong) <= one.options]
    rather = f", but for {', '.join(others)}" if others else ""
    raise UsageError(flags, f"not for {kind.name}{rather} (see --format)")
