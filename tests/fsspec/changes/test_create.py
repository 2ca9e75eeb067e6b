"""New datasets: nobody sees them, or disturbs others, before they are complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nczarr_fsspec.changes.create import NewObjects, NewTree
from nczarr_fsspec.changes.journal import COVER, INCOMPLETE, ROOT, STATE_KEYS, with_changes
from nczarr_fsspec.changes.recovery import recover
from nczarr_fsspec.errors import ConflictError, IncompleteExportError, StoreError
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.write_directory import DirectoryWriter

NEW = {ROOT: b"{}", "v/.zarray": b"{}", "v/0": b"new"}


def old_tree(path: Path, **others: str) -> DirectoryWriter:
    tree = DirectoryWriter(path)
    for key in (ROOT, "v/.zarray", "v/0", "v/1"):
        tree.put(key, b"old")
    for name, text in others.items():
        (path / name).write_text(text)
    return tree


def contents(path: Path) -> dict[str, bytes]:
    found = DirectoryWriter(path)
    return {key: found.reader().get_one(key) or b"" for key in found.keys_below("")}


class TestTrees:
    def begun(self, path: Path) -> NewTree:
        tree = NewTree.begin(str(path))
        for key, data in NEW.items():
            tree.staged.put(key, data)
        return tree

    @pytest.mark.parametrize("there", [True, False])
    def test_it_comes_as_a_whole(self, there: bool, tmp_path: Path) -> None:
        path = tmp_path / "d"
        if there:
            old_tree(path)
        before = contents(path)
        tree = self.begun(path)
        assert {k: v for k, v in contents(path).items() if not k.startswith(".nczarr_")} == before
        tree.commit()
        assert contents(path) == NEW
        assert [entry.name for entry in tmp_path.iterdir()] == ["d"]

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        tree = self.begun(tmp_path / "d")
        with pytest.raises(ConflictError, match="another export of this process is writing to it"):
            NewTree.begin(str(tmp_path / "d"))
        tree.commit()
        assert contents(tmp_path / "d") == NEW

    def test_blocks_that_come_when_it_is_over_make_no_dataset(self, tmp_path: Path) -> None:
        tree = self.begun(tmp_path / "d")
        shutil.rmtree(tree.partial)
        tree.staged.put("v/0", b"late")
        with pytest.raises(StoreError, match="this change is over already"):
            tree.commit()
        assert not list(tmp_path.iterdir())

    def test_files_of_others_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "d"
        old_tree(path, README="mine")
        self.begun(path).commit()
        assert contents(path) == {**NEW, "README": b"mine"}

    def test_one_that_was_taken_for_dead_replaces_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "d"
        old = old_tree(path)
        before = contents(path)
        tree = self.begun(path)
        recover(old)
        with pytest.raises(StoreError, match="this change is over already"):
            tree.commit()
        tree.abort()
        assert contents(path) == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


class TestObjects:
    def begun(self, store: MappingWriter) -> NewObjects:
        new = NewObjects.begin(store)
        for key in ("v/.zarray", "v/0"):
            new.staged.put(key, NEW[key])
        return new

    def test_nobody_reads_it_before(self) -> None:
        store = MappingWriter({})
        new = self.begun(store)
        assert store.mapping[ROOT] == COVER  # for those who do not know the mark
        reader = store.reader()
        with pytest.raises(IncompleteExportError, match="has not finished"):
            with_changes(reader, *reader.get_many(STATE_KEYS))
        new.staged.put(ROOT, b"{}")
        new.commit()
        assert store.mapping == NEW

    def test_what_another_has_just_written_stays(self) -> None:
        objects = dict(NEW)
        with pytest.raises(ConflictError, match="another writer has written a dataset just now"):
            NewObjects.begin(MappingWriter(objects))
        assert objects == NEW

    def test_one_that_was_taken_for_dead_gives_up(self) -> None:
        store = MappingWriter({})
        new = self.begun(store)
        recover(store)
        with pytest.raises(StoreError, match="this change is over already"):
            new.commit()
        assert INCOMPLETE in store.mapping

    def test_and_leaves_alone_what_others_have_written_since(self) -> None:
        store = MappingWriter({})
        first = self.begun(store)
        recover(store)
        second = self.begun(store)
        first.abort()
        second.staged.put(ROOT, b"{}")
        second.commit()
        assert store.mapping == NEW
