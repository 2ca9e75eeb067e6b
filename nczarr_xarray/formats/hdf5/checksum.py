"""The checksum over HDF5's metadata: Jenkins' lookup3 (specification, appendix of version 3.0).

numcodecs has it compiled: a node of two kilobytes takes about a microsecond. But to import
numcodecs takes as long as to sum 200 kB in Python, and most files have a few kB of metadata. So a
process sums its first bytes in Python.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from nczarr_xarray.formats.hdf5.binary import Frame

#: Bytes that a process sums in Python, if it has not imported numcodecs anyway.
_IN_PYTHON = 1 << 15
_ALL = 0xFFFFFFFF
#: How the words are mixed at the end: which of the three changes, by which, rotated how far.
_LAST = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


class _Lookup3:
    """Sums bytes, by numcodecs once there are many."""

    def __init__(self) -> None:
        self._left = _IN_PYTHON
        self._compiled: Callable[[bytes | memoryview, int], Any] | None = None

    def __call__(self, data: bytes | memoryview) -> int:
        """Return the checksum of `data`."""
        if self._compiled is None:
            self._left -= len(data)
            if self._left >= 0 and "numcodecs" not in sys.modules:
                return in_python(data)
            from numcodecs.jenkins import jenkins_lookup3

            self._compiled = jenkins_lookup3
        return int(self._compiled(data, 0))


lookup3 = _Lookup3()


def in_python(data: bytes | memoryview) -> int:
    """Return the checksum of `data`, without numcodecs."""
    a = b = c = (0xDEADBEEF + len(data)) & _ALL
    if not data:
        return c
    whole = (len(data) - 1) // 12  # the last block is mixed in another way, also if it is full
    words = iter(struct.unpack_from(f"<{3 * whole}I", data))
    for x, y, z in zip(words, words, words, strict=True):
        a, b, c = a + x, b + y, (c + z) & _ALL
        a, c = (a - c) & _ALL ^ (c << 4 & _ALL | c >> 28), (c + b) & _ALL
        b, a = (b - a) & _ALL ^ (a << 6 & _ALL | a >> 26), (a + c) & _ALL
        c, b = (c - b) & _ALL ^ (b << 8 & _ALL | b >> 24), (b + a) & _ALL
        a, c = (a - c) & _ALL ^ (c << 16 & _ALL | c >> 16), (c + b) & _ALL
        b, a = (b - a) & _ALL ^ (a << 19 & _ALL | a >> 13), (a + c) & _ALL
        c, b = (c - b) & _ALL ^ (b << 4 & _ALL | b >> 28), (b + a) & _ALL
    x, y, z = struct.unpack("<3I", bytes(data[12 * whole :]).ljust(12, b"\0"))
    mixed: list[int] = [(a + x) & _ALL, (b + y) & _ALL, (c + z) & _ALL]
    for one, other, bits in _LAST:
        word = mixed[other]
        rotated = word << bits & _ALL | word >> 32 - bits
        mixed[one] = ((mixed[one] ^ word) - rotated) & _ALL
    return mixed[2]


def verify(data: bytes | memoryview, frame: Frame, what: str) -> None:
    """Raise `FormatError` unless the last four bytes are the checksum of those before.

    Parameters
    ----------
    data
        A whole structure.
    frame, what
        For the message: its file and name (``"B-tree node at 4096"``).
    """
    if len(data) < 4 or lookup3(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise frame.error(what, "its checksum is wrong (damaged, or changed while it was read)")
