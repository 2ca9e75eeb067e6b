"""xarray's own tests of datasets, with those that it makes read from a server and not loaded yet.

See `test_xarray_suite`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from xarray.tests import create_test_data

from tests.support.servers.httpserver import Server
from tests.xarray.backend.test_xarray_suite import (  # noqa: F401  # fixtures
    expected_failures,
    no_leftovers,
    use_dask,
)

try:
    from xarray.tests import test_concat, test_dataset, test_merge
    from xarray.tests.conftest import (  # noqa: F401  # fixtures
        compute_backend,
        ds,
        handle_numpy_1_warnings,
    )
except ImportError as error:
    pytest.skip(f"xarray {xr.__version__} has other tests: {error}", allow_module_level=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("remote", "expected_failures"),
]

ORDER = "looks at the order of dimensions, which is that of the file"

EXPECTED = {
    "TestDataset::test_info": ORDER,
    "TestDataset::test_isel": ORDER,
    "TestDataset::test_chunk": ORDER,
    "TestDataset::test_reduce": ORDER,
    "TestDataset::test_copy": "looks whether arrays in memory are the same",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server({}) as server:
        yield server


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> None:
    """Let the datasets that xarray makes for its tests be remote ones."""
    numbers = itertools.count()

    def made(*arguments: Any, **options: Any) -> xr.Dataset:
        local: xr.Dataset = create_test_data(*arguments, **options)
        if options.get("use_extension_array"):
            return local  # netCDF has no such types
        path = tmp_path / f"{next(numbers)}.nc"
        local.to_netcdf(path, engine="netcdf4")
        server.files[f"/{path.name}"] = path.read_bytes()
        opened = xr.open_dataset(f"{server.url}/{path.name}", engine="nczarr")
        opened = opened.drop_encoding()
        opened.encoding = local.encoding
        return opened

    for module in (test_concat, test_dataset, test_merge):
        monkeypatch.setattr(module, "create_test_data", made)


class TestDataset(test_dataset.TestDataset):
    test_copy_coords = None  # must fail, says xarray, and passes in a class derived from its own


class TestConcatDataset(test_concat.TestConcatDataset):
    pass


class TestMergeFunction(test_merge.TestMergeFunction):
    pass


class TestMergeMethod(test_merge.TestMergeMethod):
    pass
