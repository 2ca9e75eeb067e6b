"""The raw metadata of HDF5 files, field by field, against what h5py says of the same file."""

from __future__ import annotations

import ctypes
import io
import struct
from collections.abc import Callable
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from h5py import h5a, h5d, h5f, h5g, h5o, h5p, h5s, h5t
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_xarray.formats.hdf5 import btree2, fractal, header, shared, superblock
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.objects import (
    ChunkedLayout,
    CompactLayout,
    ContiguousLayout,
    Datatype,
    H5Attribute,
    H5Broken,
    H5Dataset,
    H5Group,
    H5NamedType,
    OtherLayout,
)
from nczarr_xarray.formats.hdf5.tree import read_superblock, read_tree
from tests.h5drive import Driven, drive

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
PADDINGS = {
    h5t.STR_NULLTERM: "null-terminated",
    h5t.STR_NULLPAD: "null-padded",
    h5t.STR_SPACEPAD: "space-padded",
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
    assert ours.tracks_order == tracked
    assert list(ours.members) == members_of(group.id, tracked)
    check_attributes(group, ours.attributes)
    for name, member in ours.members.items():
        assert member.name == name
        assert member.order == (group.id.links.get_info(name.encode()).corder if tracked else None)
        there = group.get(name)
        if there is None:
            assert isinstance(member, H5Broken)
        elif isinstance(there, h5py.Group):
            assert isinstance(member, H5Group)
            check_group(there, member)
        elif isinstance(there, h5py.Dataset):
            assert isinstance(member, H5Dataset)
            check_dataset(there, member)
        else:
            assert isinstance(member, H5NamedType)
            assert member.address == member.type.committed == address_of(there)
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
    assert [(one.id, one.values, one.optional) for one in ours.filters] == [
        (code, values, bool(flags & 1)) for code, flags, values, _ in filters
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
        assert (attribute.order is not None) == tracked
        if tracked:
            assert attribute.order == h5a.get_info(there.id, name.encode()).corder
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
    parts = [member.type for member in type_.members if member.type]
    parts += [type_.base] if type_.base else []
    return type_.kind == "vlen" or any(map(variable, parts))


def check_type(there: h5t.TypeID, ours: Datatype) -> None:
    if not variable(ours):  # else libhdf5 says how large it is in memory
        assert ours.size == there.get_size()
    kind = there.get_class()
    if kind == h5t.STRING and there.is_variable_str():
        assert ours.kind == "vlen"
        assert ours.text
        assert ours.utf8 == (there.get_cset() == h5t.CSET_UTF8)
        assert ours.padding == PADDINGS[there.get_strpad()]
        return
    if kind not in KINDS:
        assert ours.kind == "complex"
        return
    assert ours.kind == KINDS[kind]
    if there.committed():
        assert ours.committed == int(h5o.get_info(there).addr)
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
        assert ours.padding == PADDINGS[there.get_strpad()]
        assert ours.utf8 == (there.get_cset() == h5t.CSET_UTF8)
    elif kind == h5t.OPAQUE:
        assert ours.tag == there.get_tag().decode()
    elif kind == h5t.COMPOUND:
        assert len(ours.members) == there.get_nmembers()
        for i, member in enumerate(ours.members):
            assert member.name == there.get_member_name(i).decode()
            if not variable(ours):
                assert member.value == there.get_member_offset(i)
            assert member.type is not None
            check_type(there.get_member_type(i), member.type)
        if ours.numpy is not None and there.dtype.names and not there.dtype.hasobject:
            assert ours.numpy == there.dtype
    elif kind == h5t.ENUM:
        assert {one.name: one.value for one in ours.members} == {
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


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("track_order", [False, True])
def test_everything(libver: str, track_order: bool) -> None:
    check(made(everything, libver=libver, track_order=track_order))


def test_complex_types() -> None:
    def fill(h5: h5py.File) -> None:
        space = h5s.create_simple((2,))
        for name in ("F32LE", "F64BE", "F16LE"):
            type_ = getattr(h5t, f"COMPLEX_IEEE_{name}")
            h5d.create(h5.id, name.encode(), type_, space)

    root: H5Group = read(made(fill, libver="latest")).result
    types = {name: member.type for name, member in root.members.items()}  # type: ignore[union-attr]
    assert {name: (one.kind, one.size, one.numpy) for name, one in types.items()} == {
        "F16LE": ("complex", 4, None),
        "F32LE": ("complex", 8, np.dtype("<c8")),
        "F64BE": ("complex", 16, np.dtype(">c16")),
    }


def test_odd_numbers() -> None:
    """Numbers that no type of numpy is equal to."""

    def fill(h5: h5py.File) -> None:
        space = h5s.create_simple((2,))
        short = h5t.STD_I16LE.copy()
        short.set_precision(12)
        shifted = h5t.STD_U16BE.copy()
        shifted.set_precision(9)
        shifted.set_offset(3)
        brain = h5t.IEEE_F32LE.copy()  # a float of 16 bits, as machine learning likes it
        brain.set_fields(15, 7, 8, 0, 7)
        brain.set_precision(16)
        brain.set_size(2)
        brain.set_ebias(127)
        both = h5t.create(h5t.COMPOUND, 6)
        both.insert(b"short", 0, short)
        both.insert(b"brain", 4, brain)
        names = {"short": short, "shifted": shifted, "brain": brain, "both": both}
        names |= {"time": h5t.UNIX_D32LE, "bits": h5t.STD_B16BE}
        for name, type_ in names.items():
            h5d.create(h5.id, name.encode(), type_, space)

    for libver in ("earliest", "latest"):
        root: H5Group = read(made(fill, libver=libver)).result
        types = {name: one.type for name, one in root.members.items()}  # type: ignore[union-attr]
        assert {name: one.numpy for name, one in types.items()} == {
            "bits": np.dtype(">u2"),
            "both": None,
            "brain": None,
            "shifted": None,
            "short": None,
            "time": None,
        }
        assert [one.name for one in types["both"].members] == ["short", "brain"]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("block", [512, 1024, 4096, 1 << 17])
def test_user_block(libver: str, block: int) -> None:
    data = made(everything, libver=libver, userblock_size=block)
    check(data)
    check(b"\x89HDF" + bytes(range(256)) + data[260:])


@pytest.mark.parametrize("sizes", [(4, 4), (4, 8), (8, 4)])
@pytest.mark.parametrize("libver", [h5f.LIBVER_EARLIEST, h5f.LIBVER_LATEST])
def test_sizes_of_addresses(sizes: tuple[int, int], libver: int) -> None:
    def fill(h5: h5py.File) -> None:
        h5["g/x"] = np.arange(6.0).reshape(2, 3)
        h5["g/x"].attrs["a"] = 1
        for i in range(20):
            h5.attrs[f"a{i}"] = "text"
            h5.create_group(f"many/{i}")

    fapl = h5p.create(h5p.FILE_ACCESS)
    fapl.set_libver_bounds(libver, h5f.LIBVER_LATEST)
    fapl.set_fapl_core(backing_store=False)
    fcpl = h5p.create(h5p.FILE_CREATE)
    fcpl.set_sizes(*sizes)
    with h5py.File(h5f.create(b"sizes", h5f.ACC_TRUNC, fcpl, fapl)) as h5:
        fill(h5)
        h5.flush()
        data = h5.id.get_file_image()
    check(data)


def test_shared_messages() -> None:
    """Datatypes, dataspaces and attributes in the heap of the file."""
    library = ctypes.CDLL(h5p.__file__)
    for minimum in (1, 200):
        fapl = h5p.create(h5p.FILE_ACCESS)
        fapl.set_libver_bounds(h5f.LIBVER_EARLIEST, h5f.LIBVER_LATEST)
        fapl.set_fapl_core(backing_store=False)
        fcpl = h5p.create(h5p.FILE_CREATE)
        ids = ctypes.c_int64(fcpl.id)
        assert library.H5Pset_shared_mesg_nindexes(ids, 2) == 0
        kinds = 1 << 1 | 1 << 3  # dataspaces and datatypes
        others = 1 << 5 | 1 << 11 | 1 << 12  # fill values, pipelines, attributes
        assert library.H5Pset_shared_mesg_index(ids, 0, kinds, minimum) == 0
        assert library.H5Pset_shared_mesg_index(ids, 1, others, minimum) == 0
        with h5py.File(h5f.create(b"shared", h5f.ACC_TRUNC, fcpl, fapl)) as h5:
            everything(h5)
            for i in range(30):
                h5.create_dataset(
                    f"d{i}", (i + 2, 3), "f4", chunks=(2, 3), compression=4, fillvalue=3
                )
                h5["b1"].attrs[f"a{i}"] = "something rather long, again and again"
                h5[f"d{i}"].attrs["same"] = "something rather long, again and again"
            h5.flush()
            data = h5.id.get_file_image()
        assert b"SMTB" in data
        check(data)


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize("track_order", [False, True])
def test_many_members(libver: str, track_order: bool) -> None:
    def fill(h5: h5py.File) -> None:
        for i in range(1200):
            h5.create_group(f"g{i * 7919 % 1200:05d}-{'x' * (i % 50)}")
        for i in range(0, 1200, 3):
            del h5[f"g{i * 7919 % 1200:05d}-{'x' * (i % 50)}"]
        for i in range(1, 100, 3):
            h5.move(f"g{i * 7919 % 1200:05d}-{'x' * (i % 50)}", f"ü{i}")

    data = made(fill, libver=libver, track_order=track_order)
    check(data)
    assert read(data).waves <= 5


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("track_order", [False, True])
def test_many_attributes(libver: str, track_order: bool) -> None:
    def fill(h5: h5py.File) -> None:
        for i in range(300):
            h5.attrs[f"a{i * 31 % 300}"] = np.arange(i)
        for i in range(20):
            h5.attrs[f"text {i}"] = "x" * i
        if libver != "earliest" or track_order:
            for size in (500, 600, 8000, 30000):  # from 4 kB on they are no longer in blocks
                h5.attrs[f"large {size}"] = np.arange(float(size))
        for i in range(0, 300, 4):
            del h5.attrs[f"a{i}"]

    check(made(fill, libver=libver, track_order=track_order))


def test_deep() -> None:
    deepest = "/".join(f"g{i}" for i in range(30))

    def fill(h5: h5py.File) -> None:
        h5[f"{deepest}/x"] = 1
        h5["g0/beside/y"] = 1
        h5["g0/z"] = 2

    data = made(fill)
    check(data)
    root: H5Group = read(data, "g0/g1/", tree=False).result
    g0 = root.members["g0"]
    assert isinstance(g0, H5Group)
    assert isinstance(g0.members["z"], H5Dataset)
    beside, g1 = g0.members["beside"], g0.members["g1"]
    assert isinstance(beside, H5Group)
    assert not beside.loaded
    assert not beside.members
    assert isinstance(g1, H5Group)
    assert g1.loaded
    assert isinstance(g1.members["g2"], H5Group)
    assert not g1.members["g2"].loaded
    below: Any = read(data, "/g0/g1", tree=True).result
    assert not below.members["g0"].members["beside"].loaded
    for name in deepest.split("/"):
        below = below.members[name]
        assert below.loaded
    assert list(below.members) == ["x"]
    for path in ("g1", "g0/none", "g0/z", "g0/z/y"):
        with pytest.raises(DatasetNotFoundError):
            read(data, path)


def test_links_in_circles() -> None:
    def fill(h5: h5py.File) -> None:
        h5["a/b/x"] = 1
        h5["a/b/up"] = h5["a"]
        h5["a/self"] = h5["a"]
        h5["root"] = h5["/"]
        h5["s1"] = h5py.SoftLink("s2")
        h5["s2"] = h5py.SoftLink("/s1/further")
        h5["a/soft up"] = h5py.SoftLink("/a")
        h5["to b"] = h5py.SoftLink("./a//b/")
        h5["again"] = h5py.SoftLink("to b/x")
        h5["chain0"] = h5["a/b/x"]
        for i in range(20):
            h5[f"chain{i + 1}"] = h5py.SoftLink(f"chain{i}")

    data = made(fill)
    root: Any = read(data).result
    assert isinstance(root.members["root"], H5Broken)
    a = root.members["a"]
    assert isinstance(a.members["self"], H5Broken)
    assert isinstance(a.members["soft up"], H5Broken)
    assert isinstance(a.members["b"].members["up"], H5Broken)
    assert isinstance(root.members["s1"], H5Broken)
    assert isinstance(root.members["s2"], H5Broken)
    # as in `a`, of which the same group is a part
    assert list(root.members["to b"].members) == ["up", "x"]
    assert root.members["to b"].name == "to b"
    assert root.members["again"].address == a.members["b"].members["x"].address
    # libhdf5 gives up at the same link
    with h5py.File(io.BytesIO(data)) as h5:
        for i in range(21):
            try:
                kind = H5Dataset if h5[f"chain{i}"] else H5Broken
            except RuntimeError:  # too many links
                kind = H5Broken
            assert isinstance(root.members[f"chain{i}"], kind)
    assert isinstance(read(data, "to b").result.members["to b"].members["x"], H5Dataset)


def test_groups_within_groups_many_times() -> None:
    """Two links to each next group are more paths than can be listed."""

    def fill(h5: h5py.File) -> None:
        group = h5.create_group("g")
        for _ in range(40):
            below = group.create_group("a")
            group["b"] = below
            group = below

    root: H5Group = read(made(fill)).result
    count, pending = 0, [root]
    while pending:
        members = pending.pop().members.values()
        count += len(members)
        pending += [one for one in members if isinstance(one, H5Group)]
    assert 100_000 < count < 500_000


def test_virtual_and_external(tmp_path: Any) -> None:
    def fill(h5: h5py.File) -> None:
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource("other.h5", "x", shape=(4,))
        h5.create_virtual_dataset("virtual", layout)
        h5.create_dataset("external", (4,), "i4", external=[(tmp_path / "raw", 0, 16)])

    root: H5Group = read(made(fill, libver="latest")).result
    layouts = {name: one.layout for name, one in root.members.items()}  # type: ignore[union-attr]
    assert isinstance(layouts["virtual"], OtherLayout)
    assert "virtual" in layouts["virtual"].reason
    assert isinstance(layouts["external"], OtherLayout)
    assert "external" in layouts["external"].reason


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_variable_length(libver: str) -> None:
    texts = ["", "a", "", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "x" * 70_000] + ["y"] * 900
    numbers = [np.arange(i, dtype="i4") for i in (0, 3, 1, 2000)]

    def fill(h5: h5py.File) -> None:
        h5.attrs["texts"] = texts
        vlen = h5py.vlen_dtype("i4")
        h5.attrs.create("numbers", np.array([*numbers, None], object)[:-1], dtype=vlen)
        h5.attrs.create("one", "unit")

    data = made(fill, libver=libver)

    async def parse(name: str, size: int = 1) -> list[bytes]:
        frame, root = await read_superblock("memory", len(data))
        group = await read_tree(frame, root)
        attribute = group.attributes[name]
        shape = attribute.space.shape
        assert shape is not None
        return await resolve_vlen(frame, attribute.data, int(np.prod(shape)), size)

    found = drive(parse("texts"), data)
    assert [bytes(one).decode() for one in found.result] == texts
    assert [bytes(one) for one in drive(parse("one"), data).result] == [b"unit"]
    found = drive(parse("numbers", 4), data)
    assert [np.frombuffer(one, "i4").tolist() for one in found.result] == [
        one.tolist() for one in numbers
    ]

    async def wrong() -> list[bytes]:
        frame, root = await read_superblock("memory", len(data))
        group = await read_tree(frame, root)
        address = bytes(group.attributes["one"].data)[4:12]
        return await resolve_vlen(frame, struct.pack("<I8sI", 3, address, 9999), 1)

    with pytest.raises(FormatError, match="no object 9999"):
        drive(wrong(), data)


def test_netcdf_rounds(tmp_path: Any) -> None:
    """Scattered variables with many attributes: how many rounds of requests."""
    path = tmp_path / "many.nc"
    with netCDF4.Dataset(path, "w") as nc:
        nc.createDimension("time", 12)
        for i in range(120):
            variable = nc.createVariable(
                f"var{i:03d}", "f4", ("time",), zlib=True, chunksizes=(1,), fill_value=1e20
            )
            for k in range(12):
                variable.setncattr(f"attr{k}", f"value {i} {k} " * 3)
            variable[:] = i
            nc.sync()
    data = path.read_bytes()
    found = read(data)
    assert found.waves <= 7
    root: H5Group = found.result
    assert [name for name in root.members if name.startswith("var")] == [
        f"var{i:03d}" for i in range(120)
    ]
    assert len(root.members["var000"].attributes) > 12  # type: ignore[union-attr]
    flat = found.flat
    assert len(set(flat)) == len(flat)  # nothing is read twice
    check(data)


@pytest.mark.parametrize("libver", ["earliest", "v108"])
@pytest.mark.parametrize("track_order", [False, True])
@pytest.mark.parametrize("count", [5, 12])
def test_netcdf_order(libver: str, track_order: bool, count: int, tmp_path: Any) -> None:
    """Variables and attributes are in the order in which netCDF-C has them."""
    names = ["zeta", "b", "alpha", "m10", "m9", "Z", "q", "r", "s", "u", "aa", "ab", "ac", "ad"][
        :count
    ]

    def fill(h5: h5py.File) -> None:
        for name in names:
            h5.create_dataset(name, (2,), "f4")
            h5["zeta"].attrs[name] = h5.attrs[name] = 1
        del h5.attrs["b"], h5["b"]
        h5.attrs["alpha"] = [2, 3]
        h5.attrs["b"] = 4

    data = made(fill, libver=libver, track_order=track_order)
    path = tmp_path / "x.nc"
    path.write_bytes(data)
    root: Any = read(data).result
    with netCDF4.Dataset(path) as nc:
        assert list(root.members) == list(nc.variables)
        assert list(root.attributes) == nc.ncattrs()
        assert list(root.members["zeta"].attributes) == nc["zeta"].ncattrs()


def test_old_messages() -> None:
    """Versions of messages that libhdf5 reads, but has not written for twenty years."""

    def fill(h5: h5py.File) -> None:
        h5["flat"] = np.arange(5, dtype="i4")
        h5.create_dataset("chunked", data=np.arange(7, dtype="i4"), chunks=(3,))
        h5.create_dataset("fields", (2,), np.dtype([("a" * 100, "i4", (2,))]))

    data = made(fill, libver="earliest")
    with h5py.File(io.BytesIO(data)) as h5:
        flat = struct.pack("<Q", h5["flat"].id.get_offset())
    data = replaced(data, b"\3\1" + flat, b"\1\1\1" + bytes(5) + flat + struct.pack("<I", 5))
    address = data[data.index(b"\3\2\2") + 3 :][:8]
    dims = struct.pack("<II", 3, 4)
    data = replaced(data, b"\3\2\2" + address + dims, b"\2\2\2" + bytes(5) + address + dims)
    start = data.index(b"a" * 100) - 8
    field = struct.pack("<8sIB3xI4x4I", b"field", 0, 1, 0, 2, 0, 0, 0)
    number = b"\x10\x08\0\0\4\0\0\0\0\0\x20\0"
    data = replaced(data, data[start : start + 8], b"\x16\1\0\0\x08\0\0\0" + field + number)
    root: Any = check(data)
    assert root.members["fields"].type.numpy == np.dtype([("field", "<i4", (2,))])
    with h5py.File(io.BytesIO(data)) as h5:
        np.testing.assert_array_equal(h5["flat"][:], np.arange(5))
        np.testing.assert_array_equal(h5["chunked"][:], np.arange(7))


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    """`data` with `new` over the only place that begins with `old`."""
    assert data.count(old) == 1
    at = data.index(old)
    return data[:at] + new + data[at + len(new) :]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"\x89HDF\r\n\x1a\n", b"CDF\1" + bytes(5000)])
def test_no_hdf5(data: bytes) -> None:
    with pytest.raises(FormatError):
        read(data)


def dense(h5: h5py.File) -> None:
    for i in range(40):
        h5.create_group(f"g{i}").attrs["x"] = i
    for i in range(20):
        h5.attrs[f"a{i}"] = "x" * (i * 37)
    h5.attrs["huge"] = np.arange(3000.0)


DENSE = made(dense, libver="v108", track_order=True)


def harmless(data: bytes) -> None:
    """Reading gives a tree or an error, within bounds."""
    try:
        found = read(data)
    except NCZarrError as error:
        assert str(error)
        return
    assert found.waves < 60
    assert sum(length for _, length in found.flat) < 4_000_000


SAMPLES = {
    libver: made(everything, libver=libver, track_order=order)
    for libver, order in (("earliest", False), ("v108", True), ("latest", False))
}


@pytest.mark.parametrize("libver", SAMPLES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage(libver: str, data: st.DataObject) -> None:
    sample = bytearray(SAMPLES[libver])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sample) - 9))
        kind = data.draw(st.sampled_from(["bit", "byte", "ones", "copy"]))
        if kind == "bit":
            sample[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "byte":
            sample[at] = data.draw(st.integers(0, 255))
        elif kind == "ones":
            sample[at : at + 8] = b"\xff" * 8
        else:
            source = data.draw(st.integers(0, len(sample) - 9))
            sample[at : at + 8] = sample[source : source + 8]
    harmless(bytes(sample))


@pytest.mark.parametrize("libver", SAMPLES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cut_off(libver: str, data: st.DataObject) -> None:
    sample = SAMPLES[libver]
    harmless(sample[: data.draw(st.integers(0, len(sample)))])


class Equal(int):
    """Is equal to any checksum."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_malice(data: st.DataObject) -> None:
    """Checksums do not help against those who compute them: here nobody looks at them."""
    sample = bytearray(DENSE)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(sample) - 9))
        value = data.draw(st.one_of(st.integers(0, len(sample)), st.integers(0, 2**64 - 1)))
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        sample[at : at + width] = (value % 256**width).to_bytes(width, "little")
    with pytest.MonkeyPatch.context() as patch:
        for module in (btree2, fractal, header, shared, superblock):
            patch.setattr(module, "verify", lambda *_: None)
        patch.setattr(fractal, "lookup3", lambda _: Equal())
        harmless(bytes(sample))


def test_checksums() -> None:
    """In the newest format a damaged byte of the metadata is noticed, wherever it is."""

    def fill(h5: h5py.File) -> None:
        for i in range(30):
            h5[f"d{i}"] = 1.0
            h5["d0"].attrs[f"a{i}"] = i

    data = made(fill, libver="latest")
    read_there = [extent for extent in read(data).flat if extent[1] not in (2048, 4096, 256)]
    assert read_there
    good = repr(read(data).result)
    for start, length in read_there:
        damaged = bytearray(data)
        damaged[start + length // 2] ^= 0x10
        try:
            assert repr(read(bytes(damaged)).result) != good
        except FormatError as error:
            assert "checksum" in str(error)
