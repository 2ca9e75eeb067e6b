"""What is asked of a copy, whatever the kind of its target is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import NCZarrWarning, UsageError, caller_level, on_error
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
        from nczarr_xarray.export.form.lacking import suited
        from nczarr_xarray.export.form.names import as_netcdf_names

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
        lengths = {"chunks": self.options.chunks, "shards": self.options.shards}
        for option, given in lengths.items():
            for name in given or ():
                if name not in names:
                    known = f"there are {', '.join(sorted(names))}" if names else "there is none"
                    reason = f"no dimension is called {name!r}; {known}{did_you_mean(name, names)}"
                    raise UsageError(f"--{option}", reason)
