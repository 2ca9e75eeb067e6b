"""Where an optional package is not installed, the error says which, and how to install it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PACKAGES = "aiohttp yarl s3fs gcsfs adlfs paramiko "
PACKAGES += "dask dask.base dask.array dask.delayed distributed"
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
packages, programs = json.loads(sys.stdin.read())
sys.modules.update(dict.fromkeys(packages))
import numpy as np
import xarray as xr
from nczarr_fsspec import ByteRangeFileSystem
from nczarr_xarray import to_nczarr

def read(url):
    xr.open_dataset(url, engine="nczarr")

def write(target, **options):
    to_nczarr(xr.Dataset({"v": ("x", np.arange(3))}), target, **options)

said = []
for program in programs:
    try:
        exec(program)
    except ImportError as error:
        said.append(str(error))
print(json.dumps(said))
"""

#: What is done without, and what the message ends in.
CASES = {
    'read("https://h/x#mode=nczarr")': "pip install 'nczarr-xarray[remote]'",
    'read("https://h/x.nc#mode=bytes")': "pip install 'nczarr-xarray[remote]'",
    'read("bytes::https://h/x.nc")': "pip install 'nczarr-xarray[remote]'",
    'read("simplecache::https://h/x")': "pip install 'nczarr-xarray[remote]'",
    'ByteRangeFileSystem(target_protocol="https")': "pip install 'nczarr-xarray[remote]'",
    'read("s3://b/x.zarr")': "pip install 'nczarr-xarray[s3]'",
    'read("gs3://b/x.zarr")': "pip install 'nczarr-xarray[s3]'",
    'write("s3://b/x")': "pip install 'nczarr-xarray[s3]'",
    'read("gs://b/x.zarr")': "pip install 'nczarr-xarray[gcs]'",
    'write("gs://b/x")': "pip install 'nczarr-xarray[gcs]'",
    'read("abfs://b/x.zarr")': "pip install 'nczarr-xarray[azure]'",
    'read("az://b/x.nc#mode=bytes")': "pip install 'nczarr-xarray[azure]'",
    'read("sftp://h/x.zarr")': "pip install paramiko",
    "write({}, compute=False)": "compute=False needs dask: pip install 'nczarr-xarray[dask]'",
}


@pytest.mark.slow
def test_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        input=json.dumps([PACKAGES.split(), list(CASES)]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == len(CASES)
    for message, end in zip(said, CASES.values(), strict=True):
        assert message.endswith(end)
        assert message.count("pip install") <= 1
