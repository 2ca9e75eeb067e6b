"""The tree of an HDF5 file: groups, their datasets and datatypes, read in the same rounds.

A group stores its links in one of several ways (specification III.A, III.B, IV). Every object is
read once, even if several links lead to it. Then the links are followed again to build the tree,
where the object is under each of its names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from nczarr_fsspec.errors import DatasetNotFoundError, NCZarrError
from nczarr_fsspec.text import did_you_mean
from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.attributes import Attributes, H5Attribute, read_attributes
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.btrees import read_nodes1
from nczarr_xarray.formats.hdf5.datasets import H5Dataset, H5NamedType, read_dataset
from nczarr_xarray.formats.hdf5.heaps import LocalHeap, read_dense, read_local_heap
from nczarr_xarray.formats.hdf5.messages import (
    Link,
    SharedMessages,
    decode_dense,
    decode_link,
    decode_symbol_table,
)
from nczarr_xarray.formats.rounds import Once, both, together


@dataclass(slots=True)
class H5Group:
    """A group. `members` are in the order netCDF-C lists them: of creation if kept, else of name.

    A member that cannot be read, or a link that leads nowhere, is its error.
    `loaded` is False for a group that was not asked for: then it has no members.
    """

    name: str
    address: int
    attributes: dict[str, H5Attribute]
    loaded: bool
    problems: tuple[NCZarrError, ...]
    members: dict[str, H5Group | H5Dataset | H5NamedType | NCZarrError] = field(
        default_factory=dict
    )


# -- links -----------------------------------------------------------------------------------------


#: B-tree nodes and symbol table nodes of the usual widths.
_FIRST_READ = 1024
#: Types of B-tree records, and where they have the heap identifier: behind a hash, an order.
_LINK_RECORDS = {5: 4, 6: 8}
_CACHED_LINK = 2
_DENSE = partial(decode_dense, order_size=8)


async def read_links(header: oh.Header) -> tuple[list[Link], bool]:
    """Read the links of a group.

    Returns
    -------
    The links, and whether the group keeps the order of their creation.

    Raises
    ------
    FormatError
        If they are damaged.
    """
    table = header.first(oh.SYMBOL_TABLE)
    if table is not None:
        frame, what = header.frame, header.what
        tree, heap = header.decoded(decode_symbol_table, table, "symbol table")
        names, entries = await both(read_local_heap(frame, heap, what), _entries(frame, tree, what))
        return [_old_link(Cursor(entry, frame, what), names) for entry in entries], False
    links = [header.decoded(decode_link, one, "link") for one in header.all(oh.LINK)]
    info = header.first(oh.LINK_INFO)
    if info is None:  # the path of a soft link leads through a dataset, say
        return links, False
    dense = header.decoded(_DENSE, info, "link information")
    if dense.heap is not None and dense.tree is not None:
        what = f"{header.what}, links"
        store, kind, records = await read_dense(
            header.frame, dense.heap, dense.tree, _LINK_RECORDS, what
        )
        start = _LINK_RECORDS[kind]
        bodies = await store.objects([record[start : start + store.id_size] for record in records])
        links += [decode_link(Cursor(body, header.frame, what)) for body in bodies]
    return links, dense.ordered


def _old_link(cursor: Cursor, names: LocalHeap) -> Link:
    offset, address, cached, target = cursor.unpack("LAI4xI")
    name = names.name(offset)
    if cached == _CACHED_LINK:
        return Link(name, target=names.name(target))
    return Link(name, address=cursor.frame.known(address))


async def _entries(frame: Frame, address: int, what: str) -> list[bytes]:
    """Return the entries of all symbol tables of a B-tree in order; each level is one round."""
    entry = frame.layout("LA")  # a key: where the first name is in the heap; a child
    level, wanted = None, [address]
    seen, count = {address}, 1
    while level != 0 and wanted:
        below = None if level is None else level - 1
        nodes = await read_nodes1(frame, wanted, 0, frame.length_size, below, what)
        level = nodes[0][0]
        children = (
            child for _, entries in nodes for _, child in entry.iter_unpack(entries[: -entry.size])
        )
        wanted = [frame.within(frame.known(child), 8, what) for child in children]
        seen.update(wanted)
        count += len(wanted)
        if len(seen) < count:
            raise frame.error(f"{what}, B-tree at {address}", "a node is in it twice")
    tables = await together(_table(frame, child, what) for child in wanted)
    return [entry for table in tables for entry in table]


async def _table(frame: Frame, address: int, what: str) -> list[bytes]:
    """Return the entries of a symbol table node."""
    what = f"{what}, symbol table at {address}"
    block = await frame.read_some(address, _FIRST_READ)
    cursor = Cursor(block, frame, what)
    cursor.expect(b"SNOD", 1)
    (count,) = cursor.unpack("xH")
    size = frame.length_size + frame.offset_size + 24
    stop = 8 + count * size
    frame.within(address, stop, what)
    data = bytes(block if stop <= len(block) else await frame.read(address, stop))
    return [data[at : at + size] for at in range(8, stop, size)]


# -- tree ------------------------------------------------------------------------------------------


#: Nesting of groups, at most.
_DEEPEST = 500
#: Soft links that a soft link may lead to; libhdf5 has the same limit.
_MOST_LINKS = 16
#: Further names of objects in the tree, at most.
_MOST_REPEATED = 100_000


async def read_tree(
    frame: Frame, root: int, path: str = "", tree: bool = True, only: Collection[str] = ()
) -> H5Group:
    """Read the groups along a path with their datasets, and what is below the last.

    Parameters
    ----------
    frame, root
        As `nczarr_xarray.formats.hdf5.header.read_superblock` returns them.
    path
        Path of the group wanted (``"g1/g2"``); ``""`` for the root.
    tree
        Whether everything below that group is wanted too.
    only
        Names of the members of that group that are wanted, without its attributes; empty for all.

    Returns
    -------
    The root group. Groups that were not asked for have ``loaded=False``. In place of a member
    that cannot be read is the error.

    Raises
    ------
    DatasetNotFoundError
        If there is no such group.
    FormatError
        If a group along the path is damaged.
    """
    names = tuple(filter(None, path.split("/")))
    reading = _Reading(frame, root, only)
    await reading.visit(root, _Wanted("/", names, tree))
    group = reading.build()
    found: object = group
    for depth, name in enumerate(names):
        assert isinstance(found, H5Group)
        members = found.members
        found = members.get(name)
        if isinstance(found, NCZarrError):
            raise found
        if not isinstance(found, H5Group):
            which = "/" + "/".join(names[: depth + 1])
            if found:
                raise DatasetNotFoundError(frame.url, f"{which} is no group")
            groups = [name for name, item in members.items() if isinstance(item, H5Group)]
            raise DatasetNotFoundError(frame.url, f"no group {which!r}{did_you_mean(name, groups)}")
    return group


@dataclass(slots=True)
class _Child:
    """A link of a group, and the object that it leads to."""

    link: Link
    name: str
    found: int | NCZarrError


@dataclass(slots=True)
class _Group:
    """A group as read; `children` is None if its links have not been asked for."""

    address: int
    attributes: Attributes = field(default_factory=lambda: Attributes({}, []))
    children: list[_Child] | None = None
    tracks_order: bool = False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is wanted of an object, if it is a group.

    Attributes
    ----------
    path
        For messages.
    ahead
        Names of the groups to visit below this one; ``()`` if this is the
        one that was asked for, None if this is not on the way to it.
    tree
        Whether to visit all groups below the one that was asked for.
    depth
        How many groups it is in.
    """

    path: str
    ahead: tuple[str, ...] | None
    tree: bool
    depth: int = 0

    def of(self, name: str) -> _Wanted:
        """Return what is wanted of a member."""
        further = self.ahead[1:] if self.ahead and self.ahead[0] == name else None
        if further is None and self.tree and not self.ahead:
            further = ()
        return _Wanted(f"{self.path.rstrip('/')}/{name}", further, self.tree, self.depth + 1)


