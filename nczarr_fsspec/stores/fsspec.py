"""Datasets behind any fsspec filesystem."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from fsspec import AbstractFileSystem

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import ALL, RemoteStore, check_key
from nczarr_fsspec.transport import open_transport
from nczarr_fsspec.transport.policy import DEFAULT_LIMITS, RequestLimits
from nczarr_fsspec.transport.request import END, Answer, Extent, Request, moment


class FsspecStore(RemoteStore):
    """A store of the files below one root of a remote filesystem; their paths are the keys.

    Parameters
    ----------
    fs
        A filesystem, asynchronous or not; used as a recipe only: the store's
        requests and connections are its own, on fsspec's event loop.
    root
        Path of the dataset in `fs`, without protocol; for HTTP the URL.
    url
        How messages name the dataset, where that is not plain from `root`
        (a chained URL).
    limits
        Of its requests; the timeout is by default what the filesystem says.

    Attributes
    ----------
    transport : Transport
        The way to the files of `fs`.
    """

    def __init__(
        self,
        fs: AbstractFileSystem,
        root: str,
        url: str | None = None,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        self.transport = open_transport(fs, limits)
        self._root = root
        self.url = url or self.transport.describe(root)
        self.can_list = self.transport.can_list
        #: when the first answer was sent, and the youngest object was written that has come
        self._opened, self._youngest = math.inf, -math.inf

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.transport.loop

    @property
    def led(self) -> str:
        return self.transport.led

    @property
    def younger_by(self) -> float:
        return self._youngest - self._opened

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        transport = self.transport
        path = transport.join(self._root, check_key(key))
        shown = transport.describe(path)
        start, stop = part.start, part.stop
        if part == ALL:
            request = Request(path, shown, most=most)
        elif stop is not None and stop <= (start or 0):
            return b""
        elif start is not None and start < 0:
            request = Request(path, shown, tail=-start)
        else:
            extent = Extent(start or 0, END if stop is None else stop)
            request = Request(path, shown, [extent], most=most if stop is None else None)
        answer = await transport.fetch(request)
        if answer is None:
            return None
        self._note_times(answer)
        return bytes(answer.parts[0] or b"")

    def _note_times(self, answer: Answer) -> None:
        if self._opened == math.inf and answer.sent:
            self._opened = _seconds(answer.sent) or math.inf
        if answer.version.modified:
            self._youngest = max(self._youngest, _seconds(answer.version.modified) or -math.inf)

    async def divides(self, keys: Iterable[str]) -> bool:
        # a server that ignores ranges would send a file from its beginning for each of its parts
        if self.transport.serves_ranges is None:
            for key in islice(keys, 1):
                with suppress(StoreError):  # which reading it will say
                    await self.get(key, slice(0, 1))
        return self.transport.serves_ranges is not False

    async def size(self, key: str) -> int | None:
        """Return how many bytes `key` has; None if it is missing.

        The first one is asked for, whose answer says it where it comes by HTTP or from S3.

        Raises
        ------
        StoreError
            If that cannot be found out.
        """
        path = self.transport.join(self._root, check_key(key))
        shown = self.transport.describe(path)
        probes: tuple[list[Extent], ...] = [Extent(0, 1)], []
        for probe in probes:
            answer = await self.transport.fetch(Request(path, shown, probe))
            if answer is None:
                return None
            if answer.version.size >= 0:
                return answer.version.size
        raise StoreError(shown, "the server does not say how large it is")

    async def list(self, prefix: str) -> frozenset[str] | None:
        path = self.transport.join(self._root, check_key(prefix)) if prefix else self._root
        return await self.transport.list(path)

    def close(self) -> None:
        self.transport.close()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.transport.recipe, self._root, self.url, self.transport.limits
        state = {"max_metadata": self.max_metadata, "_opened": self._opened}
        return type(self), arguments, state


@lru_cache(1024)
def _seconds(header: str) -> float | None:
    """Return the time that a header states."""
    found = moment(header)
    return None if found is None else found.timestamp()
