"""The fragments of one master: where they are, which may be opened, and which ones are open."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.places.url import is_url, redact
from nczarr_fsspec.ranges.source import HEAD_BYTES
from nczarr_fsspec.text import printable
from nczarr_xarray.dataset.fragment_opener import Opener, Opening, RemoteFragment
from nczarr_xarray.model import Array, FragmentArray, FragmentPlace

K = TypeVar("K")
V = TypeVar("V")

#: Fragments whose metadata are remembered, for one aggregation.
REMEMBERED = 2048
#: A name in a folder that means nothing but itself.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]*")
#: Aggregations whose fragments are aggregations, at most.
_DEEPEST = 8


class TooDeepError(FormatError):
    """Aggregations are in each other, maybe in a circle; other places are not tried then."""


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

    Attributes
    ----------
    under_way
        As of `nczarr_xarray.model.FragmentOpener`.
    """

    under_way: int | None = None

    def __init__(
        self, own: Callable[[str], Opening], other: Opener, policy: AddressPolicy, depth: int
    ) -> None:
        self._own = own
        self._other = other
        self.policy = policy
        self._depth = depth
        self._begin()

    def _begin(self) -> None:
        self._lock = ProcessLock()
        self._known: OrderedDict[tuple[str, str, bool], Opening] = OrderedDict()
        #: by address: what to open
        self._targets: dict[str, str] = {}
        #: by address of a folder: its path, if all in it may be opened
        self._folders: dict[str, str] = {}
        #: by address of a folder, and variable: one of its remote files, if all may be opened so
        self._likes: dict[tuple[str, str, bool], RemoteFragment] = {}

    def open(self, place: FragmentPlace, *, entire: bool = False) -> Opening:
        """Open the variable that a fragment is.

        Parameters
        ----------
        entire
            See `Opener.open`.

        Raises
        ------
        NCZarrError
            If it cannot be opened, or must not be.
        """
        found = self.known(place, entire=entire)
        if found is None:
            if not place.address:
                found = self._own(place.name)
            else:
                where, depth = self.resolved(place), self._depth + 1
                options = self.policy.options(where)
                found = self._other.open(where, options, place.name, depth=depth, entire=entire)
            self.keep(place, found, entire=entire)
        return found

    def first(self, array: FragmentArray) -> FragmentPlace | None:
        """Return the place of the first fragment; None if there is none."""
        addresses = array.fragments.addresses
        number = next((number for number, one in enumerate(addresses) if one), None)
        if number is None or array.fragments.values is not None:
            return None
        return array.fragments.places(number)[0]

    def sample(self, array: FragmentArray) -> Array | None:
        place = self.first(array)
        if place is None or self.path(place) is None or array.fragments.mappings:
            return None
        try:
            # it is not kept: what is read of it is what it holds then
            where, depth = self.resolved(place), self._depth + 1
            options = self.policy.options(where)
            found = self._other.open(where, options, place.name, depth=depth, entire=False)
        except NCZarrError:
            return None
        found.reader.store.close()
        stored = found.variable.array
        return stored if len(found.variable.shape) == len(array.shape) else None

    def known(self, place: FragmentPlace, *, entire: bool) -> Opening | None:
        """Return what was opened before; what was opened entirely serves both."""
        with self._lock:
            for kind in (True,) if entire else (True, False):
                key = place.address, place.name, kind
                found = self._known.get(key)
                if found is not None:
                    self._known.move_to_end(key)
                    return found
        return None

    def keep(self, place: FragmentPlace, found: Opening, *, entire: bool) -> None:
        """Remember what was opened."""
        with self._lock:
            self._known[place.address, place.name, entire] = found
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)

    @property
    def _remembered(self) -> int:
        """How many fragments are remembered.

        The first bytes of each remote file are kept: an eighth of what may be under way, if that
        is limited.
        """
        if self.under_way is None:
            return REMEMBERED
        return max(1, min(REMEMBERED, self.under_way // 8 // HEAD_BYTES))

    def find(self, place: FragmentPlace, *, entire: bool) -> RemoteFragment | None:
        """Find a fragment that is in a remote file; None for all others.

        Parameters
        ----------
        entire
            See `Opener.open`.

        Raises
        ------
        NCZarrError
            If it must not be opened.
        """
        if not place.address:
            return None
        folder, name, is_plain = _split(place.address)
        key = folder, place.name, entire
        like = self._likes.get(key) if is_plain else None
        found = None if like is None else like.beside(name)
        if found is not None:
            return found
        where = self.resolved(place)
        if not is_url(where):
            return None
        found = self._other.find(where, self.policy.options(where), place.name, entire=entire)
        is_like = found is not None and is_plain and where.endswith(f"/{name}")
        if found is not None and is_like and self.policy.is_even_below(where):
            _remember(self._likes, key, found)
        return found

    def is_remote(self, place: FragmentPlace) -> bool:
        """Tell whether waiting for a fragment is dear; False for one that must not be opened."""
        try:
            return bool(place.address) and is_url(self.resolved(place))
        except NCZarrError:
            return False

    def path(self, place: FragmentPlace) -> str | None:
        """Return the path of a fragment of this machine that may be opened."""
        try:
            where = self.resolved(place) if place.address else ""
        except NCZarrError:
            return None
        return where if where and not is_url(where) else None

    def name(self, error: NCZarrError, place: FragmentPlace) -> None:
        """Name the dataset of a fragment in an error: the variable alone says little."""
        if place.address:
            where = place.address
            with suppress(NCZarrError):
                where = self.resolved(place)
            error.found_in(printable(redact(where)))

    def resolved(self, place: FragmentPlace) -> str:
        folder, name, is_plain = _split(place.address)
        path = self._folders.get(folder) if is_plain else None
        if path is not None:
            return path + name
        found = self._targets.get(place.address)
        if found is not None:
            return found
        if self._depth >= _DEEPEST:
            raise TooDeepError(
                place.address, f"is in {_DEEPEST} aggregations, each in the next one: a circle?"
            )
        found = self.policy.resolve(place.address)
        as_it_stands = is_plain and "%" not in folder and "#" not in folder and not is_url(found)
        if as_it_stands and found.endswith(f"/{name}") and self.policy.allows_local:
            _remember(self._folders, folder, found.removesuffix(name))
        else:
            _remember(self._targets, place.address, found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("_lock", "_known", "_targets", "_folders", "_likes")
        return {name: value for name, value in self.__dict__.items() if name not in volatile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _split(address: str) -> tuple[str, str, bool]:
    """Return folder and name, and whether the name means nothing but itself."""
    start = address.rfind("/") + 1
    name = address[start:]
    return address[:start], name, _PLAIN_NAME.fullmatch(name) is not None


def _remember(known: dict[K, V], key: K, value: V) -> None:
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value
