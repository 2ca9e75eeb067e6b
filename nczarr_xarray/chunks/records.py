"""The records of a classic file that were read last, which its variables take turns in.

Each record has a few bytes of every variable. A program that loads one variable after the other
would read all records for each of them. Only the main thread remembers: threads of dask take turns
among files.
"""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

from nczarr_fsspec.ranges.source import LocalBytes

#: Longest stretch of a file that is read, and remembered, at once.
LONGEST = 1 << 22


class _Stretch(NamedTuple):
    source: weakref.ref[LocalBytes]
    start: int
    data: bytes | memoryview


_last: _Stretch | None = None


def _forget(source: weakref.ref[LocalBytes]) -> None:
    global _last  # noqa: PLW0603 - one of a process
    if _last is not None and _last.source is source:
        _last = None


def read_records(
    source: LocalBytes, start: int, stop: int, record: int
) -> tuple[bytes | memoryview, int]:
    """Read the records that hold the bytes ``[start, stop)`` of one variable.

    Parameters
    ----------
    record
        Bytes of a record.

    Returns
    -------
    The bytes of a stretch of the file, and where in it `start` is.

    Raises
    ------
    StoreError
        If they cannot be read, or the file is another version than the one that was opened.
    """
    global _last  # noqa: PLW0603 - one of a process
    if threading.current_thread() is not threading.main_thread() or not source.verify():
        return source.read(start, stop), 0
    last = _last
    if last is not None and last.source() is source and last.start <= start:
        offset = start - last.start
        if offset + stop - start <= len(last.data):
            return last.data, offset
    # other variables begin in the same record, and end in the one after the last
    data = source.read(start, min(stop + record, source.size))
    _last = _Stretch(weakref.ref(source, _forget), start, data)
    return data, 0
