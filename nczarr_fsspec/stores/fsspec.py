"""Datasets behind any fsspec filesystem."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn
from weakref import WeakSet, WeakValueDictionary

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, get_loop
from fsspec.dircache import DirCache
from fsspec.implementations.chained import ChainedFileSystem

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.keystore import LocalStore, RemoteStore, check_key
from nczarr_fsspec.url import redact

_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
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
    """

    def __init__(self, fs: AbstractFileSystem, root: str, url: str | None = None) -> None:
        self._files = remote_files(fs)
        self._root = root
        self.url = url or self._files.describe(root)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    async def get(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        return await self._files.read(self._files.join(self._root, check_key(key)), start, stop)

    async def list(self, prefix: str) -> frozenset[str] | None:
        path = self._files.join(self._root, check_key(prefix)) if prefix else self._root
        return await self._files.list(path)

    def close(self) -> None:
        self._files.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._files.recipe, self._root, self.url)


class SyncFsspecStore(LocalStore):
    """Keys are the paths below one root of a filesystem that answers at once (``memory``)."""

    def __init__(self, fs: AbstractFileSystem, root: str, url: str | None = None) -> None:
        self._fs = fs
        self._root = root
        self.url = url or _describe(fs, root)

    def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes | None:
        path = _join(self._root, check_key(key))
        try:
            data: bytes = self._fs.cat_file(path, start=start, end=stop)
            return data
        except _MISSING:
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            fail(self._fs, path, error)

    def list(self, prefix: str) -> frozenset[str]:
        path = _join(self._root, check_key(prefix)) if prefix else self._root
        try:
            return _names(path, self._fs.ls(path, detail=False))
        except _MISSING:
            return frozenset()
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            fail(self._fs, path, error)


def remote_files(fs: AbstractFileSystem) -> FsspecFiles:
    """The way to read files of `fs`: plain HTTP has one of its own."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "https" in protocols and _is_async(fs):
        from nczarr_fsspec.stores.http import HTTPFiles

        return HTTPFiles(fs)
    return FsspecFiles(fs)


class FsspecFiles:
    """Reads whole files and ranges of them through fsspec. All paths are without protocol.

    Parameters
    ----------
    recipe
        A filesystem to make the like of. It is not used itself, for it may
        belong to another event loop, another process (after a fork) or other
        code, whose connections `close` must not cut.
    """

    def __init__(self, recipe: AbstractFileSystem) -> None:
        self.recipe = recipe
        self._shared: _Shared | None = None

    @property
    def shared(self) -> _Shared:
        """The filesystem in use in this process."""
        shared = self._shared
        if shared is None or shared.pid != os.getpid():
            shared = self._shared = _Shared.like(self.recipe)
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
        self, path: str, start: int | None = None, stop: int | None = None
    ) -> bytes | None:
        """Bytes ``[start, stop)`` of the file, None if there is none.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        if stop is not None and stop <= (start or 0):
            return b""
        limits = {} if start is None and stop is None else {"start": start, "end": stop}
        shared = self.shared
        try:
            data: bytes = await shared.call("cat_file", path, **limits, **shared.one_request)
            return data
        except _MISSING as error:
            self._check_bucket(error, path)
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            if limits and _s3_code(error) in ("InvalidRange", "416"):
                return b""  # beyond the end, as in a slice
            fail(self.recipe, path, error)

    async def read_tail(self, path: str, count: int) -> tuple[bytes, int] | None:
        """The last `count` bytes (or all there are) and the file's size; None if there is none."""
        try:
            size = (await self.shared.call("info", path))["size"]
        except _MISSING as error:
            self._check_bucket(error, path)
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            fail(self.recipe, path, error)
        if size is None:
            raise StoreError(self.describe(path), "its size cannot be found out")
        data = await self.read(path, max(0, size - count), size)
        return None if data is None else (data, size)

    async def list(self, path: str) -> frozenset[str] | None:
        """Names directly below `path`; None where listing is impossible."""
        shared = self.shared
        try:
            if _is_s3(self.recipe):  # its _ls lists the parent as well where it finds nothing
                found = await shared.fs._lsdir(path, refresh=True)  # noqa: SLF001
                return _names(path, [entry["name"] for entry in found])
            return _names(path, await shared.call("ls", path, detail=False))
        except _MISSING as error:
            self._check_bucket(error, path)
            return frozenset()
        except NotImplementedError:
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            fail(self.recipe, path, error)

    def close(self) -> None:
        """Close the connections, unless another store of this process uses them."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.users.discard(self)
            shared.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe,)

    def _check_bucket(self, error: Exception, path: str) -> None:
        if _s3_code(error) == "NoSuchBucket":
            raise DatasetNotFoundError(self.describe(path), "there is no such bucket") from None


class _Shared:
    """One filesystem of our own, for all stores of this process with the same options."""

    all: ClassVar[WeakValueDictionary[tuple[int, type, str], _Shared]] = WeakValueDictionary()

    def __init__(self, recipe: AbstractFileSystem) -> None:
        self.pid = os.getpid()
        self.users: WeakSet[FsspecFiles] = WeakSet()
        self.fs = _alike(recipe) if _is_async(recipe) else recipe
        self.loop: asyncio.AbstractEventLoop = self.fs.loop if _is_async(recipe) else get_loop()
        self._per_thread = threading.local()
        # An open file handed over is one for all threads, and a cache on disk, too: fsspec's
        # hand out files that are still being written. Then one call at a time.
        alone = isinstance(recipe, ChainedFileSystem) or not _is_plain(_arguments(recipe))
        self._lock = threading.Lock() if alone else None

    @classmethod
    def like(cls, recipe: AbstractFileSystem) -> _Shared:
        key = os.getpid(), type(recipe), str(getattr(recipe, "_fs_token_", id(recipe)))
        shared = cls.all.get(key)
        return shared or cls.all.setdefault(key, cls(recipe))

    @cached_property
    def one_request(self) -> dict[str, int]:
        """What keeps s3fs from asking for the size before it reads an object."""
        if not _is_async(self.fs):
            return {}
        accepted = inspect.signature(self.fs._cat_file).parameters  # noqa: SLF001
        return {"max_concurrency": 1} if "max_concurrency" in accepted else {}

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call `method` of the filesystem; a synchronous one waits in a thread."""
        if _is_async(self.fs):
            return await getattr(self.fs, f"_{method}")(*args, **kwargs)
        return await asyncio.to_thread(self._call, method, *args, **kwargs)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._lock is not None:
            with self._lock:
                return getattr(self.fs, method)(*args, **kwargs)
        # one connection per thread: those of ftplib and paramiko mix up answers otherwise
        if not hasattr(self._per_thread, "fs"):
            self._per_thread.fs = _alike(self.fs)
        return getattr(self._per_thread.fs, method)(*args, **kwargs)

    def close(self) -> None:
        """Close the connections if nobody uses them any more."""
        if _is_async(self.fs) and self.pid == os.getpid() and self.loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self._disconnect(), self.loop)
            try:
                inside = asyncio.get_running_loop() is self.loop
            except RuntimeError:
                inside = False
            if not inside:
                closing.result(timeout=10)

    async def _disconnect(self) -> None:
        for name in ("_session", "_s3"):  # fsspec's http and gcsfs; s3fs. They reconnect when used
            session = getattr(self.fs, name, None)
            if session is not None and not self.users:
                setattr(self.fs, name, None)
                await _close(session)


