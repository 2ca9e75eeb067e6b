"""What is asked of a copy, and what a kind of target says of itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import NCZarrWarning, UsageError, caller_level, on_error
from nczarr_fsspec.places.names import TREES
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray._version import __version__
from nczarr_xarray.chunks.threads import processors
from nczarr_xarray.export.progress import Progress

if TYPE_CHECKING:
    from nczarr_xarray.dataset.dataset import Opened
    from nczarr_xarray.export.copy_layout import CopyLayout
    from nczarr_xarray.export.selection import Selection
    from nczarr_xarray.export.write_task import WriteTask
    from nczarr_xarray.model import CodecConfig


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options that only some kinds of target have; one that has its default was not given.

    Parameters
    ----------
    chunks, optimize, compress
        See `CopyLayout`.
    fixed
        As of `Selection`.
    memory
        Bytes that the program, with its workers, may take.
    resume
        Whether the copy continues, and can be continued.
    workers, scheduler
        See `nczarr_xarray.export.workers.connected`.
    consolidated, portable, compat
        As of `WriteOptions`.
    shards
        Lengths of shards by name of a dimension.
    cfa_version, max_object_size
        As of `to_cfa`.
    """

    chunks: Mapping[str, int] | None = None
    optimize: bool = False
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

    @property
    def given(self) -> frozenset[str]:
        """The names of those that were given."""
        return frozenset(f.name for f in fields(self) if getattr(self, f.name) != f.default)


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

    @property
    def layout(self) -> CopyLayout:
        """The differences of the storage from that of the source."""
        from nczarr_xarray.export.copy_layout import CopyLayout

        options = self.options
        return CopyLayout(options.chunks, options.compress, balanced=options.optimize)

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
        from nczarr_xarray.export.selection import as_netcdf_names, suited

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
        from nczarr_xarray.export.memory import share

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
        from nczarr_xarray.export.workers import connected

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
        lengths = {"chunks": self.options.chunks, "shards": self.options.shards}
        for option, given in lengths.items():
            for name in given or ():
                if name not in names:
                    known = f"there are {', '.join(sorted(names))}" if names else "there is none"
                    reason = f"no dimension is called {name!r}; {known}{did_you_mean(name, names)}"
                    raise UsageError(f"--{option}", reason)


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
