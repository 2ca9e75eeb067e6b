"""What is on the disk after each system call of a writer: the old dataset or the new one.

A power cut leaves a prefix of what was done to names, in the order in which it was done, as file
systems with a journal do it. What was written but not `fsync`-ed may be there or not;
docs/durability.md says for which targets that matters.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from tests.support.builders.trees import write_tree
from tests.support.faults.killing import SCENARIOS, Target, ours
from tests.support.faults.syscalls import WRITES, watched

pytestmark = pytest.mark.slow  # a dataset is read for every call of its writer

Files = dict[str, bytes]


class Disk:
    """States of a folder before each system call, with all data and with those that are safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[tuple[Files, Files]] = []
        self.calls = 0
        self.synced = {path.stat().st_ino: path.read_bytes() for path in self.files()}

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def look(self, name: str = "", args: tuple[Any, ...] = ()) -> None:
        """Note what there is; `synced` is what a file had when `fsync` was last called for it."""
        self.calls += 1
        if name == "fsync":
            path = Path(f"/proc/self/fd/{args[0]}")
            self.synced[path.stat().st_ino] = path.read_bytes()
        found = {
            str(p.relative_to(self.folder)): (p.stat().st_ino, p.read_bytes()) for p in self.files()
        }
        state = (
            {key: data for key, (_, data) in found.items()},
            {key: self.synced.get(inode, b"") for key, (inode, _) in found.items()},
        )
        if not self.states or self.states[-1] != state:
            self.states.append(state)


def put_back(files: Files, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_tree(folder, files)


def judge(files: Files, name: str, folder: Path) -> Any:
    put_back(files, folder)
    return ours(Target(str(folder / name)))


def recorded(scenario: str, name: str, tmp_path: Path) -> tuple[Disk, Any, Any]:
    """The states of the disk, and the dataset before and after."""
    folder = tmp_path / "disk"
    folder.mkdir()
    target = Target(str(folder / name))
    before = SCENARIOS[scenario].before
    if before is not None:
        before(target)
    old = ours(target)
    disk = Disk(folder)
    with watched(folder, WRITES, disk.look):
        SCENARIOS[scenario].change(target)
    disk.look()
    return disk, old, ours(target)


ALL = [
    (scenario, "d.zip" if kind == "zip" else "d")
    for scenario, found in SCENARIOS.items()
    for kind in ("directory", "zip")
    if kind in found.kinds and "dask" not in scenario and "template" not in scenario
]


@pytest.mark.parametrize(("scenario", "name"), ALL)
def test_every_prefix_is_old_or_new(scenario: str, name: str, tmp_path: Path) -> None:
    disk, old, new = recorded(scenario, name, tmp_path)
    assert len(disk.states) > 3
    seen = []
    for number, (files, _) in enumerate(disk.states):
        found = judge(files, name, tmp_path / "copy")
        assert found in (old, new), (number, len(disk.states), sorted(files))
        seen.append(found == new)
    assert seen == sorted(seen), "it was new, and then old again"
    assert seen[0] is False
    assert seen[-1] is True


@pytest.mark.parametrize(("scenario", "name"), [pair for pair in ALL if pair[1] == "d.zip"])
def test_an_archive_is_old_or_new_without_what_was_not_synced(
    scenario: str, name: str, tmp_path: Path
) -> None:
    disk, old, new = recorded(scenario, name, tmp_path)
    for number, (_, files) in enumerate(disk.states):
        assert judge(files, name, tmp_path / "copy") in (old, new), number


def test_the_next_writer_succeeds_after_every_prefix(tmp_path: Path) -> None:
    disk, old, new = recorded("unaligned region", "d", tmp_path)
    again = Target(str(tmp_path / "copy" / "d"))
    for files, _ in disk.states:
        found = judge(files, "d", tmp_path / "copy")
        again.write(xr.Dataset(), "a")
        assert ours(again) == found
        # the files that this process, which lives, was writing are not left over
        left = [path for path in Path(again.url).rglob("*") if path.is_file()]
        left = [path for path in left if ".nczarr-tmp-" not in path.name]
        assert not [path for path in left if ".nczarr_export" in str(path)]
        assert found in (old, new)
