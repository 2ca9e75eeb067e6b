"""Read what is needed of one file that becomes part of an aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.place import find_beside, find_remote_file
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_fsspec.transport.request import Stamp
from nczarr_xarray.aggregation.labels import Label
from nczarr_xarray.aggregation.names import with_names
from nczarr_xarray.aggregation.summary import Description, describe
from nczarr_xarray.chunks.sources import EncodedChunk
from nczarr_xarray.codecs.registry import need_libhdf5
from nczarr_xarray.dataset.alike_files import AlikeStack, AlikeVariable
from nczarr_xarray.dataset.dataset import Opened, gather_caught
from nczarr_xarray.dataset.file import DataFile, stamp_of
from nczarr_xarray.dataset.fragment_datasets import open_begun, split_address
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.alike import MetadataPattern, movable, moved, read_alike_chunks
from nczarr_xarray.formats.registry import OpenOptions, Source, read_pattern
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
    skips
        Whether files that are no datasets are left out.
    rename
        How variables and dimensions are to be called, by their names in files.
    fills
        Whether a file may lack variables.
    labels
        Coordinates that names or attributes of files say.
    """

    names: frozenset[str]
    scalars: frozenset[str]
    storage_options: Mapping[str, Any] | None
    refuse: Callable[[str, Opened, OpenOptions], None]
    skips: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    fills: bool = False
    labels: tuple[Label, ...] = ()

    @property
    def options(self) -> OpenOptions:
        """How files are opened."""
        return OpenOptions(storage_options=self.storage_options)

    def describe(self, target: str, hierarchy: Hierarchy) -> tuple[Hierarchy, Description]:
        """Return the metadata of a file by the names that are wanted, and what is kept of them."""
        shown = with_names(target, hierarchy, self.rename) if self.rename else hierarchy
        names = self.names - {name for one in self.labels for name in (one.name, f"/{one.name}")}
        if self.fills and names:
            paths = {variable.path.strip("/") for variable in shown.root.all_variables()}
            names = frozenset(name for name in names if name.strip("/") in paths) or names
        description = describe(target, shown, names, self.scalars)
        if self.rename:
            pairs = zip(shown.root.all_variables(), hierarchy.root.all_variables(), strict=True)
            stored = tuple((v.path, own.path) for v, own in pairs if v.path != own.path)
            layout = replace(description.layout, stored=stored)
            description = replace(description, layout=layout)
        for label in self.labels:
            shown, description = label.added(target, shown, description)
        return shown, description

    def read(
        self,
        target: str,
        hierarchy: Hierarchy,
        description: Description,
        values: Iterable[Any],
        stamp: Stamp,
    ) -> Read:
        """Return what was read of a file; raise if values could not be."""
        checked = _checked(target, description, values)
        labels = (label.value(target, hierarchy) for label in self.labels)
        return Read(hierarchy, description, (*checked, *labels), stamp)


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
    stamp
        Of the version of the file.
    """

    hierarchy: Hierarchy
    description: Description
    values: tuple[np.ndarray, ...]
    stamp: Stamp


class _Kind(NamedTuple):
    """What files that are alike have in common.

    Attributes
    ----------
    pattern
        The metadata of one of them.
    hierarchy
        These by the names that are wanted.
    description
        What is kept of them.
    stacks
        What reads the variables that the description wants, of many files at a time; () if they
        are read file by file.
    """

    pattern: MetadataPattern
    hierarchy: Hierarchy
    description: Description
    stacks: tuple[AlikeStack, ...]

    def finished(
        self, targets: Sequence[str], begun: Sequence[Begun], wanted: Wanted
    ) -> list[Read]:
        """Read the values of files; errors as `AlikeStack.read`."""
        columns = []
        for number, stack in enumerate(self.stacks):
            key = (slice(None),) * len(stack.variable.shape)
            chunks = [one.chunks[number] for one in begun]
            columns.append(stack.read(chunks, key, points=False)[1])
        rows = zip(targets, zip(*columns, strict=True), begun, strict=True)
        return [
            wanted.read(target, self.hierarchy, self.description, values, one.stamp)
            for target, values, one in rows
        ]


class Begun(NamedTuple):
    """A file of a kind, of which all that is wanted came with the first answer.

    Attributes
    ----------
    kind
        What it has in common with others.
    chunks
        Of each variable that is wanted.
    stamp
        Of the version of the file.
    """

    kind: _Kind
    chunks: list[list[EncodedChunk]]
    stamp: Stamp


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
        #: by folder: a file that was found last, by which others in it are
        self._likes: dict[str, RemoteFileBytes] = {}

    def find(self, target: str) -> tuple[RemoteFileBytes, Known | None] | None:
        """Find a remote file, as `find_remote_file` does; what a folder has in common, once."""
        folder, name, is_plain = split_address(target)
        like = self._likes.get(folder) if is_plain else None
        file = None if like is None else find_beside(like, name)
        if file is None:
            file = find_remote_file(target, self._wanted.storage_options)
            if file is not None and is_plain and file[0].location[1].endswith(f"/{name}"):
                self._likes = {folder: file[0]}
        return file

    async def read(
        self, target: str, source: RemoteFileBytes, known: Known | None
    ) -> Read | Begun | None:
        """Read what is needed of one file; None if `read_one` does that; errors as `read_files`."""
        try:
            await source.begin(known)
            kind = self._fitting(source)
            begun = None if kind is None else _begun(kind, source)
            if begun is not None:
                return begun
            metadata = _alike(kind, source) if kind else await self._parsed(target, source)
            if metadata is None:
                return None
            hierarchy, description, variables = metadata
            file = DataFile(source)
            readers = [VariableReader(file, variable) for variable in variables]
            values = await gather_caught([reader.read_remote() for reader in readers])
            return self._wanted.read(target, hierarchy, description, values, source.stamp)
        finally:
            source.close()

    def _fitting(self, source: RemoteFileBytes) -> _Kind | None:
        """Return the kind of a file that is like one before."""
        kind = self._kind
        fits = kind is not None and kind.pattern.fits(source.head, source.size)
        return kind if fits else None

    async def _parsed(self, target: str, source: RemoteFileBytes) -> _Found | None:
        """Parse a file; others may be like it."""
        opened = await open_begun(source, self._wanted.options)
        if opened is None:
            return None
        wanted = self._wanted
        hierarchy, description = wanted.describe(target, opened.hierarchy)
        if self._patterns < _MOST_PATTERNS and all(map(movable, description.wanted)):
            self._patterns += 1
            reading = read_pattern(Source(source.url, source), wanted.options)
            pattern = await opened.file.parse_remote(reading)
            if pattern is not None:
                stacks = await _stacks(opened.file, pattern, description.wanted)
                self._kind = _Kind(pattern, hierarchy, description, stacks)
        return _Found(hierarchy, description, description.wanted)


def _alike(kind: _Kind, source: RemoteFileBytes) -> _Found:
    """Return what a file has in common with others of its kind."""
    variables = [moved(v, source.url, source.size) for v in kind.description.wanted]
    return _Found(kind.hierarchy, kind.description, variables)


def _begun(kind: _Kind, source: RemoteFileBytes) -> Begun | None:
    """Return a file of which nothing more has to be read; None if something has."""
    chunks: list[list[EncodedChunk]] = []
    for stack in kind.stacks:
        own = stack.begun(source.head, source.size)
        if own is None:
            return None
        chunks.append(own)
    return Begun(kind, chunks, source.stamp) if kind.stacks else None


async def _stacks(
    file: DataFile, pattern: MetadataPattern, variables: Sequence[Variable]
) -> tuple[AlikeStack, ...]:
    """Return what reads numbers of many files that are alike; () if that cannot be."""
    stacks = []
    for variable in variables:
        array = variable.array
        if array is None or variable.dtype.kind not in "iuf" or need_libhdf5(array.codecs):
            return ()
        chunks = await file.parse_remote(read_alike_chunks(array))
        if chunks is None:
            return ()
        stacks.append(AlikeStack(variable.path, AlikeVariable(pattern, variable), chunks))
    return tuple(stacks)


def read_one(target: str, wanted: Wanted) -> Read:
    """Read what is needed of one file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        wanted.refuse(target, opened, wanted.options)
        hierarchy, description = wanted.describe(target, opened.hierarchy)
        values = opened.read_many([(variable, None) for variable in description.wanted])
        return wanted.read(target, hierarchy, description, values, stamp_of(opened.store))


def read_variable(target: str, wanted: Wanted, variable: Variable) -> np.ndarray:
    """Read all of one variable of a file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        hierarchy, _ = wanted.describe(target, opened.hierarchy)
        group = hierarchy.root.find(variable.group)
        if group is not None and variable.name in group.variables:
            values = opened.read(group.variables[variable.name])
            return values.astype(variable.dtype) if values.dtype.kind == "b" else values
    raise ExportError(target, f"has lost {variable.path}: it changes while it is read")


def _checked(
    target: str, description: Description, values: Iterable[Any]
) -> tuple[np.ndarray, ...]:
    """Return values that were read; raise if they could not be."""
    checked = []
    for variable, value in zip(description.wanted, values, strict=True):
        if isinstance(value, NCZarrError):
            raise ExportError(target, f"has a coordinate that cannot be read: {value}")
        native = variable.dtype.newbyteorder("=")
        values = np.array(value, native, order="C", copy=None)
        checked.append(description.layout.combined(variable.path, values))
    return tuple(checked)
