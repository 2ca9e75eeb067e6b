"""Several files as one dataset, joined along their first dimension."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from glob import glob
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ma

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.places.url import is_url
from nczarr_xarray.netcdf4.dataset import OF_SEVERAL_FILES, Dataset
from nczarr_xarray.netcdf4.indexing import split
from nczarr_xarray.netcdf4.variable import Variable

#: Remote files, or parts of them, that are opened or read at the same time.
_AT_ONCE = 64
#: Where the only run of no positions begins and ends.
_NOTHING = np.zeros(2, np.intp)


class MFDataset(Dataset):
    """A dataset of several files that share a dimension, the first of their variables.

    Parameters
    ----------
    files
        Names of files of any format that `Dataset` reads, in the order in which they are joined,
        or a pattern of local files, which are sorted by name.
    check
        Whether all files must declare the joined variables alike.
    aggdim
        The dimension to join; None for the unlimited one.
    exclude
        Names of variables that are not joined.
    master_file
        The file whose variables and attributes the dataset has; None for the first.
    **options
        As of `Dataset`, for each file.

    Raises
    ------
    OSError
        If there are no files, or there is nothing to join, or, with `check`, files disagree.
    ValueError
        If `master_file` is none of `files`.
    """

    __slots__ = ("_parts",)

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[Any],
        check: bool = False,
        aggdim: str | None = None,
        exclude: Sequence[str] = (),
        master_file: Any = None,
        **options: Any,
    ) -> None:
        if isinstance(files, (str, os.PathLike)):
            if is_url(pattern := os.fspath(files)):
                reason = "cannot use file globbing for remote datasets: give a list of names"
                raise ValueError(reason)
            files = sorted(glob(pattern))
        names = list(files)
        if not names:
            raise OSError("no files specified (file list is empty)")
        if master_file is not None and master_file not in names:
            raise ValueError("master_file not in files list")
        master = names[0] if master_file is None else master_file
        parts = _at_once([partial(Dataset, name, **options) for name in names])
        self._parts = parts
        first = parts[names.index(master)]
        along: Any = None
        for one in first.dimensions.values():
            if along is None and (one.isunlimited() if aggdim is None else one.name == aggdim):
                along = one.name
        if along is None:
            raise OSError(f"master dataset {master} does not have a aggregation dimension")
        file = copy(first._file)  # noqa: SLF001 - it is a dataset, too
        file.dimensions = {}  # of which one becomes longer
        self._begin(file, None, file.root, keepweakref=False)
        joined = [
            name
            for name, variable in self.variables.items()
            if name not in exclude and variable.dimensions[:1] == (along,)
        ]
        if not joined:
            raise OSError(f"master dataset {master} does not have any variables to aggregate")
        dimension = self.dimensions[along]
        dimension._unlimited = True  # noqa: SLF001
        dimension._size = sum(len(part.dimensions[along]) for part in parts)  # noqa: SLF001
        for name in joined:
            if check:
                _check(name, first, parts, names, master)
            members = [part.variables[name] for part in parts]
            self.variables[name] = _Joined(self.variables[name], members)

    def isopen(self) -> bool:
        """Tell whether all files are open."""
        return all(part.isopen() for part in self._parts)

    def close(self) -> None:
        """Release all files."""
        for part in self._parts:
            part.close()

    def __reduce__(self) -> Any:
        raise NotImplementedError("MFDataset is not picklable")


OF_SEVERAL_FILES.append(MFDataset)


class _Joined(Variable):
    """A variable of several files."""

    __slots__ = ("_members",)

    def __init__(self, first: Variable, members: Sequence[Variable]) -> None:
        super().__init__(
            first.group(),
            first.name,
            first.datatype,
            first.get_dims(),
            first._attributes,  # noqa: SLF001 - it takes the place of `first`
            first._elements,  # noqa: SLF001
        )
        self._members = members

    def _switch(self, **changes: bool) -> None:
        super()._switch(**changes)
        for member in self._members:
            member._switch(**changes)  # noqa: SLF001

    def typecode(self) -> Any:
        """Return the dtype."""
        return self.dtype

    def __getitem__(self, elem: Any) -> Any:
        """Return the values of each file, decoded by its own attributes, one behind the other."""
        key = split(elem, self.shape)
        index, rest = key[0], key[1:]
        bounds = np.cumsum([0, *(len(member) for member in self._members)])
        if isinstance(index, int):
            which = int(np.searchsorted(bounds, index, side="right")) - 1
            return self._members[which][(index - int(bounds[which]), *rest)]
        if isinstance(index, slice):
            index = np.arange(*index.indices(int(bounds[-1])))
        owners = np.searchsorted(bounds, index, side="right") - 1
        # runs of positions that are in one file
        edges = np.flatnonzero(np.diff(owners, prepend=-1, append=-1)) if len(index) else _NOTHING
        reads = []
        for low, high in pairwise(edges.tolist()):
            which = int(owners[low]) if len(index) else 0
            within = _as_slice(index[low:high] - bounds[which])
            reads.append(partial(self._members[which].__getitem__, (within, *rest)))
        values = _at_once(reads) if len(reads) > 1 else [read() for read in reads]
        if len(values) == 1:
            return values[0]
        joined = ma.concatenate if any(map(ma.isMaskedArray, values)) else np.concatenate
        return joined(values)


def _as_slice(positions: np.ndarray) -> Any:
    """Return positions as a slice, if they ascend evenly."""
    if len(positions) == 0:
        return slice(0, 0)
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    if step > 0 and np.all(np.diff(positions) == step):
        return slice(int(positions[0]), int(positions[-1]) + 1, step)
    return positions


class MFTime:
    """The times of a multi-file dataset, in the units of one file.

    Parameters
    ----------
    time
        A variable of an `MFDataset`.
    units
        The units to have; None for those of `time`.
    calendar
        The calendar of all files; None to take theirs, which must be one.

    Raises
    ------
    ValueError
        If files have no calendar, or several.
    """

    def __init__(
        self, time: Variable, units: str | None = None, calendar: str | None = None
    ) -> None:
        from datetime import datetime

        import cftime

        if not isinstance(time, _Joined):
            raise TypeError(f"{time.name!r} is not a variable of several files")
        members = time._members  # noqa: SLF001 - both are of this module
        if calendar is None:
            calendars = {getattr(member, "calendar", None) for member in members}
            if len(calendars) > 1 or None in calendars:
                raise ValueError(
                    "MFTime requires that the time variable in all files have the same calendar "
                    "attribute if no default calendar is provided."
                )
            (calendar,) = calendars
        self._time = time
        self.calendar = calendar
        self.units = time.units if units is None else units
        day = datetime(1900, 1, 1)  # noqa: DTZ001 - cftime wants none
        number = cftime.date2num(day, self.units, calendar)
        shifts = [number - cftime.date2num(day, member.units, calendar) for member in members]
        self._shift = np.repeat(shifts, [len(member) for member in members]).astype(time.dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._time, name)

    def __len__(self) -> int:
        return len(self._time)

    def __getitem__(self, elem: Any) -> Any:
        return self._time[elem] + self._shift[elem]


def _at_once(calls: Sequence[Any]) -> list[Any]:
    """Return what calls return that may wait for a network, made at the same time."""
    with WaitingThreads(min(_AT_ONCE, len(calls))) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


def _check(
    name: str, first: Dataset, parts: Sequence[Dataset], files: Sequence[Any], master: Any
) -> None:
    """Raise `OSError` if a joined variable is declared otherwise in one of the files."""
    own = first.variables[name]

    def declared(variable: Variable) -> tuple[Any, ...]:
        return variable.dimensions, variable.shape[1:], variable.dtype

    for part, file in zip(parts, files, strict=True):
        if name not in part.variables:
            raise OSError(f"aggregation variable {name} not defined in {file}")
        other = part.variables[name]
        pairs = zip(declared(own), declared(other), strict=True)
        for what, (ours, theirs) in zip(("dimensions", "shape", "data type"), pairs, strict=True):
            if ours != theirs:
                raise OSError(
                    f"variable {name} : {what} mismatch between master {master} ({ours}) and "
                    f"extension {file} ({theirs})"
                )
