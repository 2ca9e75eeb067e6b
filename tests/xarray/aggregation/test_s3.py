from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import s3fs
import xarray as xr

from nczarr_xarray.aggregation.api import aggregate, convert_references
from tests.support.builders.manyfiles import field, step
from tests.support.servers.s3server import S3Server


@pytest.mark.parametrize("version", ["0.4", "1.13"])
def test_files_and_master_in_a_private_bucket(
    tmp_path: Path, s3_server: S3Server, version: str
) -> None:
    options = s3_server.signed()
    folder = f"{s3_server.private}/agg-{version}"
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for n in range(4):
        fs.put_file(step(tmp_path / f"{n}.nc", [n]), f"{folder}/{n}.nc")
    files = [f"s3://{folder}/{n}.nc" for n in range(4)]
    master = f"s3://{folder}/m.nca"
    aggregate(files[2::-1], master, storage_options=options, cfa_version=version)
    aggregate(files[3:], master, append=True, storage_options=options)
    convert_references(master, f"s3://{folder}/all.json", options)
    for found in (master, f"s3://{folder}/all.json"):
        with xr.open_dataset(
            found, engine="nczarr", decode_times=False, storage_options=options
        ) as ds:
            assert np.array_equal(ds.tas.values, field([0, 1, 2, 3]))
    names = sorted(path.rpartition("/")[2] for path in fs.find(folder))
    assert names == ["0.nc", "1.nc", "2.nc", "3.nc", "all.json", "m.nca"]
