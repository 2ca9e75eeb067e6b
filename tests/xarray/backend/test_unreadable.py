"""Variables that cannot be read: the others can, and errors come when the data are used."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from nczarr_xarray import FormatError, NCZarrWarning
from nczarr_xarray.backend.data_store import NCZarrDataStore
from nczarr_xarray.dataset.open import open_hierarchy
from tests.support.marks import needs_new_xarray

TIMES = np.arange("2000-01-01", "2000-01-05", dtype="M8[D]").astype("M8[ns]")
GRID = xr.Dataset(
    {
        "v": (("time", "x"), np.arange(8.0).reshape(4, 2)),
        "bounds": (("time", "n"), np.stack([TIMES, TIMES + np.timedelta64(1, "D")], axis=1)),
    },
    {"time": ("time", TIMES, {"bounds": "bounds"}), "x": [1, 2], "made": ("time", TIMES[::-1])},
)


GRID["time"].encoding["units"] = "days since 2000-01-01"


def damaged(folder: Path, name: str) -> Path:
    """A dataset of which the chunk of one variable is damaged."""
    path = folder / "a.nczarr"
    GRID.nczarr.to_nczarr(path)
    (chunk,) = (file for file in (path / name).iterdir() if not file.name.startswith("."))
    chunk.write_bytes(b"damaged!")
    return path


def opened(path: Path, **options: Any) -> xr.Dataset:
    with pytest.warns(NCZarrWarning, match="cannot be read and raises when it is used"):
        return xr.open_dataset(path, engine="nczarr", **options)


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("name", ["time", "bounds", "made"])
def test_times_keep_no_dataset_from_opening(tmp_path: Path, name: str, chunks: Any) -> None:
    """xarray looks at the first and the last one, to learn what kind of dates they are."""
    ds = opened(damaged(tmp_path, name), chunks=chunks)
    assert ds[name].dtype == "M8[ns]"
    assert ds[name].encoding["units"].startswith("days since")
    for one in (ds, pickle.loads(pickle.dumps(ds))):
        np.testing.assert_array_equal(one.variables["v"].values, GRID["v"].values)
        with pytest.raises(FormatError, match=f"{name}/0"):
            _ = one[name].variable.values


def test_a_store_opened_by_xarray_gives_no_zeros(tmp_path: Path) -> None:
    """There nobody learns what failed."""
    opened = open_hierarchy(damaged(tmp_path, "made"))
    store = NCZarrDataStore(opened, opened.hierarchy.root, set(), {})
    with pytest.raises(FormatError, match="made/0"):
        xr.open_dataset(store)


def test_times_of_a_group_neither(tmp_path: Path) -> None:
    path = tmp_path / "a.nczarr"
    xr.DataTree.from_dict({"/": GRID, "/g": GRID[["v"]]}).nczarr.to_nczarr(path)
    (path / "time" / "0").write_bytes(b"damaged!")
    with pytest.warns(NCZarrWarning, match="'/time' cannot be read"):
        tree = xr.open_datatree(path, engine="nczarr")
    np.testing.assert_array_equal(tree["g/v"].values, GRID["v"].values)


@pytest.mark.parametrize(
    "index", [0, slice(1, 3), slice(None, None, -2), [0, 0, 1], xr.DataArray([3, 1], dims="p")]
)
def test_the_index_is_selected_like_the_rest(tmp_path: Path, index: Any) -> None:
    ds = opened(damaged(tmp_path, "time")).isel(time=index)
    expected = GRID.isel(time=index)
    assert dict(ds.sizes) == dict(expected.sizes)
    assert {n: v.shape for n, v in ds.variables.items()} == {
        n: v.shape for n, v in expected.variables.items()
    }
    np.testing.assert_array_equal(ds["v"].values, expected["v"].values)
    with pytest.raises(FormatError, match="time/0"):
        _ = ds["time"].values


@pytest.mark.parametrize(
    "use",
    [
        lambda ds: ds.sel(time="2000-01-01"),
        lambda ds: ds.indexes,
        lambda ds: xr.concat([ds, ds], "time"),
        pytest.param(lambda ds: xr.merge([ds, GRID]), marks=needs_new_xarray),
        pytest.param(lambda ds: ds["v"] + GRID["v"], marks=needs_new_xarray),
    ],
)
def test_what_needs_the_labels_says_why_not(
    tmp_path: Path, use: Callable[[xr.Dataset], Any]
) -> None:
    ds = opened(damaged(tmp_path, "time"))
    with pytest.raises(FormatError, match="time/0"):
        use(ds)


def test_unknown_labels_are_not_those_of_another_dataset(tmp_path: Path) -> None:
    """The values of both would be taken for values of the same times."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    ds = opened(damaged(one, "time"))
    np.testing.assert_array_equal((ds["v"] + ds["v"]).values, 2 * GRID["v"].values)
    with pytest.raises(FormatError, match="time/0"):
        _ = ds["v"] + opened(damaged(other, "time"))["v"]


