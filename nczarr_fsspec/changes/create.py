"""Writing a dataset that is invisible until it is complete: trees, archives, object stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from nczarr_fsspec.changes.edit import OVER, Change, Edit, Lock, conflict
from nczarr_fsspec.changes.journal import (
    COVER,
    HELD,
    INCOMPLETE,
    JOURNAL,
    ROOT,
    STAGED,
    WRITERS,
    Incomplete,
    dataset_keys,
    removable,
)
from nczarr_fsspec.changes.leftovers import (
    leftovers,
    partial_path,
    remove_leftovers,
    remove_partial,
)
from nczarr_fsspec.changes.recovery import pending_in
from nczarr_fsspec.changes.resumption import PLAN, WORK, Resumption
from nczarr_fsspec.errors import ConflictError, DatasetExistsError, StoreError, on_error
from nczarr_fsspec.keystore import ZARR_METADATA, WritableStore
from nczarr_fsspec.local_files import exchange, keep_access
from nczarr_fsspec.stores.ownership import AT_WORK, Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter

#: Objects at the root that show that there is a dataset.
ROOTS = ZARR_METADATA | {".nczarr", JOURNAL}


@dataclass(frozen=True, slots=True)
class NewTree(Change):
    """A directory tree, built beside its place and then renamed, or packed into an archive.

    A mark in the tree shows that this has not been done yet.

    Attributes
    ----------
    path
        The path of the dataset, where there is nothing, an empty directory, or a
        dataset to replace. How messages name the archive.
    partial
        The directory where the tree is built. Its existence keeps other writers out.
    old
        The lock on a dataset that is to be replaced.
    resumption
        The work, if it can be continued.
    pack
        Takes the path of the tree and the keys to leave out of the old archive;
        puts the new archive into place, atomically. None: the tree is renamed.
    """

    path: str
    partial: str
    old: Edit | None = None
    resumption: Resumption | None = None
    pack: Callable[[str, frozenset[str]], None] | None = None

    @classmethod
    def begin(
        cls, path: str, resumption: Resumption | None = None, *, follow_symlinks: bool = False
    ) -> NewTree:
        """Make the directory in which the tree is built, or take one over.

        Parameters
        ----------
        resumption
            The work, which another process may have begun.
        follow_symlinks
            Whether symbolic links may lead out of a dataset that is replaced.

        Raises
        ------
        ConflictError
            If another writer is at work there.
        StoreError
            If it cannot be made.
        """
        partial = partial_path(path)
        tree = cls(path, partial, resumption=resumption)
        with on_error(tree.abort):
            try:
                if resumption is None or not _take_over(path, partial, resumption):
                    os.makedirs(partial)
            except OSError as error:
                reason = f"cannot be written: nothing can be made beside it ({error.strerror})"
                raise StoreError(path, reason) from error
            remove_leftovers(path)
            for other, owner in leftovers(path):
                if other != partial:
                    raise conflict(path, owner, "is writing to it")
            _mark(tree.staged)
            if not os.path.isdir(path):
                return tree
            with suppress(OSError):
                keep_access(path, partial)
            try:
                if not os.listdir(path):
                    return tree
            except OSError as error:
                raise StoreError(path, f"cannot be listed: {error.strerror}") from error
            old = DirectoryWriter(path, follow_symlinks=follow_symlinks)
            return replace(tree, old=Edit.begin(old))

    def packed(self, url: str, pack: Callable[[str, frozenset[str]], None]) -> NewTree:
        """Return the change that makes an archive of the tree, whose directory exists."""
        archive = replace(self, path=url, pack=pack)
        with on_error(archive.abort):
            _mark(archive.staged)
        return archive

    @property
    def staged(self) -> WritableStore:
        return DirectoryWriter(self.partial, atomic=False)

    def _publish(
        self, removed: frozenset[str], expected: int | None, pending: Incomplete | None
    ) -> None:
        staged = self.staged
        if pending_in(staged) is None:  # it was removed, and late blocks have made it anew
            remove_partial(self.partial)
            raise StoreError(self.path, OVER)
        if self.pack is not None:
            self.pack(self.partial, removed)
            remove_partial(self.partial)
            return
        if pending is None:
            staged.delete([INCOMPLETE])
        else:
            staged.put(INCOMPLETE, pending.dump())
            staged.move([(ROOT, HELD)])
            staged.put(ROOT, COVER)
        try:
            if self.old is None:
                os.rename(self.partial, self.path)
            else:
                self._replace(self.old, pending)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(self.path, f"cannot be put into place: {error.strerror}") from error
        if self.resumption is not None:
            tree = DirectoryWriter(self.path)
            with suppress(StoreError):  # notes of what is complete mean nothing
                tree.delete(tree.keys_below(WORK))
        if self.old is not None:
            self.old.abort()
        remove_partial(self.partial)  # it is the old tree now

    def _replace(self, old: Edit, pending: Incomplete | None) -> None:
        """Exchange the two trees, or else put each new object in place of an old one."""
        keys = old.store.keys_below("")
        owned = dataset_keys(keys)
        old.lock.check()
        if len(owned) < len(keys) or not exchange(self.partial, self.path):
            staged = os.path.join(self.path, STAGED)
            os.makedirs(staged, exist_ok=True)
            os.rename(self.partial, os.path.join(staged, old.lock.transaction))
            if pending is not None:
                old.staged.move([(HELD, ROOT)])  # the journal covers it
            old.commit(removable(owned), pending=pending)

    def abort(self) -> None:
        if self.old is not None:
            self.old.abort()
        _give_up(self.partial, self.resumption)


@dataclass(frozen=True, slots=True)
class NewObjects(Change):
    """Objects where there were none; a mark keeps readers out until all of them are there."""

    lock: Lock
    resumption: Resumption | None = None

    @classmethod
    def begin(cls, store: WritableStore, resumption: Resumption | None = None) -> NewObjects:
        """Remove what an unfinished export has left, unless it is continued, and put the mark.

        Raises
        ------
        ConflictError
            If another writer is at work there, or has just written a dataset.
        StoreError
            If the store cannot be written.
        """
        lock = Lock.acquire(store)
        with on_error(lock.release):
            left = store.keys_below("")
            mark = pending_in(store) if INCOMPLETE in left else None
            if (mark is None or mark.pending is not None) and ROOTS.intersection(left):
                raise ConflictError(
                    store.url, "another writer has written a dataset just now; look at it first"
                )
            # work to continue is that of a process that has ended here
            left_by_dead = mark is not None and mark.owner.has_left(mark.name)
            if not (left_by_dead and resumption is not None and resumption.continues(store)):
                _clear(store, [key for key in left if key != ROOT])
            store.put(INCOMPLETE, Incomplete(Owner.here(), name=lock.transaction).dump())
            store.put(ROOT, COVER)
        return cls(lock, resumption)

    @property
    def staged(self) -> WritableStore:
        return self.lock.store

    def _publish(
        self, removed: frozenset[str], expected: int | None, pending: Incomplete | None
    ) -> None:
        assert pending is None, "readers that do not know the mark would find fill values"
        self.lock.check()
        notes = [] if self.resumption is None else self.staged.keys_below(WORK)
        self.staged.delete(removed)
        self.staged.delete([*notes, INCOMPLETE])
        self.lock.release()

    def is_there(self) -> bool:
        """Tell whether this export has not ended yet, as its mark shows."""
        mark = pending_in(self.staged)
        return mark is not None and mark.name == self.lock.transaction

    def abort(self) -> None:
        store, resumption = self.staged, self.resumption
        with suppress(StoreError):  # if this fails, the mark stays and keeps readers out
            # without our mark, all of it is valid, or is another writer's by now
            if self.is_there() and (resumption is None or not resumption.continues(store)):
                _clear(store, store.keys_below(""))
                store.delete([INCOMPLETE])
        self.lock.release()


def _clear(store: WritableStore, keys: Iterable[str]) -> None:
    """Remove those of `keys` that belong to a dataset or are left of an export.

    Locks and the mark stay. The plan goes first: what is noted of it holds only while all is there.
    """
    ours = [
        key for key in dataset_keys(keys) if key != INCOMPLETE and not key.startswith(f"{WRITERS}/")
    ]
    store.delete(key for key in ours if key == PLAN)
    store.delete(ours)


def _mark(tree: WritableStore) -> None:
    """Put a mark into a tree that is being written, by which it is told from what is left of it."""
    tree.put(INCOMPLETE, Incomplete(Owner.here()).dump())


def _take_over(path: str, ours: str, resumption: Resumption) -> bool:
    """Make the directory that a dead writer has left ours, if it did the same work."""
    for other, owner in leftovers(path):
        left = owner.has_left(os.path.basename(other)) and os.path.isdir(other)
        with suppress(OSError):  # another process may take it over, too
            if left and resumption.continues(DirectoryWriter(other, atomic=False)):
                os.rename(other, ours)
                return True
    return False


def _give_up(partial: str, resumption: Resumption | None) -> None:
    """Remove a tree that was not completed, unless it holds work to continue."""
    with suppress(StoreError):  # what cannot be read now may be of use later
        if resumption is None or not resumption.continues(DirectoryWriter(partial, atomic=False)):
            remove_partial(partial)
    AT_WORK.discard(os.path.basename(partial))


def can_be_renamed(path: str) -> bool:
    """Tell whether a directory can be renamed to `path`, as far as that can be checked."""
    if not os.path.isdir(path):
        return True
    return not os.path.ismount(path) and os.access(os.path.dirname(path), os.W_OK | os.X_OK)


def refuse_foreign(url: str, keys: Iterable[str]) -> None:
    """Raise `DatasetExistsError` if there is anything among `keys`."""
    some = sorted(keys)[:3]
    if some:
        raise DatasetExistsError(
            url,
            f"is not empty ({', '.join(some)}, ...); mode='w' writes a dataset into it and leaves "
            "alone what does not belong to one",
        )
