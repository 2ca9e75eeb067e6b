"""Datasets behind any fsspec filesystem."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from fsspec import AbstractFileSystem

from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, StoreError, too_large
from nczarr_fsspec.forks import FORKED
from nczarr_fsspec.keystore import LocalStore, RemoteStore, check_key
from nczarr_fsspec.transport.policy import ATTEMPTS, TIMEOUT_OPTION, Timeout, TransientError
from nczarr_fsspec.transport.shared import (
    SharedFilesystem,
    arguments,
    holds_open_file,
    is_async,
    is_s3,
)
from nczarr_fsspec.transport.throttle import Throttle
from nczarr_fsspec.url import redact

T = TypeVar("T")

#: KeyError: fsspec's own zip filesystem, before 2026.9
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, KeyError)
#: what other people's filesystems raise when a connection goes
BROKEN = (ConnectionError, TimeoutError, EOFError)
_SECRET_OPTION = re.compile("secret|token|passw|key|auth|cred|sas", re.IGNORECASE)


class FsspecStore(RemoteStore):
    """Keys are the paths below one root of a filesystem that has to be waited for.

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
    timeout
        Of its requests, if not what the filesystem says.
    """

    def __init__(
        self,
        fs: AbstractFileSystem,
        root: str,
        url: str | None = None,
        timeout: Timeout | None = None,
    ) -> None:
        self._files = remote_files(fs, timeout)
        self._root = root
        self.url = url or self._files.describe(root)
        self.can_list = self._files.can_list

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    async def get(
        self,
        key: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        path = self._files.join(self._root, check_key(key))
        return await self._files.read(path, start, stop, most)

    async def list(self, prefix: str) -> frozenset[str] | None:
        path = self._files.join(self._root, check_key(prefix)) if prefix else self._root
        return await self._files.list(path)

    def close(self) -> None:
        self._files.close()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._files.recipe, self._root, self.url, self._files.timeout
        return type(self), arguments, {"max_metadata": self.max_metadata}


class SyncFsspecStore(LocalStore):
    """Keys are the paths below one root of a filesystem that answers at once (``memory``)."""

    def __init__(self, fs: AbstractFileSystem, root: str, url: str | None = None) -> None:
        self._fs = fs
        self._root = root
        self.url = url or _describe(fs, root)

    def get(
        self,
        key: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        path = _join(self._root, check_key(key))
        try:
            data: bytes = self._fs.cat_file(path, start=start, end=stop)
        except _MISSING:
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self._fs, path, error)
        if most is not None and start is stop is None and len(data) > most:
            raise too_large(_describe(self._fs, path), most)
        return data

    def list(self, prefix: str) -> frozenset[str]:
        path = _join(self._root, check_key(prefix)) if prefix else self._root
        try:
            return _names(path, self._fs.ls(path, detail=False))
        except _MISSING:
            return frozenset()
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self._fs, path, error)


def remote_files(fs: AbstractFileSystem, timeout: Timeout | None = None) -> FsspecFiles:
    """The way to read files of `fs`: plain HTTP has one of its own, and S3 a short one."""
    if _is_http(fs):
        from nczarr_fsspec.transport.http_files import HTTPFiles

        return HTTPFiles(fs, timeout)
    if is_s3(fs):
        from nczarr_fsspec.transport.s3 import S3Files

        return S3Files(fs, timeout)
    return FsspecFiles(fs, timeout)


class FsspecFiles:
    """Reads whole files and ranges of them through fsspec. All paths are without protocol.

    Parameters
    ----------
    recipe
        A filesystem to make the like of (`SharedFilesystem`).
    timeout
        Of its requests, if not what `recipe` says.
    """

    can_list = True
    #: whether the filesystem does not try again by itself
    once = False

    def __init__(self, recipe: AbstractFileSystem, timeout: Timeout | None = None) -> None:
        self.recipe = recipe
        self.timeout = timeout or _timeout_of(recipe)
        self._throttle = Throttle(RemoteStore.concurrency, self.timeout)
        self._shared: SharedFilesystem | None = None
        self._home = os.getpid() if holds_open_file(recipe) else None

    @property
    def shared(self) -> SharedFilesystem:
        """The filesystem in use in this process.

        Raises
        ------
        StoreError
            If that reads a file which the parent of this process has opened.
        """
        if self._home not in (None, os.getpid()):
            raise StoreError(self.describe(""), FORKED)
        shared = self._shared
        if shared is None or shared.pid != os.getpid():
            shared = self._shared = SharedFilesystem.like(self.recipe, self.timeout, once=self.once)
            shared.users.add(self)
        return shared

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.shared.loop

    def describe(self, path: str) -> str:
        """The URL of `path`, without secrets."""
        return _describe(self.recipe, path)

    def join(self, root: str, key: str) -> str:
        """The path of `key` below `root`."""
        return _join(root, key)

    async def read(
        self,
        path: str,
        start: int | None = None,
        stop: int | None = None,
        most: int | None = None,
    ) -> bytes | None:
        """Bytes ``[start, stop)`` of the file, None if there is none.

        Parameters
        ----------
        most
            Bytes that the file may have, if all of it is asked for.

        Raises
        ------
        TooLargeError
            If it has more.
        StoreError
            If it cannot be read.
        """
        if stop is not None and stop <= (start or 0):
            return b""
        attempt = partial(self._read, path, start, stop, most)
        return await self._throttle.retried(attempt, self.describe(path))

    async def _read(
        self, path: str, start: int | None, stop: int | None, most: int | None, left: float
    ) -> bytes | None:
        whole = start is None and stop is None
        limits = {} if whole else {"start": start, "end": stop}
        if whole and most is not None:
            limits = {"start": 0, "end": most + 1}
        shared = self.shared
        try:
            async with within(left):
                data: bytes = await shared.call("cat_file", path, **limits, **shared.one_request)
        except _MISSING as error:
            self.check_bucket(error, path)
            return None
        except TransientError:
            raise
        except MemoryError:
            raise StoreError(self.describe(path), "does not fit into memory") from None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            if (transient := self.transient(error)) is not None:
                raise transient from None
            if limits and _is_beyond(error):
                return b""  # as in a slice
            _fail(self.recipe, path, error)
        if whole and most is not None and len(data) > most:
            raise too_large(self.describe(path), most)
        return data

    async def read_tail(self, path: str, count: int) -> tuple[bytes, int] | None:
        """The last `count` bytes (or all there are) and the file's size; None if there is none."""
        info = await self._retried(path, partial(self.shared.call, "info", path))
        if info is None:
            return None
        size = info["size"]
        if size is None:
            raise StoreError(self.describe(path), "its size cannot be found out")
        data = await self.read(path, max(0, size - count), size)
        return None if data is None else (data, size)

    async def list(self, path: str) -> frozenset[str] | None:
        """Names directly below `path`; None where listing is impossible."""
        try:
            found = await self._retried(path, partial(self._names_below, path))
        except NotImplementedError:
            return None
        return frozenset() if found is None else _names(path, found)

    async def _names_below(self, path: str) -> Iterable[str]:
        shared = self.shared
        if is_s3(self.recipe):  # its _ls lists the parent as well where it finds nothing
            entries = await shared.fs._lsdir(path, refresh=True)  # noqa: SLF001
            return [entry["name"] for entry in entries]
        found: Iterable[str] = await shared.call("ls", path, detail=False)
        return found

    async def _retried(self, path: str, call: Callable[[], Awaitable[T]]) -> T | None:
        """What `call` says of `path`; None if that is not there."""

        async def attempt(left: float) -> T | None:
            try:
                async with within(left):
                    return await call()
            except (TransientError, NotImplementedError):
                raise
            except _MISSING as error:
                self.check_bucket(error, path)
                return None
            except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
                if (transient := self.transient(error)) is not None:
                    raise transient from None
                _fail(self.recipe, path, error)

        return await self._throttle.retried(attempt, self.describe(path))

    def transient(self, error: Exception) -> TransientError | None:
        """What to try again of the errors of the filesystem; None if it will not pass."""
        return TransientError(words(self.recipe, error)) if isinstance(error, BROKEN) else None

    def close(self) -> None:
        """Close the connections, unless another store of this process uses them."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.users.discard(self)
            shared.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe, self.timeout)

    def check_bucket(self, error: Exception, path: str) -> None:
        """Raise `DatasetNotFoundError` if `error` says that there is no such bucket in S3."""
        if _s3_code(error) == "NoSuchBucket":
            raise DatasetNotFoundError(self.describe(path), "there is no such bucket") from None


def words(fs: AbstractFileSystem, error: Exception) -> str:
    """What `fs` says in `error`, without secrets."""
    text = redact(str(error)) or "no message"
    for name, value in arguments(fs)[1].items():
        if isinstance(value, str) and value and _SECRET_OPTION.search(name):
            text = text.replace(value, "***")
    return f"cannot be read: {type(error).__name__}: {text}"


@asynccontextmanager
async def within(left: float) -> AsyncIterator[None]:
    """Raise `TransientError` if this takes more than `left` seconds."""
    clock = asyncio.timeout(None if left == math.inf else left)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise TransientError(
            f"the request took too long (storage option {TIMEOUT_OPTION})", cost=ATTEMPTS
        ) from None


def _timeout_of(fs: AbstractFileSystem) -> Timeout:
    """What the options of `fs` itself say."""
    if _is_http(fs):
        given = fs.kwargs.get(TIMEOUT_OPTION, fs.client_kwargs.get(TIMEOUT_OPTION))
        return Timeout() if given is None else Timeout.parse(given, "HTTPFileSystem")
    if is_s3(fs):
        config = fs.config_kwargs or {}
        names = {"connect_timeout": "connect", "read_timeout": "first_byte"}
        given = {ours: config[name] for name, ours in names.items() if name in config}
        return Timeout.parse(given, type(fs).__name__)
    return Timeout()


def _is_beyond(error: Exception) -> bool:
    """Whether a range begins behind the end, in S3's words, Google's or Azure's."""
    if _s3_code(error) in ("InvalidRange", "416"):
        return True
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return status in (416, "416")


