"""Quantizing: bit for bit what netCDF stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.quantize import quantize, round_decimals
from nczarr_xarray.export.api import to_nczarr
from tests.support.marks import each_once

DIGITS = {
    ("f4", "BitGroom"): 6,
    ("f4", "GranularBitRound"): 6,
    ("f4", "BitRound"): 23,
    ("f8", "BitGroom"): 15,
    ("f8", "GranularBitRound"): 15,
    ("f8", "BitRound"): 52,
}
CASES = [
    (dtype, mode, digits) for (dtype, mode), most in DIGITS.items() for digits in range(1, most + 1)
]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, np.inf, -np.inf, -9999.0, -9999.0, 1e20, 1e-30, 9.99]


def floats(dtype: str) -> np.ndarray:
    """Random bits (all magnitudes, subnormal numbers, NaN of any kind), and what is special."""
    rng = np.random.default_rng(1)
    bits = rng.bytes(20000 * np.dtype(dtype).itemsize)
    limits = np.finfo(dtype)
    edges = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal]
    powers = [*2.0 ** np.arange(-30, 30), *10.0 ** np.arange(-30, 30)]
    default = [netCDF4.default_fillvals[dtype]] * 2
    return np.concatenate(
        [
            np.frombuffer(bits, dtype),
            rng.normal(size=5000).astype(dtype),
            np.array([*SPECIAL, *edges, *powers, *default], dtype),
        ]
    )


def stored(path: Path, values: np.ndarray, **options: Any) -> np.ndarray:
    """What netCDF4 makes of `values`."""
    dtype = values.dtype.newbyteorder("=")
    with netCDF4.Dataset(path, "w") as nc:
        dimensions = [nc.createDimension(f"d{i}", n).name for i, n in enumerate(values.shape)]
        v = nc.createVariable("v", dtype, dimensions, **options)
        v.set_auto_maskandscale(False)
        v[...] = values
    with netCDF4.Dataset(path) as nc:
        nc.set_auto_maskandscale(False)
        return nc["v"][...]


def but_not_lost(values: np.ndarray, rounded: np.ndarray, missing: Any) -> np.ndarray:
    """What netCDF rounds, with infinities, and without numbers that became infinite or missing."""
    lost = np.isinf(values) | ~np.isfinite(rounded) | (rounded == missing)
    return np.where(lost, values, rounded).astype(rounded.dtype)


@pytest.mark.parametrize(("case", "fill"), each_once(CASES, [None, -9999.0, np.nan, 0.0]), ids=str)
def test_quantize_as_netcdf_does(
    tmp_path: Path, case: tuple[str, str, int], fill: float | None
) -> None:
    dtype, mode, digits = case
    values = floats(dtype)
    options = {"quantize_mode": mode, "significant_digits": digits, "fill_value": fill}
    expected = stored(tmp_path / "x.nc", values, **options)
    missing = netCDF4.default_fillvals[dtype] if fill is None else fill
    expected = but_not_lost(values, expected, np.dtype(dtype).type(missing))
    assert quantize(values, mode, digits, fill).tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", ["BitGroom", "GranularBitRound", "BitRound"])
def test_quantize_in_several_dimensions(tmp_path: Path, mode: str) -> None:
    values = np.random.default_rng(2).normal(size=(5, 7, 9)).astype("f4")
    expected = stored(tmp_path / "x.nc", values, quantize_mode=mode, significant_digits=3)
    for source in (values, np.asfortranarray(values), values.astype(">f4")):
        before = source.copy()
        result = quantize(source, mode, 3, None)
        assert result.dtype == source.dtype
        assert np.array_equal(result, expected)
        assert np.array_equal(source, before)


def test_the_digits_asked_for_remain() -> None:
    values = np.random.default_rng(3).lognormal(sigma=20, size=10000)
    for mode in ("BitGroom", "GranularBitRound"):
        for digits in range(1, 16):
            error = np.abs(quantize(values, mode, digits, None) / values - 1)
            assert error.max() < 0.5 * 10.0 ** (1 - digits)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
@pytest.mark.parametrize("mode", ["BitGroom", "GranularBitRound", "BitRound"])
def test_small_arrays(mode: str, shape: tuple[int, ...]) -> None:
    result = quantize(np.full(shape, 1.25), mode, 15, None)
    assert result.shape == shape
    assert (result == 1.25).all()


@pytest.mark.parametrize(
    ("values", "mode", "digits", "message"),
    [
        (np.zeros(2), "BitShave", 3, "quantize_mode: is 'BitShave', not BitGroom"),
        (np.zeros(2), "BitGroom", 16, "significant_digits: is 16; .* float64 takes 1 to 15"),
        (np.zeros(2, "f4"), "GranularBitRound", 7, "float32 takes 1 to 6"),
        (np.zeros(2, "f4"), "BitRound", 24, "float32 takes 1 to 23"),
        (np.zeros(2), "BitRound", 0, "is 0"),
        (np.zeros(2, "i4"), "BitRound", 3, "not int32"),
        (np.zeros(2, "f2"), "BitRound", 3, "not float16"),
    ],
)
def test_what_cannot_be_quantized(values: np.ndarray, mode: str, digits: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        quantize(values, mode, digits, None)


@pytest.mark.parametrize(
    ("dtype", "mode", "digits"), [(dtype, mode, most + 1) for (dtype, mode), most in DIGITS.items()]
)
def test_netcdf_refuses_the_same_digits(tmp_path: Path, dtype: str, mode: str, digits: int) -> None:
    with pytest.raises(RuntimeError, match="Invalid argument"):
        stored(tmp_path / "x.nc", np.ones(3, dtype), quantize_mode=mode, significant_digits=digits)


@pytest.mark.parametrize(
    ("dtype", "digit"), each_once(["f4", "f8", ">f4", "i4", "i2"], range(-4, 12))
)
def test_round_decimals_as_netcdf4_does(tmp_path: Path, dtype: str, digit: int) -> None:
    rng = np.random.default_rng(4)
    numbers = rng.normal(size=(50, 60)) * 10.0 ** rng.integers(-8, 4, (50, 60))
    values = numbers.astype(dtype)
    if values.dtype.kind == "f":
        values[0, :5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    expected = stored(tmp_path / "x.nc", values, least_significant_digit=digit)
    result = round_decimals(values, digit)
    assert result.dtype == values.dtype
    assert result.astype(expected.dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", ["BitGroom", "GranularBitRound", "BitRound"])
@pytest.mark.parametrize("dtype", ["f4", ">f4", "f8"])
def test_no_number_becomes_infinite_or_missing(dtype: str, mode: str) -> None:
    most = np.finfo(dtype).max
    values = np.array([np.inf, np.inf, -np.inf, -np.inf, most, -most, 1.001, 1.001], dtype)
    result = quantize(values, mode, 2, fill=np.array([7.0, 1.0]))
    assert np.array_equal(np.isinf(result), np.isinf(values))
    assert np.array_equal(np.sign(result), np.sign(values))
    assert (result != 1.0).all()


@pytest.mark.filterwarnings("error")
def test_decimals_of_the_largest_numbers() -> None:
    values = np.array([np.inf, -np.inf, 1.5e308, -1.7e308, 0.123])
    assert round_decimals(values, 3).tolist() == [*values[:4], 0.123046875]


@pytest.mark.parametrize(("fill", "digit"), [(-9999.0, -2), (-99.9, 0), (0.0, 1)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_decimals_keep_what_is_missing(tmp_path: Path, dtype: str, fill: float, digit: int) -> None:
    values = np.array([np.nan, 1.03, 5678.0, 0.02], dtype)
    encoding = {"dtype": dtype, "_FillValue": fill, "least_significant_digit": digit}
    path = str(tmp_path / "x.nczarr")
    to_nczarr(xr.Dataset({"v": ("x", values)}), path, encoding={"v": encoding})
    to_nczarr(xr.Dataset({"v": ("x", values)}), path, append_dim="x")
    expected = round_decimals(values, digit, fill)
    with xr.open_dataset(path, engine="nczarr") as found:
        assert np.array_equal(found["v"], [*expected, *expected], equal_nan=True)
    assert np.isnan(expected).tolist() == [True, False, False, False]
    assert abs(expected - values)[1:].max() < 10.0**-digit


@pytest.mark.parametrize("digit", [400, -400])
def test_decimals_that_no_number_has(digit: int) -> None:
    encoding = {"least_significant_digit": digit}
    with pytest.raises(FormatError, match=r"least_significant_digit: is -?400, not -300 to 300"):
        to_nczarr(xr.Dataset({"v": ("x", [1.0])}), {}, encoding={"v": encoding})
