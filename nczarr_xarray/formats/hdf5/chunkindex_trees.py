"""Chunk indexes that are B-trees: version 1 (III.A.1) and version 2 (III.A.2, types 10 and 11).

Both order chunks by position, which is C order over any grid. Only nodes whose
range holds a wanted chunk are read, all nodes of a level in one round. The nodes
of a round are parsed as one array.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from nczarr_xarray.formats.hdf5.btrees import BTree2, Child, read_nodes1, read_tree2, unsigned
from nczarr_xarray.formats.hdf5.chunkindex import CHUNK, HUGE, ChunkGrid, HDF5ChunkIndex

#: Bytes that a cached node takes besides its arrays.
_NODE_BYTES = 500


class _Pointer(NamedTuple):
    """A node to read; `level` counts from the leaves, `low` and `high` bound its chunk numbers.

    `size` is the number of its records, known in version 2 only; the level of a
    version 1 root is in the root itself (-1).
    """

    address: int
    level: int
    low: int
    high: int
    size: int = 0


class _Node(NamedTuple):
    """The chunks that a node lists, and its children with the numbers ``[low, high)`` of each."""

    chunks: np.ndarray
    level: int
    addresses: list[int]
    sizes: list[int]
    lows: np.ndarray
    highs: np.ndarray

    def touching(self, ids: np.ndarray) -> list[_Pointer]:
        """Return the children that may hold some of `ids`."""
        if not self.addresses:
            return []
        wanted = np.searchsorted(ids, self.highs) > np.searchsorted(ids, self.lows)
        return [
            _Pointer(
                self.addresses[i], self.level - 1, int(self.lows[i]), int(self.highs[i]),
                self.sizes[i] if self.sizes else 0,
            )
            for i in np.flatnonzero(wanted).tolist()
        ]  # fmt: skip


_LEAF = np.empty(0, dtype=np.int64)


class _TreeIndex(HDF5ChunkIndex):
    @abstractmethod
    async def read(self, pointers: Sequence[_Pointer]) -> list[_Node]:
        """Read nodes, all in one round."""

    async def search(self, root: _Pointer, ids: np.ndarray) -> np.ndarray:
        """Do what `find` does, from the root node on."""
        found: list[Any] = []
        wanted = [root]
        seen: set[int] = set()
        count = 0
        while wanted:
            seen.update(pointer.address for pointer in wanted)
            count += len(wanted)
            if len(seen) < count:
                raise self.grid.error("a node is in its chunk index twice")
            nodes = await self._nodes(wanted)
            found.extend(node.chunks for node in nodes)
            wanted = [pointer for node in nodes for pointer in node.touching(ids)]
        return self.pick(found, ids)

    async def _nodes(self, pointers: list[_Pointer]) -> list[_Node]:
        known: list[Any] = [self.memory.get(pointer.address) for pointer in pointers]
        unknown = [p for p, node in zip(pointers, known, strict=True) if node is None]
        if not unknown:
            return known
        fresh = await self.read(unknown)
        for pointer, node in zip(unknown, fresh, strict=True):
            nbytes = node.chunks.nbytes + 40 * len(node.addresses) + _NODE_BYTES
            self.memory.keep(pointer.address, node, nbytes)
        new = iter(fresh)
        return [next(new) if node is None else node for node in known]

    def parent(
        self,
        pointer: _Pointer,
        chunks: np.ndarray,
        children: tuple[list[int], list[int]],
        bounds: tuple[np.ndarray, np.ndarray],
    ) -> _Node:
        """Return a checked internal node."""
        lows, highs = bounds
        self.check_order(pointer, lows, highs)
        if max(children[0], default=0) >= self.grid.frame.end:
            reason = f"a child of the node at {pointer.address} of its chunk index is at "
            raise self.grid.error(f"{reason}{max(children[0])}, behind the end of the file")
        return _Node(chunks, pointer.level, *children, lows, highs)

    def check_order(self, pointer: _Pointer, lows: np.ndarray, highs: np.ndarray) -> None:
        """Raise `FormatError` for a node out of order, which would hide chunks."""
        if np.any(lows > highs) or np.any(highs[:-1] > lows[1:]):
            reason = f"the node at {pointer.address} of its chunk index is out of order"
            raise self.grid.error(reason)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The only node of a version 1 B-tree, as files have it that differ in their chunks only.

    Parameters
    ----------
    address
        Where it is.
    layout
        Of the node: what files have in common, and size and address of each chunk.
    common
        What they have in common.
    numbers
        Of the chunks, as they are listed.
    count
        Chunks of the grid.
    """

    address: int
    layout: Struct
    common: tuple[bytes, ...]
    numbers: tuple[int, ...]
    count: int

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.address + self.layout.size

    def extents(self, start: bytes) -> list[tuple[int, int] | None] | None:
        """Return begin and end of each chunk, or None for a missing one.

        Parameters
        ----------
        start
            Of a file, `stop` bytes at least; the answer is None if it has another node.
        """
        fields = self.layout.unpack_from(start, self.address)
        if _common(fields) != self.common:
            return None
        found: list[tuple[int, int] | None] = [None] * self.count
        for number, size, begin in zip(self.numbers, fields[1:-1:3], fields[3::3], strict=True):
            found[number] = begin, begin + size
        return found


