"""Describe many files at a time: their metadata and their coordinates, and nothing else."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, caller_level
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.ranges.source import Known
from nczarr_xarray.aggregation.checks import equal_values
from nczarr_xarray.aggregation.files import Begun, Read, RemoteFiles, Wanted, read_one
from nczarr_xarray.aggregation.summary import Layout, Summary
from nczarr_xarray.export.cfa.master import without_enum
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import Attribute, Group, Hierarchy

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
    remote: Future[dict[int, Read | Begun | BaseException | None]] | None
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
        self, found: Mapping[int, Read | Begun | BaseException | None]
    ) -> dict[int, Read | BaseException | None]:
        """Read the values of files that are alike, of all of a kind together."""
        finished = {n: one for n, one in found.items() if not isinstance(one, Begun)}
        begun = {n: one for n, one in found.items() if isinstance(one, Begun)}
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
) -> dict[int, Read | Begun | BaseException | None]:
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
