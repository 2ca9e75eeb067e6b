"""Finding out whether an array is still there, where chunks are missing or were written anew."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, NamedTuple, TypeAlias

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, RemoteStore

#: Seconds for which a remote array is believed to be there, and the same.
BELIEVED = 1.0

#: Ends an error that comes of a change by others.
CHANGED = "the dataset was changed after it was opened: open it again"

#: Raises `StoreError` if bytes are not those of the array that was opened (`changed`).
Recognize: TypeAlias = Callable[[KeyStore, bytes], None]
#: Does so for what the array is now, on the loop of the store.
Watch: TypeAlias = Callable[[RemoteStore], Coroutine[Any, Any, None]]


class Document(NamedTuple):
    """What describes an array in a store.

    Attributes
    ----------
    key
        Where it is.
    recognize, watch
        For where chunks are missing, and for all reads over a network; None if nothing is known
        of it.
    needed
        Whether it has to be there.
    """

    key: str
    recognize: Recognize | None = None
    watch: Watch | None = None
    needed: bool = True


class Presence:
    """Finds out whether an array is still there, where its chunks give reason to doubt it.

    Parameters
    ----------
    store
        Has the array.
    documents
        One of them has the array's metadata, if they are needed.
    """

    def __init__(self, store: KeyStore, *documents: Document) -> None:
        self._store = store
        self._documents = [document for document in documents if document.needed]
        #: whether another array would be told from this one; nothing is known of what is staged
        self._recognizes = any(document.recognize is not None for document in documents)
        #: when one of them was seen last, with which stamps, and what they were
        self._seen = -math.inf
        self._stamps: list[Hashable] = []
        self._found: list[Any] = [None] * len(self._documents)

    @property
    def doubtful(self) -> bool:
        """Whether objects may have come that were written after the array was opened."""
        return not isinstance(self._store, RemoteStore) or self._store.younger_by >= 0

    async def check(self, *, missing: bool = True) -> None:
        """Raise `StoreError` if the array was removed, or is another one.

        Nothing is asked if no chunk is `missing` and it is not `doubtful`. A remote array is
        believed to be there for a while, a local one as long as the stamps of its documents say so.
        """
        store, documents = self._store, self._documents
        if not documents or not (missing or (self._recognizes and self.doubtful)):
            return
        stamps = [store.stamp(document.key) for document in documents]
        if isinstance(store, RemoteStore):
            # times are in seconds: what was written in that of the opening may be older than it
            seen = self._seen if store.younger_by > 0 else max(self._seen, store.seen)
            if time.monotonic() <= seen + BELIEVED:
                return
        elif stamps == self._stamps and None not in stamps:
            return
        found = await store.gather_objects([document.key for document in documents])
        store.check_place()  # whose reason says more
        for document, data, before in zip(documents, found, self._found, strict=True):
            if isinstance(data, StoreError):
                raise data
            if data is not None and data != before and document.recognize is not None:
                document.recognize(store, data)
        if found == [None] * len(found):
            raise removed(store, documents[0].key, missing=missing)
        self._seen, self._stamps, self._found = time.monotonic(), stamps, found


def removed(store: KeyStore, document: str, *, missing: bool = True) -> StoreError:
    """Return the error for an array that is not there any more."""
    chunks = ", and chunks are missing" if missing else ""
    return StoreError(store.url, f"{document} is not there any more{chunks}")


def changed(store: KeyStore, document: str, how: str) -> StoreError:
    """Return the error for an array in the place of which there is another one now."""
    return StoreError(store.url, f"{document} is another one now ({how}); {CHANGED}")
