"""Read aggregated data: open the fragments that a selection needs, and put their parts together."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from nczarr_fsspec.addresses import AddressPolicy
from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError, NCZarrWarning
from nczarr_fsspec.url import is_url
from nczarr_xarray.chunks.plan import plan_outer, plan_points
from nczarr_xarray.dataset.fragment_values import reading_of
from nczarr_xarray.model import FragmentArray, FragmentPlace, Variable

#: Fragments whose metadata are remembered, for one aggregation.
_REMEMBERED = 2048
#: Remote fragments that are opened and read at a time.
_AT_A_TIME = 64
#: Aggregations whose fragments are aggregations, at most.
_DEEPEST = 8


class Opening(NamedTuple):
    """A fragment variable that was found.

    Attributes
    ----------
    read
        Reads a selection of it: `nczarr_xarray.dataset.variable.VariableReader.read`.
    variable
        Its metadata.
    """

    read: Callable[..., np.ndarray]
    variable: Variable


class Opener(Protocol):
    """Opens variables of other datasets. Picklable."""

    def __call__(
        self,
        target: str,
        storage_options: Mapping[str, Any] | None,
        path: str,
        *,
        depth: int,
        entire: bool,
    ) -> Opening:
        """Open a variable.

        Parameters
        ----------
        path
            Of the variable, with its group.
        depth
            How many aggregations the dataset is in.
        entire
            Whether to read all metadata of its group; without, the variable may be shorter than
            its unlimited dimension.

        Raises
        ------
        NCZarrError
            If there is no such dataset, or it has no such variable.
        """


@dataclass(frozen=True, slots=True)
class _Part:
    """What a selection wants of one fragment.

    Parameters
    ----------
    number
        Of the fragment; -1 for what lies between fragments.
    key
        Per dimension of the aggregation, what is wanted, relative to the begin of the fragment.
    target
        Where it goes in the result, as a key of numpy.
    """

    number: int
    key: tuple[Any, ...]
    target: tuple[Any, ...]


class FragmentDatasets:
    """Opens the fragments of one master. Picklable and safe in threads.

    Parameters
    ----------
    own
        Opens variables of the master itself.
    other
        Opens variables of other datasets.
    policy
        What addresses mean, and which ones may be opened.
    depth
        How many aggregations the master is in.
    """

    def __init__(
        self, own: Callable[[str], Opening], other: Opener, policy: AddressPolicy, depth: int
    ) -> None:
        self._own = own
        self._other = other
        self.policy = policy
        self._depth = depth
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Opening] = OrderedDict()

    def selections(self, array: FragmentArray) -> FragmentReader:
        """Return what reads selections of an aggregation."""
        return FragmentReader(array, self)

    def open(self, place: FragmentPlace, *, entire: bool = False) -> Opening:
        """Open the variable that a fragment is.

        Parameters
        ----------
        entire
            See `Opener`.

        Raises
        ------
        NCZarrError
            If it cannot be opened, or must not be.
        """
        key = place.address, place.name
        with self._lock:
            found = self._known.get(key)
            if found is not None and not entire:
                self._known.move_to_end(key)
                return found
        if not place.address:
            found = self._own(place.name)
        else:
            if self._depth >= _DEEPEST:
                raise FormatError(
                    place.address, f"is in {_DEEPEST} aggregations, each in the next one: a circle?"
                )
            where = self.policy.resolve(place.address)
            options = self.policy.options(where)
            found = self._other(where, options, place.name, depth=self._depth + 1, entire=entire)
        with self._lock:
            self._known[key] = found
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found

    def is_remote(self, place: FragmentPlace) -> bool:
        """Tell whether waiting for a fragment is dear."""
        return bool(place.address) and is_url(self.policy.resolve(place.address))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_known")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class FragmentReader:
    """Reads selections of one aggregation. Safe in threads.

    Parameters
    ----------
    array
        The aggregation.
    datasets
        Opens its fragments.
    """

    def __init__(self, array: FragmentArray, datasets: FragmentDatasets) -> None:
        self._array = array
        self._datasets = datasets
        self._fragments = array.fragments
        self._warned = not array.warning
        #: per dimension: where each part begins, and the fragment that it is, or -1
        self._edges: list[np.ndarray] = []
        self._numbers: list[list[int]] = []
        bounds = zip(array.fragments.starts, array.fragments.stops, array.shape, strict=True)
        for starts, stops, length in bounds:
            edges = np.unique(np.concatenate(([0], starts, stops[stops < length])))
            numbers = np.full(len(edges), -1)
            numbers[np.searchsorted(edges, starts)] = np.arange(len(starts))
            self._edges.append(edges)
            self._numbers.append(numbers.tolist())

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
        plan = (plan_points if points else plan_outer)(key, array.shape, self._edges)
        result = np.empty(plan.shape, dtype=array.dtype.newbyteorder("="))
        parts: list[_Part] = []
        for task in plan.tasks():
            part = self._part(task.position, task.source, task.target, plan.axes)
            if part is None:
                result[task.target] = array.fill
                self._warn()
            elif array.fragments.values is not None:
                result[task.target] = array.fragments.values[part.number]
            else:
                parts.append(part)
        read = partial(self._read_part, result, points=points)
        for group, many in self._grouped(parts):
            if many == 1:
                for part in group:
                    read(part)
                continue
            with ThreadPoolExecutor(many, thread_name_prefix="nczarr-fragment") as pool:
                waiting = [pool.submit(read, part) for part in group]
                try:
                    for one in waiting:
                        one.result()
                except BaseException:
                    for one in waiting:
                        one.cancel()
                    raise
        return plan.finish(result)

    def _part(
        self,
        position: tuple[int, ...],
        source: tuple[Any, ...],
        target: tuple[Any, ...],
        axes: tuple[int, ...] | None,
    ) -> _Part | None:
        """Return what is wanted of one fragment; None if there is no such fragment."""
        number = 0
        for at, numbers, count in zip(position, self._numbers, self._fragments.grid, strict=True):
            own = numbers[at]
            if own < 0:
                return None
            number = number * count + own
        if self._fragments.addresses[number] is None:
            return None
        key = list(source)
        if axes is not None:
            for axis, index in zip(axes, source, strict=True):
                key[axis] = index
        return _Part(
            number,
            tuple(index if isinstance(index, slice) else index.reshape(-1) for index in key),
            target,
        )

    def _grouped(self, parts: list[_Part]) -> Iterator[tuple[list[_Part], int]]:
        """Yield parts, and how many of them to read at a time."""
        here: list[_Part] = []
        remote: list[_Part] = []
        for part in parts:
            first = self._fragments.places(part.number)[0]
            (remote if self._datasets.is_remote(first) else here).append(part)
        if remote:
            yield remote, min(len(remote), _AT_A_TIME)
        yield here, 1

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self._array.path}: {self._array.warning}", NCZarrWarning, stacklevel=2)

    def _read_part(self, result: np.ndarray, part: _Part, *, points: bool) -> None:
        fragments, number = self._fragments, part.number
        places = fragments.places(number)
        for place in places:
            try:
                found = self._datasets.open(place)
                try:
                    reading = reading_of(self._array, number, found.variable)
                except FormatError:
                    found = self._datasets.open(place, entire=True)
                    reading = reading_of(self._array, number, found.variable)
                result[part.target] = reading.read(found.read, part.key, points=points)
            except NCZarrError as error:
                if place is places[-1]:
                    raise self._explained(error, number) from error
            else:
                return

    def _explained(self, error: NCZarrError, number: int) -> NCZarrError:
        """Say of an error which fragment it is of."""
        position = self._fragments.position(number)
        hint = ""
        if isinstance(error, DatasetNotFoundError):
            hint = "; if the fragments have moved, open with replace={old: new}"
        reason = f"{error.reason} (fragment {position} of {self._array.path}{hint})"
        return type(error)(error.object, reason)
