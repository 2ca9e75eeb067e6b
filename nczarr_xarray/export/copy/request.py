"""What is asked of a copy, and the table of the kinds of target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import NCZarrWarning, UsageError, caller_level, on_error
from nczarr_fsspec.places.names import TREES, names_url, says_references
from nczarr_fsspec.places.url import parse_url
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray._version import __version__
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.export.options import CopyOptions
from nczarr_xarray.export.progress import Progress

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.export.copy.selection import Selection
    from nczarr_xarray.export.write_task import WriteTask


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What is asked of a copy, whatever the kind of its target is.

    Parameters
    ----------
    source, target
        Paths or URLs.
    format
        One of the words for formats of the kind.
    opening
        Arguments for opening the source.
    selection
        What is copied of it.
    target_options
        Storage options of the target.
    overwrite
        Whether a dataset at the target is replaced.
    shown
        Whether a progress bar is shown.
    tell
        Takes the lines of the plan.
    options
        Those that the kind has besides these; others have no meaning for it.
    """

    source: str
    target: str
    format: str
    opening: Mapping[str, Any]
    selection: Selection
    target_options: Mapping[str, Any] | None
    overwrite: bool
    shown: bool
    tell: Callable[[str], object]
    options: CopyOptions

    def open(self) -> Opened:
        """Open the source, as it is to be copied.

        Raises
        ------
        NCZarrError
            If it cannot be opened.
        UsageError
            If it lacks what was named.
        """
        from nczarr_xarray.dataset.open import open_hierarchy
        from nczarr_xarray.export.form.lacking import as_netcdf_names, suited

        opened = open_hierarchy(self.source, **self.opening)
        with on_error(opened.close):
            opened = suited(opened, self.format, self.selection.variables)
            source = as_netcdf_names(self.selection.of(opened), self.format)
            declared = (group.dimensions for group in source.hierarchy.root.walk())
            self.check_names({name for dimensions in declared for name in dimensions})
            return source

    @property
    def memory(self) -> int | None:
        """Bytes that a process that reads and writes data may take; None if there is no limit.

        Raises
        ------
        UsageError
            If there are too many processes for what is given.
        """
        from nczarr_xarray.export.steps import share

        memory, workers = self.options.memory, self.options.workers
        return memory if memory is None or workers is None else share(memory, workers)

    @property
    def mode(self) -> Literal["w", "w-"]:
        """The mode of writing."""
        return "w" if self.overwrite else "w-"

    def resumption(self, source: Opened) -> Resumption | None:
        """Return what tells this copy from all others, if it is to be continued, and can be."""
        if not self.options.resume:
            return None
        state = source.state()
        if state is None:
            reason = "it cannot be known whether it has changed, so --resume begins the copy anew"
            warnings.warn(f"{self.source}: {reason}", NCZarrWarning, stacklevel=caller_level())
            return None
        where = (self.source, sorted(self.opening.items()), state)
        what = (self.selection, self.format, self.options)
        return Resumption.of(__version__, processors(), where, what)

    def run(self, task: WriteTask) -> None:
        """Carry out what is planned; if memory is limited, tell the plan before.

        Raises
        ------
        NCZarrError
            If that fails, or there is too little memory.
        """
        if self.options.memory is not None:
            with task.or_nothing():
                for step in task.steps():
                    self.tell(str(step))
        with self.progress() as progress:
            task.run(progress)

    def cluster(self) -> AbstractContextManager[None]:
        """Return a context in which the workers that were asked for do the work."""
        from nczarr_xarray.export.parallel import connected

        given = self.options.given
        if "resume" in given and given & {"workers", "scheduler"}:
            # (workers may go on when this process has died)
            reason = "is for one process: leave out --workers and --scheduler"
            raise UsageError("--resume", reason)
        if {"memory", "scheduler"} <= given:
            reason = "is for processes of this machine: --workers, not --scheduler"
            raise UsageError("--memory", reason)
        return connected(self.options.workers, self.options.scheduler)

    def progress(self) -> Progress:
        """Return a progress bar, a context manager."""
        return Progress("copy", shown=self.shown)

    def check_names(self, names: Collection[str]) -> None:
        """Raise `UsageError` for lengths of dimensions that are not among `names`."""
        for option in ("chunks", "shards", "subarray_shape"):
            for name in getattr(self.options, option) or ():
                if name not in names:
                    known = f"there are {', '.join(sorted(names))}" if names else "there is none"
                    reason = f"no dimension is called {name!r}; {known}{did_you_mean(name, names)}"
                    raise UsageError(f"--{option.replace('_', '-')}", reason)


# -- kinds of target -------------------------------------------------------------------------------
# A new kind is a row here, and a module if it is like none.


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
        "nczarr_xarray.export.cfa.to_cfa",
        _PARALLEL | {"cfa_version", "max_object_size", "subarray_shape", "subarray_path"},
        suffixes=(".nca",),
        says=frozenset({"Conventions"}),
    ),
    TargetKind(
        "netCDF-4",
        ("NETCDF4",),
        f"{_HERE}.netcdf",
        frozenset({"fixed", "memory", "chunks", "optimize", "compress", "cmip7"}),
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
