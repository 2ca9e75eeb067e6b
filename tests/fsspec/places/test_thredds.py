from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import xarray as xr

from nczarr_fsspec.errors import NCZarrError
from nczarr_fsspec.places.names import hint
from tests.support.servers.httpserver import Request, Server

FILE = "/thredds/fileServer/d/x.nc"
CATALOG = b'<?xml version="1.0"?><catalog name="all"></catalog>'
DAP_ERROR = b'Error {\n    code = 400;\n    message = "Unrecognized request";\n};\n'


class Thredds(Server):
    """Serves a file as THREDDS does; what it says of OPeNDAP's name has status `dods`."""

    dods = 400

    def _content(
        self, request: Request, content: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        if request.path == FILE:
            return super()._content(request, content, headers)
        return (200 if "catalog" in request.path else self.dods), content


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Thredds]:
    dataset().to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    files = {FILE: (tmp_path / "x.nc").read_bytes()}
    for name in ("/thredds/dodsC/d/x.nc", "/thredds/dodsC/d/x"):
        files[name] = DAP_ERROR
    for name in ("/thredds/catalog/d/catalog.xml", "/thredds/catalog/d/catalog.html"):
        files[name] = CATALOG
    with Thredds(files, etag='"1"', missing_status=404) as running:
        yield running


def dataset() -> xr.Dataset:
    return xr.Dataset({"v": ("x", [1.0, 2.0])})


@pytest.mark.parametrize(
    "dods", [400, *(pytest.param(n, marks=pytest.mark.slow) for n in (200, 404, 403))]
)
@pytest.mark.parametrize("ending", ["", "#mode=bytes", ".html", "?v[0:1]"])
def test_where_the_file_is(server: Thredds, dods: int, ending: str) -> None:
    server.dods = dods
    with pytest.raises(NCZarrError, match="OPeNDAP") as caught:
        xr.open_dataset(f"{server.url}/thredds/dodsC/d/x.nc{ending}", engine="nczarr")
    found = re.findall(r"is read from (\S+),", str(caught.value))
    assert len(found) == 1
    assert found[0] == f"{server.url}{FILE}{ending if ending.startswith('#') else ''}"
    with xr.open_dataset(found[0], engine="nczarr") as there:
        xr.testing.assert_identical(there.load(), dataset())


@pytest.mark.parametrize("name", ["catalog.xml", "catalog.html", "catalog.html?dataset=d/x.nc"])
def test_catalogues(server: Thredds, name: str) -> None:
    with pytest.raises(NCZarrError, match=r"catalogue of a THREDDS.*fileServer") as caught:
        xr.open_dataset(f"{server.url}/thredds/catalog/d/{name}", engine="nczarr")
    assert str(caught.value).count("THREDDS") == 1


def test_what_can_be_read_there_is(server: Thredds) -> None:
    """A server may use the word for files."""
    server.files["/thredds/dodsC/d/x.nc"] = server.files[FILE]
    server.dods = 200
    with xr.open_dataset(f"{server.url}/thredds/dodsC/d/x.nc", engine="nczarr") as found:
        xr.testing.assert_identical(found.load(), dataset())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("https://h.org/thredds/dodsC/a/b.nc", "https://h.org/thredds/fileServer/a/b.nc,"),
        ("https://h.org:8443/dodsC/a/b.nc.dds", "https://h.org:8443/fileServer/a/b.nc,"),
        ("https://h.org/thredds/dap4/a/b.nc.dmr.xml", "https://h.org/thredds/fileServer/a/b.nc,"),
        (
            "https://u:hunter22@h.org/thredds/dodsC/a.nc",
            "https://***@h.org/thredds/fileServer/a.nc,",
        ),
        ("https://h.org/thredds/dodsC/a.nc?t[0]", "https://h.org/thredds/fileServer/a.nc,"),
        ("simplecache::https://h.org/dodsC/a.nc", "simplecache::https://h.org/fileServer/a.nc,"),
        ("https://h.org/thredds/catalog/a/catalog.html?dataset=b", "HTTPServer"),
        ("https://h.org/opendap/a.nc", "engine='netcdf4'"),
        ("https://h.org/a/x.nc", ""),
        ("https://h.org/x.nc?from=/dodsC/a", ""),
        ("https://h.org/mycatalogs/x.nc", ""),
        ("s3://b/dodsC/x.nc", ""),
        ("/d/dodsC/x.nc", ""),
    ],
)
def test_hints(target: str, said: str) -> None:
    found = hint(target)
    assert said in found
    assert bool(found) == bool(said)
    assert "hunter22" not in found


def test_other_objects_have_none() -> None:
    assert hint(Path("/dodsC/x.nc")) == hint({}) == hint(None) == ""
