"""Files that are alike: what is read without parsing is what parsing finds, or it is not read."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.concurrency import at_once
from nczarr_fsspec.errors import FormatError, NCZarrError
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_xarray.dataset.alike_files import (
    AlikeFiles,
    AlikeStack,
    AlikeVariable,
    StampedFile,
    read_alike_variable,
)
from nczarr_xarray.dataset.file import DataFile
from nczarr_xarray.dataset.fragment_datasets import Opening, open_fragment
from nczarr_xarray.dataset.open import open_with
from tests.support.examples import examples

ALL = (slice(None), slice(None))
DATA = np.arange(12, dtype="f4").reshape(3, 4)


def write(path: Path, offset: float = 0.0, **options: Any) -> Path:
    attributes = options.pop("attributes", {"units": "K"})
    name = options.pop("name", "tas")
    with netCDF4.Dataset(path, "w", format=options.pop("format", "NETCDF4")) as file:
        file.createDimension("time", 3)
        file.createDimension("x", 4)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(3) + offset
        group = file.createGroup("g") if options.pop("group", False) else file
        dtype = options.pop("dtype", "f4")
        tas = group.createVariable(name, dtype, ("time", "x"), fill_value=-9, **options)
        tas.setncatts(attributes)
        tas[:] = DATA + offset
    return path


def opened(path: Path, name: str = "tas") -> Opening:
    return open_fragment(open_with, str(path), None, name, depth=1, entire=False)


def learned(path: Path, name: str = "tas") -> AlikeStack:
    files = AlikeFiles(entire=False)
    assert at_once(files.learn(name, opened(path, name)))
    assert files.stack is not None
    return files.stack


def files_at(paths: list[Path]) -> list[StampedFile]:
    return [StampedFile(str(path)) for path in paths]


def read(stack: AlikeStack, path: Path | str, key: Any = ALL) -> np.ndarray | None:
    """Return what is read of one file; None if it has to be read in another way."""
    members, data = stack.read([StampedFile(str(path))], key, points=False)
    return data[0] if members else None


def pattern_of(path: Path) -> AlikeVariable:
    file = DataFile(LocalFileBytes(path))
    alike = file.parse(read_alike_variable(file, "tas", entire=False))
    assert alike is not None
    return alike


def opened_by(pattern: AlikeVariable, path: Path) -> Opening | None:
    """Open a file by a pattern as remote files are; None if it has another one."""
    return pattern.open(DataFile(LocalFileBytes(path)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zlib": True},
        {"chunksizes": (2, 3), "zlib": True, "shuffle": True},
        {"chunksizes": (1, 1)},
        {"fletcher32": True},
        {"dtype": "i2"},
        {"dtype": ">f8", "endian": "big"},
        {"group": True, "zlib": True},
        {"format": "NETCDF3_CLASSIC"},
        {"format": "NETCDF3_64BIT_DATA", "dtype": "i8"},
    ],
    ids=str,
)
def test_data_that_differ(tmp_path: Path, options: dict[str, Any]) -> None:
    """Chunks have other sizes, and are at other places, in each file."""
    name = "g/tas" if "group" in options else "tas"
    paths = [write(tmp_path / f"{n}.nc", 7.0**n, **options) for n in range(5)]
    stack = learned(paths[0], name)
    assert stack.variable.attributes.keys() == opened(paths[1], name).variable.attributes.keys()
    data = np.stack([opened(path, name).reader.read() for path in paths])
    for key in (ALL, (slice(1, 2), slice(0, 4, 2)), (slice(None), np.array([3, 0, 0]))):
        members, data_read = stack.read(files_at(paths), key, points=False)
        assert members == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(data_read, data[(slice(None), *key)], strict=True)
    chosen = np.array([2, 0, 1, 2]), np.array([0, 0, 3, 1])
    members, data_read = stack.read(files_at(paths), chosen, points=True)
    np.testing.assert_array_equal(data_read, data[(slice(None), *chosen)], strict=True)


def test_chunks_that_are_missing(tmp_path: Path) -> None:
    """They read as the fill value, and a file that has other ones is not alike."""
    paths = [tmp_path / f"{n}.nc" for n in range(3)]
    for number, path in enumerate(paths):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", 4)
            tas = file.createVariable("tas", "f4", ("time",), fill_value=-9, chunksizes=(2,))
            tas[0 if number < 2 else slice(None)] = number
    members, data_read = learned(paths[0]).read(files_at(paths), (slice(None),), points=False)
    assert members == [0, 1]
    np.testing.assert_array_equal(data_read, np.array([[0, -9, -9, -9], [1, -9, -9, -9]], "f4"))


@pytest.mark.parametrize(
    "options",
    [
        {"attributes": {"units": "C"}},
        {"attributes": {"units": "K", "more": 1}},
        {"attributes": {}},
        {"dtype": "i4"},
        {"dtype": "i2"},
        {"name": "tos"},
        {"zlib": True},
        {"chunksizes": (3, 2)},
        {"format": "NETCDF3_CLASSIC"},
        {"group": True},
    ],
    ids=str,
)
def test_metadata_that_differ(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path / "0.nc")
    other = write(tmp_path / "1.nc", **options)
    assert read(learned(path), other) is None
    assert opened_by(pattern_of(path), other) is None


def test_records_that_are_interleaved(tmp_path: Path) -> None:
    """They are read one by one; their number may not be stated, and follow from the size."""
    paths = [tmp_path / f"{n}.nc" for n in range(3)]
    for number, path in enumerate(paths):
        with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
            file.createDimension("time", None)
            file.createDimension("x", 4)
            for name in ("first", "tas", "last"):
                file.createVariable(name, "i2", ("time", "x"))[:] = DATA + number
    stack = learned(paths[0])
    for key in (ALL, (slice(2, 0, -1), np.array([3, 1]))):
        _, data_read = stack.read(files_at(paths), key, points=False)
        expected = np.stack([DATA + n for n in range(3)]).astype("i2")[(slice(None), *key)]
        np.testing.assert_array_equal(data_read, expected, strict=True)
    content = bytearray(paths[0].read_bytes())
    content[4:8] = b"\xff" * 4
    paths[0].write_bytes(content)
    assert not at_once(AlikeFiles(entire=False).learn("tas", opened(paths[0])))


@pytest.mark.parametrize(
    "shape", [(), (1, 300, 128), (7, 1, 9973), (50_021,), (3, 40_000)], ids=str
)
@pytest.mark.parametrize("format_", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_plain_elements_of_any_shape(tmp_path: Path, shape: tuple[int, ...], format_: Any) -> None:
    """They are divided, so that a few of them can be read, and found again."""
    paths = [tmp_path / f"{n}.nc" for n in range(2)]
    data = np.arange(2 * int(np.prod(shape)), dtype="i4").reshape(2, *shape)
    for path, own in zip(paths, data, strict=True):
        with netCDF4.Dataset(path, "w", format=format_) as file:
            names = [f"d{axis}" for axis in range(len(shape))]
            for name, length in zip(names, shape, strict=True):
                file.createDimension(name, length)
            file.createVariable("tas", "i4", names)[...] = own
    stack = learned(paths[0])
    for key in ((slice(None),) * len(shape), tuple(slice(n // 2, n, 3) for n in shape)):
        _, data_read = stack.read(files_at(paths), key, points=False)
        np.testing.assert_array_equal(data_read, data[(slice(None), *key)], strict=True)
    point = tuple(slice(length - 1, length) for length in shape)
    assert stack.nbytes(point, points=False) <= 1 << 18


def test_classic_files_that_differ(tmp_path: Path) -> None:
    first = write(tmp_path / "0.nc", format="NETCDF3_CLASSIC")
    stack = learned(first)
    assert read(stack, write(tmp_path / "1.nc", 1.0, format="NETCDF3_CLASSIC")) is not None
    for options in ({"attributes": {"units": "C"}}, {"name": "tos"}, {"dtype": "i4"}):
        path = write(tmp_path / "2.nc", format="NETCDF3_CLASSIC", **options)
        assert read(stack, path) is None
    path.write_bytes(first.read_bytes()[:-4])
    assert read(stack, path) is None


@pytest.mark.parametrize(
    "options",
    [{}, {"zlib": True}, {"chunksizes": (2, 3), "zlib": True, "shuffle": True}, {"fletcher32": 1}],
    ids=str,
)
def test_files_are_opened(tmp_path: Path, options: dict[str, Any]) -> None:
    pattern = pattern_of(write(tmp_path / "0.nc", **options))
    for offset in (0.0, 1.0, 1e6):
        path = write(tmp_path / "1.nc", offset, **options)
        found = opened_by(pattern, path)
        assert found is not None
        assert found.alike
        again = pickle.loads(pickle.dumps(found.reader))
        for reader in (found.reader, again):
            np.testing.assert_array_equal(reader.read(), DATA + np.float32(offset), strict=True)
    other = write(tmp_path / "2.nc", attributes={"units": "C"}, **options)
    assert opened_by(pattern, other) is None


def test_the_error_names_the_file(tmp_path: Path) -> None:
    first = write(tmp_path / "0.nc", zlib=True)
    path = write(tmp_path / "1.nc", 7.0, zlib=True)
    with h5py.File(path) as file:
        at = file["tas"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[at : at + 8] = b"x" * 8
    path.write_bytes(content)
    found = opened_by(pattern_of(first), path)
    assert found is not None
    with pytest.raises(FormatError, match=r"/tas chunk \(0, 0\)"):
        found.reader.read()
    with pytest.raises(FormatError):
        read(learned(first), path)


def test_large_data_that_lie_far_back(tmp_path: Path) -> None:
    for number in range(2):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("x", 50_000)
            for name in ("first", "tas"):
                file.createVariable(name, "f4", ("x",))[:] = np.arange(50_000) + number
    found = read(learned(tmp_path / "0.nc"), tmp_path / "1.nc", ALL[:1])
    assert found is not None
    np.testing.assert_array_equal(found, np.arange(50_000, dtype="f4") + 1)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    path = write(tmp_path / "0.nc")
    stack, content = learned(path), path.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short.nc").write_bytes(content[:-1])
    (tmp_path / "start.nc").write_bytes(content[:300])
    (tmp_path / "behind.nc").write_bytes(bytes(512) + content)
    for name in ("pipe", "short.nc", "start.nc", "behind.nc", "none.nc", ".", "\0"):
        assert read(stack, f"{tmp_path}{os.sep}{name}") is None
    assert read(stack, path) is not None


def test_few_patterns_are_learned(tmp_path: Path) -> None:
    files = AlikeFiles(entire=False)
    for number in range(12):
        path = write(tmp_path / f"{number}.nc", attributes={"units": "K" * (number + 1)})
        assert at_once(files.learn("tas", opened(path))) == (number < 8)
    assert files.stack is not None
    assert files.stack.variable.attributes["units"].value == "K" * 8


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"zlib": True, "chunksizes": (2, 3)},
    "classic": {"format": "NETCDF3_CLASSIC"},
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(400))
@given(at=st.integers(0, 1 << 14), value=st.integers(0, 255), kind=st.sampled_from(list(KINDS)))
def test_any_byte_that_counts(tmp_path: Path, at: int, value: int, kind: str) -> None:
    """A file that differs in one byte is read as the parser reads it, or not."""
    path, other = tmp_path / f"{kind}.nc", tmp_path / "1.nc"
    if not path.exists():
        write(path, **KINDS[kind])
    content = bytearray(path.read_bytes())
    at %= len(content)
    # the end of the file, and the checksum of the superblock
    if kind != "classic" and 28 <= at < 48:
        return
    content[at] = value
    other.write_bytes(content)
    wanted = _outcome(lambda: opened(other).reader.read(ALL))
    whole = _outcome(lambda: read(learned(path), other))
    assert whole in (wanted, "None") or (whole.startswith("error") and wanted.startswith("error"))
    found = None if kind == "classic" else opened_by(pattern_of(path), other)
    if found is not None:
        expected = opened(other).variable.attributes
        assert found.variable.attributes.keys() == expected.keys()
        for name, attribute in expected.items():
            assert repr(found.variable.attributes[name].value) == repr(attribute.value)
        assert _outcome(found.reader.read) == wanted


def _outcome(reading: Callable[[], np.ndarray | None]) -> str:
    """Return what is read, or why that cannot be, as text: in which NaN is NaN."""
    try:
        found = reading()
    except NCZarrError as error:
        return f"error: {error}"
    return repr(None if found is None else found.tolist())


def test_files_of_h5py(tmp_path: Path) -> None:
    """Superblocks of version 0 are left to the parser, and those of version 3 are not."""
    for libver, known in (("earliest", False), ("latest", True)):
        for number in range(2):
            with h5py.File(tmp_path / f"{number}.h5", "w", libver=libver) as file:
                file["v"] = DATA + number
        files = AlikeFiles(entire=False)
        assert at_once(files.learn("v", opened(tmp_path / "0.h5", "v"))) == known
        if files.stack is not None:
            found = read(files.stack, tmp_path / "1.h5")
            np.testing.assert_array_equal(found, DATA + 1)
