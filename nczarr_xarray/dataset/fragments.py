"""Read aggregated data: open the fragments that a selection needs, and put their parts together.

Fragments are read in one of three ways: those that are alike many at a time, without parsing
(`nczarr_xarray.dataset.alike_files`); those in remote files at the same time, on their loop; and
all others, and whatever failed before, one by one, which finds out what is wrong.
"""

from __future__ import annotations

import asyncio
import math
import os
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.concurrency import Budget, WaitingThreads, at_once, gather_or_cancel
from nczarr_fsspec.errors import (
    ChangedError,
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    NCZarrWarning,
    caller_level,
)
from nczarr_fsspec.keystore import OnLoop
from nczarr_fsspec.places.address import is_absolute
from nczarr_xarray.chunks.pieces import count_of
from nczarr_xarray.chunks.plan import Plan, plan_outer, plan_points
from nczarr_xarray.chunks.scatter import allocate
from nczarr_xarray.chunks.threads import in_pool
from nczarr_xarray.dataset.alike_files import AlikeFiles, StackedFile, StampedFile, read_alike
from nczarr_xarray.dataset.dataset import Opened
from nczarr_xarray.dataset.file import DataFile, loop_of, whole_of
from nczarr_xarray.dataset.fragment_datasets import (
    FragmentDatasets,
    Opening,
    RemoteFragment,
    TooDeepError,
)
from nczarr_xarray.dataset.fragment_parts import (
    FragmentGrid,
    FragmentReading,
    FragmentRequest,
    Part,
    needs_names,
    reading_of,
)
from nczarr_xarray.dataset.selections import read_remote
from nczarr_xarray.formats.cfa.decode import decode, find
from nczarr_xarray.formats.cfa.dialect import aggregated, is_master
from nczarr_xarray.formats.registry import OpenOptions
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import FragmentArray, FragmentPlace, Fragments, Hierarchy, Record

#: Threads that read other fragments behind a network, such as trees.
AT_ONCE = 32
#: Remote fragments that are opened and read at a time.
AT_A_TIME = 256
#: Fragments that are begun together: threads wake each other less often.
BEGUN_TOGETHER = 32
#: So many local fragments are opened one by one, as if each were of its own kind.
_FEW = 4


def with_aggregations(
    opened: Opened,
    options: OpenOptions,
    read: Callable[[OpenOptions], Hierarchy],
    open_with: Callable[[Any, OpenOptions], Opened],
    master: Any,
) -> Opened:
    """Return an open dataset whose aggregation variables have the data of their fragments.

    Parameters
    ----------
    read
        Reads the metadata again, with other options: a table may be in another group.
    open_with
        `nczarr_xarray.dataset.open.open_with`, which opens fragments.
    master
        What the caller opens, by which relative addresses are understood.
    """
    variables = find(opened.hierarchy)
    if not is_master(opened.hierarchy):
        return opened
    if not (options.tree and not options.path) and any(one.error for one in variables):
        everything = replace(options, group=None, tree=True, only=None)
        opened = replace(opened, hierarchy=read(everything))
        variables = find(opened.hierarchy)
    terms = {term.path: term for one in variables for term in one.terms.values()}
    values = opened.read_many([(term, None) for term in terms.values()])
    if (changed := next((v for v in values if isinstance(v, ChangedError)), None)) is not None:
        raise changed
    hierarchy = decode(opened.hierarchy, variables, dict(zip(terms, values, strict=True)))
    inside = {one.path: one for one in opened.hierarchy.root.all_variables()}
    own = partial(
        _own_variable,
        opened.store.url,
        {
            name: Opening(opened.reader(inside[f"/{name}"]), inside[f"/{name}"])
            for _, array in aggregated(hierarchy)
            for name in _names_of_own(array)
            if f"/{name}" in inside
        },
    )
    allow = options.allow
    if allow is None and not isinstance(master, (str, os.PathLike)):
        allow = []  # a file that is open may be the copy that a cache has of a remote one
    policy = replace(options, allow=allow).policy(master, opened.store)
    datasets = AggregationReaders(own, open_with, policy, options.depth)
    for variable, array in aggregated(hierarchy):
        fragments = _as_found(array.fragments, policy)
        variable.array = replace(array, fragments=fragments, opener=datasets)
    return replace(opened, hierarchy=hierarchy)


def _as_found(fragments: Fragments, policy: AddressPolicy) -> Fragments:
    """Return a table whose record tells only the sizes of files that have moved."""
    record, moves = fragments.record, policy.moves
    if record is None or (record.place == policy.place and not moves):
        return fragments
    same = [not moves and is_absolute(one or "") for one in fragments.addresses.tolist()]
    numbers = np.where(same, record.numbers, 0)
    return replace(fragments, record=Record(record.sizes, numbers, policy.place))


