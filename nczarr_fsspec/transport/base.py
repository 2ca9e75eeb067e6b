"""The way to the files of one filesystem: requests go in, checked answers come out."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Self, TypeVar

from fsspec import AbstractFileSystem

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.forks import FORKED
from nczarr_fsspec.transport import recording
from nczarr_fsspec.transport.filesystems import describe, holds_open_file, join
from nczarr_fsspec.transport.policy import DEFAULT_LIMITS, RequestLimits, Timeout
from nczarr_fsspec.transport.recording import Watch
from nczarr_fsspec.transport.request import Answer, Request
from nczarr_fsspec.transport.shared import SharedFilesystem, alike
from nczarr_fsspec.transport.throttle import Attempt, Throttle

T = TypeVar("T")


class Transport(ABC):
    """Reads files of one filesystem. All paths are without protocol, but for HTTP's URLs.

    Cheap to make: those with the same options share connections, and the bound for what is in
    flight to a host. Picklable, safe in threads and after a fork.

    Parameters
    ----------
    recipe
        A filesystem that the one in use is made like (`SharedFilesystem`).
    limits
        Of its requests; the timeout is by default what `recipe` says.
    """

    #: whether files can be listed
    can_list = True
    #: extents that one request may name
    ranges = 1
    #: whether parts of files come without what is before them; None if that is not known yet
    serves_ranges: bool | None = True
    #: the URL that the last answer came from, to which a redirect may have led; without a query
    led = ""
    #: what messages call a file
    noun = "file"

    def __init__(self, recipe: AbstractFileSystem, limits: RequestLimits = DEFAULT_LIMITS) -> None:
        self.recipe = recipe
        self.limits = limits
        self.timeout = self.limits.timeout or self.timeout_of(recipe)
        self._shared: SharedFilesystem | None = None
        self._home = os.getpid()

    def timeout_of(self, recipe: AbstractFileSystem) -> Timeout:
        """Return what the options of a filesystem say."""
        return Timeout()

    @property
    def shared(self) -> SharedFilesystem:
        """The filesystem in use in this process.

        Raises
        ------
        StoreError
            If that reads a file which the parent of this process has opened.
        """
        if self._home != os.getpid():
            if holds_open_file(self.recipe):
                raise StoreError(self.describe(""), FORKED)
            # the filesystems below caches insist on the process that made them
            self.recipe, self._home = alike(self.recipe), os.getpid()
        shared = self._shared
        if shared is None or shared.pid != os.getpid():
            shared = self._shared = SharedFilesystem.like(
                self.recipe, self.timeout, self.limits.max_requests
            )
            shared.users.add(self)
        return shared

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that owns the connections."""
        return self.shared.loop

    def describe(self, path: str) -> str:
        """Return the URL of `path`, without secrets."""
        return describe(self.recipe, path)

    def join(self, root: str, key: str) -> str:
        """Return the path of `key` below `root`."""
        return join(root, key)

    def throttle(self, path: str) -> Throttle:
        """Return what bounds the requests to the host of `path`."""
        return self.shared.throttle("")

    async def fetch(self, request: Request) -> Answer | None:
        """Return the answer to `request`, tried again if need be; None if there is no such file.

        Raises
        ------
        TooLargeError
            If the whole of a file was asked for, and it has more bytes than `Request.most`.
        StoreError
            If it cannot be read, or is not the version that was asked for.
        """
        return await self.retried(partial(self._attempt, request), request)

    async def retried(
        self, attempt: Attempt[T], request: Request, kind: recording.Kind = "get"
    ) -> T:
        """Await `attempt` as the throttle of its host allows; every request passes here."""
        throttle = self.throttle(request.path)
        if not recording.recorders:
            return await throttle.retried(attempt, request.shown)
        with Watch(request, kind) as watch:
            return await throttle.retried(watch.each(attempt), request.shown)

    @abstractmethod
    async def _attempt(self, request: Request, left: float) -> Answer | None:
        """Send `request` once, within so many seconds; `TransientError` if another try may help."""

    @abstractmethod
    async def list(self, path: str) -> frozenset[str] | None:
        """Return the names directly below `path`; None where listing is impossible."""

    def again(self) -> Self:
        """Return the way to the same files that can be closed by itself."""
        other = type(self).__new__(type(self))
        vars(other).update(vars(self), _shared=None)
        return other

    def close(self) -> None:
        """Close the connections, unless others of this process use them."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.users.discard(self)
            shared.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe, self.limits)
