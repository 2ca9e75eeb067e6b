"""The metadata documents of a tree, as far as a walk has read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nczarr_fsspec.errors import FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import Listing, Object
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.consolidated import Consolidated
from nczarr_xarray.formats.nczarr.jsontext import JSON, loads
from nczarr_xarray.formats.nczarr.spellings import GroupLists
from nczarr_xarray.formats.rounds import ReadRound

# -- nodes ---------------------------------------------------------------------------------------
# What is asked of a walk over the metadata, and the nodes that it found.


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


# -- documents -----------------------------------------------------------------------------------


#: Objects that most datasets do not have. For these, some servers answer 200 and a page.
_OPTIONAL = frozenset({*spellings.ROOT_FILES, ".zmetadata"}) - {".zgroup", ".zattrs"}
#: Those that datasets of Zarr 3 do not have.
_OPTIONAL_V3 = _OPTIONAL | {".zgroup", ".zattrs"}
_V3 = "zarr.json"


class Documents:
    """What was read, each object once: from the objects, or from consolidated metadata.

    Attributes
    ----------
    found
        Documents by key; None if there is none, the error if it cannot be read.
    listed
        The names below each prefix that was asked for.
    """

    def __init__(self) -> None:
        self.found: dict[str, JSON | NCZarrError] = {}
        self.listed: dict[str, Listing] = {}
        self._consolidated: Consolidated | None = None

    async def load(self, keys: Iterable[str], prefixes: Iterable[str] = ()) -> None:
        """Read what is asked for and not there yet, in one read round."""
        new_keys = tuple(dict.fromkeys(k for k in keys if k not in self.found))
        new_prefixes = tuple(dict.fromkeys(p for p in prefixes if p not in self.listed))
        consolidated = self._consolidated
        if consolidated is not None:
            self.found.update((key, consolidated.documents.get(key)) for key in new_keys)
            self.listed.update((p, consolidated.children(p)) for p in new_prefixes)
        elif new_keys or new_prefixes:
            answer = await ReadRound(new_keys, new_prefixes)
            objects = dict(zip(new_keys, answer.objects, strict=True))
            version3 = isinstance(root := objects.get(_V3), bytes) and not _is_page(root)
            optional = _OPTIONAL_V3 if version3 else _OPTIONAL
            for key, data in objects.items():
                self.found[key] = None if key in optional and _is_page(data) else _parse(key, data)
            self.listed.update(zip(new_prefixes, answer.listings, strict=True))

    def of(self, path: str, files: Iterable[str]) -> dict[str, JSON]:
        """Return the documents of one node; raise the error of the first that could not be read."""
        found: dict[str, JSON] = {}
        for file in files:
            document = self.found.get(key_of(path, file))
            if isinstance(document, NCZarrError):
                raise document
            if document is not None:
                found[file] = document
        return found

    def use(self, consolidated: Consolidated) -> dict[str, JSON]:
        """Take everything from consolidated metadata from now on; return the root's documents."""
        self._consolidated = consolidated
        self.listed.clear()
        self.found.clear()
        return {
            file: consolidated.documents[file]
            for file in spellings.ROOT_FILES
            if file in consolidated.documents
        }


def key_of(path: str, name: str) -> str:
    """Return the key of an object, or the path of a node, in the group at `path`."""
    return f"{path}/{name}" if path else name


def _is_page(data: Object) -> bool:
    """Tell whether a server answered with a page, in HTML."""
    return isinstance(data, bytes) and data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _parse(key: str, data: Object) -> JSON | NCZarrError:
    if data is None or isinstance(data, StoreError):
        return data
    try:
        document = loads(data, key)
    except FormatError as error:
        return error
    if key.rpartition("/")[2] == ".zgroup":  # without it, anything would be an empty group
        version = document.get("zarr_format") if isinstance(document, dict) else None
        if version not in ("2", "2.0"):
            return FormatError(key, "is not that of a Zarr 2 group: its zarr_format is not 2")
    return document
