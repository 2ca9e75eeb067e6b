"""A network that fails: a TCP proxy before any server, which delays, cuts, loses and stops.

It knows no HTTP but this: a request begins where bytes come after an answer. What becomes of a
request, or of a connection, depends on the seed and on its number alone.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from nczarr_fsspec.errors import StoreError
from tests.support.servers.ports import free_port

T = TypeVar("T")

#: bytes that are passed on at a time
PIECE = 1 << 14
#: what may become of a request
FATES = ("reset", "lost", "cut", "stopped", "silent")


@dataclass(frozen=True)
class Faults:
    """What the network does.

    Parameters
    ----------
    refused
        Share of new connections that are reset at once.
    reset
        Share of requests that end the connection, and do not reach the server.
    lost
        Share of requests that reach the server and whose answer is lost with the connection.
    cut
        Share of answers after whose first bytes the connection ends.
    stopped
        Share of answers after whose first bytes nothing comes.
    silent
        Share of requests that nobody answers.
    delay, jitter
        Seconds by which all bytes are late, and up to how many more.
    first
        Bytes, at most, that come of an answer that is cut, or stops.
    """

    refused: float = 0.0
    reset: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    stopped: float = 0.0
    silent: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    first: int = 1 << 16


class Network:
    """Between a client and the server at `endpoint`.

    Attributes
    ----------
    endpoint : str
        What the client is told in place of the server.
    faults : Faults
        From now on.
    choose
        Says what becomes of a request, by its first line; None leaves that to `faults`.
    happened : Counter
        What was done, by its name.
    connections, requests : int
        How many there were.
    """

    def __init__(self, endpoint: str, seed: int = 0) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        self._server = parts.hostname, parts.port or 80
        self.seed = seed
        self.faults = Faults()
        self.choose: Callable[[str], str | None] = lambda line: None
        self.happened: Counter[str] = Counter()
        self.connections = self.requests = 0
        #: called in the network's thread with the number of each new connection
        self.at_connection: Callable[[int], object] = lambda number: None
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", free_port()), backlog=512)
        self._socket.setblocking(False)
        self.endpoint = f"{parts.scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open = asyncio.Event()
        self._open.set()
        self._accepting: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    def chance(self, *of: object) -> random.Random:
        """Random numbers that depend on the seed and `of` only."""
        return random.Random(f"{self.seed}/{of}")

    def start_again(self, seed: int, faults: Faults) -> None:
        """Count from nothing."""
        self.seed, self.faults = seed, faults
        self.connections = self.requests = 0
        self.happened = Counter()

    # ---- from any thread

    def part(self, *, accepting: bool = True) -> None:
        """Let nothing pass until `heal`.

        Parameters
        ----------
        accepting
            Whether connections can be made meanwhile; else packets for new ones are lost.
        """
        self._soon(self._part(accepting))

    def heal(self) -> None:
        """Let everything pass that is under way, and what comes."""
        self._soon(self._heal())

    def _soon(self, what: Coroutine[Any, Any, None]) -> None:
        if threading.current_thread() is self._thread:
            self._loop.create_task(what)
        else:
            asyncio.run_coroutine_threadsafe(what, self._loop).result()

    # ---- in the thread of the network

    async def _part(self, accepting: bool) -> None:
        self.happened["parted"] += 1
        self._open.clear()
        if not accepting and self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None
            self._socket.listen(0)  # one connection is made in spite of that, the next is not

    async def _heal(self) -> None:
        self._open.set()
        if self._accepting is None:
            self._socket.listen(512)
            self._accepting = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._socket)
            self.connections += 1
            self.at_connection(self.connections)
            if self.chance("connection", self.connections).random() < self.faults.refused:
                self.happened["refused"] += 1
                _reset(client)
                client.close()
                continue
            task = self._loop.create_task(self._serve(client))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _serve(self, client: socket.socket) -> None:
        ends = []
        try:
            ends.append(await asyncio.open_connection(sock=client))
            ends.append(await asyncio.open_connection(*self._server))
            connection = _Connection(self, ends[0], ends[1])
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.requests())
                group.create_task(connection.answers())
        except* (OSError, _EndError):
            pass
        finally:
            for _, writer in ends:
                writer.close()

    async def _pass(self, piece: bytes, writer: asyncio.StreamWriter, chance: Any) -> None:
        faults = self.faults
        if faults.delay or faults.jitter:
            await asyncio.sleep(faults.delay + faults.jitter * chance.random())
        await self._open.wait()
        writer.write(piece)
        await writer.drain()

    def fate(self, line: str) -> str:
        """What becomes of the next request."""
        self.requests += 1
        fate = self.choose(line)
        if fate is None:
            faults, drawn = self.faults, self.chance("request", self.requests).random()
            for fate in FATES:
                drawn -= getattr(faults, fate)
                if drawn < 0:
                    return fate
            return ""
        return fate

    # ---- its life

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _end(self) -> None:
        tasks = [*self._running, *filter(None, [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _EndError(Exception):
    """Ends a connection."""


@dataclass
class _Connection:
    network: Network
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    fate: str = ""
    left: int = 0
    between: bool = True

    def __post_init__(self) -> None:
        self.chance = self.network.chance("bytes", self.network.connections)
        self.gone = asyncio.Event()

    async def requests(self) -> None:
        """Pass on what the client sends."""
        network = self.network
        while piece := await self.client[0].read(PIECE):
            if self.between:
                self.between = False
                self.fate = network.fate(piece.partition(b"\r\n")[0].decode("latin-1"))
                # as many small numbers as large ones: heads of answers, and their bodies
                self.left = int(network.faults.first ** self.chance.random())
                if self.fate == "reset":
                    self._ended()
            if self.fate == "silent":
                network.happened["silent"] += 1
                await self._until_client_goes()
            await network._pass(piece, self.server[1], self.chance)
        self.gone.set()
        if self.server[1].can_write_eof():
            self.server[1].write_eof()  # what was sent before is carried out

    async def answers(self) -> None:
        """Pass on what the server answers."""
        network = self.network
        while piece := await self.server[0].read(PIECE):
            self.between = True
            if self.fate == "lost":
                self._ended()
            if self.fate in ("cut", "stopped"):
                piece, self.left = piece[: self.left], self.left - len(piece)
                if self.left <= 0:
                    await network._pass(piece, self.client[1], self.chance)
                    if self.fate == "stopped":
                        network.happened["stopped"] += 1
                        await self.gone.wait()
                    self._ended(reset=False)
            await network._pass(piece, self.client[1], self.chance)
        raise _EndError

    def _ended(self, *, reset: bool = True) -> None:
        self.network.happened[self.fate] += 1
        if reset:
            _reset(self.client[1].get_extra_info("socket"))
        raise _EndError

    async def _until_client_goes(self) -> None:
        with suppress(OSError):
            while await self.client[0].read(PIECE):
                pass
        raise _EndError


def _reset(end: Any) -> None:
    """Have the end of a connection answered with a reset."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def in_the_end(what: Callable[[], T]) -> T:
    """Do `what` within limits of seconds; again, if the machine was too busy to keep to them."""
    for _ in range(20):
        with suppress(StoreError):
            return what()
    return what()


@contextmanager
def network(endpoint: str, seed: int = 0) -> Iterator[Network]:
    """Put a network before the server at `endpoint`."""
    with Network(endpoint, seed) as found:
        yield found
