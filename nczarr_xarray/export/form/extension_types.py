"""Values of pandas' own types, as numpy has them and CF describes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from xarray.indexes import PandasMultiIndex

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.backend.compat import in_memory
from nczarr_xarray.export.form.lacking import CATEGORIES, ZONES, Lacking
from nczarr_xarray.export.form.storage import netcdf_type
from nczarr_xarray.model import NC_DEFAULT_FILL

#: All integers up to this one are numbers of float64, which has a value for missing ones.
_WHOLE = 2**53


def without_extension_types(url: str, dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset of which all values are numpy's.

    - Integers and booleans some of which are missing get a ``_FillValue``.
    - Categories become integers with ``flag_values`` and ``flag_meanings``, unless they are numbers
      or times.
    - Times of a zone become those of UTC.

    Parameters
    ----------
    url
        How messages name the target.

    Raises
    ------
    ExportError
        If values have no such form; it lists all variables.

    Warns
    -----
    NCZarrWarning
        If there are categories or zones.
    """
    problems, lacking = [], Lacking(netcdf4=False)
    for name, variable in dataset.variables.items():
        if isinstance(variable.dtype, np.dtype) and _zone(variable) is None:
            continue
        if isinstance(dataset.xindexes.get(name), PandasMultiIndex):
            continue  # which is refused later
        try:
            plain = _plain(str(name), variable, lacking)
        except (ValueError, TypeError) as error:
            problems.append(f"{name}: is of type {variable.dtype}, {error}")
            continue
        is_coordinate = name in dataset.coords
        dataset = (dataset.assign_coords if is_coordinate else dataset.assign)({name: plain})
    if problems:
        raise ExportError(url, "cannot be exported as it is; nothing was written", problems)
    lacking.tell(url)
    return dataset


def _zone(variable: xr.Variable) -> Any:
    """Return the zone of times, or None; outside of an index, xarray has them as objects."""
    if variable.dtype.kind != "O" or not in_memory(variable):  # nothing is read for this
        return getattr(variable.dtype, "tz", None)
    values = variable.to_numpy().ravel()
    if pd.api.types.infer_dtype(values) != "datetime":
        return None
    return next(filter(None, (one.tzinfo for one in values if not pd.isna(one))), None)


def _plain(name: str, variable: xr.Variable, lacking: Lacking) -> xr.Variable:
    attributes: dict[str, Any] = {}
    encoding: dict[str, Any] = {}
    # other ways make floats of integers; it may have lost the type of a former level of an index
    array: Any = variable.to_index().array if variable.ndim == 1 else variable.to_numpy().ravel()
    if not isinstance(variable.dtype, np.dtype):
        array = pd.array(array, dtype=variable.dtype)
    if isinstance(array.dtype, pd.CategoricalDtype):
        found: Any = np.asarray(array)
        if found.dtype.kind == "O":
            found, attributes, encoding = _flags(array)
            lacking.note(CATEGORIES, name)
    elif (zone := _zone(variable)) is not None:
        if any(getattr(one, "tzinfo", zone) is None for one in array if not pd.isna(one)):
            raise ValueError("with times of a zone and times without one")
        found = pd.to_datetime(array, utc=True).tz_localize(None).to_numpy()
        if str(zone) != "UTC":
            lacking.note(ZONES, name)
    elif isinstance(array.dtype, pd.SparseDtype):
        found = np.asarray(array)
    elif isinstance(variable.dtype, pd.StringDtype):
        found = np.asarray(array, object)
    else:
        numbers = getattr(array.dtype, "numpy_dtype", np.dtype(object))
        if numbers.kind not in "iufbmM":
            raise ValueError("which netCDF does not have: convert it with astype(str)")
        found, encoding = _numbers(array, numbers)
    return xr.Variable(
        variable.dims,
        found.reshape(variable.shape),
        {**variable.attrs, **attributes},
        {**encoding, **variable.encoding},
    )


def _flags(array: pd.Categorical) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
    """Return the numbers of categories, and the attributes and encoding that tell their meaning."""
    meanings = [*array.categories]
    if not all(isinstance(one, str) and one.split() == [one] for one in meanings):
        raise ValueError(
            "and flag_meanings has single words only: rename the categories, or convert it with "
            "astype(str)"
        )
    attributes = {
        "flag_values": np.arange(len(meanings), dtype=array.codes.dtype),
        "flag_meanings": " ".join(meanings),
    }
    numbers = pd.Series(array.codes).astype(f"Int{array.codes.itemsize * 8}")
    found, encoding = _numbers(numbers.mask(numbers < 0).array, array.codes.dtype)
    return found, attributes, encoding


def _numbers(array: Any, dtype: np.dtype) -> tuple[np.ndarray, dict[str, Any]]:
    """Return numbers, times or truth values of `dtype`, and the encoding of what is missing."""
    missing = array.isna()
    if not missing.any():
        return array.to_numpy(dtype), {}
    if dtype.kind in "fmM":
        none = np.array("nan" if dtype.kind == "f" else "NaT", dtype)[()]
        return array.to_numpy(dtype, na_value=none), {}
    integer = np.dtype("i1") if dtype.kind == "b" else dtype
    known = array[~missing].to_numpy(integer)
    if known.size and not -_WHOLE <= known.min() <= known.max() <= _WHOLE:
        raise ValueError("with large integers beside missing ones: use fillna and astype('i8')")
    limits = np.iinfo(integer)
    fills = (NC_DEFAULT_FILL[str(netcdf_type(integer))], limits.min, limits.max)
    fill = next((one for one in fills if one not in known), None)
    if fill is None:
        raise ValueError("and no number is left for missing ones: use astype('f8')")
    floats = np.dtype("f4" if integer.itemsize <= 2 else "f8")  # as xarray reads them
    return array.to_numpy(floats, na_value=np.nan), {"dtype": integer, "_FillValue": fill}
