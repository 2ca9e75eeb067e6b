"""xarray's own tests of its backends, with our writer in place of its own.

Three doors: ``to_netcdf(engine="nczarr")`` after `register`, `to_nczarr` where xarray's tests say
`to_netcdf`, and `to_nczarr` where they say `to_zarr`. What is written is read by
``engine="nczarr"``, and by netCDF-C where a test asks netCDF4-python. Tests that cannot pass are
in `EXPECTED`, each with the reason; one that begins to pass fails the suite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import pytest
import xarray as xr
import zarr

import nczarr_xarray
from nczarr_xarray import to_nczarr
from nczarr_xarray.backend.compat import WRITEABLE_STORES
from tests.xarray.backend.test_xarray_suite import (  # noqa: F401  # fixtures among them
    CFEncodedBase,
    NCZarrDataset,
    NetCDF4Base,
    NetCDFIOBase,
    ZarrBase,
    create_test_datatree,
    expected_failures,
    no_leftovers,
    simple_datatree,
    test_backends,
    test_backends_datatree,
    time_unit,
    unaligned_datatree_zarr_factory,
    use_dask,
    we_read,
)

# these tests were written for xarray's own settings of warnings
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("we_read", "expected_failures"),
]

MESSAGE = "an error all the same, in our words"
STORE = "xarray's own writer gives to_nczarr no store"
BEFORE = "what is not complete yet says so, instead of showing fill values"
ZARR_KEYS = "encoding has netCDF's keys (chunksizes, zlib ...), not those of engine='zarr'"
ENUM = "netCDF-C has no enumerations in NCZarr"
CLASSIC = "reads a classic netCDF file"
LAZY_TEXT = "no warning: dask's text is written block by block and not loaded"
TEXT_FILL = "the fill value of text is longer than its text, which we say in other words"
ZARR_3 = "of Zarr 3"
FILL = "Zarr's fill value is no mask of ours: missing values are in _FillValue, as in netCDF"

#: Name of a test, with its class and what it is parametrised by as far as it matters, and reason.
EXPECTED: dict[str, str] = {}
for _name in ("TestToNetCDF", "TestToNCZarr"):
    EXPECTED |= {
        f"{_name}::test_write_store": STORE,
        f"{_name}::test_roundtrip_string_with_fill_value_nchar": TEXT_FILL,
        f"{_name}::test_append_with_invalid_dim_raises": MESSAGE,
        f"{_name}::test_multiindex_not_implemented": MESSAGE,
        f"{_name}::test_string_object_warning": LAZY_TEXT,
        f"{_name}::test_refresh_from_disk": CLASSIC,
        f"{_name}::test_byte_attrs": "netCDF-C cuts text at NUL, and JSON holds UTF-8 only",
        f"{_name}::test_raise_on_forward_slashes_in_names": MESSAGE,
        f"{_name}::test_encoding_enum__no_fill_value": ENUM,
        f"{_name}::test_encoding_enum__multiple_variable_with_enum": ENUM,
        f"{_name}::test_encoding_enum__error_multiple_variable_with_changing_enum": ENUM,
    }
EXPECTED |= {
    "TestToNCZarr::test_invalid_dataarray_names_raise": MESSAGE,
    "TestToNCZarr::test_encoding_kwarg": MESSAGE,
    "TestToNCZarr::test_encoding_unlimited_dims": "no warning of what the data came with",
    "TestToZarr::test_roundtrip_string_with_fill_value_nchar": TEXT_FILL,
    "TestToZarr::test_invalid_dataarray_names_raise": MESSAGE,
    "TestToZarr::test_encoding_kwarg": MESSAGE,
    "TestToZarr::test_multiindex_not_implemented": MESSAGE,
    "TestToZarr::test_string_object_warning": LAZY_TEXT,
    "TestToZarr::test_roundtrip_boolean_dtype[": "bool is byte with a mark, as in netCDF",
    "TestToZarr::test_read_non_consolidated_warning": "listing a directory is no fault",
    "TestToZarr::test_non_existent_store": MESSAGE,
    "TestToZarr::test_chunk_encoding": ZARR_KEYS,
    "TestToZarr::test_chunk_encoding_with_dask": ZARR_KEYS,
    "TestToZarr::test_compressor_encoding": ZARR_KEYS,
    "TestToZarr::test_shard_encoding_with_dask": ZARR_3,
    "TestToZarr::test_dimension_names": ZARR_3,
    "TestToZarr::test_check_encoding_is_consistent_after_append": "text has the length it has",
    "TestToZarr::test_to_zarr_compute_false_roundtrip": BEFORE,
    "TestToZarr::test_to_zarr_append_compute_false_roundtrip": LAZY_TEXT,
    "TestToZarr::test_attributes": "netCDF has no attributes of attributes",
    "TestToZarr::test_zarr_fill_value_setting": BEFORE,
    "TestToZarr::test_zarr_fill_value_in_encoding_on_read": FILL,
    "TestTreeToNCZarr::test_compute_false": BEFORE,
    "TestTreeToNCZarr::test_roundtrip_via_memoryview": "a dataset of many objects is no file",
    "TestTreeToNCZarr::test_to_memoryview_compute_false": MESSAGE,
    "TestTreeToZarr::test_zarr_encoding": ZARR_KEYS,
    "TestTreeToZarr::test_to_zarr_not_consolidated": "listing a directory is no fault",
    "TestTreeToZarr::test_to_zarr_compute_false[zarr_format=2": BEFORE,
    "TestTreeToZarr::test_rplus_mode": "trees are updated group by group; the error says so",
}
for _name in ("TestToZarr", "TestUpdateNCZarr"):
    EXPECTED |= {
        f"{_name}::test_write_persistence_modes": "text longer than the stored is refused",
        f"{_name}::test_append_with_mode_rplus_fails": MESSAGE,
        f"{_name}::test_append_with_invalid_dim_raises": MESSAGE,
        f"{_name}::test_append_with_no_dims_raises": "mode='a' replaces variables",
        f"{_name}::test_append_with_append_dim_not_set_raises": MESSAGE,
        f"{_name}::test_append_with_mode_not_a_raises": MESSAGE,
        f"{_name}::test_append_with_existing_encoding_raises": MESSAGE,
        f"{_name}::test_append_string_length_mismatch_raises": MESSAGE,
        f"{_name}::test_append_with_append_dim_no_overwrite": "there is no mode 'a-'",
        f"{_name}::test_write_preexisting_override_metadata": (
            "mode='a' replaces attributes too, which xarray's own note says to be right"
        ),
        f"{_name}::test_write_region_errors": MESSAGE,
    }
EXPECTED["TestUpdateNCZarr::test_append_with_new_variable"] = (
    "zarr-python does not know NCZarr's type of characters"
)


@pytest.fixture
def netcdf_reads_nczarr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let netCDF-C open as NCZarr what xarray's tests hand to it."""
    monkeypatch.setattr(netCDF4, "Dataset", NCZarrDataset)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """`register`, for one test."""
    writers: dict[str, Any] = WRITEABLE_STORES  # type: ignore[assignment]
    monkeypatch.setitem(writers, "nczarr", None)
    nczarr_xarray.register()


