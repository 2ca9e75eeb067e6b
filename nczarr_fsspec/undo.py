"""Undoing what was begun when the rest of it fails."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises anything, an interrupt too."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def temporary_file() -> Iterator[str]:
    """Yield a path where the block may make a file, in a new folder; both are removed then.

    That cannot fail for want of a descriptor, after whatever the file was made for is done.
    """
    folder = tempfile.mkdtemp(prefix="nczarr-")
    path = os.path.join(folder, "file")
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)
        with suppress(OSError):
            os.rmdir(folder)


def keep_access(old: str, new: str) -> None:
    """Give a file or directory the group and permissions of the one that it replaces.

    Raises
    ------
    OSError
        If there is none, or that is forbidden.
    """
    status = os.stat(old)
    if hasattr(os, "chown") and status.st_gid != os.stat(new).st_gid:
        with suppress(OSError):  # of a group that one is not in
            os.chown(new, -1, status.st_gid)
    os.chmod(new, stat.S_IMODE(status.st_mode))


@contextmanager
def whole_file(path: str, new: str) -> Iterator[str]:
    """Let a file become visible as a whole: the block makes it at `new`, then it is renamed.

    It has the permissions of the old one, if there is one.

    Parameters
    ----------
    path
        Where it is to be, and where an old one stays until then.
    new
        A path in the same folder. After an error nothing is left there.
    """

    def remove() -> None:
        with suppress(OSError, UnicodeEncodeError):
            os.unlink(new)

    with on_error(remove):
        yield new
        with suppress(OSError):  # there is none, as a rule
            if (
                os.path.lexists(path) and os.stat(new).st_nlink == 1
            ):  # else those of another file would change, too
                keep_access(path, new)
        os.replace(new, path)
        remove()  # of two links to one file, both are still there
