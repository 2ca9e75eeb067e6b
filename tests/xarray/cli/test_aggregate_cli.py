from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.changes.leftovers import partial_path
from nczarr_fsspec.stores.ownership import Owner
from nczarr_xarray import open_hierarchy
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import field, step, write
from tests.support.faults.syscalls import WRITES, watched


def test_aggregate_and_append(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(4)]
    master = str(tmp_path / "m.nca")
    assert main(["aggregate", *files[2:0:-1], "-o", master, "--cfa-version", "0.4"]) == 0
    assert main(["aggregate", files[0], files[3], "-o", master, "--append"]) == 0
    assert capsys.readouterr() == ("", "")
    with xr.open_dataset(master, engine="nczarr", decode_times=False) as ds:
        assert np.array_equal(ds.tas.values, field([0, 1, 2, 3]))


def test_success_is_told_to_who_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(4)]
    master = str(tmp_path / "m.nca")
    for given, said in (
        ([*files[:3]], f"{master}: 3 files read"),
        ([*files, "--append"], f"{master}: 1 file read"),
        ([*files, "--append"], f"{master}: nothing new"),
    ):
        assert main(["aggregate", *given, "-o", master, "--progress"]) == 0
        assert capsys.readouterr().err.splitlines()[-1] == said
    for option in (["--quiet"], ["--progress", "--quiet"], []):
        assert main(["aggregate", *files, "-o", master, "--overwrite", *option]) == 0
        assert capsys.readouterr() == ("", "")


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in (0, 1, 7)]
    master = str(tmp_path / "m.nca")
    assert main(["aggregate", *files, "-o", master, "--no-gaps"]) == 1
    said = capsys.readouterr().err
    assert "7.nc: does not follow" in said
    assert said.endswith("; without --no-gaps they are taken as they are\n")
    assert main(["aggregate", files[0], "-o", master]) == 1
    assert "; say --dim NAME, the dimension" in capsys.readouterr().err
    assert main(["aggregate", *files, "-o", master, "--format", "CFA3"]) == 1
    said = "CFA3 is written as --cfa-version 0.4 only, not '1.13': write --format CFA4\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["aggregate", *files, "-o", master]) == 0
    assert main(["aggregate", *files, "-o", master]) == 1
    said = "is there already; --overwrite replaces it, --append adds to it\n"
    assert capsys.readouterr().err.endswith(said)
    assert main(["aggregate", *files, "-o", master, "--overwrite"]) == 0
    with pytest.raises(SystemExit):
        main(["aggregate", *files, "-o", master, "--overwrite", "--append"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_storage_options_are_not_taken_for_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    assert main(["aggregate", *files, "-o", "m.nca", "-o", "secret=hidden"]) == 2
    said = capsys.readouterr().err
    assert "-o/--output: is given twice; storage options are -s" in said
    assert "hidden" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"0.nc", "1.nc"}


def test_dimensions_and_variables(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / f"{n}.nc",
            {"v": (("x",), np.full(2, float(n)), {}), "w": (("x",), np.zeros(2), {})},
        )
        for n in range(2)
    ]
    master = str(tmp_path / "m.zarr")
    assert main(["aggregate", *files, "-o", master, "--dim", "run", "--var", "v"]) == 0
    with xr.open_dataset(master, engine="nczarr") as ds:
        assert set(ds.variables) == {"v"}
        assert ds.v.values.tolist() == [[0, 0], [1, 1]]


