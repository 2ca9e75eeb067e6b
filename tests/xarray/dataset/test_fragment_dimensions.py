"""Fragments whose dimensions have the names of the aggregation's, and others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.cli.main import main
from tests.support.builders.manyfiles import forget_versions, write
from tests.support.servers.httpserver import Server

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
    forget_versions(folder / "m.nca")
    if fragment_format == "NCZarr":
        fragment = folder / "m" / "m.v.1.0.0.zarr"
        xr.Dataset({"v": (names, values)}).nczarr.to_nczarr(fragment, mode="w")
    else:
        form = {"netCDF3": "NETCDF3_64BIT_OFFSET", "netCDF4": "NETCDF4"}[fragment_format]
        write(folder / "m" / "m.v.1.0.0.nc", {"v": (names, values, {})}, form)
    return folder / "m.nca"


ORDERS = [("t", "x", "y"), ("x", "t", "y"), ("y", "x", "t")]


@pytest.mark.parametrize("version", ["0.4", "0.6.2", "1.13"])
@pytest.mark.parametrize("fragment_format", ["netCDF3", "netCDF4", "NCZarr"])
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
    forget_versions(tmp_path / "m.nca")
    write(tmp_path / "m" / "m.v.1.0.0.nc", {"v": (("y", "t", "x"), VALUES[1:, :1], {})})
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        assert np.array_equal(ds.v, VALUES[:, :1])


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("fragment_format", ["netCDF3", "netCDF4"])
@pytest.mark.parametrize("wrong", [0, 1, 7, 11])
def test_another_order_among_files_that_are_alike(
    tmp_path: Path, fragment_format: Any, wrong: int, *, remote: bool
) -> None:
    """Files are compared byte by byte, and the names are among the bytes."""
    values = np.arange(12 * 9.0).reshape(12, 3, 3)
    xr.Dataset({"v": (("t", "y", "x"), values)}).nczarr.to_cfa(
        tmp_path / "m.nca",
        cfa_version="1.13",
        subarray_shape={"t": 1},
        fragment_format=fragment_format,
    )
    forget_versions(tmp_path / "m.nca")
    form = {"netCDF3": "NETCDF3_64BIT_OFFSET", "netCDF4": "NETCDF4"}[fragment_format]
    for number in range(12):
        names = ("t", "x", "y") if number == wrong else ("t", "y", "x")
        path = tmp_path / "m" / f"m.v.{number}.0.0.nc"
        assert path.exists()
        write(path, {"v": (names, values[number : number + 1], {})}, form)
    with ExitStack() as stack:
        target = str(tmp_path / "m.nca")
        if remote:
            files = {
                f"/{path.relative_to(tmp_path).as_posix()}": path.read_bytes()
                for path in tmp_path.rglob("*.nc*")
                if path.is_file()
            }
            target = stack.enter_context(Server(files, etag='"1"')).url + "/m.nca"
        ds = stack.enter_context(xr.open_dataset(target, engine="nczarr"))
        others = [number for number in range(12) if number != wrong]
        np.testing.assert_array_equal(ds.v[others], values[others])
        with pytest.raises(FormatError, match=rf"fragment \({wrong}, 0, 0\) of /v"):
            ds.v.load()