#: what a forked child must keep although it cannot use it, see `_keep_inherited`
_inherited: list[_Shared] = []


def _keep_inherited() -> None:
    """Keep the parent's connections from being closed, which its epoll, shared, would notice."""
    _inherited.extend(_Shared.all.values())


def _close_at_exit() -> None:
    for shared in list(_Shared.all.values()):
        shared.users.clear()
        with suppress(Exception):
            shared.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)
atexit.register(_close_at_exit)


def _close_later(pid: int, loop: asyncio.AbstractEventLoop, session: Any) -> None:
    """Close the connections of a filesystem that nobody refers to any more.

    fsspec waits for its loop here. But the garbage collector calls this in any thread, between
    any two steps, also while the loop waits for a lock of that thread.
    """
    if os.getpid() == pid and loop.is_running():
        asyncio.run_coroutine_threadsafe(_close(session), loop)


async def _close(session: Any) -> None:
    with suppress(Exception):  # it may be closed already
        await (
            session.close() if hasattr(session, "close") else session.__aexit__(None, None, None)
        )


def fail(fs: AbstractFileSystem, path: str, error: Exception) -> NoReturn:
    """Raise `error`, which `fs` raised about `path`, as one of ours and without secrets."""
    if isinstance(error, StoreError):
        raise error
    text = redact(str(error)) or "no message"
    for name, value in _arguments(fs)[1].items():
        if isinstance(value, str) and value and _SECRET_OPTION.search(name):
            text = text.replace(value, "***")
    reason = f"cannot be read: {type(error).__name__}: {text}"
    if _is_s3(fs) and (isinstance(error, PermissionError) or "Credentials" in type(error).__name__):
        reason += (
            "; choose credentials (AWS_PROFILE, #aws.profile=NAME or storage_options), or for "
            'public data none: storage_options={"anon": True}'
        )
    raise StoreError(_describe(fs, path), reason) from None


def _alike(fs: AbstractFileSystem) -> AbstractFileSystem:
    """A filesystem with the options of `fs` that shares no connection and caches no listing."""
    args, options = _arguments(fs)
    like = type(fs)(
        *(_alike(arg) if isinstance(arg, AbstractFileSystem) else arg for arg in args),
        skip_instance_cache=True,
        **{
            name: _alike(value) if isinstance(value, AbstractFileSystem) else value
            for name, value in options.items()
            if name not in ("asynchronous", "loop", "skip_instance_cache")
        },
    )
    like.dircache = DirCache(use_listings_cache=False)
    like.close_session = partial(_close_later, os.getpid())
    return like


def _arguments(fs: AbstractFileSystem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(fs.storage_args), dict(fs.storage_options)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (str, bytes, int, float, os.PathLike))


def _is_async(fs: AbstractFileSystem) -> bool:
    # not fs.async_impl, for fsspec's caches claim what their target says
    return isinstance(fs, AsyncFileSystem)


def _is_s3(fs: AbstractFileSystem) -> bool:
    return hasattr(type(fs), "_call_s3")


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
