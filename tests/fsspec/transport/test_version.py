"""Which version of a file answers are about, by what their headers say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from nczarr_fsspec.errors import StoreError, TooLargeError
from nczarr_fsspec.transport.answers import read_answer
from nczarr_fsspec.transport.policy import Clock, Timeout
from nczarr_fsspec.transport.request import END, Answer, Extent, FileVersion, Request
from nczarr_fsspec.transport.s3form import condition

NOON = "Sun, 06 Nov 1994 12:00:00 GMT"
LATER = "Sun, 06 Nov 1994 12:00:59 GMT"
SETTLED = "Sun, 06 Nov 1994 12:01:00 GMT"
#: of nginx, Caddy, WsgiDAV and others
TAGS = (
    '"2ebcc540-64"',
    'W/"2ebcc540-64"',
    '"j3t5q02s"',
    '"0cc175b9c0f1b6a831c399e269772661-784123200-100"',
    '"a"',
)
S3 = {"x-amz-request-id": "1"}
KNOWN = FileVersion('"a"', NOON, 100)


@pytest.mark.parametrize(
    ("known", "later", "how"),
    [
        (KNOWN, FileVersion('"b"', NOON, 100), 'its tag was "a" and is "b"'),
        (KNOWN, FileVersion("", SETTLED, 100), f"it was of {NOON} and is of {SETTLED}"),
        (KNOWN, FileVersion('"a"', NOON, 99), "it had 100 bytes and has 99"),
        (KNOWN, FileVersion(), "no longer says which version"),
    ],
)
def test_another_version(known: FileVersion, later: FileVersion, how: str) -> None:
    with pytest.raises(StoreError, match=how):
        known.agreeing(later, "x")


@pytest.mark.parametrize(
    "later",
    [
        FileVersion('W/"a"', SETTLED),  # of a proxy that compresses
        FileVersion('"a"', "", 100),
        FileVersion("", NOON),
        FileVersion("", "", 100),
    ],
)
def test_the_same_version(later: FileVersion) -> None:
    assert KNOWN.agreeing(later, "x") == KNOWN


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        # within the same minute it may be written again, with the same time
        *(({"Last-Modified": NOON, **date}, "") for date in ({"Date": LATER}, {})),
        ({"Last-Modified": NOON, "Date": SETTLED}, f"{NOON};100"),
        # many servers make tags of seconds and sizes, which say no more than the time does
        *(({"ETag": tag, "Last-Modified": NOON, "Date": LATER}, "") for tag in TAGS),
        *(({"ETag": tag, "Last-Modified": NOON, "Date": SETTLED}, tag) for tag in TAGS),
        *(({"ETag": tag, "Date": SETTLED}, "") for tag in TAGS),
        *(({"ETag": tag, "Last-Modified": NOON}, "") for tag in TAGS),
        # those of S3 are digests
        ({"ETag": TAGS[0], "Last-Modified": NOON, "Date": LATER, **S3}, TAGS[0]),
        ({"Last-Modified": NOON, "Date": LATER, **S3}, ""),
        ({}, ""),
    ],
)
def test_by_what_it_is_remembered(headers: dict[str, str], validator: str) -> None:
    assert FileVersion.of(headers, 100).validator == validator


def test_conditions() -> None:
    assert condition(Request("x", "x", version=KNOWN)) == {"If-Match": '"a"'}
    assert condition(Request("x", "x", unless=KNOWN)) == {"If-None-Match": '"a"'}
    assert condition(Request("x", "x", version=FileVersion('W/"a"'))) == {}


class Silent:
    """An answer of which nobody reads the body."""

    reason: str | None = ""
    content: Any = None
    url: Any = "http://h/x"

    def __init__(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.content_length = length

    def close(self) -> None:
        pass


def answer(response: Silent, request: Request) -> Answer | None:
    return asyncio.run(read_answer(response, Clock(Timeout()), request))


def test_a_file_that_has_become_shorter_is_no_empty_part() -> None:
    response = Silent(416, {"Content-Range": "bytes */5"}, 0)
    with pytest.raises(StoreError, match="it had 100 bytes and has 5"):
        answer(response, Request("x", "x", [Extent(50, 60)], version=KNOWN))
    found = answer(response, Request("x", "x", [Extent(50, 60)]))
    assert found is not None
    assert (found.parts, found.version) == ([b""], FileVersion(size=5, date="-"))


def test_what_is_too_large_is_not_begun() -> None:
    with pytest.raises(TooLargeError):
        answer(Silent(200, {}, 100), Request("x", "x", most=99))
    to_the_end = Request("x", "x", [Extent(0, END)], most=99)
    with pytest.raises(TooLargeError):
        answer(Silent(206, {"Content-Range": "bytes 0-99/100"}, 100), to_the_end)
