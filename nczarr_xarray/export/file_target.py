"""One file as a target: it is made whole on this machine, and appears in one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nczarr_fsspec.changes.leftovers import remove_leftovers, replacing
from nczarr_fsspec.destination import FilePlace, open_file_place
from nczarr_fsspec.errors import DatasetExistsError, StoreError
from nczarr_fsspec.stores.write_directory import DirectoryWriter


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where one file is written.

    A file of this machine is made beside its place, and renamed. A remote one is made in the
    folder for temporary files, and uploaded when it is complete: there must be room for all of it.

    Parameters
    ----------
    place
        The place.
    overwrite
        Whether a file that is there is replaced.
    """

    place: FilePlace
    overwrite: bool

    @classmethod
    def find(
        cls, target: str, storage_options: Mapping[str, Any] | None, *, overwrite: bool
    ) -> FileTarget:
        """Find out where to write; errors as `nczarr_fsspec.destination.open_file_place`.

        Raises
        ------
        DatasetExistsError
            If there is something that must not be overwritten.
        """
        found = cls(open_file_place(target, storage_options), overwrite)
        found.check()
        return found

    @property
    def url(self) -> str:
        """How messages name the file."""
        return self.place.url

    def check(self) -> None:
        """Raise `DatasetExistsError` if there is something that must not be overwritten."""
        if not self.overwrite and self.place.exists():
            raise DatasetExistsError(self.url, "is there already; overwrite=True replaces it")

    def write(self, fill: Callable[[str], None]) -> None:
        """Write the file; an old one stays until the new one is complete.

        Parameters
        ----------
        fill
            Makes the file, given the path of one that does not exist.

        Raises
        ------
        DatasetExistsError
            If something has come there meanwhile that must not be overwritten.
        StoreError
            If it cannot be written.
        """

        def fill_and_check(path: str) -> None:
            fill(path)
            self.check()

        store = self.place.store
        if not isinstance(store, DirectoryWriter):
            try:
                store.put_file(self.place.name, fill_and_check)
            except OSError as error:  # of the temporary file: a disk is full, a folder is missing
                if isinstance(error, StoreError):
                    raise
                raise StoreError(self.url, f"cannot be made: {error}") from error
            return
        path = os.path.realpath(os.path.join(store.path, self.place.name))
        remove_leftovers(path)
        try:
            with replacing(path) as new:
                fill_and_check(new)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            reason = error.strerror or error
            raise StoreError(self.url, f"cannot be put into place: {reason}") from error