def _common(fields: tuple[Any, ...]) -> tuple[bytes, ...]:
    """Return what is neither size nor address of a chunk."""
    return fields[0], fields[-1], *fields[2::3]


class BTree1Index(_TreeIndex):
    """A version 1 B-tree: leaves list chunks by the offset of their first element."""

    def __init__(self, grid: ChunkGrid, address: int) -> None:
        super().__init__(grid, address)
        # a key and the child to its right; the last offset is one inside an element
        self._entry = np.dtype(
            [
                ("size", "<u4"),
                ("mask", "<u4"),
                ("offset", "<u8", (len(grid.shape) + 1,)),
                ("child", "u1", (grid.frame.offset_size,)),
            ]
        )

    async def find(self, ids: np.ndarray) -> np.ndarray:
        only = None
        if math.prod(self.grid.counts) == 1:
            only = self.memory.get("only") or await self.only_chunk()
        if only is None:
            return await self.search(_Pointer(self.address, -1, 0, 0), ids)
        self.memory.keep("only", only, _NODE_BYTES)
        return np.full(len(ids), np.array(only, dtype=CHUNK))

    async def only_chunk(self) -> tuple[int, int, int, int] | None:
        """Read the only chunk of the dataset, as most small ones have it, without arrays.

        None if the index is another one: it is damaged, or has chunks beyond the present shape.
        """
        grid, rank = self.grid, len(self.grid.shape)
        ((level, entries),) = await self._parts([self.address], -1)
        if level or len(entries) != 2 * self._entry.itemsize:
            return None
        layout = grid.frame.layout(f"II{rank + 1}QA")
        (size, mask, *begin, address), (_, _, *end, _) = layout.iter_unpack(entries)
        known = address < min(grid.frame.undefined, HUGE)
        aligned = not any(map(mod, end, grid.chunk_shape))
        return (0, address, size, mask) if known and aligned and not any(begin) else None

    async def read(self, pointers: Sequence[_Pointer]) -> list[_Node]:
        grid = self.grid
        parts = await self._parts([one.address for one in pointers], pointers[0].level)
        entries = np.frombuffer(b"".join(part for _, part in parts), dtype=self._entry)
        scaled = entries["offset"][:, :-1].copy()
        for axis, length in enumerate(grid.chunk_shape):
            if length > 1:  # by one number at a time: so numpy divides many at once
                offset = scaled[:, axis]
                at = offset // np.uint64(length)
                if (at * np.uint64(length) != offset).any():
                    raise grid.error("a key of its chunk index is not the offset of a chunk")
                scaled[:, axis] = at
        numbers, inside = grid.numbers(scaled)
        # a key that points into the elements of a chunk comes after it
        bounds = numbers + (inside & (entries["offset"][:, -1] > 0))
        children = unsigned(entries["child"])
        chunks = grid.chunks(numbers, children, entries["size"], entries["mask"])
        nodes = []
        stop = 0
        for pointer, (level, part) in zip(pointers, parts, strict=True):
            # the last key has no child: the byte string has zeros there
            start, stop = stop, stop + len(part) // self._entry.itemsize
            listed = slice(start, max(start, stop - 1))
            within = (bounds[listed], bounds[start + 1 : stop])
            if level:
                pointers_to = children[listed].tolist()
                here = pointer._replace(level=level)
                nodes.append(self.parent(here, chunks[:0], (pointers_to, []), within))
            else:
                self.check_order(pointer, *within)  # no checksum tells of damage
                own = chunks[listed][inside[listed]]
                nodes.append(_Node(own, 0, [], [], _LEAF, _LEAF))
        return nodes

    async def leaf(self) -> Leaf | None:
        """Read the only node; None if there are more, or chunks beyond the shape.

        The file has no user block.
        """
        grid, frame = self.grid, self.grid.frame
        (node,) = await self._nodes([_Pointer(self.address, -1, 0, 0)])
        count = len(node.chunks)
        between = self._entry.itemsize - 4 - frame.offset_size  # of a key, behind the size
        keys = f"I{between}sA" * count
        layout = frame.layout(f"8s{2 * frame.offset_size}x{keys}4x{between}s")
        fields = layout.unpack(await frame.read(self.address, layout.size))
        if node.level or int.from_bytes(fields[0][6:], "little") != count:
            return None
        numbers = tuple(node.chunks["number"].tolist())
        return Leaf(self.address, layout, _common(fields), numbers, math.prod(grid.counts))

    async def _parts(self, addresses: Sequence[int], level: int) -> list[tuple[int, bytes]]:
        """Return the level of each node, and its entries with the last key as one more entry."""
        frame, key_size = self.grid.frame, self._entry.itemsize - self.grid.frame.offset_size
        known = None if level < 0 else level
        return await read_nodes1(frame, addresses, 1, key_size, known, self.grid.path)


