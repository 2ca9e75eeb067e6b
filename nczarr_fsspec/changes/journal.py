"""The objects that an export keeps in a dataset until it has ended, and how to read past them.

Everything lies below one private prefix, which no reader of Zarr looks at:

======================================  ======================================================
key                                     meaning
======================================  ======================================================
``.nczarr_export/writers/<id>``         the lock of a writer: its owner and its chunks
``.nczarr_export/staged/<id>/<key>``    the new object for ``<key>``, not valid yet
``.nczarr_export/journal``              a change that *is* valid: which staged objects replace
                                        which, and what is removed. Any writer may finish it.
``.nczarr_export/incomplete``           chunks are still to come (all, or of certain arrays)
``.nczarr_export/root``                 the root's ``.zgroup`` while chunks of arrays are to come
``.nczarr_export/work/plan``            which work a copy does that can be continued: see
                                        `nczarr_fsspec.changes.resumption`
``.nczarr_export/work/done/<n>-<m>``    parts of that work that are done, from n to m - 1
``.nczarr_export/work/between/<key>``   a chunk between the two passes of a copy
======================================  ======================================================

``staged/<id>/.nczarr_export/successors`` has one object for each process that took the
change over from one that died.

A change is valid from the moment its journal exists, which is one atomic write.
Until its objects have been moved to their places, readers look them up through
`with_changes`: they see all of the change or, before the journal, none of it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from nczarr_fsspec.errors import IncompleteExportError, StoreError
from nczarr_fsspec.keystore import (
    ALL,
    OLD_METADATA,
    ZARR_METADATA,
    KeyStore,
    RemoteStore,
    StoreAtHand,
    child_names,
)
from nczarr_fsspec.stores.ownership import Owner

PRIVATE = ".nczarr_export"
JOURNAL = f"{PRIVATE}/journal"
INCOMPLETE = f"{PRIVATE}/incomplete"
WRITERS = f"{PRIVATE}/writers"
STAGED = f"{PRIVATE}/staged"
HELD = f"{PRIVATE}/root"

#: The object that is replaced while others are moved, and the text that replaces it. Readers that
#: do not know the journal then raise an error: netCDF-C 4.8.1-4.10.1 "NCZarr error", zarr-python
#: one with this text. The object must not be missing: netCDF-C 4.9.3-4.10.1 would then read
#: whatever arrays exist, or crash.
ROOT = ".zgroup"
COVER = b'{"zarr_format": "an export is under way or was cut off; the next one puts that right"}'

#: The keys that a reader requests besides the root objects.
STATE_KEYS = (INCOMPLETE, JOURNAL)

#: The first bytes of `Journal.dump` and `Incomplete.dump`.
_BEGINS = {JOURNAL: b'{"transaction": ', INCOMPLETE: b'{"owner": '}


@dataclass(frozen=True, slots=True)
class Journal:
    """A change that is valid, but perhaps not yet carried out in full.

    Parameters
    ----------
    transaction
        The id of the change, which names the prefix of its staged objects.
    staged
        Keys that have a staged object.
    removed
        Keys that the change removes.
    completes
        Name of the mark of the template that is complete now; None if that is not known.
    """

    transaction: str
    owner: Owner
    staged: tuple[str, ...]
    removed: tuple[str, ...] = ()
    completes: str | None = None

    def dump(self) -> bytes:
        """Return the journal as bytes for `parse`."""
        document = {
            "transaction": self.transaction,
            "owner": self.owner.document,
            "staged": self.staged,
            "removed": self.removed,
            "completes": self.completes,
        }
        return json.dumps(document).encode()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Journal:
        """Parse a journal (`StoreError` if it is damaged)."""
        try:
            document = json.loads(data)
            transaction = document["transaction"]
            keys = [tuple(document[name]) for name in ("staged", "removed")]
            "".join((transaction, *keys[0], *keys[1]))  # all of it is text
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreError(
                f"{where}/{JOURNAL}",
                "is damaged, so that it is unknown which objects are valid; remove it, and "
                'write the dataset anew with mode="w"',
            ) from None
        owner, completes = Owner.parse(document.get("owner")), document.get("completes")
        return cls(transaction, owner, keys[0], keys[1], completes)

    def staged_key(self, key: str) -> str:
        """Return the key under which the new object for `key` was staged."""
        return f"{STAGED}/{self.transaction}/{key}"


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A mark that says which chunks are still to be written.

    Parameters
    ----------
    pending
        Array -> its number of chunks when it is complete. None: the dataset
        must not be read at all.
    name
        Distinguishes templates that were written to the same target.
    last
        Array -> key of its last chunk. While that is missing, the others need not be counted.
    """

    owner: Owner
    pending: Mapping[str, int] | None = None
    name: str = ""
    last: Mapping[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return the mark as bytes for `parse`."""
        document = {
            "owner": self.owner.document,
            "pending": self.pending,
            "name": self.name,
            "last": self.last,
        }
        return json.dumps(document).encode()

    @classmethod
    def parse(cls, data: bytes) -> Incomplete:
        """Parse a mark; a damaged one stands for the whole dataset."""
        try:
            document = json.loads(data)
            pending = document["pending"]
            counts = None if pending is None else {str(k): int(n) for k, n in pending.items()}
            last = {str(k): str(key) for k, key in document.get("last", {}).items()}
            owner = Owner.parse(document.get("owner"))
            return cls(owner, counts, str(document.get("name", "")), last)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls(Owner.parse(None))

    def error(self, obj: str) -> IncompleteExportError:
        """Return the error for a reader of `obj`."""
        state = "ended before it was done" if self.owner.is_dead() else "has not finished"
        names = sorted(self.pending or ())
        shown = ", ".join(f"/{name}" for name in names[:5]) + (", ..." if len(names) > 5 else "")
        whole = f" of {shown}, and any of these may lack chunks" if len(names) > 1 else ""
        return IncompleteExportError(
            obj,
            f"incomplete export{whole}: its writer ({self.owner}) {state}; write the missing "
            'regions, or write it anew with mode="w"',
        )


@dataclass(slots=True)
class State:
    """A store as readers must see it, with the arrays of which chunks are still to come.

    Parameters
    ----------
    store
        The store as seen with all valid changes.
    pending
        Arrays of which chunks are missing, each with the error for its readers.
    """

    store: KeyStore
    pending: Mapping[str, IncompleteExportError] = field(default_factory=dict)


def with_changes(store: KeyStore, incomplete: Any, journal: Any) -> State:
    """Return `store` as readers must see it, given its objects under `STATE_KEYS`.

    Each of these is bytes, None or an error.

    Objects that this package did not write are ignored: for missing keys, some servers answer
    a page with status 200.

    Raises
    ------
    IncompleteExportError
        If nothing of the dataset may be read.
    StoreError
        If the journal is damaged.
    """
    view, completes = store, None
    if is_state(journal, JOURNAL):
        change = Journal.parse(journal, store.url)
        view, completes = _view(store, change), change.completes
        if INCOMPLETE in view.moved or INCOMPLETE in view.removed:
            (incomplete,) = view.get_many([INCOMPLETE])
    if not is_state(incomplete, INCOMPLETE):
        return State(view)
    mark = Incomplete.parse(incomplete)
    if mark.name == completes:
        return State(view)
    if mark.pending is None:
        raise mark.error(store.url)
    if view is store:
        view = _view(store)
    return State(view, {path: mark.error(f"/{path}") for path in mark.pending})


def is_state(data: Any, key: str) -> TypeGuard[bytes]:
    """Tell whether `data` are bytes as writers store them under a key of `STATE_KEYS`.

    What is left of a damaged object begins like them, too.
    """
    if not isinstance(data, bytes):
        return False
    beginning = _BEGINS[key]
    left = data.rstrip(b"\0")[: len(beginning)]  # a power failure may leave zeros, or nothing
    return beginning.startswith(left)


def base_of(store: KeyStore) -> KeyStore:
    """Return the store behind a view of `with_changes`; any other store as it is."""
    return store.base if isinstance(store, _Changed) else store


class _Changed(KeyStore):
    """A store in which some keys are found elsewhere, and some are hidden."""

    def __init__(self, base: Any, journal: Journal | None) -> None:
        self.url = base.url
        self.max_metadata = base.max_metadata
        self.base = base
        staged = journal.staged if journal else ()
        removed = journal.removed if journal else ()
        self.moved: dict[str, tuple[str, ...]] = {}
        if journal is not None:
            self.moved = {key: (journal.staged_key(key), key) for key in staged}
        self.removed = frozenset(removed) - self.moved.keys()
        if not {ROOT, HELD} & self.removed:
            self.moved[ROOT] = (*self.moved.get(ROOT, (ROOT,))[:-1], HELD, ROOT)
        self._children = child_names(staged)

    async def fetch(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        if key in self.removed:
            return None
        for place in self.moved.get(key, (key,)):  # the object may have been moved already
            data: bytes | None = await self.base.fetch(place, part, most)
            if data is not None:
                return data
        return None

    async def names(self, prefix: str) -> frozenset[str] | None:
        found = await self.base.names(prefix)
        if found is None:
            return None
        start = f"{prefix}/" if prefix else ""
        there = {name for name in found if start + name not in self.removed}
        return frozenset(there) | self._children.get(prefix, frozenset())

    def check_place(self) -> None:
        self.base.check_place()

    def close(self) -> None:
        self.base.close()


class _ChangedLocal(_Changed, StoreAtHand):
    pass


class _ChangedRemote(_Changed, RemoteStore):
    get = _Changed.fetch
    list = _Changed.names

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self.base.loop
        return loop

    @property
    def younger_by(self) -> float:
        seconds: float = self.base.younger_by
        return seconds


def _view(store: KeyStore, journal: Journal | None = None) -> _ChangedLocal | _ChangedRemote:
    if isinstance(store, RemoteStore):
        return _ChangedRemote(store, journal)
    return _ChangedLocal(store, journal)


#: Metadata objects of Zarr 2 and 3, and of netCDF-C 4.8.0.
METADATA = ZARR_METADATA | OLD_METADATA
_CHUNK = re.compile(r"(?:c|(?:c[./])?[0-9]+(?:[./][0-9]+)*)")


def dataset_keys(keys: Iterable[str], below: str = "") -> list[str]:
    """Return those of `keys` that are metadata or chunks of a dataset, or remains of an export.

    Parameters
    ----------
    keys
        All keys that exist.
    below
        Only those of the group or array at this path.
    """
    keys = list(keys)
    arrays = {
        path
        for path, _, name in (key.rpartition("/") for key in keys)
        if name in (".zarray", ".nczvar", "zarr.json")
    }
    start = f"{below}/" if below else ""
    return [key for key in keys if key.startswith(start) and _belongs(key, arrays)]


def _belongs(key: str, arrays: set[str]) -> bool:
    path, _, name = key.rpartition("/")
    if name in METADATA or key.startswith(f"{PRIVATE}/"):
        return True
    while True:
        rest = key[len(path) + 1 :] if path else key
        if path in arrays and _CHUNK.fullmatch(rest):
            return True
        if not path:
            return False
        path = path.rpartition("/")[0]


def removable(keys: Iterable[str]) -> list[str]:
    """Return those of `dataset_keys` to remove with the dataset: all but the private ones."""
    return [key for key in keys if not key.startswith(f"{PRIVATE}/") or key in (HELD, INCOMPLETE)]


def is_chunk_of(key: str, array: str) -> bool:
    """Tell whether `key` is named like a chunk of the array at a path."""
    return key.startswith(f"{array}/") and _CHUNK.fullmatch(key[len(array) + 1 :]) is not None
