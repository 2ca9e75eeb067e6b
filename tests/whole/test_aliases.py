"""Aliases of S3netCDF4, on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xarray as xr

from nczarr_fsspec.address_policy import AddressPolicy
from nczarr_fsspec.errors import AccessDeniedError
from nczarr_fsspec.place import Place
from nczarr_fsspec.ranges.source import ByteSource
from nczarr_xarray.views.references import references
from tests.support.servers.s3server import S3Server

DATA = Path(__file__).parents[1] / "data" / "cfa-vectors"

pytestmark = pytest.mark.servers


@pytest.fixture
def home(s3_server: S3Server, no_aws: None, tmp_path: Path) -> Path:
    """A home whose configuration names the server "weed", with keys, and "open", without."""
    url = s3_server.endpoint.removeprefix("http://")
    keys = {"accessKey": s3_server.access_key, "secretKey": s3_server.secret_key}
    weed = {"alias": "s3://weed", "url": url, **keys, "api": "S3v4"}
    hosts = {"weed": weed, "open": {"alias": "open", "url": s3_server.endpoint}}
    (tmp_path / ".s3nc4.json").write_text(json.dumps({"version": "8", "hosts": hosts}))
    fs = fsspec.filesystem("s3", **s3_server.signed())
    for bucket in (s3_server.public, s3_server.private):
        fs.pipe_file(f"{bucket}/run/x_tas_[0].nc", b"CDF\x01" + b"\0" * 28)
    return tmp_path


def test_an_object_behind_an_alias(home: Path, s3_server: S3Server) -> None:
    for place in (f"weed/{s3_server.private}", f"open/{s3_server.public}"):
        source = Place.of(f"s3://{place}/run/x_tas_[0].nc").open().data
        assert isinstance(source, ByteSource)
        assert source.head[:4] == b"CDF\x01"
        assert s3_server.secret_key not in repr(source)
        source.close()
    with pytest.raises(AccessDeniedError) as caught:
        Place.of(f"s3://open/{s3_server.private}/run/x_tas_[0].nc#mode=bytes").open()
    assert s3_server.secret_key not in str(caught.value)


def test_a_dataset_is_written_and_read_behind_an_alias(home: Path, s3_server: S3Server) -> None:
    ds = xr.Dataset({"a": ("x", np.arange(10.0))})
    target = f"s3://weed/{s3_server.private}/aliased.nczarr"
    ds.nczarr.to_nczarr(target)
    with xr.open_dataset(target, engine="nczarr") as found:
        xr.testing.assert_identical(found.load(), ds)
    fs = fsspec.filesystem("s3", **s3_server.signed())
    assert fs.exists(f"{s3_server.private}/aliased.nczarr/.zgroup")


def test_a_configuration_for_one_call(
    home: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    config = json.loads((home / ".s3nc4.json").read_text())
    for given in (config, home / ".s3nc4.json"):
        target = f"s3://weed/{s3_server.private}/run/x_tas_[0].nc"
        source = Place.of(target, {"s3nc": given}).open().data
        assert isinstance(source, ByteSource)
        source.close()


def test_an_aggregation_that_s3netcdf4_wrote(
    home: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fragments are named ``s3://minio/test/run/x/x_tas_[0].nc``."""
    config = json.loads((home / ".s3nc4.json").read_text())
    config["hosts"]["weed"]["alias"] = "minio"
    config |= {"cache_location": str(home / "cache"), "max_cache_size": "20kB"}
    (home / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("S3_NC_CONFIG", str(home / "config.json"))
    fs = fsspec.filesystem("s3", **s3_server.signed())
    fs.makedirs("test", exist_ok=True)
    for number in range(8):
        local = DATA / "seed01_cfa3" / "m" / f"m_tas_[{number}].nc"
        fs.pipe_file(f"test/run/x/x_tas_[{number}].nc", local.read_bytes())
    master = DATA / "seed01_s3_alias" / "x.nca"
    fs.pipe_file("test/run/x.nca", master.read_bytes())
    document = json.loads((DATA / "seed01_cfa3" / "expected.json").read_text())
    expected = np.array(document["data"], "f4").reshape(document["shape"])
    for target in (str(master), "s3://minio/test/run/x.nca#mode=bytes"):
        for options in ({}, {"persist": True}, {"diskless": True}):
            with xr.open_dataset(target, engine="nczarr", storage_options=options) as ds:
                np.testing.assert_array_equal(ds["tas"].fillna(-9), expected)
    kept = list((home / "cache" / "nczarr").glob("*.file"))
    assert kept
    assert sum(path.stat().st_size for path in kept) <= 20_000
    elsewhere = "https://data.example/x.nca"
    with pytest.raises(AccessDeniedError, match=r"allow=\['s3://minio/test/'\]"):
        AddressPolicy.of(elsewhere).resolve("s3://minio/test/run/x/x_tas_[0].nc")


def test_references_name_the_bucket_and_not_the_alias(home: Path, s3_server: S3Server) -> None:
    ds = xr.Dataset({"a": ("x", np.arange(1000.0))})
    ds.to_netcdf(home / "a.nc", engine="scipy")
    fs = fsspec.filesystem("s3", **s3_server.signed())
    fs.put_file(str(home / "a.nc"), f"{s3_server.private}/run/a.nc")
    found = references(f"s3://weed/{s3_server.private}/run/a.nc")["refs"]
    assert found["a/0"][0] == f"s3://{s3_server.private}/run/a.nc"
