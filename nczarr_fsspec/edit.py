"""Changing a dataset that exists: all of a change becomes valid at once, or none of it.

New objects are staged where no reader looks. One atomic write, of the journal,
makes them valid; then they are moved into place. See `nczarr_fsspec.journal`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nczarr_fsspec.errors import ConflictError, StoreError
from nczarr_fsspec.journal import (
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    STAGED,
    WRITERS,
    Incomplete,
    Journal,
)
from nczarr_fsspec.owned import is_chunk_of
from nczarr_fsspec.owner import Owner, parse_json
from nczarr_fsspec.writable import WritableStore

#: What makes a dataset one; taken away first and put back last while a change is carried out,
#: so that readers who know nothing of the journal find no dataset rather than half of a change.
ROOT_KEYS = (".zgroup", ".zattrs", ".nczarr", ".zmetadata")
#: How long a change that another process carries out right now is waited for, in seconds.
PATIENCE = 30.0

#: Array -> first and last+1 chunk along each dimension; None claims everything.
Boxes = Mapping[str, tuple[tuple[int, int], ...]] | None


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one dataset, under way. Picklable, so that other processes can stage for it.

    Attributes
    ----------
    store
        The dataset.
    staged
        Where new objects are put, under their own keys.
    """

    store: WritableStore
    transaction: str
    owner: Owner
    staged: WritableStore = field(repr=False)

    @classmethod
    def begin(cls, store: WritableStore, boxes: Boxes = None) -> Edit:
        """Announce a change of the chunks in `boxes`.

        What a writer that died left behind is finished or removed.

        Raises
        ------
        ConflictError
            If another writer is at work there.
        StoreError
            If the store cannot be written.
        """
        transaction = uuid.uuid4().hex[:16]
        edit = cls(store, transaction, Owner.here(), store.child(f"{STAGED}/{transaction}"))
        claim = json.dumps({"owner": edit.owner.document, "boxes": boxes})
        store.put(edit._claim, claim.encode())
        try:
            for other in store.keys_below(WRITERS):
                if other.rpartition("/")[2] != transaction:
                    edit._give_way_to(other, boxes)
            finish_journal(store)
        except BaseException:
            edit.abort()
            raise
        return edit

    @property
    def _claim(self) -> str:
        return f"{WRITERS}/{self.transaction}"

    def _give_way_to(self, other: str, boxes: Boxes) -> None:
        """Raise if the writer that claimed `other` and this one want the same chunks."""
        data = self.store.reader().get_many([other])[0]
        if data is None:
            return  # it has finished meanwhile
        if isinstance(data, StoreError):
            raise data
        claim = parse_json(data)
        claim = claim if isinstance(claim, dict) else {}
        owner = Owner.parse(claim.get("owner"))
        if owner.is_dead():
            discard(self.store, other.rpartition("/")[2])
        elif _overlap(boxes, claim.get("boxes")):
            raise ConflictError(
                self.store.url,
                f"another writer ({owner}) is at work on the same chunks; wait for it, or, if it "
                "has died on its machine, call nczarr_xarray.recover",
            )

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        """Make what was staged valid, and put it into place.

        Parameters
        ----------
        removed
            Keys to remove.
        expected
            How many objects must have been staged.
        pending
            Arrays whose chunks are written later.

        Raises
        ------
        StoreError
            If objects are missing; nothing has changed then. If moving them
            failed: the change is valid, and the next writer finishes it.
        """
        staged = tuple(self.staged.keys_below(""))
        if expected is not None and len(staged) != expected:
            raise StoreError(
                self.store.url,
                f"{len(staged)} objects were staged, {expected} expected; nothing was changed",
            )
        if pending is not None:
            self.staged.put(INCOMPLETE, pending.dump())
            staged = (*staged, INCOMPLETE)
        removed = tuple(sorted(set(removed) - set(staged)))
        journal = Journal(self.transaction, self.owner, staged, removed)
        finish_journal(self.store)
        while not self.store.create(JOURNAL, journal.dump()):
            finish_journal(self.store)
        carry_out(self.store, journal)
        with suppress(StoreError):
            forget(self.store, self.transaction)

    def abort(self) -> None:
        """Remove what was staged, and the claim; nothing of it if the change is valid already."""
        with suppress(StoreError):  # whoever comes next tidies up
            discard(self.store, self.transaction)


