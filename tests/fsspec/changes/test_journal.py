"""Changes that are valid: how they read whatever became of their writer, and who finishes them."""

from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from fsspec.asyn import get_loop
from hypothesis import given, settings

from nczarr_fsspec.changes import recovery
from nczarr_fsspec.changes.edit import Edit, Lock, complete_template
from nczarr_fsspec.changes.journal import (
    COVER,
    HELD,
    INCOMPLETE,
    JOURNAL,
    PRIVATE,
    ROOT,
    STATE_KEYS,
    WRITERS,
    Incomplete,
    Journal,
    State,
    with_changes,
)
from nczarr_fsspec.changes.recovery import Succession
from nczarr_fsspec.errors import ConflictError, IncompleteExportError, StoreError
from nczarr_fsspec.keystore import ALL, RemoteStore
from nczarr_fsspec.stores import ownership
from nczarr_fsspec.stores.mapping import MappingStore, MappingWriter
from nczarr_fsspec.stores.ownership import AT_WORK, Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter
from nczarr_xarray.dataset.open import open_keys
from nczarr_xarray.formats.registry import OpenOptions
from tests.support.corpora.samples import CONSOLIDATED
from tests.support.examples import examples

Objects = dict[str, bytes]

KEYS = (
    *(".zgroup", ".zattrs", ".zmetadata", ".nczarr", "zarr.json"),
    *("v/.zarray", "v/.zattrs", "v/0.0", "v/0.1", "v/1.0", "g/.zgroup", "g/w/.zarray", "g/w/0"),
)


def dead_owner() -> Owner:
    """A process of this machine that has ended."""
    process = multiprocessing.get_context("fork").Process(target=os._exit, args=(0,))
    process.start()
    process.join()
    assert process.pid is not None
    return replace(Owner.here(), pid=process.pid, started="1")


class CutError(BaseException):
    """The process is killed."""


class Mortal(dict[str, bytes]):
    """A mapping whose user dies after some changes."""

    left = -1

    def _live(self) -> None:
        if self.left == 0:
            raise CutError
        self.left -= 1

    def __setitem__(self, key: str, value: bytes) -> None:
        self._live()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._live()
        super().__delitem__(key)


def state_of(objects: MutableMapping[str, Any]) -> State:
    store = MappingStore(objects)
    return with_changes(store, *store.get_many(STATE_KEYS))


def seen(objects: MutableMapping[str, Any]) -> Objects:
    store = state_of(objects).store
    found = zip(KEYS, store.get_many(KEYS), strict=True)
    return {key: data for key, data in found if isinstance(data, bytes)}


def names(objects: Objects, prefix: str) -> set[str]:
    start = f"{prefix}/" if prefix else ""
    return {key[len(start) :].partition("/")[0] for key in objects if key.startswith(start)}


class Listed(RemoteStore):
    """Objects far away, which can be listed."""

    url = "far"

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        data = self.objects.get(key)
        return data and data[part]

    async def list(self, prefix: str) -> frozenset[str]:
        return frozenset(names(self.objects, prefix))


@st.composite
def changes(draw: st.DrawFn) -> tuple[Mortal, Objects, Objects]:
    """A store with a valid change that nobody has begun to carry out; the dataset before, after."""
    before = {key: b"old " + key.encode() for key in draw(st.sets(st.sampled_from(KEYS)))}
    staged = {key: b"new " + key.encode() for key in draw(st.sets(st.sampled_from(KEYS)))}
    removed = draw(st.sets(st.sampled_from(KEYS))) - staged.keys()
    journal = Journal("t", dead_owner_once(), tuple(sorted(staged)), tuple(sorted(removed)))
    objects = Mortal(before)
    objects |= {journal.staged_key(key): data for key, data in staged.items()}
    objects |= {JOURNAL: journal.dump(), f"{PRIVATE}/writers/t": b"{}"}
    return objects, before, {k: v for k, v in (before | staged).items() if k not in removed}


_dead: list[Owner] = []


def dead_owner_once() -> Owner:
    if not _dead:
        _dead.append(dead_owner())
    return _dead[0]


