"""What can be done to a classic or HDF5 file: damage, mostly where it has its structure."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from numcodecs.jenkins import jenkins_lookup3

#: Where structures of HDF5 begin.
SIGNATURES = re.compile(
    rb"\x89HDF|OHDR|OCHK|TREE|SNOD|HEAP|GCOL|FRHP|FHDB|FHIB|BTHD|BTIN|BTLF|FAHD|FADB|EAHD|EAIB|"
    rb"EASB|EADB|SMTB|SMLI"
)
_NUMBERS = (
    0, 1, 2, 3, 7, 8, 64, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1, 2**40,
    2**62, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 1,
)  # fmt: skip
_LENGTHS = (2, 4, 8, 16, 64, 256)

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Where a good file has what.

    Parameters
    ----------
    structures
        What is read of its metadata.
    sealed
        Structures that end with their checksum.
    """

    structures: tuple[Span, ...]
    sealed: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file.

    Parameters
    ----------
    data
        What is there.
    kinds, steps
        What was done, in one word each and in full.
    changed
        Spans that may differ, if bytes kept their places; else None.
    cut
        Whether only the end is missing.
    repaired
        Whether the checksums were made right again.
    """

    data: bytes
    kinds: tuple[str, ...]
    steps: tuple[str, ...]
    changed: tuple[Span, ...] | None
    cut: bool = False
    repaired: bool = False


def mutate(data: bytes, anatomy: Anatomy, donor: bytes, rng: random.Random) -> Damage:
    """Change a file in one to three ways.

    Parameters
    ----------
    donor
        Another file, of which it may get a part.
    """
    places = _Places(data, anatomy, rng)
    choice = rng.random()
    if choice < 0.08:
        stop = rng.randrange(len(data)) if rng.random() < 0.6 else places.any()
        return Damage(data[:stop], ("cut",), (f"cut at {stop}",), None, cut=True)
    if choice < 0.12:
        stop, start = places.any(), min(places.any(), len(donor))
        step = f"splice at {stop}: another file from {start}"
        return Damage(data[:stop] + donor[start:], ("splice",), (step,), None)
    changed = bytearray(data)
    steps, kinds, spans = [], [], []
    moved = False
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = min(places.any(), len(changed) - 1)
        kind = rng.choice(list(_KINDS))
        start, stop, piece = _KINDS[kind](changed, at, places, rng)
        moved |= len(piece) != stop - start
        changed[start:stop] = piece
        spans.append((start, stop))
        kinds.append(kind)
        steps.append(f"{kind} at {start}: {piece[:16].hex()}{'...' if len(piece) > 16 else ''}")
    if moved:
        return Damage(bytes(changed), tuple(kinds), tuple(steps), None)
    repaired = bool(anatomy.sealed) and rng.random() < 0.5
    if repaired:
        spans += _repair(changed, anatomy, spans)
        steps.append("checksums repaired")
    return Damage(
        bytes(changed), tuple(kinds), tuple(steps), tuple(spans), cut=False, repaired=repaired
    )


def _repair(data: bytearray, anatomy: Anatomy, spans: list[Span]) -> list[Span]:
    """Make the checksums of changed structures right."""
    repaired = []
    for start, stop in anatomy.sealed:
        if any(low < stop and start < high for low, high in spans):
            checksum: Any = jenkins_lookup3(bytes(data[start : stop - 4]), 0)
            data[stop - 4 : stop] = int(checksum).to_bytes(4, "little")
            repaired.append((stop - 4, stop))
    return repaired


# -- where -------------------------------------------------------------------------------------


class _Places:
    """Positions in a file: rather in structures than in data, and in all kinds of them."""

    def __init__(self, data: bytes, anatomy: Anatomy, rng: random.Random) -> None:
        self._size = len(data)
        self._structures = anatomy.structures
        self._rng = rng
        self.classic = data[:3] == b"CDF"
        self._signed: dict[bytes, list[int]] = {}
        for match in SIGNATURES.finditer(data) if not self.classic else ():
            self._signed.setdefault(match[0], []).append(match.start())

    def any(self) -> int:
        rng = self._rng
        choice = rng.random()
        if choice < 0.45 and self._signed:
            starts = self._signed[rng.choice(list(self._signed))]
            return min(self._size - 1, rng.choice(starts) + int(rng.expovariate(1 / 40)))
        if choice < 0.85 and self._structures:
            start, stop = rng.choice(self._structures)
            return rng.randrange(start, stop)
        if choice < 0.95:
            return rng.randrange(min(self._size, 4096))
        return rng.randrange(self._size)

    def end(self, at: int) -> int:
        """Where the structure ends in which a position is, or a little behind it."""
        ends = [stop for start, stop in self._structures if start <= at < stop]
        return min([*ends, at + 512, self._size])


# -- what: each kind replaces bytes [start, stop) by others -------------------------------------

_Change = tuple[int, int, bytes]


def _bit(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return at, at + 1, bytes([data[at] ^ (1 << rng.randrange(8))])


def _byte(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return at, at + 1, rng.randbytes(1)


def _number(data: bytearray, at: int, places: _Places, rng: random.Random) -> _Change:
    length = rng.choice((1, 2, 4, 8))
    number = rng.choice((*_NUMBERS, len(data))) + rng.choice((-1, 0, 0, 0, 1))
    if places.classic:
        at -= at % 4
    raw = (number % (1 << 8 * length)).to_bytes(length, "big" if places.classic else "little")
    return _fitting(data, at, raw)


def _step(data: bytearray, at: int, places: _Places, rng: random.Random) -> _Change:
    """A number that is nearly right."""
    length = rng.choice((1, 2, 4, 8))
    if places.classic:
        at -= at % 4
    order: Any = "big" if places.classic else "little"
    raw = bytes(data[at : at + length])
    number = int.from_bytes(raw, order) + rng.choice((-8, -2, -1, 1, 2, 8))
    return at, at + len(raw), (number % (1 << 8 * len(raw))).to_bytes(len(raw), order)


def _noise(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return _fitting(data, at, rng.randbytes(rng.choice(_LENGTHS)))


def _zero(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return _fitting(data, at, bytes(rng.choice(_LENGTHS)))


def _copy(data: bytearray, at: int, places: _Places, rng: random.Random) -> _Change:
    start = places.any()
    return _fitting(data, at, bytes(data[start : start + rng.choice(_LENGTHS)]))


def _shift(data: bytearray, at: int, places: _Places, rng: random.Random) -> _Change:
    """Fields move within their structure."""
    end = places.end(at)
    piece = data[at:end]
    count = rng.choice((1, 2, 4, 8))
    if rng.random() < 0.5:
        return at, end, bytes((piece[:count] + piece)[: len(piece)])
    return at, end, bytes((piece[count:] + bytes(count))[: len(piece)])


def _insert(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return at, at, rng.randbytes(rng.choice((1, 4, 8)))


def _repeat(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return at, at, bytes(data[at : at + rng.choice(_LENGTHS)])


def _delete(data: bytearray, at: int, _: _Places, rng: random.Random) -> _Change:
    return at, min(len(data), at + rng.choice((1, 4, 8))), b""


def _fitting(data: bytearray, at: int, piece: bytes) -> _Change:
    piece = piece[: len(data) - at]
    return at, at + len(piece), piece


_KINDS = {
    "bit": _bit,
    "byte": _byte,
    "number": _number,
    "step": _step,
    "noise": _noise,
    "zero": _zero,
    "copy": _copy,
    "shift": _shift,
    "insert": _insert,
    "repeat": _repeat,
    "delete": _delete,
}
