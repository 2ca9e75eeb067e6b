"""Fragments whose dimensions have the names of the aggregation's, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.cli.main import main
from tests.support.manyfiles import write

VALUES = np.arange(18.0).reshape(2, 3, 3)


def master(
    folder: Path,
    version: str,
    names: tuple[str, ...],
    values: np.ndarray = VALUES[1:],
    fragment_format: Any = "netCDF3",
) -> Path:
    """Write an aggregation of two fragments, the second of which has certain dimensions."""
    xr.Dataset({"v": (("t", "y", "x"), VALUES)}).nczarr.to_cfa(
        folder / "m.nca",
        cfa_version=version,
        subarray_shape={"t": 1},
        fragment_format=fragment_format,
    )
    if fragment_format == "NCZarr":
        fragment = folder / "m" / "m.v.1.0.0.zarr"
        xr.Dataset({"v": (names, values)}).nczarr.to_nczarr(fragment, mode="w")
    else:
        form = {"netCDF3": "NETCDF3_64BIT_OFFSET", "netCDF4": "NETCDF4"}[fragment_format]
        write(folder / "m" / "m.v.1.0.0.nc", {"v": (names, values, {})}, form)
    return folder / "m.nca"


ORDERS = [("t", "x", "y"), ("x", "t", "y"), ("y", "x", "t")]


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("fragment_format", ["netCDF3", "NCZarr"])
@pytest.mark.parametrize("names", ORDERS)
def test_another_order_is_refused(
    tmp_path: Path, version: str, fragment_format: str, names: tuple[str, ...]
) -> None:
    path = master(tmp_path, version, names, fragment_format=fragment_format)
    said = f"has the dimensions {', '.join(names)}, and the aggregation t, y, x"
    with xr.open_dataset(path, engine="nczarr") as ds:
        assert np.array_equal(ds.v[0], VALUES[0])
        with pytest.raises(FormatError, match=said) as caught:
            ds.v[1].load()
    assert "fragment (1, 0, 0) of /v" in str(caught.value)


@pytest.mark.parametrize("names", ORDERS)
@pytest.mark.parametrize("fragment_format", ["netCDF3", "netCDF4", "NCZarr"])
def test_a_check_finds_another_order(
    tmp_path: Path,
    fragment_format: str,
    names: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = master(tmp_path, "1.13", names, fragment_format=fragment_format)
    assert main(["info", "--check", str(path)]) == 1
    found = capsys.readouterr()
    assert f"has the dimensions {', '.join(names)}, and the agg" in found.out + found.err


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("t", "y", "x"), VALUES[1:]),
        (("a", "b", "c"), VALUES[1:]),
        (("t", "x", "z"), VALUES[1:]),  # nothing tells that this is the other x
        (("y", "x"), VALUES[1]),
        (("b", "c"), VALUES[1]),
    ],
)
def test_other_names_mean_nothing(
    tmp_path: Path, names: tuple[str, ...], values: np.ndarray
) -> None:
    with xr.open_dataset(master(tmp_path, "1.13", names, values), engine="nczarr") as ds:
        assert np.array_equal(ds.v, VALUES)


def test_dimensions_of_length_1_have_no_order(tmp_path: Path) -> None:
    xr.Dataset({"v": (("t", "y", "x"), VALUES[:, :1])}).nczarr.to_cfa(
        tmp_path / "m.nca", cfa_version="1.13", subarray_shape={"t": 1}
    )
    write(tmp_path / "m" / "m.v.1.0.0.nc", {"v": (("y", "t", "x"), VALUES[1:, :1], {})})
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert np.array_equal(ds.v, VALUES[:, :1])
