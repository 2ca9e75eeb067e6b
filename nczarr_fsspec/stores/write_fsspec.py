"""Writing a dataset through any fsspec filesystem."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fsspec import AbstractFileSystem

from nczarr_fsspec.concurrency import gather_or_cancel
from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, WritableStore, check_key, creating, is_safe_name
from nczarr_fsspec.local_files import temporary_file
from nczarr_fsspec.stores.fsspec import FsspecStore
from nczarr_fsspec.stores.mapping import MappingWriter, MemoryFiles
from nczarr_fsspec.stores.ownership import temporary_name, writer_of
from nczarr_fsspec.transport import policy as _policy
from nczarr_fsspec.transport.filesystems import (
    EXPIRED,
    describe,
    how_to_log_in,
    is_async,
    keys_number,
    kind_of,
    renames,
    renewed,
    s3_code,
    wants_credentials,
    within,
    without_secrets,
)
from nczarr_fsspec.transport.fsspec import FsspecTransport
from nczarr_fsspec.transport.options import AMAZON
from nczarr_fsspec.transport.policy import DEFAULT_LIMITS, TOO_LONG, RequestLimits
from nczarr_fsspec.transport.recording import Kind, watched
from nczarr_fsspec.transport.request import Extent, FileVersion, Request, TransientError

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

_EXISTS = frozenset({"PreconditionFailed", "412"})
#: how a service refuses conditional requests that it does not know
_NO_CONDITIONS = "NotImplemented"
#: answers of S3 that another request in flight has caused
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
#: by endpoint and bucket, whether a service puts on a condition
_swapping: dict[tuple[str, str], bool] = {}
#: bytes that an object may have of which the version counts
MOST_VERSIONED = 1 << 30
#: bytes from which an object of S3 is sent in parts, so that a part is what has to be sent again
SEVERAL_PARTS = 100 << 20
#: bytes of a part, parts that are sent at a time, and parts that S3 takes
PART = 16 << 20
PARTS_AT_A_TIME = 8
MOST_PARTS = 10_000


def open_writer(
    fs: AbstractFileSystem, root: str, url: str | None, limits: RequestLimits
) -> WritableStore:
    """Return what writes below one root of a filesystem; parameters as of `FsspecWriter`."""
    if kind_of(fs) == "memory":
        return MappingWriter(MemoryFiles(fs, root), url or describe(fs, root))
    return FsspecWriter(fs, root, url, limits)


class FsspecWriter(WritableStore):
    """Keys are the paths below one root of a filesystem.

    Object stores replace an object at once and never hold a
    part of one: S3 drops an upload that is cut off, and one in several parts
    is aborted. Protocols for files, such as SFTP, write in place, but for
    whole files (`put_file`) where there is a rename: these get a name of
    their own first.

    `create` is atomic among all clients of an S3 service that knows
    conditional requests (AWS, Google, Azure, MinIO, SeaweedFS 4), and
    elsewhere a look before a put. There is a `replace` only where it is atomic, too.

    Parameters
    ----------
    fs
        A filesystem, asynchronous or not; used as a recipe only: requests and
        connections are the store's own, on fsspec's event loop.
    root
        Path of the dataset in `fs`, without protocol.
    url
        How messages name the dataset, where that is not plain from `root`.
    limits
        Of its requests; the timeout is by default what the filesystem says.
    """

    parallel = 64  # measured with puts; reads bear more

    #: keys that S3 deletes in one request
    bulk = 1000

    def __init__(
        self,
        fs: AbstractFileSystem,
        root: str,
        url: str | None = None,
        limits: RequestLimits = DEFAULT_LIMITS,
    ) -> None:
        self.fs = fs
        self.root = root
        self._keys = FsspecStore(fs, root, url, limits)
        self.url = self._keys.url

    @property
    def _transport(self) -> FsspecTransport:
        assert isinstance(self._keys.transport, FsspecTransport), "HTTP cannot be written"
        return self._keys.transport

    @property
    def timeout(self) -> float:
        return self._transport.timeout.whole

    def reader(self) -> KeyStore:
        return FsspecStore(self.fs, self.root, self.url, self._transport.limits)

    def put(self, key: str, data: Buffer) -> None:
        self._keys.run_each(partial(self._put, _bytes(data)), [self._path(key)])

    def create(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        with nullcontext() if is_async(self.fs) else creating:
            return self._keys.run_each(partial(self._create, _bytes(data)), [path])[0]

    @property
    def swaps(self) -> bool:
        return kind_of(self.fs) == "s3" and self._keys.run_each(self._swaps, [self.root])[0]

    def get_versioned(self, key: str) -> tuple[bytes, str] | None:
        return self._keys.run_each(self._get_versioned, [self._path(key)])[0]

    def replace(self, key: str, data: Buffer, version: str) -> bool:
        replace = partial(self._replace, _bytes(data), version)
        return self._keys.run_each(replace, [self._path(key)])[0]

    def put_file(self, key: str, fill: Callable[[str], None]) -> None:
        with temporary_file() as path:
            fill(path)
            self.upload(key, path)

    def upload(self, key: str, path: str) -> None:
        """Store the content of a local file under `key`, without holding all of it in memory."""
        # what is not there, the filesystem says
        nbytes = os.path.getsize(path) if os.path.exists(path) else 0
        self._keys.run_each(partial(self._put_file, path, nbytes), [self._path(key)])

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        if kind_of(self.fs) == "s3" and "gs3" not in self.fs.protocol:  # Google has no bulk request
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
        path = self._path(prefix) if prefix else self.root
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
        url = f"{self.url.rstrip('/')}/{prefix}"
        return FsspecWriter(self.fs, self._path(prefix), url, self._transport.limits)

    def close(self) -> None:
        self._keys.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fs, self.root, self.url, self._transport.limits)

    def _path(self, key: str) -> str:
        return self._transport.join(self.root, check_key(key))

    async def read_object(self, path: str, count: int | None = None) -> bytes | None:
        """Return what is there now, or its first bytes; None if nothing is."""
        extents = None if count is None else [Extent(0, count)]
        request = Request(path, self._transport.describe(path), extents)
        answer = await self._transport.fetch(request)
        return None if answer is None else bytes(answer.parts[0] or b"")

    async def _put(self, data: bytes, path: str) -> None:
        with self._naming(path, "written", "put", len(data)):
            if kind_of(self.fs) == "s3" and len(data) >= SEVERAL_PARTS:
                await self._put_parts(path, len(data), lambda start, stop: data[start:stop])
                return
            await self._call_making_folder(path, "pipe_file", path, data, nbytes=len(data))

    async def _put_file(self, local: str, nbytes: int, path: str) -> None:
        with self._naming(path, "written", "put", nbytes):
            if kind_of(self.fs) == "s3" and nbytes >= SEVERAL_PARTS:
                await self._put_parts(path, nbytes, partial(_part_of, local))
                return
            if not renames(self.fs):  # an object store, or nothing better can be done
                await self._call_making_folder(path, "put_file", local, path, nbytes=nbytes)
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

    async def _put_parts(self, path: str, nbytes: int, part: Callable[[int, int], bytes]) -> None:
        """Put an object of S3 in several requests, each of which is tried again by itself.

        Parameters
        ----------
        part
            Returns the bytes from one position to another, in a thread.
        """
        fs = self._transport.shared.fs
        bucket, key, _ = fs.split_path(path)
        where = {"Bucket": bucket, "Key": key}
        before = await self.version_of(path)
        begun = await self._tried(partial(fs._call_s3, "create_multipart_upload", **where))
        where["UploadId"] = begun["UploadId"]
        size, gate = max(PART, -(-nbytes // MOST_PARTS)), asyncio.Semaphore(PARTS_AT_A_TIME)

        async def put_part(start: int) -> dict[str, object]:
            number = start // size + 1
            async with gate:
                body = await asyncio.to_thread(part, start, min(start + size, nbytes))
                given = {**where, "PartNumber": number, "Body": body}
                answer = await self._tried(partial(fs._call_s3, "upload_part", **given), len(body))
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            parts = await gather_or_cancel(*map(put_part, range(0, nbytes, size)))
            whole = {**where, "MultipartUpload": {"Parts": parts}}
            complete = partial(fs._call_s3, "complete_multipart_upload", **whole)
            await self._tried(complete, 100 * len(parts))
        except BaseException as error:
            gone = isinstance(error, Exception) and s3_code(error) == "NoSuchUpload"
            after = await self.version_of(path) if gone else None
            if after is not None and after.size == nbytes and after != before:
                return  # it is there: the answer was lost that said so
            with suppress(Exception):
                await self._tried(partial(fs._call_s3, "abort_multipart_upload", **where))
            raise

    async def version_of(self, path: str) -> FileVersion | None:
        """Return which version of an object is there now; None if there is nothing."""
        request = Request(path, self._transport.describe(path), [Extent(0, 1)])
        answer = await self._transport.fetch(request)
        return None if answer is None else answer.version._replace(date="")

    async def _create(self, data: bytes, path: str) -> bool:
        if (
            await self.read_object(path, 1) is not None
        ):  # a service may ignore conditions, or refuse them
            return False
        whole, wait = self._transport.timeout.whole, _policy.FIRST_WAIT
        with self._naming(path, "written", "put", len(data)):
            for _ in range(_policy.ATTEMPTS):
                if await self._create_once(data, path):
                    return True
                # The answer of the first try may have been lost, and a library below has tried
                # again: aiohttp does so with a PUT, silently, where a connection ends that was
                # used before.
                there = await self.read_object(path)
                if there is not None:
                    return there == data
                if wait >= whole:
                    break
                await asyncio.sleep(wait)  # it was removed, unless the service is wrong
                wait, whole = 2 * wait, whole - wait
            reason = "the service says again and again that it is there, and it is not"
            raise StoreError(path, f"{reason} (412 to a conditional request)")

    async def _create_once(self, data: bytes, path: str) -> bool:
        """Put what must not be there yet; tell whether the service says that it was not."""
        put = partial(self._call_making_folder, path, "pipe_file", path, data, nbytes=len(data))
        takes = self._transport.shared.takes
        ways = {"mode": "create", "overwrite": False}  # of most; of Azure's
        known = [(name, way) for name, way in ways.items() if takes("pipe_file", name)]
        try:
            await put(**dict(known[:1]))
        except Exception as error:
            if s3_code(error) == _NO_CONDITIONS:
                await put()
            elif isinstance(error, FileExistsError) or s3_code(error) in _EXISTS:
                return False
            else:
                raise
        return True

    async def _swaps(self, path: str) -> bool:
        """Tell whether an S3 service puts on a condition, or ignores that.

        Where it is not known, it is tried, once in a process, with an object that is not there.
        """
        fs = self._transport.shared.fs
        bucket = fs.split_path(path)[0]
        await fs.set_session()
        meta = (await fs.get_s3(bucket)).meta
        if "IfMatch" not in meta.service_model.operation_model("PutObject").input_shape.members:
            return False  # of an old botocore
        if AMAZON.fullmatch(meta.endpoint_url):
            return True
        where = meta.endpoint_url, bucket
        if where not in _swapping:
            probe = f"{path}/{temporary_name()}"
            try:
                with self._naming(probe, "written", "put"):
                    _swapping[where] = not await self._put_if(b"", probe, '"0"')
            except StoreError:  # it will be said if something is really written
                return False
            if not _swapping[where]:
                await self._delete(probe)
        return _swapping[where]

    async def _get_versioned(self, path: str) -> tuple[bytes, str] | None:
        shown = self._transport.describe(path)
        answer = await self._transport.fetch(Request(path, shown, most=MOST_VERSIONED))
        if answer is None:
            return None
        if not answer.version.etag.startswith('"'):
            raise StoreError(shown, "the service does not state its version (a strong ETag)")
        return bytes(answer.parts[0] or b""), answer.version.etag

    async def _replace(self, data: bytes, version: str, path: str) -> bool:
        with self._naming(path, "written", "put", len(data)):
            # the answer to an earlier try may have been lost
            put = await self._put_if(data, path, version)
            return put or await self.read_object(path) == data

    async def _put_if(self, data: bytes, path: str, version: str) -> bool:
        """Put an object of S3 in place of a version; tell whether that was there."""
        fs = self._transport.shared.fs
        bucket, key, _ = fs.split_path(path)
        given = {"Bucket": bucket, "Key": key, "Body": data, "IfMatch": version}
        try:
            await self._tried(partial(fs._call_s3, "put_object", **given), len(data))
        except Exception as error:
            if s3_code(error) in _EXISTS or isinstance(error, FileNotFoundError):
                return False
            raise
        return True

    async def _delete(self, path: str) -> None:
        with self._naming(path, "deleted", "delete"):
            try:
                await self._call("rm_file", path)
            except Exception as error:
                gone = isinstance(error, FileNotFoundError) and s3_code(error) != "NoSuchBucket"
                # FTP has another error for that
                if not gone and (is_async(self.fs) or await self.read_object(path, 1) is not None):
                    raise

    async def _delete_from_s3(self, paths: list[str]) -> None:
        from botocore.exceptions import ClientError

        fs = self._transport.shared.fs
        bucket = fs.split_path(paths[0])[0]
        objects = [{"Key": fs.split_path(path)[1]} for path in paths]
        request = {"Bucket": bucket, "Delete": {"Objects": objects, "Quiet": True}}

        async def delete() -> list[dict[str, str]]:
            # not fs._bulk_delete, which forgets what could not be deleted
            answer = await fs._call_s3("delete_objects", **request)
            errors = [one for one in answer.get("Errors", ()) if one.get("Code") != "NoSuchKey"]
            for one in errors:  # the answer is a success, whatever happened to single objects
                told = ClientError({"Error": one}, "DeleteObjects")
                if self._transport.transient(told) is not None:
                    raise told
            return errors

        with self._naming(paths[0], "deleted", "delete"):
            failed = await self._tried(delete, sum(map(len, paths)))
        for one in failed:
            raise StoreError(
                self._transport.describe(f"{bucket}/{one.get('Key')}"),
                f"cannot be deleted: {one.get('Code')}: {one.get('Message')}",
            )

    async def _copy(self, targets: Mapping[str, str], source: str) -> None:
        target = targets[source]
        with self._naming(source, f"moved to {target}", "copy"):
            try:
                await self._call_making_folder(target, "cp_file", source, target)
            except FileNotFoundError:
                # It was moved before, unless the service is wrong: it would be deleted then.
                source_there = await self.read_object(source, 1) is not None
                if source_there or await self.read_object(target, 1) is None:
                    raise
            except Exception as error:
                if kind_of(self.fs) == "s3" or isinstance(error, StoreError):
                    raise
                # It may have no copies, none over what is there (webdav4), no shell (sshfs).
                await self._put(await self._call("cat_file", source), target)

    async def _find(self, path: str) -> list[str]:
        with self._naming(path, "listed", "list"):
            try:
                if kind_of(self.fs) == "s3":
                    from nczarr_fsspec.transport.s3client import list_below

                    return await self._tried(
                        partial(list_below, self._transport.shared.fs, path, "")
                    )
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
        except (StoreError, NotImplementedError):
            raise
        except Exception:  # FTP's errors are not Python's
            if is_async(self.fs) or not await self._has_folder(path.rpartition("/")[0]):
                raise
            await self._call(method, *args, **kwargs)

    async def _has_folder(self, path: str) -> bool:
        """Make a directory and those above it if need be, as others may do at the same time."""
        there = False
        with suppress(Exception):  # what went wrong, the caller knows
            there = not path or await self._call("isdir", path)
            if not there and await self._has_folder(path.rpartition("/")[0]):
                with suppress(Exception):
                    await self._call("mkdir", path, create_parents=False)
                there = await self._call("isdir", path)
        return there

    async def _call(self, method: str, *args: Any, nbytes: int | None = None, **kwargs: Any) -> Any:
        """Call the filesystem, as `_tried` does."""
        call = partial(self._transport.shared.call, method, *args, **kwargs)
        return await self._tried(call, nbytes)

    async def _tried(self, call: Callable[[], Awaitable[T]], nbytes: int | None = None) -> T:
        """Await what `call` returns, and again where a failure may pass, as reads are tried again.

        Parameters
        ----------
        nbytes
            Of the body, if `call` sends one. To S3, its time is limited here: botocore's limits
            begin when all of it was sent, and it is not sent before the server asks for it. Without
            a body, a call may be several requests, such as a listing, which have the whole time.

        Raises
        ------
        StoreError
            If it was given up. Else what `call` raises.
        """
        transport = self._transport
        fs, limits = transport.shared.fs, transport.timeout
        longest, bounded = math.inf, kind_of(fs) == "s3"
        if nbytes is not None and limits.rate:
            longest = limits.connect + limits.first_byte + nbytes / limits.rate

        if bounded:
            from nczarr_fsspec.transport.s3client import check_bodies

            await check_bodies(fs, self.root)

        async def attempt(left: float) -> T:
            number = keys_number(fs)
            try:
                async with within(min(left, longest) if bounded else math.inf):
                    return await call()
            except TransientError:
                if longest >= left:
                    raise
                reason = f"no answer came in time ({limits.text})"
                raise TransientError(reason, cost=TOO_LONG) from None
            except Exception as error:
                if renewed(fs, error, number):
                    raise TransientError(EXPIRED) from None
                if s3_code(error) in _CONFLICTS:
                    raise TransientError(_explained(fs, error)) from None
                if (transient := transport.transient(error)) is not None:
                    raise transient from None
                raise

        return await transport.throttle("").retried(attempt, self.url)

    @contextmanager
    def _naming(self, path: str, what: str, kind: Kind, nbytes: int = 0) -> Iterator[None]:
        """Raise errors as ours, about `path` and without secrets; recorders see what is done."""
        shown = self._transport.describe(path)
        with watched(Request(path, shown), kind, nbytes):
            try:
                yield
            except StoreError as error:
                reason = error.reason.removeprefix("cannot be read: ")
                raise StoreError(shown, f"cannot be {what}: {reason}") from None
            except Exception as error:  # noqa: BLE001 - a filesystem is foreign code
                reason = f"cannot be {what}: {_explained(self.fs, error)}"
                raise StoreError(shown, reason) from None


def _bytes(data: Buffer) -> bytes:
    """Return what botocore takes; it knows no other buffers."""
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def _part_of(path: str, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _explained(fs: AbstractFileSystem, error: Exception) -> str:
    """Return the cause, with the code of S3 and without the secrets among the options of `fs`."""
    text = without_secrets(fs, error)
    code = s3_code(error)
    text += f" ({code})" if code not in text else ""
    if wants_credentials(fs, error):
        choose = "choose credentials that may write: AWS_PROFILE, #aws.profile=NAME"
        text += how_to_log_in(fs, error, f"; {choose} or storage_options")
    return text
