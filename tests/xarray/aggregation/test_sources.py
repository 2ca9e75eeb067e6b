from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
import xarray as xr

from nczarr_fsspec.errors import (
    AccessDeniedError,
    DatasetNotFoundError,
    FormatError,
    StoreError,
    URLError,
)
from nczarr_xarray import aggregate, open_many
from nczarr_xarray.aggregation.sources import datasets_of
from tests.support.builders.manyfiles import field, step
from tests.support.servers.httpserver import Server
from tests.support.servers.s3server import S3Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two files, one below, two trees, a hidden file and a text."""
    (tmp_path / "in" / "below").mkdir(parents=True)
    step(tmp_path / "in" / "b.nc", [0])
    step(tmp_path / "in" / "a.nc", [1])
    step(tmp_path / "in" / "below" / "c.nc", [2])
    step(tmp_path / "in" / ".hidden.nc", [3])
    data = xr.Dataset({"t": ("time", [1.0])})
    data.to_zarr(tmp_path / "in" / "d.zarr", zarr_format=2, consolidated=False)
    data.to_zarr(tmp_path / "in" / "below" / "e.zarr", zarr_format=3, consolidated=False)
    (tmp_path / "files.txt").write_text("# two of them\nin/b.nc\n\n  in/below/*.nc\n")
    return tmp_path


#: What a source names below the folder.
CASES = {
    "in": ["in/a.nc", "in/b.nc", "in/below/c.nc", "in/below/e.zarr", "in/d.zarr"],
    "in/*.nc": ["in/a.nc", "in/b.nc"],
    "in/.*.nc": ["in/.hidden.nc"],
    "in/**/*.nc": ["in/a.nc", "in/b.nc", "in/below/c.nc"],
    "in/[ab].nc": ["in/a.nc", "in/b.nc"],
    "in/below/?.nc": ["in/below/c.nc"],
    "in/d.zarr": ["in/d.zarr"],
    "in/b.nc": ["in/b.nc"],
    "files.txt": ["in/b.nc", "in/below/c.nc"],
}


@pytest.mark.parametrize("source", CASES)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_of_this_machine(folder: Path, source: str, scheme: str) -> None:
    slash = "/" if scheme and source == "in" else ""
    found = datasets_of(f"{scheme}{folder}/{source}{slash}", None)
    assert found == [f"{scheme}{folder}/{name}" for name in CASES[source]]


def test_several_in_their_order(folder: Path) -> None:
    found = datasets_of([folder / "in" / "b.nc", f"{folder}/in/*.nc"], None)
    assert found == [f"{folder}/in/{name}" for name in ("b.nc", "a.nc", "b.nc")]


def test_a_name_that_exists_is_no_pattern(tmp_path: Path) -> None:
    step(tmp_path / "[0].nc", [0])
    step(tmp_path / "0.nc", [1])
    assert datasets_of(tmp_path / "[0].nc", None) == [f"{tmp_path}/[0].nc"]


def test_what_names_nothing(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DatasetNotFoundError, match=r"in/\*\.grib: matches nothing"):
        datasets_of(f"{folder}/in/*.grib", None)
    with pytest.raises(DatasetNotFoundError, match="empty: is a folder without a dataset"):
        datasets_of(folder / "empty", None)
    with pytest.raises(StoreError, match=r"none\.txt"):
        datasets_of(folder / "none.txt", None)
    with pytest.raises(URLError, match="there is no file"):
        datasets_of([], None)
    with pytest.raises(URLError, match="int object"):
        datasets_of([3], None)  # type: ignore[list-item]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def listing(folder: Path) -> Iterator[str]:
    """Serve the folder with pages that list what is in it."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("source", [one for one in CASES if "?" not in one])
def test_of_a_server_that_lists(listing: str, source: str) -> None:
    slash = "/" if source == "in" else ""
    found = datasets_of(f"{listing}/{source}{slash}", None)
    assert found == [f"{listing}/{name}" for name in CASES[source]]


def test_the_mode_of_a_pattern_is_that_of_its_files(listing: str) -> None:
    found = datasets_of(f"{listing}/in/*.nc#mode=bytes", None)
    assert found == [f"{listing}/in/{name}.nc#mode=bytes" for name in "ab"]


@pytest.mark.servers
@pytest.mark.parametrize("source", [one for one in CASES if not set("?[") & set(one)])
def test_of_a_bucket(folder: Path, s3_server: S3Server, source: str) -> None:
    options = s3_server.signed()
    prefix = f"{s3_server.private}/sources-{len(source)}"
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    fs.put(f"{folder}/", f"{prefix}/", recursive=True)
    slash = "/" if source == "in" else ""
    found = datasets_of(f"s3://{prefix}/{source}{slash}", options)
    assert found == [f"s3://{prefix}/{name}" for name in CASES[source]]


def test_a_list_that_names_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("b.txt\n")
    (tmp_path / "b.txt").write_text("a.txt\n")
    with pytest.raises(FormatError, match=r"a\.txt: is a list that names itself"):
        datasets_of(tmp_path / "a.txt", None)


