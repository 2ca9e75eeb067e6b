"""Describe many files at a time: their metadata and their coordinates, and nothing else."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import (
    ExportError,
    FormatError,
    NCZarrError,
    NCZarrWarning,
    caller_level,
)
from nczarr_fsspec.place import find_beside, find_remote_file
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_fsspec.transport.request import Stamp
from nczarr_xarray.aggregation.checks import equal_values
from nczarr_xarray.aggregation.labels import Label
from nczarr_xarray.aggregation.names import with_names
from nczarr_xarray.aggregation.summary import Description, Layout, Summary, describe
from nczarr_xarray.chunks.sources import EncodedChunk
from nczarr_xarray.codecs.registry import need_libhdf5
from nczarr_xarray.dataset.alike_files import AlikeStack, AlikeVariable
from nczarr_xarray.dataset.dataset import Opened, gather_caught
from nczarr_xarray.dataset.file import DataFile, stamp_of
from nczarr_xarray.dataset.fragment_datasets import open_begun, split_address
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.formats.alike import MetadataPattern, movable, moved, read_alike_chunks
from nczarr_xarray.formats.registry import OpenOptions, Source, read_pattern
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable

# -- files ---------------------------------------------------------------------------------------
# Read what is needed of one file that becomes part of an aggregation.


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
        self, targets: Sequence[str], begun: Sequence[_Begun], wanted: Wanted
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


class _Begun(NamedTuple):
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
    ) -> Read | _Begun | None:
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


def _begun(kind: _Kind, source: RemoteFileBytes) -> _Begun | None:
    """Return a file of which nothing more has to be read; None if something has."""
    chunks: list[list[EncodedChunk]] = []
    for stack in kind.stacks:
        own = stack.begun(source.head, source.size)
        if own is None:
            return None
        chunks.append(own)
    return _Begun(kind, chunks, source.stamp) if kind.stacks else None


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


# -- reading -------------------------------------------------------------------------------------


#: Remote files that are being read at a time.
AT_A_TIME = 512
#: Files that are begun together: threads wake each other less often.
BATCH = 32
#: Threads that read what waits and is no file, such as trees.
_THREADS = 32
#: An attribute: the path of its group or variable, and its name.
Key = tuple[str, str]


@dataclass(slots=True)
class Summaries:
    """Files that become parts of an aggregation, as they come.

    Attributes
    ----------
    files : list of Summary
    hierarchy : Hierarchy
        Of the first file.
    differing : set
        Attributes that are not the same in all files.
    """

    files: list[Summary] = field(default_factory=list)
    hierarchy: Hierarchy | None = None
    differing: set[Key] = field(default_factory=set)
    _hierarchies: dict[Layout, Hierarchy] = field(default_factory=dict)
    _attributes: dict[str, Mapping[str, Attribute]] = field(default_factory=dict)
    _layouts: dict[tuple[Layout, tuple[int, ...]], tuple[Layout, tuple[int, ...]]] = field(
        default_factory=dict
    )
    _values: dict[tuple[str, tuple[int, ...], bytes], np.ndarray] = field(default_factory=dict)
    _compared: Hierarchy | None = None

    def begin(self, hierarchy: Hierarchy) -> None:
        """Start with the metadata of the first file, or of a master."""
        self.hierarchy = hierarchy
        self._compare(hierarchy)

    def add(self, target: str, read: Read) -> None:
        """Add the next file; what is equal to that of others is kept once."""
        if self.hierarchy is None:
            self.begin(read.hierarchy)
        elif read.hierarchy is not self._compared:
            self._compare(read.hierarchy)
        self._compared = read.hierarchy  # that of files which are alike
        description = read.description
        layout, sizes = self._layouts.setdefault(
            (description.layout, description.sizes), (description.layout, description.sizes)
        )
        if not self.files or layout is not self.files[-1].layout:
            self._hierarchies.setdefault(layout, read.hierarchy)
        values = tuple(map(self._shared, read.values))
        self.files.append(Summary(target, layout, sizes, values, read.stamp))

    def whole(self) -> Hierarchy:
        """Return the metadata of the first file, with variables that only others have."""
        assert self.hierarchy is not None
        whole = _copy(self.hierarchy.root)
        for other in self._hierarchies.values():
            for group in other.root.walk():
                own = whole.find(group.path)
                if own is not None:
                    for name, dimension in group.dimensions.items():
                        own.dimensions.setdefault(name, dimension)
                    for name, variable in group.variables.items():
                        own.variables.setdefault(name, variable)
        return replace(self.hierarchy, root=whole)

    def _shared(self, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind == "O":
            return values
        key = values.dtype.str, values.shape, values.tobytes()
        return self._values.setdefault(key, values)

    def _compare(self, hierarchy: Hierarchy) -> None:
        """Find the attributes of groups and variables that are others than before."""
        for path, attributes in _attributes(hierarchy):
            known = self._attributes.setdefault(path, attributes)
            for name in known.keys() | attributes.keys():
                key = path, name
                if key not in self.differing and not _same(known.get(name), attributes.get(name)):
                    self.differing.add(key)


def read_files(
    targets: Sequence[str],
    wanted: Wanted,
    done: Callable[[], object],
    into: Summaries,
    refuse: Callable[[str, NCZarrError], None],
) -> list[int]:
    """Read what is needed of files.

    Parameters
    ----------
    done
        Called after each file.
    into
        What to add the files to.
    refuse
        Called with a file that cannot be opened, or has not what is wanted, and the error; it may
        raise that.

    Returns
    -------
    list of int
        The numbers of the files that were added.

    Warns
    -----
    NCZarrWarning
        Naming a file that is left out.
    """
    added = []
    for number, (target, read) in enumerate(zip(targets, _read_all(targets, wanted), strict=True)):
        if isinstance(read, Read):
            into.add(target, read)
            added.append(number)
        elif wanted.skips and isinstance(read, FormatError):
            warnings.warn(f"{read}; it is left out", NCZarrWarning, stacklevel=caller_level())
        else:
            refuse(target, read)
        done()
    return added


def _read_all(targets: Sequence[str], wanted: Wanted) -> Iterator[Read | NCZarrError]:
    """Yield what is read of files, in their order; many that are far away wait at the same time."""
    remote = RemoteFiles(wanted)
    with WaitingThreads(_THREADS, thread_name_prefix="nczarr-aggregate") as pool:
        waiting: deque[_Batch] = deque()
        try:
            for at in range(0, len(targets), BATCH):
                waiting.append(_Batch.begin(targets[at : at + BATCH], wanted, remote, pool))
                if len(waiting) * BATCH >= AT_A_TIME:
                    yield from waiting.popleft().results()
            while waiting:
                yield from waiting.popleft().results()
        finally:
            for batch in waiting:
                batch.cancel()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Files that are begun to be read together.

    Parameters
    ----------
    targets
        The files.
    wanted
        What is wanted of each.
    remote
        What is read of remote files on their loop, by number: this, why not, or None for what
        `read_one` reads.
    others
        What is read of others that are far away, by number.
    """

    targets: Sequence[str]
    wanted: Wanted
    remote: Future[dict[int, Read | _Begun | BaseException | None]] | None
    others: Mapping[int, Future[Read]]

    @classmethod
    def begin(
        cls,
        targets: Sequence[str],
        wanted: Wanted,
        files: RemoteFiles,
        pool: WaitingThreads,
    ) -> _Batch:
        """Begin to read what is far away."""
        others: dict[int, Future[Read]] = {}
        remote: dict[int, tuple[str, RemoteFileBytes, Known | None]] = {}
        for number, target in enumerate(targets):
            if not names_url(target):
                continue
            file = files.find(target)
            if file is None:
                others[number] = pool.submit(read_one, target, wanted)
            else:
                remote[number] = (target, *file)
        future = None
        if remote:
            loop = next(iter(remote.values()))[1].loop
            future = asyncio.run_coroutine_threadsafe(_read_together(files, remote), loop)
        return cls(targets, wanted, future, others)

    def results(self) -> list[Read | NCZarrError]:
        """Return what was read, waiting for it; files that are here are read now."""
        with collection_paused():  # each file leaves objects that stay
            remote = {} if self.remote is None else self._finished(self.remote.result())
            return [
                self._result(number, target, remote.get(number))
                for number, target in enumerate(self.targets)
            ]

    def _finished(
        self, found: Mapping[int, Read | _Begun | BaseException | None]
    ) -> dict[int, Read | BaseException | None]:
        """Read the values of files that are alike, of all of a kind together."""
        finished = {n: one for n, one in found.items() if not isinstance(one, _Begun)}
        begun = {n: one for n, one in found.items() if isinstance(one, _Begun)}
        for kind in {id(one.kind): one.kind for one in begun.values()}.values():
            own = {n: one for n, one in begun.items() if one.kind is kind}
            with suppress(NCZarrError):  # in which one it is shows when each is read by itself
                reads = kind.finished([self.targets[n] for n in own], [*own.values()], self.wanted)
                finished |= dict(zip(own, reads, strict=True))
        return finished

    def _result(
        self, number: int, target: str, read: Read | BaseException | None
    ) -> Read | NCZarrError:
        """Return what was read of a file, or why it was not."""
        try:
            if isinstance(read, BaseException):
                raise read
            if read is None and number in self.others:
                read = self.others[number].result()
            return read_one(target, self.wanted) if read is None else read
        except NCZarrError as error:
            return error

    def cancel(self) -> None:
        """End what has not ended."""
        for future in (self.remote, *self.others.values()):
            if future is not None:
                future.cancel()


