"""Reading one state of a dataset while other processes may change it.

A change becomes valid in one step, with the journal (`nczarr_fsspec.changes.journal`), but a reader
needs many objects. So each reading notes the `Mark` of the state with which it begins. At the end
(over a network: with every later round) it checks that the mark is still the same. If it is not,
the dataset is read again.

A mark is the journal and the root's ``.zgroup``, which every change replaces. A file that was
replaced has another stamp. In stores without stamps, ``.zgroup`` ends with white space that differs
after every change (`stamped`) and means nothing in JSON.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nczarr_fsspec.changes.journal import (
    COVER,
    PRIVATE,
    ROOT,
    STATE_KEYS,
    State,
    base_of,
    is_state,
    with_changes,
)
from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, Listing, Object, RemoteStore

_WHITE = b" \t\n\r"
#: Characters of a stamp.
_STAMP = 32


def stamped(document: bytes) -> bytes:
    """Return the JSON with white space at its end that is unique to this state of a dataset."""
    number = secrets.randbits(64)
    return unstamped(document) + bytes(_WHITE[number >> 2 * i & 3] for i in range(_STAMP))


def is_stamped(document: bytes) -> bool:
    """Tell whether a document ends as `stamped` ones do."""
    return len(document) - len(unstamped(document)) >= _STAMP


def unstamped(document: bytes) -> bytes:
    """Return the document without the white space that `stamped` appended."""
    return document.rstrip(_WHITE)


def same_documents(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> bool:
    """Tell whether two sets of documents are equal, apart from what `stamped` appended."""
    return one.keys() == other.keys() and all(unstamped(one[k]) == unstamped(other[k]) for k in one)


@dataclass(frozen=True, slots=True)
class Mark:
    """What distinguishes one state of a dataset from another. Picklable.

    Attributes
    ----------
    root
        The stamp of the root's ``.zgroup``, or else its bytes.
    state
        The objects under `STATE_KEYS`.
    """

    root: Hashable
    state: tuple[bytes | None, ...]

    @classmethod
    def of(cls, root: Hashable, state: Sequence[Any]) -> Mark:
        """Return the mark of some objects, without what a server says of missing ones."""
        ours: list[bytes | None] = []
        for key, data in zip(STATE_KEYS, state, strict=True):
            ours.append(data if is_state(data, key) else None)
        return cls(_known(root), tuple(ours))

    @property
    def busy(self) -> bool:
        """Whether a change was under way."""
        return any(data is not None for data in self.state)


def look(store: KeyStore) -> Mark:
    """Return the mark of a dataset as it is now; `store` may be a view of `with_changes`."""
    store = base_of(store)
    # the root first: a change that began and ended before the journal is requested was complete
    # before anything else is read
    stamp = store.stamp(ROOT)
    if stamp is not None:
        return Mark.of(stamp, store.get_many(STATE_KEYS))
    root, *state = store.get_many((ROOT, *STATE_KEYS))
    return Mark.of(root, state)


async def root_of(store: KeyStore) -> Hashable:
    """Return what a `Mark` has of the root, as it is now.

    Reads of a remote store at the same time share one request.
    """
    root: Hashable = store.stamp(ROOT)
    if root is None and isinstance(store, RemoteStore):
        loop = asyncio.get_running_loop()
        owner, asked = store.__dict__.get("_root_asked", (None, None))
        if owner is not loop or asked.done():
            asked = loop.create_task(store.gather_objects([ROOT]))
            store.__dict__["_root_asked"] = loop, asked
        (root,) = await asyncio.shield(asked)
    elif root is None:
        (root,) = await store.gather_objects([ROOT])
    return _known(root)


def _known(root: Hashable) -> Hashable:
    """Return the root without what a server says of a missing one."""
    no_document = isinstance(root, bytes) and root.lstrip()[:1] != b"{"
    return None if no_document or isinstance(root, StoreError) else root


class Reading:
    """The metadata of a dataset, read in rounds, and whether they all belong to one state.

    Parameters
    ----------
    store
        The dataset.

    Attributes
    ----------
    state
        The store as readers must see it; known after the first round.
    mark
        The mark of the state that was found then.
    objects
        The objects that were read, by key.
    """

    def __init__(self, store: KeyStore) -> None:
        self.store = store
        #: the store again, if a network is between: then reads look at the mark as they go
        self._remote = store if isinstance(store, RemoteStore) else None
        self.state = State(store)
        self.mark: Mark | None = None
        self.objects: dict[str, Object] = {}
        self._listings: dict[str, Listing] = {}
        self._announced = False
        self._moved = False

    def answer(
        self, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Sequence[Object], Sequence[Listing]]:
        """Read objects and list prefixes; over a network, at the same time.

        Raises
        ------
        IncompleteExportError, StoreError
            See `with_changes`.
        """
        if self.mark is None:
            objects, listings = self._first(keys, prefixes)
        elif self._remote is not None and self.state.store is self._remote:
            objects, listings = self._with_mark(keys, prefixes)
        else:
            objects, listings = _answer(self.state.store, keys, prefixes)
        self.objects.update(zip(keys, objects, strict=True))
        self._listings.update(zip(prefixes, listings, strict=True))
        return objects, listings

    def _first(
        self, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Sequence[Object], Sequence[Listing]]:
        """Read the first round, and find out whether an export has left something.

        No request waits for this one: it goes with the others where the store
        is not listed, and is not made where the listing shows no need.
        """
        self.store.note_place()  # another dataset may have come since the store was made
        store = self._remote
        if store is None:
            self.mark = look(self.store)
            self.state = with_changes(self.store, *self.mark.state)
            return _answer(self.state.store, keys, prefixes)
        listed = store.can_list and "" in prefixes
        wanted = tuple(dict.fromkeys((*keys, ROOT, *(() if listed else STATE_KEYS))))
        objects, listings = _answer(store, wanted, prefixes)
        found = dict(zip(wanted, objects, strict=True))
        if listed:
            names = listings[prefixes.index("")]
            self._announced = isinstance(names, frozenset) and PRIVATE in names
            state = store.get_many(STATE_KEYS) if self._announced else [None] * len(STATE_KEYS)
        else:
            state = [found[key] for key in STATE_KEYS]
        root = found[ROOT]
        self.mark = Mark.of(root, state)
        self.state = with_changes(store, *self.mark.state)
        if self.state.store is not store:
            return _answer(self.state.store, keys, prefixes)
        return [found[key] for key in keys], listings

    def _with_mark(
        self, keys: Sequence[str], prefixes: Sequence[str]
    ) -> tuple[Sequence[Object], Sequence[Listing]]:
        """Read a later round, and check that the dataset has not changed since the first."""
        if self.store.steady:
            return _answer(self.store, keys, prefixes)
        objects, listings = _answer(self.store, (*keys, ROOT, *STATE_KEYS), prefixes)
        root, *state = objects[len(keys) :]
        self._moved |= Mark.of(root, state) != self.mark
        return objects[: len(keys)], listings

    async def watch(self) -> None:
        """Check on the loop of the store that the dataset has not changed since the first round.

        Call it at the same time as reads of data, so that it costs no time.
        """
        store = self._remote
        if store is not None and not store.steady:
            root, state = await gather_or_cancel(root_of(store), store.gather_objects(STATE_KEYS))
            self._moved |= Mark.of(root, state) != self.mark

    def holds(self) -> bool:
        """Tell whether all that was read belongs to one state, as far as that can be found out.

        Over a network, this takes one more round if the dataset was being
        changed.
        """
        mark = self.mark
        if self._moved:
            return False
        if mark is None or self.store.steady:
            return True
        if self._remote is not None and not (self._announced or mark.busy):
            return True
        if look(self.store) != mark:
            return False
        try:
            self.store.check_place()  # another dataset may have been put in its place
        except StoreError:
            return False
        return True

    def forget(self) -> None:
        """Release what was read; afterwards only `holds` can be called."""
        self.objects, self._listings = {}, {}

    def agrees(self, before: Reading) -> bool:
        """Tell whether an earlier reading found the same metadata, so that only data may differ."""
        return COVER not in self.objects.values() and self._found() == before._found()

    def _found(self) -> Any:
        objects = {key: _shown(data) for key, data in self.objects.items()}
        listings = {
            prefix: names - {PRIVATE} if isinstance(names, frozenset) else _shown(names)
            for prefix, names in self._listings.items()
        }
        return objects, listings


def _shown(found: Any) -> Any:
    return unstamped(found) if isinstance(found, bytes) else found and str(found)


def _answer(
    store: KeyStore, keys: Sequence[str], prefixes: Sequence[str]
) -> tuple[Sequence[Object], Sequence[Listing]]:
    objects, listings = store.run(
        store.together(store.gather_objects(keys), store.gather_names(prefixes))
    )
    return objects, listings
