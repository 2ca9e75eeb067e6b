#!/usr/bin/env python3
"""Trace the reading of a remote file, and draw the requests as docs/img/trace.svg.

    .venv/bin/python ci/trace_picture.py

The file has 3,000 chunks; its server takes 50 ms for an answer, sends 20 MB a second in all, and
refuses every sixth request. The times are real ones and differ a little from run to run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import xarray as xr  # noqa: E402

import nczarr_xarray  # noqa: E402
from tests.support.builders.remotefiles import write_chunks  # noqa: E402
from tests.support.servers.realservers import range_server  # noqa: E402

PICTURE = ROOT / "docs" / "img" / "trace.svg"


def main() -> None:
    """Serve the file, read ten steps all over it and then a fifth of it, and draw that."""
    with tempfile.TemporaryDirectory() as folder, range_server(Path(folder)) as server:
        write_chunks(Path(folder) / "runoff.nc")
        server.set(latency_ms=50, bw_total=20e6, e503=6, max_ranges=1)
        with nczarr_xarray.trace() as found:
            dataset = xr.open_dataset(f"{server.url}/runoff.nc", engine="nczarr")
            dataset["v"][::150, 7].load()
            dataset["v"][:300].load()
    PICTURE.write_text(found._repr_html_(), encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
