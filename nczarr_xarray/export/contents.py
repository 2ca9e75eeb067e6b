"""What is written: groups with their variables, and where the data of each come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nczarr_xarray.codecs.quantize import Rounding
from nczarr_xarray.export.stored_source import StoredSource
from nczarr_xarray.model import Group, Variable, join

if TYPE_CHECKING:
    import xarray as xr


class Item(NamedTuple):
    """A variable to write, and its data.

    Parameters
    ----------
    variable
        The variable to write, with its `ChunkedArray`.
    source
        The CF-encoded data, in memory or of dask; or data that are stored already.
    rounding
        The quantization that was asked for; None for none.
    chunks_are_asked_for
        Whether the user chose the chunks (if not, they were chosen for these blocks).
    """

    variable: Variable
    source: xr.Variable | StoredSource
    rounding: Rounding | None = None
    chunks_are_asked_for: bool = True


@dataclass(slots=True)
class Contents:
    """Groups to write, and the items in them.

    Attributes
    ----------
    root
        The model; of existing groups it has only the dimensions and what is new.
    """

    root: Group = field(default_factory=Group)
    items: list[Item] = field(default_factory=list)

    def group(self, path: str) -> Group:
        """Return the group at an absolute path; it is made with its parents if need be."""
        group = self.root
        for name in filter(None, path.split("/")):
            if name not in group.groups:
                group.groups[name] = Group(join(group.path, name))
            group = group.groups[name]
        return group
