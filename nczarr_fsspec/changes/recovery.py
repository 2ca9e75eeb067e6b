"""Carrying out changes that are valid, one's own and those of writers that died.

The processes that take over from a writer form a line: each has an object with the next number. A
process enters it only when the one before has ended, and an object can be created only once. So no
two processes finish, or clean up, what the same writer has left.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nczarr_fsspec.changes.journal import (
    COVER,
    HELD,
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    ROOT,
    STAGED,
    WRITERS,
    Incomplete,
    Journal,
    is_chunk_of,
)
from nczarr_fsspec.errors import ConflictError, StoreError
from nczarr_fsspec.keystore import KeyStore, WritableStore
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json

#: Stands for a successor that has ended: the process before it has given up, but lives on.
_RELEASED = b"released"
#: Processes that may have taken over from each other.
MOST = 1000


@dataclass(frozen=True, slots=True)
class Succession:
    """The line of processes that take over from one writer.

    Parameters
    ----------
    store
        Where it is.
    start
        What the keys of the line begin with; a number follows.
    """

    store: WritableStore
    start: str

    def key(self, number: int) -> str:
        """Return the key of a process in the line, counted from 0."""
        return f"{self.start}{number}"

    def end(self, first: Owner, work: str) -> tuple[Owner | None, int]:
        """Return which process may be at work, and the number of the next one in the line.

        Parameters
        ----------
        first, work
            The writer that the line is about, and the name of its work in `AT_WORK`.

        Returns
        -------
        process
            The last one; None if it has certainly ended, so that the next one may enter.
        number
            For `turn`.

        Raises
        ------
        StoreError
            If the line cannot be read, or has no end.
        """
        reader, last = self.store.reader(), _at_work(first, work)
        for number in range(MOST):
            data = reader.get_one(self.key(number))
            if data is None:
                return last, number
            last = None if data == _RELEASED else _at_work(*_parse(data))
        reason = f"there are {MOST} objects of processes that took over, or the service answers"
        raise StoreError(f"{self.store.url}/{self.start}", f"{reason} something for any key")

    @contextmanager
    def turn(self, number: int, work: str = "") -> Iterator[bool]:
        """Enter the line, or be the first writer again, as long as the block runs.

        If the block fails, the next process may enter, although this one lives on.

        Parameters
        ----------
        number
            Position in the line, as found by `end`; -1 for the first writer.
        work
            Name of the work in `AT_WORK`. Default: a new one.

        Yields
        ------
        bool
            Whether this process is the one; False if another one was faster.

        Raises
        ------
        StoreError
            If the store fails.
        """
        work = work or uuid.uuid4().hex
        document = {"owner": Owner.here().document, "work": work}
        AT_WORK.add(work)
        try:
            yield number < 0 or self.store.create(self.key(number), json.dumps(document).encode())
        except BaseException:
            with suppress(StoreError):
                if number < 0 or self._is_ours(number, work):
                    self.store.create(self.key(number + 1), _RELEASED)
            raise
        finally:
            AT_WORK.discard(work)

    def _is_ours(self, number: int, work: str) -> bool:
        data = self.store.reader().get_one(self.key(number))
        return data is not None and _parse(data)[1] == work


def _parse(data: bytes) -> tuple[Owner, str]:
    found = parse_json(data)
    document = found if isinstance(found, dict) else {}
    return Owner.parse(document.get("owner")), str(document.get("work"))


def _at_work(owner: Owner, work: str) -> Owner | None:
    return None if owner.has_left(work) else owner


#: Other objects that show that there is a dataset: of zarr-python, of netCDF-C 4.8.0, of Zarr 3.
_OTHER_ROOTS = (".zmetadata", ".nczarr", "zarr.json")
#: How long a writer that carries out a change may make no progress, in seconds, where the option
#: ``timeout`` does not say less.
PATIENCE = 30.0
#: Keys that are moved at a time, so that waiting writers see progress.
BATCH = 1000


def read_journal(reader: KeyStore) -> Journal | None:
    """Return the journal of the change that is being carried out, None if there is none.

    `StoreError` if it is damaged.
    """
    data = reader.get_one(JOURNAL)
    return None if data is None else Journal.parse(data, reader.url)


def forget(store: WritableStore, transaction: str) -> None:
    """Remove all objects of a change that is over; do nothing if it is valid."""
    journal = read_journal(store.reader())
    if journal is None or journal.transaction != transaction:
        store.delete([f"{WRITERS}/{transaction}"])
        store.delete(store.keys_below(f"{STAGED}/{transaction}"))


def finish_journal(store: WritableStore) -> None:
    """Carry out the change of a dead writer, or wait for the writer that carries it out.

    Raises
    ------
    ConflictError
        If there is no progress for a long time.
    StoreError
        If the store fails, or the journal is damaged.
    """
    reader, patience = store.reader(), min(PATIENCE, store.timeout)
    seen: object = None
    ours: set[str] = set()
    try:
        while (journal := read_journal(reader)) is not None:
            line = succession(store, journal)
            at_work, number = line.end(journal.owner, journal.transaction)
            if at_work is None and journal.transaction not in ours:
                with line.turn(number) as entered:
                    if entered and read_journal(reader) == journal:
                        carry_out(store, journal)
                if entered:  # by this process or, meanwhile, by another one
                    forget(store, journal.transaction)
                    ours.add(journal.transaction)
                    continue
            left = len(store.keys_below(f"{STAGED}/{journal.transaction}"))
            if seen != (journal.transaction, left):
                seen = journal.transaction, left
                wait, deadline = 0.005, time.monotonic() + patience
            elif time.monotonic() > deadline:
                raise ConflictError(
                    store.url,
                    f"another writer ({journal.owner}) has got no further with its change for "
                    f"{patience:g} s; if it has died on its machine, call nczarr_xarray.recover",
                )
            time.sleep(wait)
            wait = min(2 * wait, 0.5)
    finally:
        reader.close()


def succession(store: WritableStore, journal: Journal) -> Succession:
    """Return the line of processes that carry on with a change after others have died."""
    return Succession(store, journal.staged_key(f"{PRIVATE}/successors/"))


def carry_out(store: WritableStore, journal: Journal) -> None:
    """Move the objects of a valid change into place. It may be repeated after an interruption.

    Until everything is in place, the root group is a text that makes readers
    fail that do not know the journal (netCDF-C, zarr-python). Without any root
    group, netCDF-C would look for arrays and read what it finds.
    """
    prefix = f"{STAGED}/{journal.transaction}/"
    there = {key.removeprefix(prefix) for key in store.keys_below(prefix.rstrip("/"))}
    waiting = [key for key in journal.staged if key in there]
    if ROOT in waiting:
        store.put(ROOT, COVER)
    gone = {*waiting, *journal.removed}
    store.delete([key for key in _OTHER_ROOTS if key in gone])
    # Chunks come before metadata. Over a network, a reader may have requested the journal before
    # it existed, and then get the new metadata. It must not find old chunks with them.
    store.delete(journal.removed)
    for keys in _batches(sorted((key for key in waiting if key != ROOT), key=_rank)):
        store.move((journal.staged_key(key), key) for key in keys)
    if ROOT in waiting:
        place = ROOT if pending_in(store) is None else HELD
        store.move([(journal.staged_key(ROOT), place)])
    end_template(store, journal.completes)
    # The lock first: if there is neither lock nor journal, a commit that is repeated
    # knows that everything is done.
    store.delete([f"{WRITERS}/{journal.transaction}"])
    store.delete([JOURNAL])


def _rank(key: str) -> tuple[int, int]:
    """Return the rank of a key: chunks, then arrays, then groups from the deepest up."""
    name = key.rpartition("/")[2]
    kind = 0 if not name.startswith(".z") else (2 if name in (".zgroup", ".zattrs") else 1)
    return kind, -key.count("/")


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))


def pending_in(store: WritableStore) -> Incomplete | None:
    """Return the mark of chunks that are still to be written, if there is one."""
    data = store.reader().get_one(INCOMPLETE)
    return None if data is None else Incomplete.parse(data)


def full_template(store: WritableStore, known: str | None = None) -> Incomplete | None:
    """Return the mark of a template of which all chunks are there; None if there is none.

    Parameters
    ----------
    known
        Name of a mark whose chunks are known to be there.
    """
    mark = pending_in(store)
    if mark is None or mark.pending is None:
        return None
    if mark.name == known:
        return mark
    # writers mostly go from the first chunk to the last: all are listed at the end, not each time
    if mark.last and None in store.reader().get_many([*mark.last.values()], 0):
        return None
    for path, number in mark.pending.items():
        if sum(is_chunk_of(key, path) for key in store.keys_below(path)) < number:
            return None
    return mark


def end_template(store: WritableStore, known: str | None = None) -> None:
    """Show the root and remove the mark, if all chunks that were to come are there.

    Call it only while no other process can carry out a change: both move the root
    (`known`: see `full_template`).
    """
    mark = full_template(store, known)
    if mark is not None and pending_in(store) == mark:
        store.move([(HELD, ROOT)])
        store.delete([INCOMPLETE])


def recover(store: WritableStore) -> bool:
    """Finish or remove what any writer left; tell whether there was anything.

    Call it only while no writer is running.

    Raises
    ------
    StoreError
        If the store cannot be written.
    """
    journal = read_journal(store.reader())
    if journal is not None:
        with succession(store, journal).turn(-1, journal.transaction):
            carry_out(store, journal)
    left = [key for key in store.keys_below(PRIVATE) if key not in (INCOMPLETE, JOURNAL, HELD)]
    # the locks first: a writer that runs in spite of this sees that it must give up
    store.delete([key for key in left if key.startswith(f"{WRITERS}/")])
    store.delete(left)
    end_template(store)
    return journal is not None or bool(left)
