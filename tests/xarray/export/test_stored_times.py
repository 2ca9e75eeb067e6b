"""New values with numbers for times, or with dimensions in another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import ExportError
from nczarr_xarray import to_nczarr


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Two days of values on a grid, with bounds."""
    times = xr.Dataset(
        {
            "v": (("t", "y", "x"), np.arange(12.0).reshape(2, 2, 3)),
            "t_bnds": (("t", "n"), np.array([[0, 1], [1, 2]], "M8[D]").astype("M8[ns]")),
        },
        {"t": ("t", np.array([0, 1], "M8[D]").astype("M8[ns]"), {"bounds": "t_bnds"})},
    )
    times["t"].encoding = {"units": "days since 1970-01-01", "dtype": "i8"}
    to_nczarr(times, tmp_path / "x", unlimited_dims=["t"])
    return tmp_path / "x"


def undecoded(units: str, numbers: list[Any], dtype: str = "i8") -> xr.Dataset:
    labels = np.array(numbers, dtype)
    day = labels.dtype.type(24 if units.startswith("hours") else 1)
    return xr.Dataset(
        {
            "v": (("t", "y", "x"), np.ones((len(numbers), 2, 3))),
            "t_bnds": (("t", "n"), np.stack([labels, labels + day], axis=1)),
        },
        {"t": ("t", labels, {"units": units, "bounds": "t_bnds"})},
    )


@pytest.mark.parametrize("chunks", [None, {"t": 1}])
@pytest.mark.parametrize("dtype", ["i8", "i4", "f8"])
@pytest.mark.parametrize(
    ("units", "numbers"),
    [
        ("days since 1970-01-01", [2, 3]),
        ("day since 1970-1-1 00:00:00", [2, 3]),
        ("hours since 1970-01-01", [48, 72]),
        ("days since 1970-01-02", [1, 2]),
    ],
)
def test_numbers_of_times_are_appended(
    stored: Path, units: str, numbers: list[int], dtype: str, chunks: Any
) -> None:
    """As models write them, and as datasets are opened with decode_times=False."""
    new = undecoded(units, numbers, dtype)
    to_nczarr(new if chunks is None else new.chunk(chunks), stored, append_dim="t")
    with netCDF4.Dataset(f"file://{stored}#mode=nczarr,file") as file:
        assert file["t"][:].tolist() == [0, 1, 2, 3]
        assert file["t"].units == "days since 1970-01-01"


@pytest.mark.parametrize(
    ("units", "numbers", "reason"),
    [
        ("hours since 1970-01-01", [48, 50], "t: .*cannot hold"),
        ("months since 1970-01-01", [2, 3], "t: is in 'months since .*: 'months' is no unit"),
        ("m", [2, 3], "t: is in 'm', and times are stored in 'days since 1970-01-01'"),
        (None, [2, 3], "t: holds numbers without units, and times are stored"),
    ],
)
def test_numbers_that_are_no_stored_times(
    stored: Path, units: Any, numbers: list[int], reason: str
) -> None:
    new = undecoded(str(units), numbers)
    if units is None:
        del new["t"].attrs["units"]
    with pytest.raises(ExportError, match=reason) as refused:
        to_nczarr(new, stored, append_dim="t")
    assert "astype" not in str(refused.value)


@pytest.mark.parametrize("how", ["append", "region", "r+"])
def test_dimensions_in_another_order(stored: Path, how: str) -> None:
    with xr.open_dataset(stored, engine="nczarr") as source:
        values = {"v": source["v"].to_numpy() + 100, "t_bnds": source["t_bnds"].to_numpy()}
        new = source.load().copy(data=values)
    turned = new.assign(v=new.v.transpose("x", "t", "y"))
    options: dict[str, Any] = {"mode": "r+"}
    if how == "append":
        options = {"append_dim": "t"}
        later = np.timedelta64(2, "D")
        turned = turned.assign(t_bnds=turned.t_bnds + later)
        turned = turned.assign_coords(t=turned.t + later)
    elif how == "region":
        options = {"region": {"t": slice(0, 2)}}
    to_nczarr(turned, stored, **options)
    with xr.open_dataset(stored, engine="nczarr") as back:
        np.testing.assert_array_equal(back.v[-2:], new.v)
        assert back.v.dims == ("t", "y", "x")
