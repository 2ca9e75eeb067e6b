"""How numbers and times are stored: packed, or as they are, so that nothing changes unannounced.

Encoding that the user asks for is applied or refused. Inherited encoding is adapted or left out,
and logged: the user did not choose it, so it must not stop an export or change values. (For chunks
and codecs see `storage` and `codecs`.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nczarr_xarray.backend.cf_encoding import read_dtype, time_numbers
from nczarr_xarray.backend.compat import holds_missing, in_memory
from nczarr_xarray.export.form.attributes import same_value
from nczarr_xarray.export.form.rounding import inexact, refuse_values
from nczarr_xarray.export.form.storage import CF_KEYS, netcdf_type
from nczarr_xarray.export.form.text import text_type
from nczarr_xarray.formats.nczarr.values import number_marks
from nczarr_xarray.model import NC_DTYPES

if TYPE_CHECKING:
    import xarray as xr

#: Fill values are among them: they are packed, and might be equal to a number that is not.
_PACKING = ("dtype", "scale_factor", "add_offset", "_Unsigned", "_FillValue", "missing_value")

_CAME_WITH = (
    "; its encoding came with the data: give another one (encoding={...: {'dtype': ...}}), or "
    "leave it out (drop_encoding)"
)


#: Numbers that are looked at together.
_AT_A_TIME = 1 << 20

_log = logging.getLogger(__name__)


def leave_out(
    path: str, encoding: Mapping[str, Any], keys: Iterable[str], reason: object
) -> dict[str, Any]:
    """Return `encoding` without `keys`; each removed key is logged."""
    gone = {key: encoding[key] for key in keys if key in encoding}
    _log.info("%s: inherited encoding %.200r is left out: %s", path, gone, reason)
    return {key: value for key, value in encoding.items() if key not in gone}


def with_one_fill(path: str, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return `encoding` without a ``missing_value`` that is not the fill, which xarray refuses."""
    fill, missing = encoding.get("_FillValue"), encoding.get("missing_value")
    if fill is not None and missing is not None and not same_value(fill, missing):
        return leave_out(path, encoding, ["missing_value"], f"_FillValue is {fill!r}")
    return dict(encoding)