# -- attributes that decoding needs -------------------------------------------------------------


def packed(path: Path, attributes: dict[str, Any]) -> Path:
    """An HDF5 file of which some variables are packed: x = 0, 0.5, 1, missing, 2."""
    with h5py.File(path, "w", libver="v110") as file:
        file["x"] = np.arange(5, dtype="i2")
        file["x"].attrs.update(attributes)
        file["sound"] = np.arange(3.0)
    return path


@pytest.mark.parametrize("marker", [b"BTLF", b"BTHD", b"FRHP", b"unrelated 7", b"note 3", None])
@pytest.mark.filterwarnings("ignore:The 'phony_dims' kwarg:UserWarning")
def test_attributes_in_damaged_storage_may_be_those_that_decoding_needs(
    tmp_path: Path, marker: bytes | None
) -> None:
    notes = {f"note {i}": np.bytes_(f"unrelated {i}") for i in range(12)}
    path = packed(tmp_path / "x.h5", {"scale_factor": 0.5, "_FillValue": np.int16(3), **notes})
    data = bytearray(path.read_bytes())
    if marker is not None:
        data[data.rindex(marker) + 5] ^= 4  # the last: others may be left from before
        path.write_bytes(data)
        with pytest.raises((OSError, RuntimeError)), netCDF4.Dataset(path) as file:
            file["x"].__dict__  # noqa: B018 - it has all attributes
        with opened(path) as ds:
            np.testing.assert_array_equal(ds["sound"], np.arange(3.0))
            with pytest.raises(FormatError, match=r"^/x: cannot be .*decode_cf=False reads the"):
                ds["x"].load()
        with pytest.warns(NCZarrWarning, match="/x: cannot be decoded"):
            raw = xr.open_dataset(path, engine="nczarr", decode_cf=False)
        with raw:
            np.testing.assert_array_equal(raw["x"], np.arange(5, dtype="i2"))
    else:
        with xr.open_dataset(path, engine="nczarr") as ds:
            np.testing.assert_array_equal(ds["x"], [0, 0.5, 1, np.nan, 2])


@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": np.longdouble(0.5)},
        {"add_offset": np.float16(1), "scale_factor": 0.5},
        {"scale_factor": np.bool_(True)},
        {"scale_factor": "half"},
        {"scale_factor": np.array([0.5, 1])},
        {"scale_factor": h5py.Empty("f8")},
        {"_FillValue": np.longdouble(3)},
        {"missing_value": np.longdouble(3)},
    ],
)
def test_attributes_that_decoding_needs_and_cannot_use(
    tmp_path: Path, attributes: dict[str, Any]
) -> None:
    path = packed(tmp_path / "x.h5", attributes)
    with opened(path) as ds:
        np.testing.assert_array_equal(ds["sound"], np.arange(3.0))
        (name, *_) = attributes
        with pytest.raises(FormatError, match=rf"/x: .*{name}.*decode_cf=False"):
            ds["x"].load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NCZarrWarning)
        raw = xr.open_dataset(path, engine="nczarr", decode_cf=False)
    with raw:
        np.testing.assert_array_equal(raw["x"], np.arange(5, dtype="i2"))


def test_other_attributes_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.h5", {"scale_factor": 0.5, "other": np.longdouble(0.5)})
    with pytest.warns(NCZarrWarning, match="/x: attribute 'other' is left out"):
        ds = xr.open_dataset(path, engine="nczarr")
    with ds:
        np.testing.assert_array_equal(ds["x"], [0, 0.5, 1, 1.5, 2])


@pytest.mark.filterwarnings("ignore:The 'phony_dims' kwarg:UserWarning")
def test_attributes_that_are_matrices_are_values(tmp_path: Path) -> None:
    """netCDF-C refuses the file; h5netcdf decodes by them."""
    attributes = {
        "scale_factor": np.array([[0.5]]),
        "_FillValue": np.array([[3]], "i2"),
        "matrix": np.arange(6).reshape(2, 3),
    }
    path = packed(tmp_path / "x.h5", attributes)
    with (
        xr.open_dataset(path, engine="nczarr") as ours,
        xr.open_dataset(path, engine="h5netcdf") as theirs,
    ):
        np.testing.assert_array_equal(ours["x"], theirs["x"].astype(float))
        np.testing.assert_array_equal(ours["x"], [0, 0.5, 1, np.nan, 2])
        assert ours["x"].attrs["matrix"].tolist() == theirs["x"].attrs["matrix"].ravel().tolist()
        assert ours["x"].encoding["_FillValue"] == 3
