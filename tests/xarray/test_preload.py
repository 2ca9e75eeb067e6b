"""What is imported beside other imports, and when."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import pathlib, sys, threading
from nczarr_xarray.import_hooks import preload
if sys.argv[2] == "missing":
    sys.modules["aiohttp"] = None
preload(eval(sys.argv[1]))
for thread in threading.enumerate()[1:]:
    thread.join()
preload(eval(sys.argv[1]))
print(sys.modules.get("aiohttp") is not None, threading.active_count())
"""


@pytest.mark.parametrize(
    ("target", "aiohttp", "yes"),
    [
        ("'bytes::https://h/x.nc'", "there", True),
        ("'s3://bucket/x'", "missing", False),
        ("'/data/http/x.nc'", "there", False),
        ("'file:///data/x#mode=nczarr'", "there", False),
        ("pathlib.Path('x')", "there", False),
    ],
)
def test_aiohttp_is_imported_for_what_is_behind_http(target: str, aiohttp: str, yes: bool) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, target, aiohttp]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{yes} 1\n"
    assert done.stderr == ""
