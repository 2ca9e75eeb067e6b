"""Read aggregated data: open the fragments that a selection needs, and put their parts together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from nczarr_fsspec.concurrency import WaitingThreads
from nczarr_fsspec.errors import (
    DatasetNotFoundError,
    FormatError,
    NCZarrError,
    NCZarrWarning,
    caller_level,
)
from nczarr_xarray.chunks.pieces import count_of
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.chunks.scatter import allocate
from nczarr_xarray.dataset.alike_files import AlikeFiles
from nczarr_xarray.dataset.alike_fragments import read_alike
from nczarr_xarray.dataset.file import DataFile, whole_of
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets, TooDeepError
from nczarr_xarray.dataset.fragment_opener import Opening, RemoteFragment
from nczarr_xarray.dataset.fragment_parts import FragmentGrid, Part
from nczarr_xarray.dataset.fragment_values import FragmentReading, needs_names, reading_of
from nczarr_xarray.dataset.remote_parts import RemoteParts
from nczarr_xarray.formats.rounds import collection_paused
from nczarr_xarray.model import FragmentArray, FragmentPlace

#: Threads that read other fragments behind a network, such as trees.
AT_ONCE = 32
#: So many local fragments are opened one by one, as if each were of its own kind.
_FEW = 4


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
        self._array = array
        self._datasets = datasets
        self._fragments = array.fragments
        self._warned = not array.warning
        #: names of dimensions cost reads of HDF5, and are mostly not needed
        self._entire = needs_names(array)
        self._alike = AlikeFiles(entire=self._entire)
        self._grid = FragmentGrid(array)

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
        array = self._array
        plan = (plan_points if points else plan_outer)(key, array.shape, self._grid.edges)
        result = allocate(array, plan.shape)
        parts: list[Part] = []
        far: list[Part] = []
        with collection_paused():  # parts are objects that stay, and so is each opened fragment
            for target, part in self._grid.parts(plan):
                if part is None:
                    result[target] = array.fill
                    self._warn()
                elif array.fragments.values is not None:
                    result[target] = array.fragments.values[part.number]
                else:
                    parts.append(part)
            others = self._read_local(result, parts, points=points)
            for part in self._read_files(result, others, points=points):
                if self._datasets.is_remote(self._place(part)):
                    far.append(part)
                else:
                    self._read_part(result, part, points=points)
        if far:
            most = self._datasets.under_way
            count = AT_ONCE if most is None else most // max(1, *map(self.cost, far))
            read = partial(self._read_part, result, points=points)
            _in_threads(read, far, min(AT_ONCE, max(1, count)))
        return plan.finish(result)

    def cost(self, part: Part) -> int:
        """Return how many bytes a part takes at most while it is read.

        What comes is not more than the fragment; values are read, and then made those of the
        aggregation.
        """
        itemsize = self._array.dtype.itemsize
        wanted = math.prod(map(count_of, part.key, part.shape))
        return (math.prod(part.shape) + 2 * wanted) * itemsize

    def _place(self, part: Part) -> FragmentPlace:
        """Return where a fragment is, or the first of the places where it may be."""
        return self._fragments.places(part.number)[0]

    def _path(self, part: Part) -> str | None:
        """Return the path of a fragment of this machine."""
        return self._datasets.path(self._place(part))

    def _read_local(self, result: np.ndarray, parts: list[Part], *, points: bool) -> list[Part]:
        """Read parts in files of this machine: those that are alike, then one, and so on.

        Returns
        -------
        The other parts.
        """
        several = len(parts) > _FEW
        others: list[Part] = []
        while parts:
            stack = self._alike.stack
            if stack is not None:
                parts = read_alike(self._array, stack, result, parts, self._path, points=points)
            left = iter(parts)
            for part in left:
                path, place = self._path(part), self._place(part)
                if path is None:
                    others.append(part)
                    continue
                opened = self._alike.open(path, place.name)
                if opened is not None:
                    self._datasets.keep(place, opened, entire=self._entire)
                self._read_part(result, part, points=points)
                if self._leave(place, several=several):
                    break
            parts = list(left)
        return others

    def _read_files(self, result: np.ndarray, parts: list[Part], *, points: bool) -> list[Part]:
        """Read parts that are in remote files, all at the same time; return the others."""
        #: by number: all bytes of small files that are alike, which are read together
        whole: dict[int, bytes] = {}
        read = partial(self._read_on_loop, result, whole, points=points)
        others = partial(self._read_whole, result, whole, points=points)
        with RemoteParts(read, others, self._datasets.under_way, self.cost) as remote:
            for part in parts:
                place = self._place(part)
                try:
                    known = self._datasets.known(place, entire=self._entire)
                    found = known or self._datasets.find(place, entire=self._entire)
                except NCZarrError:
                    found = None  # there may be other places
                remote.add(part, found)
            return remote.left()

    def _read_whole(
        self, result: np.ndarray, whole: dict[int, bytes], parts: list[Part], *, points: bool
    ) -> list[Part]:
        """Read parts of files of which all bytes are there; return the other parts."""
        stack = self._alike.stack
        if stack is None or not whole:
            return parts
        take = lambda part: whole.pop(part.number, None)  # noqa: E731
        return read_alike(self._array, stack, result, parts, take, points=points)

    async def _read_on_loop(
        self,
        result: np.ndarray,
        whole: dict[int, bytes],
        part: Part,
        found: Opening | RemoteFragment,
        *,
        points: bool,
    ) -> bool:
        """Read one part; False if it has to be read in another way, maybe as one of `whole`."""
        try:
            if not isinstance(found, Opening):
                place = self._place(part)
                opened = await found.open(partial(self._alike.pattern, place.name))
                if opened is None:
                    return False
                if not opened.alike:
                    await self._alike.learn_remote(place.name, opened)
                found = opened
                self._datasets.keep(place, found, entire=self._entire)
            if found.alike and self._alike.stack is not None:
                file = found.reader.store
                data = whole_of(file.source) if isinstance(file, DataFile) else None
                if data is not None:
                    whole[part.number] = data
                    return False
            reading = reading_of(self._array, part.number, found.variable)
            request = reading.request(part.key, points=points)
            values = await found.reader.read_remote(request.key, points=request.points)
            result[part.target] = request.finish(values)
        except NCZarrError:
            return False  # which is found again, and explained, or there are other places
        return True

    def _leave(self, place: FragmentPlace, *, several: bool) -> bool:
        """Close a file of this machine; tell whether it was learned to read others like it."""
        opened = self._datasets.known(place, entire=self._entire)
        if opened is None:
            return False
        learned = several and not opened.alike and self._alike.learn(place.name, opened)
        opened.reader.store.close()  # what is read again opens it again
        return learned

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            text = f"{self._array.path}: {self._array.warning}"
            warnings.warn(text, NCZarrWarning, stacklevel=caller_level())

    def _read_part(self, result: np.ndarray, part: Part, *, points: bool) -> None:
        fragments, number = self._fragments, part.number
        places = fragments.places(number)
        for place in places:
            try:
                found, reading = self._open(number, place)
                request = reading.request(part.key, points=points)
                data = found.reader.read(request.key, points=request.points)
                result[part.target] = request.finish(data)
            except TooDeepError:
                raise
            except NCZarrError as error:
                if place is places[-1]:
                    raise self._explained(error, number, place) from error
            else:
                return

    def _open(self, number: int, place: FragmentPlace) -> tuple[Opening, FragmentReading]:
        """Open a fragment, and find out how it is read."""
        found = self._datasets.open(place, entire=self._entire)
        try:
            # an aggregation of one element is a scalar where its dimensions were not read
            if found.variable.error is None or self._entire:
                return found, reading_of(self._array, number, found.variable)
        except FormatError:
            if self._entire:
                raise
        found = self._datasets.open(place, entire=True)
        return found, reading_of(self._array, number, found.variable)

    def faults(self) -> Iterator[tuple[int, NCZarrError]]:
        """Open all fragments; yield the numbers of those that cannot be read, and why."""
        fragments = self._fragments
        if fragments.values is not None:
            return
        numbers = [n for n, address in enumerate(fragments.addresses) if address is not None]
        with WaitingThreads(AT_ONCE, thread_name_prefix="nczarr-fragment") as pool:
            for number, error in zip(numbers, pool.map(self._fault, numbers), strict=True):
                if error is not None:
                    yield number, error

    def _fault(self, number: int) -> NCZarrError | None:
        error: NCZarrError | None = None
        for place in self._fragments.places(number):
            try:
                _, reading = self._open(number, place)
                reading.check()
            except NCZarrError as own:
                error = own
                self._datasets.name(error, place)
            else:
                return None
        return error

    def _explained(self, error: NCZarrError, number: int, place: FragmentPlace) -> NCZarrError:
        """Return an error that also names its fragment."""
        self._datasets.name(error, place)
        position = self._fragments.position(number)
        hint = ""
        if isinstance(error, DatasetNotFoundError):
            hint = (
                "; if the aggregation was written anew meanwhile, open it again; if the fragments "
                "have moved, open with replace={old: new}"
            )
        reason = f"{error.reason} (fragment {position} of {self._array.path}{hint})"
        return type(error)(error.object, reason)


def _in_threads(read: Callable[[Part], None], parts: list[Part], count: int) -> None:
    """Read parts in threads that wait; the first error ends what has not begun, and is raised."""
    with WaitingThreads(count, thread_name_prefix="nczarr-fragment") as pool:
        waiting = [pool.submit(read, part) for part in parts]
        try:
            for one in waiting:
                one.result()
        finally:
            for one in waiting:
                one.cancel()