@settings(max_examples=examples(200))
@given(change=changes(), lives=st.lists(st.integers(0, 25), max_size=4))
def test_a_valid_change_reads_as_new_wherever_it_was_cut(
    change: tuple[Mortal, Objects, Objects], lives: list[int]
) -> None:
    objects, before, after = change
    store = MappingWriter(objects)
    assert seen(objects) == after
    for life in lives:  # of one writer after the other that tries to finish it
        objects.left = life
        try:
            recovery.finish_journal(store)
        except CutError:
            release_all()
        objects.left = -1
        assert seen(objects) == after
        view = state_of(objects).store
        for prefix in ("", "v", "g", "g/w"):
            (listed,) = view.list_many([prefix])
            assert isinstance(listed, frozenset)
            # directories of removed objects may still be there
            assert names(after, prefix) <= listed
            assert listed - {PRIVATE} <= names(after, prefix) | names(before, prefix)
    Lock.acquire(store).release()  # the next writer
    assert objects == after


def release_all() -> None:
    """What the system does to a process that is killed: it is at work no more."""
    AT_WORK.clear()


@settings(max_examples=examples(100))
@given(change=changes(), life=st.integers(0, 25), again=st.integers(0, 25))
def test_recovery_may_be_repeated(
    change: tuple[Mortal, Objects, Objects], life: int, again: int
) -> None:
    objects, _, after = change
    store = MappingWriter(objects)
    for left in (life, again, -1, -1):
        objects.left = left
        try:
            recovery.recover(store)
        except CutError:
            release_all()
    assert objects == after


@settings(max_examples=examples(100))
@given(life=st.integers(0, 25))
def test_a_template_stays_covered_until_it_is_complete(life: int) -> None:
    pending = Incomplete(dead_owner_once(), {"v": 2})
    objects = Mortal({ROOT: b"old", "v/9.9": b"old"})
    store = MappingWriter(objects)
    edit = Edit.begin(store)
    for key in (ROOT, "v/.zarray"):
        edit.staged.put(key, b"new")
    objects.left = life
    try:
        edit.commit(["v/9.9"], pending=pending)
    except CutError:
        release_all()
    objects.left = -1
    valid = JOURNAL in objects or INCOMPLETE in objects
    if valid:
        assert set(state_of(objects).pending) == {"v"}
        assert seen(objects)[ROOT] == b"new"
    else:
        assert seen(objects)[ROOT] == b"old"
        return
    Lock.acquire(store).release()
    assert b"under way" in objects[ROOT]  # for all but our readers
    assert seen(objects)[ROOT] == b"new"
    store.put("v/0.0", b"1")
    recovery.end_template(store)
    assert INCOMPLETE in objects
    store.put("v/0.1", b"2")
    recovery.end_template(store)
    assert objects == {ROOT: b"new", "v/.zarray": b"new", "v/0.0": b"1", "v/0.1": b"2"}


@settings(max_examples=examples(150))
@given(
    data=st.binary(max_size=20)
    | st.fixed_dictionaries(
        {},
        optional={
            name: st.none() | st.text(max_size=3) | st.lists(st.text(max_size=2) | st.integers())
            for name in ("transaction", "owner", "staged", "removed")
        },
    ).map(lambda document: json.dumps(document).encode())
    | st.integers(0, 60).map(lambda length: Journal("t", dead_owner(), ()).dump()[:length])
    | st.integers(0, 60).map(bytes)
)
def test_damaged_journals(data: bytes) -> None:
    objects = {ROOT: b"{}", JOURNAL: data}
    start = b'{"transaction": '
    left = data.rstrip(b"\0")
    try:
        journal = Journal.parse(data, "here")
    except StoreError as error:
        assert str(error).startswith(f"here/{JOURNAL}: is damaged")
        if left.startswith(start) or start.startswith(left):
            with pytest.raises(StoreError, match=r'journal: is damaged.*mode="w"'):
                state_of(objects)
        else:  # somebody else's object, see `test_what_is_no_journal_is_none`
            assert seen(objects)[ROOT] == b"{}"
        with pytest.raises(StoreError, match="journal: is damaged"):
            Lock.acquire(MappingWriter(objects))
        assert objects == {ROOT: b"{}", JOURNAL: data}  # nothing of ours is left
    else:
        assert all(isinstance(key, str) for key in journal.staged + journal.removed)


OTHERS = (
    b"<!DOCTYPE html><html><body>Not found</body></html>",
    b'\xef\xbb\xbf<?xml version="1.0"?><Error/>',
    b"Not Found",
    b'{"error": "no such file", "status": 404}',
    b"null",
)