class BTree2Index(_TreeIndex):
    """A version 2 B-tree: all nodes list chunks, by scaled offset."""

    async def _tree(self) -> tuple[BTree2, np.dtype]:
        known: tuple[BTree2, np.dtype] | None = self.memory.get("tree")
        if known is not None:
            return known
        grid = self.grid
        tree = await read_tree2(grid.frame, self.address, grid.path)
        rank, width = len(grid.shape), grid.frame.offset_size
        fields: list[Any] = [("address", "u1", (width,)), ("scaled", "<u8", (rank,))]
        if tree.type == 11:
            size = tree.record_size - width - 4 - 8 * rank
            if not 1 <= size <= 8:
                raise grid.error(f"its chunk index has records of {tree.record_size} bytes")
            fields[1:1] = [("size", "u1", (size,)), ("mask", "<u4")]
        record = np.dtype(fields)
        if tree.type != (11 if grid.filters else 10) or record.itemsize != tree.record_size:
            reason = f"its chunk index has records of type {tree.type}, {tree.record_size} bytes"
            raise grid.error(reason)
        self.memory.keep("tree", (tree, record), _NODE_BYTES)
        return tree, record

    async def find(self, ids: np.ndarray) -> np.ndarray:
        tree, _ = await self._tree()
        if tree.root is None:
            return self.pick([], ids)
        chunks = math.prod(self.grid.counts)
        root = _Pointer(tree.root.address, tree.depth, 0, chunks, tree.root.size)
        return await self.search(root, ids)

    async def read(self, pointers: Sequence[_Pointer]) -> list[_Node]:
        tree, record = await self._tree()
        grid, level = self.grid, pointers[0].level
        parts = await tree.nodes([Child(p.address, p.size) for p in pointers], level)
        records = np.frombuffer(b"".join(part.records for part in parts), dtype=record)
        numbers, inside = grid.numbers(records["scaled"])
        addresses = unsigned(records["address"])
        if tree.type == 11:
            chunks = grid.chunks(numbers, addresses, unsigned(records["size"]), records["mask"])
        else:
            chunks = grid.chunks(numbers, addresses)
        nodes = []
        stop = 0
        for pointer, part in zip(pointers, parts, strict=True):
            start, stop = stop, stop + len(part.records) // record.itemsize
            own = slice(start, stop)
            listed = chunks[own][inside[own]]
            if not level:
                nodes.append(_Node(listed, 0, [], [], _LEAF, _LEAF))
                continue
            # a record is between two children, which have the numbers before and after its own
            lows = np.append(pointer.low, numbers[own] + inside[own])
            highs = np.append(numbers[own], pointer.high)
            children = [c.address for c in part.children], [c.size for c in part.children]
            nodes.append(self.parent(pointer, listed, children, (lows, highs)))
        return nodes
