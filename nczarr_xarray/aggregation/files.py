"""Read what is needed of one file that becomes part of an aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_xarray.aggregation.summary import Description, describe
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.open_fragments import open_begun
from nczarr_xarray.dataset.opened import Opened, gather_caught
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.alike import HierarchyPattern, movable, moved
from nczarr_xarray.formats.format import Source
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.formats.registry import read_pattern
from nczarr_xarray.model import Hierarchy, Variable

#: Files whose pattern is read, at most: of files of many kinds there is nothing to be gained.
_MOST_PATTERNS = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of each file.

    Parameters
    ----------
    names, scalars
        See `nczarr_xarray.aggregation.summary.describe`.
    storage_options
        Options of the target's filesystem (fsspec).
    refuse
        Raises `ExportError` if an open file must not be among them, given its name and options.
    """

    names: frozenset[str]
    scalars: frozenset[str]
    storage_options: Mapping[str, Any] | None
    refuse: Callable[[str, Opened, OpenOptions], None]

    @property
    def options(self) -> OpenOptions:
        """How files are opened."""
        return OpenOptions(storage_options=self.storage_options)


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of one file.

    Parameters
    ----------
    hierarchy
        All metadata.
    description
        What is kept of them.
    values
        Of the variables that the description wants.
    """

    hierarchy: Hierarchy
    description: Description
    values: tuple[np.ndarray, ...]


class _Kind(NamedTuple):
    """What files that are alike have in common.

    Attributes
    ----------
    pattern
        The metadata of one of them.
    description
        What is kept of these.
    """

    pattern: HierarchyPattern
    description: Description


class _Found(NamedTuple):
    """The metadata of one file.

    Attributes
    ----------
    hierarchy
        All of them.
    description
        What is kept of them.
    variables
        Those that the description wants, in this file.
    """

    hierarchy: Hierarchy
    description: Description
    variables: Sequence[Variable]


class RemoteFiles:
    """Reads remote files, on their loop. Of those that are alike, one is parsed.

    Parameters
    ----------
    wanted
        What is wanted of each.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._kind: _Kind | None = None
        self._patterns = 0

    async def read(self, target: str, source: RemoteFileBytes, known: Known | None) -> Read | None:
        """Read what is needed of one file; None if `read_one` does that; errors as `read_files`."""
        try:
            await source.begin(known)
            found = self._alike(source) or await self._parsed(target, source)
            if found is None:
                return None
            hierarchy, description, variables = found
            file = DataFile(source)
            readers = [VariableReader(file, variable) for variable in variables]
            values = await gather_caught([reader.read_remote() for reader in readers])
            return Read(hierarchy, description, _checked(target, description, values))
        finally:
            source.close()

    def _alike(self, source: RemoteFileBytes) -> _Found | None:
        """Return what a file has in common with one before; None if it is not alike."""
        kind = self._kind
        if kind is None or not kind.pattern.fits(source.head[: kind.pattern.stop], source.size):
            return None
        variables = [moved(v, source.url, source.size) for v in kind.description.wanted]
        return _Found(kind.pattern.hierarchy, kind.description, variables)

    async def _parsed(self, target: str, source: RemoteFileBytes) -> _Found | None:
        """Parse a file; others may be like it."""
        opened = await open_begun(source, self._wanted.options)
        if opened is None:
            return None
        hierarchy, wanted = opened.hierarchy, self._wanted
        description = describe(target, hierarchy, wanted.names, wanted.scalars)
        if self._patterns < _MOST_PATTERNS and all(map(movable, description.wanted)):
            self._patterns += 1
            reading = read_pattern(Source(source.url, source), wanted.options)
            pattern = await opened.file.parse_remote(reading)
            self._kind = self._kind if pattern is None else _Kind(pattern, description)
        return _Found(hierarchy, description, description.wanted)


def read_one(target: str, wanted: Wanted) -> Read:
    """Read what is needed of one file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        wanted.refuse(target, opened, wanted.options)
        hierarchy = opened.hierarchy
        description = describe(target, hierarchy, wanted.names, wanted.scalars)
        values = opened.read_many([(variable, None) for variable in description.wanted])
        return Read(hierarchy, description, _checked(target, description, values))


def read_variable(target: str, wanted: Wanted, variable: Variable) -> np.ndarray:
    """Read all of one variable of a file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        group = opened.hierarchy.root.find(variable.group)
        if group is not None and variable.name in group.variables:
            return opened.read(group.variables[variable.name])
    raise ExportError(target, f"has lost {variable.path}: it changes while it is read")


def _checked(
    target: str, description: Description, values: Iterable[Any]
) -> tuple[np.ndarray, ...]:
    """Return values that were read; raise if they could not be."""
    found = []
    for variable, value in zip(description.wanted, values, strict=True):
        if isinstance(value, NCZarrError):
            raise ExportError(target, f"has a coordinate that cannot be read: {value}")
        native = variable.dtype.newbyteorder("=")
        values = np.array(value, native, order="C", copy=None)
        found.append(description.layout.combined(variable.path, values))
    return tuple(found)
