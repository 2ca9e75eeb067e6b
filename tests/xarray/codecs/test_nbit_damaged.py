"""Parameters of n-bit that contradict themselves, and settings of blosc that there are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import Size
from nczarr_xarray.codecs.compress import blosc
from nczarr_xarray.codecs.hdf5 import nbit_step

NUMBER = (1, 4, 0, 12, 0)  # 12 bits of 4 bytes


def decode(data: bytes, *parameters: int, size: int = 8) -> bytes:
    """Undo n-bit that returns so many bytes; the first parameter says how many there are."""
    config: dict[str, Any] = {"id": "nbit", "values": (len(parameters) + 1, *parameters)}
    array: Any = None
    step, _ = nbit_step(config, array, Size(size))
    return bytes(memoryview(step(data)))


def test_two_numbers_of_twelve_bits() -> None:
    assert decode(b"\x12\x34\x56", 0, 2, *NUMBER) == np.array([0x123, 0x456], "<u4").tobytes()


def test_an_array_and_a_structure_of_them() -> None:
    expected = np.array([0x123, 0x456], "<u4").tobytes()
    assert decode(b"\x12\x34\x56", 0, 1, 2, 8, *NUMBER) == expected
    assert decode(b"\x12\x34\x56", 0, 1, 3, 8, 2, 0, *NUMBER, 4, *NUMBER) == expected


def test_what_needs_no_packing_is_as_it_was() -> None:
    assert decode(b"12345678", 1, 2, *NUMBER) == b"12345678"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((), "cannot have the parameters"),
        ((0,), "cannot have the parameters"),
        ((0, 2), "cannot have the parameters"),
        ((0, 2, 1, 4, 0), "cannot have the parameters"),
        ((0, 1, 3, 8, 1 << 30), "cannot have the parameters"),
        ((0, 2, 1, 4, 2, 12, 0), "12 bits from 0 in 4 bytes"),
        ((0, 2, 1, 4, 0, 0, 0), "0 bits from 0 in 4 bytes"),
        ((0, 2, 1, 4, 0, 33, 0), "33 bits from 0 in 4 bytes"),
        ((0, 2, 1, 4, 0, 12, 21), "12 bits from 21 in 4 bytes"),
        ((0, 2, 1, 0, 0, 12, 0), "elements of 0 bytes"),
        ((0, 1, 2, 7, *NUMBER), "an array of 7 bytes, its elements 4"),
        ((0, 1, 3, 8, 0), "its fields do not fit"),
        ((0, 1, 3, 8, 1, 5, *NUMBER), "its fields do not fit"),
        ((0, 2, 5, 4), "class 5"),
        ((0, 1, *(2, 8) * 40, *NUMBER), "33 deep"),
        ((0, 3, *NUMBER), "decodes to 12 bytes, not 8"),
        ((0, 1, *NUMBER), "decodes to 4 bytes, not 8"),
    ],
)
def test_parameters_that_make_no_sense(parameters: tuple[int, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(bytes(100), *parameters)


def test_too_few_bytes_are_an_error() -> None:
    with pytest.raises(FormatError, match="has 2 bytes, n-bit needs 3"):
        decode(b"\x12\x34", 0, 2, *NUMBER)


@pytest.mark.parametrize(
    "setting", [{"cname": "x"}, {"clevel": 10}, {"clevel": -1}, {"shuffle": 3}]
)
def test_settings_that_blosc_does_not_have(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ValueError, match=f"{name} is"):
        blosc({"id": "blosc", **setting}, 4)
