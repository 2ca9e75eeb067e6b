"""Changing a dataset that exists: all of a change becomes valid at once, or none of it.

New objects are staged where no reader looks. One atomic write, of the journal,
makes them valid; then they are moved into place. See `nczarr_fsspec.changes.journal`.

Two writers of one dataset never change the same chunks. A lock is an object in the dataset that
names its owner and its chunks. A writer puts its lock before it looks for others. So of two writers
of the same chunks, at least one finds the lock of the other. The lock of a process that has ended
does not count.
"""

from __future__ import annotations

import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from nczarr_fsspec.changes.journal import (
    HELD,
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    STAGED,
    WRITERS,
    Incomplete,
    Journal,
)
from nczarr_fsspec.changes.recovery import (
    carry_out,
    finish_journal,
    forget,
    full_template,
    read_journal,
    succession,
)
from nczarr_fsspec.changes.resumption import Resumption
from nczarr_fsspec.errors import ConflictError, StoreError, on_error
from nczarr_fsspec.keystore import WritableStore
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json

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
            # before the locks: each lock was put first
            (staged,) = store.reader().list_many([STAGED])
            if isinstance(staged, StoreError):
                raise staged
            locks = {key.rpartition("/")[2] for key in store.keys_below(WRITERS)}
            for other in locks - {lock.transaction}:
                lock._give_way_to(other, boxes)
            for transaction in (staged or frozenset()) - locks:
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


def _overlap(one: Boxes, other: object) -> bool:
    if one is None or not isinstance(other, dict):
        return True
    return any(
        path in other
        and all(a < d and c < b for (a, b), (c, d) in zip(box, other[path], strict=False))
        for path, box in one.items()
    )


#: How often another writer may be faster.
_TURNS = 1000


class Change(ABC):
    """A change of a dataset that has begun. Picklable, so that other processes can stage for it.

    Attributes
    ----------
    staged
        The store where new objects are put, under their own keys.
    resumption
        The work, if it can be continued; notes of it are kept among the staged objects.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def staged(self) -> WritableStore: ...

    @property
    @abstractmethod
    def resumption(self) -> Resumption | None: ...

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        """Make the whole change valid, in one step.

        It may be called again if the process that called it died.

        Parameters
        ----------
        removed
            Keys to remove.
        expected
            How many objects must have been staged; None if that is not known.
        pending
            The mark of the chunks that are written later.

        Raises
        ------
        StoreError
            If that failed. Nothing has changed then; or, of an `Edit` of which not everything could
            be moved to its place, the change is valid, and the next writer finishes it.
        """
        self._publish(frozenset(removed), expected, pending)

    @abstractmethod
    def _publish(
        self, removed: frozenset[str], expected: int | None, pending: Incomplete | None
    ) -> None:
        """Make the staged objects those of the dataset, in the way of its store."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the staged objects, unless there are notes by which the work is continued."""


@dataclass(frozen=True, slots=True)
class Edit(Change):
    """A change of a dataset that exists: the journal makes it valid.

    Attributes
    ----------
    store
        The dataset.
    lock
        What keeps others away.
    """

    store: WritableStore
    lock: Lock
    staged: WritableStore = field(repr=False)

    #: it is never continued: the next writer would remove what is staged
    resumption: ClassVar[None] = None

    @classmethod
    def begin(cls, store: WritableStore, boxes: Boxes = None) -> Edit:
        """Announce a change of the chunks in `boxes` (errors: see `Lock.acquire`)."""
        lock = Lock.acquire(store, boxes)
        return cls(store, lock, store.child(f"{STAGED}/{lock.transaction}"))

    def _publish(
        self, removed: frozenset[str], expected: int | None, pending: Incomplete | None
    ) -> None:
        before = read_journal(self.store.reader())
        if before is not None and before.transaction == self.lock.transaction:
            finish_journal(self.store)
            return
        found = self.staged.keys_below("")
        own = [key for key in found if key.startswith(f"{PRIVATE}/")]
        staged = {*found} - {*own}
        self.lock.check()  # after the list: locks are removed before what is staged
        if own:  # of a try that failed: others would take it as the leave to carry this one out
            self.staged.delete(own)
        if expected is not None and len(staged) != expected:
            raise StoreError(
                self.store.url,
                f"{len(staged)} objects were staged, {expected} expected; nothing was changed",
            )
        gone = {*removed} - staged
        if pending is not None:
            self.staged.put(INCOMPLETE, pending.dump())
            staged.add(INCOMPLETE)
            gone -= {INCOMPLETE, HELD}  # they are replaced
        journal = Journal(
            self.lock.transaction, Owner.here(), tuple(sorted(staged)), tuple(sorted(gone))
        )
        if staged or gone:
            _make_valid(self.store, journal)
        else:
            complete_template(self.store)
        self.lock.release()

    def abort(self) -> None:
        """Remove the staged objects and the lock; do nothing if the change is valid already."""
        self.lock.release()


def complete_template(store: WritableStore) -> None:
    """End a template, if all chunks that were to come are there; the last step of their writers.

    It is a change of its own, as no other one may be carried out meanwhile.
    """
    mark = full_template(store)
    if mark is not None:
        here = Owner.here()
        _make_valid(store, Journal(uuid.uuid4().hex[:16], here, (), completes=mark.name))


def _make_valid(store: WritableStore, journal: Journal) -> None:
    """Put a journal when there is no other one any more, and carry it out."""
    with succession(store, journal).turn(-1, journal.transaction):
        for _ in range(_TURNS):
            finish_journal(store)
            if store.create(JOURNAL, journal.dump()):
                break
        else:
            reason = f"other writers made their changes valid {_TURNS} times before this one"
            raise ConflictError(store.url, f"{reason}; try again when they write less often")
        try:
            carry_out(store, journal)
        except StoreError as error:
            raise StoreError(
                store.url,
                "is changed, and can be read here, but not everything could be moved to its place; "
                "do not repeat the change: the next writer, or nczarr_xarray.recover, ends it: "
                f"{error}",
            ) from error
