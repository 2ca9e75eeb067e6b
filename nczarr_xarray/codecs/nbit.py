"""n-bit of HDF5: of each number only the bits that count are stored, the highest first.

Its parameters, which libhdf5 does not check, are: their number, whether there is nothing to do, the
number of elements, and what an element is made of (libhdf5 2.0, observed): 1 a number (bytes,
order, bits that count, bits below them), 2 an array (bytes, its elements), 3 a structure (bytes,
number of fields, and of each its place and what it is made of), 4 anything else (bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError
from nczarr_xarray.codecs.codec import Buffer, Size, Step, packed
from nczarr_xarray.model import Array, CodecConfig

_Bits: TypeAlias = "np.ndarray"

_NUMBER, _ARRAY, _STRUCTURE, _OTHER = range(1, 5)
_DEEPEST = 32
#: Bits, each of which takes a byte, that are at hand at a time.
_BLOCK = 1 << 23


@dataclass(frozen=True, slots=True)
class _Number:
    """A number, or (`order` 1, all bits) bytes as they are."""

    size: int
    order: int
    bits: int
    below: int

    def decode(self, stored: _Bits) -> _Bits:
        wide = np.zeros((len(stored), 8 * self.size), np.uint8)
        stop = 8 * self.size - self.below
        wide[:, stop - self.bits : stop] = stored
        plain = np.packbits(wide, axis=1)
        return plain if self.order else plain[:, ::-1]


@dataclass(frozen=True, slots=True)
class _Array:
    size: int
    bits: int
    base: _Element

    def decode(self, stored: _Bits) -> _Bits:
        return self.base.decode(stored.reshape(-1, self.base.bits)).reshape(-1, self.size)


@dataclass(frozen=True, slots=True)
class _Structure:
    size: int
    bits: int
    fields: tuple[tuple[int, _Element], ...]

    def decode(self, stored: _Bits) -> _Bits:
        plain = np.zeros((len(stored), self.size), np.uint8)
        at = 0
        for place, element in self.fields:
            part = stored[:, at : at + element.bits]
            plain[:, place : place + element.size] = element.decode(part)
            at += element.bits
        return plain


_Element: TypeAlias = _Number | _Array | _Structure


def nbit_step(config: CodecConfig, _: Array, size: Size) -> tuple[Step, Size]:
    """Return how to undo n-bit that has to return `size`, and the size it takes.

    Raises
    ------
    FormatError
        If its parameters contradict themselves, or the size.
    """
    values = tuple(config["values"])
    if values[:1] != (len(values),) or len(values) < 3:
        raise _wrong(values)
    if values[1] == 1:
        return (lambda data: data), size
    rest = iter(values[2:])
    count = next(rest)
    try:
        element = _element(rest, 0)
    except StopIteration:
        raise _wrong(values) from None
    size.check(count * element.size)
    total = -(-count * element.bits // 8)

    def decode(data: Buffer) -> Buffer:
        stored = np.frombuffer(data, np.uint8)
        if stored.size < total:
            raise FormatError("", f"has {stored.size} bytes, n-bit needs {total} (truncated?)")
        plain = np.empty((count, element.size), np.uint8)
        block = max(1, _BLOCK // (8 * element.bits)) * 8  # so that each begins with a byte
        for start in range(0, count, block):
            some = min(block, count - start)
            part = stored[start * element.bits // 8 :]
            bits = np.unpackbits(part, count=some * element.bits).reshape(some, element.bits)
            plain[start : start + some] = element.decode(bits)
        return plain.reshape(-1)

    return decode, packed(size)


def _element(values: Iterator[int], depth: int) -> _Element:
    kind, size = next(values), next(values)
    if not size or depth > _DEEPEST:
        raise FormatError("", f"n-bit of elements of {size} bytes, {depth} deep")
    if kind == _OTHER:
        return _Number(size, 1, 8 * size, 0)
    if kind == _NUMBER:
        order, bits, below = next(values), next(values), next(values)
        if order > 1 or not 0 < bits <= 8 * size - below:
            raise FormatError("", f"n-bit of {bits} bits from {below} in {size} bytes")
        return _Number(size, order, bits, below)
    if kind == _ARRAY:
        base = _element(values, depth + 1)
        count, left = divmod(size, base.size)
        if left:
            raise FormatError("", f"n-bit of an array of {size} bytes, its elements {base.size}")
        return _Array(size, count * base.bits, base)
    if kind != _STRUCTURE:
        raise FormatError("", f"n-bit of class {kind}, known are 1 to 4")
    fields = []
    for _ in range(next(values)):
        place = next(values)
        fields.append((place, _element(values, depth + 1)))
    if not fields or any(place + field.size > size for place, field in fields):
        raise FormatError("", f"n-bit of a structure of {size} bytes that its fields do not fit")
    return _Structure(size, sum(field.bits for _, field in fields), tuple(fields))


def _wrong(values: tuple[int, ...]) -> FormatError:
    return FormatError("", f"n-bit cannot have the parameters {values!r:.80}")