def _own_variable(url: str, variables: Mapping[str, Opening], name: str) -> Opening:
    """Return a fragment that is a variable of the master itself."""
    opening = variables.get(name.strip("/"))
    if opening is None:
        raise FormatError(url, f"has no variable {name!r}, which is to be a fragment")
    return opening


def _names_of_own(array: FragmentArray) -> set[str]:
    """Return the names of the fragments that are in the master itself."""
    fragments = array.fragments
    names = fragments.names[fragments.addresses == ""].tolist()
    names += [place.name for one in fragments.others.values() for place in one if not place.address]
    return {name.strip("/") for name in names}


class AggregationReaders(FragmentDatasets):
    """Makes what reads the aggregations of one master. Picklable and safe in threads."""

    def selections(self, array: FragmentArray) -> FragmentReader:
        """Return what reads selections of an aggregation."""
        return FragmentReader(array, self)


class FragmentReader:
    """Reads selections of one aggregation. Safe in threads.

    Parameters
    ----------
    array
        The aggregation.
    datasets
        Opens its fragments.
    """

    has_readers = True

    def __init__(self, array: FragmentArray, datasets: FragmentDatasets) -> None:
        self.array = array
        self.datasets = datasets
        #: names of dimensions cost reads of HDF5, and are mostly not needed
        self.entire = needs_names(array)
        self.alike = AlikeFiles(entire=self.entire)
        self._grid = FragmentGrid(array)
        self._warned = not array.warning

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        """Read a selection.

        Parameters
        ----------
        key
            One index per dimension: an integer, a slice or an array of integers.
        points
            Whether arrays select single points together.

        Raises
        ------
        NCZarrError
            Naming the fragment that cannot be opened or read.
        """
        return self.read_jointly([(key, points)])[0]

    def read_jointly(self, wanted: Sequence[tuple[tuple[Any, ...], bool]]) -> list[np.ndarray]:
        """Read several selections, each a key and whether it is of points: see `read`."""
        parts: dict[int, Part] = {}
        plans: list[tuple[Plan, np.ndarray]] = []
        reading = PartsRead(self)
        with collection_paused():  # parts are objects that stay, and so is each opened fragment
            for key, points in wanted:
                planned = plan_points if points else plan_outer
                plan = planned(key, self.array.shape, self._grid.edges)
                plans.append((plan, allocate(self.array, plan.shape)))
                self._add_parts(*plans[-1], parts, points=points)
            others = reading.local([*parts.values()])
            far = reading.near(reading.remote(others)) if others else []
        reading.far(far)
        return [plan.finish(result) for plan, result in plans]

    def _add_parts(
        self, plan: Plan, result: np.ndarray, parts: dict[int, Part], *, points: bool
    ) -> None:
        """Add what has to be read, by number; put the rest into the result."""
        array, values = self.array, self.array.fragments.values
        for target, part in self._grid.parts(plan, result, points=points):
            if part is None:
                result[target] = array.fill
                if not self._warned:
                    self._warned = True
                    text = f"{array.path}: {array.warning}"
                    warnings.warn(text, NCZarrWarning, stacklevel=caller_level())
            elif values is not None:
                result[target] = values[part.number]
            elif parts.setdefault(part.number, part) is not part:
                parts[part.number].shares.extend(part.shares)

    def open(self, number: int, place: FragmentPlace) -> tuple[Opening, FragmentReading]:
        """Open a fragment, and find out how it is read.

        Raises
        ------
        NCZarrError
            If it cannot be opened, or does not fit.
        """
        opening = self.datasets.open(place, entire=self.entire)
        try:
            # an aggregation of one element is a scalar where its dimensions were not read
            if opening.variable.error is None or self.entire:
                return opening, reading_of(self.array, number, opening.variable)
        except FormatError:
            if self.entire:
                raise
        opening = self.datasets.open(place, entire=True)
        return opening, reading_of(self.array, number, opening.variable)

    def faults(self) -> Iterator[tuple[int, NCZarrError]]:
        """Open all fragments; yield the numbers of those that cannot be read, and why."""
        fragments = self.array.fragments
        if fragments.values is not None:
            return
        numbers = [n for n, address in enumerate(fragments.addresses) if address is not None]
        with WaitingThreads(AT_ONCE, thread_name_prefix="nczarr-fragment") as pool:
            for number, error in zip(numbers, pool.map(self._fault, numbers), strict=True):
                if error is not None:
                    yield number, error

    def _fault(self, number: int) -> NCZarrError | None:
        fault: NCZarrError | None = None
        for place in self.array.fragments.places(number):
            try:
                _, reading = self.open(number, place)
                reading.check()
            except NCZarrError as error:
                fault = error
                self.datasets.name(error, place)
            else:
                return None
        return fault

    def explained(self, error: NCZarrError, number: int, place: FragmentPlace) -> NCZarrError:
        """Return an error that also names its fragment."""
        self.datasets.name(error, place)
        position = self.array.fragments.position(number)
        hint = ""
        if isinstance(error, ChangedError):
            hint = "; nczarr aggregate --refresh reads it again"
        elif isinstance(error, DatasetNotFoundError):
            hint = (
                "; if the aggregation was written anew meanwhile, open it again; if the fragments "
                "have moved, open with replace={old: new}"
            )
        reason = f"{error.reason} (fragment {position} of {self.array.path}{hint})"
        return type(error)(error.object, reason)


