"""Every call of a filesystem fails, before or after it is done: old or new, and no lock stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest
from fsspec import AbstractFileSystem

from nczarr_fsspec.changes.journal import PRIVATE
from nczarr_fsspec.errors import DatasetNotFoundError, IncompleteExportError, NCZarrError
from nczarr_xarray import load_dataset, to_nczarr
from tests.support.faults.killing import CHUNKS, sample

pytestmark = pytest.mark.slow  # an export for each call

T = TypeVar("T")


class Faulty(AbstractFileSystem):
    """Objects in memory; all copies of it are one. The call of one number fails."""

    protocol = "faulty"
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    calls = 0
    fails = 0
    after = False
    lock = threading.Lock()

    def call(self, work: Callable[[], T]) -> T:
        with self.lock:
            Faulty.calls += 1
            is_it = self.calls == self.fails
            if is_it and not self.after:
                raise OSError("the call fails")
            found = work()
        if is_it:
            raise OSError("the answer is lost")
        return found

    def _below(self, path: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(f"{path}/"))

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        def work() -> bytes:
            if path not in self.objects:
                raise FileNotFoundError(path)
            return self.objects[path][start:end]

        return self.call(work)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        def work() -> None:
            if mode == "create" and path in self.objects:
                raise FileExistsError(path)
            self.objects[path] = bytes(value)

        self.call(work)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        def work() -> None:
            if path1 not in self.objects:
                raise FileNotFoundError(path1)
            self.objects[path2] = self.objects[path1]

        self.call(work)

    def rm_file(self, path: str) -> None:
        def work() -> None:
            if path not in self.objects:
                raise FileNotFoundError(path)
            del self.objects[path]

        self.call(work)

    def find(self, path: str, *_: Any, **__: Any) -> list[str]:
        return self.call(lambda: self._below(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        def work() -> list[str]:
            names = {key[len(path) + 1 :].partition("/")[0] for key in self._below(path)}
            if not names:
                raise FileNotFoundError(path)
            return [f"{path}/{name}" for name in sorted(names)]

        kinds = {True: "file", False: "directory"}
        found = self.call(work)
        return [{"name": n, "type": kinds[n in self.objects]} for n in found] if detail else found


def target() -> Any:
    return Faulty().get_mapper("b/d")


def look() -> Any:
    try:
        return load_dataset(target()).to_dict()
    except DatasetNotFoundError:
        return None
    except IncompleteExportError:
        return "incomplete"


def change() -> None:
    to_nczarr(sample(2, 1), target(), "w", encoding=CHUNKS)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_writing(there: bool, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "objects", {})
    monkeypatch.setattr(Faulty, "after", after)
    if there:
        to_nczarr(sample(3), target(), encoding=CHUNKS)
    before, old = dict(Faulty.objects), look()
    Faulty.calls = 0
    change()
    count, new = Faulty.calls, look()
    assert count > 20
    for number in range(1, count + 1):
        monkeypatch.setattr(Faulty, "objects", dict(before))
        Faulty.calls, Faulty.fails = 0, number
        failed = False
        try:
            change()
        except NCZarrError:
            failed = True
        Faulty.fails = 0
        seen = look()
        assert seen in ((old, new) if there else (old, new, "incomplete")), number
        assert failed or seen == new, number
        change()
        assert look() == new, number
        assert not [key for key in Faulty.objects if PRIVATE in key], number