def test_convert_refs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    old, new = str(tmp_path / "old.nca"), str(tmp_path / "new.nca")
    assert main(["aggregate", *files, "-o", old, "--cfa-version", "0.4"]) == 0
    assert main(["convert-refs", old, new]) == 0
    assert main(["convert-refs", old, new]) == 1
    assert capsys.readouterr().err.endswith("is there already; --overwrite replaces it\n")
    with xr.open_dataset(new, engine="nczarr", decode_times=False) as ds:
        assert np.array_equal(ds.tas.values, field([0, 1]))
    (tmp_path / "moved").mkdir()
    for n in range(2):
        (tmp_path / f"{n}.nc").rename(tmp_path / "moved" / f"{n}.nc")
    move = ["--replace", f"{tmp_path}={tmp_path / 'moved'}"]
    assert main(["convert-refs", old, new, "--overwrite", *move]) == 0
    with xr.open_dataset(new, engine="nczarr", decode_times=False) as ds:
        assert np.array_equal(ds.tas.values, field([0, 1]))


def test_groups_and_unused_dimensions_are_copied(tmp_path: Path) -> None:
    source, target = str(tmp_path / "x.nc"), str(tmp_path / "x.nca")
    with netCDF4.Dataset(source, "w") as file:
        for name in ("used", "not"):
            file.createDimension(name, 3)
        for group in (file, file.createGroup("g/h"), file.createGroup("k")):
            group.createVariable("v", "i4", ("used",))[:] = [1, 2, 3]
        file["g"].note = "empty"
    how = ["--subarray-shape", "used=2", "--subarray-path", "parts", "--verify"]
    assert main(["copy", source, target, *how]) == 0
    assert len(list((tmp_path / "parts").iterdir())) == 6
    with open_hierarchy(target) as opened:
        root = opened.hierarchy.root
        assert {*root.dimensions} == {"used", "not"}
        assert root.groups["g"].groups["h"].dimensions == root.groups["k"].dimensions == {}
        assert root.groups["g"].attributes["note"].value == "empty"
        assert [opened.read(v).tolist() for v in root.all_variables()] == [[1, 2, 3]] * 3


def test_shapes_of_fragments_that_mean_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tmp_path / "x.nc"), str(tmp_path / "x.nca")
    xr.Dataset({"v": ("x", [1.0, 2.0])}).to_netcdf(source)
    for wanted, message, *how in (
        (2, "--subarray-shape: no dimension is called 'y'; there are x", "--subarray-shape", "y=2"),
        (2, "'x=0' is not DIM=N", "--subarray-shape", "x=0"),
        (1, "name a folder below", "--subarray-path", "../x"),
        (2, "not for netCDF-4", "--format", "NETCDF4", "--subarray-path", "p"),
    ):
        try:
            status = main(["copy", source, target, *map(str, how)])
        except SystemExit as error:
            status = int(str(error.code))
        assert status == wanted
        assert str(message) in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [Path(source)]


