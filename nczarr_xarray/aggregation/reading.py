"""Describe many files at a time: their metadata and their coordinates, and nothing else."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.place import find_remote_file
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_xarray.aggregation.checks import equal_values
from nczarr_xarray.aggregation.files import Read, RemoteFiles, Wanted, read_one
from nczarr_xarray.aggregation.summary import Layout, Summary
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.formats.collection import collection_paused
from nczarr_xarray.model import Attribute, Hierarchy

#: Remote files that are being read at a time.
AT_A_TIME = 512
#: Files that are begun together: threads wake each other less often.
_BATCH = 32
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
    _attributes: dict[Key, Attribute] = field(default_factory=dict)
    _layouts: dict[tuple[Layout, tuple[int, ...]], tuple[Layout, tuple[int, ...]]] = field(
        default_factory=dict
    )
    _values: dict[tuple[str, tuple[int, ...], bytes], np.ndarray] = field(default_factory=dict)
    _compared: Hierarchy | None = None

    def begin(self, hierarchy: Hierarchy) -> None:
        """Start with the metadata of the first file, or of a master."""
        self.hierarchy = hierarchy
        self._attributes = dict(_attributes(hierarchy))

    def add(self, target: str, read: Read) -> None:
        """Add the next file; what is equal to that of others is kept once."""
        if self.hierarchy is None:
            self.begin(read.hierarchy)
        elif read.hierarchy is not self._compared:
            self._compare(read.hierarchy)
        self._compared = read.hierarchy  # that of files which are alike
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
    remote = RemoteFiles(wanted)
    with WaitingThreads(_THREADS, thread_name_prefix="nczarr-aggregate") as pool:
        waiting: deque[_Batch] = deque()
        try:
            for at in range(0, len(targets), _BATCH):
                waiting.append(_Batch.begin(targets[at : at + _BATCH], wanted, remote, pool))
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
            found = find_remote_file(target, wanted.storage_options)
            if found is None:
                others[number] = pool.submit(read_one, target, wanted)
            else:
                remote[number] = (target, *found)
        future = None
        if remote:
            loop = next(iter(remote.values()))[1].loop
            future = asyncio.run_coroutine_threadsafe(_read_together(files, remote), loop)
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
    files: RemoteFiles, remote: Mapping[int, tuple[str, RemoteFileBytes, Known | None]]
) -> dict[int, Read | BaseException | None]:
    """Read remote files at the same time."""
    reads = (files.read(*one) for one in remote.values())
    found = await asyncio.gather(*reads, return_exceptions=True)
    return dict(zip(remote, found, strict=True))


def _attributes(hierarchy: Hierarchy) -> Iterator[tuple[Key, Attribute]]:
    for group in hierarchy.root.walk():
        own = [(f"{v.path}:", without_enum(v).attributes) for v in group.variables.values()]
        for path, attributes in ((group.path, group.attributes), *own):
            for attribute in attributes.values():
                yield (path, attribute.name), attribute


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
