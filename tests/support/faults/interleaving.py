"""One process reads while another one changes: every order of their steps, without processes.

What a writer does to a mapping is recorded, step by step, and done again while a reader (or
another writer) is at work: `Steps` know before which of its reads which steps come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from fsspec.asyn import get_loop

from nczarr_fsspec.keystore import ALL, RemoteStore, child_names
from nczarr_fsspec.stores.directory import DirectoryStore
from nczarr_fsspec.stores.mapping import MappingWriter
from nczarr_fsspec.stores.ownership import Owner
from nczarr_fsspec.stores.write_directory import DirectoryWriter

T = TypeVar("T")

#: A key and its new value; None removes it.
Step = tuple[str, bytes | None]


class Recorder(dict[str, bytes]):
    """A mapping that notes what is done to it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[Step] = []

    def __setitem__(self, key: str, value: bytes) -> None:
        self.steps.append((key, value))
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.steps.append((key, None))


def steps_of(
    before: dict[str, bytes],
    *changes: Callable[[dict[str, bytes]], object],
    stamps: bool = False,
) -> list[Step]:
    """What `changes` do to a dataset, one after the other, as a process of another machine.

    Parameters
    ----------
    stamps
        Whether objects have stamps where it is, as files have.
    """
    found = Recorder(before)
    elsewhere = replace(Owner.here(), host="elsewhere")
    with (
        mock.patch.object(Owner, "here", return_value=elsewhere),
        mock.patch.object(MappingWriter, "stamps", stamps),
    ):
        for change in changes:
            change(found)
    return found.steps


class Steps:
    """Does the steps of somebody else between the reads of those who call `tick`.

    Parameters
    ----------
    steps
        What is done.
    put, delete
        How.
    first
        Before which read (the first is number 0) it begins.
    pace
        How many steps are done before that read, and before each that follows.
    """

    def __init__(
        self,
        steps: list[Step],
        put: Callable[[str, bytes], object],
        delete: Callable[[str], object],
        first: int,
        pace: float,
    ) -> None:
        self.left = list(steps)
        self.put = put
        self.delete = delete
        self.first = first
        self.pace = min(pace, len(steps))
        self.reads = 0
        self.due = 0.0

    def tick(self) -> None:
        """There is a read."""
        if self.reads >= self.first:
            self.due += self.pace
            while self.due >= 1 and self.left:
                self.due -= 1
                self._step()
        self.reads += 1

    def finish(self) -> None:
        """Do all that is left."""
        while self.left:
            self._step()

    def _step(self) -> None:
        key, value = self.left.pop(0)
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)


class ChangingMapping(MutableMapping[str, bytes]):
    """A mapping that changes between the reads of its user (parameters as of `Steps`)."""

    def __init__(
        self, objects: dict[str, bytes], steps: list[Step], first: int, pace: float
    ) -> None:
        self.objects = dict(objects)
        self.steps = Steps(steps, self.objects.__setitem__, self._remove, first, pace)

    def _remove(self, key: str) -> None:
        self.objects.pop(key, None)

    def __getitem__(self, key: str) -> bytes:
        self.steps.tick()
        return self.objects[key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self.objects[key] = value

    def __delitem__(self, key: str) -> None:
        del self.objects[key]

    def __iter__(self) -> Iterator[str]:
        self.steps.tick()
        return iter(list(self.objects))

    def __contains__(self, key: object) -> bool:
        return key in self.objects

    def __len__(self) -> int:
        return len(self.objects)


class ChangingDirectory(DirectoryStore):
    """A directory that changes between the reads of its user (parameters as of `Steps`)."""

    def __init__(
        self, path: Path, objects: dict[str, bytes], steps: list[Step], first: int, pace: float
    ) -> None:
        super().__init__(path)
        writer = DirectoryWriter(path)
        for key, data in objects.items():
            writer.put(key, data)
        self.steps = Steps(steps, writer.put, lambda key: writer.delete([key]), first, pace)

    def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        self.steps.tick()
        return super().get(key, part, most)

    def stamp(self, key: str) -> tuple[int, ...] | None:
        self.steps.tick()
        return super().stamp(key)

    def list(self, prefix: str) -> frozenset[str]:
        self.steps.tick()
        return super().list(prefix)


class ChangingFarAway(RemoteStore):
    """Objects behind a network, which change between two rounds of requests (see `Steps`)."""

    url = "far"

    def __init__(
        self,
        objects: dict[str, bytes],
        steps: list[Step],
        first: int,
        pace: float,
        *,
        can_list: bool = True,
    ) -> None:
        self.objects = dict(objects)
        self.steps = Steps(steps, self.objects.__setitem__, self._remove, first, pace)
        self.can_list = can_list

    def _remove(self, key: str) -> None:
        self.objects.pop(key, None)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return get_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self.steps.tick()
        return super().run(coroutine)

    async def get(self, key: str, part: slice = ALL, most: int | None = None) -> bytes | None:
        data = self.objects.get(key)
        return None if data is None else data[part]

    async def list(self, prefix: str) -> frozenset[str] | None:
        return child_names(self.objects).get(prefix, frozenset()) if self.can_list else None
