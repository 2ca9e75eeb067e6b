"""What is asked of a walk over the metadata, and the nodes that it found."""

from __future__ import annotations

from dataclasses import dataclass, field

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.nczarr.consolidated import Consolidated
from nczarr_xarray.formats.nczarr.jsontext import JSON
from nczarr_xarray.formats.nczarr.spellings import GroupLists


@dataclass(frozen=True, slots=True)
class WalkOptions:
    """Options of a walk.

    Parameters
    ----------
    group
        Path of the group wanted, ``""`` for the root.
    tree
        Whether all groups below `group` are wanted too.
    pure
        Ignore NCZarr's structure (netCDF-C's ``mode=zarr``).
    consolidated
        True: ``.zmetadata`` is trusted. False: it is not looked at. None: it is
        used if it agrees with the root objects, or if no group and no array has
        metadata of its own.
    required
        For True: whether a missing ``.zmetadata`` is an error. If not, it is a problem,
        and the separate objects are read (netCDF-C's ``mode=consolidated``).
    remote
        Whether each round takes long. If so, ``.zmetadata`` is tried
        for None, and listings are requested before it is known that they are needed.
    """

    group: str
    tree: bool
    pure: bool
    consolidated: bool | None
    required: bool
    remote: bool


@dataclass(slots=True)
class GroupNode:
    """A group as found: its documents, NCZarr's lists if they count, and its children."""

    path: str
    documents: dict[str, JSON]
    lists: GroupLists | None = None
    arrays: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(slots=True)
class Nodes:
    """Everything a walk found.

    Attributes
    ----------
    generation
        ``"G1"`` ... ``"G2A"``, ``"v2"`` for pure Zarr, ``"v3"`` if the root is
        Zarr 3 (then nothing else is filled in).
    consolidated
        The consolidated metadata, if they were used.
    complete
        Whether they are all the metadata there are.
    groups, arrays
        Documents by path without leading slash, parents first. An array
        whose documents cannot be read has the error in their place.
    problems
        The reasons why groups were left out.
    """

    generation: str = "v2"
    writer: str | None = None
    consolidated: Consolidated | None = None
    complete: bool = False
    groups: dict[str, GroupNode] = field(default_factory=dict)
    arrays: dict[str, dict[str, JSON] | NCZarrError] = field(default_factory=dict)
    problems: list[NCZarrError] = field(default_factory=list)
