"""`show_versions`."""

from __future__ import annotations

import io
import platform
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray
from tests.support.servers.httpserver import Server


def test_everything_is_named_once() -> None:
    nczarr_xarray.show_versions(file=(out := io.StringIO()))
    found = dict(line.split(": ", 1) for line in out.getvalue().splitlines())
    assert len(found) == len(out.getvalue().splitlines())
    assert found["python"] == platform.python_version()
    assert found["nczarr-xarray"] == nczarr_xarray.__version__
    assert (found["xarray"], found["numpy"]) == (xr.__version__, np.__version__)
    assert {"zarr", "fsspec", "s3fs", "netcdf4"} <= set(found)


def test_what_is_kept_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "v.nc"
    encoding = {"v": {"zlib": True, "chunksizes": (1, 3)}}
    xr.Dataset({"v": (("y", "x"), np.ones((2, 3)))}).to_netcdf(path, encoding=encoding)

    def kept() -> tuple[int, str]:
        nczarr_xarray.show_versions(file=(out := io.StringIO()))
        found = dict(line.split(": ", 1) for line in out.getvalue().splitlines())
        return int(found["decoded chunks"].split()[0]), found["metadata of remote files"]

    chunks, files = kept()
    with Server({"/v.nc": path.read_bytes()}, etag="md5") as server:
        xr.open_dataset(f"{server.url}/v.nc", engine="nczarr").load()
        assert kept()[1] != files
    with xr.open_dataset(path, engine="nczarr") as ds:
        for n in range(2):
            assert float(ds["v"][n, 0]) == 1
        assert kept()[0] > chunks


def test_what_is_not_installed_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda _: ["no-such-package>=3; extra == 'x'"]
    )
    nczarr_xarray.show_versions()
    assert "no-such-package: -" in capsys.readouterr().out.splitlines()
