"""A dataset in a mapping from keys to bytes, such as a ``dict``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.keystore import ALL, Listing, LocalStore, check_key
from nczarr_fsspec.places.url import redact
from nczarr_fsspec.stores.names import child_names


class MappingStore(LocalStore):
    """A store of the items of a mapping.

    Parameters
    ----------
    mapping
        Its values are bytes or anything with the buffer interface.
    url
        How messages name it.
    """

    def __init__(self, mapping: Mapping[str, Any], url: str = "mapping") -> None:
        self.mapping = mapping
        self.url = url

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        check_key(key)
        try:
            value = self.mapping[key]
        except KeyError:
            return None
        except Exception as error:  # a mapping is foreign code
            raise StoreError(
                f"{self.url}/{key}", f"cannot be read: {redact(repr(error))}"
            ) from error
        try:
            view = memoryview(value).cast("B")
        except TypeError as error:
            raise StoreError(
                f"{self.url}/{key}", f"holds {type(value).__name__} where bytes are needed"
            ) from error
        if most is not None and len(view) > most and part == ALL:
            raise too_large(f"{self.url}/{key}", most)
        return bytes(view[part])

    def list(self, prefix: str) -> frozenset[str]:
        start = f"{prefix}/" if prefix else ""
        first = len(start)
        below = (key[first:] for key in self._keys() if key.startswith(start))
        return frozenset(name for name in (key.partition("/")[0] for key in below) if name)

    def list_many(self, prefixes: Sequence[str]) -> builtins.list[Listing]:
        if len(prefixes) < 2:
            return [self.list(prefix) for prefix in prefixes]
        children = child_names(self._keys())
        return [children.get(prefix, frozenset()) for prefix in prefixes]

    def _keys(self) -> Iterator[str]:
        # nothing is remembered: the mapping may change under us
        return (key for key in self.mapping if isinstance(key, str))