@pytest.mark.parametrize("page", OTHERS)
def test_what_is_no_journal_is_none(page: bytes) -> None:
    """Some servers answer 200 and a page for what they do not have."""
    state = state_of({ROOT: b"{}", JOURNAL: page, INCOMPLETE: page, "v/0": b"1"})
    assert not state.pending
    assert state.store.get_many([ROOT, "v/0"]) == [b"{}", b"1"]


def test_no_journal_leads_out_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    store = DirectoryWriter(tmp_path / "d")
    store.put(ROOT, b"{}")
    store.put(JOURNAL, Journal("t", dead_owner(), ("../outside",), ("../outside",)).dump())
    with pytest.raises(StoreError, match="outside"):
        recovery.finish_journal(store)
    assert (tmp_path / "outside").read_text() == "mine"


def test_marks() -> None:
    with pytest.raises(IncompleteExportError, match="has not finished"):
        state_of({ROOT: b"{}", INCOMPLETE: b'{"owner": damaged'})
    with pytest.raises(IncompleteExportError, match="ended before it was done"):
        state_of({INCOMPLETE: Incomplete(dead_owner()).dump()})
    assert Incomplete.parse(b'{"pending": {"v": Infinity}}').pending is None


ALIVE = Owner.here()


class TestOwner:
    def test_who_is_dead(self) -> None:
        here = Owner.here()
        assert Owner.parse(here.document) == here
        assert not here.is_dead()
        assert dead_owner().is_dead()
        assert replace(here, started="1").is_dead()  # another process had this number

    @pytest.mark.parametrize(
        "ask",
        [Owner.here, ALIVE.is_dead, ownership.this_system],
        ids=["here", "is_dead", "system"],
    )
    def test_nobody_is_told_apart_while_too_many_files_are_open(
        self, ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that lives was taken for dead, and what was left here for another machine's."""

        def read_bytes(self: Path) -> bytes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), os.fspath(self))

        ownership.this_system.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_bytes)
            with pytest.raises(StoreError, match=r"/proc/.*: cannot be read: Too many open files"):
                ask()
        assert not ALIVE.is_dead()
        assert Owner.here().system == ALIVE.system

    @pytest.mark.parametrize("field", ["host", "system"])
    def test_only_its_own_machine_can_tell(self, field: str) -> None:
        """Containers may share a name, and so may the machine before and after a restart."""
        other: dict[str, Any] = {field: "other"}
        assert not replace(dead_owner(), **other).is_dead()
        assert not Owner.parse({"pid": "x"}).is_dead()
        assert not replace(Owner.here(), pid=1 << 70).is_dead()
        assert Owner.of_identity(f"h-0-{'9' * 5000}-a") is None

    def test_what_it_has_left(self) -> None:
        AT_WORK.add("a")
        assert not Owner.here().has_left("a")
        assert Owner.here().has_left("b")
        assert dead_owner().has_left("a")
        AT_WORK.discard("a")


def lock_of(owner: Owner, boxes: Any = None) -> bytes:
    return json.dumps({"owner": owner.document, "boxes": boxes}).encode()


