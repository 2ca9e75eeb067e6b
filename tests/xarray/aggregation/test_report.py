"""What a dry run says of files: of all, and not only of the first that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from nczarr_xarray import aggregate
from nczarr_xarray.aggregation.report import MOST, Report
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import TIME, field, step

K = {"units": "K"}


def bad(folder: Path, kind: str, number: int) -> str:
    """Write a file that does not fit to others, which have times from 0 on, and return its path."""
    path, times = folder / f"{kind}{number}.nc", [1000 + number]
    more: dict[str, Any] = {
        "type": {"tas": (("time", "x"), field(times).astype("f8"), K)},
        "units": {"tas": (("time", "x"), field(times), {"units": "kg"})},
        "calendar": {"time": (("time",), times, {**TIME, "calendar": "noleap"})},
        "lacking": {"more": (("x",), np.zeros(3), {})},
        "nan": {"time": (("time",), [np.nan], TIME)},
    }
    if kind == "text":
        path.write_text("no dataset")
    elif kind == "same":
        step(path, [0])
    elif kind != "absent":
        step(path, times, more=more[kind])
    return str(path)


#: What is said of each kind.
REASONS = {
    "type": "types='promote'",
    "units": "'kg'",
    "calendar": "calendars",
    "lacking": "has more, unlike",
    "nan": "that are no numbers",
    "text": "neither a classic netCDF file nor HDF5",
    "same": "overlaps with",
    "absent": "no such file",
}


def run(files: list[str], output: Path, **options: Any) -> Report:
    """Return the report of a dry run, which writes nothing."""
    report = aggregate(files, output, dry_run=True, **options)
    assert report is not None
    assert not output.exists()
    return report


@given(st.lists(st.sampled_from([*REASONS]), max_size=8))
@settings(max_examples=15, deadline=None)
def test_names_all_that_do_not_fit(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("report")
    good = [step(folder / f"{n}.nc", [2 * n, 2 * n + 1]) for n in range(3)]
    wrong = {bad(folder, kind, number): kind for number, kind in enumerate(kinds)}
    report = run([*good, *wrong], folder / "m.nca")
    assert {target for target, _ in report.refused} == wrong.keys()
    for target, reason in report.refused:
        assert REASONS[wrong[target]] in reason
    assert (report.files, report.fit, report.more) == (3 + len(wrong), 3, 0)
    assert report.dimensions == {"/time": 6, "/x": 3}
    assert set(report.variables) == {"/time", "/x", "/tas"}
    aggregate(good, folder / "m.nca")  # as it has said


def test_says_what_differs_and_is_taken(tmp_path: Path) -> None:
    days = {"units": "days since 2000-01-02", "calendar": "standard"}
    packed = {"scale_factor": np.float32(0.5), "_FillValue": np.int16(-9), **K}
    more: dict[str, Any] = {
        "0": {},
        "1": {"time": (("time",), [0.0], days)},
        "2": {"tas": (("x", "time"), field([4]).T, K)},
        "3": {"tas": (("time", "x"), field([5]).astype("i2"), packed)},
        "4": {"x": (("x",), np.arange(3, dtype="f4"), {"units": "m"})},
    }
    files = [step(tmp_path / f"{n}.nc", [int(n)], more=one) for n, one in more.items()]
    report = run(files, tmp_path / "m.nca", cfa_version="0.4")
    assert report.differ == [
        ("missing values", "/tas", 1),
        ("order of dimensions", "/tas", 1),
        ("packing", "/tas", 1),
        ("type", "/x", 1),
        ("units", "/time", 1),
    ]
    assert (report.fit, report.refused) == (5, [])
    assert "differs in 1: packing of /tas" in report.lines()
    (variable,) = run(files, tmp_path / "m.nca").refused
    assert "which CF-1.13 cannot say; cfa_version='0.4' can" in variable[1]


def test_is_bounded(tmp_path: Path) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    files += [bad(tmp_path, "absent", n) for n in range(MOST + 50)]
    report = run(files, tmp_path / "m.nca")
    assert (len(report.refused), report.more) == (MOST, 50)
    assert [*report.lines()][-1] == "and 50 more"


def test_of_files_that_are_added(tmp_path: Path) -> None:
    files, master = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)], tmp_path / "m.nca"
    aggregate(files[:1], master, dim="time")
    before = master.read_bytes()
    wrong = bad(tmp_path, "same", 2)
    report = aggregate([*files, wrong], master, append=True, dry_run=True)
    assert report is not None
    assert [target for target, _ in report.refused] == [wrong]
    assert report.dimensions["/time"] == 2
    none = aggregate([bad(tmp_path, "type", 3)], master, append=True, dry_run=True)
    assert none is not None
    assert (none.fit, none.refused[-1][1]) == (0, "has no file that fits")
    assert master.read_bytes() == before


def test_one_file_that_is_left(tmp_path: Path) -> None:
    report = run([step(tmp_path / "a.nc", [0]), bad(tmp_path, "text", 0)], tmp_path / "m.nca")
    assert (report.fit, len(report.refused)) == (1, 1)
    report = run([bad(tmp_path, "text", n) for n in range(2)], tmp_path / "m.nca")
    assert (report.fit, len(report.refused)) == (0, 3)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    command = ["aggregate", f"{tmp_path}/*.nc", "-o", f"{tmp_path}/m.nca", "--dry-run"]
    assert main(command) == 0
    expected = "2 of 2 files fit together\ndimensions: time 2, x 3\nvariables: "
    assert capsys.readouterr().out.startswith(expected)
    other = bad(tmp_path, "type", 0)
    assert main([*command, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["files"], said["fit"], said["more"]) == (3, len(files), 0)
    assert [one["object"] for one in said["refused"]] == [other]
    assert "--promote-types" in said["refused"][0]["reason"]
    assert main(["aggregate", *files, "-o", f"{tmp_path}/m.nca", "--json"]) == 2
    with pytest.raises(FileNotFoundError):
        xr.open_dataset(tmp_path / "m.nca", engine="nczarr")
