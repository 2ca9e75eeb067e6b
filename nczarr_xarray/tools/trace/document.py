"""A trace as JSON, and back; docs/tracing.md describes the document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from nczarr_fsspec.errors import FormatError
from nczarr_fsspec.transport.recording import Kind, Record, Try

VERSION = 1
_NAME = "nczarr-trace"
#: seconds; no trace takes longer
_LATEST = 1e9


def dumps(records: Sequence[Record], seconds: float) -> str:
    """Return the document of what was recorded in so many seconds."""
    head = {"format": _NAME, "version": VERSION, "seconds": seconds}
    return json.dumps({**head, "requests": [asdict(record) for record in records]}, indent=1)


def loads(text: str, shown: str) -> tuple[list[Record], float]:
    """Read a document.

    Parameters
    ----------
    shown
        What messages call it.

    Raises
    ------
    FormatError
        If it is none, or of a later version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(shown, "is not JSON; write a trace with nczarr trace --json") from None
    if not isinstance(document, dict) or document.get("format") != _NAME:
        raise FormatError(shown, "is not a trace; write one with nczarr trace --json")
    if document.get("version") != VERSION:
        reason = f"is a trace of version {document.get('version')!r}; version {VERSION} is read"
        raise FormatError(shown, reason)
    try:
        records = [record_of(item) for item in _items(document["requests"])]
        return records, _time(document["seconds"])
    except KeyError as error:
        raise FormatError(shown, f"is a damaged trace: it lacks {error.args[0]!r}") from None
    except ValueError as error:
        raise FormatError(shown, f"is a damaged trace: {error}") from None


def record_of(item: Any) -> Record:
    """Return a record from parsed JSON; `ValueError` or `KeyError` if it is none."""
    item = _object(item)
    tries = tuple(_try(one) for one in _items(item["tries"]))
    asked = _time(item["asked"])
    times = [asked, *(time for one in tries for time in (one.begin, one.end))]
    if not tries or times != sorted(times):
        raise ValueError("the times of a request are not in order")
    if item["kind"] not in get_args(Kind):
        raise ValueError(f"a request of kind {item['kind']!r}")
    extents = item["extents"]
    return Record(
        _text(item["url"]),
        asked,
        tries,
        item["kind"],
        None if extents is None else tuple(map(_extent, _items(extents))),
        _count(item["tail"]),
        _text(item["cause"]),
    )


def _try(item: Any) -> Try:
    item = _object(item)
    begin, end, first = _time(item["begin"]), _time(item["end"]), item["first_byte"]
    if first is not None and not begin <= _time(first) <= end:
        raise ValueError("the times of a try are not in order")
    status = item["status"]
    return Try(
        begin,
        end,
        first,
        None if status is None else _count(status),
        _count(item["nbytes"]),
        _text(item["error"]),
    )


def _extent(item: Any) -> tuple[int, int | None]:
    start, stop = _items(item)
    return _count(start), None if stop is None else _count(stop)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} in the place of an object")  # noqa: TRY004 - of a document
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} in the place of an array")  # noqa: TRY004 - of a document
    return value


def _text(value: Any) -> str:
    if not (isinstance(value, str) and value.isprintable()):
        raise ValueError(f"{value!r:.40} in the place of a text")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LATEST:
        raise ValueError(f"{value!r:.40} in the place of a time")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.40} in the place of a count")
    return value
