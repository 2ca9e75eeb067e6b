"""`nczarr_fsspec.transport.contentrange`: what servers write into this header."""

from __future__ import annotations

import pytest

from nczarr_fsspec.transport.contentrange import content_range, unsatisfied_size

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("bytes 0-9/20", (0, 10, 20)),
        ("Bytes 5-5/*", (5, 6, None)),
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


@pytest.mark.parametrize(("header", "size"), [("bytes */20", 20), (f"bytes */{LONG}", None)])
def test_size(header: str, size: int | None) -> None:
    assert unsatisfied_size(header) == size
