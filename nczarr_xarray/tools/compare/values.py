"""Values of two datasets: as exact text, where they differ, and what readers get of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nczarr_fsspec.errors import URLError
from nczarr_xarray.model import (
    NC_DTYPES,
    EnumType,
    Variable,
    bytes_of,
    element_of,
    join,
    mapped,
    text_of,
)

_NAMES = {dtype: name for name, dtype in NC_DTYPES.items() if dtype.kind != "O"}


def type_text(dtype: np.dtype) -> str:
    """Return the name of a dtype, whatever its byte order and padding are."""
    element = element_of(dtype)
    if element is not None:
        return f"sequence of {type_text(element)}"
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{type_text(base)}[{', '.join(map(str, shape))}]"
    if dtype.names is not None:
        fields = (f"{type_text(dtype[name])} {_quoted(name)}" for name in dtype.names)
        return f"compound {{{', '.join(fields)}}}"
    if dtype.kind == "O":
        return "string"
    return _NAMES.get(dtype.newbyteorder("="), dtype.str.lstrip("<>|"))


def variable_type(variable: Variable) -> str:
    """Return the type of a variable as text."""
    if variable.enum is not None:
        return f"enum {join(variable.enum.group, variable.enum.name)} {enum_text(variable.enum)}"
    return variable.nc_type or type_text(variable.dtype)


def enum_text(enum: EnumType) -> str:
    """Return what an enum consists of: its base type, its names and their numbers."""
    members = sorted(enum.members.items(), key=lambda member: (member[1], member[0]))
    return f"{enum.nc_type} {{{', '.join(f'{_quoted(n)} = {value}' for n, value in members)}}}"


def spelled(values: Any) -> list[str]:
    """Return a text for each element of a 1-D array, or of a sequence of ``str``.

    A NaN that is not the usual one is followed by its bits.
    """
    values = np.asarray(values, None if isinstance(values, np.ndarray) else object)
    if values.dtype.names is not None:
        columns = [_rows(values[name]) for name in values.dtype.names]
        names = [_quoted(name) for name in values.dtype.names]
        return [
            f"{{{', '.join(f'{n}: {text}' for n, text in zip(names, row, strict=True))}}}"
            for row in zip(*columns, strict=True)
        ]
    kind = values.dtype.kind
    if kind == "f":
        return list(map(_float, values.astype(values.dtype.newbyteorder("="))))
    if kind == "c":
        pairs = zip(spelled(values.real), spelled(values.imag), strict=True)
        return [f"{real} + {imaginary}i" for real, imaginary in pairs]
    if kind in "mM":
        return [f"{one}" for one in values]
    if kind == "V":
        return [f"0x{one.tobytes().hex()}" for one in values]
    return [_object(one) for one in values.tolist()]


def _rows(values: np.ndarray) -> list[str]:
    """Return a text for each element along the first dimension."""
    if values.ndim == 1:
        return spelled(values)
    return [f"[{', '.join(_rows(row))}]" for row in values]


def _object(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"[{', '.join(spelled(value))}]"
    if isinstance(value, bytes):
        return _quoted(text_of(value))
    return _quoted(value) if isinstance(value, str) else str(value)


def _float(value: np.floating[Any]) -> str:
    if value == value:  # noqa: PLR0124 - only NaN is not equal to itself
        return str(value)
    bits = value.tobytes()
    usual = bits == value.dtype.type(np.nan).tobytes()
    return "nan" if usual else f"nan (0x{bits[::-1].hex()})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


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
    plain = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False)).reshape(
        -1
    )
    size = plain.dtype.itemsize
    word = next((n for n in (8, 4, 2) if size and size % n == 0), 1)
    return plain.view(f"u{word}").reshape(plain.size, size // word)


def is_decoded(variable: Variable) -> bool:
    """Tell whether elements are numbers or text that stand for others, or for missing ones."""
    return variable.enum is None and variable.dtype.kind in "iufSUO"


def decoded(variable: Variable, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what stored elements of a variable stand for, and which of them are missing."""
    signed = _text(variable, "_Unsigned")
    other = {"itrue": "u", "ufalse": "i"}.get(f"{values.dtype.kind}{signed}")
    stored = values
    if other is not None:
        values = values.astype(f"{other}{values.dtype.itemsize}")
    missing = np.zeros(values.shape, bool)
    for mark in _marks(variable, stored.dtype.kind):
        missing |= stored == mark
    if values.dtype.kind not in "iuf":
        return values, missing
    for name, unpack in (("scale_factor", np.multiply), ("add_offset", np.add)):
        factor = variable.attributes.get(name)
        if factor is not None and isinstance(factor.value, np.ndarray) and factor.value.size == 1:
            with np.errstate(all="ignore"):
                values = unpack(values.astype(np.float64), np.float64(factor.value[0]))
    if values.dtype.kind == "f":
        missing |= np.isnan(values)
    return values, missing


def differing_decoded(
    variables: tuple[Variable, Variable],
    stored: tuple[np.ndarray, np.ndarray],
    tolerance: Tolerance = EXACT,
) -> np.ndarray:
    """Tell, for each element, whether readers get different numbers of it, or one gets none."""
    (a, a_missing), (b, b_missing) = map(decoded, variables, stored)
    if tolerance != EXACT and a.dtype.kind in "iuf" and b.dtype.kind in "iuf":
        other = tolerance.exceeded(a.astype(np.float64), b.astype(np.float64))
    else:
        other = a != b
    found: np.ndarray = (a_missing != b_missing) | (other & ~a_missing & ~b_missing)
    return found


def decoded_text(variable: Variable, value: np.ndarray) -> str:
    """Return what one stored element stands for, as text."""
    number, missing = decoded(variable, value)
    return "missing" if missing.all() else str(number.ravel()[0])


def _marks(variable: Variable, kind: str) -> Iterator[Any]:
    """Yield the stored elements, of a kind of numpy, that stand for missing ones."""
    number = kind in "iuf"
    for name in ("_FillValue", "missing_value"):
        attribute = variable.attributes.get(name)
        if attribute is None:
            continue
        value = attribute.value
        if number and isinstance(value, np.ndarray):
            yield from value
        elif not number and isinstance(value, str):
            yield bytes_of(value) if kind == "S" else value
        elif not number and isinstance(value, tuple):
            yield from value


def _text(variable: Variable, name: str) -> str | None:
    attribute = variable.attributes.get(name)
    if attribute is None:
        return None
    value = attribute.value
    return (value if isinstance(value, str) else str(value[0]) if len(value) else "").lower()
