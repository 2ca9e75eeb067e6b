"""Reads of open files at given places, on every system."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

#: O_NONBLOCK: a FIFO in the tree must not stop us; it means nothing to regular files. Where a
#: system lacks a flag, it lacks what the flag is about; Windows alone has O_BINARY.
_FLAGS = ("O_RDONLY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
OPEN_FLAGS = sum(getattr(os, flag, 0) for flag in _FLAGS)


def read_at(descriptor: int, start: int, stop: int) -> bytes:
    """Return the bytes ``[start, stop)`` of an open file; fewer if it ends before `stop`."""
    if stop <= start:
        return b""
    data = pread(descriptor, stop - start, start)
    if len(data) == stop - start:
        return data
    parts = [data]  # one call returns at most 2 GiB
    while data:
        start += len(data)
        data = pread(descriptor, stop - start, start)
        parts.append(data)
    return b"".join(parts)


if hasattr(os, "pread"):
    pread = os.pread
else:  # Windows: one file position a descriptor, so one reader at a time
    _lock = threading.Lock()

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        """Return bytes from `offset` on; a lock keeps other threads from moving the position."""
        with _lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, count)


def read_into(descriptor: int, start: int, buffer: memoryview) -> int:
    """Fill `buffer` from byte `start` on; how many bytes there were."""
    there = 0
    while there < len(buffer):
        count = _preadv(descriptor, [buffer[there:]], start + there)
        if count == 0:
            break
        there += count
    return there


_preadv: Callable[[int, Sequence[Any], int], int]
if hasattr(os, "preadv"):
    _preadv = os.preadv
else:  # Windows, and macOS before 11

    def _preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        data = pread(descriptor, sum(map(len, buffers)), offset)
        at = 0
        for buffer in buffers:
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            at += len(part)
        return len(data)
