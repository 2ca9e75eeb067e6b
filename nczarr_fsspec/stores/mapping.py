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
    prefix
        In front of all keys; it ends with a slash.
    """

    def __init__(
        self, mapping: Mapping[str, Any], url: str = "mapping", *, prefix: str = ""
    ) -> None:
        self.mapping = mapping
        self.url = url
        self._prefix = prefix

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        check_key(key)
        try:
            value = self.mapping[self._prefix + key]
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
        prefix = self._prefix
        keys = (key for key in self.mapping if isinstance(key, str))
        return (key.removeprefix(prefix) for key in keys if key.startswith(prefix))


class MemoryFiles(MutableMapping[str, Any]):
    """The files below one root of fsspec's filesystem in memory, by their keys. Picklable.

    Parameters
    ----------
    fs
        A `MemoryFileSystem`.
    root
        Without protocol.
    """

    def __init__(self, fs: Any, root: str) -> None:
        self._fs = fs
        self._start = f"/{root.strip('/')}/".replace("//", "/")

    def __getitem__(self, key: str) -> memoryview:
        found: memoryview = self._fs.store[self._start + key].getbuffer()
        return found

    def __setitem__(self, key: str, value: bytes) -> None:
        self._fs.pipe_file(self._start + key, value)

    def __delitem__(self, key: str) -> None:
        del self._fs.store[self._start + key]

    def __iter__(self) -> Iterator[str]:
        start = self._start
        return (path[len(start) :] for path in tuple(self._fs.store) if path.startswith(start))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class MappingWriter(WritableStore):
    """Keys and bytes of any mapping that can be changed.

    `create` is atomic in this process.

    Parameters
    ----------
    mapping
        Gets `bytes`.
    url, prefix
        As of `MappingStore`.
    """

    parallel = 1

    def __init__(
        self, mapping: MutableMapping[str, Any], url: str = "mapping", *, prefix: str = ""
    ) -> None:
        self.mapping = mapping
        self.url = url
        self._prefix = prefix

    def reader(self) -> MappingStore:
        return MappingStore(self.mapping, self.url, prefix=self._prefix)

    def put(self, key: str, data: Buffer) -> None:
        with self._named(key, "written") as name:
            self.mapping[name] = memoryview(data).tobytes()

    def create(self, key: str, data: Buffer) -> bool:
        with creating:
            with self._named(key, "read") as name:
                if name in self.mapping:
                    return False
            self.put(key, data)
        return True

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._named(key, "deleted") as name, suppress(KeyError):
                del self.mapping[name]

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        for source, target in pairs:
            new = self._prefix + check_key(target)
            with self._named(source, f"moved to {target}") as old:
                if old != new and (old in self.mapping or new not in self.mapping):
                    self.mapping[new] = self.mapping[old]
                    del self.mapping[old]

    def keys_below(self, prefix: str) -> list[str]:
        start = self._prefix + (f"{check_key(prefix)}/" if prefix else "")
        try:
            found = list(iter(self.mapping))  # without asking how many there are
        except Exception as error:  # a mapping is foreign code
            raise StoreError(self.url, f"cannot be listed: {error!r}") from error
        keys = (key for key in found if isinstance(key, str) and key.startswith(start))
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def child(self, prefix: str) -> MappingWriter:
        below = f"{self._prefix}{check_key(prefix)}/"
        return MappingWriter(self.mapping, f"{self.url}/{prefix}", prefix=below)

    @contextmanager
    def _named(self, key: str, what: str) -> Iterator[str]:
        """Yield the name of `key` in the mapping; raise errors as ours."""
        name = self._prefix + check_key(key)
        try:
            yield name
        except Exception as error:  # a mapping is foreign code
            cause = "there is no such key" if isinstance(error, KeyError) else repr(error)
            raise StoreError(f"{self.url}/{key}", f"cannot be {what}: {cause}") from error
