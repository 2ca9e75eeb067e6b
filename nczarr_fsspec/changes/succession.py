"""Taking over from a writer that has ended, as the only process that does.

Successors form a line: each has an object with the next number. A process enters it only when the
one before has ended, and an object can be created only once. So no two processes finish, or clean
up, what the same writer has left.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.stores.ownership import AT_WORK, Owner, parse_json
from nczarr_fsspec.stores.writable import WritableStore

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
