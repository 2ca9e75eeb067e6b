"""Notes of what is done of a long change, by which another process continues it.

They lie among the staged objects, so they go with these. They are valid as long as the plan is
there, which is put before them and removed before any of the work is. A part of the work is noted
after all its objects were put. If the machine was started anew meanwhile, nothing tells whether
these were kept: the owner of the change then counts as unknown, and its work is not continued.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from nczarr_fsspec.changes.journal import PRIVATE
from nczarr_fsspec.keystore import WritableStore

#: Below this key is what is kept of work that can be continued: the plan of it, the numbers of what
#: is done, as names of objects, and chunks between two passes.
WORK = f"{PRIVATE}/work"
PLAN = f"{WORK}/plan"
DONE = f"{WORK}/done"
BETWEEN = f"{WORK}/between"

#: Bytes of data that are written between two notes: about so many may be written again.
NOTE_BYTES = 1 << 26

_SPAN = re.compile(rf"{re.escape(DONE)}/([0-9]+)-([0-9]+)")


@dataclass(frozen=True, slots=True)
class Resumption:
    """Work that is continued if it was begun, and noted so that it can be continued.

    Parameters
    ----------
    plan
        A text that identifies the work, and the numbers of its parts.
    """

    plan: str

    @classmethod
    def of(cls, *told: object) -> Self:
        """Return the work that the `repr` of `told` identifies."""
        return cls(hashlib.sha256(repr(told).encode()).hexdigest())

    def continues(self, store: WritableStore) -> bool:
        """Tell whether a store holds notes of this work (`StoreError` if it cannot be read)."""
        return store.reader().get_one(PLAN) == self.plan.encode()


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
        self._done: list[tuple[int, int]] = []
        self._begun = resumption is not None and resumption.continues(store)
        if self._begun:
            found = map(_SPAN.fullmatch, store.keys_below(DONE))
            self._done = sorted((int(one[1]), int(one[2])) for one in found if one is not None)

    def is_done(self, part: int) -> bool:
        """Tell whether a part was done before."""
        before = bisect_right(self._done, part, key=lambda span: span[0])
        return before > 0 and part < self._done[before - 1][1]

    def note(self, part: int, nbytes: int) -> None:
        """Note that a part is done, which has written `nbytes`; several notes are put at a time."""
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
