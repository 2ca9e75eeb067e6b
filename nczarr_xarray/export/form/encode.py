"""How values are encoded: as is asked for or stored, or as they came, adapted to the data.

Values of pandas' own types become what numpy has and CF describes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from xarray.indexes import PandasMultiIndex

from nczarr_fsspec.errors import ExportError
from nczarr_xarray.backend.cf_encoding import encode_for_netcdf, units_of_times
from nczarr_xarray.backend.compat import in_memory, in_turn, without_indexes
from nczarr_xarray.export.form.lacking import CATEGORIES, ZONES, Lacking
from nczarr_xarray.export.form.numbers import (
    adapted,
    is_packed,
    keep_whole,
    without_cf,
    without_marks,
)
from nczarr_xarray.export.form.storage import CF_KEYS, RELATIONS, netcdf_type
from nczarr_xarray.export.form.text import empty_text, settle_objects, text_type, whole_text
from nczarr_xarray.model import NC_DEFAULT_FILL, join

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


#: Errors of xarray about values and encodings.
_NOT_ENCODABLE = (ValueError, TypeError, OverflowError, NotImplementedError)


class Options(NamedTuple):
    """The options of a user for one dataset.

    Parameters
    ----------
    encoding
        Encoding by variable.
    unlimited
        Names of unlimited dimensions; None for those of the source.
    encoded
        Whether values and attributes are encoded already.
    append_dim
        Dimension along which more will come, whether or not it is unlimited.
    whole
        Variables whose numbers must not be rounded for the encoding that is given.
    """

    encoding: Mapping[Hashable, Mapping[str, Any]]
    unlimited: Iterable[Hashable] | None = None
    encoded: bool = False
    append_dim: Hashable | None = None
    whole: AbstractSet[Hashable] = frozenset()


class Encoded(NamedTuple):
    """A dataset in the form in which it is stored.

    Attributes
    ----------
    variables, attributes
        Encoded by CF's rules.
    types
        The dtype of each encoding before that.
    problems
        Why variables cannot be stored; these are left out.
    """

    variables: Mapping[Any, xr.Variable]
    attributes: Mapping[Any, Any]
    types: Mapping[Any, Any]
    problems: list[str]


def encoded(
    path: str, dataset: xr.Dataset, options: Options, growing: AbstractSet[Hashable]
) -> Encoded:
    """Encode a dataset of the group at `path`; `growing` are its unlimited dimensions."""
    problems: list[str] = []
    dataset = without_indexes(dataset)
    unmarked = without_marks(dataset)
    packed: dict[str, tuple[Hashable, xr.Variable]] = {}
    for name, variable in dataset.variables.items():
        encoding = options.encoding.get(name, variable.encoding)
        inherited = name not in options.encoding and not options.encoded
        where = join(path, str(name))
        if inherited:
            encoding = adapted(where, variable, encoding)
        if isinstance(encoding, Mapping):
            settle_objects(variable, encoding)
            # a given encoding says how values are stored: it keeps what they belong to
            came = RELATIONS & variable.encoding.keys() - variable.attrs.keys()
            kept = {key: variable.encoding[key] for key in came}
            variable.encoding = kept | whole_text(variable, encoding)
            for key in RELATIONS - {"coordinates"}:  # of these, xarray wants no None
                if variable.encoding.get(key, "") is None:
                    del variable.encoding[key]
            if name in unmarked:
                variable.encoding.setdefault("_FillValue", None)
            if text_type(encoding.get("dtype")) or "_nczarr_maxstrlen" in encoding:
                empty_text(variable)
        if not options.encoded and is_packed(variable):
            packed[where] = name, variable
    with in_turn([variable for _, variable in packed.values()]):
        for where, (name, variable) in packed.items():
            asked, whole = name in options.encoding, name in options.whole
            problem = keep_whole(where, variable, asked=asked, whole=whole)
            if problem is not None:
                problems.append(f"{where}: {problem}")
                # to check the rest
                dtype = variable.encoding.get("dtype")
                variable.data, variable.encoding = np.zeros(variable.shape, dtype), {"dtype": dtype}
    if not options.encoded:
        _make_units_fine(dataset, growing | {options.append_dim})
    types = {name: v.encoding.get("dtype") for name, v in dataset.variables.items()}
    if options.encoded:
        return Encoded(dict(dataset.variables), dict(dataset.attrs), types, problems)
    variables, attributes = _encoded(path, dataset, frozenset(options.encoding), problems)
    return Encoded(variables, attributes, types, problems)


def _encoded(
    path: str, dataset: xr.Dataset, asked: Collection[Hashable], problems: list[str]
) -> tuple[dict[Any, xr.Variable], dict[Any, Any]]:
    """Return the result of `encode_for_netcdf`; variables that it cannot encode are left out.

    Parameters
    ----------
    asked
        Variables whose encoding the user gave. Any other variable that cannot be encoded with
        its encoding is encoded without it.
    """
    try:
        return encode_for_netcdf(dataset)
    except _NOT_ENCODABLE as error:
        whole = [f"{path}: {error}"]
    found: dict[Any, xr.Variable] = {}
    single = []
    again = False
    for name, variable in dataset.variables.items():
        where = join(path, str(name))
        try:
            found |= encode_for_netcdf(xr.Dataset({name: variable.to_base_variable()}))[0]
        except _NOT_ENCODABLE as error:
            plain = None if name in asked else without_cf(where, variable.encoding, error)
            if plain is not None:
                variable.encoding, again = plain, True
            single.append(f"{where}: {error}{_asked_for(variable) if name in asked else ''}")
    if again:
        return _encoded(path, dataset, asked, problems)
    problems += single or whole
    return found, dict(dataset.attrs)


def _make_units_fine(dataset: xr.Dataset, growing: AbstractSet[Hashable]) -> None:
    """Give times along dimensions that grow units in which times that come later are integers, too.

    xarray chooses units for those that are there: days for a single one, whatever follows. dask's
    times, which it does not know, have fine ones.
    """
    told = ({**v.attrs, **v.encoding}.get("bounds") for v in dataset.variables.values())
    bounds = {*map(str, told)}  # which get those of their coordinate
    for name, variable in dataset.variables.items():
        encoding = variable.encoding
        chosen = encoding.get("units") is not None or encoding.get("dtype") not in (None, "i8")
        if chosen or name in bounds or variable.chunks is not None:
            continue
        if growing.isdisjoint(variable.dims):
            continue
        with suppress(*_NOT_ENCODABLE):  # what encodes them says why
            unit, *since = (units_of_times(variable) or "").partition(" since ")
            if unit in ("days", "hours", "minutes"):
                variable.encoding = {**encoding, "units": "".join(("seconds", *since))}


def _asked_for(variable: xr.Variable) -> str:
    """Return a note of the encoding that xarray has not understood: it seldom says which part."""
    encoding = variable.encoding
    said = ", ".join(f"{key}={encoding[key]!r:.60}" for key in sorted(CF_KEYS & encoding.keys()))
    return f" (the encoding is {said})" if said else ""
