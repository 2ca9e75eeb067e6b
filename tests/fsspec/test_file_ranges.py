"""Bytes of open files that are copied to other files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nczarr_fsspec.errors import StoreError, TooLargeError
from nczarr_fsspec.keystore import ALL
from nczarr_fsspec.local_files import FileRange
from nczarr_fsspec.ranges.local import LocalFileBytes
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from tests.support.examples import examples
from tests.support.faults.disks import tiny_disk

DATA = bytes(range(256)) * 9000  # more than is copied at a time
System = Callable[[int, int, int, int], int]


def refusing(code: int) -> System:
    """A system that copies nothing."""

    def copy(*_: int) -> int:
        raise OSError(code, os.strerror(code))

    return copy


def failing_after(count: int) -> System:
    """A system that copies some bytes, and then fails."""
    left = [count]

    def copy(source: int, target: int, wanted: int, start: int) -> int:
        if not left[0]:
            raise OSError(errno.EIO, "not any more")
        some = min(left[0], wanted)
        left[0] -= some
        return os.write(target, os.pread(source, some, start))

    return copy


def in_pieces(size: int) -> System:
    def copy(source: int, target: int, wanted: int, start: int) -> int:
        return os.write(target, os.pread(source, min(size, wanted), start))

    return copy


SYSTEMS: dict[str, System | None] = {
    "its own": None,
    "two file systems": refusing(errno.EXDEV),
    "says nothing": lambda *_: 0,
    "pieces": in_pieces(100_000),
    "ends": failing_after(150_000),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = SYSTEMS[request.param]
    if copy is not None:
        monkeypatch.setattr(os, "copy_file_range", copy, raising=False)


@pytest.fixture
def source(tmp_path: Path) -> LocalFileBytes:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return LocalFileBytes(path)


def some(source: LocalFileBytes, start: int, stop: int) -> FileRange:
    (found,) = source.ranges([start], [stop])
    return found


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, len(DATA)), (0, 0), (7, 8), (1000, 1_500_003), (5, 5)]
)
def test_a_range_becomes_a_file(
    tmp_path: Path, source: LocalFileBytes, atomic: bool, start: int, stop: int
) -> None:
    store = DirectoryWriter(tmp_path / "tree", atomic=atomic)
    store.put("a/0.0", b"what was there, which may be longer")
    store.put_range("a/0.0", some(source, start, stop))
    assert (tmp_path / "tree/a/0.0").read_bytes() == DATA[start:stop]
    assert store.keys_below("") == ["a/0.0"]
    assert some(source, start, stop).read() == DATA[start:stop]


def test_without_such_a_call(
    tmp_path: Path, source: LocalFileBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    DirectoryWriter(tmp_path / "tree").put_range("k", some(source, 1, len(DATA)))
    assert (tmp_path / "tree/k").read_bytes() == DATA[1:]


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)), st.integers(1, 3_000_000))
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_range_in_any_pieces(
    tmp_path: Path, source: LocalFileBytes, one: int, other: int, piece: int
) -> None:
    start, stop = sorted((one, other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "copy_file_range", in_pieces(piece), raising=False)
        DirectoryWriter(tmp_path / "tree").put_range("k", some(source, start, stop))
    assert (tmp_path / "tree/k").read_bytes() == DATA[start:stop]


def test_other_stores_are_given_the_bytes(source: LocalFileBytes) -> None:
    mapping: dict[str, Any] = {}
    MappingWriter(mapping).put_range("k", some(source, 10, 20))
    assert mapping == {"k": DATA[10:20]}


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("atomic", [False, True])
def test_a_source_that_has_become_shorter_is_named(
    tmp_path: Path, source: LocalFileBytes, atomic: bool
) -> None:
    store = DirectoryWriter(tmp_path / "tree", atomic=atomic)
    part = some(source, 100, len(DATA))
    os.truncate(source.path, 5000)
    with pytest.raises(StoreError, match="source: ends at byte 5000"):
        store.put_range("k", part)
    with pytest.raises(StoreError, match="source: ends at byte 5000"):
        part.read()
    assert store.keys_below("") == []
    assert [*store.temporaries()] == []


def test_a_source_that_cannot_be_read_is_named(
    tmp_path: Path, source: LocalFileBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = some(source, 0, len(DATA))
    monkeypatch.setattr(os, "copy_file_range", failing_after(1000), raising=False)

    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("nczarr_fsspec.local_files.pread", fail)
    store = DirectoryWriter(tmp_path / "tree", atomic=False)
    with pytest.raises(StoreError, match=r"source: cannot be read: Input/output error"):
        store.put_range("k", part)
    assert store.keys_below("") == []


@pytest.mark.parametrize("atomic", [False, True])
def test_a_target_without_room_is_named(
    tmp_path: Path, source: LocalFileBytes, atomic: bool
) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        store = DirectoryWriter(disk / "tree", atomic=atomic)
        with pytest.raises(StoreError, match=r"k: cannot be written: No space left"):
            store.put_range("k", some(source, 0, len(DATA)))
        assert store.keys_below("") == []
        assert [*store.temporaries()] == []


def test_a_file_that_changes_while_it_is_copied(source: LocalFileBytes) -> None:
    ranges = source.ranges([0, 10], [10, 20])
    assert next(ranges).read() == DATA[:10]
    with open(source.path, "ab") as file:
        file.write(b"more")
    with pytest.raises(StoreError, match="the file has changed since it was opened"):
        assert list(ranges) == []


# -- ranges of objects ---------------------------------------------------------------------


def test_objects_of_a_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "v").mkdir(parents=True)
    (tree / "v/0").write_bytes(b"0123456789")
    (tree / "v/1").write_bytes(b"")
    store = DirectoryStore(tree)
    keys = [
        ("v/0", ALL), ("v/0", slice(2, 5)), ("v/0", slice(-3, None)), ("v/0", slice(8, 99)),
        ("v/1", ALL), ("v/2", ALL), ("v", ALL), ("v/0/0", ALL),
    ]  # fmt: skip
    found = [part if part is None else part.read() for part in store.ranges(keys, 10)]
    assert found == [store.get(key, part, 10) for key, part in keys]
    assert found == [b"0123456789", b"234", b"789", b"89", b"", None, None, None]


def test_an_object_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"0123456789")
    with pytest.raises(TooLargeError, match="k"):
        [*DirectoryStore(tmp_path).ranges([("k", ALL)], 9)]


def test_descriptors_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k").write_bytes(b"0123456789")
    ranges = DirectoryStore(tmp_path).ranges([("k", ALL)] * 3, 10)
    part = next(ranges)
    assert part is not None
    closed, close = [], os.close

    def noted(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    monkeypatch.setattr(os, "close", noted)
    del ranges  # as after an error
    assert part.descriptor in closed


# -- many ranges of a file -----------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, len(DATA)), st.integers(0, 3000)).map(
            lambda found: (found[0], min(len(DATA), sum(found)))
        )
    )
)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_ranges_are_read_right(source: LocalFileBytes, ranges: list[tuple[int, int]]) -> None:
    for found in (ranges, sorted(ranges)):
        starts, stops = [start for start, _ in found], [stop for _, stop in found]
        data = source.read_many(starts, stops)
        assert [bytes(part) for part in data] == [DATA[start:stop] for start, stop in found]


def test_neighbours_are_read_together(
    source: LocalFileBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a bound, and with what is between them if that is little."""
    calls: list[tuple[int, int]] = []
    pread = os.pread

    def counted(descriptor: int, count: int, offset: int) -> bytes:
        calls.append((offset, count))
        return pread(descriptor, count, offset)

    monkeypatch.setattr("nczarr_fsspec.local_files.pread", counted)
    starts = [*range(0, 100_000, 1000), 200_000, 150_000, *range(300_000, 2_300_000, 400_000)]
    stops = [start + 900 for start in starts[:102]] + [start + 400_000 for start in starts[102:]]
    stops[-1] = len(DATA)
    data = source.read_many(starts, stops)
    assert [bytes(part) for part in data] == [
        DATA[start:stop] for start, stop in zip(starts, stops, strict=True)
    ]
    assert calls == [
        (0, 99_900), (200_000, 900), (150_000, 900),
        (300_000, 800_000), (1_100_000, 800_000), (1_900_000, len(DATA) - 1_900_000),
    ]  # fmt: skip


def test_many_ranges_of_a_file_that_is_shorter(source: LocalFileBytes) -> None:
    with pytest.raises(StoreError, match="beyond the end"):
        source.read_many([0, 10], [10, len(DATA) + 1])
    os.truncate(source.path, 5)
    with pytest.raises(StoreError, match="has changed since it was opened"):
        source.read_many([0, 10], [10, 20])
