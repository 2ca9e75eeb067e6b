"""Copies equal their sources whatever their format is, and a single difference is found."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.callbacks import Callback
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nczarr_xarray import compare
from nczarr_xarray.cli.main import main
from tests.support.corpora import random_netcdf, random_zarr
from tests.support.examples import examples
from tests.support.oracles.compared import CHANGES, write_everything

SEEDS = st.integers(0, 1 << 30)
TARGETS = ("file://{}/y#mode=nczarr,file", "{}/y.zip", "file://{}/y#mode=zarr", "{}/y.nc")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("everything") / "x.nc"
    write_everything(path)
    return path


@pytest.mark.parametrize("what", CHANGES, ids="-".join)
def test_one_change_is_the_one_difference(
    tmp_path: Path, everything: Path, what: tuple[str, str, str]
) -> None:
    name, property_, text = what
    changed = tmp_path / "y.nc"
    shutil.copy(everything, changed)
    with netCDF4.Dataset(changed, "a") as file:
        CHANGES[what](file)
    found = compare(everything, changed)
    assert found.status == 1
    assert [(d.object, d.property) for d in found.differences] == [(name, property_)]
    assert text in str(found)


def test_lengths_and_types_of_variables(tmp_path: Path, everything: Path) -> None:
    write_everything(tmp_path / "longer.nc", lat=6)
    write_everything(tmp_path / "wider.nc", temperature="f8")
    longer = compare(everything, tmp_path / "longer.nc")
    assert "dimension /lat: length: 5 | 6" in str(longer)
    assert "variable /t: shape: (7, 5) | (7, 6)" in str(longer)
    wider = compare(everything, tmp_path / "wider.nc").differences
    assert [str(d) for d in wider][:2] == [
        "variable /t: type: float | double",
        "variable /t[0, 1]: 0.029411765 | 0.029411764705882353",
    ]


def test_of_what_one_dataset_lacks_the_parts_are_not_listed(tmp_path: Path) -> None:
    for name in "ab":
        with netCDF4.Dataset(tmp_path / name, "w") as file:
            file.title = "x"
            if name == "b":
                group = file.createGroup("g").createGroup("h")
                group.createDimension("x", 2)
                group.createVariable("v", "i4", ("x",)).units = "m"
                file.createVariable("v", "i4").units = "m"
                file.createVariable("vv", "i4")
    found = compare(tmp_path / "a", tmp_path / "b", encoding=True).differences
    assert [d.object for d in found] == ["group /g", "variable /v", "variable /vv"]
    assert str(found[1]) == "variable /v: only in B: type int, dimensions (), shape ()"


def copied(source: Path, target: str, *options: str) -> bool:
    """Whether a dataset could be copied without loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return main(["copy", str(source), target, *options]) == 0


@settings(max_examples=examples(50))
@example(992890, TARGETS[0])  # text without dimensions
@given(SEEDS, st.sampled_from(TARGETS))
def test_a_copy_equals_its_source(
    tmp_path_factory: pytest.TempPathFactory, seed: int, target: str
) -> None:
    folder = tmp_path_factory.mktemp("random")
    made = random_netcdf.write(random.Random(seed), folder / "x.nc")
    place = target.format(folder)
    assume(copied(made.path, place))
    found = compare(made.path, place)
    assert found.equal, f"{found}\n{made.steps}"


@pytest.mark.filterwarnings("ignore")  # what zarr-python thinks of text in Zarr 3
@settings(max_examples=examples(50))
@given(SEEDS)
def test_a_copy_of_zarr_equals_its_source(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("random")
    made = random_zarr.write(random.Random(seed), folder / "x.zarr")
    place = f"file://{folder}/y#mode=zarr"
    assume(copied(made.path, place))
    found = compare(made.path, place)
    assert found.equal, f"{found}\n{made.steps}"


@settings(max_examples=examples(50))
@given(SEEDS)
@example(345143)
@example(21216)
def test_one_changed_bit_of_a_random_file_is_found(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder, choose = tmp_path_factory.mktemp("random"), random.Random(seed)
    made = random_netcdf.write(choose, folder / "x.nc")
    assume("no fill" not in made.steps)  # what was not written is then not defined
    changed = folder / "y.nc"
    shutil.copy(made.path, changed)
    with netCDF4.Dataset(changed, "a") as file:
        numbers = [
            variable
            for group in (file, *file.groups.values())
            for variable in group.variables.values()
            if isinstance(variable.datatype, np.dtype)
            and variable.datatype.kind in "iuf"
            and variable.size
            # else elements before this one, if there were none, are not defined then
            and variable.get_fill_value() is not None
        ]
        assume(numbers)
        variable = choose.choice(numbers)
        variable.set_auto_maskandscale(False)
        at = choose.randrange(variable.size)
        index = tuple(map(int, np.unravel_index(at, variable.shape)))
        # This element only: netCDF-C 4.10 misplaces values where it reads all of a variable that
        # is shorter than the dimension, if that is not the first.
        value = np.array(variable[index or ...], variable.dtype.newbyteorder("=")).reshape(1)
        words = value.view(f"u{value.itemsize}")
        words[0] ^= words.dtype.type(1 << choose.randrange(8 * value.itemsize))
        variable[index or ...] = value.reshape(())
        path = f"{variable.group().path.rstrip('/')}/{variable.name}"
    found = compare(made.path, changed)
    assert [(d.object, d.index) for d in found.differences] == [(f"variable {path}", index)]
    assert found.differing == {path: 1}


@pytest.mark.parametrize("sample", [None, 2])
def test_a_callback_counts_the_blocks(tmp_path: Path, sample: int | None) -> None:
    whole = xr.Dataset({name: ("x", np.arange(60.0)) for name in "abc"})
    for name in "xy":
        whole.nczarr.to_nczarr(tmp_path / name, encoding={v: {"chunks": (10,)} for v in "abc"})
    (tmp_path / "y" / "b" / "0").write_bytes(b"short")
    callback = Callback()
    found = compare(tmp_path / "x", tmp_path / "y", sample=sample, callback=callback)
    assert found.status == 2
    assert (callback.size, callback.value) == (3, 3)  # each variable is one block
