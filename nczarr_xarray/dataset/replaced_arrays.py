"""Telling whether an array in a tree is still the one that was opened, as others may write there.

A change by this package replaces the root's ``.zgroup`` before it moves or removes a chunk. So each
read looks at that and, if it is another one, at what describes the array. Other programs may leave
the root as it was: what describes the array is looked at where chunks are missing, too, or were
written after it was opened; if it is at hand, after each read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from nczarr_fsspec.changes.consistent_reading import Mark, look, root_of
from nczarr_fsspec.changes.journal import COVER, base_of, with_changes
from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import FormatError, StoreError
from nczarr_fsspec.keystore import KeyStore, LocalStore, RemoteStore
from nczarr_fsspec.stores.missing_chunks import changed
from nczarr_xarray.chunks.threads import in_pool
from nczarr_xarray.formats.nczarr.jsontext import JSON, difference, loads, same

#: Attributes by which stored elements become values.
_DECODING = frozenset(
    {
        *("scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value"),
        *("units", "calendar", "_Encoding", "dtype"),
    }
)


class AsOpened:
    """What an array was when its dataset was opened. Picklable.

    Parameters
    ----------
    mark
        Of the dataset.
    document
        The key of what describes the array.
    found
        What was read when it was opened: bytes by key, or the JSON in consolidated metadata.
    unchecked
        Whether that is still to be compared with the array's own, because it was consolidated.
    trusted
        Whether the array's own need not be there.
    """

    def __init__(
        self,
        mark: Mark,
        document: str,
        documents: Mapping[str, Any],
        *,
        unchecked: bool = False,
        trusted: bool = False,
    ) -> None:
        attributes = f"{document.rpartition('/')[0]}/.zattrs".lstrip("/")
        self.mark = mark
        self._document = document
        self._was = {key: documents.get(key) for key in (document, attributes)}
        known = self._was[document] is not None
        self._unchecked = unchecked and known
        self._must_be_there = known and not trusted
        #: of the last state in which the array was the same; all changes have the same `COVER`
        self._root: Hashable = None if mark.busy else mark.root
        #: of what describes the array, when it was looked at last
        self._stamp: Hashable = None

    def check(self, store: LocalStore) -> None:
        """Raise `StoreError` if what was read of a store may be of another array.

        Call it when all has been read.
        """
        store.check_place()
        base = base_of(store)
        if self._may_change(base) and at_once(root_of(base)) != self._root:
            self._compare(base)
        elif self._must_be_there and not base.steady:
            self._look_again(base)

    def _look_again(self, store: KeyStore) -> None:
        """Compare what describes the array, if it may be another one than at the last look."""
        key = self._document
        stamp = store.stamp(key)
        if stamp is not None and stamp == self._stamp:
            return
        data = at_once(store.fetch(key, most=store.max_metadata))
        if data is None:
            raise StoreError(store.url, f"{key} is not there any more")
        if data != self._was[key]:
            self._recognize(store, key, data)
        self._stamp = stamp

    async def watch(self, store: RemoteStore) -> None:
        """Do as `check` on the loop of a store, at the same time as what fetches chunks.

        Raises
        ------
        FormatError
            If consolidated metadata are not those of the array.
        StoreError
            As `check`.
        """
        if self._unchecked:
            await self._compare_consolidated(store)
        base = base_of(store)
        if self._may_change(base) and await root_of(base) != self._root:
            await in_pool(self._compare, base)

    def _may_change(self, store: KeyStore) -> bool:
        """Tell whether a change would show in the root, which is none of Zarr 3."""
        return self.mark.root is not None and not store.steady

    async def _compare_consolidated(self, store: RemoteStore) -> None:
        """Refuse data whose ``.zarray`` is not what ``.zmetadata`` said it was."""
        key = self._document
        async with store.gate():
            data = await store.get(key, most=store.max_metadata)
        if data is None or not same(loads(data, key), self._was[key]):
            gone = "does not exist" if data is None else "has changed"
            raise FormatError(".zmetadata", f"is stale: {key} {gone}; open with consolidated=False")
        self._unchecked = False  # other reads may be waiting above for the same

    def _compare(self, store: KeyStore) -> None:
        """Compare the array with what it is in the state that the store has now."""
        mark = look(store)
        now = with_changes(store, *mark.state).store
        for key, data in zip(self._was, now.get_many([*self._was]), strict=True):
            if isinstance(data, StoreError):
                raise data
            if data is None and key == self._document:
                if self._must_be_there:
                    raise StoreError(store.url, f"{key} is not there any more")
                return
            self._recognize(store, key, data)
        if not mark.busy and mark.root != COVER:
            self._root = mark.root

    def recognize(self, store: KeyStore, data: bytes) -> None:
        """Raise `StoreError` if the document of the array says that it is another one."""
        self._recognize(store, self._document, data)

    def _recognize(self, store: KeyStore, key: str, data: bytes | None) -> None:
        before = self._was[key]
        if before is None and key == self._document:
            return  # what it was is not known
        how = difference(*(_needed(one, key) for one in (before, data)))
        if how is not None:
            raise changed(store, key, how)


def _needed(data: Any, key: str) -> JSON:
    """Return what a document says that matters to those who read the array."""
    document = loads(data, key) if isinstance(data, bytes) else data
    if not key.endswith(".zattrs"):
        return document
    attributes = document if isinstance(document, dict) else {}
    return {name: value for name, value in attributes.items() if name in _DECODING}
