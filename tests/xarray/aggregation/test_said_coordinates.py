"""Coordinates that names and attributes of files say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError, URLError
from nczarr_xarray import aggregate, open_many
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import step
from tests.support.servers.httpserver import Server


def members(folder: Path) -> list[str]:
    """Write files of two models with three members each, of two times."""
    return [
        step(
            folder / f"tas_{model}_r{member}i1p1_{time}.nc",
            [time, time + 1],
            source_id=model,
            realization=np.int32(member),
            run=f"run-{member}",
        )
        for model in "BA"
        for member in (1, 2, 10)
        for time in (2, 0)
    ]


def combined(files: Sequence[str], models: Any, numbers: Any) -> xr.Dataset:
    """Return what xarray makes of them, told where each file belongs."""

    def opened(model: str, member: int, time: int) -> xr.Dataset:
        (file,) = (f for f in files if f.endswith(f"_{model}_r{member}i1p1_{time}.nc"))
        return xr.load_dataset(file, engine="netcdf4")

    nested = [[[opened(m, r, t) for t in (0, 2)] for r in (1, 2, 10)] for m in "AB"]
    whole = xr.combine_nested(nested, concat_dim=["model", "member", "time"], data_vars="all")
    whole = whole.assign_coords(model=models, member=numbers).load()
    return whole.transpose("model", "member", "time", "x")


MEMBERS = {
    r"r(\d+)i1p1": [1, 2, 10],
    r"r([0-9]{1,2})i": [1, 2, 10],
    r"r\d+i1p1": ["r1i1p1", "r2i1p1", "r10i1p1"],
    r"_(r\d+)i1p1": ["r1", "r2", "r10"],
    "@realization": np.array([1, 2, 10], "i4"),
    "@run": ["run-1", "run-2", "run-10"],
    r"@run:-(\d+)": [1, 2, 10],
}


@pytest.mark.parametrize("source", MEMBERS)
def test_members_and_models(tmp_path: Path, source: str) -> None:
    files = members(tmp_path)
    expected = combined(files, ["A", "B"], MEMBERS[source]).sortby("member")
    many = open_many(files, dim={"model": "@source_id", "member": source})
    xr.testing.assert_equal(many.load(), expected)
    assert many.tas.attrs == {"units": "K"}
    assert many.member.dtype.kind == expected.member.dtype.kind


def test_of_remote_files_that_are_alike(tmp_path: Path) -> None:
    file = Path(step(tmp_path / "a.nc", [0])).read_bytes()
    served = {f"/r{member}.nc": file for member in range(1, 40)}
    with Server(served) as server:
        many = open_many([server.url + name for name in served], dim={"member": r"r(\d+)"})
        assert len(server.requests) <= 2 * len(served)
        assert many.member.values.tolist() == [*range(1, 40)]
        assert many.tas.shape == (39, 1, 3)


@pytest.mark.parametrize("has_dimension", [True, False])
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("_%Y%m%d", "v_{:%Y%m%d}.nc", "D"),
        ("_%Y%m%d", "v_{:%Y%m%d}-20201231.nc", "D"),
        ("%Y/%j", "{:%Y/%j}.nc", "D"),
        ("%Y-%m-%dT%H:%M:%S", "v{:%Y-%m-%dT%H:%M:%S}Z.nc", "s"),
        ("_%Y%m", "v_{:%Y%m}.nc", "M"),
    ],
)
def test_dates(tmp_path: Path, pattern: str, name: str, expected: Any, has_dimension: bool) -> None:
    dates = np.array(["2000-01-31T01:02:03", "1999-12-01T00:00:00", "2004-02-29T23:59:59"], "M8[s]")
    for number, date in enumerate(dates):
        path = tmp_path / name.format(date.item())
        path.parent.mkdir(exist_ok=True)
        shape = (("time", "x"), [[number, 1.0]]) if has_dimension else ("x", [number, 1.0])
        xr.Dataset({"v": shape}).to_netcdf(path)
    many = open_many(f"{tmp_path}/**/*.nc", dim={"time": pattern})
    order = np.argsort(dates)
    assert (many.time.values == dates.astype(f"M8[{expected}]")[order]).all()
    assert many.v[:, 0].values.tolist() == order.tolist()


def test_are_added_to_an_aggregation(tmp_path: Path) -> None:
    files, master = members(tmp_path), tmp_path / "m.nca"
    dim = {"model": "@source_id", "member": r"r(\d+)i"}
    aggregate(files[:6], master, dim=dim)
    with pytest.raises(ExportError, match="has no variable"):
        aggregate(files[6:], master, append=True)
    aggregate(files[6:], master, dim=dim, append=True)
    with xr.open_dataset(master, engine="nczarr") as found:
        expected = combined(files, ["A", "B"], [1, 2, 10])
        xr.testing.assert_equal(found.load(), expected)


def test_a_coordinate_that_depends_on_two(tmp_path: Path) -> None:
    """A scalar of each file varies along the dimensions along which it differs, and no others."""
    for model in (1, 2):
        for member in (1, 2):
            one: Any = {"a": ((), model, {}), "b": ((), 10 * model + member, {}), "c": ((), 5, {})}
            one["v"] = (("x",), [1.0] * 3, {"coordinates": "a b c"})
            step(tmp_path / f"m{model}r{member}.nc", [0], more=one)
    many = open_many(tmp_path, dim={"model": r"m(\d)r", "member": r"r(\d)"}).load()
    assert many.a.dims == ("model",)
    assert many.a.values.tolist() == [1, 2]
    assert many.b.dims == ("model", "member")
    assert many.b.values.tolist() == [[11, 12], [21, 22]]
    assert many.c.dims == ()


@pytest.mark.parametrize(
    ("dim", "error", "message"),
    [
        ({"member": r"r(\d+"}, URLError, r"'r\(\\\\d\+' for member, which is no pattern"),
        ({"member": "%Y%m%Y"}, URLError, "which is no pattern"),
        ({"member": r"q(\d+)"}, ExportError, r"1\.nc: does not say its member: .* not in its name"),
        ({"member": "@no"}, ExportError, r"1\.nc: has no attribute no"),
        ({"member": r"@title:(\d)"}, ExportError, "is not in its attribute title"),
        ({"x": r"(\d)"}, ExportError, r"1\.nc: has x itself"),
        ({"n": r"(\d)"}, ExportError, r"1\.nc: has length 3 along n"),
        ({"time": "_%Y%m%d"}, ExportError, r"has time itself"),
        ({"day": "@day:%Y%m%d"}, ExportError, "has no date in its attribute day"),
    ],
)
def test_what_is_not_said(
    tmp_path: Path, dim: dict[str, str], error: type[Exception], message: str
) -> None:
    more: Any = {"w": (("n",), np.arange(3.0), {})}
    step(tmp_path / "1.nc", [0], more=more, title="t", day="20000230")
    with pytest.raises(error, match=message):
        open_many([tmp_path / "1.nc"], dim=dim)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members(tmp_path)
    master = tmp_path / "m.nca"
    options = ["--dim", r"member=r(\d+)i", "--dim", "model=@source_id"]
    assert main(["aggregate", f"{tmp_path}/tas_*.nc", "-o", str(master), *options]) == 0
    with xr.open_dataset(master, engine="nczarr") as found:
        assert dict(found.sizes) == {"member": 3, "model": 2, "time": 4, "x": 3}
    assert main(["aggregate", "a.nc", "-o", "b.nca", "--dim", "x", *options]) == 2
    assert "--dim: is NAME=PATTERN for each, not 'x'" in capsys.readouterr().err
