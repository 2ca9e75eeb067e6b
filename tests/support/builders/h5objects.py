"""HDF5 files of all sorts in memory, and h5py's view of them to compare ours with."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5o, h5p, h5s, h5t

from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.formats.hdf5.attributes import H5Attribute
from nczarr_xarray.formats.hdf5.datasets import (
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    H5Dataset,
    H5NamedType,
    OtherLayout,
)
from nczarr_xarray.formats.hdf5.datatypes import Datatype
from nczarr_xarray.formats.hdf5.header import read_superblock
from nczarr_xarray.formats.hdf5.tree import H5Group, read_tree
from tests.support.builders.h5drive import Driven, drive

LIBVERS = ["earliest", "v108", "v110", "v112", "v114", "latest"]
KINDS = {
    h5t.INTEGER: "integer",
    h5t.FLOAT: "float",
    h5t.TIME: "time",
    h5t.STRING: "string",
    h5t.BITFIELD: "bitfield",
    h5t.OPAQUE: "opaque",
    h5t.COMPOUND: "compound",
    h5t.REFERENCE: "reference",
    h5t.ENUM: "enum",
    h5t.VLEN: "vlen",
    h5t.ARRAY: "array",
}


def read(data: bytes, path: str = "", tree: bool = True) -> Driven:
    async def parse() -> H5Group:
        frame, root = await read_superblock("memory", len(data))
        return await read_tree(frame, root, path, tree)

    return drive(parse(), data, head=1 << 16)


def made(fill: Callable[[h5py.File], None], **options: Any) -> bytes:
    """The bytes of a file that `fill` fills."""
    file = io.BytesIO()
    with h5py.File(file, "w", **options) as h5:
        fill(h5)
    return file.getvalue()


# -- the oracle -----------------------------------------------------------------------------------


def check(data: bytes) -> H5Group:
    """Compare all that there is in a file with h5py's view; returns our root group."""
    root: H5Group = read(data).result
    with h5py.File(io.BytesIO(data), "r") as h5:
        check_group(h5["/"], root)
    return root


def address_of(obj: Any) -> int:
    return int(h5o.get_info(obj.id).addr)


def check_group(group: h5py.Group, ours: H5Group) -> None:
    assert ours.loaded
    assert not ours.problems
    assert ours.address == address_of(group)
    tracked = bool(group.id.get_create_plist().get_link_creation_order() & h5p.CRT_ORDER_TRACKED)
    assert list(ours.members) == members_of(group.id, tracked)
    check_attributes(group, ours.attributes)
    for name, member in ours.members.items():
        there = group.get(name)
        if there is None:
            assert isinstance(member, NCZarrError)
            continue
        assert not isinstance(member, NCZarrError)
        assert member.name == name
        if isinstance(there, h5py.Group):
            assert isinstance(member, H5Group)
            check_group(there, member)
        elif isinstance(there, h5py.Dataset):
            assert isinstance(member, H5Dataset)
            check_dataset(there, member)
        else:
            assert isinstance(member, H5NamedType)
            check_type(there.id, member.type)


def members_of(group: h5g.GroupID, tracked: bool) -> list[str]:
    names: list[bytes] = []
    index = h5py.h5.INDEX_CRT_ORDER if tracked else h5py.h5.INDEX_NAME
    group.links.iterate(names.append, idx_type=index, order=h5py.h5.ITER_INC)
    return [name.decode() for name in names]


