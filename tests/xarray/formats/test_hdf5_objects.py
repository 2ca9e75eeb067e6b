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
from h5py import h5d, h5f, h5p, h5s, h5t

from nczarr_fsspec.errors import DatasetNotFoundError, FormatError, NCZarrError
from nczarr_xarray.formats.hdf5.datasets import H5Dataset, OtherLayout
from nczarr_xarray.formats.hdf5.header import read_superblock
from nczarr_xarray.formats.hdf5.heaps import resolve_vlen
from nczarr_xarray.formats.hdf5.tree import H5Group, read_tree
from tests.support.builders.h5drive import drive
from tests.support.builders.h5objects import LIBVERS, check, everything, made, read
from tests.support.marks import each_once


@pytest.mark.parametrize(("libver", "track_order"), each_once(LIBVERS, [False, True]))
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


def with_shared_heap(fill: Callable[[h5py.File], None], minimum: int = 1) -> bytes:
    """The bytes of a file with a heap of shared messages of at least `minimum` bytes."""
    library = ctypes.CDLL(h5p.__file__)
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
        fill(h5)
        h5.flush()
        data: bytes = h5.id.get_file_image()
    assert b"SMTB" in data
    return data


@pytest.mark.parametrize("minimum", [1, 200])
def test_shared_messages(minimum: int) -> None:
    """Datatypes, dataspaces and attributes in the heap of the file."""

    def fill(h5: h5py.File) -> None:
        everything(h5)
        for i in range(30):
            h5.create_dataset(f"d{i}", (i + 2, 3), "f4", chunks=(2, 3), compression=4, fillvalue=3)
            h5["b1"].attrs[f"a{i}"] = "something rather long, again and again"
            h5[f"d{i}"].attrs["same"] = "something rather long, again and again"

    check(with_shared_heap(fill, minimum))


def test_shared_messages_are_read_once() -> None:
    """However many objects have them: the file is read about once, not once for each."""

    def fill(h5: h5py.File) -> None:
        for i in range(200):
            h5.create_dataset(f"d{i}", (i % 7 + 1,), "f4").attrs["text"] = f"some text {i}"

    data = with_shared_heap(fill)
    found = read(data)
    assert sum(length for _, length in found.flat) < 5 * len(data)
    assert len(found.flat) < 450
    check(data)


def test_committed_types_are_read_once() -> None:
    def fill(h5: h5py.File) -> None:
        h5["type"] = np.dtype([("a", "f4"), ("b", "i2")])
        for i in range(100):
            h5.create_dataset(f"d{i}", (2,), dtype=h5["type"])

    data = made(fill, libver="latest")
    flat = read(data).flat
    with h5py.File(io.BytesIO(data)) as h5:
        address = int(h5py.h5o.get_info(h5["type"].id).addr)
    assert [start for start, _ in flat].count(address) <= 2  # as a member, and for all the others
    check(data)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_links_of_a_group_are_read_once(libver: str) -> None:
    """However many soft links lead through it."""

    def fill(h5: h5py.File) -> None:
        for i in range(150):
            h5[f"a/b/d{i}"] = i
            h5[f"z/s{i}"] = h5py.SoftLink(f"/a/b/d{i}")

    data = made(fill, libver=libver)
    assert sum(length for _, length in read(data).flat) < 10 * len(data)
    check(data)


@pytest.mark.parametrize(
    ("libver", "track_order"), each_once(["earliest", "v108", "latest"], [False, True])
)
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
    assert read(data).rounds <= 5


@pytest.mark.parametrize(("libver", "track_order"), each_once(LIBVERS, [False, True]))
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
    assert isinstance(root.members["root"], NCZarrError)
    a = root.members["a"]
    assert isinstance(a.members["self"], NCZarrError)
    assert isinstance(a.members["soft up"], NCZarrError)
    assert isinstance(a.members["b"].members["up"], NCZarrError)
    assert isinstance(root.members["s1"], NCZarrError)
    assert isinstance(root.members["s2"], NCZarrError)
    # as in `a`, of which the same group is a part
    assert list(root.members["to b"].members) == ["up", "x"]
    assert root.members["to b"].name == "to b"
    assert root.members["again"].address == a.members["b"].members["x"].address
    # libhdf5 gives up at the same link
    with h5py.File(io.BytesIO(data)) as h5:
        for i in range(21):
            try:
                kind = H5Dataset if h5[f"chain{i}"] else NCZarrError
            except RuntimeError:  # too many links
                kind = NCZarrError
            assert isinstance(root.members[f"chain{i}"], kind)
    assert isinstance(read(data, "to b").result.members["to b"].members["x"], H5Dataset)


@pytest.mark.slow
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
        return await resolve_vlen(frame, attribute.data, np.full(int(np.prod(shape)), size))

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
        return await resolve_vlen(frame, struct.pack("<I8sI", 3, address, 9999), np.ones(1, int))

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
    assert found.rounds <= 7
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
