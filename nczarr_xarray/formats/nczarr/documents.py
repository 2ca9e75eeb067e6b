"""The metadata documents of a tree, as far as a walk has read them: objects, or consolidated ones.

netCDF-C does not rewrite ``.zmetadata`` when it updates a dataset, and reads it
without a check. So it is compared with the root objects before it is used, and each array's own
``.zarray`` is compared when its data are read (`nczarr_xarray.dataset.open`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError, StoreError
from nczarr_fsspec.keystore import Listing, Object
from nczarr_xarray.formats.nczarr import spellings
from nczarr_xarray.formats.nczarr.jsontext import JSON, Number, loads, same
from nczarr_xarray.formats.nczarr.spellings import GroupLists
from nczarr_xarray.formats.rounds import ReadRound
from nczarr_xarray.model import HarmlessError

KEY = ".zmetadata"
#: Documents that every dataset of Zarr 2 may have.
_FILES = frozenset({*spellings.GROUP_FILES, *spellings.ARRAY_FILES})


@dataclass(frozen=True, slots=True)
class Consolidated:
    """All metadata documents of a dataset by key, and the children of each prefix.

    A member that is no document is replaced by its error.
    """

    documents: Mapping[str, JSON]
    tree: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, document: JSON) -> Consolidated:
        """Parse ``.zmetadata``.

        Raises
        ------
        FormatError
            If it is not consolidated metadata of Zarr 2.
        """
        if not isinstance(document, dict):
            raise FormatError(KEY, "is not a JSON object")
        if document.get("zarr_consolidated_format") != Number(1):
            raise FormatError(KEY, "zarr_consolidated_format is not 1")
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or not metadata:
            raise FormatError(KEY, "'metadata' is not an object with members")
        documents: dict[str, JSON] = {}
        tree: dict[str, set[str]] = {}
        for name, value in metadata.items():
            key = name.lstrip("/")
            if key.count("/") > spellings.MAX_DEPTH:
                raise FormatError(KEY, f"the key {key:.80}... is nested too deeply")
            if not isinstance(value, dict):
                value = FormatError(f"{KEY} {key}", "is not a JSON object")
                if "/" not in key:
                    raise value
            documents[key] = value
            parts = key.split("/")
            for i, part in enumerate(parts):
                tree.setdefault("/".join(parts[:i]), set()).add(part)
        return cls(documents, {prefix: frozenset(names) for prefix, names in tree.items()})

    def children(self, prefix: str) -> frozenset[str]:
        """Return the names directly below `prefix`."""
        return self.tree.get(prefix, frozenset())

    def check(self, root: Mapping[str, JSON], listing: Listing, *, trusted: bool) -> None:
        """Compare the document with the root objects themselves.

        Parameters
        ----------
        root
            The root documents as the store holds them.
        listing
            Names below the root, None where the store cannot list.
        trusted
            Whether the user trusts it: then only a loss of NCZarr's structure is refused.

        Raises
        ------
        FormatError
            If it does not describe the dataset.
        """
        if spellings.detect(root) and not spellings.detect(self.documents):
            raise FormatError(KEY, "lacks the NCZarr keys of .zgroup (written by another tool?)")
        if trusted:
            return
        for file in spellings.GROUP_FILES:
            # a store may hold nothing but .zmetadata and chunks
            if file in root and not same(root[file], self.documents.get(file)):
                raise FormatError(KEY, f"is stale: {file} has changed since it was written")
        if isinstance(listing, frozenset):
            there = {name for name in listing if not name.startswith(".")}
            named = {name for name in self.children("") if not name.startswith(".")}
            if there != named:
                names = ", ".join(sorted(there ^ named)[:5])
                raise FormatError(KEY, f"is stale: it and the store differ in {names}")


def only_copies(
    data: bytes, documents: Mapping[str, bytes], broken: Collection[str] = ()
) -> list[str]:
    """Return the documents that only ``.zmetadata`` has, though their node has others.

    Parameters
    ----------
    data
        ``.zmetadata`` as it is stored; damaged one has none.
    documents
        All documents of the dataset.
    broken
        Paths of arrays that cannot be read by their own documents.
    """
    try:
        known = Consolidated.parse(loads(data, KEY)).documents
    except FormatError:
        return []
    nodes = {key.rpartition("/")[0] for key in documents}
    found = []
    for key, document in known.items():
        node, _, name = key.rpartition("/")
        if document and node in nodes and name in _FILES:
            lost = node in broken and not _is(document, documents.get(key, b""))
            if lost or key not in documents:
                found.append(key)
    return sorted(found)


def _is(document: JSON, data: bytes) -> bool:
    """Tell whether an object has the content of a document."""
    try:
        return same(document, loads(data, KEY))
    except FormatError:
        return False


def lost_copies(keys: Collection[str]) -> str:
    """Return the reason why metadata cannot be written that would end the only copies of some."""
    return (
        f"{', '.join(keys)}: only {KEY} has this, and it would be lost: write it under its own "
        "key, or remove it there (nczarr validate says more)"
    )


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


# -- strangers -------------------------------------------------------------------------------------
# Warnings about what is opened as a hierarchy: objects that are no nodes, and no root.


#: Objects that make a group or an array, by Zarr's version.
_NODES = {2: frozenset({".zgroup", ".zarray"}), 3: frozenset({"zarr.json"})}
_NETCDF = (".nc", ".nc4", ".cdf", ".netcdf", ".h5", ".hdf5", ".he5")
#: Folders of a repository of Icechunk.
ICECHUNK = frozenset({"snapshots", "transactions"})
_SHOWN = 5


def no_metadata(where: str, names: Iterable[str]) -> DatasetNotFoundError:
    """Return the error for a folder that is no dataset, with what to do about its `names`."""
    names = set(names)
    name = where.lower()
    files = sorted(name for name in names if name.lower().endswith(_NETCDF))
    hint = ""
    if names >= ICECHUNK:
        hint = (
            "; this may be a repository of Icechunk: open it with icechunk, and give the store of "
            "a session, such as repository.readonly_session('main').store"
        )
    elif files and name.endswith(".zip"):
        hint = f"; it holds netCDF files ({first(files)}): open zip://{files[0]}::{where}"
    elif name.endswith(_NETCDF):
        hint = "; if this is one netCDF file, leave the mode out, or write #mode=bytes"
    elif files:
        hint = (
            f"; it holds netCDF files ({first(files)}): name one of them, or make one dataset "
            "of them with `nczarr aggregate`"
        )
    reason = f"no Zarr metadata found (.zgroup, .zattrs, .nczarr, .zmetadata, zarr.json){hint}"
    return DatasetNotFoundError(where, reason)


def about_strangers(
    where: str, listings: Iterable[tuple[str, Listing]], zarr_format: int
) -> Iterator[FormatError]:
    """Yield errors that name what was left out of a hierarchy: objects that are no nodes of it.

    Parameters
    ----------
    where
        Names the dataset.
    listings
        Path of each such member of a group, and the names below it. A member without names
        below it is a file, and ignored.
    zarr_format
        Version of the hierarchy.
    """
    other = 5 - zarr_format
    foreign: list[str] = []
    bare: list[str] = []
    for path, names in listings:
        if isinstance(names, frozenset) and names:
            (bare if _NODES[other].isdisjoint(names) else foreign).append(f"'/{path}'")
    if foreign:
        yield FormatError(
            where,
            f"{_some(foreign)} left out, of Zarr {other} inside of Zarr {zarr_format}: "
            "open what is there by its own path",
        )
    if bare:
        expected = " or ".join(sorted(_NODES[zarr_format], reverse=True))
        yield FormatError(
            where,
            f"{_some(bare)} left out, without {expected}: if groups or arrays are in there, "
            "open them by their own path",
        )


def only_groups(where: str, names: Iterable[str]) -> HarmlessError:
    """Return the warning for a folder of datasets that is opened as if it were one."""
    return HarmlessError(
        where,
        "has no variables and no metadata of its own, only the groups "
        f"{first([repr(name) for name in names])}: open one of them by its own path, or all "
        "with xr.open_groups",
    )


def _some(paths: list[str]) -> str:
    return f"{first(paths)} {'is' if len(paths) == 1 else 'are'}"


def first(names: list[str]) -> str:
    """Return the first names of a list for a message, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