@pytest.mark.parametrize(
    "line", ["file:///etc/a.nc", "http://169.254.169.254/a.nc", "s3://other/a.nc", "//h/a.nc"]
)
def test_a_remote_list_leads_nowhere_else(line: str) -> None:
    with (
        Server({"/p/l.txt": line.encode()}) as server,
        pytest.raises(AccessDeniedError, match="elsewhere"),
    ):
        datasets_of(f"{server.url}/p/l.txt", None)


def test_paths_in_a_remote_list_are_those_of_its_server() -> None:
    with Server({"/p/l.txt": b"/etc/a.nc\n../b.nc\nc.nc"}) as server:
        found = datasets_of(f"{server.url}/p/l.txt", None)
        assert found == [f"{server.url}/{name}" for name in ("etc/a.nc", "b.nc", "p/c.nc")]


CATALOGUE = """<?xml version="1.0"?>
<catalog xmlns="http://www.unidata.ucar.edu/namespaces/thredds/InvCatalog/v1.0"
         xmlns:xlink="http://www.w3.org/1999/xlink">
  <service name="all" serviceType="Compound" base="">
    <service name="odap" serviceType="OPENDAP" base="/thredds/dodsC/"/>
    <service name="http" serviceType="HTTPServer" base="/thredds/fileServer/"/>
  </service>
  <dataset name="d" ID="d">
    <dataset name="a.nc" urlPath="data/a.nc"/>
    <dataset name="b.nc" urlPath="data/b.nc"/>
    {more}
  </dataset>
</catalog>"""


def served(more: str) -> Server:
    below = CATALOGUE.format(more="").replace("data/", "below/")
    files = {
        "/thredds/catalog/data/catalog.xml": CATALOGUE.format(more=more).encode(),
        "/thredds/catalog/data/below/catalog.xml": below.encode(),
        "/page/catalog.xml": b"<html><p>no</html>",
    }
    return Server(files)


def test_a_catalogue_of_thredds() -> None:
    more = '<catalogRef xlink:href="below/catalog.xml" xlink:title="below"/>'
    with served(more) as server:
        found = datasets_of(f"{server.url}/thredds/catalog/data/catalog.xml#mode=bytes", None)
        names = ["data/a.nc", "data/b.nc", "below/a.nc", "below/b.nc"]
        assert found == [f"{server.url}/thredds/fileServer/{n}#mode=bytes" for n in names]


def test_catalogues_that_refer_to_themselves_end() -> None:
    with served('<catalogRef xlink:href="catalog.xml" xlink:title="me"/>') as server:
        found = datasets_of(f"{server.url}/thredds/catalog/data/catalog.xml", None)
        assert len(set(found)) == 2
        assert len(server.requests) < 40


def test_a_catalogue_leads_to_no_other_host() -> None:
    more = '<catalogRef xlink:href="http://169.254.169.254/catalog.xml" xlink:title="x"/>'
    with served(more) as server, pytest.raises(AccessDeniedError, match="elsewhere"):
        datasets_of(f"{server.url}/thredds/catalog/data/catalog.xml", None)


def test_a_page_is_no_catalogue() -> None:
    with served("") as server, pytest.raises(FormatError, match="is no catalogue of THREDDS"):
        datasets_of(f"{server.url}/page/catalog.xml", None)


def test_a_repository_of_icechunk_has_no_address(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    place = icechunk.local_filesystem_storage(str(tmp_path / "in" / "repository"))
    session = icechunk.Repository.create(place).writable_session("main")
    step(tmp_path / "in" / "a.nc", [0])
    with pytest.raises(URLError, match=r"IcechunkStore object: has no address.*xr\.concat"):
        datasets_of([session.store], None)
    xr.Dataset({"v": ("x", [1.0])}).to_zarr(session.store, consolidated=False)
    session.commit("one")
    for source in (tmp_path / "in", tmp_path / "in" / "repository"):
        with pytest.raises(FormatError, match=r"repository: is a repository of Icechunk.*concat"):
            datasets_of(source, None)


@pytest.mark.parametrize("suffix", ["json", "parq"])
def test_references_are_sources(tmp_path: Path, suffix: str) -> None:
    """Also of files that are elsewhere; and aggregations, in a folder with others."""
    if suffix == "parq":
        pytest.importorskip("pyarrow")
    times = ([0, 1], [2, 3], [4])
    files = [step(tmp_path / f"{n}.nc", own) for n, own in enumerate(times)]
    (tmp_path / "in").mkdir()
    for n, file in enumerate(files[:2]):
        aggregate([file], tmp_path / "in" / f"{n}.{suffix}", dim="time")
    aggregate(files[2:], tmp_path / "in" / "m.nca", dim="time")
    many = open_many(tmp_path / "in", decode_times=False)
    assert np.array_equal(many.tas.values, field([*range(5)]))
    many.nczarr.save(tmp_path / "all.nca")
    with xr.open_dataset(tmp_path / "all.nca", engine="nczarr", decode_times=False) as saved:
        assert np.array_equal(saved.tas.values, field([*range(5)]))
