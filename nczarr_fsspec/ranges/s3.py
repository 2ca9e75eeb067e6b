"""One object in S3: every answer is checked to be what was asked for, of one version.

Source: the S3 API's GetObject (ranges, conditions), s3fs 2025.10 to 2026.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from s3fs.core import S3_RETRYABLE_ERRORS

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.ranges.source import HEAD_BYTES, Extent, Known, Limits, RemoteBytes
from nczarr_fsspec.stores._http import content_range, exactly
from nczarr_fsspec.stores._retry import TransientError, retried
from nczarr_fsspec.stores.fsspec import _MISSING, FsspecFiles, _fail, _s3_code

#: requests in flight, and what botocore sends at once unless told
CONCURRENCY = 64
_POOL = 10
#: bytes of a body that are copied at a time, at most
_PIECE = 1 << 18

_BROKEN = (*S3_RETRYABLE_ERRORS, ConnectionError)
#: codes of refusals that answer a question: the object is too short, or the same, or another
_BEYOND = frozenset({"416", "InvalidRange"})
_ANSWERS = _BEYOND | {"304", "NotModified", "412", "PreconditionFailed"}


class _RefusedError(Exception):
    """S3 answered with one of the codes `_ANSWERS`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class S3Bytes(RemoteBytes):
    """One version of an object. Made by `open`.

    Requests after the first are conditional: S3 compares the entity tags. The answers are
    compared as well, for not every server that speaks S3 knows conditions.

    Parameters
    ----------
    files
        The connections.
    path
        Bucket and key.
    url
        How messages name the object.
    """

    size = -1
    head: bytes = b""

    def __init__(self, files: FsspecFiles, path: str, url: str) -> None:
        self._files = files
        self._path = path
        self.url = url
        self.validator = ""
        pool = (files.recipe.config_kwargs or {}).get("max_pool_connections", _POOL)
        self._limits = Limits(concurrency=min(CONCURRENCY, pool))

    @classmethod
    def open(cls, files: FsspecFiles, path: str, url: str, known: Known | None) -> S3Bytes:
        """Send the first request, from any thread; parameters and errors as `open_source`."""
        source = cls(files, path, url)
        try:
            source.run(source._begin(known))
        except BaseException:
            source.close()
            raise
        return source

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._files.loop

    @property
    def limits(self) -> Limits:
        return self._limits

    async def fetch(self, extents: Sequence[Extent]) -> list[bytes | memoryview]:
        return list(await asyncio.gather(*map(self._one, extents)))

    def close(self) -> None:
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "head"}

    async def _begin(self, known: Known | None) -> None:
        """Ask for the first bytes; from the answer come size and entity tag, too."""
        condition = {"IfNoneMatch": known.validator} if known and known.validator else {}
        try:
            answer, head = await self._get(Extent(0, HEAD_BYTES), condition)
        except _RefusedError as refusal:
            if refusal.code in _BEYOND:  # of an empty object there are no first bytes
                self.size = 0
                return
            assert known is not None
            self.size, self.validator = known
            return
        self.head = bytes(head)
        self.validator = answer.get("ETag", "")
        stated = content_range(answer.get("ContentRange"))
        if stated is None or stated.size is None:
            self.size = len(self.head)
        else:
            self.size = stated.size

    async def _one(self, extent: Extent) -> memoryview:
        condition = {"IfMatch": self.validator} if self.validator else {}
        try:
            answer, body = await self._get(extent, condition)
        except _RefusedError:
            raise self._changed() from None
        stated = content_range(answer.get("ContentRange"))
        if answer.get("ETag", self.validator) != self.validator or (
            stated is not None and stated.size not in (None, self.size)
        ):
            raise self._changed()
        if len(body) != extent.stop - extent.start:
            raise StoreError(self.url, f"{len(body)} bytes came of {_text(extent)}")
        return body

    async def _get(
        self, extent: Extent, condition: dict[str, str]
    ) -> tuple[dict[str, Any], memoryview]:
        return await retried(partial(self._attempt, extent, condition), self.url)

    async def _attempt(
        self, extent: Extent, condition: dict[str, str]
    ) -> tuple[dict[str, Any], memoryview]:
        """The answer to a request for `extent`, and its body: that, or what there is of it."""
        fs = self._files.shared.fs
        bucket, key, version = fs.split_path(self._path)
        which = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        which |= getattr(fs, "req_kw", {})  # who pays
        try:
            answer = await fs._call_s3(  # noqa: SLF001
                "get_object", **which, **condition, Range=f"bytes={_text(extent)}"
            )
        except _MISSING as error:
            self._files._check_bucket(error, self._path)  # noqa: SLF001
            raise DatasetNotFoundError(self.url, "there is no such object") from None
        except Exception as error:  # noqa: BLE001 - botocore's, and what s3fs makes of them
            if (code := _s3_code(error)) in _ANSWERS:
                raise _RefusedError(code) from None
            _fail(self._files.recipe, self._path, error)
        count, stated = answer["ContentLength"], content_range(answer.get("ContentRange"))
        try:
            if count > extent.stop - extent.start or (stated is None and extent.start > 0):
                raise StoreError(self.url, "the server does not serve byte ranges")
            if stated is not None and (stated.start, stated.stop - stated.start) != (
                extent.start,
                count,
            ):
                sent = f"{stated.start}-{stated.stop - 1}"
                raise StoreError(
                    self.url, f"the server sent bytes {sent}, asked for {_text(extent)}"
                )
            body = await exactly(answer["Body"].iter_chunks(_PIECE), count)
        except _BROKEN as error:
            raise TransientError(f"{type(error).__name__}: {error}") from None
        finally:
            answer["Body"].close()
        return answer, body

    def _changed(self) -> StoreError:
        return StoreError(self.url, "the object has changed while it was read; open it again")


def _text(extent: Extent) -> str:
    return f"{extent.start}-{extent.stop - 1}"
