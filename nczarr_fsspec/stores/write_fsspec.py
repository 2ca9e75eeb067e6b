"""Writing a dataset through any fsspec filesystem."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, check_key, is_safe_name
from nczarr_fsspec.owner import temporary_name, writer_of
from nczarr_fsspec.stores.fsspec import FsspecStore, SyncFsspecStore
from nczarr_fsspec.transport.filesystems import (
    is_async,
    is_s3,
    keys_number,
    renewed,
    s3_code,
    wants_credentials,
    without_secrets,
)
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.recording import Kind
from nczarr_fsspec.transport.request import Extent, Request
from nczarr_fsspec.transport.watch import watched
from nczarr_fsspec.writable import WritableStore, creating

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_EXISTS = frozenset({"PreconditionFailed", "412"})
#: answers of S3 that another request in flight has caused
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})


class FsspecWriter(WritableStore):
    """Keys are the paths below one root of a filesystem.

    Object stores and ``memory`` replace an object at once and never hold a
    part of one: S3 drops an upload that is cut off, and s3fs aborts one in
    several parts (from 100 MiB on). Protocols for files, such as SFTP, write
    in place, but for whole files (`put_file`) where there is a rename: these
    get a name of their own first.

    `create` is atomic among all clients of an S3 service that knows
    conditional requests (AWS, Google, Azure, MinIO, SeaweedFS 4), in this
    process for ``memory``, and elsewhere a look before a put.

    Parameters
    ----------
    fs
        A filesystem, asynchronous or not; used as a recipe only: requests and
        connections are the store's own, on fsspec's event loop.
    root
        Path of the dataset in `fs`, without protocol.
    url
        How messages name the dataset, where that is not plain from `root`.
    """

    parallel = 64  # measured with puts; reads bear more

    #: keys that S3 deletes in one request
    bulk = 1000
    #: seconds between attempts, see `_may_pass`
    pauses = (0.5, 2.0)

    def __init__(self, fs: AbstractFileSystem, root: str, url: str | None = None) -> None:
        self._fs = fs
        self._root = root
        self._transport = FsspecTransport(fs)
        self._keys = FsspecStore(fs, root, url)
        self.url = self._keys.url

    def reader(self) -> KeyStore:
        kind = SyncFsspecStore if isinstance(self._fs, MemoryFileSystem) else FsspecStore
        return kind(self._fs, self._root, self.url)

    def put(self, key: str, data: Buffer) -> None:
        self._keys.run_each(partial(self._put, _bytes(data)), [self._path(key)])

    def create(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        with nullcontext() if is_async(self._fs) else creating:
            return self._keys.run_each(partial(self._create, _bytes(data)), [path])[0]

    def put_file(self, key: str, fill: Callable[[str], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="nczarr-") as folder:
            path = f"{folder}/file"
            fill(path)
            self.upload(key, path)

    def upload(self, key: str, path: str) -> None:
        """Store the content of a local file under `key`, without holding all of it in memory."""
        if isinstance(self._fs, MemoryFileSystem):  # all of it will be in memory
            self.put(key, Path(path).read_bytes())
        else:
            # what is not there, the filesystem says
            nbytes = os.path.getsize(path) if os.path.exists(path) else 0
            self._keys.run_each(partial(self._put_file, path, nbytes), [self._path(key)])

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        if is_s3(self._fs) and "gs3" not in self._fs.protocol:  # Google has no bulk request
            batches = [
                paths[start : start + self.bulk] for start in range(0, len(paths), self.bulk)
            ]
            self._keys.run_each(self._delete_from_s3, batches)
        else:
            self._keys.run_each(self._delete, paths)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        pairs = [(source, target) for source, target in pairs if source != target]
        targets = {self._path(source): self._path(target) for source, target in pairs}
        self._keys.run_each(partial(self._copy, targets), targets)
        self.delete(source for source, _ in pairs)

    def keys_below(self, prefix: str) -> list[str]:
        path = self._path(prefix) if prefix else self._root
        (names,) = self._keys.run_each(self._find, [path])
        start = f"{path.strip('/')}/".lstrip("/")
        above = f"{prefix}/" if prefix else ""
        keys = [
            name.lstrip("/")[len(start) :] for name in names if name.lstrip("/").startswith(start)
        ]
        # without what is no key of a dataset, such as the marker of a directory
        safe = (key for key in keys if all(map(is_safe_name, key.split("/"))))
        return sorted(above + key for key in safe if writer_of(key) is None)

    def child(self, prefix: str) -> FsspecWriter:
        return FsspecWriter(self._fs, self._path(prefix), f"{self.url.rstrip('/')}/{prefix}")

    def close(self) -> None:
        self._keys.close()
        self._transport.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._fs, self._root, self.url)

    def _path(self, key: str) -> str:
        return self._transport.join(self._root, check_key(key))

    async def _read(self, path: str, count: int | None = None) -> bytes | None:
        """Return what is there now, or its first bytes; None if nothing is."""
        extents = None if count is None else [Extent(0, count)]
        request = Request(path, self._transport.describe(path), extents)
        answer = await self._transport.fetch(request)
        return None if answer is None else bytes(answer.parts[0] or b"")

    async def _put(self, data: bytes, path: str) -> None:
        with self._naming(path, "written", "put", len(data)):
            await self._call_making_folder(path, "pipe_file", path, data)

    async def _put_file(self, local: str, nbytes: int, path: str) -> None:
        with self._naming(path, "written", "put", nbytes):
            # without a rename of its own, an object store, or nothing better can be done
            if is_async(self._fs) or type(self._fs).mv is AbstractFileSystem.mv:
                await self._call_making_folder(path, "put_file", local, path)
                return
            folder, slash, _ = path.rpartition("/")
            new = f"{folder}{slash}{temporary_name()}"
            try:
                await self._call_making_folder(new, "put_file", local, new)
                await self._call("mv", new, path)
            except BaseException:
                with suppress(Exception):
                    await self._call("rm_file", new)
                raise

    async def _create(self, data: bytes, path: str) -> bool:
        if await self._read(path, 1) is not None:  # a service may ignore conditions
            return False
        with self._naming(path, "written", "put", len(data)):
            try:
                await self._call_making_folder(path, "pipe_file", path, data, mode="create")
            except Exception as error:
                if not isinstance(error, FileExistsError) and s3_code(error) not in _EXISTS:
                    raise
                # an answer that was lost: the second attempt met what the first one stored
                return _was_retried(error) and await self._read(path) == data
        return True

    async def _delete(self, path: str) -> None:
        with self._naming(path, "deleted", "delete"):
            try:
                await self._call("rm_file", path)
            except FileNotFoundError as error:
                if s3_code(error) == "NoSuchBucket":
                    raise

    async def _delete_from_s3(self, paths: list[str]) -> None:
        fs = self._transport.shared.fs
        bucket = fs.split_path(paths[0])[0]
        objects = [{"Key": fs.split_path(path)[1]} for path in paths]
        request = {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": True}}
        with self._naming(paths[0], "deleted", "delete"):
            # not fs._bulk_delete, which forgets what could not be deleted
            answer = await self._tried(partial(fs._call_s3, "delete_objects", **request))
        for failed in answer.get("Errors", ()):
            if failed.get("Code") != "NoSuchKey":
                raise StoreError(
                    self._transport.describe(f"{bucket}/{failed.get('Key')}"),
                    f"cannot be deleted: {failed.get('Code')}: {failed.get('Message')}",
                )

    async def _copy(self, targets: Mapping[str, str], source: str) -> None:
        target = targets[source]
        with self._naming(source, f"moved to {target}", "copy"):
            try:
                await self._call_making_folder(target, "cp_file", source, target)
            except FileNotFoundError:
                if await self._read(target, 1) is None:
                    raise
            except NotImplementedError:  # a filesystem that has nothing but reads and writes
                await self._put(await self._call("cat_file", source), target)

    async def _find(self, path: str) -> list[str]:
        with self._naming(path, "listed", "list"):
            try:
                if is_s3(self._fs):  # its _find asks for the path itself where nothing is below
                    fs = self._transport.shared.fs
                    found = await self._tried(partial(fs._lsdir, path, delimiter="", refresh=True))
                    return [entry["name"] for entry in found]
                names: list[str] = await self._call("find", path)
                return names
            except FileNotFoundError as error:
                if s3_code(error) == "NoSuchBucket":
                    raise
                return []

    async def _call_making_folder(self, path: str, method: str, *args: Any, **kwargs: Any) -> None:
        """Call, and again with the directory of `path` made, where there are directories."""
        try:
            await self._call(method, *args, **kwargs)
        except FileNotFoundError:
            if is_async(self._fs) or isinstance(self._fs, MemoryFileSystem):
                raise
            await self._call("makedirs", path.rpartition("/")[0], exist_ok=True)
            await self._call(method, *args, **kwargs)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the filesystem, and again after a moment where a failure may pass."""
        return await self._tried(partial(self._transport.shared.call, method, *args, **kwargs))

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        fs = self._transport.shared.fs
        for pause in self.pauses:
            number = keys_number(fs)
            try:
                return await call()
            except Exception as error:
                if renewed(fs, error, number):
                    continue
                if not _may_pass(fs, error):
                    raise
            await asyncio.sleep(pause)
        return await call()

    @contextmanager
    def _naming(self, path: str, what: str, kind: Kind, nbytes: int = 0) -> Iterator[None]:
        """Raise errors as ours, about `path` and without secrets; recorders see what is done."""
        shown = self._transport.describe(path)
        with watched(Request(path, shown), kind, nbytes):
            try:
                yield
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - a filesystem is foreign code
                reason = f"cannot be {what}: {_explained(self._fs, error)}"
                raise StoreError(shown, reason) from None


def _bytes(data: Buffer) -> bytes:
    """Return what botocore takes; it knows no other buffers."""
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def _may_pass(fs: AbstractFileSystem, error: Exception) -> bool:
    """Tell whether to try again what no layer below has tried again.

    s3fs and botocore do, both, five times: against a server that answers with 5xx they give up
    after 5 requests and about 10 s, with SlowDown after 25 and 40 s, not at all after 25 and 6
    minutes (s3fs 2026.9).
    """
    if is_s3(fs):
        return s3_code(error) in _CONFLICTS
    return isinstance(error, (ConnectionError, TimeoutError))


def _was_retried(error: Exception) -> bool:
    response = getattr(error.__cause__, "response", None) or {}
    attempts: int = response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    return attempts > 0


def _explained(fs: AbstractFileSystem, error: Exception) -> str:
    """Return the cause, with the code of S3 and without the secrets among the options of `fs`."""
    text = without_secrets(fs, error)
    code = s3_code(error)
    text += f" ({code})" if code not in text else ""
    if wants_credentials(fs, error):
        text += (
            "; choose credentials that may write: AWS_PROFILE, #aws.profile=NAME or storage_options"
        )
    return text
