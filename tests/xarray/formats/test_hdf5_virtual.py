"""Virtual datasets: libhdf5 reads them, if their description is fit for it."""

from __future__ import annotations

import os
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import FormatError, NCZarrError, NCZarrWarning, UnsupportedError
from nczarr_fsspec.ranges.local import MemoryBytes
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.formats.hdf5 import through_h5py
from nczarr_xarray.formats.hdf5.binary import lookup3
from nczarr_xarray.formats.hdf5.through_h5py import H5pyReader
from tests.support.examples import examples
from tests.support.faults.filepromises import RemoteMemory

_READ_BOX = H5pyReader.read_box


def _source(folder: Path, number: int) -> Any:
    path = folder / f"source{number}.h5"
    if not path.exists():
        with h5py.File(path, "w") as f:
            f.create_dataset("d", data=np.arange(60).reshape(6, 10) + 100 * number)
    return h5py.VirtualSource(path.name, "d", (6, 10), maxshape=(None, 10))


def _layout(folder: Path, kind: str) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((24, 10), "i8", maxshape=(None, 10))
    sources = [_source(folder, number) for number in range(4)]
    if kind == "rows":
        for number, source in enumerate(sources):
            layout[6 * number : 6 * number + 6] = source
    elif kind == "strides":
        for number, source in enumerate(sources):
            layout[number::4] = source
    elif kind == "parts":
        layout[0:3, 2:5] = sources[1][1:4, 0:9:3]
    elif kind == "lists":
        layout[[1, 5, 9]] = sources[2][0:3]
    elif kind == "same file":
        for number in range(2):
            layout[6 * number : 6 * number + 6] = h5py.VirtualSource(".", "/./own", (6, 10))
    elif kind == "shared names":
        for number in range(4):
            name = f"{'long' * 20}{number % 2}.h5"
            with h5py.File(folder / name, "a") as f:
                f.require_dataset("d" * 40, (6, 10), "i8")[...] = number % 2
            layout[6 * number : 6 * number + 6] = h5py.VirtualSource(name, "d" * 40, (6, 10))
    elif kind == "unlimited":
        layout[0 : h5py.h5s.UNLIMITED] = sources[0][0 : h5py.h5s.UNLIMITED]
    return layout


