"""One variable of an HDF5 file, without the metadata of the others."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest

from nczarr_xarray.dataset.fragment_datasets import open_fragment
from nczarr_xarray.dataset.open import open_with
from nczarr_xarray.formats.registry import OpenOptions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        for group in (file, file.createGroup("g/h")):
            time = group.createVariable("time", "f8", ("time",))
            time[:] = [1.0, 2.0]
            tas = group.createVariable("tas", "f4", ("time", "x"), fill_value=-9.0)
            tas.units = "K"
            tas[:] = np.arange(6).reshape(2, 3)
            short = group.createVariable("short", "i2", ("time",))
            short[:1] = 5
        x = file.createVariable("x", str, ("time", "x"))  # no coordinate, but of that name
        x[:] = np.array([["a", "b", "c"], ["d", "e", "f"]], dtype=object)
    return path


@pytest.mark.parametrize("name", ["tas", "time", "x", "g/h/tas", "/g/h/time"])
def test_the_same_as_in_all(path: Path, name: str) -> None:
    for entire in (False, True):
        found = open_fragment(open_with, str(path), None, name, depth=0, entire=entire)
        with netCDF4.Dataset(path) as file:
            own = file[name]
            own.set_auto_maskandscale(False)
            expected, shape = own[...], own.shape
        assert found.variable.shape == shape
        assert found.reader.read().tolist() == expected.tolist()
    attributes = found.variable.attributes
    assert ("_FillValue" in attributes) == ("units" in attributes) == name.endswith("tas")


def test_others_are_not_read(path: Path) -> None:
    with open_with(str(path), OpenOptions(tree=False, only="tas")) as opened:
        assert list(opened.hierarchy.root.variables) == ["tas"]
        assert not opened.hierarchy.problems


def test_the_length_that_others_give(path: Path) -> None:
    short, whole = (
        open_fragment(open_with, str(path), None, "short", depth=0, entire=entire).variable.shape
        for entire in (False, True)
    )
    assert (short, whole) == ((1,), (2,))