@pytest.fixture
def names_of_trees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Call temporary targets what a tree may be called, or let a tree be there."""
    (tmp_path / "tmp.nc").mkdir()
    make = test_backends.create_tmp_file
    monkeypatch.setattr(test_backends, "create_tmp_file", partial(make, ".nczarr"))


@pytest.fixture
def to_zarr_is_ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `to_zarr` write, and `open_zarr` read, by this package."""
    for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
        monkeypatch.setattr(kind, "to_zarr", writing_as(request.cls.dialect))
    monkeypatch.setattr(xr, "open_zarr", open_zarr)


@pytest.fixture
def tree_to_netcdf_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """xarray knows by name the engines that may write trees; send them to `to_nczarr`."""
    monkeypatch.setattr(xr.DataTree, "to_netcdf", as_to_netcdf)


def as_to_netcdf(
    tree: xr.DataTree, target: Any = None, *, engine: Any = None, **options: Any
) -> Any:
    if isinstance(target, (str, os.PathLike)):
        target = f"file://{os.fspath(target)}#mode=nczarr,file"  # it is called test.nc
    return to_nczarr(tree, target, **{"mode": "w", **options})


@pytest.fixture(params=[2])
def default_zarr_format(request: pytest.FixtureRequest) -> Iterator[None]:
    """xarray's fixture of this name, for the format that is written."""
    with zarr.config.set(default_zarr_format=request.param):
        yield


