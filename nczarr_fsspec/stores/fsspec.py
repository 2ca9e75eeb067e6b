"""Datasets behind any fsspec filesystem."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from fsspec import AbstractFileSystem

from nczarr_fsspec.errors import AccessDeniedError, DatasetNotFoundError, StoreError
from nczarr_fsspec.forks import FORKED
from nczarr_fsspec.keystore import LocalStore, RemoteStore, check_key
from nczarr_fsspec.stores._shared import (
    SharedFilesystem,
    arguments,
    holds_open_file,
    is_async,
    is_s3,
)
from nczarr_fsspec.url import redact

#: KeyError: fsspec's own zip filesystem, before 2026.9
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, KeyError)
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
        self.can_list = self._files.can_list

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
            _fail(self._fs, path, error)

    def list(self, prefix: str) -> frozenset[str]:
        path = _join(self._root, check_key(prefix)) if prefix else self._root
        try:
            return _names(path, self._fs.ls(path, detail=False))
        except _MISSING:
            return frozenset()
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self._fs, path, error)


def remote_files(fs: AbstractFileSystem) -> FsspecFiles:
    """The way to read files of `fs`: plain HTTP has one of its own, and S3 a short one."""
    if _is_http(fs):
        from nczarr_fsspec.stores.http import HTTPFiles

        return HTTPFiles(fs)
    if is_s3(fs):
        from nczarr_fsspec.stores.s3 import S3Files

        return S3Files(fs)
    return FsspecFiles(fs)


class FsspecFiles:
    """Reads whole files and ranges of them through fsspec. All paths are without protocol.

    Parameters
    ----------
    recipe
        A filesystem to make the like of (`SharedFilesystem`).
    """

    can_list = True

    def __init__(self, recipe: AbstractFileSystem) -> None:
        self.recipe = recipe
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
            shared = self._shared = SharedFilesystem.like(self.recipe)
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
            _fail(self.recipe, path, error)

    async def read_tail(self, path: str, count: int) -> tuple[bytes, int] | None:
        """The last `count` bytes (or all there are) and the file's size; None if there is none."""
        try:
            size = (await self.shared.call("info", path))["size"]
        except _MISSING as error:
            self._check_bucket(error, path)
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self.recipe, path, error)
        if size is None:
            raise StoreError(self.describe(path), "its size cannot be found out")
        data = await self.read(path, max(0, size - count), size)
        return None if data is None else (data, size)

    async def list(self, path: str) -> frozenset[str] | None:
        """Names directly below `path`; None where listing is impossible."""
        shared = self.shared
        try:
            if is_s3(self.recipe):  # its _ls lists the parent as well where it finds nothing
                found = await shared.fs._lsdir(path, refresh=True)  # noqa: SLF001
                return _names(path, [entry["name"] for entry in found])
            return _names(path, await shared.call("ls", path, detail=False))
        except _MISSING as error:
            self._check_bucket(error, path)
            return frozenset()
        except NotImplementedError:
            return None
        except Exception as error:  # noqa: BLE001 - a filesystem is anybody's code
            _fail(self.recipe, path, error)

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


def _fail(fs: AbstractFileSystem, path: str, error: Exception) -> NoReturn:
    """Raise `error`, which `fs` raised about `path`, as one of ours and without secrets."""
    if isinstance(error, StoreError):
        raise error
    text = redact(str(error)) or "no message"
    for name, value in arguments(fs)[1].items():
        if isinstance(value, str) and value and _SECRET_OPTION.search(name):
            text = text.replace(value, "***")
    reason = f"cannot be read: {type(error).__name__}: {text}"
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
