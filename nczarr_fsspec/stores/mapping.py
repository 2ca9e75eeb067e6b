"""A dataset in a mapping from keys to bytes, such as a ``dict``."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.errors import StoreError, too_large
from nczarr_fsspec.keystore import (
    ALL,
    Listing,
    LocalStore,
    WritableStore,
    check_key,
    child_names,
    creating,
)
from nczarr_fsspec.places.url import redact

if TYPE_CHECKING:
    from typing_extensions import Buffer


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

    async def gather_names(self, prefixes: Sequence[str]) -> builtins.list[Listing]:
        if len(prefixes) < 2:
            return await super().gather_names(prefixes)
        children = child_names(self._keys())
        return [children.get(prefix, frozenset()) for prefix in prefixes]

    def _keys(self) -> Iterator[str]:
        # nothing is remembered: the mapping may change under us
        return (key for key in self.mapping if isinstance(key, str))


class MappingWriter(WritableStore):
    """Keys and bytes of any mapping that can be changed.

    `create` is atomic in this process.

    Parameters
    ----------
    mapping
        Gets `bytes`.
    url
        How messages name it.
    """

    parallel = 1

    def __init__(self, mapping: MutableMapping[str, Any], url: str = "mapping") -> None:
        self.mapping = mapping
        self.url = url

    def reader(self) -> MappingStore:
        return MappingStore(self.mapping, self.url)

    def put(self, key: str, data: Buffer) -> None:
        check_key(key)
        with self._named(key, "written"):
            self.mapping[key] = memoryview(data).tobytes()

    def create(self, key: str, data: Buffer) -> bool:
        check_key(key)
        with creating:
            with self._named(key, "read"):
                if key in self.mapping:
                    return False
            self.put(key, data)
        return True

    def delete(self, keys: Iterable[str]) -> None:
        for key in map(check_key, keys):
            with self._named(key, "deleted"), suppress(KeyError):
                del self.mapping[key]

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        for source, target in pairs:
            check_key(source)
            check_key(target)
            with self._named(source, f"moved to {target}"):
                if source != target and (source in self.mapping or target not in self.mapping):
                    self.mapping[target] = self.mapping[source]
                    del self.mapping[source]

    def keys_below(self, prefix: str) -> list[str]:
        start = f"{check_key(prefix)}/" if prefix else ""
        with self._named(prefix, "listed"):
            found = list(self.mapping)
        return sorted(key for key in found if isinstance(key, str) and key.startswith(start))

    def child(self, prefix: str) -> MappingWriter:
        return MappingWriter(_Below(self.mapping, f"{check_key(prefix)}/"), f"{self.url}/{prefix}")

    @contextmanager
    def _named(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a mapping is foreign code
            cause = "there is no such key" if isinstance(error, KeyError) else repr(error)
            raise StoreError(f"{self.url}/{key}", f"cannot be {what}: {cause}") from error


class _Below(MutableMapping[str, Any]):
    """The part of a mapping whose keys begin with a prefix, without it."""

    def __init__(self, mapping: MutableMapping[str, Any], prefix: str) -> None:
        self._mapping = mapping
        self._prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self._mapping[self._prefix + key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mapping[self._prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self._mapping[self._prefix + key]

    def __iter__(self) -> Iterator[str]:
        start = self._prefix
        keys = [key for key in self._mapping if isinstance(key, str) and key.startswith(start)]
        return iter([key.removeprefix(start) for key in keys])

    def __len__(self) -> int:
        return sum(1 for _ in self)
