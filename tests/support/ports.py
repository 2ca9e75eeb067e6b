"""Ports for the servers of tests, each of them for one server of this process only.

Connections, throttles, versions and metadata are kept by URL, so a second server on the port of a
first would meet what was learnt of that. The system's own choice repeats: of 300 ports, about
three were there before. These lie below those that the system gives to clients.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

_FIRST, _END = 10_240, 32_768


def _unused() -> Iterator[int]:
    # processes that run at the same time begin at different ports
    begin = os.getpid() * 1_009 % (_END - _FIRST)
    for port in (*range(_FIRST + begin, _END), *range(_FIRST, _FIRST + begin)):
        if _is_free(port):
            yield port


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket() as tried:
        tried.bind(("127.0.0.1", port))
        return True
    return False


_ports = _unused()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, and was never returned before."""
    return next(_ports)
