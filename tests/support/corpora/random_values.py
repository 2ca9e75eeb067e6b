"""Random names, values and attributes for files that are made at random."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
FLOATS = ("f4", "f8")
NUMBERS = (*INTEGERS, *FLOATS)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_"
_TEXTS = ("", "m s-1", "grüße", "温度", "a b\tc\n", "1", "true", "x" * 300, "é" * 7)


def name(choose: random.Random, taken: set[str]) -> str:
    """A name that is not taken yet, and is from then on."""
    while True:
        letters = choose.choices(_LETTERS, k=choose.randint(1, 12))
        found = choose.choice("abcxyzVT") + "".join(letters)
        if choose.random() < 0.1:
            found += choose.choice(["é", "温", " b", ".c", "-d", "@e", "+f"])
        if found not in taken:
            taken.add(found)
            return found


def number(choose: random.Random, dtype: str) -> Any:
    """One number of a type, often an extreme one."""
    return numbers(choose, (), dtype)[()]


def numbers(choose: random.Random, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Numbers of a type: of few values or many, with extremes."""
    rng = np.random.default_rng(choose.getrandbits(32))
    kind = np.dtype(dtype)
    few = choose.random() < 0.5
    if kind.kind == "f":
        values = rng.integers(0, 9, shape).astype(kind) if few else rng.normal(0, 1e3, shape)
        values = np.asarray(values).astype(kind)
        if choose.random() < 0.3:
            special = [np.nan, np.inf, -np.inf, -0.0, np.finfo(kind).tiny, np.finfo(kind).max]
            values = np.where(rng.random(shape) < 0.2, rng.choice(special, shape), values)
        return np.asarray(values).astype(kind)
    limits = np.iinfo(kind)
    if few:
        return np.asarray(rng.integers(0, 9, shape)).astype(kind)
    native = kind.newbyteorder("=")
    return np.asarray(rng.integers(limits.min, limits.max, shape, native, endpoint=True)).astype(
        kind
    )


def text(choose: random.Random) -> str:
    """One text, maybe empty."""
    return choose.choice(_TEXTS)


def texts(choose: random.Random, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Texts of all lengths."""
    array = np.empty(shape, object)
    for at in np.ndindex(shape):
        array[at] = text(choose)
    return array


def part(choose: random.Random, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """A region with something in it."""
    key = []
    for size in shape:
        start = choose.randint(0, size - 1)
        key.append(slice(start, choose.randint(start + 1, size)))
    return tuple(key)
