"""Notes of what is done of a long change, by which another process continues it.

They lie among the staged objects, so they go with these, and are removed before a change becomes
valid. A part of the work is noted after all its objects were put. If the machine was started anew
meanwhile, nothing tells whether these were kept: the owner of the change then counts as unknown,
and its work is not continued.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nczarr_fsspec.changes.journal import PRIVATE
from nczarr_fsspec.changes.recovery import read
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.writable import WritableStore

#: The plan of the work, and below the other key the numbers of what is done, as names of objects.
PLAN = f"{PRIVATE}/plan"
DONE = f"{PRIVATE}/done"

#: Bytes of data after which it is noted that they are done: so much is done again.
NOTE_BYTES = 1 << 26

_SPAN = re.compile(rf"{re.escape(DONE)}/([0-9]+)-([0-9]+)")


@dataclass(frozen=True, slots=True)
class Resumption:
    """Work that can be continued.

    Parameters
    ----------
    plan
        A text that is the same only for the same work, with parts of the same numbers.
    wanted
        Whether work that was begun is continued, and kept if this one is interrupted.
    """

    plan: str
    wanted: bool = False

    def continues(self, store: WritableStore) -> bool:
        """Tell whether a store holds work to continue."""
        if not self.wanted:
            return False
        try:
            return read(store.reader(), PLAN) == self.plan.encode()
        except StoreError:
            return False


class Notes:
    """What is done of some work. Parts are done in any order, by one thread.

    Parameters
    ----------
    store
        Where the objects are staged.
    resumption
        The work; None if it is not noted.
    """

    def __init__(self, store: WritableStore, resumption: Resumption | None) -> None:
        self._store = store
        self._resumption = resumption
        self._parts: list[int] = []
        self._nbytes = 0
        self._done: list[range] = []
        self._begun = resumption is not None and resumption.continues(store)
        if self._begun:
            found = map(_SPAN.fullmatch, store.keys_below(DONE))
            self._done = [range(int(one[1]), int(one[2])) for one in found if one is not None]

    def is_done(self, part: int) -> bool:
        """Tell whether a part was done before."""
        return any(part in span for span in self._done)

    def note(self, part: int, nbytes: int) -> None:
        """Note that a part is done; some are put down together."""
        if self._parts and self._parts[-1] != part - 1:
            self.put()
        self._parts.append(part)
        self._nbytes += nbytes
        if self._nbytes >= NOTE_BYTES:
            self.put()

    def put(self) -> None:
        """Put down all that was noted."""
        if self._resumption is None or not self._parts:
            return
        if not self._begun:
            self._store.put(PLAN, self._resumption.plan.encode())
            self._begun = True
        self._store.put(f"{DONE}/{self._parts[0]}-{self._parts[-1] + 1}", b"")
        self._parts, self._nbytes = [], 0

    def remove(self) -> None:
        """Remove all notes."""
        if self._begun:
            self._store.delete([PLAN, *self._store.keys_below(DONE)])
