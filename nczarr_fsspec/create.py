"""Writing a dataset that nobody sees before it is complete: trees, archives, object stores."""

# paths are text in stores
# ruff: noqa: PTH103, PTH104, PTH108, PTH112, PTH118

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from nczarr_fsspec.edit import ROOT_KEYS
from nczarr_fsspec.errors import ConflictError, DatasetExistsError, StoreError
from nczarr_fsspec.journal import INCOMPLETE, Incomplete
from nczarr_fsspec.owned import dataset_keys
from nczarr_fsspec.owner import Owner
from nczarr_fsspec.stores.writers import DirectoryWriter
from nczarr_fsspec.writable import WritableStore


class Change(Protocol):
    """A change of a dataset, under way (`Edit` is one). Picklable.

    Attributes
    ----------
    staged
        Where new objects are put, under their own keys.
    """

    @property
    def staged(self) -> WritableStore: ...

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        """Make it valid: all of it, at once.

        Parameters
        ----------
        removed
            Keys to remove.
        expected
            How many objects must have been staged, if that is known.
        pending
            Arrays whose chunks are written later.

        Raises
        ------
        StoreError
            If that failed; what was there before stays.
        """

    def abort(self) -> None:
        """Remove what was staged."""


@dataclass(frozen=True, slots=True)
class NewTree:
    """A directory tree, built beside its place and then renamed.

    Attributes
    ----------
    path
        Where it will be; nothing, an empty directory, or a tree to replace.
    """

    path: str
    partial: str

    @classmethod
    def begin(cls, path: str) -> NewTree:
        """Make the directory that the tree is built in (`StoreError` if that cannot be)."""
        remove_leftovers(path)
        partial = partial_path(path)
        try:
            os.makedirs(partial)
        except OSError as error:
            raise StoreError(partial, f"cannot be made: {error.strerror}") from error
        return cls(path, partial)

    @property
    def staged(self) -> WritableStore:
        return DirectoryWriter(self.partial, atomic=False)

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        if pending is not None:
            self.staged.put(INCOMPLETE, pending.dump())
        try:
            if os.path.isdir(self.path) and os.listdir(self.path):
                exchange(self.partial, self.path)
                self.abort()  # what is there now is the old tree
            else:
                os.rename(self.partial, self.path)
        except OSError as error:
            raise StoreError(self.path, f"cannot be put into place: {error.strerror}") from error

    def abort(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class NewArchive:
    """A zip archive: a tree that is packed when it is complete.

    Attributes
    ----------
    pack
        Takes the path of the tree and the keys to leave out of the old archive;
        puts the new archive into place, atomically.
    """

    partial: str
    pack: Callable[[str, frozenset[str]], None]

    @classmethod
    def begin(cls, beside: str, pack: Callable[[str, frozenset[str]], None]) -> NewArchive:
        """Make the directory of the tree, beside the path of the archive."""
        tree = NewTree.begin(beside)
        return cls(tree.partial, pack)

    @property
    def staged(self) -> WritableStore:
        return DirectoryWriter(self.partial, atomic=False)

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        self.pack(self.partial, frozenset(removed))
        self.abort()

    def abort(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class NewObjects:
    """Objects where there were none; until the end a mark tells readers to keep off."""

    store: WritableStore

    @classmethod
    def begin(cls, store: WritableStore) -> NewObjects:
        """Put the mark.

        Raises
        ------
        ConflictError
            If another writer has done so and may be alive.
        StoreError
            If the store cannot be written.
        """
        mark = Incomplete(Owner.here()).dump()
        if not store.create(INCOMPLETE, mark):
            data = store.reader().get_many([INCOMPLETE])[0]
            if isinstance(data, bytes):
                other = Incomplete.parse(data).owner
                if not other.is_dead():
                    raise ConflictError(
                        store.url,
                        f"another writer ({other}) is exporting to it; if it has died on its "
                        "machine, call nczarr_xarray.recover",
                    )
            store.put(INCOMPLETE, mark)
            _clear(store)
        return cls(store)

    @property
    def staged(self) -> WritableStore:
        return self.store

    def commit(
        self,
        removed: Iterable[str] = (),
        expected: int | None = None,
        pending: Incomplete | None = None,
    ) -> None:
        if pending is None:
            self.store.delete([INCOMPLETE])
        else:
            self.store.put(INCOMPLETE, pending.dump())

    def abort(self) -> None:
        with suppress(StoreError):  # then the mark stays, and says what this is
            _clear(self.store)
            self.store.delete([INCOMPLETE])


def _clear(store: WritableStore) -> None:
    """Remove what an export that failed has put; the roots first, the mark not at all."""
    keys = dataset_keys(store.keys_below(""))
    store.delete([key for key in keys if key in ROOT_KEYS])
    store.delete([key for key in keys if key != INCOMPLETE])


_PARTIAL = re.compile(
    r"(?P<host>.*)-(?P<pid>[0-9]+)-(?P<started>[a-z0-9]*)-[0-9a-f]{8}\.partial", re.DOTALL
)


def partial_path(path: str) -> str:
    """A name beside `path` for something that is to replace it; it tells who made it."""
    parent, name = os.path.split(path)
    owner = Owner.here()
    unique = f"{owner.host}-{owner.pid}-{owner.started}-{uuid.uuid4().hex[:8]}"
    return os.path.join(parent, f".{name[:80]}.{unique}.partial")


def leftovers(path: str) -> list[tuple[str, Owner]]:
    """What writers of `path` have beside it: paths, and whose they are."""
    parent, name = os.path.split(path)
    start = f".{name[:80]}."
    found = []
    with suppress(OSError):
        for other in os.listdir(parent):
            match = _PARTIAL.fullmatch(other[len(start) :]) if other.startswith(start) else None
            if match is not None:
                owner = Owner(match["host"], int(match["pid"]), match["started"], "")
                found.append((os.path.join(parent, other), owner))
    return found


def remove_leftovers(path: str, *, alive: bool = False) -> None:
    """Remove what writers of `path` left behind when they died (or are taken to have died)."""
    for partial, owner in leftovers(path):
        if alive or owner.is_dead():
            if os.path.isdir(partial):
                shutil.rmtree(partial, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(partial)


def exchange(one: str, other: str) -> None:
    """Let two directories change names: at once on Linux and macOS, else in two steps.

    Raises
    ------
    OSError
        If they cannot; both are where they were.
    """
    if _exchange_at_once(one, other):
        return
    aside = f"{one}.aside"
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


def _exchange_at_once(one: str, other: str) -> bool:
    """Whether the system knows how to, and did."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(one), os.fsencode(other)
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, 2) == 0)  # RENAME_SWAP
        current = -100  # AT_FDCWD: relative paths count from the working directory
        return bool(library.renameat2(current, names[0], current, names[1], 2) == 0)  # EXCHANGE
    except (AttributeError, OSError, TypeError):
        return False


def refuse_foreign(url: str, keys: Iterable[str]) -> None:
    """Raise `DatasetExistsError` if there is anything among `keys`."""
    some = sorted(keys)[:3]
    if some:
        raise DatasetExistsError(
            url,
            f"is not empty ({', '.join(some)}, ...); mode='w' writes a dataset into it and leaves "
            "alone what does not belong to one",
        )
