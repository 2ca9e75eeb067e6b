"""xarray's own tests of its backends, with ``engine="nczarr"`` reading.

What is read was written by netCDF-C as NCZarr, or by zarr-python as Zarr v2 and v3. Tests that
cannot pass are in `EXPECTED`, each with the reason; one that begins to pass fails the suite.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import netCDF4
import pytest
import xarray as xr
from packaging.version import Version

OLD = Version(xr.__version__) < Version("2026.9")

try:
    from xarray.backends.writers import WRITEABLE_STORES
    from xarray.tests import test_backends, test_backends_datatree
    from xarray.tests.conftest import (  # noqa: F401  # fixtures
        create_test_datatree,
        simple_datatree,
        time_unit,
        use_dask,
    )
    from xarray.tests.test_backends import (  # noqa: F401  # and one more fixture
        CFEncodedBase,
        NetCDF4Base,
        ZarrBase,
        default_zarr_format,
    )
    from xarray.tests.test_backends_datatree import (  # noqa: F401
        NetCDFIOBase,
        unaligned_datatree_zarr_factory,
    )
except ImportError as error:
    # the names are xarray's own and move from release to release
    if os.environ.get("CI") and not OLD:
        raise
    pytest.skip(f"xarray {xr.__version__} has other tests: {error}", allow_module_level=True)

if OLD:
    pytest.skip("the table of expected failures is that of xarray 2026.9", allow_module_level=True)

# these tests were written for xarray's own settings of warnings
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("we_read", "expected_failures"),
]

APPEND = "netCDF4-python makes a new dataset when it is asked to append to an NCZarr URL"
ENUM = "netCDF-C has no enumerations in NCZarr"
ZARR_KEYS = "encoding has netCDF's keys (chunksizes, zlib ...), not those of engine='zarr'"
OTHER_FORMAT = "a test of the other Zarr format: xarray's repository leaves it out by a mark"

#: Name of a test, with its class and what it is parametrised by as far as it matters, and reason.
EXPECTED = {
    "TestNCZarr::test_write_store": "there is no store of ours to write to",
    "TestNCZarr::test_append_write": APPEND,
    "TestNCZarr::test_append_overwrite_values": APPEND,
    "TestNCZarr::test_append_with_invalid_dim_raises": APPEND,
    "TestNCZarr::test_write_groups": APPEND,
    "TestNCZarr::test_child_group_with_inconsistent_dimensions": APPEND,
    "TestNCZarr::test_encoding_enum__no_fill_value": ENUM,
    "TestNCZarr::test_encoding_enum__multiple_variable_with_enum": ENUM,
    "TestNCZarr::test_encoding_enum__error_multiple_variable_with_changing_enum": ENUM,
    "TestNCZarr::test_refresh_from_disk": "reads a classic netCDF file",
    "TestNCZarrTree::test_roundtrip_via_memoryview": "netCDF-C has no NCZarr in memory",
    "TestZarr::test_chunk_encoding": ZARR_KEYS,
    "TestZarr::test_chunk_encoding_with_dask": ZARR_KEYS,
    "TestZarr::test_shard_encoding[3": ZARR_KEYS,
    "TestZarr::test_compressor_encoding": ZARR_KEYS,
    "TestZarr::test_zarr_fill_value_in_encoding_on_read[3": ZARR_KEYS,
    "TestZarr::test_zarr_fill_value_in_encoding_on_read[2": OTHER_FORMAT,
    "TestZarr::test_shard_encoding_with_dask[2": OTHER_FORMAT,
    "TestZarr::test_hidden_zarr_keys[3": OTHER_FORMAT,
    "TestZarr::test_dimension_names[2": OTHER_FORMAT,
    "TestZarr::test_zarr_fill_value_setting[2": (
        "use_zarr_fill_value_as_mask=False means what it says, engine='zarr' ignores it"
    ),
    "TestZarrTree::test_zarr_encoding": ZARR_KEYS,
    "TestZarrTree::test_to_zarr_not_consolidated": "no warning: listing a directory is no fault",
}


@pytest.fixture(scope="module", autouse=True)
def no_leftovers() -> Iterator[None]:
    """Collect what these tests left open here, where nobody minds."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def expected_failures(request: pytest.FixtureRequest) -> None:
    test = f"{request.cls.__name__}::{request.node.name}"
    for name, reason in request.module.EXPECTED.items():
        if test == name or test.startswith((f"{name}[", name if "[" in name else f"{name}[")):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


def nczarr(target: Any) -> str:
    """A path as a URL of NCZarr; a URL stays what it is."""
    text = str(target)
    return text if "://" in text else f"file://{text}#mode=nczarr,file"


class NCZarrDataset(netCDF4.Dataset):
    """netCDF4-python's dataset that makes NCZarr where it would make a file."""

    def __init__(self, target: Any, mode: str = "r", **options: Any) -> None:
        if not isinstance(target, (str, os.PathLike)) or str(target).startswith("<"):
            raise OSError(f"no NCZarr in memory: {target}")
        super().__init__(nczarr(target), mode, **options)


@pytest.fixture
def we_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send what xarray's tests open to ``engine="nczarr"``."""
    for module in (test_backends, test_backends_datatree):
        for name in ("open_dataset", "open_datatree", "open_groups"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, reading_with(getattr(xr, name)))


def reading_with(function: Any) -> Any:
    def call(target: Any, **options: Any) -> Any:
        return function(target, **{**options, "engine": "nczarr"})

    return call


@pytest.fixture
def netcdf_writes_nczarr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let netCDF-C write NCZarr wherever xarray's tests let it write."""
    monkeypatch.setattr(netCDF4, "Dataset", NCZarrDataset)
    writers: dict[str, Any] = WRITEABLE_STORES  # type: ignore[assignment]
    monkeypatch.setitem(writers, "nczarr", writers["netcdf4"])


@pytest.mark.usefixtures("netcdf_writes_nczarr")
class TestNCZarr(NetCDF4Base):
    engine = "nczarr"
    # NetCDFBase says that netCDF backends cannot; we can
    test_load_async = CFEncodedBase.test_load_async


@pytest.mark.usefixtures("netcdf_writes_nczarr")
class TestNCZarrTree(NetCDFIOBase):
    engine = "netcdf4"


class TestZarr(ZarrBase):
    @contextmanager
    def create_zarr_target(self) -> Iterator[str]:
        with test_backends.create_tmp_file(suffix=".zarr") as path:
            yield path

    @contextmanager
    def open(self, path: str, **options: Any) -> Iterator[xr.Dataset]:
        with xr.open_dataset(path, engine="nczarr", **options) as dataset:
            yield dataset


for name in dir(TestZarr):
    # these write only, or read what they wrote by engine="zarr"
    if name.startswith(("test_append_", "test_region_", "test_write_", "test_to_zarr_")):
        setattr(TestZarr, name, None)


class TestZarrTree(test_backends_datatree.TestZarrDatatreeIO):
    pass
