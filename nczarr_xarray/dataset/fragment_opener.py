"""The seam between fragments and the opening of datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from nczarr_fsspec.keystore import OnLoop
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.formats.alike import MetadataPattern
from nczarr_xarray.model import Variable


class Opening(NamedTuple):
    """A fragment variable that was found.

    Attributes
    ----------
    reader
        Reads selections of it.
    variable
        Its metadata.
    alike
        Whether these are those of another file, which has the same.
    """

    reader: VariableReader
    variable: Variable
    alike: bool = False


class RemoteFragment(Protocol):
    """A remote file that is to be opened on its loop, with others at a time."""

    @property
    def source(self) -> OnLoop:
        """What runs coroutines on the loop."""

    def beside(self, name: str) -> RemoteFragment | None:
        """Return the same variable of another file in the folder, with the same options.

        Parameters
        ----------
        name
            Of the file; nothing in it is encoded in a URL.

        Returns
        -------
        None if that has to be found by `Opener.find`.
        """

    async def open(self, pattern: Callable[[], MetadataPattern | None]) -> Opening | None:
        """Open the variable; None if the file is of a kind that `Opener.open` opens.

        Parameters
        ----------
        pattern
            Returns the pattern that the file may have: then its metadata need not be parsed.
            Called once the first bytes of the file are there.

        Raises
        ------
        NCZarrError
            As `Opener.open`.
        """


class Opener(Protocol):
    """Opens variables of other datasets. Picklable."""

    def open(
        self,
        target: str,
        storage_options: Mapping[str, Any] | None,
        path: str,
        *,
        depth: int,
        entire: bool,
    ) -> Opening:
        """Open a variable.

        Parameters
        ----------
        path
            Of the variable, with its group.
        depth
            How many aggregations the dataset is in.
        entire
            Whether to read all metadata of its group; without, the variable may be shorter than
            its unlimited dimension, and the names of its dimensions need not be known.

        Raises
        ------
        NCZarrError
            If there is no such dataset, or it has no such variable.
        """

    def find(
        self, target: str, storage_options: Mapping[str, Any] | None, path: str, *, entire: bool
    ) -> RemoteFragment | None:
        """Find a variable in a remote file; None if the target is of another kind.

        Parameters
        ----------
        path, entire
            As of `open`.
        """
