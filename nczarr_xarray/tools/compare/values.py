"""Values of two datasets: where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import URLError
from nczarr_xarray.model import Variable, mapped, text_of


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much two numbers may differ. With any tolerance, a NaN equals every other NaN.

    Parameters
    ----------
    absolute
        The largest difference.
    relative
        The largest difference as a share of the larger of the two magnitudes.
    """

    absolute: float = 0.0
    relative: float = 0.0

    @classmethod
    def of(cls, value: float | str) -> Tolerance:
        """Return the tolerance that a user means: ``0.01``, or ``"1%"`` of a number's magnitude.

        Raises
        ------
        URLError
            If it is no number, or less than 0.
        """
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if not 0 <= number < np.inf:
            reason = f"{value!r} is not one: write a number from 0 on, or a percentage such as 0.1%"
            raise URLError("tolerance", reason)
        return cls(relative=number / 100) if text.endswith("%") else cls(absolute=number)

    def exceeded(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Tell, for each element, whether two arrays of numbers differ by more."""
        with np.errstate(all="ignore"):
            distance, largest = _distance(a, b), np.maximum(_magnitude(a), _magnitude(b))
            within = np.isfinite(distance) & (distance <= self.absolute + self.relative * largest)
        both_nan = (a != a) & (b != b)  # noqa: PLR0124 - only NaN is not equal to itself
        differ: np.ndarray = (a != b) & ~within & ~both_nan
        return differ


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the absolute difference; that of integers is exact, as it has no sign."""
    if a.dtype.kind not in "iu":
        return _magnitude(_wide(a) - _wide(b))
    one, other = (values.astype(f"u{a.dtype.itemsize}") for values in (a, b))
    distance: np.ndarray = np.where(a > b, one - other, other - one)
    return distance


def _magnitude(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(_wide(values)))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


EXACT = Tolerance()


def as_text(variable: Variable, data: np.ndarray) -> np.ndarray:
    """Return the values of a variable with text as ``str``, also where Zarr has bytes for it."""
    if data.dtype.kind not in "SU" or (data.dtype.kind == "S" and variable.nc_type != "string"):
        return data
    return mapped(lambda one: one if isinstance(one, str) else text_of(one), data)


def differing(a: np.ndarray, b: np.ndarray, tolerance: Tolerance = EXACT) -> np.ndarray:
    """Tell, for each element, whether two arrays of one shape and type differ."""
    found = np.zeros(a.shape, bool)
    if a.dtype.names is not None:
        for name in a.dtype.names:
            parts = differing(a[name], b[name], tolerance)
            found |= parts.any(axis=tuple(range(a.ndim, parts.ndim)))
        return found
    if a.dtype.kind == "O":
        pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
        found.reshape(-1)[:] = [_objects_differ(one, other, tolerance) for one, other in pairs]
        return found
    found.reshape(-1)[:] = (_words(a) != _words(b)).any(axis=-1)
    if tolerance != EXACT and a.dtype.kind in "iufc":
        found[found] = tolerance.exceeded(a[found], b[found])
    return found


def _objects_differ(one: Any, other: Any, tolerance: Tolerance) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return bool(one != other)
    return one.shape != other.shape or bool(differing(one, other, tolerance).any())


def _words(values: np.ndarray) -> np.ndarray:
    """Return the bits of fixed-size elements, as the longest words that they are made of."""
    plain = np.ascontiguousarray(_little_endian(values)).reshape(-1)
    size = plain.dtype.itemsize
    word = next((n for n in (8, 4, 2) if size and size % n == 0), 1)
    return plain.view(f"u{word}").reshape(plain.size, size // word)


def _little_endian(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder("<"), copy=False)
