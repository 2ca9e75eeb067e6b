"""Codecs that only HDF5 has: its LZ4, LZF, scale-offset, n-bit, and whatever h5py can decode.

Sources: the specification of registered filters (32004), liblzf's format, and what
libhdf5 2.0 writes (scale-offset, n-bit; section IV.A.2.l of the specification gives their
parameters only).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nczarr_fsspec.errors import FormatError, UnsupportedError
from nczarr_xarray.codecs.codec import Buffer, Size, Step, packed
from nczarr_xarray.codecs.filters import szip_step
from nczarr_xarray.codecs.libhdf5 import SZIP, filter_decoder
from nczarr_xarray.model import Array, CodecConfig


def identity(_: CodecConfig, __: Array, size: Size) -> tuple[Step, Size]:
    """Undo a filter that changes values when they are written, and nothing afterwards."""
    return (lambda data: data), size


def unlz4(_: CodecConfig, __: Array, size: Size) -> tuple[Step, Size]:
    """Undo LZ4: blocks behind a head, decoded bytes (8) and bytes of a block (4), big-endian.

    A block has its stored size (4) before it; one that is as long as it is when
    decoded was not compressed.
    """
    from numcodecs import lz4

    def decompress(data: Buffer) -> Buffer:
        view = memoryview(data).cast("B")
        total, length = _big(view, 0, 8), _big(view, 8, 4)
        size.check(total)
        if not 0 < length < 1 << 31 and total:
            raise FormatError("", f"has LZ4 blocks of {length} bytes")
        plain = np.empty(total, dtype=np.uint8)
        position = 12
        for start in range(0, total, length or 1):
            count = min(length, total - start)
            stored, position = _big(view, position, 4), position + 4
            block, position = view[position : position + stored], position + stored
            if len(block) < stored:
                raise FormatError("", "the LZ4 blocks are truncated")
            if stored == count:
                plain[start : start + count] = np.frombuffer(block, dtype=np.uint8)
            else:  # numcodecs wants the size in front
                plain[start : start + count] = np.frombuffer(
                    lz4.decompress(count.to_bytes(4, "little") + block), dtype=np.uint8
                )
        return plain

    return decompress, packed(size)


def _big(data: memoryview, start: int, size: int) -> int:
    if len(data) < start + size:
        raise FormatError("", "the LZ4 blocks are truncated")
    return int.from_bytes(data[start : start + size], "big")


def unlzf(_: CodecConfig, __: Array, size: Size) -> tuple[Step, Size]:
    """Undo LZF: runs of up to 32 bytes, and copies of up to 264 from the last 8 KiB."""

    def decompress(data: Buffer) -> Buffer:
        packed = bytes(data)
        plain = bytearray()
        position, end, most = 0, len(packed), size.most
        while position < end:
            control = packed[position]
            position += 1
            if control < 32:
                stop = position + control + 1
                plain += packed[position:stop]
                position = stop
            else:
                length = control >> 5
                if length == 7:
                    length += packed[position]
                    position += 1
                length += 2
                start = len(plain) - ((control & 31) << 8) - packed[position] - 1
                position += 1
                if start < 0:
                    raise FormatError("", "refers to bytes before its beginning")
                piece = plain[start : start + length]
                if len(piece) < length:  # the copy overlaps what it makes
                    piece *= -(-length // len(piece))
                plain += piece[:length]
            if len(plain) > most:
                break
        if position > end:
            raise FormatError("", "the compressed stream is truncated")
        size.check(len(plain))
        return plain

    return decompress, packed(size)


def unscale(config: CodecConfig, array: Array, size: Size) -> tuple[Step, Size]:
    """Undo scale-offset: differences to the least value in few bits, behind a head of 21 bytes.

    The largest number of those bits stands for the fill value, if there is one.
    """
    values = tuple(config["values"])
    kind, digits, count, is_float, width, signed, big, has_fill = values[:8]
    if width not in (1, 2, 4, 8) or (is_float and (width < 4 or kind != 0)) or is_float > 1:
        raise FormatError("", f"scale-offset with the parameters {values[:8]}")
    size.check(count * width)
    code = "f" if is_float else "i" if signed else "u"
    dtype, whole = np.dtype(f"<{code}{width}"), np.dtype(f"<u{width}")
    fill = np.array(values[8:], dtype="<u4").tobytes()[:width]
    if has_fill and len(fill) < width:
        raise FormatError("", "scale-offset lacks its fill value")
    digits -= (digits >> 31) << 32
    if kind == 2 and digits == 8 * width:
        return identity(config, array, size)  # asked to keep all bits, it does nothing

    def restore(data: Buffer) -> Buffer:
        packed = np.frombuffer(data, dtype=np.uint8)
        if packed.size < 21:
            raise FormatError("", f"has {packed.size} bytes of scale-offset's head")
        bits = int.from_bytes(packed[:4].tobytes(), "little")
        least = packed[5 : 5 + min(8, int(packed[4]))].tobytes().ljust(8, b"\0")[:width]
        if bits > 8 * width or packed.size < 21 + -(-count * bits // 8):
            raise FormatError("", f"has {packed.size} bytes for {count} numbers of {bits} bits")
        if bits == 8 * width:
            plain = np.frombuffer(packed[21 : 21 + count * width].tobytes(), dtype=dtype)
        else:
            steps = _unpack(packed[21:], count, bits, width)
            minimum = np.frombuffer(least, dtype=dtype)[0]
            if is_float:
                numbers = steps.view(f"<i{width}").astype(dtype)
                with np.errstate(all="ignore"):  # damaged data may be anything
                    plain = numbers / dtype.type(10.0**digits) + minimum
            else:
                plain = (steps + minimum.view(whole)).view(dtype)
            if has_fill:
                plain[steps == (1 << bits) - 1] = np.frombuffer(fill, dtype=dtype)[0]
        return plain.byteswap() if big else plain

    return restore, packed(size)


def _unpack(packed: np.ndarray, count: int, bits: int, width: int) -> Any:
    """Unpack `count` numbers of `bits` bits, the highest first, to `width` bytes each, unsigned."""
    wide = np.zeros((count, 8 * width), dtype=np.uint8)
    if bits:
        flat = np.unpackbits(packed, count=count * bits)
        wide[:, 8 * width - bits :] = flat.reshape(count, bits)
    return np.packbits(wide, axis=1).view(f">u{width}").reshape(-1).astype(f"<u{width}")


def by_libhdf5(config: CodecConfig, _: Array, size: Size) -> tuple[Step, Size]:
    """Undo any filter that h5py can undo."""
    number, values = config["filter"], config["values"]
    if number == SZIP:
        return szip_step(values, size)
    if not size.exact:
        raise FormatError("", f"filter {number} stands before another that changes sizes")
    return filter_decoder(number, values, size.most), packed(size)


def refuse(config: CodecConfig, _: Array, __: Size) -> tuple[Step, Size]:
    """Refuse a filter that cannot be undone, for a reason that is known already."""
    error = UnsupportedError if config["id"] == "hdf5-missing" else FormatError
    raise error("", config["reason"])


# -- n-bit -----------------------------------------------------------------------------------------
# Of each number only the bits that count are stored, the highest first. Its parameters, which
# libhdf5 does not check, are: their number, whether there is nothing to do, the
# number of elements, and what an element is made of (libhdf5 2.0, observed): 1 a number (bytes,
# order, bits that count, bits below them), 2 an array (bytes, its elements), 3 a structure (bytes,
# number of fields, and of each its place and what it is made of), 4 anything else (bytes).


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
