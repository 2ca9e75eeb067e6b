"""fsspec filesystems of this package: connections shared between stores, closed with the last."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet, WeakValueDictionary

from fsspec import AbstractFileSystem, asyn
from fsspec.dircache import DirCache
from fsspec.implementations.chained import ChainedFileSystem

from nczarr_fsspec.forks import cached_property
from nczarr_fsspec.transport.filesystems import (
    arguments,
    checked,
    is_async,
    is_broken,
    is_plain,
    kind_of,
)
from nczarr_fsspec.transport.options import credentials_state
from nczarr_fsspec.transport.policy import MOST_CONNECTIONS, Timeout, most_connections
from nczarr_fsspec.transport.throttle import Throttle


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all filesystems of fsspec, which a thread of its own runs.

    Raises
    ------
    RuntimeError
        If no thread can be started.
    """
    loop: asyncio.AbstractEventLoop = asyn.get_loop()
    if asyn.iothread[0] is None:
        # fsspec keeps a loop for which no thread could be started: all would wait for it for ever
        with asyn.get_lock():
            if asyn.iothread[0] is None:
                thread = threading.Thread(target=loop.run_forever, name="fsspecIO", daemon=True)
                thread.start()
                asyn.iothread[0] = thread
    return loop


class SharedFilesystem:
    """One filesystem with its connections, for all stores of this process with the same options.

    It is made like a given one, which itself stays unused: that may belong to another event
    loop, another process (after a fork) or other code, whose connections must not be closed here.

    Attributes
    ----------
    pid : int
        Of the process that may use it.
    timeout : Timeout
        Of its requests.
    loop : asyncio.AbstractEventLoop
        Where `call` is awaited.
    users : WeakSet
        What needs the connections.
    """

    all: ClassVar[WeakValueDictionary[tuple[object, ...], SharedFilesystem]] = WeakValueDictionary()

    def __init__(
        self, recipe: AbstractFileSystem, timeout: Timeout, max_requests: int | None = None
    ) -> None:
        self.pid = os.getpid()
        self.timeout = timeout
        self.users: WeakSet[object] = WeakSet()
        self.fs = alike(recipe) if is_async(recipe) else recipe
        self._most = min(max_requests or MOST_CONNECTIONS, most_connections())
        self._throttles: dict[str, Throttle] = {}
        if kind_of(recipe) == "s3":
            from nczarr_fsspec.transport.s3client import pool_size, send_once

            send_once(self.fs, timeout)
            self.cap(pool_size(self.fs))
        loop = background_loop()  # which asynchronous ones have, too
        self.loop: asyncio.AbstractEventLoop = self.fs.loop if is_async(recipe) else loop
        # what keeps s3fs from asking for the size before it reads an object
        known = is_async(self.fs) and self.takes("cat_file", "max_concurrency")
        self._one_request = {"max_concurrency": 1} if known else {}
        self._per_thread = threading.local()
        # An open file handed over is one for all threads, and a cache on disk, too: fsspec's
        # hand out files that are still being written. Then one call at a time.
        self._alone = isinstance(recipe, ChainedFileSystem) or not is_plain(arguments(recipe))

    @classmethod
    def like(
        cls, recipe: AbstractFileSystem, timeout: Timeout, max_requests: int | None
    ) -> SharedFilesystem:
        """Return the one with the class and options of `recipe`."""
        # two in memory may hold different things, though they were made alike
        alike = kind_of(recipe) != "memory" and hasattr(recipe, "_fs_token_")
        token = recipe._fs_token_ if alike else id(recipe)
        # a user who was refused sets variables anew, or logs in, and opens the URL again
        found = credentials_state() if kind_of(recipe) == "s3" else 0
        key = os.getpid(), type(recipe), str(token), timeout, max_requests, found
        shared = cls.all.get(key)
        return shared or cls.all.setdefault(key, cls(recipe, timeout, max_requests))

    def throttle(self, host: str) -> Throttle:
        """Return what all requests to `host` pass, be they for keys or for parts of files."""
        found = self._throttles.get(host)
        if found is None:
            found = self._throttles.setdefault(host, Throttle(self._most, self.timeout))
        return found

    def cap(self, most: int) -> None:
        """Send no more than `most` requests to a host at a time."""
        self._most = min(self._most, most)
        for throttle in list(self._throttles.values()):
            throttle.cap(most)

    def takes(self, method: str, name: str) -> bool:
        """Tell whether a method of the filesystem knows an argument, and does not pass it on."""
        called = getattr(type(self.fs), f"_{method}" if is_async(self.fs) else method)
        return name in inspect.signature(called).parameters

    async def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` to `end`."""
        limits = {} if start is None and end is None else {"start": start, "end": end}
        if limits and is_async(self.fs) and not self.takes("cat_file", "start"):
            # sshfs sends all of the file for each part; what it opens can seek
            read = partial(AbstractFileSystem.cat_file, self.fs, path, start, end)
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)
        data: bytes = await self.call("cat_file", path, **limits, **self._one_request)
        return data

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call `method` of the filesystem; a synchronous one waits in a thread."""
        if is_async(self.fs):
            return await getattr(self.fs, f"_{method}")(*args, **kwargs)
        called = partial(copy_context().run, self.call_here, method, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, called)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Those that wait for a synchronous filesystem.

        They are not those of the loop: what is below a cache may wait for the same loop, which
        looks up the names of hosts in its own.
        """
        return ThreadPoolExecutor(1 if self._alone else None, "nczarr-fsspec")

    def call_here(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call `method` of a synchronous filesystem in this thread."""
        if self._alone:
            return checked(self.fs, method, *args, **kwargs)
        # one connection per thread: those of ftplib and paramiko mix up answers otherwise
        if not hasattr(self._per_thread, "fs"):
            self._per_thread.fs = alike(self.fs)
        try:
            return getattr(self._per_thread.fs, method)(*args, **kwargs)
        except Exception as error:
            if is_broken(error):
                del self._per_thread.fs  # the next try needs a new connection
            raise

    def close(self) -> None:
        """Close the connections if they are not used any more."""
        if self.users:
            return
        self._throttles = {}
        if not (is_async(self.fs) and self.pid == os.getpid() and self.loop.is_running()):
            return
        try:
            inside = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            inside = False
        # inside, at once: what is opened next is to have a new session
        taken = self._taken() if inside else None

        async def disconnect() -> None:
            for session in self._taken() if taken is None else taken:
                await _close(session)

        closing = asyncio.run_coroutine_threadsafe(disconnect(), self.loop)
        if not inside:
            with suppress(TimeoutError):
                closing.result(timeout=10)

    def _taken(self) -> list[Any]:
        """Take the connections away, if they are not used; the filesystem makes new ones."""
        taken = []
        for name in ("_session", "_s3"):  # fsspec's http and gcsfs; s3fs
            session = getattr(self.fs, name, None)
            if session is not None and not self.users:
                setattr(self.fs, name, None)
                taken.append(session)
        return taken


#: what a forked child must keep although it cannot use it, see `_keep_inherited`
_inherited: list[SharedFilesystem] = []


def _keep_inherited() -> None:
    """Keep the parent's connections from being closed, which its epoll, shared, would notice."""
    _inherited.extend(SharedFilesystem.all.values())


def _close_at_exit() -> None:
    for shared in list(SharedFilesystem.all.values()):
        shared.users.clear()
        with suppress(Exception):
            shared.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)
atexit.register(_close_at_exit)


def _close_later(pid: int, loop: asyncio.AbstractEventLoop, session: Any, *_: Any) -> None:
    """Close the connections of a filesystem to which nothing refers any more.

    fsspec waits for its loop here. But the garbage collector calls this in any thread, between
    any two steps, also while the loop waits for a lock of that thread. gcsfs says besides whether
    it is asynchronous.
    """
    if os.getpid() == pid and loop.is_running():
        asyncio.run_coroutine_threadsafe(_close(session), loop)


async def _close(session: Any) -> None:
    with suppress(Exception):  # it may be closed already
        await (
            session.close() if hasattr(session, "close") else session.__aexit__(None, None, None)
        )


def alike(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return a filesystem like `fs` that shares no connection and caches no listing."""
    if kind_of(fs) == "memory":
        return fs  # its content may be its own
    args, options = arguments(fs)
    like = type(fs)(
        *(alike(arg) if isinstance(arg, AbstractFileSystem) else arg for arg in args),
        skip_instance_cache=True,
        **{
            name: alike(value) if isinstance(value, AbstractFileSystem) else value
            for name, value in options.items()
            if name not in ("asynchronous", "loop", "skip_instance_cache")
        },
    )
    like.dircache = DirCache(use_listings_cache=False)
    like.close_session = partial(_close_later, os.getpid())
    make = getattr(like, "get_client", None)
    of_fsspec = getattr(make, "__module__", "") == "fsspec.implementations.http"
    if of_fsspec and "connector" not in like.client_kwargs:
        like.get_client = _make_session
    if kind_of(like) == "s3":
        from nczarr_fsspec.transport.s3client import share_descriptions

        share_descriptions(like)
    return like


async def _make_session(**options: Any) -> Any:
    """Make a session of aiohttp with as many connections as requests (100 by default)."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=most_connections())
    return aiohttp.ClientSession(connector=connector, **options)
