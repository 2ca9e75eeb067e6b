"""A source that is changed while it is copied: an error, and no copy of two states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_xarray.cli.main import main
from nczarr_xarray.export.cfa.task import CfaTask
from nczarr_xarray.export.contents import StoredSource
from nczarr_xarray.export.steps import MoveStep
from nczarr_xarray.export.write_task import WriteTask
from tests.support.marks import each_once

VALUES = xr.Dataset({"v": (("t", "x"), np.ones((6, 4)))}, attrs={"Conventions": "CF-1.13"})


def write(target: object, values: xr.Dataset = VALUES, **options: Any) -> None:
    encoding = {"v": {"chunks": (1, 4), "_FillValue": -9.0}}
    values.nczarr.to_nczarr(target, mode="w", encoding=encoding, **options)


def change_meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Change the source once, when some of its data have been read."""
    changes = [change]

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            while changes:
                changes.pop()()
            return function(*arguments, **options)

        return changed

    monkeypatch.setattr(WriteTask, "finish", before(WriteTask.finish))
    monkeypatch.setattr(CfaTask, "run", before(CfaTask.run))
    read = StoredSource.read

    def last(self: StoredSource, part: tuple[slice, ...]) -> np.ndarray:
        values = read(self, part)
        before(str)()
        return values

    monkeypatch.setattr(StoredSource, "read", last)
    move = MoveStep.run

    def moved(self: MoveStep, *arguments: Any, **options: Any) -> int:
        count = move(self, *arguments, **options)
        before(str)()
        return count

    monkeypatch.setattr(MoveStep, "run", moved)


@pytest.mark.parametrize("place", ["", "memory://changed"], ids=["directory", "objects"])
@pytest.mark.parametrize(
    ("target", "anew"),
    each_once(["y.nczarr", "y.zip", "y.zarr3", "y.nc", "y.nc3", "y.nca"], [True, False]),
)
def test_no_copy_of_two_states(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    anew: bool,
    place: str,
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    source = f"{place}{tmp_path}/x.nczarr"
    write(source)

    def change() -> None:
        if anew:
            write(source, VALUES + 1)
        else:
            (VALUES + 1)[{"t": [2]}].nczarr.to_nczarr(source, region={"t": slice(2, 3)})

    change_meanwhile(monkeypatch, change)
    formats = {"y.zarr3": ["--format", "Zarr3"], "y.nc3": ["--format", "NETCDF3_CLASSIC"]}
    command = ["copy", source, str(folder / target), *formats.get(target, [])]
    assert main(command) == 1
    said = capsys.readouterr().err
    moved = "another dataset is in its place now"  # if two directories can be exchanged
    assert "was changed while it was copied" in said or (anew and not place and moved in said)
    assert [*folder.iterdir()] == []
    assert main([*command, "--verify"]) == 0
