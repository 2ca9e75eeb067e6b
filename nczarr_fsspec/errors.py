"""The exceptions of both packages: every one names the object and the cause."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class NCZarrError(Exception):
    """A dataset is damaged or missing, or cannot be reached.

    Parameters
    ----------
    obj
        The object at fault, as a user would name it: a URL, a key
        (``"g1/v/.zarray"``), a variable, an option.
    reason
        What is wrong with it and, where known, what to do next.

    Attributes
    ----------
    object, reason : str
        The two parts of the message.
    """

    object: str
    reason: str

    def __init__(self, obj: str, reason: str) -> None:
        super().__init__(f"{obj}: {reason}")
        self.object = obj
        self.reason = reason

    def found_in(self, dataset: str) -> None:
        """Add to the message which dataset or file the object is part of, unless it says so."""
        if dataset not in str(self):
            self.reason += f" (in {dataset})"

    def __reduce__(self) -> tuple[type[NCZarrError], tuple[Any, ...]]:
        return type(self), (self.object, self.reason)

    def __str__(self) -> str:
        return f"{self.object}: {self.reason}"


class FormatError(NCZarrError, ValueError):
    """The bytes were read, but they are not what the format prescribes."""


class PageError(FormatError):
    """A server has sent a web page in the place of data, as one does that wants a login."""


class UnsupportedError(FormatError):
    """The bytes are valid, but no installed package can read them."""


class URLError(NCZarrError, ValueError):
    """A target, a fragment or an option that cannot be understood."""


class UsageError(URLError):
    """An argument of a command that only the dataset shows to be wrong: the exit status is 2."""


class StoreError(NCZarrError, OSError):
    """The bytes could not be read: network, permission, damaged archive."""


class TooLargeError(StoreError, FormatError):
    """An object is larger than it can need to be; it was not read."""


def too_large(obj: str, most: int) -> TooLargeError:
    """Return the error for an object that may have `most` bytes."""
    return TooLargeError(
        obj,
        f"has more than {most} bytes, which is the limit (for a chunk it follows from the metadata "
        "of its array; for metadata the storage option max_metadata sets another)",
    )


def refuse_pointer(obj: str, data: Any) -> None:
    """Raise `FormatError` if the bytes of an object are a pointer of Git LFS to it."""
    if bytes(data[:23]) == b"version https://git-lfs":
        raise FormatError(obj, "is a pointer of Git LFS: git lfs pull gets the object itself")


class DatasetNotFoundError(StoreError, FileNotFoundError):
    """There is no dataset (or no such group) at the target."""


class ChangedError(StoreError):
    """There is another version of a file now than the one that was being read, or aggregated."""


class AccessDeniedError(StoreError, PermissionError):
    """A server refuses access or wants credentials; some servers do so for what does not exist.

    Also: a dataset names another that it may not name (`nczarr_fsspec.address_policy`).
    """


class RedirectError(AccessDeniedError):
    """A server redirects a request to where it may not go; any other would lead there, too."""


class DatasetExistsError(StoreError, FileExistsError):
    """Something is at the target already, and the caller did not ask to replace it."""


class IncompleteExportError(StoreError):
    """An export is unfinished: some of the chunks it is to store are missing."""


class ConflictError(StoreError):
    """Another writer is changing the same part of the dataset."""


class ExportError(NCZarrError, ValueError):
    """Something cannot be stored as it is; this is found before the first byte is written.

    Parameters
    ----------
    problems
        Everything that was found, for a list below the reason.

    Attributes
    ----------
    lines : tuple of str
        The message, line by line.
    """

    def __init__(self, obj: str, reason: str, problems: Iterable[str] = ()) -> None:
        problems = tuple(problems)
        super().__init__(obj, "\n  ".join((f"{reason}:" if problems else reason, *problems)))
        self._arguments = obj, reason, problems
        self.lines = (f"{obj}: {reason}:", *problems) if problems else (str(self),)

    def __reduce__(self) -> tuple[type[ExportError], tuple[Any, ...]]:
        return type(self), self._arguments


class NCZarrWarning(UserWarning):
    """Something was left out or repaired on opening, or is written in another form."""


class LossWarning(NCZarrWarning):
    """Something cannot be stored, and is left out or changed.

    Parameters
    ----------
    names
        What is lost: ``/path/variable``, ``/path/variable:attribute``, the text of an error about
        one. The message may have some of them only.
    """

    def __init__(self, message: str, names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


#: Packages whose lines say nothing to a user.
_OURS = frozenset(("contextlib", "nczarr_fsspec", "nczarr_xarray", "xarray"))


def caller_level() -> int:
    """Return the `stacklevel` by which a warning of the calling function names the user's code.

    In a thread of a pool there is none: then the outermost line is named.
    """
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as `warnings` does
    while frame.f_globals.get("__name__", "").partition(".")[0] in _OURS and frame.f_back:
        level, frame = level + 1, frame.f_back
    return level


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises anything, an interrupt too."""
    try:
        yield
    except BaseException:
        undo()
        raise
