"""Sizes as people write them, and as they are shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nczarr_fsspec.errors import URLError
from nczarr_fsspec.text import format_size, parse_size

PREFIXES = "kMGTPEZY"


@given(
    number=st.integers(1, 10**30 - 1),
    power=st.integers(1, 8),
    binary=st.booleans(),
    ending=st.sampled_from(["", "b", "B", "bytes", "Bytes"]),
    blanks=st.tuples(*[st.sampled_from(["", " ", "\t "])] * 3),
)
def test_whole_numbers_with_prefixes(
    number: int, power: int, binary: bool, ending: str, blanks: tuple[str, str, str]
) -> None:
    before, between, after = blanks
    unit = f"{PREFIXES[power - 1]}{'i' if binary else ''}{ending}"
    assert parse_size(f"{before}{number}{between}{unit}{after}") == (
        number * (1024 if binary else 1000) ** power
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("7 bytes", 7),
        ("1", 1),
        ("50MB", 50_000_000),
        ("50MiB", 52_428_800),
        ("2kB", 2000),
        ("1 KB", 1000),
        ("3TB", 3 * 10**12),
        ("1PiB", 2**50),
        ("12B", 12),
        ("4M", 4_000_000),
        ("2KB", 2000),
        ("2Ki", 2048),
        ("1.5 GiB", 3 << 29),
        ("0.5k", 500),
        ("1.0", 1),
        ("1.9", 1),  # no part of a byte
        ("9" * 30, 10**30 - 1),
    ],
)
def test_texts(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("size", [1, 4096, np.int64(70), True])
def test_numbers(size: int) -> None:
    assert parse_size(size) == size


@pytest.mark.parametrize(
    "size",
    [
        *("", "MB", "-1", "1e3", "1,5", ".5", "1.", "5iB", "5i", "5 m", "5 MB/s", "1" * 31, "x5"),
        *("5 MBytess", "٠.k"),
        *(1.5, None, [5], b"5"),
    ],
)
def test_what_is_no_size_is_said(size: object) -> None:
    with pytest.raises(URLError) as caught:
        parse_size(size, "write_memory")  # type: ignore[arg-type]
    assert caught.value.object == "write_memory"
    assert caught.value.reason == f"{size!r} is no size; write a number of bytes, or '50MB'"


def test_a_long_text_that_is_no_size_is_cut() -> None:
    with pytest.raises(URLError, match=r"^size: '(x{79}) is no size; ") as caught:
        parse_size("x" * 500)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("size", ["0", "0.9", "0 GB", 0, -5])
def test_less_than_a_byte(size: str | int) -> None:
    with pytest.raises(URLError) as caught:
        parse_size(size)
    assert caught.value.object == "size"
    assert caught.value.reason == f"{size!r} is less than one byte"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (778_000, "778 kB"),
        (10**6, "1 MB"),
        (25 * 10**8, "2.5 GB"),
        (10**12, "1 TB"),
        (10**15, "1 PB"),
        (10**18, "1 EB"),
        (5 * 10**20, "500 EB"),
        (10**21, "1e+03 EB"),
    ],
)
def test_shown(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(1000, 10**20))
def test_what_is_shown_is_nearly_the_size(size: int) -> None:
    number, unit = format_size(size).split()
    shown = parse_size(f"{float(number):f} {unit}")
    assert abs(shown - size) <= size * 0.005
