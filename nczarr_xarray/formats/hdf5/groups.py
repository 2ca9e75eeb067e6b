"""The members of a group: links, however the group stores them (specification III.A, III.B, IV)."""

from __future__ import annotations

from nczarr_xarray.formats.hdf5 import header as oh
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.heaps import LocalHeap, read_local_heap
from nczarr_xarray.formats.hdf5.messages import (
    Link,
    decode_link,
    decode_link_info,
    decode_symbol_table,
)
from nczarr_xarray.formats.rounds import both, together

#: B-tree nodes and symbol table nodes of the usual widths.
_FIRST_READ = 1024
#: Types of B-tree records, and where they have the heap identifier: behind a hash, an order.
_LINK_RECORDS = {5: 4, 6: 8}
_CACHED_LINK = 2


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
        tree, heap = decode_symbol_table(header.cursor(table, "symbol table"))
        return await _old_links(header.frame, tree, heap, header.what), False
    links = [decode_link(header.cursor(one, "link")) for one in header.all(oh.LINK)]
    info = header.first(oh.LINK_INFO)
    if info is None:  # the path of a soft link leads through a dataset, say
        return links, False
    dense = decode_link_info(header.cursor(info, "link information"))
    if dense.heap is not None and dense.tree is not None:
        from nczarr_xarray.formats.hdf5.fractal import read_dense

        what = f"{header.what}, links"
        store, kind, records = await read_dense(
            header.frame, dense.heap, dense.tree, _LINK_RECORDS, what
        )
        start = _LINK_RECORDS[kind]
        bodies = await store.objects([record[start : start + store.id_size] for record in records])
        links += [decode_link(Cursor(body, header.frame, what)) for body in bodies]
    return links, dense.ordered


async def _old_links(frame: Frame, tree: int, heap: int, what: str) -> list[Link]:
    """Return the links of an old group: a B-tree of symbol table nodes, and a heap of names."""
    names, entries = await both(read_local_heap(frame, heap, what), _entries(frame, tree, what))
    return [_old_link(Cursor(entry, frame, what), names) for entry in entries]


def _old_link(cursor: Cursor, names: LocalHeap) -> Link:
    offset, address, cached, target = cursor.unpack("LAI4xI")
    name = names.name(offset)
    if cached == _CACHED_LINK:
        return Link(name, target=names.name(target))
    return Link(name, address=cursor.frame.known(address))


async def _entries(frame: Frame, address: int, what: str) -> list[bytes]:
    """Return the entries of all symbol tables of a B-tree in order; each level is one round."""
    level, wanted = await _node(frame, address, None, f"{what}, B-tree at {address}")
    seen = {address, *wanted}
    count = 1 + len(wanted)
    while level:
        level -= 1
        nodes = await together(
            _node(frame, child, level, f"{what}, B-tree at {child}") for child in wanted
        )
        wanted = [child for _, children in nodes for child in children]
        seen.update(wanted)
        count += len(wanted)
        if len(seen) < count:
            break
    if len(seen) < count:
        raise frame.error(f"{what}, B-tree at {address}", "a node is in it twice")
    tables = await together(_table(frame, child, what) for child in wanted)
    return [entry for table in tables for entry in table]


async def _node(frame: Frame, address: int, level: int | None, what: str) -> tuple[int, list[int]]:
    """Return level and children of a node; it must be of `level` if that is known."""
    frame.within(address, 8, what)
    data = await frame.read_some(address, _FIRST_READ)
    cursor = Cursor(data, frame, what)
    cursor.expect(b"TREE")
    kind, found, used = cursor.unpack("BBH")
    if kind != 0 or level not in (None, found):
        raise cursor.error(f"type {kind}, level {found}; type 0, level {level} were expected")
    size = 8 + 2 * frame.offset_size + used * (frame.length_size + frame.offset_size)
    cursor = await _whole(frame, address, size, cursor)
    cursor.take(2 * frame.offset_size)  # siblings
    entry = frame.layout("LA")  # a key: where the first name is in the heap; a child
    children = [child for _, child in entry.iter_unpack(cursor.take(used * entry.size))]
    return found, [frame.within(frame.known(child), 8, what) for child in children]


async def _table(frame: Frame, address: int, what: str) -> list[bytes]:
    """Return the entries of a symbol table node."""
    what = f"{what}, symbol table at {address}"
    data = await frame.read_some(address, _FIRST_READ)
    cursor = Cursor(data, frame, what)
    cursor.expect(b"SNOD")
    version, count = cursor.unpack("BxH")
    if version != 1:
        raise cursor.error(f"has version {version}, known is 1")
    size = frame.length_size + frame.offset_size + 24
    cursor = await _whole(frame, address, 8 + count * size, cursor)
    return [cursor.take(size) for _ in range(count)]


async def _whole(frame: Frame, address: int, size: int, cursor: Cursor) -> Cursor:
    """Return a cursor over all `size` bytes of a structure; `cursor` may have fewer."""
    frame.within(address, size, cursor.what)
    if size <= len(cursor.data):
        return cursor
    whole = Cursor(await frame.read(address, size), frame, cursor.what)
    whole.position = cursor.position
    return whole