def _fail(fs: AbstractFileSystem, path: str, error: Exception) -> NoReturn:
    """Raise `error`, which `fs` raised about `path`, as one of ours and without secrets."""
    if isinstance(error, StoreError):
        raise error
    reason = words(fs, error)
    if is_s3(fs) and (isinstance(error, PermissionError) or "Credentials" in type(error).__name__):
        reason += (
            "; choose credentials (AWS_PROFILE, #aws.profile=NAME or storage_options), or for "
            'public data none: storage_options={"anon": True}'
        )
    kind = AccessDeniedError if isinstance(error, PermissionError) else StoreError
    raise kind(_describe(fs, path), reason) from None


def _is_http(fs: AbstractFileSystem) -> bool:
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return "https" in protocols and is_async(fs)


def _s3_code(error: Exception) -> str:
    """The error code of S3's answer that led to `error`, such as ``"NoSuchBucket"``."""
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _describe(fs: AbstractFileSystem, path: str) -> str:
    return redact(fs.unstrip_protocol(path))


def _join(root: str, key: str) -> str:
    return f"{root.rstrip('/')}/{key}" if root else key


def _names(path: str, found: Iterable[str]) -> frozenset[str]:
    """Names directly below `path`; listing an object-store prefix may list its own marker."""
    whole = (name.strip("/") for name in found)
    return frozenset(name.rsplit("/", 1)[-1] for name in whole if name != path.strip("/"))
