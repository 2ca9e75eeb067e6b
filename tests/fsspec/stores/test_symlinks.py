"""Symbolic links, devices and FIFOs in local trees: a tree from elsewhere opens no other files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec import open_keystore
from nczarr_fsspec.errors import NCZarrError, NCZarrWarning, StoreError, URLError
from nczarr_fsspec.keystore import LocalStore
from nczarr_fsspec.stores.directory import DirectoryStore, Inside
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray import to_nczarr
from nczarr_xarray.cli.main import main
from tests.support.builders.trees import read_tree

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links take privileges there")

FOLLOW = {"follow_symlinks": True}
DATA = np.arange(6, dtype="i4")


def write(path: Path) -> xr.Dataset:
    ds = xr.Dataset({"v": ("x", DATA), "w": ("x", DATA + 1)})
    encoding = {name: {"chunksizes": (3,)} for name in ("v", "w")}
    to_nczarr(ds, path, encoding=encoding)
    return ds


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A dataset beside a directory with what it must not read."""
    path = tmp_path / "in/d.nczarr"
    path.parent.mkdir()
    write(path)
    write(tmp_path / "outside")
    return path


def link_chunk(tree: Path) -> None:
    (tree / "v/0").unlink()
    (tree / "v/0").symlink_to(tree.parent.parent / "outside/v/1")


def link_metadata(tree: Path) -> None:
    (tree / "v/.zarray").unlink()
    (tree / "v/.zarray").symlink_to("../../../outside/v/.zarray")


def link_array(tree: Path) -> None:
    (tree / "v").rename(tree / "old")
    (tree / "v").symlink_to("../../outside/v")


def link_through_link(tree: Path) -> None:
    """A link to a link that is inside, and leads out."""
    link_chunk(tree)
    (tree / "v/0").rename(tree / "w/hidden")
    (tree / "v/0").symlink_to("../w/hidden")


def link_root_object(tree: Path) -> None:
    (tree / ".zattrs").unlink()
    (tree / ".zattrs").symlink_to("../../outside/.zattrs")


LINKS = [link_chunk, link_metadata, link_array, link_through_link, link_root_object]


def load(path: Any, **options: Any) -> xr.Dataset:
    with xr.open_dataset(path, engine="nczarr", **options) as ds:
        return ds.load()


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.filterwarnings("ignore::nczarr_fsspec.errors.NCZarrWarning")
def test_links_that_lead_out_are_refused(tree: Path, link: Callable[[Path], None]) -> None:
    link(tree)
    for target in (
        tree,
        str(tree),
        f"file://{tree}#mode=nczarr,file",
        fsspec.get_mapper(str(tree)),
    ):
        with pytest.raises(NCZarrError, match=r"leads out of the dataset.*follow_symlinks.*True"):
            load(target).v.values  # noqa: B018
    assert load(tree, storage_options=FOLLOW).v.dims == ("x",)
    assert load(f"file://{tree}", storage_options=FOLLOW).v.dims == ("x",)
    assert load(fsspec.get_mapper(str(tree), **FOLLOW)).v.dims == ("x",)


def test_other_variables_can_be_read(tree: Path) -> None:
    link_metadata(tree)
    with pytest.warns(NCZarrWarning, match=r"'/v' cannot be read.*leads out"):
        ds = xr.open_dataset(tree, engine="nczarr")
    np.testing.assert_array_equal(ds.w, DATA + 1)
    ds.close()


def test_links_that_stay_inside_are_followed(tree: Path) -> None:
    right = load(tree)
    (tree / "data").mkdir()
    (tree / "v/0").rename(tree / "data/0")
    (tree / "v/0").symlink_to("../data/0")
    (tree / "v/1").rename(tree / "data/1")
    (tree / "v/1").symlink_to(tree / "data/1")
    (tree / "w").rename(tree / "data/w")
    (tree / "w").symlink_to("data/w")
    xr.testing.assert_identical(load(tree), right)


def test_the_root_may_be_a_link(tree: Path, tmp_path: Path) -> None:
    right = load(tree)
    (tmp_path / "link").symlink_to(tree)
    (tmp_path / "folders").symlink_to(tree.parent)
    (tree / "v/0").rename(tree / "hidden")
    (tree / "v/0").symlink_to("../hidden")
    for path in (tmp_path / "link", tmp_path / "folders/d.nczarr"):
        xr.testing.assert_equal(load(path), right)
    write(tmp_path / "x")
    to_nczarr(right + 1, tmp_path / "link", mode="a")
    xr.testing.assert_equal(load(tree), right + 1)


