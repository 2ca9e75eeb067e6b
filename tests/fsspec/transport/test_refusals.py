"""What is said of servers that refuse: which login they want, what they hide, whom they are."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.errors import AccessDeniedError, StoreError
from nczarr_xarray import to_nczarr
from tests.support.servers.certificates import make_certificates
from tests.support.servers.httpserver import Server


def dataset() -> xr.Dataset:
    return xr.Dataset({"v": ("x", np.arange(5.0))})


def tree(folder: Path) -> dict[str, bytes]:
    to_nczarr(dataset(), folder / "t")
    paths = (path for path in (folder / "t").rglob("*") if path.is_file())
    return {f"/t/{path.relative_to(folder / 't')}": path.read_bytes() for path in paths}


def test_digest(tmp_path: Path) -> None:
    """The message says what to write, and that opens it."""
    dataset().to_netcdf(tmp_path / "x.nc")
    content = (tmp_path / "x.nc").read_bytes()
    with Server({"/x.nc": content}, password="me:hunter22", scheme="Digest") as server:
        url = f"{server.url}/x.nc"
        with pytest.raises(AccessDeniedError, match="wants HTTP Digest") as caught:
            xr.open_dataset(url, engine="nczarr")
        _, _, said = str(caught.value).partition("storage_options=")
        names = {"aiohttp": aiohttp, "user": "me", "password": "hunter22"}
        options = eval(said.partition(";")[0], names)
        with xr.open_dataset(url, engine="nczarr", storage_options=options) as found:
            xr.testing.assert_equal(found.load(), dataset())


@pytest.mark.parametrize("end", ["", "#mode=nczarr"])
def test_names_with_a_dot(end: str, tmp_path: Path) -> None:
    with Server(tree(tmp_path), hidden=True) as server:
        with pytest.raises(AccessDeniedError, match="hide all names that begin with a dot"):
            xr.open_dataset(f"{server.url}/t{end}", engine="nczarr")


def test_a_certificate_of_its_own(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    with Server({"/x.nc": b""}, tls=files.tls()) as server:
        with pytest.raises(StoreError, match=r"signed by the server itself.*cafile="):
            xr.open_dataset(f"{server.url}/x.nc", engine="nczarr")
