"""The checksum over HDF5's metadata: Jenkins' lookup3 (specification, appendix of version 3.0).

numcodecs has it compiled: a node of two kilobytes takes about a microsecond.
"""

from __future__ import annotations

from typing import Any

from numcodecs.jenkins import jenkins_lookup3

from nczarr_xarray.formats.hdf5.binary import Frame


def lookup3(data: bytes | memoryview) -> int:
    """Return the checksum of `data`."""
    checksum: Any = jenkins_lookup3(data, 0)
    return int(checksum)


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
