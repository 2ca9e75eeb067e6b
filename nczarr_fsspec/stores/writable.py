"""The seam between an export and storage: keys and bytes of one dataset that can be changed.

The counterpart of `nczarr_fsspec.keystore`, with the same keys. All calls block. To write much,
call from `WritableStore.parallel` threads: a remote store sends their requests at the same time, on
its event loop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nczarr_fsspec.forks import ProcessLock
from nczarr_fsspec.keystore import KeyStore
from nczarr_fsspec.local_files import FileRange, temporary_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: held by `WritableStore.create` of stores that have no atomic creation
creating = ProcessLock()


class WritableStore(ABC):
    """Keys and bytes of one dataset that can be changed.

    Picklable, safe in threads and in processes. Every method raises `StoreError`, which names the
    object and the cause; so does a key that leads out of the dataset.

    Attributes
    ----------
    url : str
        How messages name the dataset; free of secrets.
    parallel : int
        How many puts are worth having in flight at a time; 1 if the store answers at once, so that
        what counts is the number of processors.
    stamps : bool
        Whether an object that is replaced can be told from the one before, even if it
        holds the same bytes (`LocalStore.stamp`).
    """

    url: str
    parallel: ClassVar[int]
    stamps: ClassVar[bool] = False

    @property
    def timeout(self) -> float:
        """Seconds that one request may take in all, its further tries included."""
        return math.inf

    @abstractmethod
    def reader(self) -> KeyStore:
        """Return a read-only store of the same keys."""

    @abstractmethod
    def put(self, key: str, data: Buffer) -> None:
        """Store `data` under `key`, and replace what is there.

        A reader sees all of the old bytes or all of the new ones, and after an
        error there is no part of the new ones.
        """

    def put_file(self, key: str, fill: Callable[[str], None]) -> None:
        """Store a file under `key`, as `put` does, and without holding it in memory if possible.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.
        """
        with temporary_file() as path:
            fill(path)
            self.put(key, Path(path).read_bytes())

    def put_range(self, key: str, part: FileRange) -> None:
        """Store bytes of a file under `key`, as `put` does, and without reading if possible."""
        self.put(key, part.read())

    @abstractmethod
    def create(self, key: str, data: Buffer) -> bool:
        """Store `data` unless `key` exists; tell whether it was stored.

        If several callers create the same key, one gets True. Each store documents
        whether that holds among processes, or in this process only.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete `keys`; missing ones are no error.

        Local directories that become empty are removed, too.
        """

    @abstractmethod
    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Rename keys, given as ``(source, target)``; a target that exists is replaced.

        A source that is missing while its target exists was moved before, so an
        interrupted move may be repeated. Pairs go in any order: no target may be
        the source of another pair.
        """

    @abstractmethod
    def keys_below(self, prefix: str) -> list[str]:
        """Return every full key below `prefix` (``""`` is the root), at any depth, sorted."""

    @abstractmethod
    def child(self, prefix: str) -> WritableStore:
        """Return a store whose root is `prefix` of this one, for objects that are not read yet.

        Its `put` need not be atomic.
        """

    def close(self) -> None:
        """Release connections. The store connects by itself if it is used again."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
