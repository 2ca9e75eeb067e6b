"""Types and values as text that is exact: equal texts mean equal types and bits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nczarr_xarray.model import NC_DTYPES, EnumType, Variable, element_of, join, text_of

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
