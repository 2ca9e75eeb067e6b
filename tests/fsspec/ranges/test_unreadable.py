"""Local files and file objects whose reads fail: an error of ours that names them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nczarr_fsspec.errors import DatasetNotFoundError, StoreError, URLError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges import local
from nczarr_fsspec.ranges.local import FileObjectBytes, LocalFileBytes

DATA = bytes(range(200))
READS: list[Callable[[Any], object]] = [
    lambda source: source.read(10, 20),
    lambda source: source.read_into(10, memoryview(bytearray(10))),
    lambda source: source.read_many([10, 30], [20, 35]),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


def broken(*_: object) -> Any:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("read", READS)
def test_a_disk_that_fails(
    path: Path, read: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LocalFileBytes(path)
    monkeypatch.setattr(local, "read_at", broken)
    monkeypatch.setattr(local, "read_into", broken)
    with pytest.raises(StoreError) as caught:
        read(source)
    assert (caught.value.object, caught.value.reason) == (
        source.url,
        "cannot be read: Input/output error",
    )


@pytest.mark.parametrize("read", READS)
def test_a_state_that_cannot_be_asked_for(
    path: Path, read: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be of another version: it is not given out."""
    source = LocalFileBytes(path)
    read(source)
    monkeypatch.setattr(local, "os", SimpleNamespace(**{**vars(os), "fstat": broken}))
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        read(source)


@pytest.mark.parametrize(
    "read",
    [
        lambda source: source.read(190, 201),
        lambda source: source.read_into(190, memoryview(bytearray(11))),
        lambda source: source.read_many([10, 190], [20, 201]),
    ],
)
def test_reads_over_the_end(path: Path, read: Callable[[Any], object]) -> None:
    source = LocalFileBytes(path)
    with pytest.raises(StoreError):
        read(source)


@pytest.mark.parametrize("name", ["no\0thing", "x" * 5000])
def test_paths_that_no_system_has(name: str) -> None:
    with pytest.raises((StoreError, DatasetNotFoundError)) as caught:
        LocalFileBytes(f"/{name}")
    assert "cannot be opened" in str(caught.value)


class Failing(io.BytesIO):
    """A file object that fails when it is read, or when its end is looked for."""

    name = "failing"

    def __init__(self, error: Exception, method: str) -> None:
        super().__init__(DATA)
        setattr(self, method, self.fail)
        self.error = error

    def fail(self, *_: object) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [OSError(5, "Input/output error"), ValueError("closed"), EOFError(), lzma.LZMAError("corrupt")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("method", ["read", "seek", "tell"])
def test_file_objects_that_fail(method: str, error: Exception) -> None:
    with pytest.raises(StoreError, match="failing: cannot be read") as caught:
        FileObjectBytes(Failing(error, method))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("kept", [5, 40, -1])
@pytest.mark.parametrize("compressing", [bz2, gzip, lzma], ids=lambda module: module.__name__)
def test_compressed_files_that_are_cut(tmp_path: Path, compressing: Any, kept: int) -> None:
    path = tmp_path / "x.nc"
    path.write_bytes(compressing.compress(b"CDF\x01" + bytes(range(256)) * 100)[:kept])
    with compressing.open(path) as file, pytest.raises(StoreError, match=r"cannot be read: .*end"):
        Place.of(file).open()


def test_what_is_read_may_be_any_buffer() -> None:
    class Arrays(io.BytesIO):
        def read(self, size: int | None = -1, /) -> Any:
            return bytearray(super().read(size))

    assert FileObjectBytes(Arrays(DATA), "x").read(10, 20) == DATA[10:20]


def test_file_objects_that_cannot_seek() -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        FileObjectBytes(object(), "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("file", [io.StringIO("text" * 10)])
def test_text_files_are_named(file: Any) -> None:
    with pytest.raises(StoreError, match="is a text file; open it in binary mode"):
        FileObjectBytes(file, "x")


def test_a_text_file_is_named_though_its_bytes_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + DATA)
    with (
        (tmp_path / "x.nc").open(encoding="utf-8") as file,
        pytest.raises(URLError, match="is a text file; open it in binary mode"),
    ):
        Place.of(file).open()


def test_a_source_of_a_file_object_is_pickled_with_it() -> None:
    """As far as the file object itself can be."""
    source = FileObjectBytes(io.BytesIO(DATA), "x")
    again = pickle.loads(pickle.dumps(source))
    assert (again.url, again.size, again.read(10, 20)) == ("x", 200, DATA[10:20])


def test_secrets_in_the_name_of_a_file_are_not_shown() -> None:
    class Remote(io.BytesIO):
        name = "https://user:secret1@host/x.nc?sig=secret2"

        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(f"403: {self.name}")

    with pytest.raises(StoreError, match=r"host/x\.nc.*403") as caught:
        FileObjectBytes(Remote(b"CDF\x01"))
    assert "secret" not in str(caught.value)
