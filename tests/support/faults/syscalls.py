"""What a writer asks of the operating system, watched or refused, in this process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import nczarr_fsspec.changes.create
import nczarr_fsspec.local_files
import nczarr_fsspec.stores.directory

#: Functions that change files, and those that read them, each with where it is looked up.
WRITES: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "write", "close", "fsync", "replace", "rename")),
    *((os, name) for name in ("link", "unlink", "rmdir", "mkdir")),
    (nczarr_fsspec.changes.create, "exchange"),
)
READS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "listdir", "scandir")),
    (nczarr_fsspec.stores.directory, "pread"),
    (nczarr_fsspec.local_files, "pread"),
    (nczarr_fsspec.local_files, "_pread_into"),
)


@contextlib.contextmanager
def watched(
    folder: Path,
    points: tuple[tuple[Any, str], ...],
    told: Callable[[str, tuple[Any, ...]], None],
) -> Iterator[None]:
    """Tell of each call of one of `points` for what is below `folder`, before it is made.

    Parameters
    ----------
    told
        Is called with the name of the function and its arguments. What it raises, the caller gets.
    """
    lock = threading.RLock()
    start = os.fspath(folder)
    inside = threading.local()

    def concerns(argument: Any) -> bool:
        if isinstance(argument, int):
            try:
                argument = os.readlink(f"/proc/self/fd/{argument}")
            except OSError:
                return False
        return isinstance(argument, (str, os.PathLike)) and os.fspath(argument).startswith(start)

    def watch(owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "it", False) or not args:
                return original(*args, **kwargs)
            inside.it = True
            try:
                if "dir_fd" in kwargs or concerns(args[0]):
                    with lock:
                        told(name, args)
            finally:
                inside.it = False
            return original(*args, **kwargs)

        return mock.patch.object(owner, name, call)

    with contextlib.ExitStack() as stack:
        for owner, name in points:
            stack.enter_context(watch(owner, name))
        yield
