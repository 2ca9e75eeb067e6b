"""What a user asks for when a dataset is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_fsspec.errors import URLError

if TYPE_CHECKING:
    from nczarr_fsspec.address_policy import AddressPolicy, Allow


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a dataset.

    Parameters
    ----------
    group, tree, storage_options, consolidated, index_cache
        See `nczarr_xarray.open_hierarchy`.
    use_zarr_fill_value_as_mask
        See `nczarr_xarray.backend.entrypoint.NCZarrBackendEntrypoint`.
    anonymous_dimension_prefix
        See `nczarr_xarray.formats.nczarr.build.Naming`.
    replace
        See `nczarr_fsspec.address_policy.AddressPolicy.of`.
    allow
        See `nczarr_fsspec.address_policy.AddressPolicy.of`.
    depth
        How many aggregations the dataset is in.
    only
        The only variable of the group that is wanted, of which the names and the further
        length of dimensions do not matter. A format may return more.
    dropped
        Names of variables that are not wanted in any group, but read all the same: others may be
        understood by them.

    Raises
    ------
    URLError
        If the value of an option makes no sense.
    """

    group: str | None = None
    tree: bool = True
    storage_options: Mapping[str, Any] | None = None
    consolidated: bool | None = None
    use_zarr_fill_value_as_mask: bool | None = None
    anonymous_dimension_prefix: str = "_Anonymous_Dim_"
    index_cache: str | os.PathLike[str] | None = None
    replace: Mapping[str, str] | None = None
    allow: Allow = None
    depth: int = 0
    only: str | None = None
    dropped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not (self.group is None or isinstance(self.group, str)):
            raise URLError("group", f"must be a string or None, not {self.group!r}")
        given = self.storage_options
        if not (given is None or isinstance(given, Mapping)):  # not shown, as it may be a secret
            raise URLError("storage_options", f"must be a dict, not {type(given).__name__}")
        for option in ("use_zarr_fill_value_as_mask", "consolidated"):
            value = getattr(self, option)
            if not (value is None or isinstance(value, (bool, np.bool_))):
                raise URLError(option, f"must be True, False or None, not {value!r:.80}")
        prefix = self.anonymous_dimension_prefix
        if not isinstance(prefix, str):
            raise URLError("anonymous_dimension_prefix", f"must be a string, not {prefix!r}")
        folder = self.index_cache
        if not (folder is None or isinstance(folder, (str, os.PathLike))):
            raise URLError("index_cache", f"must be the path of a folder, not {folder!r}")

    @property
    def path(self) -> str:
        """The group wanted, without outer slashes; ``""`` for the root."""
        return (self.group or "").strip("/")

    @property
    def folder(self) -> Path | None:
        """The folder of `index_cache`."""
        return None if self.index_cache is None else Path(self.index_cache).expanduser()

    def policy(self, target: object, opened: object = None) -> AddressPolicy:
        """Return which of the addresses in a dataset may be opened, and what they mean.

        Parameters
        ----------
        target
            What the caller opens.
        opened
            The store or the file of it.
        """
        from nczarr_fsspec.address_policy import AddressPolicy  # most datasets have none
        from nczarr_fsspec.keystore import OnLoop

        source = getattr(opened, "source", opened)
        return AddressPolicy.of(
            target,
            replace=self.replace,
            allow=self.allow,
            storage_options=self.storage_options,
            led=source.led if isinstance(source, OnLoop) else "",
        )


#: What opens all of a dataset that needs no options.
EVERYTHING = OpenOptions()