class TestLocks:
    def test_overlaps(self) -> None:
        store = MappingWriter({})
        first = Lock.acquire(store, {"v": ((0, 2), (0, 1))})
        for boxes in (None, {"v": ((1, 3), (0, 9))}):
            with pytest.raises(ConflictError, match="is at work on the same chunks"):
                Lock.acquire(store, boxes)
        others = [Lock.acquire(store, b) for b in ({"v": ((2, 3), (0, 1))}, {"w": ((0, 9),)}, {})]
        for lock in (first, *others):
            lock.release()
        assert store.mapping == {}

    def test_the_dead_are_no_hindrance(self) -> None:
        objects = {f"{PRIVATE}/writers/x": lock_of(dead_owner()), f"{PRIVATE}/staged/x/v/0": b""}
        Lock.acquire(MappingWriter(objects)).release()
        assert objects == {}

    @pytest.mark.parametrize("same", [True, False])
    def test_two_that_begin_at_the_same_time(self, same: bool) -> None:
        """Of the same chunks, one of them has to notice; else neither may disturb the other."""
        objects: Objects = {}
        others: list[Edit | ConflictError] = []

        class Meanwhile(MappingWriter):
            """Another writer begins when this one has looked for others."""

            def keys_below(self, prefix: str) -> list[str]:
                found = super().keys_below(prefix)
                if prefix == WRITERS:
                    try:
                        edit = Edit.begin(MappingWriter(objects), {"v": ((not same, 2),)})
                        edit.staged.put("v/1", b"new")
                        others.append(edit)
                    except ConflictError as error:
                        others.append(error)
                return found

        Lock.acquire(Meanwhile(objects), {"v": ((0, 1),)})
        (other,) = others
        assert isinstance(other, ConflictError) == same
        if isinstance(other, Edit):
            other.commit(expected=1)
            assert objects["v/1"] == b"new"

    def test_what_nobody_locks_is_removed(self) -> None:
        objects = {f"{PRIVATE}/staged/x/v/0": b""}  # killed after it took its lock back
        Lock.acquire(MappingWriter(objects)).release()
        assert objects == {}

    @pytest.mark.parametrize("damaged", [b"", b"[]", b"{}", b'{"owner": 3, "boxes": 4}'])
    def test_a_damaged_lock_hinders_until_recovery(self, damaged: bytes) -> None:
        store = MappingWriter({f"{PRIVATE}/writers/x": damaged})
        with pytest.raises(ConflictError, match=r"nczarr_xarray\.recover"):
            Lock.acquire(store)
        recovery.recover(store)
        Lock.acquire(store).release()
        assert store.mapping == {}

    def test_a_change_that_became_valid_at_the_last_moment_is_not_lost(self) -> None:
        """Its writer died between our look for a journal and our look at its lock."""
        objects: Objects = {ROOT: b"old"}
        journal = Journal("x", dead_owner(), (ROOT,))

        class Late(MappingWriter):
            def keys_below(self, prefix: str) -> list[str]:
                found = super().keys_below(prefix)
                if prefix == WRITERS:
                    objects.setdefault(JOURNAL, journal.dump())
                return found

        objects[f"{PRIVATE}/writers/x"] = lock_of(journal.owner)
        objects[journal.staged_key(ROOT)] = b"new"
        Lock.acquire(Late(objects)).release()
        assert objects[ROOT] == b"new"