def check_dataset(there: h5py.Dataset, ours: H5Dataset) -> None:
    assert not ours.problems
    assert ours.address == address_of(there)
    check_type(there.id.get_type(), ours.type)
    check_space(there.id.get_space(), ours)
    check_attributes(there, ours.attributes)
    plist = there.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    assert [(one.id, one.values) for one in ours.filters] == [
        (code, values) for code, _, values, _ in filters
    ]
    if plist.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED and ours.type.kind != "vlen":
        fill = np.zeros((), dtype=f"V{ours.type.size}")
        dtype = there.dtype if ours.type.numpy is None else ours.type.numpy
        wanted = np.zeros((), dtype=dtype)
        plist.get_fill_value(wanted)
        assert ours.fill is not None
        fill = np.frombuffer(ours.fill, dtype=dtype)[0]
        np.testing.assert_array_equal(fill, wanted)
    elif ours.type.kind != "vlen":
        assert ours.fill is None
    layout = plist.get_layout()
    if layout == h5d.CHUNKED:
        assert isinstance(ours.layout, ChunkedLayout)
        assert ours.layout.chunk_shape == plist.get_chunk()
        assert ours.layout.element_size == ours.type.size
        assert (ours.layout.address is None) == (there.id.get_num_chunks() == 0)
    elif layout == h5d.COMPACT:
        assert isinstance(ours.layout, CompactLayout)
        if ours.type.kind != "vlen":
            raw = np.zeros(there.shape or (), dtype=f"V{ours.type.size}")
            there.id.read(h5s.ALL, h5s.ALL, raw, there.id.get_type())
            assert bytes(ours.layout.data) == raw.tobytes()
    elif layout == h5d.CONTIGUOUS and not plist.get_external_count():
        assert isinstance(ours.layout, ContiguousLayout)
        start, offset = there.file.userblock_size, there.id.get_offset()
        if offset is None or offset == start - 1:  # h5py adds a user block to "undefined"
            assert ours.layout.address is None
        else:
            assert ours.layout.address == offset - start
        assert ours.layout.size == there.size * ours.type.size if there.shape is not None else True
    else:
        assert isinstance(ours.layout, OtherLayout)


def check_space(space: h5s.SpaceID, ours: H5Dataset | H5Attribute) -> None:
    kind = space.get_simple_extent_type()
    if kind == h5s.NULL:
        assert ours.space.shape is None
        return
    assert ours.space.shape == space.get_simple_extent_dims()
    limits = space.get_simple_extent_dims(True)
    assert ours.space.maxshape == tuple(
        None if limit == h5s.UNLIMITED else limit for limit in limits
    )


def check_attributes(there: Any, ours: dict[str, H5Attribute]) -> None:
    with_order = there.id.get_create_plist().get_attr_creation_order()
    tracked = bool(with_order & h5p.CRT_ORDER_TRACKED)
    names: list[bytes] = []
    if tracked:
        h5a.iterate(there.id, names.append, index_type=h5py.h5.INDEX_CRT_ORDER)
    else:
        h5a.iterate(there.id, names.append)
    wanted = [name.decode() for name in names]
    assert (list(ours) if tracked else sorted(ours)) == (wanted if tracked else sorted(wanted))
    for name, attribute in ours.items():
        id_ = h5a.open(there.id, name.encode())
        assert attribute.name == name
        check_type(id_.get_type(), attribute.type)
        check_space(id_.get_space(), attribute)
        shape = attribute.space.shape
        if shape is None:
            assert attribute.data == b""
        elif not variable(attribute.type):
            raw = np.zeros(shape, dtype=f"V{attribute.type.size}")
            id_.read(raw, id_.get_type())
            assert bytes(attribute.data) == raw.tobytes()


def variable(type_: Datatype) -> bool:
    """Whether some of the bytes of a type are elsewhere (h5py then has pointers for them)."""
    parts = [member.type for member in type_.members]
    parts += [type_.base] if type_.base else []
    return type_.kind == "vlen" or any(map(variable, parts))


def check_type(there: h5t.TypeID, ours: Datatype) -> None:
    if not variable(ours):  # else libhdf5 says how large it is in memory
        assert ours.size == there.get_size()
    kind = there.get_class()
    if kind == h5t.STRING and there.is_variable_str():
        assert ours.kind == "vlen"
        assert ours.text
        return
    if kind not in KINDS:
        assert ours.kind == "complex"
        return
    assert ours.kind == KINDS[kind]
    if kind in (h5t.INTEGER, h5t.FLOAT, h5t.BITFIELD):
        if ours.numpy is not None:
            assert ours.numpy == there.dtype
            assert ours.numpy.newbyteorder("=") == there.dtype.newbyteorder("=")
        else:
            assert there.get_precision() != 8 * there.get_size() or there.get_size() not in (
                2,
                4,
                8,
            )
    elif kind == h5t.STRING:
        assert ours.numpy == np.dtype(f"S{there.get_size()}")
    elif kind == h5t.OPAQUE:
        assert ours.tag == there.get_tag().decode()
    elif kind == h5t.COMPOUND:
        assert len(ours.members) == there.get_nmembers()
        for i, member in enumerate(ours.members):
            assert member.name == there.get_member_name(i).decode()
            if not variable(ours):
                assert member.offset == there.get_member_offset(i)
            check_type(there.get_member_type(i), member.type)
        if ours.numpy is not None and there.dtype.names and not there.dtype.hasobject:
            assert ours.numpy == there.dtype
    elif kind == h5t.ENUM:
        assert dict(ours.enum) == {
            there.get_member_name(i).decode(): there.get_member_value(i)
            for i in range(there.get_nmembers())
        }
        assert ours.base is not None
        check_type(there.get_super(), ours.base)
    elif kind == h5t.ARRAY:
        assert ours.shape == there.get_array_dims()
        assert ours.base is not None
        check_type(there.get_super(), ours.base)
    elif kind == h5t.VLEN:
        assert ours.base is not None
        check_type(there.get_super(), ours.base)


