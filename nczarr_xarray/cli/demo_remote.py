"""What ``nczarr demo`` shows of a remote file: a series read twice, request by request."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nczarr_fsspec.text import format_size
from nczarr_xarray.tools.trace.page import PHASES

if TYPE_CHECKING:
    import xarray as xr

#: Seconds before every answer, and bytes a second of all answers together: 100 Mbit/s.
LATENCY, BANDWIDTH = 0.05, 12.5e6
#: Bytes that are sent at a time.
_PIECE = 1 << 16
_BETWEEN_PARTS = "NCZARR-DEMO"
#: In the Pacific, where each month has a value.
_PLACE = {"lat": 1, "lon": 219}


@dataclass(slots=True)
class Request:
    """A request as the server saw it: times by `time.perf_counter`, bytes of the body."""

    asked: float
    answered: float = 0.0
    sent: float = 0.0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """What one reader got, when it began, how long it took, and its requests."""

    reader: str
    values: Any
    begin: float
    seconds: float
    requests: list[Request]

    def __str__(self) -> str:
        nbytes = sum(request.nbytes for request in self.requests)
        return f"{self.seconds:.2f} s, {len(self.requests)} requests, {nbytes / 1e6:.2f} MB"


def netcdf4(climate: xr.Dataset, years: int) -> bytes:
    """Return a netCDF-4 file of monthly ``sst``: the mean year, each time with other weather."""
    import numpy as np
    import xarray as xr

    mean = climate["sst"]
    weather = np.random.default_rng(0).standard_normal((years, *mean.shape), np.float32)
    series = (mean.values + weather / 4).round(2).reshape(-1, *mean.shape[1:])
    months = xr.date_range("1950-01", periods=len(series), freq="MS")
    coords = {"time": months, "lat": mean["lat"], "lon": mean["lon"]}
    sst = xr.DataArray(series, coords, ("time", "lat", "lon"), "sst", mean.attrs)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sst.nc"
        sst.to_netcdf(path, engine="h5netcdf", encoding={"sst": {"zlib": True, "complevel": 1}})
        return path.read_bytes()


def _by_nczarr(url: str) -> Any:
    import xarray as xr

    with xr.open_dataset(url, engine="nczarr") as ds:
        return ds["sst"].sel(_PLACE, method="nearest").values


def _by_h5netcdf(url: str) -> Any:
    import fsspec
    import xarray as xr

    # as xarray itself opens URLs for h5netcdf; the default of fsspec takes longer
    remote = fsspec.open(url, cache_type="blockcache", block_size=4 << 20)
    with remote as file, xr.open_dataset(file, engine="h5netcdf") as ds:
        return ds["sst"].sel(_PLACE, method="nearest").values


READERS: dict[str, Callable[[str], Any]] = {
    "nczarr": _by_nczarr,
    "h5netcdf over fsspec": _by_h5netcdf,
}


def measure(files: Mapping[str, bytes]) -> list[Read]:
    """Let each reader read the series of one place from ``sst.nc``.

    Each reads ``first.nc`` before, so that neither imports nor the connection are measured.
    """
    reads = []
    with serve(files) as (url, requests):
        for name, read in READERS.items():
            read(f"{url}/first.nc")
            requests.clear()
            begin = time.perf_counter()
            values = read(f"{url}/sst.nc")
            reads.append(Read(name, values, begin, time.perf_counter() - begin, list(requests)))
    return reads


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[Request]]]:
    """Serve files as a web server far away does; yield the URL, and the list of its requests."""
    requests: list[Request] = []
    line = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            request = Request(time.perf_counter())
            requests.append(request)
            time.sleep(LATENCY)
            data = files.get(self.path.strip("/"))
            if data is None:
                self.send_error(404)
                return
            status, headers, body = _answer(data, self.headers.get("Range", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            request.answered = request.sent = time.perf_counter()
            self.end_headers()
            for start in range(0, len(body) if self.command == "GET" else 0, _PIECE):
                piece = body[start : start + _PIECE]
                with line:
                    time.sleep(len(piece) / BANDWIDTH)
                request.sent = time.perf_counter()
                request.nbytes += len(piece)
                self.wfile.write(piece)

        def do_HEAD(self) -> None:
            self.do_GET()

        def handle(self) -> None:
            with suppress(ConnectionError):  # a reader may go away
                super().handle()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # by default 5; more connections at once wait for a second

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


def _answer(data: bytes, wanted: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body for the header ``Range``, which may be empty."""
    parts = []
    for first, last in re.findall(r"(\d*)-(\d*)", wanted):
        start = int(first) if first else len(data) - int(last)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        parts.append((f"bytes {start}-{stop - 1}/{len(data)}", data[start:stop]))
    if not parts:
        return 200, {"Accept-Ranges": "bytes"}, data
    if len(parts) == 1:
        return 206, {"Content-Range": parts[0][0]}, parts[0][1]
    body = b"".join(
        f"\r\n--{_BETWEEN_PARTS}\r\nContent-Range: {where}\r\n\r\n".encode() + part
        for where, part in parts
    )
    kind = f"multipart/byteranges; boundary={_BETWEEN_PARTS}"
    return 206, {"Content-Type": kind}, body + f"\r\n--{_BETWEEN_PARTS}--\r\n".encode()


def draw_requests(reads: list[Read], title: str, path: Path) -> None:
    """Draw the requests of each read as bars, all over the same time."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5.6), dpi=150, layout="constrained")
    panels: Any = figure.subplots(len(reads), 1, sharex=True)
    for axes, read in zip(panels, reads, strict=True):
        axes.axvspan(0, read.seconds, color="#f1f3f5")
        times = [(one.asked, one.answered, one.sent) for one in read.requests]
        asked, answered, sent = np.transpose(times) - read.begin
        parts = ((PHASES["waiting"], asked, answered), (PHASES["body"], answered, sent))
        for (colour, label), begin, end in parts:
            axes.barh(range(len(times)), end - begin, left=begin, color=colour, label=label)
        for row, one in enumerate(read.requests):
            size = f" {format_size(one.nbytes)}"
            axes.text(sent[row], row, size, va="center", fontsize=11)
        axes.set_title(f"{read.reader}: {read}", loc="left", fontsize=13, fontweight="bold")
        axes.set_ylim(len(read.requests) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=11, loc="lower right")
    panels[-1].set_xlim(left=0)
    panels[-1].set_xlabel("seconds", fontsize=12)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    figure.savefig(path)
