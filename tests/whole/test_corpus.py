"""ci/corpus.py: what it finds below a folder, and whose it says that differences are."""

from __future__ import annotations

import copy
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.support.oracles.readings import Failed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "ci"))

import corpus
import workers

Said = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    (root / "one").mkdir()
    (root / "two" / "deep").mkdir(parents=True)
    for name, format_ in (("classic.nc", "NETCDF3_CLASSIC"), ("four", "NETCDF4")):
        with netCDF4.Dataset(root / "one" / name, "w", format=format_) as ds:
            ds.createDimension("x", 3)
            ds.createVariable("v", "i4", ("x",), fill_value=-1)[:] = [1, 2, 3]
            ds["v"].units = "m"
    with h5py.File(root / "two" / "deep" / "lzf.h5", "w", userblock_size=512) as f:
        f.create_dataset("lzf", data=np.arange(9), chunks=(3,), compression="lzf")
        f["blob"] = np.void(b"abc")
    xr.Dataset({"v": ("x", np.arange(3))}).to_zarr(
        root / "two" / "tree.zarr", zarr_format=2, consolidated=False
    )
    with zipfile.ZipFile(root / "two" / "tree.zip", "w") as archive:
        for path in sorted((root / "two" / "tree.zarr").rglob("*")):
            archive.write(path, path.relative_to(root / "two" / "tree.zarr"))
    (root / "two" / "cut.nc").write_bytes((root / "one" / "four").read_bytes()[:700])
    (root / "two" / "notes.txt").write_text("CD")
    with zipfile.ZipFile(root / "two" / "other.zip", "w") as archive:
        archive.writestr("a", "b")
    return root


def said(items: list[corpus.Item], number: int, scratch: Path) -> Said:
    """What all readers say, read in this process."""
    names = corpus.READERS[items[number].format]
    for name in names:
        corpus.read(items, str(scratch), name, workers.LIMITS, number)
    return {name: corpus.load(str(scratch), number, name) for name in names}


def test_what_is_found(folder: Path) -> None:
    found = {(str(i.path.relative_to(folder)), i.format, i.group) for i in corpus.find(folder)}
    assert found == {
        ("one/classic.nc", "classic", "one"),
        ("one/four", "HDF5", "one"),
        ("two/cut.nc", "HDF5", "two"),
        ("two/deep/lzf.h5", "HDF5", "two"),
        ("two/tree.zarr", "Zarr", "two"),
        ("two/tree.zip", "Zarr", "two"),
    }


def test_outcomes(folder: Path, tmp_path: Path) -> None:
    items = list(corpus.find(folder))
    verdicts = [corpus.judge(item, said(items, n, tmp_path)) for n, item in enumerate(items)]
    outcomes = {verdict.item.path.name: verdict.outcome for verdict in verdicts}
    assert outcomes == {
        "classic.nc": "right",
        "four": "right",
        "cut.nc": "refused by all",
        "lzf.h5": "documented",  # netCDF has no opaque variables; it cannot read lzf either
        "tree.zarr": "right",
        "tree.zip": "right",
    }
    lines = list(corpus.table(verdicts))
    assert lines[2] == "| one | 2 | 2 |  |"
    assert lines[-1] == "| all | 6 | 4 | 1 documented, 1 refused by all |"


@pytest.mark.parametrize(
    ("what", "expected"),
    [("values", "ours"), ("attribute", "ours"), ("theirs", "theirs"), ("refused", "ours")],
)
def test_whose_a_difference_is(folder: Path, tmp_path: Path, what: str, expected: str) -> None:
    (item,) = (item for item in corpus.find(folder) if item.path.name == "four")
    readings: Said = copy.deepcopy(said([item], 0, tmp_path))
    assert corpus.judge(item, readings).outcome == "right"
    ours = readings["ours"]
    if what == "values":
        ours["/"].variables["v"].values[1] = 7
    elif what == "attribute":
        ours["/"].variables["v"].attrs["units"] = np.str_("m")
    elif what == "theirs":
        readings["netcdf4"]["/"].variables["v"].values[1] = 7
    else:
        readings["ours"] = Failed("FormatError: no")
    assert corpus.judge(item, readings).outcome == expected


def test_what_is_documented_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "differences.md"
    headings = {line.lstrip("# ") for line in page.read_text().splitlines() if line[:1] == "#"}
    assert {heading for heading, _, _ in corpus.DOCUMENTED} <= headings
