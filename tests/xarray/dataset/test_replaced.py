"""A tree that is replaced after it was opened: an error, and no fill values for what is gone."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import NCZarrError, StoreError
from nczarr_fsspec.stores import directory
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.dataset.open import open_hierarchy
from nczarr_xarray.dataset.stored_chunks import StoredChunks
from tests.support.builders.trees import read_tree


def dataset(rows: int, value: float) -> xr.Dataset:
    return xr.Dataset({"v": (("t", "x"), np.full((rows, 4), value))})


def write(path: Path, rows: int, value: float) -> None:
    encoding = {"v": {"chunks": (1, 4), "_FillValue": -9.0}}
    dataset(rows, value).nczarr.to_nczarr(path, mode="w", encoding=encoding, unlimited_dims=["t"])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "v.nczarr"
    write(path, 6, 1.0)
    return path


def moved_here(tree: Path) -> None:
    """As by hand: this is possible on every filesystem."""
    write(tree.with_name("new.nczarr"), 2, 2.0)
    tree.rename(tree.with_name("old.nczarr"))
    tree.with_name("new.nczarr").rename(tree)


def moved_back(tree: Path) -> None:
    tree.rename(tree.with_name("new.nczarr"))
    tree.with_name("old.nczarr").rename(tree)


def written_anew(tree: Path) -> None:
    number = tree.stat().st_ino
    write(tree, 2, 2.0)
    if tree.stat().st_ino == number:
        pytest.skip("this filesystem cannot exchange two directories")


@pytest.mark.parametrize("replace", [moved_here, written_anew])
@pytest.mark.parametrize("key", [slice(None), slice(4, 6), 0])
def test_reading_is_an_error(tree: Path, replace: Callable[[Path], None], key: slice | int) -> None:
    with xr.open_dataset(tree, engine="nczarr") as ds:
        assert (ds.v[0] == 1).all()
        replace(tree)
        with pytest.raises(StoreError, match=r"v\.nczarr.*open it again"):
            ds.v[key].load()
    with xr.open_dataset(tree, engine="nczarr") as ds:
        assert ds.identical(dataset(2, 2.0))


def test_an_archive_after_close(tmp_path: Path) -> None:
    path = tmp_path / "d.zip"
    dataset(6, 1.0).nczarr.to_nczarr(path)
    with xr.open_dataset(path, engine="nczarr") as ds:
        pass
    dataset(6, 2.0).nczarr.to_nczarr(path, mode="w")
    with pytest.raises(StoreError, match="changed"):
        ds.v.load()


@pytest.mark.parametrize("form", ["nczarr", "zarr 3"])
def test_the_number_of_a_directory_returns(
    tree: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ext4 gives it to a directory that is made after the first one has been removed."""
    if form == "zarr 3":
        shutil.rmtree(tree)
        zarr_3(tree, consolidated=False, shards=None)
    first = tree.stat()

    def stat(path: Any, *how: Any, **more: Any) -> os.stat_result:
        found = list(os_stat(path, *how, **more))
        if str(path) == str(tree):
            found[1:3] = first.st_ino, first.st_dev
        return os.stat_result(found)

    with xr.open_dataset(tree, engine="nczarr") as ds:
        if form == "zarr 3":
            shutil.rmtree(tree)
            short = dataset(2, 2.0)  # with chunks like those that were there
            short.to_zarr(
                tree, zarr_format=3, consolidated=False, encoding={"v": {"chunks": (1, 4)}}
            )
        else:
            moved_here(tree)
        os_stat = os.stat
        monkeypatch.setattr(os, "stat", stat)
        with pytest.raises(StoreError, match="open it again"):
            ds.v.load()


@pytest.mark.skipif(hasattr(os.stat("."), "st_birthtime"), reason="the system tells it")
def test_a_filesystem_that_numbers_its_files_anew(tree: Path) -> None:
    """As if: it is a copy, with the same times, and nothing tells when it was made."""
    with xr.open_dataset(tree, engine="nczarr", cache=False) as ds:
        shutil.copytree(tree.rename(tree.with_name("first.nczarr")), tree)
        assert (ds.v == 1).all()
        moved_here(tree)
        with pytest.raises(StoreError, match="open it again"):
            ds.v.load()


