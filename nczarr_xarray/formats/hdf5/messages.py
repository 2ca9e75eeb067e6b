"""Short messages of datasets and groups (specification IV.A.2); each decoder takes one."""

from __future__ import annotations

from typing import NamedTuple

from nczarr_xarray.formats.hdf5.binary import Cursor
from nczarr_xarray.formats.hdf5.objects import MOST_DIMENSIONS, Dataspace, Filter

_MOST_FILTERS = 32


def decode_dataspace(cursor: Cursor) -> Dataspace:
    """Decode a dataspace, versions 1 and 2 (IV.A.2.b)."""
    version, rank, flags, kind = cursor.unpack("4B")
    if version not in (1, 2) or rank > MOST_DIMENSIONS:
        raise cursor.error(f"a dataspace of version {version} with {rank} dimensions")
    if version == 1:
        cursor.take(4)
    elif kind > 2 or (kind != 1 and rank):
        raise cursor.error(f"a dataspace of type {kind} with {rank} dimensions")
    elif kind == 2:
        return Dataspace(None)
    shape = cursor.unpack(f"{rank}L")
    if not flags & 1:
        return Dataspace(shape, shape)
    unlimited = (1 << (8 * cursor.frame.length_size)) - 1
    limits = cursor.unpack(f"{rank}L")
    maxshape = tuple([None if limit == unlimited else limit for limit in limits])
    for size, limit in zip(shape, maxshape, strict=True):
        if limit is not None and size > limit:
            raise cursor.error(f"a dataspace {shape} that is larger than its maximum {maxshape}")
    return Dataspace(shape, maxshape)


def decode_old_fill(cursor: Cursor) -> bytes | None:
    """Decode an old fill value (IV.A.2.e); None if there is none."""
    size = cursor.uint(4)
    if size in (0, 0xFFFFFFFF):  # zeros, and -1: undefined
        return None
    return cursor.take(size)


def decode_fill(cursor: Cursor) -> bytes | None:
    """Decode a fill value, versions 1 to 3 (IV.A.2.f); None if the file states none."""
    version = cursor.uint(1)
    if version == 3:
        stated = cursor.uint(1) & 0x20
    elif version in (1, 2):
        cursor.take(2)  # when space is allocated, when the value is written
        stated = cursor.uint(1)
    else:
        raise cursor.error(f"has version {version}, known are 1 to 3")
    return decode_old_fill(cursor) if stated else None


def decode_filters(cursor: Cursor) -> tuple[Filter, ...]:
    """Decode a filter pipeline, versions 1 and 2 (IV.A.2.l), in the order of encoding."""
    version, count = cursor.unpack("BB")
    if version not in (1, 2) or count > _MOST_FILTERS:
        raise cursor.error(f"{count} filters in a pipeline of version {version}")
    if version == 1:
        cursor.take(6)
    filters = []
    for _ in range(count):
        id_ = cursor.uint(2)
        # version 2 does not name the filters that come with the library
        length = cursor.uint(2) if version == 1 or id_ >= 256 else 0
        number = cursor.unpack("2xH")[0]
        name = cursor.take(length).split(b"\0")[0].decode("utf-8", "replace")
        values = cursor.unpack(f"{number}I")
        if version == 1 and number % 2:
            cursor.take(4)
        filters.append(Filter(id_, name, values))
    return tuple(filters)


class Link(NamedTuple):
    """A member of a group: at `address`, or wherever the path `target` leads, or elsewhere.

    `elsewhere` says why the member is not in this file. `order` is of creation, if the
    group keeps it.
    """

    name: bytes
    address: int | None = None
    target: bytes | None = None
    elsewhere: str = ""
    order: int | None = None


def decode_link(cursor: Cursor) -> Link:
    """Decode a link (IV.A.2.g)."""
    version, flags = cursor.unpack("BB")
    if version != 1:
        raise cursor.error(f"a link of version {version}, known is 1")
    kind = cursor.uint(1) if flags & 0x08 else 0
    order = cursor.uint(8) if flags & 0x04 else None
    if flags & 0x10:
        cursor.take(1)  # the name's character set: ASCII or UTF-8
    name = cursor.take(cursor.uint(1 << (flags & 0x03)))
    if kind == 0:
        return Link(name, address=cursor.address(), order=order)
    value = cursor.take(cursor.uint(2))
    if kind == 1:
        return Link(name, target=value.rstrip(b"\0"), order=order)
    if kind == 64:
        file, path = [*value[1:].split(b"\0"), b"", b""][:2]
        reason = f"a link to {_text(path)!r} in another file, {_text(file)!r}"
        return Link(name, elsewhere=reason, order=order)
    return Link(name, elsewhere=f"a link of type {kind}, defined by its user", order=order)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


class DenseStorage(NamedTuple):
    """The location of links or attributes that are not in the object header.

    `heap` and `tree` are addresses of a fractal heap and of a B-tree by name,
    None if all are in the header. `ordered` says whether the order of creation
    is kept.
    """

    heap: int | None
    tree: int | None
    ordered: bool


def decode_link_info(cursor: Cursor) -> DenseStorage:
    """Decode link information (IV.A.2.c)."""
    return _dense(cursor, 8)


def decode_attribute_info(cursor: Cursor) -> DenseStorage:
    """Decode attribute information (IV.A.2.v)."""
    return _dense(cursor, 2)


def _dense(cursor: Cursor, order_size: int) -> DenseStorage:
    version, flags = cursor.unpack("BB")
    if version:
        raise cursor.error(f"has version {version}, known is 0")
    if flags & 0x01:
        cursor.take(order_size)
    heap, tree = map(cursor.frame.known, cursor.unpack("AA"))
    if (heap is None) != (tree is None):
        raise cursor.error("a heap without an index, or an index without a heap")
    return DenseStorage(heap, tree, bool(flags & 0x01))


def decode_symbol_table(cursor: Cursor) -> tuple[int, int]:
    """Decode a symbol table (IV.A.2.r): addresses of a B-tree and a local heap."""
    tree, heap = map(cursor.frame.known, cursor.unpack("AA"))
    if tree is None or heap is None:
        raise cursor.error("without an index or a heap")
    return tree, heap
