"""What doctor says of aggregations by their tables, and of those that it cannot predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from nczarr_xarray import aggregate, to_nczarr
from nczarr_xarray.model import Dimension, FragmentArray, Fragments, Variable
from nczarr_xarray.tools.checks import Finding
from nczarr_xarray.tools.checks.layout import of_fragments
from nczarr_xarray.tools.predict.aggregations import Aggregation


def aggregation(steps: int, each: int, plane: int, missing: tuple[int, ...] = ()) -> Aggregation:
    """Of so many steps, so many in each fragment, maps of so many values."""
    starts = np.arange(0, steps, each)
    count = len(starts)
    addresses = np.array([f"{n}.nc" for n in range(count)], object)
    addresses[list(missing)] = None
    fragments = Fragments(
        (starts, np.array([0])),
        (np.minimum(starts + each, steps), np.array([plane])),
        addresses,
        np.array(["v"] * count, object),
        np.array([""] * count, object),
    )
    array = FragmentArray("/v", (steps, plane), np.dtype("f4"), fragments)
    dims = (Dimension("time", steps), Dimension("x", plane))
    return Aggregation(Variable("v", "/", dims, "float", array.dtype, array=array), array)


CASES: dict[str, tuple[tuple[Any, ...], dict[str, str]]] = {
    "few": ((100, 10, 1000), {"fragments": "10 fragments of 10 × 1,000, at most 40 kB"}),
    "uneven": ((95, 10, 1000), {"fragments": "10 fragments of 5 to 10 × 1,000"}),
    "large": ((100, 1, 1 << 19), {"fragments": "100 fragments of 1 × 524,288, at most 2.1 MB"}),
    "steps": (
        (100, 1, 1000),
        {"fragments": "100 fragments", "small-fragments": "one for each step of time"},
    ),
    "small": ((200, 2, 1000), {"fragments": "100 ", "small-fragments": "of 8 kB"}),
    "gaps": ((100, 10, 9, (2, 3)), {"fragments": "8 ", "fragments-missing": "2 of 10 places"}),
}


@pytest.mark.parametrize("name", CASES)
def test_findings_of_a_table(name: str) -> None:
    given, expected = CASES[name]
    found = {finding.code: finding.text for finding in of_fragments(aggregation(*given))}
    assert found.keys() == expected.keys()
    for code, part in expected.items():
        assert part in found[code]


def findings(master: Path) -> dict[str, Finding]:
    return {finding.code: finding for finding in nczarr_xarray.doctor(master).findings}


@pytest.mark.slow
def test_fragments_in_archives_are_not_predicted(tmp_path: Path) -> None:
    for number in range(2):
        values = ("t", "x"), np.ones((2, 3))
        data = xr.Dataset({"v": values, "w": values}, {"t": np.arange(2) + 2 * number})
        to_nczarr(data, tmp_path / f"{number}.nczarr.zip")
    master = tmp_path / "all.nc"
    aggregate([str(tmp_path / f"{number}.nczarr.zip") for number in range(2)], str(master))
    report = nczarr_xarray.doctor(master, variable="v")
    assert report.predictions == ()
    (found,) = [finding for finding in report.findings if finding.code == "not-predicted"]
    assert (found.path, "files or trees of their own" in found.text) == ("/v", True)


def test_what_two_fragments_tell(tmp_path: Path) -> None:
    for number in range(3):
        data = xr.Dataset({"v": (("t", "x"), np.ones((2, 3)))}, {"t": np.arange(2) + 2 * number})
        data.attrs["history"] = "longer" * (number == 2)
        data.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    master = tmp_path / "all.nc"
    aggregate([str(tmp_path / f"{number}.nc") for number in range(2)], str(master))
    assert findings(master).keys() & {"fragments-unlike", "not-predicted"} == set()
    aggregate([str(tmp_path / f"{number}.nc") for number in range(3)], str(master), overwrite=True)
    assert "fragments-unlike" in findings(master)
    (tmp_path / "1.nc").unlink()
    assert "1.nc" in findings(master)["not-predicted"].text


@pytest.mark.parametrize("name", ["all.json", pytest.param("all.parq", marks=pytest.mark.slow)])
def test_references(tmp_path: Path, name: str) -> None:
    """They are one file, or a folder; what they name is asked for by file, not by chunk."""
    for number in range(2):
        values = np.random.default_rng(0).integers(0, 9, (4, 900))
        data = xr.Dataset({"v": (("t", "x"), values)}, {"t": np.arange(4) + 4 * number})
        data.to_netcdf(tmp_path / f"{number}.nc", encoding={"v": {"chunksizes": (2, 900)}})
    master = tmp_path / name
    aggregate([str(tmp_path / f"{number}.nc") for number in range(2)], str(master))
    report = nczarr_xarray.doctor(master, latency=1, bandwidth=1e15, variable="v")
    (found,) = [finding for finding in report.findings if finding.code == "references"]
    assert "has 4 chunks in 2 files;" in found.text
    is_json = name == "all.json"
    assert (report.opening.rounds == 1) is is_json
    costs = report.predictions[0].costs
    read = {name: (cost.rounds, cost.requests) for name, cost in costs.items() if cost}
    before = 0 if is_json else 1  # the file of the variable's references
    everything = 1 + before, 2 + before
    assert read["everything"] == read["series"] == everything
    cost = costs["everything"]
    assert cost is not None
    nbytes = 2 * 4 * 900 * 8 + before * _rows(master)
    assert nbytes <= cost.nbytes < 1.1 * nbytes  # what lies between chunks may come, too


def _rows(master: Path) -> int:
    return sum(path.stat().st_size for path in master.glob("v/*"))
