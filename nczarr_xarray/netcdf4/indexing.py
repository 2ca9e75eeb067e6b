"""The indexing of netCDF4-python: orthogonal, with lists, booleans, ellipsis, and what grows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

#: How one dimension is indexed: a position, a slice, or positions in any order.
Index: TypeAlias = "int | slice | np.ndarray[Any, np.dtype[np.intp]]"

_ALL = slice(None)
_WHAT_IS_VALID = (
    "only integers, slices (`:`), ellipsis (`...`), and 1-d integer or boolean arrays are valid "
    "indices"
)


def split(elem: Any, shape: Sequence[int], grows: Sequence[bool] = ()) -> tuple[Index, ...]:
    """Return what ``variable[elem]`` means, an index for each dimension.

    Parameters
    ----------
    elem
        As Python hands it over. An array or a list of integers is for the first dimension.
    shape
        The present lengths.
    grows
        Which dimensions may be indexed behind their end; none if empty.

    Returns
    -------
    Of integers none is negative. Booleans are positions. Slices are as they were given.

    Raises
    ------
    IndexError
        If an index is out of bounds, or is none.
    ValueError
        If there are more indices than dimensions.
    """
    given = list(elem) if isinstance(elem, tuple) else [elem]
    if len(given) == 1 and isinstance(given[0], list) and not all(map(_is_integer, given[0])):
        given = given[0] if not all(isinstance(e, (bool, np.bool_)) for e in given[0]) else given
    ellipses = sum(1 for e in given if e is Ellipsis)
    if ellipses > 1:
        raise IndexError("At most one ellipsis allowed in a slicing expression")
    left = len(shape) - (len(given) - ellipses)
    if left < 0:
        raise ValueError("slicing expression exceeds the number of dimensions of the variable")
    full: list[Any] = []
    for e in given:
        full += [_ALL] * left if e is Ellipsis else [e]
    full += [_ALL] * (len(shape) - len(full))
    may_grow = grows or (False,) * len(shape)
    return tuple(map(_index, full, shape, may_grow))


def _is_integer(e: object) -> bool:
    return isinstance(e, (int, np.integer)) and not isinstance(e, (bool, np.bool_))


def _index(e: Any, size: int, grows: bool) -> Index:
    """Return the index of one dimension."""
    if isinstance(e, slice):
        return e
    if isinstance(e, int) and not isinstance(e, bool):
        return _position(e, size, grows)
    if isinstance(e, (str, bytes)):
        return _position(_as_integer(e), size, grows)
    positions = np.asarray(e)
    if positions.ndim > 1:
        raise IndexError("Index cannot be multidimensional")
    if positions.ndim == 0:
        return _position(_as_integer(e), size, grows)
    if positions.dtype.kind == "b":
        if not grows and len(positions) != size:
            raise IndexError(
                "\nBoolean array must have the same shape as the data along this dimension."
            )
        return np.flatnonzero(positions)
    if positions.size == 0:
        return np.zeros(0, np.intp)
    if positions.dtype.kind not in "iu":
        raise IndexError(_WHAT_IS_VALID)
    positions = np.where(positions < 0, positions + size, positions).astype(np.intp)
    if positions.min() < 0:
        raise IndexError("integer index out of range")
    if not grows and positions.max() >= size:
        raise IndexError("integer index exceeds dimension size")
    return positions


def _as_integer(e: Any) -> int:
    try:
        return operator.index(e)
    except TypeError:
        try:
            if float(e) == int(e):
                return int(e)
        except (TypeError, ValueError):
            pass
        raise IndexError(_WHAT_IS_VALID) from None


def _position(e: int, size: int, grows: bool) -> int:
    if e < 0:
        e += size
        if e < 0:
            raise IndexError("Index out of range")
    elif e >= size and not grows:
        raise IndexError("index exceeds dimension bounds")
    return e


def region(
    elem: Any, shape: Sequence[int], grows: Sequence[bool], data_shape: tuple[int, ...]
) -> tuple[tuple[Index, ...], tuple[int, ...], tuple[int, ...]]:
    """Return where ``variable[elem] = data`` goes.

    A slice along a dimension that grows may end behind it; without an end it is as long as the
    data are.

    Parameters
    ----------
    elem, shape, grows
        As of `split`.
    data_shape
        The shape of the data; ``()`` for one value.

    Returns
    -------
    key, counts, ends
        Indices with slices that have bounds; how many positions each selects; and the lengths
        that the dimensions have afterwards.

    Raises
    ------
    IndexError
        As `split`; or if the data have too few dimensions to tell a length.
    """
    key = split(elem, shape, grows)
    slices = sum(isinstance(index, slice) for index in key)
    along = list(data_shape)
    if data_shape and len(data_shape) == slices != len(key):
        lengths = iter(data_shape)
        along = [next(lengths) if isinstance(index, slice) else 0 for index in key]
    elif len(data_shape) > len(key):  # dimensions of length one in front
        along = along[len(data_shape) - len(key) :]
    bounded: list[Index] = []
    counts: list[int] = []
    ends: list[int] = []
    for axis, (index, size, may_grow) in enumerate(zip(key, shape, grows, strict=True)):
        positions: Any = index.tolist() if isinstance(index, np.ndarray) else [index]
        if isinstance(index, slice):
            length = size
            if may_grow and index.stop is not None and index.stop > size:
                length = index.stop
            elif may_grow and index.stop is None and data_shape:
                if axis >= len(along):
                    raise IndexError("shape of data does not conform to slice")
                length = max(size if index.start is None else 0, (index.start or 0) + along[axis])
                length = along[axis] if index.start is None else length
            elif may_grow and not data_shape and size == 0:
                length = 1
            steps = range(*index.indices(length))
            index, positions = _bounds(steps), [*steps[:1], *steps[-1:]]
            counts.append(len(steps))
        else:
            counts.append(len(positions))
        bounded.append(index)
        ends.append(max(size, 1 + max(positions, default=-1)))
    return tuple(bounded), tuple(counts), tuple(ends)


def _bounds(positions: range) -> slice:
    """Return the slice that selects positions."""
    stop: int | None = positions.stop
    if positions.step < 0 and positions.stop < 0:
        stop = None
    return slice(positions.start, stop, positions.step) if positions else slice(0, 0)


def conforming(data: np.ndarray, counts: tuple[int, ...], key: tuple[Index, ...]) -> np.ndarray:
    """Return data in the shape of a region, without the dimensions that integers index.

    Raises
    ------
    IndexError
        If they do not have that shape, and cannot be repeated to have it.
    """
    kept = tuple(n for n, index in zip(counts, key, strict=True) if not isinstance(index, int))
    if data.shape == kept:
        return data
    if data.size == np.prod(counts, dtype=int):
        return data.reshape(kept)
    for shape in (counts, kept):
        try:
            return np.broadcast_to(data, shape).reshape(kept)
        except ValueError:
            continue
    raise IndexError(f"size of data array does not conform to slice: {data.shape} for {kept}")