class TestEdit:
    def store(self) -> MappingWriter:
        return MappingWriter({ROOT: b"old", "v/0": b"old", "v/1": b"old"})

    def test_a_change(self) -> None:
        store = self.store()
        edit = Edit.begin(store)
        edit.staged.put("v/0", b"new")
        edit.staged.put(ROOT, b"new")
        assert seen(store.mapping)[ROOT] == b"old"
        edit.commit(["v/1", "v/0"], expected=2)
        assert store.mapping == {ROOT: b"new", "v/0": b"new"}

    def test_nothing_old_is_left_when_metadata_come_to_their_places(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader who looked for the journal a moment too early would take it for new."""
        store = self.store()
        edit = Edit.begin(store)
        store.put(".zmetadata", b"old")
        for key in ("v/0", "v/.zarray", ".zmetadata", ROOT):
            edit.staged.put(key, b"new")
        move = store.move
        moved: list[str] = []

        def seen_moving(pairs: Iterable[tuple[str, str]]) -> None:
            pairs = list(pairs)
            moved.extend(target for _, target in pairs)
            assert "v/1" not in store.mapping
            assert store.mapping.get(".zmetadata") != b"old"  # which others believe
            move(pairs)

        monkeypatch.setattr(store, "move", seen_moving)
        edit.commit(["v/1"])
        assert {"v/.zarray", ROOT} <= set(moved)
        assert store.mapping == dict.fromkeys(("v/0", "v/.zarray", ".zmetadata", ROOT), b"new")

    def test_what_is_replaced_is_not_removed(self) -> None:
        """The next writer may finish a change of which a part is in its place already."""
        old, new = self.store().mapping, {ROOT: b"new", "v/0": b"new"}
        found = []
        for life in range(20):
            objects = Mortal(old)
            store = MappingWriter(objects)
            edit = Edit.begin(store)
            for key, data in new.items():
                edit.staged.put(key, data)
            objects.left = life
            try:
                edit.commit(["v/0", "v/1"])
            except CutError:
                release_all()
            objects.left = -1
            Lock.acquire(store).release()
            found.append(dict(objects))
        first = found.index(new)
        assert found == [old] * first + [new] * (20 - first)

    def test_missing_objects(self) -> None:
        store = self.store()
        edit = Edit.begin(store)
        with pytest.raises(StoreError, match="0 objects were staged, 1 expected"):
            edit.commit(["v/0"], expected=1)
        edit.abort()
        assert store.mapping == self.store().mapping

    def test_a_change_that_becomes_valid_at_the_same_moment_is_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A journal that came after the look for one is carried out, not overwritten."""
        store = self.store()
        first = Edit.begin(store, {"v": ((0, 1),)})
        second = Edit.begin(store, {"v": ((1, 2),)})
        first.staged.put("v/0", b"new")
        second.staged.put("v/1", b"new")
        first_journal = Journal(first.lock.transaction, dead_owner_once(), ("v/0",)).dump()
        finish_journal, looks = recovery.finish_journal, []

        def look(there: Any) -> None:
            finish_journal(there)
            looks.append(there)
            if len(looks) == 1:
                store.put(JOURNAL, first_journal)
            assert len(looks) < 4

        monkeypatch.setattr("nczarr_fsspec.changes.edit.finish_journal", look)
        second.commit()
        assert store.mapping == {ROOT: b"old", "v/0": b"new", "v/1": b"new"}

    def test_a_writer_that_was_taken_for_dead_gives_up(self) -> None:
        store = self.store()
        edit = Edit.begin(store)
        edit.staged.put(ROOT, b"new")
        recovery.recover(store)
        edit.staged.put("v/0", b"half of it")
        with pytest.raises(StoreError, match="this change is over already"):
            edit.commit(["v/1"])
        edit.abort()
        assert store.mapping == self.store().mapping

    @settings(max_examples=examples(60))
    @given(life=st.integers(0, 40))
    def test_commit_and_again(self, life: int) -> None:
        """A cluster runs a task again whose worker has died; nothing may be removed twice."""
        objects = Mortal(self.store().mapping)
        store = MappingWriter(objects)
        edit = Edit.begin(store)

        def finish() -> None:
            for key in (ROOT, "v/0"):
                edit.staged.put(key, b"new")
            edit.commit(["v/0", "v/1"])

        objects.left = life
        try:
            finish()
        except CutError:
            release_all()
        objects.left = -1
        try:
            finish()
        except StoreError as error:
            assert "this change is over already" in str(error)
            edit.abort()
        Lock.acquire(store).release()
        assert objects == {ROOT: b"new", "v/0": b"new"}

    def test_what_fails_on_the_way_is_finished_next_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = self.store()
        edit = Edit.begin(store)
        edit.staged.put(ROOT, b"new")
        edit.staged.put("v/0", b"new")

        def fail(*_: Any) -> None:
            raise StoreError("v/0", "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(MappingWriter, "move", fail)
            with pytest.raises(StoreError, match="v/0: no space left"):
                edit.commit(["v/1"])
            edit.abort()
            assert seen(store.mapping)[ROOT] == b"new"
            with pytest.raises(StoreError, match="v/0: no space left"):
                Lock.acquire(store)  # it is still full
        Lock.acquire(store).release()
        assert store.mapping == {ROOT: b"new", "v/0": b"new"}


def test_one_of_many_finishes_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were two at it, the slower one could undo what others have written since."""
    store = DirectoryWriter(tmp_path / "d")
    journal = Journal("t", dead_owner(), (ROOT, "v/0"), ("v/1",))
    for key in (ROOT, "v/1"):
        store.put(key, b"old")
    for key in journal.staged:
        store.put(journal.staged_key(key), b"new")
    store.put(JOURNAL, journal.dump())
    carried_out: list[str] = []
    original = recovery.carry_out

    def counted(store: Any, journal: Journal) -> None:
        carried_out.append(journal.transaction)
        original(store, journal)

    monkeypatch.setattr(recovery, "carry_out", counted)
    gate = threading.Barrier(6)
    done: list[bool] = []

    def work() -> None:
        gate.wait()
        recovery.finish_journal(store)
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 6
    assert carried_out == ["t"]
    assert store.keys_below("") == [ROOT, "v/0"]


@pytest.mark.parametrize("consolidated", [True, None, False])
def test_changes_are_seen_however_a_remote_tree_is_opened(consolidated: bool | None) -> None:
    options = OpenOptions(consolidated=consolidated)
    changed = {".zattrs": b'{"title": "new"}'}
    documents = json.loads(CONSOLIDATED[".zmetadata"])
    documents["metadata"][".zattrs"] = json.loads(changed[".zattrs"])
    changed[".zmetadata"] = json.dumps(documents).encode()
    journal = Journal("t", dead_owner_once(), tuple(changed))
    objects = CONSOLIDATED | {journal.staged_key(key): data for key, data in changed.items()}
    for state, valid in ((JOURNAL, True), (f"{PRIVATE}/writers/t", False)):
        store = Listed({**objects, state: journal.dump()})
        attributes = open_keys(store, options=options).hierarchy.root.attributes
        assert ("title" in attributes) == valid
    whole = Listed({**objects, INCOMPLETE: Incomplete(dead_owner_once()).dump()})
    with pytest.raises(IncompleteExportError):
        open_keys(whole, options=options)


@pytest.mark.parametrize("stated", [False, True])
def test_a_writer_that_gets_no_further(stated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if stated:
        monkeypatch.setattr(MappingWriter, "timeout", 0.01)
    else:
        monkeypatch.setattr(recovery, "PATIENCE", 0.01)
    owner = replace(Owner.here(), host="elsewhere")
    store = MappingWriter({ROOT: b"old", JOURNAL: Journal("t", owner, ()).dump()})
    with pytest.raises(ConflictError, match=r"elsewhere.* no further.*nczarr_xarray\.recover"):
        recovery.finish_journal(store)
    recovery.recover(store)
    assert store.mapping == {ROOT: b"old"}


def test_what_another_has_finished_is_not_carried_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may have written since what the change removed."""
    store = MappingWriter({ROOT: b"{}", "v/0": b"old"})
    store.put(JOURNAL, Journal("t", dead_owner_once(), (), ("v/0",)).dump())
    end = Succession.end

    def late(self: Succession, first: Owner, work: str) -> tuple[Owner | None, int]:
        found = end(self, first, work)
        store.delete([JOURNAL])
        store.put("v/0", b"newer")
        return found

    monkeypatch.setattr(Succession, "end", late)
    recovery.finish_journal(store)
    assert store.mapping == {ROOT: b"{}", "v/0": b"newer"}


def test_a_template_that_was_replaced_meanwhile_is_not_ended() -> None:
    one, other = (Incomplete(Owner.here(), {"v": 1}, name).dump() for name in "ab")

    class Replaced(MappingWriter):
        def keys_below(self, prefix: str) -> list[str]:
            found = super().keys_below(prefix)
            self.mapping[INCOMPLETE] = other
            return found

    objects = {ROOT: COVER, HELD: b"{}", INCOMPLETE: one, "v/0": b"1"}
    recovery.end_template(Replaced(objects))
    assert objects == {ROOT: COVER, HELD: b"{}", INCOMPLETE: other, "v/0": b"1"}


def test_a_commit_that_is_tried_again_is_carried_out_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That it failed before it was valid is no leave for others to carry it out as well."""
    store = MappingWriter({ROOT: b"{}", "v/0": b"old"})
    edit = Edit.begin(store)
    edit.staged.put("v/0", b"new")
    stuck, carry_out = ConflictError("x", "another writer has got no further"), recovery.carry_out
    others: list[Owner | None] = []

    def fail(_: Any) -> None:
        raise stuck

    def meanwhile(there: Any, journal: Journal) -> None:
        line = recovery.succession(store, journal)
        others.append(line.end(journal.owner, journal.transaction)[0])
        carry_out(there, journal)

    with monkeypatch.context() as patch:
        patch.setattr("nczarr_fsspec.changes.edit.finish_journal", fail)
        with pytest.raises(ConflictError):
            edit.commit()
    monkeypatch.setattr("nczarr_fsspec.changes.edit.carry_out", meanwhile)
    edit.commit()
    assert [owner is not None for owner in others] == [True]
    assert dict(store.mapping) == {ROOT: b"{}", "v/0": b"new"}


def test_a_template_is_not_ended_while_another_change_is_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both would move the root: the old one could stay, or the cover."""
    mark = Incomplete(Owner.here(), {"v": 2}, "a")
    store = MappingWriter({ROOT: COVER, HELD: b"old", INCOMPLETE: mark.dump(), "v/0": b"1"})
    last, other = Edit.begin(store, {"v": ((1, 2),)}), Edit.begin(store, {"v": ((0, 1),)})
    other.staged.put("v/0", b"2")
    other.staged.put(ROOT, b"new")
    store.put("v/1", b"3")
    ends = threading.Thread(target=last.commit)
    waits_or_ended = threading.Event()

    def watch() -> None:
        ends.join()
        waits_or_ended.set()

    watches = threading.Thread(target=watch)
    instead = SimpleNamespace(sleep=lambda _: waits_or_ended.set(), monotonic=time.monotonic)
    monkeypatch.setattr(recovery, "time", instead)
    pending_in = recovery.pending_in

    def meanwhile(there: Any) -> Incomplete | None:
        found = pending_in(there)
        if ends.ident is None:
            ends.start()
            watches.start()
            assert waits_or_ended.wait(60)
        return found

    monkeypatch.setattr(recovery, "pending_in", meanwhile)
    other.commit()
    watches.join()
    assert dict(store.mapping) == {ROOT: b"new", "v/0": b"2", "v/1": b"3"}


@settings(max_examples=examples(50))
@given(life=st.integers(0, 12))
def test_a_template_that_is_complete_reads_so_wherever_its_end_was_cut(life: int) -> None:
    mark = Incomplete(dead_owner_once(), {"v": 1}, "a")
    objects = Mortal({ROOT: COVER, HELD: b"new", INCOMPLETE: mark.dump(), "v/0.0": b"1"})
    store = MappingWriter(objects)
    objects.left = life
    try:
        complete_template(store)
    except CutError:
        release_all()
    objects.left = -1
    if JOURNAL in objects or INCOMPLETE not in objects:
        assert not state_of(objects).pending
    assert seen(objects)[ROOT] == b"new"
    Lock.acquire(store).release()
    complete_template(store)
    assert objects == {ROOT: b"new", "v/0.0": b"1"}


def test_chunks_of_a_template_are_listed_once_at_its_end() -> None:
    mark = Incomplete(Owner.here(), {"v": 1}, "a")
    listed = []

    class Counted(MappingWriter):
        def keys_below(self, prefix: str) -> list[str]:
            listed.append(prefix)
            return super().keys_below(prefix)

    store = Counted({ROOT: COVER, HELD: b"{}", INCOMPLETE: mark.dump(), "v/0": b"1"})
    complete_template(store)
    assert dict(store.mapping) == {ROOT: b"{}", "v/0": b"1"}
    assert listed.count("v") == 1


def test_the_end_of_a_template_that_was_replaced_meanwhile_means_nothing() -> None:
    """Its journal says which template is complete."""
    one, other = (Incomplete(Owner.here(), {"v": 1}, name) for name in "ab")
    journal = Journal("t", dead_owner_once(), (), completes=one.name)
    objects = {ROOT: COVER, HELD: b"{}", INCOMPLETE: other.dump(), JOURNAL: journal.dump()}
    assert set(state_of(objects).pending) == {"v"}
    recovery.finish_journal(MappingWriter(objects))
    assert objects == {ROOT: COVER, HELD: b"{}", INCOMPLETE: other.dump()}


class TestBounds:
    """No store, whatever it answers, has a writer ask for ever."""

    def test_a_journal_that_cannot_be_put(self) -> None:
        class Refusing(MappingWriter):
            calls = 0

            def create(self, key: str, data: Any) -> bool:
                Refusing.calls += 1
                return False

        store = Refusing({ROOT: b"{}"})
        change = Edit.begin(store)
        change.staged.put("v/0", b"1")
        with pytest.raises(ConflictError, match="times before this one"):
            change.commit()
        assert Refusing.calls <= 1001

    @pytest.mark.parametrize("what", ["nobody may take over", "nothing is deleted"])
    def test_a_journal_that_stays(self, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class Wrong(MappingWriter):
            def create(self, key: str, data: Any) -> bool:
                return what != "nobody may take over" and super().create(key, data)

            def delete(self, keys: Iterable[str]) -> None:
                pass

        monkeypatch.setattr(recovery, "PATIENCE", 0.0)
        dead = replace(Owner.here(), started="before")
        store = Wrong({JOURNAL: Journal("t", dead, ("v/0",)).dump()})
        with pytest.raises(ConflictError, match="has got no further"):
            recovery.finish_journal(store)