class TestDirectoryStore:
    def test_every_way_of_reading(self, tree: Path) -> None:
        link_array(tree)
        link = tree / "w/0"
        link.unlink()
        link.symlink_to(tree.parent.parent / "outside/w/0")
        store = DirectoryStore(tree)
        buffer = memoryview(bytearray(12))
        for key in ("v/0", "v/.zarray", "w/0"):
            ways: list[Callable[[str], Any]] = [
                store.get,
                lambda key: store.get(key, slice(0, 4)),
                lambda key: store.get_into(key, buffer),
            ]
            for read in ways:
                with pytest.raises(StoreError, match="leads out"):
                    read(key)
        with pytest.raises(StoreError, match="leads out"):
            store.list("v")
        assert not any(buffer)
        assert store.stamp("v/0") is None
        trusting = pickle.loads(pickle.dumps(DirectoryStore(tree, follow_symlinks=True)))
        assert trusting.get("v/0") == (tree.parent.parent / "outside/v/0").read_bytes()
        assert trusting.get_into("w/0", buffer) == 12
        with pytest.raises(StoreError, match="leads out"):
            pickle.loads(pickle.dumps(store)).get("w/0")

    def test_a_prefix_of_the_name_is_not_inside(self, tmp_path: Path) -> None:
        write(tmp_path / "d")
        write(tmp_path / "d2")
        (tmp_path / "d/v/0").unlink()
        (tmp_path / "d/v/0").symlink_to("../../d2/v/0")
        with pytest.raises(StoreError, match="leads out"):
            DirectoryStore(tmp_path / "d").get("v/0")

    def test_what_leads_nowhere_is_not_there_or_named(self, tree: Path) -> None:
        (tree / "gone").symlink_to("nowhere")
        (tree / "loop").symlink_to("loop")
        store = DirectoryStore(tree)
        assert store.get("gone") is None
        assert store.get("gone/0") is None
        assert store.get("nothing/0") is None
        assert store.list("nothing/below") == frozenset()
        with pytest.raises(StoreError, match="symbolic links"):
            store.get("loop")

    def test_special_files(self, tree: Path) -> None:
        """They are never waited for, and what they hold is never taken for data."""
        os.mkfifo(tree / "w/9")
        store = DirectoryStore(tree)
        (tree / "v/0").unlink()
        (tree / "v/0").symlink_to("/dev/zero")
        follow = DirectoryStore(tree, follow_symlinks=True)
        for reader, key in ((store, "w/9"), (follow, "w/9"), (follow, "v/0")):
            with pytest.raises(StoreError, match="not a regular file"):
                reader.get(key)
            with pytest.raises(StoreError, match="not a regular file"):
                reader.get_into(key, memoryview(bytearray(12)))
        with pytest.raises(StoreError, match="leads out"):
            store.get("v/0")

    def test_each_folder_is_looked_at_once(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[str] = []
        lstat = os.lstat
        store = DirectoryStore(tree)

        def noted(path: str) -> os.stat_result:
            looked.append(path)
            return lstat(path)

        monkeypatch.setattr(os, "lstat", noted)
        for _ in range(3):
            store.get_many(["v/0", "v/1", "w/0", ".zgroup", "v/.zarray"])
        assert looked == [f"{tree}/v", f"{tree}/w"]

    def test_deep_keys(self, tmp_path: Path) -> None:
        deep = "/".join("a" * 300)
        (tmp_path / deep).mkdir(parents=True)
        (tmp_path / deep / "x").write_bytes(b"1")
        inside = Inside(str(tmp_path), follow=False)
        assert inside.path(f"{deep}/x") == f"{tmp_path}/{deep}/x"
        store = DirectoryStore(tmp_path)
        assert store.get(f"{deep}/x") == b"1"
        assert store.get("/".join("b" * 3000)) is None


class TestDevices:
    @pytest.mark.parametrize("name", ["fifo", "fifo.zip", "fifo.nc"])
    def test_targets_are_looked_at_before_they_are_opened(
        self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / name
        os.mkfifo(path)
        opened: list[str] = []
        monkeypatch.setattr(os, "open", lambda path, *_: opened.append(path))
        for target in (path, f"file://{path}", f"file://{path}#mode=bytes"):
            with pytest.raises(StoreError, match="not a regular file"):
                open_keystore(target)
        assert opened == []


class TestWriting:
    @pytest.mark.parametrize("atomic", [True, False])
    def test_nothing_is_changed_outside(self, tree: Path, atomic: bool) -> None:
        outside = tree.parent.parent / "outside"
        before = read_tree(outside)
        link_array(tree)
        store = DirectoryWriter(tree, atomic=atomic)
        for change in (
            lambda: store.put("v/0", b"bad"),
            lambda: store.put("v/below/0", b"bad"),
            lambda: store.create("v/5", b"bad"),
            lambda: store.delete(["v/0"]),
            lambda: store.move([("v/0", "w/0")]),
            lambda: store.move([("w/0", "v/0")]),
            lambda: store.child("v").put("0", b"bad"),
            lambda: store.keys_below("v"),
        ):
            with pytest.raises(StoreError, match="leads out"):
                change()
        again = pickle.loads(pickle.dumps(store))
        with pytest.raises(StoreError, match="leads out"):
            again.put("v/0", b"bad")
        assert read_tree(outside) == before
        # the link itself is an object
        assert "v" in store.keys_below("")
        store.delete(["v"])
        assert not (tree / "v").is_symlink()
        assert outside.is_dir()

    def test_a_file_that_is_a_link_is_replaced(self, tree: Path) -> None:
        link_chunk(tree)
        DirectoryWriter(tree).put("v/0", b"mine")
        assert (tree / "v/0").read_bytes() == b"mine"
        assert not (tree / "v/0").is_symlink()

    @pytest.mark.parametrize("mode", ["a", "r+", "w"])
    @pytest.mark.filterwarnings("ignore::nczarr_fsspec.errors.NCZarrWarning")
    def test_updates(self, tree: Path, mode: Any) -> None:
        outside = tree.parent.parent / "outside"
        before = read_tree(outside)
        link_array(tree)
        new = xr.Dataset({"v": ("x", DATA * 7)})
        with pytest.raises(NCZarrError, match=r"leads out|do not belong to a dataset"):
            to_nczarr(new, tree, mode=mode)
        assert read_tree(outside) == before
        np.testing.assert_array_equal(load(tree, storage_options=FOLLOW).v, DATA)
        to_nczarr(new, tree, mode="r+", storage_options=FOLLOW)
        np.testing.assert_array_equal(load(outside).v, DATA * 7)


class TestOption:
    def test_other_options_are_an_error(self, tree: Path) -> None:
        for target in (tree, f"file://{tree}"):
            with pytest.raises(URLError, match=r"follow_symlinks and max_metadata apply.*anon"):
                open_keystore(target, {"anon": True})
            with pytest.raises(URLError, match="True or False, not 'yes'"):
                open_keystore(target, {"follow_symlinks": "yes"})
        with pytest.raises(URLError, match="leave them out"):
            open_keystore({".zgroup": b"{}"}, FOLLOW)

    def test_on_the_command_line(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        link_array(tree)
        assert main(["dump", "-o", "follow_symlinks=true", str(tree)]) == 0
        assert "0, 1, 2, 3, 4, 5" in capsys.readouterr().out

    def test_stores_are_local(self, tree: Path) -> None:
        for target in (tree, f"file://{tree}", f"dir://d.nczarr::file://{tree.parent}"):
            store = open_keystore(target)
            assert isinstance(store, LocalStore)


def test_the_state_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    """What is behind a link counts if links are followed; one into itself ends there."""
    tree = tmp_path / "tree"
    (tree / "v").mkdir(parents=True)
    (tree / ".zgroup").write_bytes(b"{}")
    (tree / "v" / "0").write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    (tree / "w").symlink_to(tmp_path / "elsewhere")
    (tree / "v" / "again").symlink_to(tree)

    def states() -> list[str]:
        return [DirectoryStore(tree, follow_symlinks=follow).contents() for follow in (False, True)]

    inside, all_of_it = states()
    assert states() == [inside, all_of_it]
    (tmp_path / "elsewhere" / "0").write_bytes(b"y")
    assert states()[0] == inside
    assert states()[1] != all_of_it
    (tree / "v" / "0").write_bytes(b"longer")
    changed = states()
    assert changed[0] != inside
    (tree / "v" / "1").write_bytes(b"")
    assert states()[0] != changed[0]


def test_a_link_in_a_circle_is_in_nobodys_way(tmp_path: Path) -> None:
    """Writers look through a folder for what others left in it."""
    (tmp_path / "loop").symlink_to("loop")
    store = DirectoryWriter(tmp_path)
    store.put("d/x", b"")
    assert sorted(store.keys_below("")) == ["d/x", "loop"]
    xr.Dataset({"v": ("x", DATA)}, {"x": DATA}).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    file, master = str(tmp_path / "a.nc"), str(tmp_path / "m.nca")
    assert main(["aggregate", file, "-o", master, "--dim", "x"]) == 0
    assert main(["recover", master]) == 0
    store.delete(["loop"])
    assert not os.path.lexists(tmp_path / "loop")
