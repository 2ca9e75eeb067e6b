"""What a server may cost: pages for what it lacks, bodies without end, silence, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import to_nczarr
from tests.httpserver import Server

PAGE = b"<!DOCTYPE html><html><body>No such page</body></html>"


def dataset() -> xr.Dataset:
    values = np.arange(20.0).reshape(4, 5)
    return xr.Dataset({"v": (("y", "x"), values, {"units": "m"})}, attrs={"title": "here"})


def served(folder: Path) -> dict[str, bytes]:
    """The files below `folder`, as `Server` takes them, below ``/d``."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {f"/d/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}


@pytest.mark.parametrize("mode", ["nczarr", "zarr"])
def test_a_page_for_what_is_missing(tmp_path: Path, mode: str) -> None:
    where = f"file://{tmp_path}/d#mode={mode},file"
    to_nczarr(dataset(), where, consolidated=mode == "zarr")
    with Server(served(tmp_path / "d"), missing_status=200, missing_body=PAGE) as server:
        target = f"{server.url}/d#mode={mode}"
        with xr.open_dataset(target, engine="nczarr") as found:
            xr.testing.assert_identical(found.load(), dataset())
