"""Locks on chunks: two writers of one dataset never change the same ones.

A lock is an object in the dataset that names its owner and its chunks. A writer puts its lock
before it looks for others. So of two writers of the same chunks, at least one finds the lock of the
other. The lock of a process that has ended does not count.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nczarr_fsspec.changes.journal import STAGED, WRITERS
from nczarr_fsspec.changes.recovery import finish_journal, forget
from nczarr_fsspec.errors import ConflictError, StoreError, on_error
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json
from nczarr_fsspec.stores.writable import WritableStore

#: Array -> first and last+1 chunk along each dimension; None locks everything.
Boxes = Mapping[str, tuple[tuple[int, int], ...]] | None
#: Why a change cannot be made valid (any more).
OVER = (
    "this change is over already: it was carried out, or taken for that of a dead writer and "
    "removed (nczarr_xarray.recover); look at the dataset and try again"
)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock on the chunks that one writer changes. Picklable.

    Attributes
    ----------
    store
        The dataset.
    transaction
        Number of the change.
    """

    store: WritableStore
    transaction: str

    @classmethod
    def acquire(cls, store: WritableStore, boxes: Boxes = None) -> Lock:
        """Lock the chunks in `boxes`, and finish or remove what dead writers left.

        Raises
        ------
        ConflictError
            If another writer is at work there.
        StoreError
            If the store cannot be written.
        """
        finish_journal(store)
        lock = cls(store, uuid.uuid4().hex[:16])
        document = {"owner": Owner.here().document, "boxes": boxes}
        AT_WORK.add(lock.transaction)
        with on_error(lock.release):
            store.put(lock.key, json.dumps(document).encode())
            staged = _staged(store)  # before the locks: each lock was put first
            locks = {key.rpartition("/")[2] for key in store.keys_below(WRITERS)}
            for other in locks - {lock.transaction}:
                lock._give_way_to(other, boxes)
            for transaction in staged - locks:
                forget(store, transaction)
        return lock

    @property
    def key(self) -> str:
        """Key of the lock."""
        return f"{WRITERS}/{self.transaction}"

    def _give_way_to(self, other: str, boxes: Boxes) -> None:
        """Raise `ConflictError` if the lock `other` is on some of the same chunks."""
        data = self.store.reader().get_one(f"{WRITERS}/{other}")
        if data is None:
            return  # it has finished meanwhile
        lock = parse_json(data)
        lock = lock if isinstance(lock, dict) else {}
        owner = Owner.parse(lock.get("owner"))
        if owner.has_left(other):
            finish_journal(self.store)  # it may have made its change valid just before it died
            forget(self.store, other)
        elif _overlap(boxes, lock.get("boxes")):
            raise conflict(self.store.url, owner, "is at work on the same chunks")

    def check(self) -> None:
        """Raise `StoreError` if the lock has been removed."""
        if self.store.reader().get_one(self.key) is None:
            raise StoreError(self.store.url, OVER)

    def release(self) -> None:
        """Remove the lock, and all objects that were staged under it."""
        AT_WORK.discard(self.transaction)
        with suppress(StoreError):  # the next writer removes the rest
            forget(self.store, self.transaction)


def conflict(url: str, owner: Owner, does: str) -> ConflictError:
    """Return the error for a target at which another writer is at work, in this process or not."""
    writer, advice = f"another writer ({owner})", "wait for it, or, if it has died on its machine"
    if owner.pid == os.getpid() and owner.host == Owner.here().host:
        writer = "another export of this process"
        advice = "wait for it; or compute it, if it is delayed; or, to give it up"
    return ConflictError(url, f"{writer} {does}; {advice}, call nczarr_xarray.recover")


def _staged(store: WritableStore) -> frozenset[str]:
    """Return the names of the changes that have staged objects."""
    (names,) = store.reader().list_many([STAGED])
    if isinstance(names, StoreError):
        raise names
    return names or frozenset()


def _overlap(one: Boxes, other: object) -> bool:
    if one is None or not isinstance(other, dict):
        return True
    return any(
        path in other
        and all(a < d and c < b for (a, b), (c, d) in zip(box, other[path], strict=False))
        for path, box in one.items()
    )