@pytest.mark.parametrize("form", ["nczarr", "zarr 3"])
def test_while_it_is_opened(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it happens, from the first look at the old one on: the new one is opened."""
    before, after = (dataset(rows, 1.0).assign_coords(t=np.arange(rows)) for rows in (6, 2))
    tree, new, looks, due = tmp_path / "d", tmp_path / "new", 0, 0

    def put(values: xr.Dataset, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        if form == "nczarr":
            values.nczarr.to_nczarr(path)
        else:
            values.to_zarr(path, zarr_format=3, consolidated=False)

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **options: Any) -> Any:
            nonlocal looks
            if looks == due:
                tree.rename(tmp_path / f"old{due}")
                new.rename(tree)
            looks += 1
            return original(*arguments, **options)

        return look

    for name in ("get", "get_into", "ranges", "stamp", "list", "note_place", "check_place"):
        patched = looking(getattr(directory.DirectoryStore, name))
        monkeypatch.setattr(directory.DirectoryStore, name, patched)
    for due in range(1000):
        looks = 1000  # those of writers do not count
        put(before, tree)
        put(after, new)
        looks = 0
        with xr.open_dataset(tree, engine="nczarr") as ds:
            if looks <= due:
                break
            assert ds.load().identical(after), due
    assert 10 < due < 999


def test_removed(tree: Path) -> None:
    with xr.open_dataset(tree, engine="nczarr") as ds:
        tree.rename(tree.with_name("old.nczarr"))
        with pytest.raises(StoreError, match=r"cannot be found any more: .*; .*open it again"):
            ds.v.load()


def zarr_3(path: Path, *, consolidated: bool, shards: tuple[int, int] | None) -> None:
    encoding = {"v": {"chunks": (1, 4), "shards": shards}}
    dataset(6, 1.0).to_zarr(path, zarr_format=3, consolidated=consolidated, encoding=encoding)


def archived(tree: Path, place: str) -> Any:
    """Put a tree in a place whose objects can be removed."""
    if place == "directory":
        return tree
    if place == "mapping":
        return read_tree(tree)
    memory = fsspec.filesystem("memory")
    memory.pipe(read_tree(tree, f"/{tree.name}-replaced/"))
    return f"memory://{tree.name}-replaced"


def remove(target: Any, prefix: str) -> None:
    """Remove what is below `prefix`."""
    if isinstance(target, dict):
        for key in [key for key in target if key.startswith(prefix)]:
            del target[key]
    else:
        fs, path = fsspec.url_to_fs(str(target))
        fs.rm(f"{path}/{prefix}", recursive=True)


@pytest.mark.parametrize("place", ["directory", "mapping", "memory"])
@pytest.mark.parametrize("key", [slice(None), 0])
@pytest.mark.parametrize("number", [6, 40])
def test_an_array_is_removed(tree: Path, place: str, key: slice | int, number: int) -> None:
    write(tree, number, 1.0)
    target = archived(tree, place)
    with xr.open_dataset(target, engine="nczarr") as ds:
        if place == "directory":
            os.unlink(tree / "v" / "0.0")
        else:
            remove(target, "v/0.0")
        assert np.isnan(ds.v[0].values).all()  # a chunk that is missing is no array that is
        remove(target, "v" if key == 0 or isinstance(target, dict) else "")
        with pytest.raises(StoreError, match=r"v/\.zarray is not there any more|cannot be found"):
            ds.v[key].load()


def test_copies_of_chunks_of_an_array_that_is_removed(tree: Path, tmp_path: Path) -> None:
    with open_hierarchy(tree) as opened:
        stored = StoredChunks(opened.reader(opened.hierarchy.root.variables["v"]))
        chunks = stored.locate(np.arange(6))
        remove(tree, "v")
        keys = [f"w/{number}.0" for number in range(6)]
        with pytest.raises(StoreError, match=r"v/\.zarray is not there any more"):
            stored.put(chunks, keys, DirectoryWriter(tmp_path / "new"))


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("place", ["directory", "memory"])
@pytest.mark.parametrize("shards", [None, (2, 4)])
@pytest.mark.parametrize("consolidated", [False, True])
def test_an_array_of_zarr_3_is_removed(
    tmp_path: Path, place: str, shards: Any, consolidated: bool
) -> None:
    tree = tmp_path / f"v{shards}{consolidated}.zarr"
    zarr_3(tree, consolidated=consolidated, shards=shards)
    target = archived(tree, place)
    with xr.open_dataset(target, engine="nczarr") as ds:
        remove(target, "v/c/0")
        assert np.isnan(ds.v[0].values).all()
        remove(target, "v")
        with pytest.raises(StoreError, match=r"v/zarr\.json is not there any more"):
            ds.v.load()


def test_zarr_3(tmp_path: Path) -> None:
    """Its arrays read themselves, and no object at the root tells its states apart."""
    tree, chunks = tmp_path / "v.zarr", {"v": {"chunks": (1, 4)}}
    dataset(6, 1.0).to_zarr(tree, zarr_format=3, consolidated=False, encoding=chunks)
    with xr.open_dataset(tree, engine="nczarr") as ds:
        tree.rename(tmp_path / "old.zarr")
        with pytest.raises(StoreError, match="cannot be found any more"):
            ds.v.load()
        dataset(2, 2.0).to_zarr(tree, zarr_format=3, consolidated=False, encoding=chunks)
        with pytest.raises(StoreError, match="another dataset is in its place now"):
            ds.v.load()
        shutil.rmtree(tree)  # chunks of other sizes are no damage
        dataset(2, 2.0).to_zarr(
            tree, zarr_format=3, consolidated=False, encoding={"v": {"chunks": (2, 4)}}
        )
        with pytest.raises(NCZarrError, match=r"in its place now.*changed after it was opened"):
            ds.v.load()


def test_chunks_as_they_are_stored(tree: Path) -> None:
    with open_hierarchy(tree) as opened:
        stored = StoredChunks(opened.reader(opened.hierarchy.root.variables["v"]))
        chunks = stored.locate(np.arange(6))
        assert all(stored.fetch(chunks))
        moved_here(tree)
        with pytest.raises(StoreError, match=r"another dataset is in its place now.*open it again"):
            stored.fetch(chunks)


def test_what_is_pickled_insists_on_the_same_directory(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with xr.open_dataset(tree, engine="nczarr") as ds:
        other = pickle.dumps(ds)
    with pickle.loads(other) as ds:
        assert (ds.v == 1).all()
    moved_here(tree)  # before the process that gets it, as a worker, has it
    with pickle.loads(other) as ds, pytest.raises(StoreError, match="open it again"):
        ds.v.load()
    monkeypatch.setattr(directory, "machine", lambda: ("elsewhere", ""))  # numbers mean nothing
    with pickle.loads(other) as ds, pytest.raises(StoreError, match="is another one now"):
        ds.v.isel(t=slice(2)).load()
    moved_back(tree)
    with pickle.loads(other) as ds:
        assert (ds.v == 1).all()


def test_other_changes_are_none(tree: Path) -> None:
    with xr.open_dataset(tree, engine="nczarr") as ds:
        dataset(3, 1.0).nczarr.to_nczarr(tree, append_dim="t")
        os.unlink(tree / "v" / "5.0")  # by hand: what is missing is fill
        assert np.isnan(ds.v[5].values).all()
        assert ds[["v"]].isel(t=slice(5)).identical(dataset(5, 1.0))


@pytest.mark.parametrize("rows", [3, 300])
def test_chunks_that_are_gone_with_their_array(rows: int, tmp_path: Path) -> None:
    """Of many chunks, it is found out which there are before they are read."""
    write(tmp_path / "v.nczarr", rows, 1.0)
    with xr.open_dataset(tmp_path / "v.nczarr", engine="nczarr") as ds:
        shutil.rmtree(tmp_path / "v.nczarr")
        with pytest.raises(StoreError, match="cannot be found any more"):
            ds.v.load()