def test_what_xarray_refuses_cannot_become_an_aggregation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tmp_path / "x.nc"), str(tmp_path / "x.nca")
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 2)
        file.createVariable("x", "i4", ())[...] = 1
        file.createVariable("v", "i4", ("x",))[:] = [1, 2]
    assert main(["copy", source, target]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"{source}: cannot become an aggregation" in lines[0]
    assert not Path(target).exists()


def test_what_has_no_fill_value_gets_none(tmp_path: Path) -> None:
    values = np.arange(600, dtype="f4").reshape(6, 100)
    whole = xr.Dataset({"v": (("t", "x"), values)}, {"t": np.arange(6.0)})
    whole.to_netcdf(tmp_path / "whole.nc", encoding={n: {"_FillValue": None} for n in ("v", "t")})
    target = str(tmp_path / "parts.nca")
    command = ["copy", str(tmp_path / "whole.nc"), target, "--max-object-size", "800"]
    assert main(command) == 0
    with xr.open_dataset(target, engine="nczarr", decode_cf=False) as found:
        assert "_FillValue" not in {*found["v"].attrs, *found["t"].attrs}


DEAD = replace(Owner.here(), started="before").identity


@pytest.mark.parametrize("by", ["aggregate", "recover"])
@pytest.mark.parametrize("name", ["m.nca", "m.nczarr", "m.json"])
def test_files_of_a_killed_writer_are_removed(by: str, name: str, tmp_path: Path) -> None:
    """Those of the master, whose writer has no claim as yet, or never has one."""
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    master = str(tmp_path / name)
    (tmp_path / "m").mkdir()
    (tmp_path / "other").mkdir()
    kept = [
        tmp_path / f".nczarr-tmp-{Owner.here().identity}-{0:016}",  # of a writer that lives
        tmp_path / "other" / f".nczarr-tmp-{DEAD}-{1:016}",  # what it belongs to is not known
    ]
    gone = [folder / f".nczarr-tmp-{DEAD}-{2:016}" for folder in (tmp_path, tmp_path / "m")]
    for path in (*kept, *gone):
        path.write_bytes(b"a part")
    words = ["aggregate", *files, "-o", master] if by == "aggregate" else ["recover", master]
    assert main(words) == 0
    assert [path for path in (*kept, *gone) if path.exists()] == kept


@pytest.mark.parametrize("command", ["aggregate", "copy"])
def test_claim_that_cannot_be_written_leaves_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    before = sorted(tmp_path.iterdir())
    master = str(tmp_path / "m.nca")
    words = {"aggregate": [*files, "-o", master], "copy": [files[0], master]}

    def refuse(name: str, _: object) -> None:
        if name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watched(tmp_path, WRITES, refuse):
        assert main([command, *words[command]]) == 1
    assert capsys.readouterr().err.endswith("cannot be written: No space left on device\n")
    assert sorted(tmp_path.iterdir()) == before


def test_texts_of_a_killed_writer_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References of `refs`."""
    file, target = step(tmp_path / "0.nc", [0]), str(tmp_path / "r.json")
    dead = replace(Owner.here(), started="before")
    with monkeypatch.context() as patched:
        patched.setattr(Owner, "here", lambda: dead)
        left = Path(partial_path(target))
    left.write_text("{")
    assert main(["refs", file, target]) == 0
    assert not left.exists()


def test_repositories_of_icechunk_are_opened_by_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    master, target = str(tmp_path / "m.nca"), str(tmp_path / "x.icechunk")
    assert main(["aggregate", *files, "-o", master]) == 0
    for command in (["aggregate", *files, "-o", target], ["convert-refs", master, target]):
        assert main(command) == 1
        assert "give session.store to convert_references" in capsys.readouterr().err
    assert not os.path.exists(target)


@pytest.mark.parametrize("name", ["x.json", "x.parq", "x.icechunk"])
def test_references_have_no_version_of_cfa(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [step(tmp_path / f"{n}.nc", [n]) for n in range(2)]
    master, target = str(tmp_path / "m.nca"), str(tmp_path / name)
    assert main(["aggregate", *files, "-o", master]) == 0
    for command in (["aggregate", *files, "-o", target], ["convert-refs", master, target]):
        for option in ("--cfa-version=1.13", "--format=CFA4"):
            assert main([*command, option]) == 1
            said = "no version of CFA: leave out --cfa-version, --format\n"
            assert capsys.readouterr().err.endswith(said)
    assert main(["aggregate", *files, "-o", target, "--append"]) == 1
    said = "which are made anew: leave out --append and --refresh\n"
    assert capsys.readouterr().err.endswith(said)
    assert not os.path.exists(target)


def test_patterns_in_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a shell does not expand, relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for day in range(3):
        ds = xr.Dataset({"v": ("time", [day * 1.0])}, {"time": [day]})
        ds.to_netcdf(tmp_path / "x" / f"{day}.nc", engine="netcdf4")
    for number, pattern in enumerate(("x/*.nc", "*/[0-9].nc", "**/?.nc")):
        assert main(["aggregate", pattern, "-o", f"all{number}.nca"]) == 0
        with xr.open_dataset(f"all{number}.nca", engine="nczarr") as ds:
            assert ds["v"].values.tolist() == [0, 1, 2]
