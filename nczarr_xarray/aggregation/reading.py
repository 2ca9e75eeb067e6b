"""Describe many files at a time: their metadata and their coordinates, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nczarr_fsspec.errors import ExportError, NCZarrError
from nczarr_fsspec.filesystem_place import find_remote_file
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_fsspec.url import is_url
from nczarr_xarray.aggregation.summary import Description, Layout, Summary, describe
from nczarr_xarray.dataset.implied_fill import with_fills
from nczarr_xarray.dataset.open import open_remote, open_with
from nczarr_xarray.formats.collection import collection_paused
from nczarr_xarray.formats.open_options import OpenOptions
from nczarr_xarray.model import Attribute, Group, Hierarchy, Variable

#: Remote files that are being read at a time.
AT_A_TIME = 512
#: Files that are begun together: threads wake each other less often.
_BATCH = 32
#: Threads that read what waits and is no file, such as trees.
_THREADS = 32
#: An attribute: the path of its group or variable, and its name.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of each file.

    Parameters
    ----------
    names, scalars
        See `nczarr_xarray.aggregation.summary.describe`.
    storage_options
        For fsspec.
    """

    names: frozenset[str] = frozenset()
    scalars: frozenset[str] = frozenset()
    storage_options: Mapping[str, Any] | None = None

    @property
    def options(self) -> OpenOptions:
        """How files are opened."""
        return OpenOptions(storage_options=self.storage_options)


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
    _attributes: dict[Key, Attribute] = field(default_factory=dict)
    _layouts: dict[tuple[Layout, tuple[int, ...]], tuple[Layout, tuple[int, ...]]] = field(
        default_factory=dict
    )
    _values: dict[tuple[str, tuple[int, ...], bytes], np.ndarray] = field(default_factory=dict)

    def begin(self, hierarchy: Hierarchy) -> None:
        """Start with the metadata of the first file, or of a master."""
        self.hierarchy = hierarchy
        self._attributes = dict(_attributes(hierarchy))

    def add(self, target: str, read: Read) -> None:
        """Add the next file; what is equal to that of others is kept once."""
        if self.hierarchy is None:
            self.begin(read.hierarchy)
        else:
            self._compare(read.hierarchy)
        found = read.description
        layout, sizes = self._layouts.setdefault(
            (found.layout, found.sizes), (found.layout, found.sizes)
        )
        values = tuple(map(self._shared, read.values))
        self.files.append(Summary(target, layout, sizes, values))

    def _shared(self, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind == "O":
            return values
        key = values.dtype.str, values.shape, values.tobytes()
        return self._values.setdefault(key, values)

    def _compare(self, hierarchy: Hierarchy) -> None:
        own = dict(_attributes(hierarchy))
        for key in self._attributes.keys() | own.keys():
            if key not in self.differing and not _same(self._attributes.get(key), own.get(key)):
                self.differing.add(key)


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


def read_files(
    targets: Sequence[str], wanted: Wanted, done: Callable[[], object], into: Summaries
) -> None:
    """Read what is needed of files.

    Parameters
    ----------
    done
        Called after each file.
    into
        What to add the files to.

    Raises
    ------
    NCZarrError
        Naming the file that cannot be opened, or has not what is wanted.
    """
    for target, read in zip(targets, _read_all(targets, wanted), strict=True):
        into.add(target, read)
        done()


def _read_all(targets: Sequence[str], wanted: Wanted) -> Iterator[Read]:
    """Yield what is read of files, in their order; many that are far away wait at the same time."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="nczarr-aggregate") as pool:
        waiting: deque[_Batch] = deque()
        try:
            for at in range(0, len(targets), _BATCH):
                waiting.append(_Batch.begin(targets[at : at + _BATCH], wanted, pool))
                if len(waiting) * _BATCH >= AT_A_TIME:
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
    remote: Future[dict[int, Read | BaseException | None]] | None
    others: Mapping[int, Future[Read]]

    @classmethod
    def begin(cls, targets: Sequence[str], wanted: Wanted, pool: ThreadPoolExecutor) -> _Batch:
        """Begin to read what is far away."""
        others: dict[int, Future[Read]] = {}
        remote: dict[int, tuple[str, RemoteFileBytes, Known | None]] = {}
        for number, target in enumerate(targets):
            if not is_url(target) or os.path.lexists(target):
                continue
            found = find_remote_file(target, wanted.storage_options)
            if found is None:
                others[number] = pool.submit(read_one, target, wanted)
            else:
                remote[number] = (target, *found)
        future = None
        if remote:
            loop = next(iter(remote.values()))[1].loop
            future = asyncio.run_coroutine_threadsafe(_read_together(remote, wanted), loop)
        return cls(targets, wanted, future, others)

    def results(self) -> list[Read]:
        """Return what was read, waiting for it; files that are here are read now."""
        with collection_paused():  # each file leaves objects that stay
            remote = {} if self.remote is None else self.remote.result()
            return [
                self._result(number, target, remote.get(number))
                for number, target in enumerate(self.targets)
            ]

    def _result(self, number: int, target: str, found: Read | BaseException | None) -> Read:
        if isinstance(found, BaseException):
            raise found
        if found is None and number in self.others:
            found = self.others[number].result()
        return read_one(target, self.wanted) if found is None else found

    def cancel(self) -> None:
        """End what has not ended."""
        for future in (self.remote, *self.others.values()):
            if future is not None:
                future.cancel()


async def _read_together(
    remote: Mapping[int, tuple[str, RemoteFileBytes, Known | None]], wanted: Wanted
) -> dict[int, Read | BaseException | None]:
    """Read remote files at the same time."""
    reads = (_read_remote(*one, wanted) for one in remote.values())
    found = await asyncio.gather(*reads, return_exceptions=True)
    return dict(zip(remote, found, strict=True))


async def _read_remote(
    target: str, source: RemoteFileBytes, known: Known | None, wanted: Wanted
) -> Read | None:
    """Read what is needed of a remote file, on its loop; None if `read_one` does that."""
    try:
        opened = await open_remote(source, known, wanted.options)
        if opened is None:
            return None
        description = describe(target, opened.hierarchy, wanted.names, wanted.scalars)
        reads = (opened.reader(variable).read_remote() for variable in description.wanted)
        values = await asyncio.gather(*reads, return_exceptions=True)
        for value in values:
            if isinstance(value, BaseException) and not isinstance(value, NCZarrError):
                raise value
        return Read(opened.hierarchy, description, _checked(target, description, values))
    finally:
        source.close()


def read_one(target: str, wanted: Wanted) -> Read:
    """Read what is needed of one file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        hierarchy = with_fills(opened.hierarchy)
        description = describe(target, hierarchy, wanted.names, wanted.scalars)
        values = opened.read_many([(variable, None) for variable in description.wanted])
        return Read(hierarchy, description, _checked(target, description, values))


def read_variable(target: str, wanted: Wanted, variable: Variable) -> np.ndarray:
    """Read all of one variable of a file; errors as `read_files`."""
    with open_with(target, wanted.options) as opened:
        for group in opened.hierarchy.root.walk():
            if group.path == variable.group:
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
        found.append(np.array(value, native, order="C", copy=None))
    return tuple(found)


def _attributes(hierarchy: Hierarchy) -> Iterator[tuple[Key, Attribute]]:
    for group in hierarchy.root.walk():
        yield from _of(group.path, group)
        for variable in group.variables.values():
            for attribute in variable.attributes.values():
                yield (f"{variable.path}:", attribute.name), attribute


def _of(path: str, group: Group) -> Iterator[tuple[Key, Attribute]]:
    for attribute in group.attributes.values():
        yield (path, attribute.name), attribute


def _same(one: Attribute | None, other: Attribute | None) -> bool:
    if one is None or other is None or one.type != other.type:
        return False
    if isinstance(one.value, np.ndarray) or isinstance(other.value, np.ndarray):
        floats = getattr(one.value, "dtype", np.dtype("i1")).kind == "f"
        return np.array_equal(one.value, other.value, equal_nan=floats)
    return one.value == other.value