def writing_as(dialect: str) -> Any:
    """`to_nczarr` with what `to_zarr` takes; paths become URLs with this fragment."""

    def to_zarr(
        obj: Any,
        store: Any,
        *,
        zarr_format: int | None = None,
        consolidated: bool | None = None,
        **options: Any,
    ) -> Any:
        if zarr_format == 3:
            pytest.skip("NCZarr is Zarr 2")
        if isinstance(store, (str, os.PathLike)):
            store = f"file://{os.fspath(store)}#mode={dialect}"
        return to_nczarr(obj, store, consolidated=bool(consolidated), **options)

    return to_zarr


def open_zarr(store: Any, *, chunks: Any = None, **options: Any) -> xr.Dataset:
    options = {k: v for k, v in options.items() if k not in ("zarr_format", "consolidated")}
    return xr.open_dataset(store, engine="nczarr", chunks=chunks or {}, **options)


@pytest.mark.usefixtures("netcdf_reads_nczarr", "registered", "names_of_trees")
class TestToNetCDF(NetCDF4Base):
    engine = "nczarr"
    test_load_async = CFEncodedBase.test_load_async


@pytest.mark.usefixtures("netcdf_reads_nczarr", "registered", "names_of_trees")
class TestToNCZarr(NetCDF4Base):
    engine = "nczarr"
    test_load_async = CFEncodedBase.test_load_async

    def save(self, dataset: xr.Dataset, path: Any, **options: Any) -> Any:
        return to_nczarr(dataset, path, **{"mode": "w", **options})


@pytest.mark.usefixtures("to_zarr_is_ours")
class TestToZarr(ZarrBase):
    dialect = "zarr"

    @contextmanager
    def create_zarr_target(self) -> Iterator[str]:
        with test_backends.create_tmp_file(suffix=".zarr") as path:
            yield path

    def save(self, dataset: xr.Dataset, store_target: Any, **options: Any) -> Any:
        return dataset.to_zarr(store_target, **options)

    @contextmanager
    def open(self, path: str, **options: Any) -> Iterator[xr.Dataset]:
        with xr.open_dataset(path, engine="nczarr", **options) as dataset:
            yield dataset


@pytest.mark.usefixtures("netcdf_reads_nczarr", "tree_to_netcdf_is_ours")
class TestTreeToNCZarr(NetCDFIOBase):
    engine = "netcdf4"


@pytest.mark.usefixtures("to_zarr_is_ours")
class TestTreeToZarr(test_backends_datatree.TestZarrDatatreeIO):
    dialect = "zarr"
    # xarray expects it to fail, for a fault of its own store
    test_to_zarr_zip_store = None


class TestUpdateNCZarr(TestToZarr):
    """What changes a dataset that is there, in the other dialect."""

    dialect = "nczarr"


for name in dir(TestUpdateNCZarr):
    if name.startswith("test_") and not name.startswith(
        ("test_append_", "test_region_", "test_write_")
    ):
        setattr(TestUpdateNCZarr, name, None)
