"""Symbolic links in a directory tree: those that lead out of it are refused."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import Any

from nczarr_fsspec.errors import StoreError

#: the storage option that follows all links
FOLLOW_OPTION = "follow_symlinks"
#: makes opening a symbolic link an error, which costs nothing; not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: what opening a link is answered with then: by Linux and macOS, by FreeBSD
_IS_LINK = frozenset({errno.ELOOP, errno.EMLINK})
#: folders that are remembered at most
_MOST_FOLDERS = 1 << 16


class Inside:
    """Opens files of one tree, and none that a symbolic link has put somewhere else.

    The root itself may be a link. Links that stay inside the tree are followed. Each folder is
    looked at once, when it is first used; a file is looked at whenever it is opened.

    Parameters
    ----------
    root
        Absolute path of the directory.
    follow
        Whether all links are followed.
    """

    __slots__ = ("_folders", "follow", "prefix", "root")

    def __init__(self, root: str, *, follow: bool) -> None:
        self.root = root
        self.prefix = root.rstrip("/") + "/"
        self.follow = follow
        self._folders: set[str] = {""}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Inside, self.root, follow=self.follow), ()

    def path(self, key: str) -> str:
        """Return the path of the file of `key`, whose folder is looked at.

        Raises
        ------
        StoreError
            If the folder is not inside.
        """
        if not self.follow:
            folder = key[: max(0, key.rfind("/"))]
            if folder not in self._folders:
                self.check(folder)
        return self.prefix + key

    def check(self, folder: str) -> None:
        """Raise `StoreError` if the folder at a key, or one above it, is not inside."""
        if self.follow:
            return
        end = -1
        while end < len(folder):
            end = folder.find("/", end + 1)
            end = len(folder) if end < 0 else end
            above = folder[:end]
            if above in self._folders:
                continue
            path = self.prefix + above
            try:
                kind = os.lstat(path).st_mode
            except (OSError, ValueError):
                return  # there is none, or its use will say what is wrong with it
            if stat.S_ISLNK(kind):
                self._resolve(path)
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders = {""}
            self._folders.add(above)

    def open(self, path: str, flags: int) -> int:
        """Open the file at a `path` of this tree.

        Raises
        ------
        StoreError
            If it is a link that leads out.
        OSError, ValueError
            If it cannot be opened.
        """
        if self.follow:
            return os.open(path, flags)
        if not _NO_LINK and os.path.islink(path):
            path = self._resolve(path)
        try:
            return os.open(path, flags | _NO_LINK)
        except OSError as error:
            if error.errno not in _IS_LINK:
                raise
        return os.open(self._resolve(path), flags | _NO_LINK)

    def holds(self, path: str) -> bool:
        """Tell whether what a link at `path` leads to is inside."""
        return self.follow or self._within(os.path.realpath(path))

    def _resolve(self, path: str) -> str:
        """Return where the link at `path` leads to."""
        real = os.path.realpath(path)
        if not self._within(real):
            raise StoreError(
                path,
                "is a symbolic link that leads out of the dataset; if whoever made it is to be "
                f"trusted, open the dataset with storage_options={{{FOLLOW_OPTION!r}: True}}",
            )
        return real

    def _within(self, real: str) -> bool:
        root = os.path.realpath(self.root)
        return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
