"""Which versions files are of now."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from nczarr_fsspec.place import find_remote_file
from nczarr_fsspec.places.names import names_url
from nczarr_fsspec.ranges.remote import RemoteFileBytes
from nczarr_fsspec.transport.request import UNKNOWN, Stamp

#: Remote files of which the version is asked for at the same time.
_AT_A_TIME = 512


def stamps_of(files: Sequence[str], storage_options: Mapping[str, Any] | None) -> list[Stamp]:
    """Ask which versions files are of now; `UNKNOWN` is what reading has to find out."""
    stamps = [UNKNOWN if names_url(file) else _local_stamp(file) for file in files]
    remote: list[tuple[int, RemoteFileBytes]] = []
    for number, file in enumerate(files):
        found = find_remote_file(file, storage_options) if names_url(file) else None
        if found is not None:
            remote.append((number, found[0]))

    async def ask(sources: Sequence[RemoteFileBytes]) -> list[Stamp | BaseException]:
        return await asyncio.gather(*(one.ask() for one in sources), return_exceptions=True)

    for at in range(0, len(remote), _AT_A_TIME):
        numbers, sources = zip(*remote[at : at + _AT_A_TIME], strict=True)
        for number, source, stamp in zip(
            numbers, sources, sources[0].run(ask(sources)), strict=True
        ):
            source.close()
            stamps[number] = stamp if isinstance(stamp, Stamp) else UNKNOWN
    return stamps


def _local_stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return UNKNOWN
    return Stamp(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else UNKNOWN
