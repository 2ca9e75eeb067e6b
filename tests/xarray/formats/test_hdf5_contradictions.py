"""Fields of HDF5's metadata that contradict each other, whose checksums are right: what is said."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import numpy as np
import pytest

from nczarr_fsspec.errors import FormatError, NCZarrError, UnsupportedError
from nczarr_xarray.formats.hdf5 import heaps
from nczarr_xarray.formats.hdf5.binary import Cursor, Frame
from nczarr_xarray.formats.hdf5.chunkindex import HDF5ChunkIndex
from nczarr_xarray.formats.hdf5.chunkindex_arrays import ImplicitIndex
from nczarr_xarray.formats.hdf5.datasets import (
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    H5Dataset,
    decode_layout,
)
from nczarr_xarray.formats.hdf5.datatypes import Datatype, Member, decode_datatype
from nczarr_xarray.formats.hdf5.header import read_superblock
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.messages import (
    Dataspace,
    decode_dataspace,
    decode_dense,
    decode_fill,
    decode_filters,
    decode_link,
    decode_symbol_table,
)
from nczarr_xarray.formats.hdf5.netcdf_storage import array_of, chunk_index
from nczarr_xarray.formats.hdf5.netcdf_types import value_type
from nczarr_xarray.formats.hdf5.through_h5py import read_mappings
from nczarr_xarray.formats.hdf5.tree import H5Group, read_tree
from tests.support.builders.h5drive import drive
from tests.support.builders.h5objects import Equal, address_of, made
from tests.support.faults.filepromises import verifying


def frame_of(data: bytes) -> Frame:
    async def parse() -> Frame:
        frame, _ = await read_superblock("memory", len(data))
        return frame

    found: Frame = drive(parse(), data, head=1 << 16).result
    return found


def root_of(data: bytes) -> H5Group:
    async def parse() -> H5Group:
        frame, root = await read_superblock("memory", len(data))
        return await read_tree(frame, root, "", True)

    found: H5Group = drive(parse(), data, head=1 << 16).result
    return found


def said(data: bytes) -> str:
    """What reading a tree says of it: its error, or those of its members and attributes."""
    with pytest.MonkeyPatch.context() as patch, verifying(lambda *_: None):
        patch.setattr(heaps, "lookup3", lambda block: block and Equal())
        try:
            return repr(root_of(data))
        except FormatError as error:
            return str(error)


def changed(data: bytes, signature: bytes, offset: int, new: bytes, which: int = 0) -> bytes:
    """Change a field of a structure, which begins with a signature."""
    at = -1
    for _ in range(which + 1):
        at = data.index(signature, at + 1)
    return data[: at + offset] + new + data[at + offset + len(new) :]


# -- layouts -------------------------------------------------------------------------------------

PLAIN = made(lambda h5: h5.create_dataset("v", data=np.arange(6.0).reshape(2, 3)))
FRAME = frame_of(PLAIN)
SPACE = Dataspace((2, 3), (2, 3))


def double() -> Datatype:
    root = root_of(PLAIN)
    member = root.members["v"]
    assert isinstance(member, H5Dataset)
    return member.type


def number(*values: int, size: int = 4) -> bytes:
    return b"".join(value.to_bytes(size, "little") for value in values)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x09", "has version 9, known are 1 to 5"),
        (b"\3\1" + number(2048, 3, size=8), "3 bytes are stored, 48 are needed"),
        (b"\3\0" + number(3, size=2) + b"abc", "3 bytes are stored, 48 are needed"),
        (b"\3\7", "is of class 7, known are 0 to 3"),
        (b"\1\2\7" + bytes(5) + number(96, size=8) + number(2, 3), "is of class 7, known are 0 to"),
        (b"\2\2\0" + bytes(5) + number(2, 3, 47) + bytes(47), "47 bytes are stored, 48 are needed"),
        (b"\4\2\0\3\1\2\3\x08\x09", "its chunk index is of type 9, known are 1 to 5"),
        (b"\3\2\3" + number(96, size=8) + number(2, 0, 8), "chunks (2, 0) of elements of 8 bytes"),
        (b"\3\2\3" + number(96, size=8) + number(2, 3, 4), "chunks (2, 3) of elements of 4 bytes"),
        (
            b"\3\2\3" + number(96, size=8) + number(2, 3 << 28, 8),
            f"chunks of {2 * (3 << 28) * 8} bytes",
        ),
        (
            b"\3\2\2" + number(96, size=8) + number(2, 8),
            "chunks (2,) for a dataset of shape (2, 3)",
        ),
    ],
)
def test_layouts(message: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_layout(Cursor(message, FRAME, "v, layout"), SPACE, double())
    assert "v, layout" in str(caught.value)
    assert reason in str(caught.value)


def test_old_compact_layout() -> None:
    """Version 2 states the shape, and the bytes that are stored behind it."""
    values = bytes(range(48))
    message = b"\2\2\0" + bytes(5) + number(2, 3, 48) + values
    found = decode_layout(Cursor(message, FRAME, "v, layout"), SPACE, double())
    assert found == CompactLayout(values)


# -- messages of object headers ------------------------------------------------------------------

INTEGER = b"\x10\x08\0\0" + number(4) + number(0, 32, size=2)


def head(class_: int, size: int, bits: int = 0, version: int = 3) -> bytes:
    return bytes([version << 4 | class_]) + number(bits, size=3) + number(size)


def field(name: str, offset: int, type_: bytes = INTEGER) -> bytes:
    return name.encode() + b"\0" + number(offset, size=1) + type_


@pytest.mark.parametrize(
    ("decode", "message", "reason"),
    [
        (decode_datatype, head(9, 16) * 40 + INTEGER, "types within types, more than"),
        (decode_datatype, head(9, 8) + INTEGER, "a variable-length type of 8 bytes, 16 are needed"),
        (decode_datatype, head(10, 12) + b"\0", "an array type of 0 dimensions"),
        (
            decode_datatype,
            head(10, 13) + b"\1" + number(3) + INTEGER,
            "an array type (3,) of 13 bytes, with elements of 4",
        ),
        (
            decode_datatype,
            head(11, 8, version=5) + INTEGER,
            "a complex type of 8 bytes on a int",
        ),
        (decode_datatype, head(6, 8, 2) + field("a", 0) + field("a", 4), "with two of one name"),
        (decode_datatype, head(6, 8, 0), "a compound type without fields"),
        (
            decode_datatype,
            head(6, 8, 1, version=1) + b"a" + bytes(7) + number(0) + b"\5" + bytes(27) + INTEGER,
            "a field 'a' of 5 dimensions, at most 4 are possible",
        ),
        (decode_datatype, head(6, 8, 1) + b"abc", "a name has no end"),
        (decode_datatype, head(6, 8, 1) + field("a", 5), "field 'a' ends behind its compound type"),
        (decode_datatype, head(8, 8) + INTEGER, "an enum of 8 bytes on a integer of 4"),
        (decode_datatype, head(8, 4) + head(3, 4), "an enum of 4 bytes on a string of 4"),
        (decode_datatype, head(3, 4, 3), "strings with a padding of type 3"),
        (
            decode_datatype,
            head(1, 4, 0x1F20) + number(0, 64, size=2) + b"\x17\x08\0\x17" + number(127),
            "in a float of 4 bytes",
        ),
        (
            decode_datatype,
            head(1, 4, 0x1F20) + number(0, 32, size=2) + b"\x17\0\0\x17" + number(127),
            "in a float of 4 bytes",
        ),
        (
            decode_dataspace,
            b"\2\1\1\1" + number(5, 3, size=8),
            "a dataspace (5,) that is larger than its maximum (3,)",
        ),
        (decode_datatype, head(0, 0), "a datatype of version 3 and 0 bytes"),
        (decode_dataspace, b"\2\1\0\3", "a dataspace of type 3 with 1 dimensions"),
        (decode_dataspace, b"\2\1\0\0", "a dataspace of type 0 with 1 dimensions"),
        (decode_dataspace, b"\3\1\0\0", "a dataspace of version 3 with 1 dimensions"),
        (decode_fill, b"\4", "has version 4, known are 1 to 3"),
        (decode_filters, b"\3\1", "1 filters in a pipeline of version 3"),
        (decode_filters, b"\2\x21", "33 filters in a pipeline of version 2"),
        (decode_link, b"\2\0", "a link of version 2, known is 1"),
        (partial(decode_dense, order_size=8), b"\1\0", "has version 1, known is 0"),
        (decode_symbol_table, b"\xff" * 8 + number(96, size=8), "without an index or a heap"),
        (decode_symbol_table, number(96, size=8) + b"\xff" * 8, "without an index or a heap"),
    ],
)
def test_messages(decode: Callable[[Cursor], Any], message: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(Cursor(message, FRAME, "the message"))
    assert "the message" in str(caught.value)
    assert reason in str(caught.value)


def test_links_of_users() -> None:
    found = decode_link(Cursor(b"\1\x08\x80\1x" + number(2, size=2) + b"ab", FRAME, "a link"))
    assert (found.name, found.address, found.target) == (b"x", None, None)
    assert found.elsewhere == "a link of type 128, defined by its user"


def test_an_enum_on_an_integer_of_odd_size_has_no_names() -> None:
    """NumPy has no integers of three bytes, so that the values cannot be told."""
    base = b"\x10\0\0\0" + number(3) + number(0, 24, size=2)
    found = decode_datatype(Cursor(head(8, 3, 1) + base + b"one\0" + b"\1\0\0", FRAME, "v"))
    assert (found.kind, found.size, found.numpy, found.enum) == ("enum", 3, None, ())


def test_types_that_have_no_values_in_netcdf() -> None:
    number = Datatype("integer", 4, np.dtype("<i4"))
    two = value_type(
        Datatype("compound", 8, members=(Member("a", 0, number), Member("b", 4, number)))
    )
    assert two is not None
    assert two.dtype == np.dtype([("a", "i4"), ("b", "i4")])
    fields = (Member("a", 0, number), Member("", 4, number))
    assert value_type(Datatype("compound", 8, members=fields)) is None  # a field without a name
    message = b"\x10\x08\0\0\3\0\0\0\0\0\x18\0"
    odd = value_type(Datatype("integer", 3, encoded=message))
    assert odd is not None
    assert odd.dtype == np.dtype("i4")
    assert value_type(Datatype("integer", 16)) is None  # no integers of NumPy are that long
    assert value_type(Datatype("float", 16)) is not None
    assert value_type(Datatype("float", 17)) is None  # an element may be said to have 512 MiB


@pytest.mark.parametrize("class_", [12, 15])
def test_types_that_came_later(class_: int) -> None:
    found = decode_datatype(Cursor(head(class_, 7) + b"whatever", FRAME, "v"))
    assert (found.kind, found.size) == ("unknown", 7)


# -- heaps of text -------------------------------------------------------------------------------


def texts(h5: h5py.File) -> None:
    h5["v"] = ["one"]


@pytest.mark.parametrize(
    ("offset", "new", "reason"),
    [
        (4, b"\2", "has version 2, known is 1"),
        (16 + 8, number(1 << 40, size=8), f"object 1 has {1 << 40} bytes"),
    ],
)
def test_global_heaps(offset: int, new: bytes, reason: str) -> None:
    data = made(texts)
    at = data.index(b"GCOL")
    element = number(3) + number(at, size=8) + number(1)
    wanted: list[bytes] = drive(resolve_vlen(frame_of(data), element, np.ones(1, int)), data).result
    assert wanted == [b"one"]
    damaged = changed(data, b"GCOL", offset, new)
    with pytest.raises(FormatError) as caught:
        drive(resolve_vlen(frame_of(damaged), element, np.ones(1, int)), damaged)
    assert f"global heap at {at}" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        (number(3) + bytes(8) + number(1), "an element without an address in a heap"),
        (number(3) + b"\xff" * 8 + number(1), "an element without an address in a heap"),
        (number(1 << 31) + number(2048, size=8) + number(1), "more bytes than the file has"),
    ],
)
def test_elements_in_no_heap(element: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        drive(resolve_vlen(FRAME, element, np.ones(1, int)), PLAIN)


def test_names_of_old_groups_are_in_a_heap_of_version_0(old_groups: bytes) -> None:
    assert "has version 1, known is 0" in said(changed(old_groups, b"HEAP", 4, b"\1"))


# -- chunk indexes -------------------------------------------------------------------------------


def chunked(maxshape: tuple[int | None, ...] | None = None) -> tuple[bytes, H5Dataset]:
    def fill(h5: h5py.File) -> None:
        h5.create_dataset("v", data=np.arange(6.0).reshape(2, 3), chunks=(1, 2), maxshape=maxshape)

    data = made(fill, libver="latest")
    member = root_of(data).members["v"]
    assert isinstance(member, H5Dataset)
    return data, member


def with_layout(dataset: H5Dataset, **fields: Any) -> H5Dataset:
    assert isinstance(dataset.layout, ChunkedLayout)
    return replace(dataset, layout=replace(dataset.layout, **fields))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: replace(one, layout=CompactLayout(b"")), "is not stored in chunks"),
        (lambda one: replace(one, space=Dataspace(())), "is not stored in chunks"),
        (
            lambda one: replace(one, space=Dataspace((1 << 40, 1 << 40), (None, None))),
            f"it has {1 << 79} chunks",
        ),
        (lambda one: with_layout(one, index="single"), "it has 4 chunks, but one was stored"),
    ],
)
def test_chunks_that_do_not_fit(change: Callable[[H5Dataset], H5Dataset], reason: str) -> None:
    data, dataset = chunked()
    with pytest.raises(FormatError) as caught:
        chunk_index(frame_of(data), change(dataset), "/v")
    assert str(caught.value).endswith(f"/v: {reason}")


def test_plain_chunks_end_within_the_file() -> None:
    data, dataset = chunked()
    beyond = with_layout(dataset, index="implicit", address=len(data) - 4 * 16 + 1)
    index = chunk_index(frame_of(data), beyond, "/v")
    assert isinstance(index, ImplicitIndex)
    with pytest.raises(FormatError, match="its chunks are not all within the file"):
        drive(index.find(np.array([3])), data)


def found(data: bytes) -> Any:
    member = root_of(data).members["v"]
    assert isinstance(member, H5Dataset)
    index = chunk_index(frame_of(data), member, "/v")
    assert isinstance(index, HDF5ChunkIndex)
    with verifying(lambda *_: None):
        return drive(index.find(np.array([0, 3])), data).result


def test_a_fixed_array() -> None:
    data, _ = chunked()
    assert found(data)["size"].tolist() == [16, 16]
    with pytest.raises(FormatError, match=r"has pages of 2\*\*33 elements"):
        found(changed(data, b"FAHD", 7, b"\x21"))
    with pytest.raises(FormatError, match="its chunk index has 3 elements"):
        found(changed(data, b"FAHD", 8, number(3, size=8)))
    nothing = found(changed(data, b"FAHD", 16, b"\xff" * 8))
    assert not nothing["size"].any()  # nothing has been written


# -- groups and heaps ----------------------------------------------------------------------------


def groups(h5: h5py.File) -> None:
    for n in range(300):
        h5.create_group(f"group {n:04}")


@pytest.fixture(scope="module")
def old_groups() -> bytes:
    return made(groups, libver="earliest")


def test_old_groups(old_groups: bytes) -> None:
    assert "contradict" not in said(old_groups)
    assert len(root_of(old_groups).members) == 300
    text = said(changed(old_groups, b"TREE", 4, b"\1"))
    assert "is of type 1 and level 1" in text
    assert "symbol table at" in said(changed(old_groups, b"SNOD", 4, b"\2"))
    assert "has version 2, known is 1" in said(changed(old_groups, b"SNOD", 4, b"\2"))


def test_a_node_that_is_in_a_tree_twice(old_groups: bytes) -> None:
    root = old_groups.index(b"TREE")
    children = 24 + 8  # behind the first key; a child and a key follow each other
    first = old_groups[root + children : root + children + 8]
    twice = changed(old_groups, b"TREE", children + 16, first)
    assert "a node is in it twice" in said(twice)


def dense(h5: h5py.File) -> None:
    for n in range(20):
        h5.attrs[f"a{n:02}"] = np.arange(n)
    h5.attrs["large"] = np.arange(9000)


@pytest.fixture(scope="module")
def heap() -> bytes:
    return made(dense, libver="latest")


def test_dense_attributes(heap: bytes) -> None:
    attributes = root_of(heap).attributes
    assert sorted(attributes) == [*(f"a{n:02}" for n in range(20)), "large"]


@pytest.mark.parametrize(
    ("signature", "offset", "new", "reason"),
    [
        (b"FRHP", 4, b"\1", "has version 1, known is 0"),
        (b"FRHP", 7, b"\x08", "is compressed, which is not supported"),
        (b"FRHP", 5, b"\1\0", "an impossible"),
        (b"FRHP", 22, b"\xff" * 8, "no index of its huge objects"),
        (b"FHDB", 4, b"\1", "version 1, of the heap at"),
        (b"FHDB", 5, b"\0" * 8, "of the heap at 0"),
    ],
)
def test_heaps(heap: bytes, signature: bytes, offset: int, new: bytes, reason: str) -> None:
    assert reason in said(changed(heap, signature, offset, new))


def test_unsupported_is_an_error_of_ours(heap: bytes) -> None:
    compressed = changed(heap, b"FRHP", 7, b"\x08")
    with verifying(lambda *_: None):
        try:
            problems: list[NCZarrError] = list(root_of(compressed).problems)
        except UnsupportedError as error:
            problems = [error]
    assert any(isinstance(one, UnsupportedError) for one in problems)


# -- the storage of variables --------------------------------------------------------------------


def array(**fields: Any) -> Any:
    member = root_of(PLAIN).members["v"]
    assert isinstance(member, H5Dataset)
    dataset = replace(member, **fields)
    value = value_type(member.type)
    assert value is not None
    return array_of(FRAME, dataset, value, "/v", "/v")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"space": Dataspace(None)}, "has a null dataspace: no shape and no elements"),
        (
            {"space": Dataspace((1 << 62, 3))},
            f"has the shape {(1 << 62, 3)}, beyond what can be addressed",
        ),
        ({"layout": ContiguousLayout(0, 48)}, "its data are at 0, where the superblock is"),
    ],
)
def test_storage_that_contradicts_the_type(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        array(**fields)
    assert (caught.value.object, caught.value.reason) == ("/v", reason)


def test_storage_that_fits() -> None:
    assert array(fill=bytes(8)).shape == (2, 3)
    assert array(layout=CompactLayout(bytes(50))).shape == (2, 3)


# -- virtual datasets ----------------------------------------------------------------------------

#: A selection of all elements.
ALL = number(3, 1, 0, 0)


def slab(start: int, stride: int, count: int, block: int, width: int = 8, rank: int = 1) -> bytes:
    own = number(start, stride, count, block, size=width)
    return number(2, 2) + b"\1" + bytes(4) + number(rank) + own * rank


def mappings(*each: bytes, version: int = 0) -> bytes:
    return bytes([version]) + number(len(each), size=8) + b"".join(each)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (mappings(b"\x05f\0d\0" + ALL + ALL, version=1), "mapping 0 has the flags 5"),
        (
            mappings(b"f\0d\0" + slab(0, 2, 2, 1) + slab(0, 1, 3, 1)),
            "mapping 0 is of 2 elements to 3",
        ),
        (
            mappings(b"\x01" + number(0, size=8) + b"d\0" + ALL + ALL, version=1),
            "mapping 0 has the name of a later one",
        ),
        (mappings(b"f\0\0" + ALL + ALL), "a name is missing"),
        (
            mappings(b"f\0d\0" + number(2, 3) + b"\1\3" + number(1) + bytes(60)),
            "a selection in 1 dimensions, of numbers of 3 bytes",
        ),
        (
            mappings(b"f\0d\0" + number(2, 2) + b"\1" + bytes(4) + number(0) + bytes(60)),
            "a selection in 0 dimensions, of numbers of 8 bytes",
        ),
        (mappings(b"f\0d\0" + slab(0, 1, 2, 3) + ALL), "a selection of 2 blocks of 3 every 1"),
        (mappings(b"f\0d\0" + slab(0, 0, 1, 3) + ALL), "a selection of 1 blocks of 3 every 0"),
        (mappings(b"f\0d\0" + ALL + slab(0, 1, 2, 1, rank=2)), "a selection in 2 dimensions of a"),
        (mappings(b"f\0d\0" + ALL + ALL) + b"x", "1 bytes behind the last mapping"),
    ],
)
def test_mappings(message: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_mappings(Cursor(message, FRAME, "the mappings"), (9,))
    assert "the mappings" in str(caught.value)
    assert reason in str(caught.value)


def test_mappings_that_are_right() -> None:
    """Sources in this file are returned, and whether a mapping has no limit."""
    endless = (1 << 64) - 1
    message = mappings(
        b".\0own\0" + slab(0, 2, 3, 1) + slab(0, 3, 3, 1),
        b"other.h5\0d\0" + slab(0, 1, endless, 1) + slab(0, 1, endless, 1),
    )
    assert read_mappings(Cursor(message, FRAME, "the mappings"), (9,)) == ([b"own"], True)
    plain = mappings(b".\0own\0" + ALL + ALL, b".\0own\0" + ALL + ALL)
    assert read_mappings(Cursor(plain, FRAME, "the mappings"), (9,)) == ([b"own"], False)


# -- trees and heaps that contradict what refers to them ------------------------------------------


@pytest.mark.parametrize(
    ("signature", "offset", "new", "which", "reason"),
    [
        (b"BTHD", 4, b"\1", 0, "has version 1"),
        (b"BTHD", 10, b"\5\0", 0, "index records of 5 bytes"),
        (b"BTLF", 6, b"\x2f", 0, "16 bytes in an identifier of 8"),
        (b"BTLF", 6, b"\x23", 0, "an attribute of 4 bytes"),  # the identifier itself is the object
        (b"BTLF", 6, b"\x30", 0, "an identifier that is too short, or of unknown version"),
        (b"FRHP", 132, b"\xff" * 8, 0, "are not in the heap"),  # it has no block at all
        (b"BTLF", 14, number(1 << 40, size=8), 1, "its huge objects are larger than the file"),
    ],
)
def test_indexes_of_heaps(
    heap: bytes, signature: bytes, offset: int, new: bytes, which: int, reason: str
) -> None:
    assert reason in said(changed(heap, signature, offset, new, which))


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (0, "an index with records of type 7"),
        (1, "an index of huge objects with records of type 7"),
    ],
)
def test_indexes_of_other_things(heap: bytes, which: int, reason: str) -> None:
    other = changed(heap, b"BTHD", 5, b"\7", which)
    assert reason in said(changed(other, b"BTLF", 5, b"\7", which))


def test_heaps_without_checksums(heap: bytes) -> None:
    """Whether blocks have a checksum is an option of a heap: then nothing is compared."""
    with verifying(lambda *_: None):
        found = root_of(changed(heap, b"FRHP", 9, b"\0")).attributes
    assert bytes(found["a19"].data) == np.arange(19).tobytes()
    assert bytes(found["large"].data) == np.arange(9000).tobytes()


def test_a_node_that_is_in_a_newer_tree_twice() -> None:
    data = made(groups, libver="latest")
    at = data.index(b"BTIN")
    children = 6 + 7 * 11  # behind seven records of eleven bytes
    first = data[at + children : at + children + 8]
    assert "a node is in it twice" in said(changed(data, b"BTIN", children + 9, first))


# -- messages of headers that are not what they must be -------------------------------------------


def member_of(data: bytes, name: str = "v") -> H5Dataset:
    member = root_of(data).members[name]
    assert isinstance(member, H5Dataset)
    return member


def with_message(
    data: bytes, header: int, kind: int, new: int | None = None, flags: int = 0, body: bytes = b""
) -> bytes:
    """Change type, flags or body of a message of an object header of version 1."""
    at = header + 16
    while int.from_bytes(data[at : at + 2], "little") != kind:
        at += 8 + int.from_bytes(data[at + 2 : at + 4], "little")
    size = int.from_bytes(data[at + 2 : at + 4], "little")
    head = number(kind if new is None else new, size, size=2) + bytes([flags, 0, 0, 0])
    rest = body + data[at + 8 + len(body) : at + 8 + size]
    return data[:at] + head + rest + data[at + len(head + rest) :]


DATATYPE, OLD_FILL, FILL, LAYOUT, UNKNOWN = 3, 4, 5, 8, 0x77


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (DATATYPE, {"new": 0}, "neither a group nor a dataset nor a datatype"),
        (LAYOUT, {"new": 0}, "it has no data layout"),
        (FILL, {"new": UNKNOWN, "flags": 0x80}, "of type 119, which is not known but must be"),
        (FILL, {"body": b"\2\2\2\1" + number(4)}, "a fill value of 4 bytes, elements of 8"),
        (DATATYPE, {"flags": 2, "body": b"\2\0" + b"\xff" * 8}, "message without an address"),
    ],
)
def test_messages_of_a_dataset(kind: int, change: dict[str, Any], reason: str) -> None:
    data = filled()
    assert reason in said(with_message(data, member_of(data).address, kind, **change))


def filled() -> bytes:
    return made(lambda h5: h5.create_dataset("v", (2,), "f8", fillvalue=1.5))


def test_where_a_fill_value_is_stated() -> None:
    """Old HDF5 wrote a message of its own; newer ones write both, of which theirs counts."""
    data, fill = filled(), np.float64(1.5).tobytes()
    header = member_of(data).address
    other = with_message(data, header, OLD_FILL, body=number(8) + np.float64(2.5).tobytes())
    assert member_of(other).fill == fill
    assert member_of(with_message(other, header, FILL, new=0)).fill == np.float64(2.5).tobytes()
    ignored = with_message(other, header, FILL, new=UNKNOWN)  # which does not have to be known
    assert member_of(ignored).fill == np.float64(2.5).tobytes()
    assert member_of(with_message(ignored, header, OLD_FILL, new=0)).fill is None


def test_a_shared_message_of_version_1() -> None:
    """So HDF5 1.4 and older refer to a committed datatype: by an entry of a symbol table."""

    def fill(h5: h5py.File) -> None:
        h5["t"] = np.dtype("f8")
        h5["v"] = np.arange(3.0)

    data = made(fill)
    with h5py.File(io.BytesIO(data)) as h5:
        committed = address_of(h5["t"])
    body = b"\1" + bytes(7) + number(0, committed, size=8)
    found = member_of(with_message(data, member_of(data).address, DATATYPE, flags=2, body=body))
    assert found.type.numpy == np.dtype("f8")


def test_a_table_of_symbols_that_is_shared() -> None:
    root = root_of(PLAIN).address
    shared = with_message(PLAIN, root, 0x11, flags=2, body=b"\2\0" + number(96, size=8))
    assert "symbol table: is a shared message, and must not be" in said(shared)


def test_a_header_that_goes_on_where_it_begins() -> None:
    def fill(h5: h5py.File) -> None:
        h5["v"] = np.arange(3.0)
        for n in range(5):
            h5["v"].attrs[f"a{n}"] = n

    data = made(fill)
    header = member_of(data).address
    again = with_message(data, header, 0x10, body=number(header, size=8))
    assert "its continuation blocks overlap" in said(again)


def test_the_path_of_a_link_leads_through_a_dataset() -> None:
    def fill(h5: h5py.File) -> None:
        h5.create_dataset("v", data=np.arange(6.0))
        h5["link"] = h5py.SoftLink("/v/x")

    assert "a link that leads nowhere: there is no 'x'" in said(made(fill))


def test_a_root_that_is_no_group() -> None:
    assert "root group: it is not a group" in said(
        PLAIN[:64] + number(member_of(PLAIN).address, size=8) + PLAIN[72:]
    )


# -- other chunk indexes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maxshape", "signature", "offset", "new", "reason"),
    [
        (None, b"FAHD", 6, b"\x09", "its chunk index has elements of 9 bytes"),
        ((None, 3), b"EAHD", 6, b"\x09", "its chunk index has elements of 9 bytes"),
        ((None, 3), b"EAHD", 11, b"\0", "cannot have 4 pointers and pages of 2**0"),
        ((None, None), b"BTHD", 5, b"\x09", "its chunk index has records of type 9, 24 bytes"),
        ((None, None), b"BTHD", 10, b"\x19\0", "its chunk index has records of type 10, 25 bytes"),
        ((None, None), b"BTHD", 5, b"\x0b", "its chunk index has records of 24 bytes"),
    ],
)
def test_headers_of_chunk_indexes(
    maxshape: Any, signature: bytes, offset: int, new: bytes, reason: str
) -> None:
    data, _ = chunked(maxshape)
    assert found(data)["size"].tolist() == [16, 16]
    with pytest.raises(FormatError) as caught:
        found(changed(data, signature, offset, new))
    assert "/v" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("maxshape", "signature", "offset"), [((None, 3), b"EAHD", 60), ((None, None), b"BTHD", 16)]
)
def test_chunk_indexes_without_chunks(maxshape: Any, signature: bytes, offset: int) -> None:
    data, _ = chunked(maxshape)
    assert not found(changed(data, signature, offset, b"\xff" * 8))["size"].any()


def test_older_chunk_indexes() -> None:
    def fill(h5: h5py.File) -> None:
        h5.create_dataset("v", data=np.arange(100.0), chunks=(1,))

    data = made(fill, libver="earliest")
    assert found(data)["size"].tolist() == [8, 8]
    beyond = changed(data, b"TREE\1\1", 24 + 24, number(1 << 40, size=8))
    with pytest.raises(FormatError, match=f"of its chunk index is at {1 << 40}, behind the end"):
        found(beyond)


def test_an_older_chunk_index_that_lists_a_chunk_twice() -> None:
    data = made(
        lambda h5: h5.create_dataset("v", data=np.arange(9.0), chunks=(1,)), libver="earliest"
    )
    leaf = data.index(b"TREE\1\0")
    key = data[leaf + 24 : leaf + 48]
    with pytest.raises(FormatError, match="its chunk index lists a chunk twice"):
        found(changed(data, b"TREE\1\0", 24 + 32, key))
