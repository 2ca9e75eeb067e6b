"""What a change of a part costs does not depend on how much there is already."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from nczarr_fsspec.changes.journal import PRIVATE
from nczarr_fsspec.stores.write_fsspec import FsspecWriter
from nczarr_xarray import to_nczarr

SMALL, LARGE = 20, 160

#: What a process asks of the system about files, besides reading and writing those it has opened.
CALLS = ("open", "stat", "lstat", "mkdir", "rmdir", "unlink", "link", "rename", "replace")


def steps(first: int, count: int) -> xr.Dataset:
    hours = np.arange(first, first + count)
    values = np.arange(first, first + count, dtype="f4")[:, None] * np.ones(4, "f4")
    time = np.datetime64("2000-01-01", "ns") + hours * np.timedelta64(1, "h")
    return xr.Dataset({"v": (("time", "x"), values)}, {"time": time, "x": list("abcd")})


def write(target: Any, count: int) -> None:
    """One chunk for each step, of the coordinate too: the worst case."""
    encoding = {
        "v": {"chunks": (1, 4)},
        "time": {"chunks": (1,), "units": "hours since 1999-12-31", "dtype": "i4"},
    }
    to_nczarr(steps(0, count), target, encoding=encoding, unlimited_dims=["time"])


def append(target: Any, count: int) -> None:
    to_nczarr(steps(count, 1), target, append_dim="time")


def replace(target: Any, count: int) -> None:
    part = slice(count // 2, count // 2 + 1)
    to_nczarr(steps(part.start, 1) + 1, target, region={"time": part, "x": slice(0, 4)})


def system_calls(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is asked of the system about files, and the names in folders that are listed."""
    found: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            found[name] += 1
            return call(*arguments, **options)

        return counted

    class Entries:
        def __init__(self, path: Any = ".") -> None:
            found["scandir"] += 1
            self.entries = scandir(path)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self.entries:
                found["names"] += 1
                yield entry

        def __exit__(self, *_: object) -> None:
            self.entries.close()

    def listdir(path: Any = ".") -> list[str]:
        names = list_folder(path)
        found.update(listdir=1, names=len(names))
        return names

    scandir, list_folder = os.scandir, os.listdir
    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counting(name, getattr(os, name)))
        patch.setattr(os, "scandir", Entries)
        patch.setattr(os, "listdir", listdir)
        act()
    return found


@pytest.mark.parametrize("change", [append, replace])
@pytest.mark.parametrize("form", ["nczarr", "zarr"])
def test_a_change_of_one_step_asks_a_folder_as_much_whatever_its_size(
    change: Callable[[Any, int], None], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for count in (SMALL, LARGE):
        target = f"file://{tmp_path}/{count}/data#mode={form},file"
        write(target, count)
        change(target, count)  # what is imported with the first one is not counted
        count += change is append
        found.append(system_calls(partial(change, target, count), monkeypatch))
    few, many = found
    assert few == many
    assert few["open"] < 100
    assert few["names"] < 30  # of the root and of what is private; none of chunks


class Counting(dict[str, bytes]):
    """A mapping that counts the objects that are got from it and put into it, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __getitem__(self, key: str) -> bytes:
        self.asked["got"] += 1
        data = super().__getitem__(key)
        *_, name = key.split("/")
        self.asked["chunks got"] += name[:1].isdigit() and not key.startswith(PRIVATE)
        return data

    def __setitem__(self, key: str, data: bytes) -> None:
        self.asked["put"] += 1
        super().__setitem__(key, data)

    def __delitem__(self, key: str) -> None:
        self.asked["deleted"] += 1
        super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        self.asked["gone through"] += 1
        return super().__iter__()


def asked(change: Callable[[Any, int], None], count: int) -> Mapping[str, int]:
    target = Counting()
    write(target, count)
    target.asked.clear()
    change(target, count)
    return target.asked


@pytest.mark.parametrize("change", [append, replace])
def test_a_change_of_one_step_asks_a_mapping_as_much_whatever_its_size(
    change: Callable[[Any, int], None],
) -> None:
    few, many = asked(change, SMALL), asked(change, LARGE)
    assert few == many
    assert few["gone through"] <= 6  # as a mapping has no folders


@pytest.mark.parametrize("change", [append, replace])
def test_a_change_of_one_step_makes_as_many_requests_whatever_the_size(
    change: Callable[[Any, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Counter[str] = Counter()
    inside = threading.local()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if getattr(inside, "one", False):
                return call(*arguments, **options)  # an older `find` asks `ls` for each folder
            inside.one = True
            try:
                answer = call(*arguments, **options)
            finally:
                inside.one = False
            found[name] += 1
            found["names"] += len(answer) if name in ("ls", "find") else 0
            return answer

        return counted

    counts = []
    for count in (SMALL, LARGE):
        target = FsspecWriter(MemoryFileSystem(), f"/costs-{change.__name__}-{count}/data")
        write(target, count)
        found.clear()
        with monkeypatch.context() as patch:
            for name in ("cat_file", "pipe_file", "cp_file", "rm_file", "ls", "find", "info"):
                patch.setattr(
                    MemoryFileSystem, name, counting(name, getattr(MemoryFileSystem, name))
                )
            change(target, count)
        counts.append(found.copy())
    few, many = counts
    assert few == many
    assert few["cat_file"] < 60
    assert few["pipe_file"] < 15
    assert few["ls"] + few["find"] <= 6


def test_an_append_reads_what_it_must_of_a_coordinate() -> None:
    # the first and the last label, by which xarray knows what kind of dates they are, and "x",
    # which must not differ: the whole of a coordinate that does not grow
    assert asked(append, LARGE)["chunks got"] <= 5


def test_a_region_by_labels_reads_each_label_once() -> None:
    def by_label(target: Any, count: int) -> None:
        to_nczarr(steps(count // 2, 1), target, region="auto")

    few, many = asked(by_label, SMALL), asked(by_label, LARGE)
    assert many["chunks got"] - few["chunks got"] == LARGE - SMALL
    assert many["gone through"] == few["gone through"]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_region_of_a_template_does_not_count_the_others(
    backwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for count in (SMALL, LARGE):
        target = tmp_path / str(count) / "data"
        new = steps(0, count)[["v"]].drop_vars(["time", "x"]).chunk(time=1)
        to_nczarr(new, target, encoding={"v": {"chunks": (1, 4)}}, compute=False)
        regions = [slice(i, i + count // 4) for i in range(0, count, count // 4)]
        part = {i: new.isel(time=region).load() for i, region in enumerate(regions)}
        order = range(3, -1, -1) if backwards else range(4)
        asked = []
        for i in order:
            write_it = partial(to_nczarr, part[i], target, region={"time": regions[i]})
            asked.append(system_calls(write_it, monkeypatch)["names"])
        with xr.open_dataset(target, engine="nczarr") as ds:
            xr.testing.assert_equal(ds.load(), new.compute())
        found.append(asked)
    few, many = found
    assert many[-1] > LARGE  # all are counted once, at the end
    assert (few[1:3] == many[1:3]) != backwards  # and each time, if the last was written first