@pytest.mark.parametrize("libver", ["earliest", "v112", "v114", "latest"])
@pytest.mark.parametrize(
    "kind",
    ["rows", "strides", "parts", "lists", "unlimited", "nothing", "same file", "shared names"],
)
def test_mappings_of_all_kinds(tmp_path: Path, libver: str, kind: str) -> None:
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w", libver=libver) as f:
        f["g/x"] = np.arange(60).reshape(6, 10)
        f["own"] = h5py.SoftLink("g/./x")
        f.create_virtual_dataset("v", _layout(tmp_path, kind), fillvalue=-1)
    with h5py.File(path) as f, xr.open_dataset(path, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"].values, f["v"][...])
        np.testing.assert_array_equal(ds["v"][3:20:5, ::-1].values, f["v"][3:20:5][:, ::-1])


@pytest.fixture(scope="module")
def good() -> bytes:
    """A file whose dataset ``v`` has all of ``s``."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as f:
        f["s"] = np.arange(5)
        layout = h5py.VirtualLayout((5,), "i8")
        layout[:] = h5py.VirtualSource(f["s"])
        f.create_virtual_dataset("v", layout)
        f.flush()
        return bytes(f.id.get_file_image())


def _refused(data: bytes) -> str:
    """Why ``v`` is not read; libhdf5 is not asked, and ``s`` is as it was."""
    unasked = mock.patch.object(h5py, "File", side_effect=AssertionError("libhdf5 is asked"))
    with open_hierarchy(MemoryBytes(data, "memory")) as opened, unasked:
        variables = opened.hierarchy.root.variables
        np.testing.assert_array_equal(opened.read(variables["s"]), np.arange(5))
        with pytest.raises(FormatError) as caught:
            opened.read(variables["v"])
    return str(caught.value)


def test_damaged_heaps_are_refused(good: bytes) -> None:
    heap = good.index(b"GCOL")
    size = int.from_bytes(good[heap + 24 : heap + 32], "little")
    gap = heap + 32 + size + -size % 8
    # of the last two libhdf5 2.0 never comes back
    for at, change, reason in (
        (heap + 40, 0xFF, "checksum"),
        (heap + 16, 7, "no object 1"),
        (gap + 9, 1, "do not cover it"),
        (gap + 9, 0, "do not cover it"),
    ):
        data = bytearray(good)
        data[at] = change
        assert reason in _refused(bytes(data))
    data = bytearray(good)
    data[gap + 8 : gap + 16] = bytes(8)
    assert "do not cover it" in _refused(bytes(data))


@pytest.mark.parametrize(
    ("start", "change", "reason"),
    [
        (0, b"\2", "has version 2"),
        (1, b"\2", "2 mappings in|behind the last|selection|name"),
        (1, b"\0", "bytes behind the last mapping"),
        (1, struct.pack("<Q", 1 << 40), "mappings in"),
        (9, b"\0", "a name is missing"),
        (11, b"/v\0", "/v.*a virtual dataset"),
        (-48, struct.pack("<I", 4), "of type 4"),
        (-44, struct.pack("<I", 9), "version 9"),
        (-40, b"\1", "with bounds"),
        (-32, b"\1", "of type 1"),
        (-16, b"\2", "in 2 dimensions"),
        (-12, b"\7", "of 7 blocks"),
        (-8, b"\6", "from 6 to 5"),
        (-4, b"\7", "from 0 to 8 of 5"),
    ],
)
def test_forged_mappings_are_refused(good: bytes, start: int, change: bytes, reason: str) -> None:
    heap = good.index(b"GCOL")
    size = int.from_bytes(good[heap + 24 : heap + 32], "little")
    block = bytearray(good[heap + 32 : heap + 32 + size - 4])
    # version (1 byte), number (8), names; a selection of all (16), one of a block (32)
    start %= len(block)
    block[start : start + len(change)] = change
    data = bytearray(good)
    data[heap + 32 : heap + 32 + size] = bytes(block) + struct.pack("<I", lookup3(bytes(block)))
    found = _refused(bytes(data))
    assert re.search(reason, found), found


def _virtual(file: h5py.File, name: str, other: str, path: str) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(other, path, (4,))
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("far", [False, True])
def test_no_source_in_the_same_file_leads_away(tmp_path: Path, libver: str, far: bool) -> None:
    """libhdf5 would end the process (circles), or read files of this machine."""
    (tmp_path / "secret").write_bytes(b"SECRET!!" * 4)
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["x"] = np.arange(4.0) + 100
    path = tmp_path / "virtual.h5"
    with h5py.File(path, "w", libver=libver) as f:
        f["plain"] = np.arange(4.0)
        f["far"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        f["group"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
        f["soft"] = h5py.SoftLink("/far")
        outside = [(str(tmp_path / "secret"), 0, 32)]
        f.create_dataset("outside", (4,), "f8", external=outside)
        _virtual(f, "a", ".", "/b")
        _virtual(f, "b", ".", "a")
        _virtual(f, "itself", ".", "/./itself")
        for name in ("far", "soft", "group/x", "outside", "plain/x", "gone"):
            _virtual(f, f"of {name.replace('/', ' ')}", ".", name)
        _virtual(f, "by name", "virtual.h5", "by name")
        _virtual(f, "good", ".", "//./plain")
    target = RemoteMemory(path.read_bytes()) if far else path
    with open_hierarchy(target) as opened:
        variables = opened.hierarchy.root.variables
        np.testing.assert_array_equal(opened.read(variables["good"]), np.arange(4.0))
        bad = [name for name in variables if name[:2] in ("of", "by") or name in "a b itself"]
        assert len(bad) == 10
        for name in bad:
            with pytest.raises(NCZarrError, match=r"source|beside this one"):
                opened.read(variables[name])


def test_patterns_of_names_in_the_same_file_are_refused() -> None:
    with h5py.File("memory", "w", driver="core", backing_store=False) as f:
        f["x0"] = np.arange(4.0)
        layout = h5py.VirtualLayout((4,), "f8", maxshape=(None,))
        view = h5py.VirtualSource(".", "x%b", (4,))
        space = layout_space = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,))
        space.select_hyperslab((0,), (h5py.h5s.UNLIMITED,), stride=(4,), block=(4,))
        layout.dcpl.set_virtual(layout_space, b".", b"x%b", view.sel.id)
        f.create_virtual_dataset("v", layout)
        f.flush()
        data = f.id.get_file_image()
    with open_hierarchy(MemoryBytes(data, "memory")) as opened:
        with pytest.raises(UnsupportedError, match="named by a pattern"):
            opened.read(opened.hierarchy.root.variables["v"])


@pytest.mark.parametrize("group", ["", "deep/er"])
def test_sources_in_groups_that_nobody_asked_for(group: str) -> None:
    with h5py.File("memory", "w", driver="core", backing_store=False) as f:
        f["beside/it/v"] = np.arange(4.0)
        _virtual(f.require_group("deep/er"), "v", ".", "beside/it/v")
        f.flush()
        data = f.id.get_file_image()
    with open_hierarchy(MemoryBytes(data, "memory"), group=group) as opened:
        variable = opened.hierarchy.root.groups["deep"].groups["er"].variables["v"]
        np.testing.assert_array_equal(opened.read(variable), np.arange(4.0))


def test_what_libhdf5_finds_by_another_way_is_refused(good: bytes, tmp_path: Path) -> None:
    """Whatever our own code made of the file: libhdf5 follows no link out of it."""
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["x"] = np.arange(5)
    path = tmp_path / "virtual.h5"
    path.write_bytes(good)
    for link in (h5py.ExternalLink(str(tmp_path / "other.h5"), "x"), h5py.SoftLink("v")):
        source = RemoteMemory(good)
        with open_hierarchy(source) as opened:
            variable = opened.hierarchy.root.variables["v"]
            reader = opened.reader(variable)
            with h5py.File(path, "r+") as f:
                del f["s"]
                f["s"] = link
            source.data = path.read_bytes()
            source.size = len(source.data)
            with pytest.raises(NCZarrError, match=r"is not in this file|no data of its own"):
                reader.read()


# -- extents that follow from the sources ------------------------------------------------------

U = h5py.h5s.UNLIMITED


def _growing(folder: Path, stored: int, length: int) -> Path:
    """A virtual dataset without limit, `stored` long when made, of a source that is `length`."""
    path = folder / "virtual.h5"
    with h5py.File(folder / "source.h5", "w") as f:
        f.create_dataset("d", data=np.arange(2.0 * length).reshape(-1, 2), maxshape=(None, 2))
    with h5py.File(path, "w", libver="latest") as f:
        layout = h5py.VirtualLayout((stored, 2), "f8", maxshape=(None, 2))
        layout[0:U] = h5py.VirtualSource("source.h5", "d", (length, 2), maxshape=(None, 2))[0:U]
        f.create_virtual_dataset("v", layout, fillvalue=-1)
        f["w"] = np.arange(stored)
    return path


@pytest.mark.parametrize(("stored", "length"), [(4, 10), (4, 4), (10, 4), (4, 1)])
def test_a_source_that_grew(tmp_path: Path, stored: int, length: int) -> None:
    path = _growing(tmp_path, stored, length)
    with h5py.File(path) as f:
        expected = f["v"][...]
    theirs = xr.open_dataset(path, engine="netcdf4")
    with theirs, xr.open_dataset(path, engine="nczarr") as ds:
        assert ds["v"].shape == theirs["v"].shape == expected.shape
        np.testing.assert_array_equal(ds["v"].values, expected)
        np.testing.assert_array_equal(ds["v"][::-2, 1].values, expected[::-2, 1])
        assert ds["w"].shape == (stored,)


@pytest.mark.parametrize("files", [1, 3])
def test_sources_by_a_pattern(tmp_path: Path, files: int) -> None:
    for number in [*range(files), files + 1]:  # the one behind the gap does not count
        with h5py.File(tmp_path / f"100%-{number}.h5", "w") as f:
            f["d"] = np.arange(5) + 10 * number
    path = tmp_path / "virtual.h5"
    _pattern(path, b"100%%-%b.h5")
    with h5py.File(path) as f, xr.open_dataset(path, engine="nczarr") as ds:
        assert ds["v"].shape == (files, 5)
        np.testing.assert_array_equal(ds["v"].values, f["v"][...])


def _pattern(path: Path, name: bytes) -> None:
    with h5py.File(path, "w", libver="latest") as f:
        rows = h5py.h5s.create_simple((1, 5), (U, 5))
        rows.select_hyperslab((0, 0), (U, 1), (1, 1), (1, 5))
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_virtual(rows, name, b"d", h5py.h5s.create_simple((5,)))
        space = h5py.h5s.create_simple((1, 5), (U, 5))
        h5py.h5d.create(f.id, b"v", h5py.h5t.STD_I64LE, space, properties)


def test_patterns_that_no_file_has(tmp_path: Path) -> None:
    path = tmp_path / "virtual.h5"
    _pattern(path, b"f-%b.h5")
    with pytest.warns(NCZarrWarning, match=r"'/v' .*'f-0\.h5', which is not there"):
        ds = xr.open_dataset(path, engine="nczarr")
    with ds, pytest.raises(NCZarrError, match=r"'f-0\.h5', which is not there"):
        ds["v"].load()


def test_a_growing_source_that_is_not_there(tmp_path: Path) -> None:
    path = _growing(tmp_path, 4, 10)
    (tmp_path / "source.h5").unlink()
    with open_hierarchy(path) as opened:
        error = opened.hierarchy.root.variables["v"].error
        assert "'source.h5', which is not there" in str(error)
        assert opened.read(opened.hierarchy.root.variables["w"]).tolist() == [0, 1, 2, 3]


def test_extents_of_remote_files_are_not_guessed(tmp_path: Path) -> None:
    path = _growing(tmp_path, 4, 10)
    with open_hierarchy(RemoteMemory(path.read_bytes())) as opened:
        variables = opened.hierarchy.root.variables
        with pytest.raises(UnsupportedError, match=r"^/v: .*extent follows from its sources.*copy"):
            opened.read(variables["v"])
        assert opened.read(variables["w"]).tolist() == [0, 1, 2, 3]
    with open_hierarchy(MemoryBytes(path.read_bytes(), "memory")) as opened:
        with pytest.raises(FormatError, match=r"^/v: .*'source\.h5', beside this one"):
            opened.read(opened.hierarchy.root.variables["v"])


def test_texts(tmp_path: Path) -> None:
    """Of virtual text, libhdf5 gives bytes; they are decoded as those of other text."""
    kind = h5py.string_dtype()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, last in (("good", b""), ("bad", b"\xff!")):
            texts = np.array([b"abc", "déf".encode(), last], object)
            file.create_dataset(name, data=texts, dtype=kind)
            layout = h5py.VirtualLayout((3,), kind)
            layout[:] = h5py.VirtualSource(".", name, (3,), dtype=kind)
            file.create_virtual_dataset(f"virtual {name}", layout)
    with open_hierarchy(tmp_path / "x.h5") as opened:
        variables = opened.hierarchy.root.variables
        good = variables["virtual good"]
        assert good.nc_type == "string"
        assert opened.read(good).tolist() == ["abc", "déf", ""]
        assert opened.read(good, (np.array([1, 0]),)).tolist() == ["déf", "abc"]
        for name in ("bad", "virtual bad"):
            with pytest.raises(FormatError, match=rf"/{name}: b'.xff!' is not UTF-8"):
                opened.read(variables[name])


def virtual(path: Path, file: str, name: str) -> None:
    """Make a virtual dataset `v` of one in another file."""
    layout = h5py.VirtualLayout((5,), "i8")
    layout[:] = h5py.VirtualSource(file, name, (5,))
    with h5py.File(path, "w") as file_:
        file_.create_virtual_dataset("v", layout, fillvalue=-9)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "'gone' of 'source.h5', no dataset"),
        ("group", "'group' of 'source.h5', no dataset"),
        ("dangling", "'dangling' of 'source.h5', no dataset"),
        ("far", "'far' of 'source.h5', no dataset"),
        ("nested", "in the file 'gone.h5', which is not there"),
        ("circle", "'v' in 'v.h5' has it as a source"),
    ],
)
def test_sources_in_other_files_that_are_none(tmp_path: Path, name: str, reason: str) -> None:
    """libhdf5 returns fill values, or dies of a circle."""
    virtual(tmp_path / "v.h5", "source.h5", name)
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file.create_group("group")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["far"] = h5py.ExternalLink("gone.h5", "/v")
        for virtual_name, source in (("nested", "gone.h5"), ("circle", "v.h5")):
            layout = h5py.VirtualLayout((5,), "i8")
            layout[:] = h5py.VirtualSource(source, "v", (5,))
            file.create_virtual_dataset(virtual_name, layout)
    with xr.open_dataset(tmp_path / "v.h5", engine="nczarr") as ds:
        for _ in range(2):
            with pytest.raises(NCZarrError, match=reason):
                ds["v"].load()


@pytest.mark.parametrize("kind", ["source", "source of a source", "external"])
def test_pipes_hold_no_data(tmp_path: Path, kind: str) -> None:
    """libhdf5 would wait for one that writes there."""
    os.mkfifo(tmp_path / "pipe")
    if kind == "external":
        with h5py.File(tmp_path / "v.h5", "w") as file:
            file.create_dataset("v", (5,), "i8", external=[("pipe", 0, 40)])
    elif kind == "source":
        virtual(tmp_path / "v.h5", "pipe", "v")
    else:
        virtual(tmp_path / "v.h5", "source.h5", "v")
        virtual(tmp_path / "source.h5", "pipe", "v")
    with xr.open_dataset(tmp_path / "v.h5", engine="nczarr") as ds:
        with pytest.raises(NCZarrError, match="in the file 'pipe', which is no file"):
            ds["v"].load()


@pytest.mark.parametrize("kind", ["pipe", "circle"])
def test_every_file_of_a_pattern_is_looked_at(tmp_path: Path, kind: str) -> None:
    """Not the first one only: libhdf5 waits for a pipe, and follows a circle until it crashes."""
    with h5py.File(tmp_path / "f-0.h5", "w") as file:
        file["d"] = np.arange(5)
    path = tmp_path / "v.h5"
    _pattern(path, b"f-%b.h5")
    with xr.open_dataset(path, engine="nczarr") as ds:  # reads the shape
        if kind == "pipe":
            os.mkfifo(tmp_path / "f-1.h5")
            reason = r"in the file 'f-1\.h5', which is no file"
        else:
            with h5py.File(tmp_path / "f-1.h5", "w") as file:
                layout = h5py.VirtualLayout((5,), "i8")
                layout[:] = h5py.VirtualSource("f-1.h5", "d", (5,))
                file.create_virtual_dataset("d", layout)
            reason = "has it as a source"
        with pytest.raises(NCZarrError, match=reason):
            ds["v"].load()
    with pytest.warns(NCZarrWarning, match=reason):
        xr.open_dataset(path, engine="nczarr").close()


def test_sources_behind_others(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    with h5py.File(tmp_path / "one/data.h5", "w") as file:
        file["a/values"] = np.arange(5)
        file["soft"] = h5py.SoftLink("/a/values")
    virtual(tmp_path / "one/v.h5", "data.h5", "soft")
    with h5py.File(tmp_path / "two/link.h5", "w") as file:
        file["v"] = h5py.ExternalLink("../one/v.h5", "/v")
    virtual(tmp_path / "two/v.h5", "link.h5", "v")
    with xr.open_dataset(tmp_path / "two/v.h5", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], np.arange(5))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds))["v"][1:3], [1, 2])


@pytest.mark.parametrize("shape", [(5,), (1, 5), ()])
@pytest.mark.parametrize(
    ("base", "size", "bits"), [("STD_I16BE", 2, 12), ("STD_I8LE", 3, 20), ("STD_U32BE", 4, 31)]
)
def test_external_integers_that_do_not_fill_their_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    size: int,
    bits: int,
    shape: tuple[int, ...],
) -> None:
    """As others in an array: libhdf5 loses the sign, and h5py has no type for some."""
    kind = getattr(h5py.h5t, base).copy()
    kind.set_size(size)
    kind.set_precision(bits)
    values = np.array([-1, 0, 1, -300, 2047], "i4")[: None if shape else 1].reshape(shape)
    if "U" in base:
        values = np.asarray(np.abs(values))
    monkeypatch.chdir(tmp_path)
    with h5py.File("v.h5", "w") as file:
        space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_external(b"raw", 0, 5 * size)
        h5py.h5d.create(file.id, b"v", kind, space, properties).write(
            h5py.h5s.ALL, h5py.h5s.ALL, values, h5py.h5t.NATIVE_INT32
        )
    with xr.open_dataset(tmp_path / "v.h5", engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], values)
        if shape:
            np.testing.assert_array_equal(ds["v"][..., 3:0:-2], values[..., 3:0:-2])


def _large(path: Path, data: np.ndarray) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["own"] = data
        layout = h5py.VirtualLayout(data.shape, data.dtype)
        layout[:] = h5py.VirtualSource(file["own"])
        file.create_virtual_dataset("v", layout)


def test_what_lies_between_far_elements_is_not_read(tmp_path: Path) -> None:
    data = np.arange(600 * 40 * 200.0).reshape(600, 40, 200)
    _large(tmp_path / "v.h5", data)
    sizes: list[int] = []

    def counted(self: H5pyReader, box: Any, dataset: Any) -> np.ndarray:
        values = _READ_BOX(self, box, dataset)
        sizes.append(values.size)
        return values

    with (
        xr.open_dataset(tmp_path / "v.h5", engine="nczarr") as ds,
        mock.patch.object(H5pyReader, "read_box", counted),
    ):
        np.testing.assert_array_equal(ds.v[::-200, 1::38], data[::-200, 1::38])
        np.testing.assert_array_equal(ds.v[3::100, :, 7], data[3::100, :, 7])
    assert sizes == [3 * 2 * 200, 501 * 40]  # the second one lies in a small box


@settings(max_examples=examples(60))
@given(st.data())
def test_selections_with_steps(small_parts: Any, data: st.DataObject) -> None:
    """As numpy selects, one dimension after the other."""
    ds, values = small_parts
    key = [
        data.draw(
            st.integers(-size, size - 1)
            | st.slices(size)
            | st.lists(st.integers(-size, size - 1), max_size=5).map(lambda n: np.array(n, int))
        )
        for size in values.shape
    ]
    expected = values
    for axis in (2, 1, 0):
        expected = expected[(*[slice(None)] * axis, key[axis])]
    np.testing.assert_array_equal(ds.v[tuple(key)].values, expected)


@pytest.fixture(scope="module")
def small_parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A virtual dataset, of which boxes of more than 64 bytes are large."""
    path = tmp_path_factory.mktemp("parts") / "v.h5"
    values = np.arange(60 * 7 * 8).reshape(60, 7, 8)
    _large(path, values)
    with (
        xr.open_dataset(path, engine="nczarr") as ds,
        mock.patch.object(through_h5py, "LARGE_BOX", 64),
    ):
        yield ds, values


KEEPS_AN_ERROR = """
import ctypes, sys
from nczarr_fsspec.errors import FormatError
from nczarr_xarray.dataset.open import open_hierarchy

with open(sys.argv[1], "rb") as file:
    data = file.read()
with open_hierarchy(data) as opened:
    try:
        opened.reader(opened.hierarchy.root.variables["v"]).read()
    except FormatError as error:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))  # it outlives Python
        print(error)
"""


def test_an_error_that_is_kept_ends_no_process_in_a_crash(tmp_path: Path) -> None:
    """libhdf5 calls Python for the files that Python opened, until the very end."""
    with h5py.File(tmp_path / "far.h5", "w") as file:
        file["x"] = np.arange(4.0)
    with h5py.File(tmp_path / "v.h5", "w", libver="latest") as file:
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource("far.h5", "x", (4,))
        file.create_virtual_dataset("v", layout)

    command = [sys.executable, "-c", KEEPS_AN_ERROR, str(tmp_path / "v.h5")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "has its data in the file 'far.h5'" in ended.stdout
