"""B-trees (specification III.A) of both versions, level by level: one round of reads for each.

Of version 2, only the used bytes of a node are read, which its parent states, and they are
verified against the checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.binary import Cursor, Frame, verify
from nczarr_xarray.formats.rounds import all_of, together

# -- version 1 -----------------------------------------------------------------------------------


#: Children of a node unless the superblock states a number: the bytes to read.
_USUAL_CHILDREN = 64


async def read_nodes1(
    frame: Frame, addresses: Sequence[int], kind: int, key_size: int, level: int | None, what: str
) -> list[tuple[int, bytes]]:
    """Read nodes of version 1 in one round.

    Parameters
    ----------
    kind
        Of the tree: 0 for links, 1 for chunks.
    level
        Of all nodes; None if it is not known.
    what
        Whose nodes, for messages (``"chunk index of /v"``).

    Returns
    -------
    The level of each node, and its entries: keys and the child to the right of each. That of the
    last key is zero.
    """
    layout, size = frame.layout("4sBBHAA"), key_size + frame.offset_size
    head = layout.size
    called = [f"{what}, node at {address}" for address in addresses]
    for address, name in zip(addresses, called, strict=True):
        frame.within(address, head, name)
    usual = head + _USUAL_CHILDREN * size + key_size
    blocks = await all_of(frame.read_some(address, usual, head) for address in addresses)
    found: list[tuple[int, int]] = []
    longer: list[int] = []
    for i, (address, block) in enumerate(zip(addresses, blocks, strict=True)):
        signature, stated, own_level, count, _, _ = layout.unpack_from(block)
        if signature != b"TREE":
            raise frame.error(called[i], f"begins with {signature!r}, not b'TREE'")
        if stated != kind or level not in (None, own_level):
            raise frame.error(called[i], f"is of type {stated} and level {own_level}")
        end = head + count * size + key_size
        found.append((own_level, end))
        if end > len(block):
            frame.within(address, end, called[i])
            longer.append(i)
    if longer:
        whole = await all_of(frame.read(addresses[i], found[i][1]) for i in longer)
        for i, block in zip(longer, whole, strict=True):
            blocks[i] = block
    rest = bytes(frame.offset_size)
    return [
        (own_level, b"".join((block[head:end], rest)))
        for (own_level, end), block in zip(found, blocks, strict=True)
    ]


# -- version 2 -----------------------------------------------------------------------------------


#: Levels of internal nodes, at most; eight hold more records than a file has bytes.
_DEEPEST = 16
#: Signature, version and type before the records of a node, checksum behind its last field.
_PREFIX, _CHECKSUM = 6, 4


class Child(NamedTuple):
    """A pointer to a node: its address, and how many records (`size`) it has itself."""

    address: int
    size: int


class Node(NamedTuple):
    """A node: its `records` in order, and its `children` (none for a leaf)."""

    records: memoryview
    children: list[Child]


@dataclass(frozen=True, slots=True)
class BTree2:
    """The header of a tree, and what follows for the nodes.

    Parameters
    ----------
    frame, what
        File and name of the tree, for messages.
    type
        Type of the records.
    record_size, depth
        Bytes of a record, and levels of internal nodes above the leaves.
    root
        None if the tree is empty.
    capacities
        Records that a node may have, per level, leaves first.
    pointer_sizes
        Bytes of a child pointer in nodes of each level (0 for leaves).
    count_size
        Bytes of the number of records in a child pointer.
    """

    frame: Frame
    what: str
    type: int
    record_size: int
    depth: int
    root: Child | None
    capacities: tuple[int, ...]
    pointer_sizes: tuple[int, ...]
    count_size: int

    async def nodes(self, children: Sequence[Child], level: int) -> list[Node]:
        """Read nodes of one level (0: leaves), all in one round."""
        return await together(self._node(child, level) for child in children)

    async def _node(self, child: Child, level: int) -> Node:
        address, count = child
        what = f"{self.what}, node at {address}"
        if count > self.capacities[level]:
            reason = f"{count} records, where {self.capacities[level]} have room"
            raise self.frame.error(what, reason)
        pointer = self.pointer_sizes[level]
        end = _PREFIX + count * self.record_size
        size = end + ((count + 1) * pointer if level else 0) + _CHECKSUM
        self.frame.within(address, size, what)
        data = await self.frame.read(address, size)
        if bytes(data[:_PREFIX]) != (b"BTIN" if level else b"BTLF") + bytes((0, self.type)):
            raise self.frame.error(what, f"begins with {bytes(data[:_PREFIX])!r}")
        verify(data, self.frame, what)
        if not level:
            return Node(data[_PREFIX:end], [])
        return Node(data[_PREFIX:end], self._children(data[end:-_CHECKSUM], pointer, what))

    def _children(self, data: memoryview, pointer: int, what: str) -> list[Child]:
        fields = np.frombuffer(data, dtype=np.uint8).reshape(-1, pointer)
        width = self.frame.offset_size
        addresses = unsigned(fields[:, :width]).tolist()
        counts = unsigned(fields[:, width : width + self.count_size]).tolist()
        if any(address >= self.frame.end for address in addresses):
            raise self.frame.error(what, f"a child is at {max(addresses)}, behind the end")
        return [Child(*pair) for pair in zip(addresses, counts, strict=True)]


async def read_tree2(frame: Frame, address: int, what: str) -> BTree2:
    """Read the header of a tree.

    Parameters
    ----------
    what
        Whose tree, for messages (``"chunk index of /v"``).

    Raises
    ------
    FormatError
        If it is damaged.
    """
    what = f"{what}, B-tree at {address}"
    size = 22 + frame.offset_size + frame.length_size
    frame.within(address, size, what)
    data = await frame.read(address, size)
    cursor = Cursor(data, frame, what)
    cursor.expect(b"BTHD", 0)
    verify(data, frame, what)
    kind, node_size, record_size, depth = cursor.unpack("BIHH")
    stored, count = cursor.unpack("2xAH")  # skipped: when to split and to merge nodes
    root = frame.known(stored)
    if not record_size or node_size < _PREFIX + _CHECKSUM + record_size or depth > _DEEPEST:
        reason = f"records of {record_size} bytes in nodes of {node_size}, depth {depth}"
        raise cursor.error(reason)
    room = node_size - _PREFIX - _CHECKSUM
    capacity = total = room // record_size
    count_size = bytes_for(capacity)
    capacities, pointers = [capacity], [0]
    for level in range(depth):
        pointer = frame.offset_size + count_size + (bytes_for(total) if level else 0)
        capacity = max(0, (room - pointer) // (record_size + pointer))
        total += capacity * (total + 1)
        capacities.append(capacity)
        pointers.append(pointer)
    child = None if root is None or not (count or depth) else Child(root, count)
    return BTree2(
        frame, what, kind, record_size, depth, child, tuple(capacities), tuple(pointers), count_size
    )


async def read_records(frame: Frame, address: int, what: str) -> tuple[int, list[bytes]]:
    """Return all records of the tree whose header is at `address`, in order.

    Parameters
    ----------
    what
        Whose tree, for messages.

    Returns
    -------
    The type of the records, and each of them.

    Raises
    ------
    FormatError
        If the tree is damaged, or a node is in it twice.
    """
    tree = await read_tree2(frame, address, what)
    if tree.root is None:
        return tree.type, []
    levels: list[list[Node]] = []
    wanted, seen = [tree.root], {tree.root.address}
    for level in range(tree.depth, -1, -1):
        nodes = await tree.nodes(wanted, level)
        levels.append(nodes)
        wanted = [child for node in nodes for child in node.children]
        seen.update(child.address for child in wanted)
        if len(seen) != sum(map(len, levels)) + len(wanted):
            raise frame.error(tree.what, "a node is in it twice")
    size = tree.record_size
    parts: list[list[bytes]] = [_split(node.records, size) for node in levels.pop()]
    while levels:
        below = iter(parts)
        parts = [_between(_split(node.records, size), below) for node in levels.pop()]
    return tree.type, parts[0]


def _split(node: memoryview, size: int) -> list[bytes]:
    records = bytes(node)
    return [records[i : i + size] for i in range(0, len(records), size)]


def _between(records: list[bytes], parts: Any) -> list[bytes]:
    """Return the records of an internal node, each between those of its children."""
    merged = list(next(parts))
    for record in records:
        merged.append(record)
        merged.extend(next(parts))
    return merged


def bytes_for(number: int) -> int:
    """Return how many bytes hold numbers up to `number`."""
    return max(1, (number.bit_length() + 7) // 8)


def unsigned(fields: np.ndarray) -> np.ndarray:
    """Return little-endian numbers of up to 8 bytes, one per row of `fields`, as uint64."""
    count, width = fields.shape
    wide = np.zeros((count, 8), dtype=np.uint8)
    wide[:, :width] = fields
    return wide.view("<u8").reshape(-1)
