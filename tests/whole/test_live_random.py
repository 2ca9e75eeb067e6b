"""Random contents and random selections: what netCDF-C writes twice is the same in xarray."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from tests.support.builders.selections import indexers
from tests.support.corpora.random_contents import Content, contents
from tests.support.examples import examples
from tests.support.oracles.ncpair import assert_same, write_pair

slow = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@slow
@given(contents(), st.booleans())
def test_any_content_is_the_same(content: Content, decode: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = write_pair(Path(folder), content)
        ours = xr.open_groups(pair.nczarr, engine="nczarr", decode_cf=decode)
        theirs = xr.open_groups(pair.nc, engine="netcdf4", decode_cf=decode)
        assert list(ours) == list(theirs)
        for path, dataset in theirs.items():
            with ours[path], dataset:
                assert_same(ours[path], dataset)


# -- selections --------------------------------------------------------------------

SIZES = {"x": 11, "y": 7, "z": 4}
#: Selections that are combined before anything is read; xarray of 2025 combines some wrongly.
COMBINED = 2 if Version(xr.__version__) >= Version("2026.9") else 1


def selectable(d: netCDF4.Dataset) -> None:
    for name, size in SIZES.items():
        d.createDimension(name, None if name == "x" else size)
    cube = np.arange(11 * 7 * 4).reshape(11, 7, 4)
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("plain", "i2", {}),
        ("packed", "f8", {"compression": "zlib"}),
        ("big", ">i4", {"endian": "big", "compression": "zlib"}),
        ("whole", "u1", {"chunksizes": (11, 7, 4)}),
        ("single", "i8", {"chunksizes": (1, 1, 1)}),
    ]
    for name, kind, options in cases:
        options = {"chunksizes": (4, 3, 3)} | options
        v = d.createVariable(name, kind, ("x", "y", "z"), **options)
        v[:] = cube % 250
    v = d.createVariable("holes", "f4", ("z", "x"), chunksizes=(3, 4), fill_value=-1)
    v[:3, :4] = 1
    v[:3, 8:] = 2
    v = d.createVariable("text", str, ("y", "x"), chunksizes=(3, 4))
    v[:] = np.array([f"é{n}" for n in range(77)], object).reshape(7, 11)
    v = d.createVariable("letters", "S1", ("x", "y"), chunksizes=(4, 3))
    v[:] = np.array([chr(97 + n % 26).encode() for n in range(77)]).reshape(11, 7)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[xr.Dataset, xr.Dataset]:
    """One dataset lazily and loaded."""
    pair = write_pair(tmp_path_factory.mktemp("select"), selectable)
    lazy, theirs = pair.datasets(cache=False)
    assert_same(lazy, theirs)
    with theirs:
        return lazy, theirs.load()


@settings(parent=slow, max_examples=examples(300))
@given(st.randoms(use_true_random=False))
def test_any_selection_equals_the_loaded(
    opened: tuple[xr.Dataset, xr.Dataset], choose: random.Random
) -> None:
    lazy, loaded = opened[0].copy(), opened[1]  # a copy: loading changes variables in place
    for prefix in "pq"[: choose.randint(1, COMBINED)]:
        sizes = {str(name): size for name, size in loaded.sizes.items()}
        chosen = indexers(choose, sizes, prefix)
        lazy, loaded = lazy.isel(chosen), loaded.isel(chosen)
    xr.testing.assert_identical(lazy.load(), loaded)
    for name, variable in loaded.variables.items():
        assert lazy[name].dtype == variable.dtype


def test_selections_are_lazy(opened: tuple[xr.Dataset, xr.Dataset]) -> None:
    lazy, _ = opened
    selected = lazy.isel(x=slice(2, 8), y=[1, 3]).isel(z=xr.DataArray([0, 1], dims="p"))
    assert not any(variable._in_memory for variable in selected.variables.values())
