"""Where fragments are: what is remembered of a folder is what each address would resolve to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import NCZarrError
from nczarr_xarray.dataset import fragment_datasets
from nczarr_xarray.dataset.fragment_datasets import FragmentDatasets
from nczarr_xarray.model import FragmentPlace
from tests.support.faults.locks import watch_cache

MASTERS = ["/d/m.nca", "/d/e/m.nca", "https://host/d/m.nca", "s3://bucket/d/m.nca"]
ALLOWED: list[Any] = [None, False, True, ["/d/e/a.nc"], ["/d/"], ["file:///d/e/"], ["https://"]]
MOVED: list[Any] = [None, {"/d/e": "/f"}, {"/d/e/a.nc": "/g/b.nc"}, {"e": "f"}, {"a.nc": "b.nc"}]
FOLDERS = ["", "/d/", "/d/e/", "e/", "../", "./", "/", "file:///d/e/", "file://other/d/"]
FOLDERS += ["https://host/d/", "s3://bucket/d/", "/d%20e/", "zip::/d/", "//host/d/", "/d#zarr/"]
NAMES = ["a.nc", "b.nc", "..", ".", "", "a#mode=bytes", "a%20b", "a b", "c:", "a::b", ".x", "-x"]


def outcome(datasets: FragmentDatasets, address: str) -> str:
    try:
        return datasets.resolved(address)
    except NCZarrError as error:
        return f"{type(error).__name__}: {error}"


@given(
    st.sampled_from(MASTERS),
    st.sampled_from(ALLOWED),
    st.sampled_from(MOVED),
    st.lists(st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(NAMES)), max_size=9),
)
def test_an_address_means_the_same_after_others(
    master: str, allow: Any, replace: Any, addresses: list[str]
) -> None:
    policy = AddressPolicy.of(master, allow=allow, replace=replace)

    def fresh() -> FragmentDatasets:
        own: Any = None
        return FragmentDatasets(own, own, policy, 0)

    datasets = fresh()
    for address in addresses:
        assert outcome(datasets, address) == outcome(fresh(), address)


def test_a_folder_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    resolve = AddressPolicy.resolve

    def counting(policy: AddressPolicy, address: str) -> str:
        asked.append(address)
        return resolve(policy, address)

    monkeypatch.setattr(AddressPolicy, "resolve", counting)
    own: Any = None
    datasets = FragmentDatasets(own, own, AddressPolicy.of("/d/m.nca"), 0)
    for number in range(5):
        assert outcome(datasets, f"e/{number}.nc") == f"/d/e/{number}.nc"
    assert asked == ["e/0.nc"]


def test_what_is_remembered_of_addresses_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_datasets, "REMEMBERED", 3)
    own: Any = None
    datasets = FragmentDatasets(own, own, AddressPolicy.of("/d/m.nca"), 0)
    for number in range(20):
        assert outcome(datasets, f"{number}/a.nc") == f"/d/{number}/a.nc"
        assert outcome(datasets, f"{number}/a b.nc") == f"/d/{number}/a b.nc"
    known: dict[int, int] = {}
    for number in range(20):
        fragment_datasets.remember(known, number, number)
        assert known[number] == number
        assert len(known) <= 3


def test_what_threads_open_is_remembered_under_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what one looks for could go before it is moved to the end."""
    monkeypatch.setattr(fragment_datasets, "REMEMBERED", 3)
    caches = watch_cache(monkeypatch, "nczarr_xarray.dataset.fragment_datasets")
    own: Any = None
    datasets = FragmentDatasets(own, own, AddressPolicy.of("/d/m.nca"), 0)
    for number in range(5):
        place = FragmentPlace(f"{number}.nc", "v", "nc")
        datasets.keep(place, own := object(), entire=False)  # type: ignore[arg-type]
        assert datasets.known(place, entire=False) is own
    assert [one for cache in caches for one in cache.held] == [True] * (
        5 + 5 + 2
    )  # kept, found, dropped


LENGTHS = {"t": 9, "y": 6, "x": 4}
VALUES = np.arange(9 * 6 * 4.0).reshape(9, 6, 4)


@pytest.mark.parametrize("shape", [{"t": 1}, {"y": 1}, {"x": 1}, {"t": 2}, {"t": 3, "y": 2}])
@pytest.mark.parametrize("fragment_format", ["netCDF3", "netCDF4"])
def test_parts_that_follow_each_other(
    tmp_path: Path, shape: dict[str, int], fragment_format: Any
) -> None:
    """Fragments that are alike are put into the result together."""
    xr.Dataset({"v": (tuple(LENGTHS), VALUES)}).nczarr.to_cfa(
        tmp_path / "m.nca", subarray_shape=shape, fragment_format=fragment_format
    )
    every = slice(None)
    keys: list[tuple[Any, ...]] = [
        (every, every, every),
        (slice(None, None, -1), every, slice(1, 3)),
        (slice(1, 8), slice(0, None, 2), every),
        (every, 3, every),
        ([0, 1, 2, 5, 6, 7], every, [0, 3]),
        (every, [5, 4, 0], 1),
    ]
    with xr.open_dataset(tmp_path / "m.nca", engine="nczarr") as ds:
        for key in keys:
            index: dict[str, Any] = dict(zip(LENGTHS, key, strict=True))
            plain = xr.Variable(tuple(LENGTHS), VALUES).isel(index)
            np.testing.assert_array_equal(ds.v.isel(index), plain, strict=True)
