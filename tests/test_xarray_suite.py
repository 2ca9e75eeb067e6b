"""xarray's own tests of backends, netCDF-C writing and ``engine="nczarr"`` reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import netCDF4
import pytest
import xarray as xr
from xarray.tests import test_backends, test_backends_datatree
from xarray.tests.conftest import time_unit  , use_dask, simple_datatree, create_test_datatree# noqa: F401
from xarray.tests.test_backends import NetCDF4Base, ZarrBase, default_zarr_format
from xarray.tests.test_backends_datatree import NetCDFIOBase, TestZarrDatatreeIO as ZDT, unaligned_datatree_zarr_factory


pytestmark = pytest.mark.filterwarnings("ignore")

def url(path: str) -> str:
    return path if "://" in path else f"file://{path}#mode=nczarr,file"

def open_dataset(path, **options):
    return xr.open_dataset(path, **{"engine": "nczarr", **options})

class NCZarrDataset(netCDF4.Dataset):
    def __init__(self, path, mode="r", **options):
        super().__init__(url(str(path)), mode, **options)

@pytest.fixture
def netcdf4_writes_nczarr(monkeypatch):
    monkeypatch.setattr(netCDF4, "Dataset", NCZarrDataset)
    monkeypatch.setattr(test_backends, "open_dataset", open_dataset)
    monkeypatch.setattr(test_backends_datatree, "open_datatree", lambda p,**o: xr.open_datatree(p,**{**o,"engine":"nczarr"}))
    monkeypatch.setattr(test_backends_datatree, "open_groups", lambda p,**o: xr.open_groups(p,**{**o,"engine":"nczarr"}))
    from xarray.backends.writers import WRITEABLE_STORES
    monkeypatch.setitem(WRITEABLE_STORES, "nczarr", WRITEABLE_STORES["netcdf4"])

@pytest.fixture
def dt(monkeypatch):
    monkeypatch.setattr(test_backends_datatree, "open_datatree", lambda p,**o: xr.open_datatree(p,**{**o,"engine":"nczarr"}))
    monkeypatch.setattr(test_backends_datatree, "open_groups", lambda p,**o: xr.open_groups(p,**{**o,"engine":"nczarr"}))

@pytest.mark.usefixtures("netcdf4_writes_nczarr")
class TestNetCDFCWritesWeRead(NetCDF4Base):
    engine = "nczarr"
    test_load_async = test_backends.CFEncodedBase.test_load_async

@pytest.mark.usefixtures("netcdf4_writes_nczarr")
class TestDT(NetCDFIOBase):
    engine = "netcdf4"

@pytest.mark.usefixtures("dt")
class TestZDT(ZDT):
    engine = "netcdf4"

class TestZarr(ZarrBase):
    @contextmanager
    def create_zarr_target(self):
        with test_backends.create_tmp_file(suffix=".zarr") as tmp:
            yield tmp
    @contextmanager
    def open(self, path, **kwargs):
        with xr.open_dataset(path, engine="nczarr",  **kwargs, **self.version_kwargs) as ds:
            yield ds