def adapted(path: str, variable: xr.Variable, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return an inherited encoding without what does not suit the data any more.

    Parameters
    ----------
    path
        Path of the variable, for the log.
    """
    found = with_one_fill(path, encoding)
    text = variable.dtype.kind in "SUT"
    for key in ("_FillValue", "missing_value"):
        value = found.get(key)
        if value is None or variable.dtype.kind == "O":  # objects are texts or dates
            continue
        if (np.asarray(value).dtype.kind in "SU") != text:
            found = leave_out(path, found, [key], f"the data are of type {variable.dtype}")
        elif not text:
            found = _with_possible_mark(path, variable, found, key)
    fill = found.get("_FillValue")
    missing = found.get("missing_value")
    if fill is None and missing is not None and found.get("_Unsigned") is not None:
        # xarray compares it with numbers of the other sign, so that it masks nothing
        found = leave_out(path, found, ["missing_value"], "_Unsigned changes its sign")
        variable.attrs.setdefault("missing_value", missing)
    if isinstance(fill, (str, bytes)) and len(fill) > 1:
        asked = text_type(found.get("dtype"))
        plain = variable.dtype.kind == "S" or isinstance(fill, bytes)
        if asked == "char" or (asked is None and plain):
            found = leave_out(path, found, ["_FillValue"], "a char has one byte")
    try:
        wanted = np.dtype(found.get("dtype"))  # (of None it is float64)
    except TypeError as error:
        return leave_out(path, found, ["dtype"], error)
    if netcdf_type(wanted) is None and wanted.kind not in "SU" and netcdf_type(variable.dtype):
        return leave_out(path, found, ["dtype"], "netCDF does not have this type")
    return found


def _with_possible_mark(
    path: str, variable: xr.Variable, encoding: dict[str, Any], key: str
) -> dict[str, Any]:
    """Return an encoding with one mark of missing data, which elements can have, or none."""
    try:
        dtype = np.dtype(encoding.get("dtype") or variable.dtype)
    except TypeError:
        return encoding  # xarray raises an error for it
    if dtype.kind not in "iuf" or dtype not in NC_DTYPES.values():
        return encoding
    if dtype.kind == "f":  # xarray rounds it to the type, as the elements
        stated = np.asarray(encoding[key], "f8").ravel()
        with np.errstate(over="ignore"):
            rounded = stated.astype(dtype)
        marks = [*rounded[np.isfinite(rounded) | ~np.isfinite(stated)]]
    else:
        marks = number_marks(encoding[key], dtype, "_Unsigned" in encoding)
    if not marks:
        return leave_out(path, encoding, [key], f"no element of type {dtype} can have it")
    return encoding if np.size(encoding[key]) == 1 else {**encoding, key: marks[0]}


def without_marks(dataset: xr.Dataset) -> set[Hashable]:
    """Return the variables of which xarray would give some a ``_FillValue`` that says nothing.

    It is NaN for all floats that have none. CF forbids it for coordinates and bounds, and what was
    read without one would change. Missing values in memory have one.
    """
    found = {*dataset.coords, *dataset.dims}
    for variable in dataset.variables.values():
        for key in ("bounds", "climatology"):
            found.add(variable.attrs.get(key, variable.encoding.get(key)))
    found |= {name for name, v in dataset.variables.items() if "original_shape" in v.encoding}
    return {
        name
        for name in found & dataset.variables.keys()
        if "_FillValue" not in dataset.variables[name].attrs
        and not holds_missing(dataset.variables[name])
    }


def becomes_missing(encoded: xr.Variable, values: xr.Variable, told: Mapping[str, Any]) -> bool:
    """Tell whether numbers in memory are stored as a mark of missing ones.

    Parameters
    ----------
    told
        Has the marks. Those that are attributes of `values` are numbers of these, too.
    """
    keys = {"_FillValue", "missing_value"} & told.keys() - values.attrs.keys()
    stated = [np.ravel(told[key]) for key in keys]
    marks = [x for mark in stated if mark.dtype.kind in "iuf" for x in mark[~np.isnan(mark)]]
    if not marks or encoded.dtype.kind not in "iuf" or not in_memory(values):
        return False
    marked = np.any([encoded.values == mark for mark in marks], axis=0)
    return bool(marked.any() and np.any(marked & ~values.isnull().values))


def without_cf(path: str, encoding: Mapping[str, Any], error: Exception) -> dict[str, Any] | None:
    """Return an encoding without the keys that concern values; None if it has none of them.

    Parameters
    ----------
    error
        The reason why the values cannot be encoded.
    """
    keys = CF_KEYS & encoding.keys()
    return leave_out(path, encoding, keys, error) if keys else None


def is_packed(variable: xr.Variable) -> bool:
    """Tell whether it takes a variable's values to know that its encoding changes none."""
    encoding, kind = variable.encoding, variable.dtype.kind
    times = kind in "mMO"  # objects with a type of numbers are dates, or are refused
    if kind == "c" and is_scaled(encoding):
        return True  # xarray makes floats of them, without a type as well
    if encoding.get("dtype") is None or not (kind in "fiuc" or times):
        return False
    try:
        dtype = read_dtype(encoding)
    except TypeError:
        return False  # xarray raises an error for it
    if times:  # int64 holds all times of xarray, and a value for missing ones
        return (dtype.kind in "iu" and dtype != np.int64) or dtype == np.float32
    # numpy lets float64 hold all integers
    sure = kind == dtype.kind or variable.dtype.itemsize < 8
    exact = sure and np.can_cast(variable.dtype, dtype)
    return dtype.kind in "fiub" and (is_scaled(encoding) or not exact)


def is_scaled(encoding: Mapping[str, Any]) -> bool:
    """Tell whether numbers are not stored as they are."""
    return any(encoding.get(key) is not None for key in ("scale_factor", "add_offset"))


def keep_whole(path: str, variable: xr.Variable, *, asked: bool, whole: bool = False) -> str | None:
    """Change a variable that `is_packed` so that packing it changes no number.

    xarray casts without a check: numbers that are too large for the type wrap around or become
    infinite, complex ones lose their imaginary part, all but 0 become true, missing values
    become integers where there is no ``_FillValue``, and fractions are cut off. So numbers in
    memory are stored unpacked if their encoding is inherited. dask's numbers are not known yet:
    floats that may be missing are stored as they are, and the others raise `FormatError` when they
    are computed. Fractions are rounded where that is asked for, and those of dask's scaled numbers.

    Parameters
    ----------
    asked, whole
        Whether the user asks for the encoding, and whether it must not round numbers all the same.

    Returns
    -------
    str or None
        Why an encoding that the user asks for cannot hold the numbers in memory.
    """
    # as an attribute, too, _Unsigned has a number read as it was before it wrapped around
    told = {name: variable.attrs[name] for name in ("_Unsigned", "units") if name in variable.attrs}
    whole |= not asked and (variable.chunks is None or not is_scaled(variable.encoding))
    check = overflow_check({**told, **variable.encoding}, whole=whole)
    lazy = variable.chunks is not None
    if lazy and not asked and _became_floats(variable):
        reason = "integers were read, and these are floats, of which some may be missing"
        variable.encoding = leave_out(path, variable.encoding, _PACKING, reason)
        return None
    if not lazy and (problem := check(variable.values)) is not None:
        if asked:
            return problem
        variable.encoding = leave_out(path, variable.encoding, _PACKING, f"it {problem}")
        return None
    if lazy:
        guard = partial(refuse_values, path, check, advice="" if asked else _CAME_WITH)
        variable.data = variable.data.map_blocks(guard, dtype=variable.dtype)
    if (dtype := _plain_dtype(variable)) != variable.dtype:
        variable.data = variable.data.round().astype(dtype)
    return None


#: Units of durations that xarray knows.
_DURATIONS = frozenset(
    ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
)


def _plain_dtype(variable: xr.Variable) -> np.dtype:
    """Return the integers that numbers become if none is missing or scaled; else their own dtype.

    xarray casts them by way of float64, or warns of values that may be missing.
    """
    encoding, kind = variable.encoding, variable.dtype.kind
    fills = encoding.get("_FillValue"), encoding.get("missing_value")
    units = str({**variable.attrs, **encoding}.get("units", ""))
    # xarray reads missing ones as the least integer, and knows them by that
    has_times = variable.dtype == np.int64 and (" since " in units or units in _DURATIONS)
    plain = kind in "iu" and not has_times if fills != (None, None) else kind in "iuf"
    dtype = read_dtype(encoding)
    return dtype if plain and dtype.kind in "iu" and not is_scaled(encoding) else variable.dtype


def _became_floats(variable: xr.Variable) -> bool:
    """Tell whether a variable has floats where it was read as integers without a fill value.

    So it is if some values are missing: those of files that lack the variable, for example.
    """
    encoding = variable.encoding
    return (
        variable.dtype.kind == "f"
        and read_dtype(encoding).kind in "iu"
        and not is_scaled(encoding)
        and _mark(encoding) is None
    )


def _mark(encoding: Mapping[str, Any]) -> Any:
    """Return what xarray stores for missing values; None if there is nothing."""
    fill = encoding.get("_FillValue")  # None if there is to be none
    return encoding.get("missing_value") if fill is None else fill


def overflow_check(
    encoding: Mapping[str, Any], *, whole: bool = False
) -> Callable[[np.ndarray], str | None]:
    """Return a function that says why the numbers of an encoding cannot hold some values.

    Parameters
    ----------
    whole
        Whether numbers that become integers must be whole, but for the error of floats, and
        floats hold integers exactly.
    """
    fill = _mark(encoding)
    return partial(
        _overflow,
        dtype=read_dtype(encoding),
        has_fill=fill is not None,
        large_fill=np.asarray(fill).dtype == np.uint64 and np.any(fill > np.iinfo("i8").max),
        scale_factor=encoding.get("scale_factor"),
        add_offset=encoding.get("add_offset"),
        units={key: encoding[key] for key in ("units", "calendar") if key in encoding},
        whole=whole,
    )


def _overflow(values: np.ndarray, **told: Any) -> str | None:
    try:
        return _beyond(values, **told)
    except (ValueError, TypeError, OverflowError):
        return None  # what encodes them says why


def _beyond(
    values: np.ndarray,
    *,
    dtype: np.dtype,
    has_fill: bool,
    large_fill: bool,
    scale_factor: Any,
    add_offset: Any,
    units: Mapping[str, Any],
    whole: bool,
) -> str | None:
    """Say which of the scaled `values` numbers of `dtype` cannot hold; None if they hold all."""
    if values.dtype.kind in "mMO" and dtype.kind == "f":
        numbers = time_numbers(values, units, "f8")
        error = np.abs(numbers - numbers.astype(dtype))
        rounded = whole and np.any(error > 1e-9 + 1e-12 * np.abs(numbers))
        return f"holds times that {dtype} would round" if rounded else None
    if values.dtype.kind in "mMO":
        numbers = time_numbers(values, units)
        if numbers.size < values.size and not has_fill:
            return "holds missing times, and has no _FillValue to store for them"
        if numbers.size < values.size and large_fill:  # xarray stores 0
            return "holds missing times, and its _FillValue is larger than int64 can hold"
        values = numbers
    if values.dtype.kind == "c":
        if values.imag.any():
            return f"holds complex numbers, which {dtype} cannot hold"
        values = values.real
    if dtype.kind == "b":
        others = values[(values != 0) & (values != 1)]
        return f"holds the value {others[0]!s:.30}, which bool cannot hold" if others.size else None
    if values.dtype.kind == "i" and has_fill and units:  # NaT of times that were not decoded
        values = values[values != np.iinfo("i8").min]
    if dtype.kind == "f":  # which has missing and infinite numbers
        values = values[np.isfinite(values)]
    if not values.size:
        return None
    ends = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    if values.dtype.kind == "f" and not has_fill and np.isnan(values).any():
        return "holds missing values, and has no _FillValue to store for them"
    for end in ends:
        if end != end:  # noqa: PLR0124 - NaN: there are no numbers
            continue
        with np.errstate(over="ignore"):
            number = (float(end) if scale_factor or add_offset else end) - (add_offset or 0)
            number = number / (scale_factor or 1) if scale_factor else number
            if not _holds(dtype, number):
                return f"holds the value {end!s:.30}, which {dtype} cannot hold"
    if not whole:
        return None
    if dtype.kind == "f" and values.dtype.kind in "iu":
        scaled = scale_factor is not None or add_offset is not None
        return inexact(values, np.dtype("f8") if scaled else dtype)
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return None
    scale, offset = scale_factor or 1, add_offset or 0
    eps = 0 if scale == 1 and not offset else 4 * float(np.finfo(values.dtype).eps)
    flat = values.ravel()
    for first in range(0, flat.size, _AT_A_TIME):
        part = flat[first : first + _AT_A_TIME]
        part = part[np.isfinite(part)]
        numbers = (part.astype("f8") - offset) / scale
        room = eps * np.maximum(np.abs(part), abs(offset)) / abs(scale)
        broken = part[np.abs(numbers - np.around(numbers)) > room]
        if broken.size:
            return f"holds the value {broken[0]!s:.30}, which {dtype} cannot hold"
    return None


def _holds(dtype: np.dtype, number: Any) -> bool:
    """Tell whether `dtype` has a finite number, when it is rounded."""
    if dtype.kind == "f":
        return bool(np.isfinite(np.asarray(number).astype(dtype)).all())
    limits = np.iinfo(dtype)
    return bool(limits.min <= np.around(number).item() <= limits.max)  # exact, as numpy's is not