@dataclass(frozen=True, slots=True)
class PartsRead:
    """One read of parts of fragments into the results of selections.

    Each method reads what it can, and returns the other parts.

    Parameters
    ----------
    reader
        Of the aggregation.
    """

    reader: FragmentReader
    #: by number: all bytes of small files that are alike, which are read together
    _whole: dict[int, bytes] = field(default_factory=dict)

    def local(self, parts: list[Part]) -> list[Part]:
        """Read parts in files of this machine: those that are alike, then one, and so on."""
        datasets, alike, entire = self.reader.datasets, self.reader.alike, self.reader.entire
        several = len(parts) > _FEW
        others: list[Part] = []
        while parts:
            if alike.stack is not None:
                parts = self._read_alike(parts, self._local_file)
            left = iter(parts)
            for part in left:
                path, place = self._path(part), self._place(part)
                if path is None:
                    others.append(part)
                    continue
                opening = alike.open(path, place)
                if opening is not None:
                    datasets.keep(place, opening, entire=entire)
                self.read_part(part)
                opening = datasets.known(place, entire=entire)
                if opening is None:
                    continue
                new = several and not opening.alike
                learned = new and at_once(alike.learn(place.name, opening))
                opening.reader.store.close()  # what is read again opens it again
                if learned:
                    break
            parts = list(left)
        return others

    def remote(self, parts: list[Part]) -> list[Part]:
        """Read parts that are in remote files, all at the same time."""
        datasets, entire = self.reader.datasets, self.reader.entire

        def find_open(part: Part) -> Opening | RemoteFragment | None:
            place = self._place(part)
            try:
                return datasets.known(place, entire=entire) or datasets.find(place, entire=entire)
            except NCZarrError:
                return None  # there may be other places

        return read_on_loop(
            parts, find_open, self.read_remote, self._read_whole, datasets.under_way, self.cost
        )

    def near(self, parts: list[Part]) -> list[Part]:
        """Read parts that need not be waited for, one by one."""
        far: list[Part] = []
        for part in parts:
            if self.reader.datasets.is_remote(self._place(part)):
                far.append(part)
            else:
                self.read_part(part)
        return far

    def far(self, parts: list[Part]) -> None:
        """Read parts in threads that wait; the first error ends what has not begun."""
        if not parts:
            return
        most = self.reader.datasets.under_way
        count = AT_ONCE if most is None else most // max(1, *map(self.cost, parts))
        count = min(AT_ONCE, max(1, count))
        with WaitingThreads(count, thread_name_prefix="nczarr-fragment") as pool:
            waiting = [pool.submit(self.read_part, part) for part in parts]
            try:
                for one in waiting:
                    one.result()
            finally:
                for one in waiting:
                    one.cancel()

    def cost(self, part: Part) -> int:
        """Return how many bytes a part takes at most while it is read.

        What comes is not more than the fragment; values are read, and then made those of the
        aggregation.
        """
        wanted = sum(math.prod(map(count_of, one.key, part.shape)) for one in part.shares)
        return (math.prod(part.shape) + 2 * wanted) * self.reader.array.dtype.itemsize

    def _place(self, part: Part) -> FragmentPlace:
        """Return where a fragment is, or the first of the places where it may be."""
        return self.reader.array.fragments.places(part.number)[0]

    def _path(self, part: Part) -> str | None:
        """Return the path of a fragment of this machine."""
        return self.reader.datasets.path(self._place(part).address)

    def _local_file(self, part: Part) -> StampedFile | None:
        """Return the file of a fragment of this machine."""
        fragments, number = self.reader.array.fragments, part.number
        path = self.reader.datasets.path(fragments.addresses[number])
        return None if path is None else StampedFile(path, fragments.stamp(number))

    def read_part(self, part: Part) -> None:
        """Read a part, wherever its fragment is."""
        reader, number = self.reader, part.number
        places = reader.array.fragments.places(number)
        for place in places:
            try:
                opening, reading = reader.open(number, place)
                requests = _requests(reading, part)
                found = opening.reader.read_jointly([one.wanted for one in requests])
                _finish(part, requests, found)
            except TooDeepError:
                raise
            except NCZarrError as error:
                if place is places[-1]:
                    raise reader.explained(error, number, place) from error
            else:
                return

    async def read_remote(self, part: Part, fragment: Opening | RemoteFragment) -> bool:
        """Read a part on its loop; False if it has to be read in another way."""
        reader, place = self.reader, self._place(part)
        try:
            if isinstance(fragment, Opening):
                opening = fragment
            else:
                opened = await fragment.open(partial(reader.alike.variable, place.name))
                if opened is None:
                    return False
                opening = opened
                if not opening.alike:
                    await reader.alike.learn(place.name, opening)
                reader.datasets.keep(place, opening, entire=reader.entire)
            if opening.alike and reader.alike.stack is not None:
                file = opening.reader.store
                data = whole_of(file.source) if isinstance(file, DataFile) else None
                if data is not None:
                    self._whole[part.number] = data
                    return False
            reading = reading_of(reader.array, part.number, opening.variable)
            requests = _requests(reading, part)
            found = await read_remote(opening.reader, [one.wanted for one in requests])
            _finish(part, requests, found)
        except NCZarrError:
            return False  # which is found again, and explained, or there are other places
        return True

    def _read_whole(self, parts: list[Part]) -> list[Part]:
        """Read parts of files of which all bytes are there."""
        if not self._whole:
            return parts
        return self._read_alike(parts, lambda part: self._whole.pop(part.number, None))

    def _read_alike(self, parts: list[Part], file: Callable[[Part], StackedFile]) -> list[Part]:
        array, stack = self.reader.array, self.reader.alike.stack
        assert stack is not None
        return read_alike(array, stack, parts, file)