# -- files of all versions ------------------------------------------------------------------------


def everything(h5: h5py.File) -> None:
    """Groups, datasets of all layouts, attributes of all types."""
    h5.attrs["title"] = "all sorts"
    h5.attrs["empty"] = h5py.Empty("f4")
    h5.attrs["long"] = np.arange(3000, dtype=">i8")
    h5["scalar"] = np.float32(1.5)
    h5["null"] = h5py.Empty("i2")
    h5["zero"] = np.zeros((0, 3), "u1")
    h5["contiguous"] = np.arange(12, dtype=">u2").reshape(3, 4)
    h5.create_dataset("never", shape=(4, 5), dtype="f8", fillvalue=-1.5)
    h5.create_dataset("b1", (5, 6), "i4", chunks=(2, 3), compression="gzip", shuffle=True)
    h5["b1"][:] = 1
    h5.create_dataset("ea", (5, 6), "i4", chunks=(2, 3), maxshape=(None, 6), fletcher32=True)
    h5.create_dataset("b2", (5, 6), "f2", chunks=(2, 3), maxshape=(None, None), fillvalue=7)
    h5["b2"][:] = 2
    h5.create_dataset("single", data=np.ones((5, 6)), chunks=(5, 6), compression="lzf")
    h5.create_dataset("szoff", (5, 6), "i4", chunks=(5, 3), scaleoffset=4)
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_layout(h5d.COMPACT)
    space = h5s.create_simple((3,))
    compact = h5d.create(h5.id, b"compact", h5t.STD_I32BE, space, plist)
    compact.write(h5s.ALL, h5s.ALL, np.arange(3, dtype="i4"))
    early = h5p.create(h5p.DATASET_CREATE)
    early.set_chunk((2,))
    early.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    h5d.create(h5.id, b"implicit", h5t.NATIVE_INT32, space, early)
    h5.create_group("g/h/i").attrs["deep"] = 3
    h5["g/h/däta\N{SNOWMAN}"] = np.arange(3)
    h5["g/hard"] = h5["contiguous"]
    h5["g/soft"] = h5py.SoftLink("h/i")
    h5["g/absolute"] = h5py.SoftLink("/scalar")
    h5["g/dangling"] = h5py.SoftLink("/no/where")
    h5["g/elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    types(h5)


def types(h5: h5py.File) -> None:
    """A dataset and an attribute of each class of types."""
    inner = np.dtype([("x", "f4"), ("y", ">i2")])
    enum = h5py.enum_dtype({"RED": 0, "GREEN": -1, "BLÜE": 42}, "i2")
    each: dict[str, Any] = {
        **{code: code for code in ("i1", ">u8", "<f2", ">f4", "f8", "S1", "S7", "V5", "?")},
        "c8": "c8",
        "long double": np.longdouble,
        "enum": enum,
        "text": h5py.string_dtype("utf-8"),
        "ascii": h5py.string_dtype("ascii"),
        "fixed": h5py.string_dtype("utf-8", 9),
        "vlen": h5py.vlen_dtype("i4"),
        "compound": np.dtype([("a", "i1"), ("b", inner), ("c", "f8", (2, 3)), ("e", enum)]),
        "array": np.dtype(("f4", (2, 3))),
        "reference": h5py.ref_dtype,
        "region": h5py.regionref_dtype,
        "padded": np.dtype({"names": ["p"], "formats": ["u2"], "offsets": [300], "itemsize": 999}),
        "with text": np.dtype([("n", "i4"), ("t", h5py.string_dtype())]),
    }
    group = h5.create_group("types")
    named = h5.create_group("named")
    for name, dtype in each.items():
        h5t.py_create(np.dtype(dtype), logical=True).copy().commit(named.id, name.encode())
        group.create_dataset(name, (2,), dtype=dtype)
        group.create_dataset(f"{name} named", (2,), dtype=named[name])
        h5a.create(group.id, name.encode(), named[name].id, h5s.create(h5s.SCALAR))


class Equal(int):
    """Is equal to any checksum."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False
