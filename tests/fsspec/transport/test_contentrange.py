"""What servers write into ``Content-Range``, and into headers with times."""

from __future__ import annotations

import pytest

from nczarr_fsspec.transport.answers import retry_after
from nczarr_fsspec.transport.bodies import content_range, unsatisfied_size
from nczarr_fsspec.transport.request import FileVersion, moment

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("bytes 0-9/20", (0, 10, 20)),
        ("Bytes 5-5/*", (5, 6, None)),
        ("bytes 10-19/20", (10, 20, 20)),  # to the end
        (" bytes 0-9/20 ", (0, 10, 20)),
        ("", None),
        ("bytes 5-4/20", None),
        ("bytes 0-20/20", None),
        (f"bytes {LONG}-9/20", None),
        (f"bytes 0-{LONG}/20", None),
        (f"bytes 0-9/{LONG}", None),
        (None, None),
    ],
)
def test_range(header: str | None, found: tuple[int, int, int | None] | None) -> None:
    assert content_range(header) == found


@pytest.mark.parametrize(
    ("header", "size"),
    [
        *(("bytes */20", 20), (" Bytes */0 ", 0)),
        *((f"bytes */{LONG}", None), ("bytes 0-9/20", None), ("", None), (None, None)),
    ],
)
def test_size(header: str | None, size: int | None) -> None:
    assert unsatisfied_size(header) == size


@pytest.mark.parametrize(
    ("header", "time"),
    [
        ("Mon, 02 Jan 2006 15:04:05 GMT", "2006-01-02T15:04:05+00:00"),
        ("Mon, 02 Jan 2006 15:04:05 -0000", "2006-01-02T15:04:05+00:00"),
        ("Mon, 02 Jan 2006 15:04:05", None),
        ("yesterday", None),
        ("", None),
        ("Mon, 02 Jan 99999999999999999999 15:04:05 GMT", None),
        ("Mon, 02 Jan 2006 15:04:05 +99999999999999999999", None),
    ],
)
def test_times_in_headers(header: str, time: str | None) -> None:
    found = moment(header)
    assert (found and found.isoformat()) == time
    # what has no time may be another version by now
    assert FileVersion("", header, 5, "Tue, 03 Jan 2006 15:04:05 GMT").validator == (
        f"{header};5" if time else ""
    )
    assert retry_after(header) == 0.0


@pytest.mark.parametrize(
    "etag",
    ['"43b94025-c8"', 'W/"43b94025-c8"', 'W/"anything"', '"43b94024-c8"', '"0123456789abcdef"'],
)
def test_a_tag_may_say_no_more_than_the_time(etag: str) -> None:
    """Until the time is past, another version of the same size may have it."""
    modified = "Mon, 02 Jan 2006 15:00:53 GMT"
    soon, later = "Mon, 02 Jan 2006 15:01:00 GMT", "Mon, 02 Jan 2006 15:02:00 GMT"
    assert FileVersion(etag, modified, 200, soon).validator == ""
    assert FileVersion(etag, modified, 200, later).validator == etag
    assert FileVersion(etag, "", 200, soon).validator == ""
    assert FileVersion(etag, modified, 200).validator == etag