def _requests(reading: FragmentReading, part: Part) -> list[FragmentRequest]:
    """Return what is to be read of a fragment, one request for each share."""
    return [reading.request(one.key, points=one.points) for one in part.shares]


def _finish(part: Part, requests: list[FragmentRequest], found: list[np.ndarray]) -> None:
    """Put what was read for requests into the results."""
    for share, request, data in zip(part.shares, requests, found, strict=True):
        share.result[share.target] = request.finish(data)


def read_on_loop(
    parts: Sequence[Part],
    find_part: Callable[[Part], Opening | RemoteFragment | None],
    read: Callable[[Part, Opening | RemoteFragment], Coroutine[Any, Any, bool]],
    read_others: Callable[[list[Part]], list[Part]],
    most: int | None,
    cost: Callable[[Part], int],
) -> list[Part]:
    """Read parts on the loop of their files, while others are being found.

    Parameters
    ----------
    find_part
        Returns the fragment of a part, if it is in a remote file.
    read
        Reads a part of a fragment; tells whether that could be done in this way.
    read_others
        Reads some of those parts for which it could not, in a thread that may wait; returns the
        rest.
    most
        Bytes that parts which are read at a time may take; None if only their number is limited.
    cost
        Says how many one takes at most.

    Returns
    -------
    The parts that have to be read in another way.
    """
    gate = asyncio.Semaphore(AT_A_TIME)
    budget = None if most is None else Budget(most)
    coming: list[Future[list[Part]]] = []
    left: list[Part] = []

    async def read_one(part: Part, fragment: Opening | RemoteFragment) -> bool:
        async with gate:
            if budget is None:
                return await read(part, fragment)
            nbytes = cost(part)
            await budget.take(nbytes)
            try:
                return await read(part, fragment)
            finally:
                budget.give(nbytes)

    async def read_some(some: list[tuple[Part, Opening | RemoteFragment]]) -> list[Part]:
        done = await gather_or_cancel(*(read_one(*one) for one in some))
        others = [part for (part, _), is_read in zip(some, done, strict=True) if not is_read]
        return await in_pool(read_others, others) if others else []

    try:
        for at in range(0, len(parts), BEGUN_TOGETHER):
            some: list[tuple[Part, Opening | RemoteFragment]] = []
            loop: OnLoop | None = None
            for part in parts[at : at + BEGUN_TOGETHER]:
                fragment = find_part(part)
                on: OnLoop | None = None
                if isinstance(fragment, Opening):
                    on = loop_of(fragment.reader.store)
                elif fragment is not None:
                    on = fragment.source
                if fragment is None or on is None:
                    left.append(part)
                else:
                    loop = on
                    some.append((part, fragment))
            if loop is not None:
                coming.append(loop.start(read_some(some)))
        for one in coming:
            left += one.result()
    finally:  # with the first error, all ends
        for one in coming:
            one.cancel()
    return left
