"""Changing a dataset that exists: all of a change becomes valid at once, or none of it.

New objects are staged where no reader looks. One atomic write, of the journal,
makes them valid; then they are moved into place. See `nczarr_fsspec.changes.journal`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from nczarr_fsspec.changes.journal import (
    HELD,
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    STAGED,
    Incomplete,
    Journal,
)
from nczarr_fsspec.changes.locks import Boxes, Lock
from nczarr_fsspec.changes.recovery import (
    carry_out,
    finish_journal,
    full_template,
    read_journal,
    succession,
)
from nczarr_fsspec.errors import ConflictError, StoreError
from nczarr_fsspec.stores.ownership import Owner
from nczarr_fsspec.stores.writable import WritableStore

#: How often another writer may be faster.
_TURNS = 1000


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a dataset that has begun. Picklable, so that other processes can stage for it.

    Attributes
    ----------
    store
        The dataset.
    lock
        What keeps others away.
    staged
        The store where new objects are put, under their own keys.
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

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        """Make the staged objects valid, and move them into place.

        It may be called again if the process that called it died.

        Parameters
        ----------
        removed
            Keys to remove.
        expected
            How many objects must have been staged.
        pending
            The mark of the chunks that are written later.

        Raises
        ------
        StoreError
            If objects are missing; nothing has changed then. If moving them
            failed: the change is valid, and the next writer finishes it.
        """
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
        gone = set(removed) - staged
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
