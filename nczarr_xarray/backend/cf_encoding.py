"""xarray's CF encoding, corrected: what it makes of values is what readers decode to them.

xarray puts a ``_FillValue`` among floats before it makes integers of them, so that another number
is stored for one that float64 cannot hold, as netCDF's for int64 (`set_aside`). It writes
``_Unsigned`` together with a fill value only, without which 254 would be -2 in the file
(`as_read`). It scales in types that wrap around (`_calculable`), and divides times by zero
(`_fine_times`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from xarray import Variable

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.backend.compat import (
    NONE_VAR_NAME,
    VLEN_STRING,
    CharacterArrayCoder,
    EncodedStringCoder,
    cf_encoder,
    check_vlen_dtype,
    encode_dataset_coordinates,
    encode_datetimes,
    encode_timedeltas,
    ensure_dtype_not_object,
    infer_calendar_name,
)

#: Units that may be finer than the resolution in which numpy has times.
_FINE_UNITS = {
    f"{name}{plural}": unit
    for unit, name in (("ns", "nanosecond"), ("us", "microsecond"), ("ms", "millisecond"))
    for plural in ("", "s")
}


def encode_for_netcdf(dataset: xr.Dataset) -> tuple[dict[Any, Variable], dict[Any, Any]]:
    """Return variables and attributes as the netCDF-4 data model has them (CF; text is str or S1).

    Parameters
    ----------
    dataset
        dask's arrays of objects are taken for text, and stay dask's.

    Raises
    ------
    ValueError
        If values have no such form; of dask's arrays of objects, when they are computed.
    """
    try:
        variables, attributes = encode_dataset_coordinates(dataset)
        variables = {
            name: _fine_times(name, _calculable(name, variable))
            for name, variable in variables.items()
        }
        filled, missing = set_aside(variables.items())
        changed, stored = as_read(variables)
        given = {**variables, **filled, **changed}
        variables, attributes = cf_encoder(given, attributes)
    except (AttributeError, KeyError) as error:
        # of units that xarray does not know, or a "coordinates" that is no text
        reason = f"xarray cannot encode it ({type(error).__name__}: {error})"
        raise ValueError(reason) from error
    text: Any = EncodedStringCoder(allows_unicode=True)
    chars: Any = CharacterArrayCoder()
    encoded = {}
    for name, variable in variables.items():
        if name in missing:
            variable = put_back(variable, missing[name])
        if name in stored:
            variable = with_other_sign(variable, stored[name])
        if given[name].dtype.kind == "S" and variable.dtype.kind == "O":
            # none is missing: xarray made objects of them to fill gaps with a text
            variable = variable.copy(data=given[name].data)
        variable = text.encode(_typed(variable, name), name=name)
        encoded[NONE_VAR_NAME if name is None else name] = chars.encode(variable, name=name)
    return encoded, dict(attributes)


def _calculable(name: Any, variable: Variable) -> Variable:
    """Return a variable with which xarray calculates what CF means.

    - xarray casts values to the type of an integer ``scale_factor``, here and when it reads them,
      so that fractions are cut off.
    - It packs numbers in their own type, or in float32: integers may wrap around or be rounded, and
      float16 may overflow.
    - For ``_Unsigned`` it rounds floats, even if floats are stored. (When it reads them, it ignores
      the attribute.) Other numbers may become integers as small as the data, whatever is stored.

    Raises
    ------
    ValueError
        If nothing can be stored with the scale or offset.
    """
    found = variable.copy(deep=False)
    encoding, kind = found.encoding, found.dtype.kind
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    if (scale is not None and not (scale and np.isfinite(scale))) or (
        offset is not None and not np.isfinite(offset)
    ):
        reason = f"no number can be stored with scale_factor {scale!r}, add_offset {offset!r}"
        raise ValueError(f"{name!r}: {reason}")
    if isinstance(scale, (int, np.integer)):
        encoding["scale_factor"] = float(scale)
    scaled = (scale, offset) != (None, None)
    stored = np.dtype(encoding.get("dtype") or found.dtype)
    if scaled and (kind in "iub" or found.dtype == "f2"):
        found.data = found.data.astype("f8")
    if encoding.get("_Unsigned") is None:
        return found
    if stored.kind == "f":
        found.attrs.setdefault("_Unsigned", encoding.pop("_Unsigned"))
    elif kind == "f" or (kind in "iu" and found.dtype.itemsize < stored.itemsize):
        found.data = found.data.astype(f"{kind}{8 if kind == 'f' else stored.itemsize}")
    return found


def _fine_times(name: Any, variable: Variable) -> Variable:
    """Return times and durations with the resolution of their units, where that is finer.

    xarray (2026.9) would divide them by zero, and store NaT or infinity. So it would with blocks of
    dask whose resolution is coarser than dask has told, from which xarray takes the units.
    """
    kind, encoding = variable.dtype.kind, variable.encoding
    units, lazy = str(encoding.get("units")), variable.chunks is not None
    if kind not in "mM" and not (kind == "O" and lazy and " since " in units):
        return variable
    unit = _FINE_UNITS.get(units.partition(" since ")[0].strip().lower())
    finer = variable.dtype if unit is None or kind == "O" else np.dtype(f"{kind}8[{unit}]")
    finer = max(variable.dtype, finer)
    if lazy:
        how = tuple(encoding.get(key) for key in ("units", "calendar", "dtype"))
        blocks = variable.data.map_blocks(_storable_times, finer, str(name), how, dtype=finer)
        return variable.copy(data=blocks)
    if finer == variable.dtype:
        return variable
    return variable.copy(data=_cast_times(variable.values, finer))


def _cast_times(times: np.ndarray, finer: np.dtype) -> np.ndarray:
    """Return times with a finer resolution; `OverflowError` if one is out of its range.

    numpy before 2.5 wraps it around.
    """
    if times.dtype.kind != finer.kind or times.dtype >= finer:
        return times
    found = times.astype(finer)
    if not np.array_equal(found.astype(times.dtype), times, equal_nan=True):
        raise OverflowError(f"times are out of the range of {finer}")
    return found


def _storable_times(
    times: np.ndarray, finer: np.dtype, name: str, how: tuple[Any, Any, Any]
) -> np.ndarray:
    """Return a block of dask with a finer resolution; `ExportError` if units cannot hold it.

    In memory, xarray chooses finer units.
    """
    units, calendar, dtype = how
    try:
        found = _cast_times(times, finer)
        if units is not None and dtype is not None and found.size:
            if found.dtype.kind == "m":
                encode_timedeltas(found, units, dtype)
            else:
                calendar = calendar or infer_calendar_name(found)
                encode_datetimes(found, units, calendar, dtype)
    except (ValueError, OverflowError) as error:
        reason = f"blocks of dask have times that {units!r} as {dtype} cannot hold"
        advice = "give other units or another dtype by encoding=, or load the variable"
        raise ExportError(name, f"{reason} ({error}): {advice}") from error
    return found


def units_of_times(variable: Variable) -> str | None:
    """Return the units that xarray chooses for times, or None for other values.

    Raises
    ------
    ValueError
        If xarray cannot encode the times.
    """
    kind = variable.dtype.kind
    if kind == "O" and any(hasattr(value, "calendar") for value in variable.to_numpy().flat[:1]):
        kind = "M"  # dates of cftime
    if kind not in ("m", "M"):
        return None
    plain = Variable(variable.dims, variable.to_numpy())
    units: str = encode_for_netcdf(xr.Dataset({"v": plain}))[0]["v"].attrs["units"]
    return units


def time_numbers(times: np.ndarray, units: Mapping[str, Any], dtype: str = "i8") -> np.ndarray:
    """Return the numbers that xarray makes of all times that are not missing.

    Parameters
    ----------
    times
        Of numpy or of cftime, or durations.
    units
        Their encoding. xarray chooses finer units where these are too coarse for integers.
    """
    times = np.atleast_1d(times)
    known = times[~pd.isna(times)]
    if not known.size:
        return np.zeros(0, "i8")
    plain = Variable(("times",), known, encoding={**units, "dtype": np.dtype(dtype)})
    numbers: np.ndarray = encode_for_netcdf(xr.Dataset({"v": plain}))[0]["v"].to_numpy()
    return numbers


def _typed(variable: Variable, name: Any) -> Variable:
    """Return objects as text, bytes or numbers, whichever they are."""
    if variable.dtype.kind != "O" or check_vlen_dtype(variable.dtype) is not None:
        return variable
    if variable.chunks is None:
        typed: Variable = ensure_dtype_not_object(variable, name=name)
        return typed
    return variable.copy(data=variable.data.map_blocks(_texts, str(name), dtype=VLEN_STRING))


def _texts(block: Any, name: str) -> Any:
    """Return objects that must be text; what is missing is empty, as xarray has it."""
    block = np.asarray(block, object)  # of a scalar, dask has the object itself
    texts = np.where(pd.isna(block), "", block).astype(VLEN_STRING)
    for value in texts.ravel().tolist():
        if not isinstance(value, str):
            raise ExportError(
                name,
                f"dask's arrays of objects are taken for text, and this one holds {value!r:.60}: "
                "convert it with astype",
            )
    return texts


class Missing(NamedTuple):
    """Where values are missing, and the integer that stands for them."""

    where: Variable
    fill: np.generic


def set_aside(
    variables: Iterable[tuple[Any, Variable]],
) -> tuple[dict[Any, Variable], dict[Any, Missing]]:
    """Return those variables whose fill floats cannot hold, without missing values, and these."""
    filled, missing = {}, {}
    for name, variable in variables:
        fill = _inexact_fill(variable)
        if fill is not None:
            offset = variable.encoding.get("add_offset")  # it becomes 0, which all types can hold
            filled[name] = variable.fillna(0 if offset is None else offset)
            filled[name].encoding = variable.encoding
            missing[name] = Missing(variable.isnull(), fill)  # noqa: PD003 - xarray's, not pandas'
    return filled, missing


def put_back(encoded: Variable, missing: Missing) -> Variable:
    """Return encoded values with the fill where they were missing."""
    fill = missing.fill.astype(encoded.dtype)
    return encoded.copy(data=encoded.where(~missing.where, fill).data)


def _inexact_fill(variable: Variable) -> np.generic | None:
    """Return the fill value of floats if it is an integer that float64 cannot hold; else None."""
    if variable.dtype.kind != "f":
        return None
    stated: Any = variable.encoding.get("_FillValue")
    fill = np.asarray(variable.encoding.get("missing_value") if stated is None else stated)
    if fill.dtype.kind not in "iu" or fill.size != 1:
        return None
    found: np.generic = fill.reshape(-1)[0]
    return None if int(float(found)) == int(found) else found


def read_dtype(encoding: Mapping[str, Any]) -> np.dtype:
    """Return the dtype as which packed numbers are read, which ``_Unsigned`` says."""
    dtype = np.dtype(encoding.get("dtype"))  # (of None it is float64)
    read = {"true": "u", "false": "i"}.get(str(encoding.get("_Unsigned")))
    return np.dtype(f"{read}{dtype.itemsize}") if read and dtype.kind in "iu" else dtype


class OtherSign(NamedTuple):
    """How integers are stored that are read with the other sign."""

    dtype: np.dtype
    unsigned: str


def as_read(variables: Mapping[Any, Variable]) -> tuple[dict[Any, Variable], dict[Any, OtherSign]]:
    """Return those variables, to be encoded as they are read, and how they are stored."""
    changed, stored = {}, {}
    for name, variable in variables.items():
        encoding = variable.encoding
        fills = encoding.get("_FillValue"), encoding.get("missing_value")
        if encoding.get("dtype") is None or fills != (None, None):
            continue
        dtype, read = np.dtype(encoding["dtype"]), read_dtype(encoding)
        if read.kind != dtype.kind:
            changed[name] = variable.copy(deep=False)
            changed[name].encoding = {**encoding, "dtype": read}
            stored[name] = OtherSign(dtype, changed[name].encoding.pop("_Unsigned"))
    return changed, stored


def with_other_sign(encoded: Variable, stored: OtherSign) -> Variable:
    """Return encoded values as they are stored, with the attribute."""
    found = encoded.astype(stored.dtype)
    found.attrs["_Unsigned"] = stored.unsigned
    found.encoding = {**encoded.encoding, "dtype": stored.dtype}
    return found
