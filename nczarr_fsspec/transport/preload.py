"""Import what a remote target needs beside other imports."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

#: The protocols that aiohttp speaks, for us, for fsspec or for s3fs.
_REMOTE = ("http://", "https://", "s3://")


def preload(target: object) -> None:
    """Begin to import aiohttp in a thread, if a target is behind HTTP or in S3.

    Call it before what opens the target is imported. Half of the import is that OpenSSL reads the
    certificates of this machine, twice, which goes on while other modules are imported. Of the
    packages that are imported meanwhile, aiohttp needs none that needs aiohttp, so that no two
    threads wait for each other.
    """
    if "aiohttp" in sys.modules or not isinstance(target, str):
        return
    if any(protocol in target for protocol in _REMOTE):
        threading.Thread(target=_import_aiohttp, name="nczarr-preload", daemon=True).start()


def _import_aiohttp() -> None:
    with suppress(ImportError):  # what needs it says so
        import aiohttp  # noqa: F401
