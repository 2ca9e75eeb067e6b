"""Finding out whether an array is still there, where chunks are missing."""

from __future__ import annotations

import math
import time

from nczarr_fsspec.errors import StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore

#: Seconds for which a remote array is believed to be there though chunks are missing.
_BELIEVED = 1.0


class Presence:
    """Finds out whether a remote array is still there, where chunks are missing.

    Parameters
    ----------
    store
        Has the array.
    documents
        Keys of documents, one of which has the array's metadata; none if that need not be so.
    """

    def __init__(self, store: RemoteStore, *documents: str) -> None:
        self._store = store
        self._documents = documents
        #: when one of them was seen last
        self._seen = -math.inf

    async def check(self) -> None:
        """Raise `StoreError` if the array was removed: all of its chunks would be fill values.

        Runs on the store's loop; the array is believed to be there for a while.
        """
        store = self._store
        if time.monotonic() <= max(self._seen, store.seen) + _BELIEVED:
            return
        found = await store.gather_objects(self._documents)
        for document in found:
            if isinstance(document, StoreError):
                raise document
        if found and found == [None] * len(found):
            raise _removed(store, self._documents[0])
        self._seen = time.monotonic()


class LocalPresence:
    """Does as `Presence` for an array on this machine."""

    def __init__(self, store: LocalStore, document: str | None) -> None:
        self._store = store
        self._document = document

    def check(self) -> None:
        """Raise `StoreError` if the array was removed: all of its chunks would be fill values."""
        store, document = self._store, self._document
        if document is None or store.stamp(document) is not None:
            return
        if store.get(document, slice(0, 1)) is None:
            store.check_place()  # whose reason says more
            raise _removed(store, document)


def _removed(store: KeyStore, document: str) -> StoreError:
    reason = f"{document} is not there any more, and chunks are missing"
    return StoreError(store.url, reason)