def _copy(group: Group) -> Group:
    """Return a group to which others of its dimensions and variables can be added."""
    groups = {name: _copy(child) for name, child in group.groups.items()}
    dimensions, variables = dict(group.dimensions), dict(group.variables)
    return replace(group, dimensions=dimensions, variables=variables, groups=groups)


async def _read_together(
    files: RemoteFiles, remote: Mapping[int, tuple[str, RemoteFileBytes, Known | None]]
) -> dict[int, Read | _Begun | BaseException | None]:
    """Read remote files at the same time."""
    reads = (files.read(*one) for one in remote.values())
    results = await asyncio.gather(*reads, return_exceptions=True)
    return dict(zip(remote, results, strict=True))


def _attributes(hierarchy: Hierarchy) -> Iterator[tuple[str, Mapping[str, Attribute]]]:
    for group in hierarchy.root.walk():
        yield group.path, group.attributes
        for variable in group.variables.values():
            yield f"{variable.path}:", without_enum(variable).attributes


def _same(one: Attribute | None, other: Attribute | None) -> bool:
    """Tell whether attributes say the same, whatever netCDF's types of it are."""
    if one is None or other is None:
        return False
    left, right = (
        v[0] if isinstance(v, tuple) and len(v) == 1 else v for v in (one.value, other.value)
    )
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return equal_values(left, right)
    return type(left) is type(right) and bool(left == right)
