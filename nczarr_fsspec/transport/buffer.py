"""Memory for what comes over a network."""

from __future__ import annotations

import mmap
from contextlib import suppress

#: from this size on, in bytes, memory is pages of its own
LARGE = 1 << 17


def buffer(count: int) -> memoryview:
    """Return memory for `count` bytes, writable; they are zero.

    A large one is pages of its own, which the system has back as soon as nothing refers to them.
    The C library's allocator would keep them: it takes from its heap what is no larger than blocks
    that were freed before, and so this grows by all buffers that were ever held at a time.
    """
    if count < LARGE:
        return memoryview(bytearray(count))
    try:
        pages = mmap.mmap(-1, count, access=mmap.ACCESS_COPY)  # of no other process
    except OSError:  # no memory, which `bytearray` says better, or too many mappings
        return memoryview(bytearray(count))
    if hasattr(mmap, "MADV_HUGEPAGE"):  # touching small ones for the first time takes long
        with suppress(OSError):  # of a kernel without
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
