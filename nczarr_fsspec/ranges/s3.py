"""One object in S3: every answer is checked to be what was asked for, of one version.

Source: the S3 API's GetObject (ranges, conditions), s3fs 2025.10 to 2026.9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError
from nczarr_fsspec.ranges.source import HEAD_BYTES, Extent, Known, Limits, RemoteBytes
from nczarr_fsspec.stores.fsspec import _MISSING, _fail, _s3_code
from nczarr_fsspec.transport.answers import content_range, exactly, wrong_range
from nczarr_fsspec.transport.policy import TransientError
from nczarr_fsspec.transport.s3 import S3Files, get_object
from nczarr_fsspec.transport.throttle import Throttle

#: requests in flight, and what botocore sends at once unless told
CONCURRENCY = 64
_POOL = 10
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

    def __init__(self, files: S3Files, path: str, url: str) -> None:
        self._files = files
        self._path = path
        self.url = url
        self.validator = ""
        pool = (files.recipe.config_kwargs or {}).get("max_pool_connections", _POOL)
        self._limits = Limits(concurrency=min(CONCURRENCY, pool))
        self._throttle = Throttle(self._limits.concurrency, files.timeout)

    @classmethod
    def open(cls, files: S3Files, path: str, url: str, known: Known | None) -> S3Bytes:
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
        attempt = partial(self._attempt, extent, condition)
        return await self._throttle.retried(attempt, self.url)

    async def _attempt(
        self, extent: Extent, condition: dict[str, str], left: float
    ) -> tuple[dict[str, Any], memoryview]:
        """The answer to a request for `extent`, and its body: that, or what there is of it."""
        ranged = {**condition, "Range": f"bytes={_text(extent)}"}
        try:
            async with get_object(self._files, self._path, left, **ranged) as (answer, pieces):
                return answer, await exactly(pieces, self._counted(answer, extent))
        except (StoreError, TransientError):
            raise
        except _MISSING as error:
            self._files.check_bucket(error, self._path)
            raise DatasetNotFoundError(self.url, "there is no such object") from None
        except Exception as error:  # noqa: BLE001 - botocore's, and what s3fs makes of them
            if (code := _s3_code(error)) in _ANSWERS:
                raise _RefusedError(code) from None
            _fail(self._files.recipe, self._path, error)

    def _counted(self, answer: dict[str, Any], extent: Extent) -> int:
        """How many bytes come, once it is sure that they are those that were asked for."""
        count: int = answer["ContentLength"]
        stated = content_range(answer.get("ContentRange"))
        if count > extent.stop - extent.start or (stated is None and extent.start > 0):
            raise StoreError(self.url, "the server does not serve byte ranges")
        if stated is not None and stated[:2] != (extent.start, extent.start + count):
            raise wrong_range(self.url, stated, *extent)
        return count

    def _changed(self) -> StoreError:
        return StoreError(self.url, "the object has changed while it was read; open it again")


def _text(extent: Extent) -> str:
    return f"{extent.start}-{extent.stop - 1}"