def discard(store: WritableStore, transaction: str) -> None:
    """Remove everything that belongs to a change, unless its journal says that it is valid."""
    data = store.reader().get_many([JOURNAL])[0]
    if isinstance(data, StoreError):
        raise data
    if data is None or Journal.parse(data, store.url).transaction != transaction:
        forget(store, transaction)


def forget(store: WritableStore, transaction: str) -> None:
    """Remove everything that belongs to a change that is over."""
    prefix = f"{STAGED}/{transaction}"
    store.delete([f"{prefix}/{key}" for key in store.child(prefix).keys_below("")])
    store.delete([f"{WRITERS}/{transaction}"])


def finish_journal(store: WritableStore) -> None:
    """Carry out a change whose writer died; wait for one whose writer is at it.

    Raises
    ------
    ConflictError
        If that takes too long.
    """
    deadline = time.monotonic() + PATIENCE
    wait = 0.005
    while True:
        data = store.reader().get_many([JOURNAL])[0]
        if data is None:
            return
        if isinstance(data, StoreError):
            raise data
        journal = Journal.parse(data, store.url)
        if journal.owner.is_dead():
            carry_out(store, journal)
            forget(store, journal.transaction)
            return
        if time.monotonic() > deadline:
            raise ConflictError(
                store.url,
                f"another writer ({journal.owner}) has been changing it for {PATIENCE:.0f} s; if "
                "it has died on its machine, call nczarr_xarray.recover",
            )
        time.sleep(wait)
        wait = min(2 * wait, 0.5)


def carry_out(store: WritableStore, journal: Journal) -> None:
    """Put the objects of a valid change into place. May be done again after it was cut off."""
    roots = [key for key in ROOT_KEYS if key in journal.staged]
    others = [key for key in journal.staged if key not in ROOT_KEYS]
    # Arrays come before the groups that list them, deeper groups before higher ones.
    others.sort(key=_rank)
    store.delete(roots)
    store.move((journal.staged_key(key), key) for key in others)
    store.delete(journal.removed)
    store.move((journal.staged_key(key), key) for key in roots)
    store.delete([JOURNAL])


def _rank(key: str) -> tuple[int, int]:
    name = key.rpartition("/")[2]
    kind = 0 if not name.startswith(".z") else (2 if name in (".zgroup", ".zattrs") else 1)
    return kind, -key.count("/")


def _overlap(one: Boxes, other: object) -> bool:
    if one is None or not isinstance(other, dict):
        return True
    for path, box in one.items():
        if path in other and all(
            a < d and c < b for (a, b), (c, d) in zip(box, other[path], strict=False)
        ):
            return True
    return False


def pending_in(store: WritableStore) -> Incomplete | None:
    """The mark of arrays that are still to be written, if there is one."""
    data = store.reader().get_many([INCOMPLETE])[0]
    if isinstance(data, StoreError):
        raise data
    return None if data is None else Incomplete.parse(data)


def recover(store: WritableStore) -> None:
    """Finish or remove whatever any writer left; for when none is at work any more.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    data = store.reader().get_many([JOURNAL])[0]
    if isinstance(data, StoreError):
        raise data
    if data is not None:
        carry_out(store, Journal.parse(data, store.url))
    keep = {INCOMPLETE}
    store.delete([key for key in store.keys_below(PRIVATE) if key not in keep])


def settle(store: WritableStore) -> None:
    """Take the mark away that chunks are still to come, if they are all there now."""
    mark = pending_in(store)
    if mark is None or mark.pending is None:
        return
    for path, count in mark.pending.items():
        there = sum(is_chunk_of(key, path) for key in store.keys_below(path))
        if there < count:
            return
    store.delete([INCOMPLETE])
