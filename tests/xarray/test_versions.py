"""`show_versions`."""

from __future__ import annotations

import io
import platform

import numpy as np
import pytest
import xarray as xr

import nczarr_xarray


def test_everything_is_named_once() -> None:
    nczarr_xarray.show_versions(file=(out := io.StringIO()))
    found = dict(line.split(": ", 1) for line in out.getvalue().splitlines())
    assert len(found) == len(out.getvalue().splitlines())
    assert found["python"] == platform.python_version()
    assert found["nczarr-xarray"] == nczarr_xarray.__version__
    assert (found["xarray"], found["numpy"]) == (xr.__version__, np.__version__)
    assert {"zarr", "fsspec", "s3fs", "netcdf4"} <= set(found)


def test_what_is_not_installed_is_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda _: ["no-such-package>=3; extra == 'x'"]
    )
    nczarr_xarray.show_versions()
    assert "no-such-package: -" in capsys.readouterr().out.splitlines()
