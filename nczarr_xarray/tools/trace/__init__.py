"""Traces: the requests of a program and their times (``with nczarr_xarray.trace() as t:``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.text import counted
from nczarr_fsspec.transport import recording
from nczarr_fsspec.transport.recording import Record, Try, recorded, recorded_elsewhere, tell
from nczarr_xarray.tools.html import report, table
from nczarr_xarray.tools.trace.page import draw, render, waterfall
from nczarr_xarray.tools.trace.summary import Summary, lines, summarize


@dataclass(slots=True)
class Trace:
    """The requests that went out while it was recorded; complete when the block ends.

    Attributes
    ----------
    records : list of nczarr_fsspec.transport.recording.Record
        The requests, as they were asked for; times are in seconds from the beginning.
    seconds : float
        For how long they were recorded.
    """

    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def summary(self) -> Summary:
        """What the requests add up to, and the least time that there is for them."""
        return summarize(self.records, self.seconds)

    def json(self) -> str:
        """Return the trace as a document, which docs/doctor.md describes."""
        head = {"format": "nczarr-trace", "version": 1, "seconds": self.seconds}
        return json.dumps({**head, "requests": list(map(asdict, self.records))}, indent=1)

    def html(self) -> str:
        """Return a page that needs no other file: totals, waterfall, every request."""
        return render(waterfall(self.records), self.summary)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace; the name ends in .html or .json.

        Raises
        ------
        URLError
            If it ends in something else.
        """
        forms = {".html": self.html, ".json": self.json}
        suffix = Path(path).suffix.lower()
        if suffix not in forms:
            raise URLError(os.fspath(path), f"a trace is written as {' or '.join(forms)}")
        Path(path).write_text(forms[suffix](), encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(f"{label:10}{text}" for label, text in lines(self.summary))

    def _repr_html_(self) -> str:
        about = lines(self.summary)
        return report(
            f"Trace of {counted(len(self.records), 'request')}",
            table((), about),
            draw(waterfall(self.records)),
        )


@contextmanager
def trace() -> Iterator[Trace]:
    """Record the requests of all threads of this process, as long as the context is open.

    Requests of this package to remote files and stores are recorded, also those of processes that
    are started meanwhile on this machine, such as dask's workers. Local files and other processes
    are not recorded.

    Examples
    --------
    >>> with nczarr_xarray.trace() as t:
    ...     xr.open_dataset(url, engine="nczarr")["sst"][0].load()
    >>> t.save("trace.html")
    """
    found = Trace()
    records: list[Record] = []
    began = recording.now()
    try:
        with recorded_elsewhere() as elsewhere:
            try:
                with recorded(records.append):
                    yield found
            finally:
                for line in elsewhere():
                    record = _parsed(line)
                    records.append(record)
                    tell(record)  # a trace around this one
    finally:
        found.seconds = recording.now() - began
        since = (_since(record, began) for record in list(records))
        found.records = sorted(since, key=lambda record: record.asked)


def _since(record: Record, began: float) -> Record:
    """Return a record with times that count from `began`."""
    tries = tuple(
        replace(
            one,
            begin=one.begin - began,
            end=one.end - began,
            first_byte=None if one.first_byte is None else one.first_byte - began,
        )
        for one in record.tries
    )
    return replace(record, asked=record.asked - began, tries=tries)


def _parsed(line: str) -> Record:
    """Return the record that another process has written."""
    found = json.loads(line)
    found["tries"] = tuple(Try(**one) for one in found["tries"])
    if found["extents"] is not None:
        found["extents"] = tuple(map(tuple, found["extents"]))
    return Record(**found)
