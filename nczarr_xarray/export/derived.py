"""Kinds of array for what a copy changes of its source: a part of it, or rounded values.

They look like the array that they are made of, with its storage, and read themselves. So whatever
takes an open dataset, be it a writer of any format or a comparison, takes a changed one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from nczarr_xarray.chunks.pieces import checked
from nczarr_xarray.codecs.quantize import quantize
from nczarr_xarray.dataset.variable import VariableReader
from nczarr_xarray.model import NC_DEFAULT_FILL, Array


@dataclass(frozen=True, slots=True)
class DerivedArray(Array):
    """Values of another variable, changed while they are read.

    Parameters
    ----------
    reader
        Reads the other variable.
    """

    reader: VariableReader

    reads_itself: ClassVar[bool] = True
    # the selections of a derived array are those of the array itself
    has_readers = True

    @property
    def base(self) -> Array:
        """The array of the other variable."""
        assert self.reader.array is not None
        return self.reader.array

    def exact(self) -> Self:
        return replace(self, reader=self.reader.exactly())

    def selections(self, store: Any) -> Self:
        return self

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        """Read a selection."""
        raise NotImplementedError


for _name in (
    *("dtype", "chunk_shape", "is_chunked", "blocks", "fill", "codecs", "codec_words"),
    *("elsewhere", "described"),
):  # what is not overridden is that of the other variable
    setattr(DerivedArray, _name, property(attrgetter(f"base.{_name}")))


def stored_array(array: Array | None) -> Array | None:
    """Return the array whose data are stored, of which others may be derived."""
    while isinstance(array, DerivedArray):
        array = array.base
    return array


@dataclass(frozen=True, slots=True)
class WindowArray(DerivedArray):
    """A part of another variable.

    Parameters
    ----------
    window
        The positions along each dimension, ascending.
    growing
        Which dimensions are unlimited: along these, chunks may be longer than the window.
    """

    window: tuple[range, ...]
    growing: tuple[bool, ...]

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        # a chunk of the other array has no more positions of the window
        chunks = (
            -(-chunk // steps.step)
            for chunk, steps in zip(self.base.chunk_shape, self.window, strict=True)
        )
        return tuple(
            chunk if grows else min(chunk, max(1, length))
            for chunk, length, grows in zip(chunks, self.shape, self.growing, strict=True)
        )

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...] | None:
        blocks = self.base.blocks
        if blocks is None:
            return None
        return tuple(_inside(*pair) for pair in zip(blocks, self.window, strict=True))

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        parts = (_of_base(*pair) for pair in zip(key, self.window, strict=True))
        return self.reader.read(tuple(parts), points=points)


def _of_base(index: Any, steps: range) -> Any:
    """Return the index of the other variable that an index of its window stands for."""
    if isinstance(index, np.ndarray):
        return steps.start + steps.step * checked(index, len(steps))
    if not isinstance(index, slice):
        return steps[int(index)]
    found = steps[index]
    if not found:
        return slice(0, 0)
    return slice(found.start, found.stop if found.stop >= 0 else None, found.step)


def _inside(lengths: tuple[int, ...], steps: range) -> tuple[int, ...]:
    """Return how many positions of a window each block of a dimension has, where it has any."""
    ends = np.cumsum(lengths)
    before = np.clip(-((steps.start - ends) // steps.step), 0, len(steps))
    return tuple(n for n in np.diff(before, prepend=0).tolist() if n)


@dataclass(frozen=True, slots=True)
class RoundedArray(DerivedArray):
    """Values of another variable, quantized.

    Each is rounded by its own value and position, so that it is no matter which are read together.

    Parameters
    ----------
    mode, digits, fill_value
        As for `quantize`.
    """

    mode: str
    digits: int
    fill_value: Any

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        values = self.reader.read(key, points=points)
        odd = _odd(key, self.shape, points=points) if self.mode == "BitGroom" else None
        return quantize(values, self.mode, self.digits, self.fill_value, odd)


@dataclass(frozen=True, slots=True)
class BytesArray(DerivedArray):
    """Bools of another variable, as bytes."""

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("i1")

    @property
    def fill(self) -> Any:
        return np.int8(NC_DEFAULT_FILL["byte"])  # no bool: readers of Zarr take it for a mask

    def read(self, key: tuple[Any, ...], *, points: bool) -> np.ndarray:
        return np.asarray(self.reader.read(key, points=points)).astype("i1")


def _odd(key: tuple[Any, ...], shape: tuple[int, ...], *, points: bool) -> np.ndarray:
    """Tell which elements of a selection have an odd position in a variable, in C order.

    It is odd if an odd number of indices are, not counting dimensions before one of even length.
    """
    axes: list[np.ndarray] = []
    behind = 1
    for index, length in zip(reversed(key), reversed(shape), strict=True):
        numbers = (
            np.arange(*index.indices(length))
            if isinstance(index, slice)
            else checked(np.asarray(index), length)
        )
        axes.insert(0, numbers % 2 * behind == 1)
        behind *= length % 2
    odd = np.zeros((), bool)
    if points:
        for index, axis in zip(key, axes, strict=True):
            odd = odd if isinstance(index, slice) else odd ^ axis
        axes = [axis for index, axis in zip(key, axes, strict=True) if isinstance(index, slice)]
    for axis in axes:
        odd = odd[..., np.newaxis] ^ axis if axis.ndim else odd ^ axis
    return odd
