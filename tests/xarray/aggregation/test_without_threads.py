"""Aggregating where no thread can be started: a limit of the system, or of a container."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import xarray as xr

from nczarr_xarray import to_cfa
from nczarr_xarray.aggregation.api import aggregate, convert_references
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import step


@pytest.mark.parametrize("name", ["m.nca", "m.json", "m.parquet"])
def test_what_waits_is_done_by_the_calling_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    files = [step(tmp_path / f"{n}.nc", [2 * n, 2 * n + 1]) for n in range(3)]
    with xr.open_mfdataset(files, engine="nczarr", combine="by_coords", parallel=False) as ds:
        expected = ds.load()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    master, others = tmp_path / name, [tmp_path / "written.nca"]
    for _ in range(2):  # the second one finds out what the first one wrote
        aggregate(files, str(master), overwrite=True)
        to_cfa(expected, others[0], mode="w")
    if name != "m.nca":
        others.append(tmp_path / "converted.nca")
        convert_references(str(master), others[1])
    for one in (master, *others):
        with xr.open_dataset(one, engine="nczarr") as ds:
            xr.testing.assert_equal(ds.load(), expected)
    assert main(["compare", str(master), str(master)]) == 0