class _Reading:
    """Reads objects by their addresses, and builds the tree of them."""

    def __init__(self, frame: Frame, root: int, only: Collection[str]) -> None:
        self.frame = frame
        self.root = root
        self.only = only
        self.shared = SharedMessages(frame)
        self.objects: dict[int, _Group | H5Dataset | H5NamedType | NCZarrError] = {}
        #: by address of the group: its links by name, and the part that reads them
        self._links: dict[int, dict[bytes, Link]] = {}
        self._coming: dict[int, Once[None]] = {}
        self._started: set[tuple[int, tuple[str, ...] | None, bool]] = set()

    async def visit(self, address: int, wanted: _Wanted) -> None:
        """Read an object, and what is wanted below it; add them to `objects`."""
        key = (address, wanted.ahead, wanted.tree)
        if key in self._started:
            return
        self._started.add(key)
        try:
            if wanted.depth > _DEEPEST:
                reason = f"groups within groups, more than {_DEEPEST} deep"
                raise self.frame.error(wanted.path, reason)
            header = await oh.read_header(self.frame, address, wanted.path)
            if header.first(oh.LINK_INFO) or header.first(oh.SYMBOL_TABLE):
                await self._visit_group(header, wanted)
            elif header.first(oh.DATATYPE):
                self.objects[address] = await read_dataset(header, self.shared)
            else:
                raise self.frame.error(header.what, "neither a group nor a dataset nor a datatype")
        except NCZarrError as error:
            self.objects[address] = error

    async def _visit_group(self, header: oh.Header, wanted: _Wanted) -> None:
        if wanted.ahead is None:
            self.objects.setdefault(header.address, _Group(header.address))
            return
        group = _Group(header.address, children=[])
        self.objects[header.address] = group
        members = self._visit_members(header, group, wanted)
        if self.only:
            await members
        else:
            group.attributes, _ = await both(read_attributes(header, self.shared), members)

    async def _visit_members(self, header: oh.Header, group: _Group, wanted: _Wanted) -> None:
        links, group.tracks_order = await read_links(header)
        self._links[header.address] = {link.name: link for link in links}
        group.children = _children(links, header)
        if self.only:
            names = (wanted.ahead or ())[:1] or self.only
            group.children = [child for child in group.children if child.name in names]
        await together(
            self._member(header.address, child, wanted.of(child.name)) for child in group.children
        )

    async def _member(self, group: int, child: _Child, wanted: _Wanted) -> None:
        try:
            child.found = await self._follow(group, child.link, wanted.path)
        except NCZarrError as error:
            child.found = error
        else:
            await self.visit(child.found, wanted)

    async def _follow(self, group: int, link: Link, path: str) -> int:
        """Return the address of the object that a link of `group` leads to."""
        steps = 0
        ahead: list[bytes] = []
        address = group
        while True:
            if link.elsewhere:
                raise self.frame.error(path, link.elsewhere)
            if link.target is None:
                if link.address is None:
                    raise self.frame.error(path, "a link that leads nowhere")
                address = link.address
            else:
                steps += 1
                if steps > _MOST_LINKS:
                    raise self.frame.error(path, f"more than {_MOST_LINKS} links in a row")
                if link.target.startswith(b"/"):
                    address = self.root
                names = [name for name in link.target.split(b"/") if name not in (b"", b".")]
                ahead = names + ahead
            if not ahead:
                return address
            name = ahead.pop(0)
            link = await self._link(address, name, path)

    async def _link(self, group: int, name: bytes, path: str) -> Link:
        """Return the link of a group that has a name."""
        if group not in self._links:
            if group not in self._coming:
                self._coming[group] = Once(partial(self._bring_links, group, path))
            await self._coming[group].get()
        if name in self._links[group]:
            return self._links[group][name]
        where = name.decode("utf-8", "backslashreplace")
        raise self.frame.error(path, f"a link that leads nowhere: there is no {where!r}")

    async def _bring_links(self, group: int, path: str) -> None:
        header = await oh.read_header(self.frame, group, path)
        links, _ = await read_links(header)
        self._links[header.address] = {link.name: link for link in links}

    def build(self) -> H5Group:
        """Return the tree of what has been read."""
        root = self.objects[self.root]
        if isinstance(root, NCZarrError):
            raise root
        if not isinstance(root, _Group):
            raise self.frame.error("root group", "it is not a group")
        top = _group("/", root)
        pending: list[tuple[H5Group, tuple[int, ...]]] = [(top, (self.root,))]
        seen: set[int] = {self.root}
        repeated = 0
        while pending:  # not recursive: groups may be nested deeper than calls of Python
            parent, above = pending.pop()
            node = self.objects[parent.address]
            assert isinstance(node, _Group)
            # in netCDF-C's order: of creation if the group keeps it, else by name
            children = sorted(node.children or (), key=lambda child: child.link.name)
            if node.tracks_order and all(child.link.order is not None for child in children):
                children.sort(key=lambda child: child.link.order or 0)
            for child in children:
                found = child.found
                if isinstance(found, int):
                    repeated += found in seen
                    seen.add(found)
                member = self._member_of(child.name, found, above, repeated)
                parent.members[child.name] = member
                if isinstance(member, H5Group):
                    pending.append((member, (*above, member.address)))
        return top

    def _member_of(
        self, name: str, found: int | NCZarrError, above: tuple[int, ...], repeated: int
    ) -> H5Group | H5Dataset | H5NamedType | NCZarrError:
        node = self.objects[found] if isinstance(found, int) else found
        if isinstance(node, NCZarrError):
            return node
        if isinstance(node, _Group):
            if found in above:
                return self.frame.error(name, "a group that contains itself")
            if repeated > _MOST_REPEATED:
                reason = f"more than {_MOST_REPEATED} objects have several names"
                return self.frame.error(name, reason)
            return _group(name, node)
        return replace(node, name=name)


def _children(links: list[Link], header: oh.Header) -> list[_Child]:
    children = []
    names = set()
    nowhere = header.frame.error(header.what, "not read")
    for link in links:
        name = link.name.decode("utf-8", "surrogateescape")
        # libhdf5 would find other objects by such names
        if name in ("", ".") or "/" in name or "\0" in name or name in names:
            raise header.frame.error(
                header.what, f"two members called {name!r}, or an impossible name"
            )
        names.add(name)
        children.append(_Child(link, name, nowhere))
    return children


def _group(name: str, group: _Group) -> H5Group:
    problems = tuple(error for _, error in group.attributes.problems)
    loaded = group.children is not None
    return H5Group(name, group.address, group.attributes.found, loaded, problems)
