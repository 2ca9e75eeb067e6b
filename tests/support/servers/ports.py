"""Ports for the servers of tests, each of them for one server of this process only.

Connections, throttles, versions and metadata are kept by URL, so a second server on the port of a
first would meet what was learnt of that. The system's own choice repeats: of 300 ports, about
three were there before. These lie below those that the system gives to clients.

Most servers here are programs, which are told their port and listen a while after. So that no
other process of these tests gets it meanwhile, a process takes whole blocks of ports. That it has
a block, it tells the others by a UDP socket at the block's first port.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

_FIRST, _END, _BLOCK = 10_240, 32_768, 256


def _udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


#: of the blocks that this process has; as many from the beginning, for tests that count open files
_claims = deque(_udp() for _ in range(8))


def _blocks() -> Iterator[range]:
    """Blocks that no other process has; of these, the last ones stay taken."""
    blocks = [range(first, first + _BLOCK) for first in range(_FIRST, _END, _BLOCK)]
    begin = os.getpid() % len(blocks)  # processes that run at the same time begin at others
    for block in blocks[begin:] + blocks[:begin]:
        claim = _udp()
        try:
            claim.bind(("127.0.0.1", block.start))
        except OSError:
            claim.close()
            continue
        _claims.popleft().close()
        _claims.append(claim)
        yield block


def _unused() -> Iterator[int]:
    for block in _blocks():
        yield from filter(_is_free, block)
    raise RuntimeError("no port is left that this process has not had")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket() as tried:
        tried.bind(("127.0.0.1", port))
        return True
    return False


_ports = _unused()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, and was never returned before."""
    return next(_ports)
