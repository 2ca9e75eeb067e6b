"""xarray's own tests of its backends once more: files, and trees that are not in a directory.

What netCDF-C wrote as NCZarr into a directory is moved into an archive, into memory or to S3,
whenever a test opens it. See `test_xarray_suite`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.stores.zipwrite import pack
from tests.support.servers.s3server import S3Server
from tests.xarray.backend import test_xarray_suite as suite
from tests.xarray.backend.test_xarray_suite import (  # noqa: F401  # fixtures
    create_test_datatree,
    default_zarr_format,
    expected_failures,
    netcdf_writes_nczarr,
    no_leftovers,
    simple_datatree,
    time_unit,
    use_dask,
    we_read,
)

pytestmark = suite.pytestmark

NO_STORE = "there is no store of ours to write to"

EXPECTED = {
    **{
        name.replace("TestNCZarr::", "TestElsewhere::"): reason
        for name, reason in suite.EXPECTED.items()
    },
    "TestTreeElsewhere::test_roundtrip_via_memoryview": "netCDF-C has no NCZarr in memory",
    "TestNetCDF4File::test_write_store": NO_STORE,
    "TestClassicFile::test_write_store": NO_STORE,
    "TestClassicModelFile::test_write_store": NO_STORE,
}

#: S3 takes as long as all the rest: `ci/suites.py` asks for it.
PLACES = ["zip", "memory", *(["s3"] if os.environ.get("NCZARR_SUITES") else [])]

Mover = Callable[[str], tuple[Any, dict[str, Any]]]


@pytest.fixture(params=PLACES)
def mover(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mover]:
    """Yield what moves a directory elsewhere, and says how to open it there."""
    names = (f"{tmp_path.parent.name}-{tmp_path.name}-{number}" for number in itertools.count())
    if request.param == "zip":

        def zipped(path: str) -> tuple[Any, dict[str, Any]]:
            target = tmp_path / f"{next(names)}.zip"
            pack(path, str(target), None, base=None, removed=lambda key: False)
            return target, {}

        yield zipped
        return
    fs: Any = fsspec.filesystem("memory")
    options, root = {}, "memory://xarray-suite"
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        options, root = server.signed(), f"s3://{server.private}"
        fs = s3fs.S3FileSystem(**options)

    def moved(path: str) -> tuple[Any, dict[str, Any]]:
        target = f"{root}/{next(names)}"
        fs.put(path, target, recursive=True)
        return f"{target}#mode=nczarr", {"storage_options": options}

    yield moved


@pytest.fixture
def we_read_there(mover: Mover, monkeypatch: pytest.MonkeyPatch, we_read: None) -> None:  # noqa: F811
    for module in (suite.test_backends, suite.test_backends_datatree):
        for name in ("open_dataset", "open_datatree", "open_groups"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, opening(getattr(xr, name), mover))


def opening(function: Any, mover: Mover) -> Any:
    def call(target: Any, **options: Any) -> Any:
        place = target
        if isinstance(target, (str, os.PathLike)):
            path = os.fspath(target).partition("#")[0].removeprefix("file://")
            if os.path.isdir(path):
                place, how = mover(path)
                options.update(how)
        return function(place, **{**options, "engine": "nczarr"})

    return call


@pytest.mark.usefixtures("we_read_there")
class TestElsewhere(suite.TestNCZarr):
    pass


@pytest.mark.usefixtures("we_read_there")
class TestTreeElsewhere(suite.TestNCZarrTree):
    pass


class TestNetCDF4File(suite.NetCDF4Base):
    """Of netCDF-C's files, which are HDF5."""

    engine = "netcdf4"
    test_load_async = suite.CFEncodedBase.test_load_async


class TestNetCDF4Tree(suite.NetCDFIOBase):
    engine = "netcdf4"


class TestClassicFile(suite.test_backends.NetCDF3Only, suite.CFEncodedBase):
    engine = "netcdf4"
    file_format = "NETCDF3_64BIT"
    test_load_async = suite.CFEncodedBase.test_load_async


class TestClassicModelFile(suite.test_backends.NetCDF3Only, suite.CFEncodedBase):
    engine = "netcdf4"
    file_format = "NETCDF4_CLASSIC"
    test_load_async = suite.CFEncodedBase.test_load_async
