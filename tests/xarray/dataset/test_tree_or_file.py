"""Whether a URL is that of a tree or of a file is found out once, for all that open one."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import nczarr_xarray
from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    StoreError,
)
from nczarr_xarray.formats.nczarr.emit import documents
from nczarr_xarray.formats.nczarr.spellings import Profile
from nczarr_xarray.model import Attribute, Group
from nczarr_xarray.views.references import references
from tests.support.servers.httpserver import Server

VALUES = np.arange(6.0)
PAGE = b"<!DOCTYPE html><title>Index</title>"


def _file() -> bytes:
    written = io.BytesIO()
    xr.Dataset({"v": ("x", VALUES)}).to_netcdf(written, engine="h5netcdf")
    return written.getvalue()


@pytest.fixture(scope="module")
def file() -> bytes:
    return _file()


@pytest.fixture(scope="module")
def tree() -> dict[str, bytes]:
    objects: dict[str, bytes] = {}
    xr.Dataset({"v": ("x", VALUES)}).nczarr.to_nczarr(objects)
    return objects


@pytest.fixture
def server(file: bytes, tree: dict[str, bytes]) -> Iterator[Server]:
    files = {"/x.nc": file, "/data": file}
    for root in ("tree", "tree.nc", "shown.nc"):
        files |= {f"/{root}/{key}": data for key, data in tree.items()}
    files["/shown.nc"] = PAGE  # what some servers make of a directory
    files["/page.nc"] = PAGE
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for key, data in tree.items():
            archive.writestr(key, data)
    files["/packed.nc"] = packed.getvalue()
    with Server(files) as server:
        yield server


def _dataset(url: str) -> None:
    with xr.open_dataset(url, engine="nczarr") as ds:
        np.testing.assert_array_equal(ds["v"], VALUES)


def _store(url: str) -> None:
    store = nczarr_xarray.open_store(url)
    np.testing.assert_array_equal(zarr.open_array(store, path="v", mode="r")[...], VALUES)
    store.close()


WAYS = [_dataset, _store]


def asked(server: Server, path: str) -> list[str]:
    """Requests for the one file at a path, by what they ask of it."""
    return [request.range or "all" for request in server.requests if request.path == path]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_called_like_one(server: Server, way: Callable[[str], None]) -> None:
    """One request brings a small file, and whether it is one."""
    way(f"{server.url}/x.nc")
    assert [request.path for request in server.requests] == ["/x.nc"]


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_not_called_like_one(server: Server, way: Callable[[str], None]) -> None:
    way(f"{server.url}/data")
    assert len(asked(server, "/data")) == 1
    others = [request.path for request in server.requests if request.path != "/data"]
    assert all(path.startswith("/data/") for path in others)
    assert len(others) == len(set(others))


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_that_is_not_called_like_a_file(server: Server, way: Callable[[str], None]) -> None:
    way(f"{server.url}/tree")
    assert asked(server, "/tree") == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["tree.nc", "shown.nc"])
def test_a_tree_that_is_called_like_a_file(
    server: Server, way: Callable[[str], None], name: str
) -> None:
    way(f"{server.url}/{name}")
    assert len(asked(server, f"/{name}")) == 1


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_that_is_called_like_a_file(server: Server, way: Callable[[str], None]) -> None:
    """It is not opened again: nothing is asked for twice."""
    way(f"{server.url}/packed.nc")
    ranges = asked(server, "/packed.nc")
    assert ranges[0] == "bytes=0-65535"
    assert len(ranges) == len(set(ranges)), ranges
    assert {request.path for request in server.requests} == {"/packed.nc"}


@pytest.mark.parametrize("opening", [_dataset, nczarr_xarray.open_store, references])
def test_nothing(server: Server, opening: Callable[[str], Any]) -> None:
    """What is named as a file is not told to be no tree."""
    for name, end in (("nothing", r"\); as a tree: .*"), ("nothing.nc", r"\)")):
        with pytest.raises(DatasetNotFoundError, match=rf"there is no such file [^)]*{end}$"):
            opening(f"{server.url}/{name}")
        assert len(asked(server, f"/{name}")) == 1


@pytest.mark.parametrize("name", ["data", "x.nc"])
def test_a_refusal_is_told_once(server: Server, name: str) -> None:
    server.password = "me:secret"
    with pytest.raises(AccessDeniedError, match="401") as caught:
        _dataset(f"{server.url}/{name}")
    assert caught.value.object == f"{server.url}/{name}"
    assert str(caught.value).count("HTTP status 401") == 1


@pytest.mark.parametrize("opening", [_dataset, nczarr_xarray.open_store])
def test_a_page_is_neither(server: Server, opening: Callable[[str], Any]) -> None:
    with pytest.raises((DatasetNotFoundError, StoreError, ValueError), match=r"page\.nc"):
        opening(f"{server.url}/page.nc")
    assert len(asked(server, "/page.nc")) == 1


@pytest.mark.parametrize("name", ["x.nc", "x"])
def test_a_server_whose_every_answer_is_a_page(name: str) -> None:
    """As one that wants a login: the error names the URL, and no object of a tree."""
    pages = dict.fromkeys((f"/{name}", f"/{name}/.zgroup", f"/{name}/.zattrs"), PAGE)
    with (
        Server(pages) as server,
        pytest.raises(FormatError, match="a web page does: the server may want a login") as caught,
    ):
        _dataset(f"{server.url}/{name}")
    assert str(caught.value).startswith(f"{server.url}/{name}: ")


def test_a_tree_of_pages() -> None:
    with (
        Server({"/x/.zgroup": PAGE, "/x/.zattrs": PAGE}) as server,
        pytest.raises(FormatError, match=r"\.zgroup: is a web page, not JSON"),
    ):
        _dataset(f"{server.url}/x")


def test_what_is_left_is_closed(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The tree that there is not is closed, whichever way a file is opened."""
    from nczarr_fsspec import FsspecStore

    closed: list[str] = []
    close = FsspecStore.close

    def note(self: FsspecStore) -> None:
        closed.append(self.url)
        close(self)

    monkeypatch.setattr(FsspecStore, "close", note)
    for number, way in enumerate(WAYS, 1):
        way(f"{server.url}/data")
        assert len(closed) == number


def test_the_state_of_a_file_that_is_not_called_like_one(file: bytes) -> None:
    with Server({"/data": file}, etag='"1"') as server:
        before = nczarr_xarray.state(f"{server.url}/data")
        assert nczarr_xarray.state(f"{server.url}/data") == before
        server.etag = '"2"'
        assert nczarr_xarray.state(f"{server.url}/data") != before


def test_groups_without_metadata_of_a_root() -> None:
    """A tree is one too if its root has no objects."""
    root = Group(attributes={"title": Attribute("title", "char", "below")})
    objects = {f"g/{key}": data for key, data in documents(root, Profile("v2"), "").items()}
    found = sync(nczarr_xarray.open_store(objects).get("g/.zattrs", default_buffer_prototype()))
    assert found is not None
    assert json.loads(found.to_bytes()) == {"title": "below"}
